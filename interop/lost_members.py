#!/usr/bin/env python3
"""The autopilot with processes and without a person: for half an hour, under load, voters are killed (-9) and their directories
deleted, one after the other. A spare learner (`--standby`) replaces each; then the next spare is started, as an orchestrator would.
In the end every acknowledged write must be there, and all members must have the same HashKV.
"""

import argparse
import random
import shutil
import signal
import time
from pathlib import Path

from backup import Process, directory_of_run, wait_for
from backup_kills import Member, Writer, cluster_of, keys_of
from ports import free_ports

FLAGS = ["--autopilot=on", "--autopilot-interval=1s", "--autopilot-replace-after=5s"]


class Cluster:
    """Members, one of which is a spare."""

    def __init__(self, directory, program):
        self.directory, self.program, self.number = directory, program, 3
        self.members = cluster_of(directory, program, 3, FLAGS)

    def call(self, path, body):
        """A call at whichever member answers."""
        last = None
        for member in self.members:
            try:
                return member.call(path, body)
            except OSError as error:
                last = error
        raise last

    def listed(self):
        """Name and peer URL of the voters, and of the learners."""
        try:
            found = self.call("cluster/member/list", {"linearizable": True})["members"]
        except OSError:
            return None
        parts = {False: [], True: []}
        for member in found:
            parts[member.get("isLearner", False)].append((member.get("name", ""), member["peerURLs"][0]))
        return parts[False], parts[True]

    def add_spare(self):
        """Adds a learner that waits until it is needed."""
        client, peer = (f"http://127.0.0.1:{port}" for port in free_ports(2))
        name, self.number = f"m{self.number}", self.number + 1

        def added():
            try:
                return self.call("cluster/member/add", {"peerURLs": [peer], "isLearner": True})
            except OSError:
                # It may have been added though the answer was lost.
                listed = self.listed()
                return listed if listed and peer in [url for _, url in listed[1]] else None

        wait_for("the spare is added", added)
        known = wait_for("the members are listed", self.listed)
        parts = [f"{at}={url}" for at, url in known[0]] + [f"{at}={url}" for at, url in known[1] if at]
        spare = Member(self.directory, name, self.program, (client, peer), ",".join([*parts, f"{name}={peer}"]),
                       [*FLAGS, "--standby", "--initial-cluster-state=existing"])
        spare.start(waits=False)
        self.members.append(spare)

        def is_started():
            # As in etcd, a new process ends if the member that it asks has not applied the addition yet.
            if spare.process.poll() is not None and "member count is unequal" in spare.said():
                Process.start(spare)
            spare.alive()
            return name in [at for at, _ in (self.listed() or ([], []))[1]]

        wait_for("the spare is started", is_started)

    def lose(self, generator):
        """Kills a voter for good. Returns its name."""
        voters, _ = wait_for("the members are listed", self.listed)
        name = generator.choice([at for at, _ in voters])
        member = next(member for member in self.members if member.data.name == name)
        member.stop(signal.SIGKILL)
        self.members.remove(member)
        shutil.rmtree(member.data)
        return name

    def is_replaced(self, name):
        """Whether there are three voters again, without this one, and no learner is left over."""
        for member in self.members:
            member.alive()
        listed = self.listed()
        return listed is not None and len(listed[0]) == 3 and not listed[1] and name not in [at for at, _ in listed[0]]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mainstay", required=True, help="the program mainstay")
    parser.add_argument("--minutes", type=float, default=30, help="minutes in which members are lost")
    parser.add_argument("--pause", type=float, default=10, help="mean seconds between a replacement and the next loss")
    parser.add_argument("--rate", type=float, default=40, help="puts per second of each of two writers")
    parser.add_argument("--seed", type=int, default=1, help="seed of the losses")
    parser.add_argument("--keep", action="store_true", help="keep the directory")
    arguments = parser.parse_args()
    generator = random.Random(arguments.seed)
    with directory_of_run("mainstay-lost-members-", arguments.keep) as directory:
        cluster = Cluster(directory, str(Path(arguments.mainstay).resolve()))
        writers = [Writer(cluster.members, number, arguments.rate) for number in range(2)]
        for writer in writers:
            writer.start()
        times, ends = [], time.monotonic() + arguments.minutes * 60
        while time.monotonic() < ends:
            cluster.add_spare()
            time.sleep(generator.uniform(0.5, 1.5) * arguments.pause)
            name = cluster.lose(generator)
            begun = time.monotonic()
            wait_for(f"{name} is replaced", lambda lost=name: cluster.is_replaced(lost))
            times.append(time.monotonic() - begun)
            print(f"{name} was lost and replaced within {times[-1]:.1f} s", flush=True)
        for writer in writers:
            writer.ends.set()
            writer.join()
        newest = {}
        for revision, key, value in sorted(one for writer in writers for one in writer.acknowledged):
            newest[key] = (value, revision)
        found = keys_of(cluster.members[0])
        # A write without an answer may have come after the last one that was acknowledged.
        lost = {key for key, (_, revision) in newest.items() if key not in found or found[key][1] < revision
                or (found[key][1] == revision and found[key][0] != newest[key][0])}
        if lost:
            raise RuntimeError(f"acknowledged writes of {len(lost)} keys are lost: {sorted(lost)[:3]}")
        revision = str(cluster.members[0].hash()[0])

        def hashes():
            try:
                return {member.call("maintenance/hashkv", {"revision": revision})["hash"] for member in cluster.members}
            except OSError:
                return None

        if len(wait_for("all members have the revision", hashes)) != 1:
            raise RuntimeError("the members differ")
        acknowledged, failed = (sum(of(writer) for writer in writers) for of in (lambda w: len(w.acknowledged), lambda w: w.failed))
        print(f"{len(times)} members lost, each replaced within {max(times):.1f} s; {acknowledged} puts acknowledged, none lost, "
              f"{failed} without an answer; revision {revision} equal at all members", flush=True)
    print("ok")


if __name__ == "__main__":
    main()
