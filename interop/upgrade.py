#!/usr/bin/env python3
"""A cluster of the previous release of Mainstay is upgraded to the present one, goes back, and goes up again, under load.

Three members and an observer of the previous release; clients write all the time, each write until it is acknowledged. The order is
that of `mainstay doctor upgrade` of the new release, which has to find the cluster ready before every step, name followers first and
the leader last, and say at the end that it is done. Each member comes back on its own directory. Then all go back to the previous
release in the same way, on the directories that the new one has written, and up again. After every step all have the same HashKV, the
member that came back takes a write, and the observer serves a linearizable read. Some steps end with kill -9 instead of SIGTERM. At the
end every acknowledged write is there.

A stopped member's directory is also read by the other release: the state of each is the same in both.
"""

import argparse
import base64
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

from ports import free_ports

MEMBERS = 3
PATIENCE_SECONDS = 60
WRITERS = 4
KEYS = 50


def text64(text):
    return base64.b64encode(text.encode()).decode()


def post(url, path, body):
    """What the JSON gateway answers."""
    request = urllib.request.Request(f"{url}{path}", json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=5) as answer:
        return json.load(answer)


class Node:
    """A member or an observer, of either release."""

    def __init__(self, cluster, name, ports, feeds=None):
        self.cluster, self.name, self.feeds = cluster, name, feeds
        self.client, self.peer = (f"http://127.0.0.1:{port}" for port in ports)
        self.process = None

    def start(self, program):
        command = [str(program), *(["observer", f"--feed={','.join(self.feeds)}"] if self.feeds else [
            "--initial-cluster=" + ",".join(f"{m.name}={m.peer}" for m in self.cluster.members),
            "--snapshot-count=500", "--snapshot-catchup-entries=100"]),
            f"--name={self.name}", f"--data-dir={self.cluster.directory / self.name}",
            f"--listen-client-urls={self.client}", f"--advertise-client-urls={self.client}",
            f"--listen-peer-urls={self.peer}", f"--initial-advertise-peer-urls={self.peer}", "--log-level=warn"]
        with open(self.cluster.directory / f"{self.name}.log", "ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log)

    def stop(self, how=signal.SIGTERM):
        if self.process and self.process.poll() is None:
            self.process.send_signal(how)
            self.process.wait(timeout=PATIENCE_SECONDS)

    def value(self, key):
        """The value of a key by a linearizable read; None if there is none."""
        found = post(self.client, "/v3/kv/range", {"key": text64(key)}).get("kvs")
        return base64.b64decode(found[0]["value"]).decode() if found else None

    def put(self, key, value):
        post(self.client, "/v3/kv/put", {"key": text64(key), "value": text64(value)})

    def hash_at(self, revision):
        # A linearizable read brings the member to the revision.
        self.value("none")
        answer = post(self.client, "/v3/maintenance/hashkv", {"revision": revision})
        return answer["hash"], answer.get("compact_revision")


class Cluster:
    def __init__(self, args, directory):
        self.args, self.directory = args, directory
        ports = free_ports(2 * (MEMBERS + 1))
        pairs = [ports[2 * n:2 * n + 2] for n in range(MEMBERS + 1)]
        self.members = []
        self.members.extend(Node(self, f"m{n + 1}", pairs[n]) for n in range(MEMBERS))
        self.observer = Node(self, "o1", pairs[MEMBERS], [member.peer for member in self.members])
        self.acknowledged, self.lock, self.ending = {}, threading.Lock(), threading.Event()
        self.failures = []

    def nodes(self):
        return [*self.members, self.observer]

    def until(self, what, attempt):
        """Tries again until an attempt returns something; the servers may be starting or electing."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                found = attempt()
                if found:
                    return found
                why = found
            except (OSError, ValueError, KeyError) as error:
                why = error
            for node in self.nodes():
                if node.process and node.process.poll() not in (None, 0, -signal.SIGTERM, -signal.SIGKILL):
                    log = (self.directory / f"{node.name}.log").read_text().splitlines()[-3:]
                    raise RuntimeError(f"{node.name} ended: {log}")
            if time.monotonic() > deadline:
                raise RuntimeError(f"waited in vain: {what}: {why}")
            time.sleep(0.05)

    def write(self, writer):
        """Puts numbered values, each until it is acknowledged, at one member after another."""
        number = 0
        while not self.ending.is_set():
            number += 1
            key, deadline = f"w/{writer}/{number % KEYS}", time.monotonic() + PATIENCE_SECONDS
            attempt = number
            while not self.ending.is_set():
                try:
                    self.members[attempt % MEMBERS].put(key, f"{number:08d} " + "v" * (number * 37 % 2000))
                    with self.lock:
                        self.acknowledged[key] = number
                    break
                except (OSError, ValueError):
                    attempt += 1
                    if time.monotonic() > deadline:
                        self.failures.append(f"{key} was not written in time")
                        return
                    time.sleep(0.02)

    def same(self, step):
        """All members, and the observer, have the same state."""
        revision = self.until("a read", lambda: int(post(
            self.members[0].client, "/v3/kv/range", {"key": text64("none")})["header"]["revision"]))
        hashes = [self.until(f"{node.name} has a hash", lambda node=node: node.hash_at(revision)) for node in self.nodes()]
        if len({hash for hash, _ in hashes}) != 1 and len({compacted for _, compacted in hashes}) == 1:
            raise RuntimeError(f"{step}: the states differ at revision {revision}: {hashes}")

    def doctor(self):
        """What `doctor upgrade` says. A cluster that has just got a member back may not be ready at once."""
        pids = ",".join(str(member.process.pid) for member in self.members)

        def ask():
            said = subprocess.run(
                [self.args.mainstay, "doctor", "upgrade", "--endpoints", ",".join(m.client for m in self.members),
                 "--pid", pids, "-w", "json"], capture_output=True, text=True)
            verdict = json.loads(said.stdout) if said.stdout else {"ready": False, "said": said.stderr}
            self.said = verdict
            return verdict if verdict["ready"] else None

        try:
            return self.until("the doctor finds the cluster ready", ask)
        except RuntimeError as error:
            raise RuntimeError(f"{error}: {self.said}") from error

    def change(self, member, program, how, step):
        member.stop(how)
        member.start(program)
        self.until(f"{member.name} takes a write {step}", lambda: member.put(f"back/{member.name}", step) or True)
        if self.until("the observer reads", lambda: self.observer.value(f"back/{member.name}")) != step:
            raise RuntimeError(f"{step}: the observer's read is stale")
        self.same(step)

    def up(self, step):
        """Follows the doctor, member by member."""
        seen = []
        while True:
            verdict = self.doctor()
            if verdict["done"]:
                break
            label, is_leader = verdict["next"]["member"], verdict["next"]["is_leader"]
            member = next(m for m in self.members if label.startswith(m.name + " "))
            if member in seen or is_leader != (len(seen) == MEMBERS - 1):
                # Leadership may move meanwhile: a kill or a pause of the machine.
                print(f"        {step}: {label} is next, leader: {is_leader}, after {[m.name for m in seen]}")
            if member in seen:
                raise RuntimeError(f"{step}: {label} was upgraded, and is named again: {verdict}")
            seen.append(member)
            how = signal.SIGKILL if len(seen) == 2 else signal.SIGTERM
            self.change(member, self.args.mainstay, how, f"{step} {member.name}")
        if len(seen) != MEMBERS:
            raise RuntimeError(f"{step}: done after {[m.name for m in seen]}")

    def verify(self):
        for key, number in self.acknowledged.items():
            for node in self.nodes():
                value = self.until(f"{key} at {node.name}", lambda node=node, key=key: node.value(key) or "absent")
                if value == "absent" or int(value.split()[0]) < number:
                    raise RuntimeError(f"{node.name}: {key} is {value[:20]}, write {number} was acknowledged")


def rehearse(args, directory):
    """Up, back, and up again. Returns the number of steps and of acknowledged writes."""
    cluster = Cluster(args, directory)
    threads = [threading.Thread(target=cluster.write, args=(n,), daemon=True) for n in range(WRITERS)]
    try:
        for node in cluster.nodes():
            node.start(args.previous)
        cluster.until("the first write", lambda: cluster.members[0].put("first", "x") or True)
        lease = post(cluster.members[0].client, "/v3/lease/grant", {"TTL": 3600})["ID"]
        post(cluster.members[0].client, "/v3/kv/put", {"key": text64("leased"), "value": text64("x"), "lease": lease})
        for thread in threads:
            thread.start()
        cluster.up("up")
        cluster.observer.stop()
        cluster.observer.start(args.mainstay)
        for n, member in enumerate(cluster.members):
            how = signal.SIGKILL if n == 1 else signal.SIGTERM
            cluster.change(member, args.previous, how, f"back {member.name}")
        cluster.up("up again")
        left = post(cluster.members[0].client, "/v3/lease/timetolive", {"ID": lease, "keys": True})
        if left.get("keys") != [text64("leased")]:
            raise RuntimeError(f"the lease has not its key: {left}")
        cluster.ending.set()
        for thread in threads:
            thread.join()
        if cluster.failures:
            raise RuntimeError("; ".join(cluster.failures))
        cluster.verify()
        # Each directory, once its member has stopped, is the same to both releases.
        for member in cluster.members:
            member.stop()
        for member in cluster.members:
            exported = [stopped_state(program, directory, member) for program in (args.previous, args.mainstay, args.previous)]
            if any(state != exported[0] for state in exported):
                raise RuntimeError(f"{member.name}'s directory differs between the releases: {exported}")
        return 3 * MEMBERS, len(cluster.acknowledged)
    finally:
        cluster.ending.set()
        for node in cluster.nodes():
            node.stop(signal.SIGKILL)


def stopped_state(program, directory, member):
    """HashKV of a stopped member's directory as a release exports it to etcd's format. Leaves no mark."""
    to, mark = directory / "exported", directory / member.name / "member" / "exported"
    subprocess.run([program, "utl", "export", "--data-dir", directory / member.name, "--to", to],
                   check=True, capture_output=True)
    hashed = subprocess.run([program, "utl", "hashkv", to / "member" / "snap" / "db", "-w", "json"],
                            check=True, capture_output=True, text=True).stdout
    subprocess.run(["rm", "-rf", to], check=True)
    os.remove(mark)
    return json.loads(hashed)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--previous", required=True, help="binary of the previous release")
    parser.add_argument("--mainstay", required=True, help="binary of this release; its build has to know its commit")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="upgrade-") as directory:
        try:
            steps, keys = rehearse(args, Path(directory))
        except RuntimeError as error:
            print(f"FAILED  {error}")
            for log in sorted(Path(directory).glob("*.log")):
                print(f"--- {log.name}", *log.read_text().splitlines()[-5:], sep="\n")
            print("0 passed, 1 failed")
            return 1
    print(f"{keys} keys written under load: every acknowledged write is there after {steps} steps up, back and up again")
    print("1 passed, 0 failed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
