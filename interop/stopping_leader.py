#!/usr/bin/env python3
"""Writes that fail at the followers because their leader, an etcd, is stopped: followers of etcd beside followers of Mainstay.

A follower forwards a write to its leader. A leader of etcd that is told to stop hands its office over and drops, without a word,
what is forwarded to it meanwhile; nobody may propose that again, since it may as well have been taken. So a few writes fail whenever
a leader of etcd is stopped, whoever the followers are. This counts them.

For each etcd given two clusters of three are run: one with followers of the same etcd, one whose followers Mainstay took over in
place. In each round the first member, an etcd, leads; writers, all of them at the two followers, which are never stopped, write all
the time; the leader is told to stop (SIGTERM), is started again a second later, and is made the leader again. Every write is tried
once, and waits as long as the follower lets it.

    interop/stopping_leader.py --etcd PATH [--etcd PATH ...] --mainstay PATH [--rounds 20] [--writers 16] [--most RATIO]

It prints, for each cluster, writes acknowledged, writes failed with their texts, the most in one round, and the longest that a write
waited. With --most it fails where Mainstay's followers fail more than RATIO times the writes of etcd's, plus three.
Python 3.9+, standard library only.
"""

import argparse
import collections
import http.client
import json
import os
import shutil
import sys
import tempfile
import threading
import time

from takeover import PATIENCE_SECONDS, Member, Wrong, b64, free_ports, is_mainstay, release_of, until

# Longer than etcd lets a write wait: five seconds and two elections.
ANSWER_SECONDS = 20


class Writer(threading.Thread):
    """Writes at one member over one connection, each key once."""

    def __init__(self, port, name, over):
        super().__init__(daemon=True)
        self.port, self.name, self.over = port, name, over
        self.acknowledged, self.failed, self.longest = 0, collections.Counter(), 0.0

    def run(self):
        connection, n = None, 0
        while not self.over.is_set():
            began = time.monotonic()
            try:
                connection = connection or http.client.HTTPConnection("127.0.0.1", self.port, timeout=ANSWER_SECONDS)
                connection.request("POST", "/v3/kv/put", json.dumps({"key": b64(f"{self.name}/{n}"), "value": b64(str(n))}))
                answer = connection.getresponse()
                text = answer.read()
                if answer.status == 200:
                    self.acknowledged += 1
                else:
                    self.failed[json.loads(text).get("message", text.decode(errors="replace"))] += 1
            except (OSError, ValueError, http.client.HTTPException) as error:
                self.failed[f"no answer: {error!r}"] += 1
                connection = None
            n += 1
            self.longest = max(self.longest, time.monotonic() - began)


def rounds(args, etcd, taken_over, directory):
    """Stops the leader again and again. Gives acknowledged, failed by text, failures by round, and the longest wait."""
    ports = free_ports(6)
    names = ",".join(f"m{n}=http://127.0.0.1:{ports[3 + n]}" for n in range(3))
    members = [Member(directory, f"m{n}", (ports[n], ports[3 + n]), names) for n in range(3)]
    leader, followers = members[0], members[1:]
    acknowledged, failed, by_round, longest = 0, collections.Counter(), [], 0.0
    try:
        for one in members:
            one.start(etcd)
        for one in members:
            one.wait()
        for one in followers if taken_over else ():
            one.stop()
            one.serve(args.mainstay)
            if not is_mainstay(one):
                raise Wrong(f"{one.name} was not taken over")
        for number in range(args.rounds):
            leader.lead(followers)
            own = leader.status()["header"]["member_id"]
            until("the first member leads for all", lambda: all(one.status().get("leader") == own for one in members))
            over = threading.Event()
            writers = [Writer(followers[n % 2].port, f"{number}/{n}", over) for n in range(args.writers)]
            for writer in writers:
                writer.start()
            time.sleep(args.seconds)
            leader.stop()
            time.sleep(args.seconds)
            leader.serve(etcd)
            over.set()
            for writer in writers:
                writer.join(ANSWER_SECONDS + PATIENCE_SECONDS)
            acknowledged += sum(writer.acknowledged for writer in writers)
            by_round.append(sum(sum(writer.failed.values()) for writer in writers))
            for writer in writers:
                failed += writer.failed
            longest = max(longest, *(writer.longest for writer in writers))
    finally:
        for one in members:
            one.stop()
    return acknowledged, failed, by_round, longest


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--etcd", action="append", required=True, metavar="PATH")
    parser.add_argument("--mainstay", required=True, metavar="PATH")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--writers", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=1.0, help="of load before and after each stop")
    parser.add_argument("--most", type=float, metavar="RATIO")
    args = parser.parse_args()
    wrong = 0
    for etcd in args.etcd:
        counts = {}
        for taken_over in (False, True):
            directory = tempfile.mkdtemp(prefix="stopping-leader-")
            try:
                acknowledged, failed, by_round, longest = rounds(args, etcd, taken_over, directory)
            finally:
                shutil.rmtree(directory, ignore_errors=True)
            counts[taken_over] = sum(failed.values())
            who = "Mainstay" if taken_over else "etcd"
            print(f"etcd {release_of(etcd)}, followers of {who}: {counts[taken_over]} of {acknowledged + counts[taken_over]} writes failed "
                  f"in {args.rounds} stops, at most {max(by_round)} in one; the longest waited {longest:.1f} s", flush=True)
            for text, count in failed.most_common():
                print(f"    {count} x {text}", flush=True)
        wrong += args.most is not None and counts[True] > args.most * counts[False] + 3
    if args.most is not None:
        print(f"{len(args.etcd) - wrong} passed, {wrong} failed")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
