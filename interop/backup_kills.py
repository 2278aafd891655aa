#!/usr/bin/env python3
"""Continuous backup of a cluster of three members under load, while the members and the process that ships are killed (-9) every few
seconds. Then random revisions are restored: HashKV and every key must be as the cluster's own history says, and every write that was
acknowledged must be in that history. Nothing is compacted, so the cluster still has all of its history in the end.
"""

import argparse
import base64
import json
import random
import shutil
import signal
import threading
import time
import urllib.request
from pathlib import Path

from backup import Bench, Process, Server, cpu_seconds, directory_of_run, text, wait_for
from ports import free_port, free_ports

KEYS = 400


class Member(Server):
    """One of three members."""

    def __init__(self, directory, name, program, addresses, cluster, flags=()):
        self.client, self.peer = addresses
        self.data = directory / name
        Process.__init__(self, directory, name, [
            program, f"--name={name}", f"--data-dir={self.data}", f"--listen-client-urls={self.client}",
            f"--advertise-client-urls={self.client}", f"--listen-peer-urls={self.peer}",
            f"--initial-advertise-peer-urls={self.peer}", f"--initial-cluster={cluster}", *flags])

    def start(self, waits=True):
        Process.start(self)
        if waits:
            wait_for(f"{self.data.name} serves", self.serves)
        return self


def cluster_of(directory, program, count, flags=()):
    """Members of one new cluster, all started."""
    addresses = [[f"http://127.0.0.1:{port}" for port in free_ports(2)] for _ in range(count)]
    cluster = ",".join(f"m{at}={peer}" for at, (_, peer) in enumerate(addresses))
    members = [Member(directory, f"m{at}", program, address, cluster, flags) for at, address in enumerate(addresses)]
    for member in members:
        member.start(waits=False)
    for member in members:
        wait_for("the cluster serves", member.serves)
    return members


class Writer(threading.Thread):
    """Puts and deletes keys at whichever member answers. Notes the revision of each change that was acknowledged."""

    def __init__(self, members, number, rate):
        super().__init__(daemon=True)
        self.members, self.number, self.rate = members, number, rate
        self.acknowledged, self.failed, self.ends = [], 0, threading.Event()

    def run(self):
        generator, at, count = random.Random(self.number), self.number, 0
        while not self.ends.is_set():
            begun = time.monotonic()
            key, count = f"k/{generator.randrange(KEYS)}", count + 1
            value = f"{self.number}/{count}/" + "x" * generator.randrange(600)
            # Members come and go meanwhile.
            members = list(self.members)
            member = members[at % len(members)]
            request = urllib.request.Request(f"{member.client}/v3/kv/put",
                                             json.dumps({"key": text(key), "value": text(value)}).encode())
            try:
                with urllib.request.urlopen(request, timeout=3) as answer:
                    self.acknowledged.append((int(json.load(answer)["header"]["revision"]), text(key), text(value)))
            except (OSError, ValueError, KeyError):
                self.failed += 1
                at += 1
                self.ends.wait(0.05)
            self.ends.wait(max(0.0, 1 / self.rate - (time.monotonic() - begun)))


def history(member, through):
    """All changes up to a revision, as the cluster tells a watch from the first revision on."""
    create = {"create_request": {"key": text("\0"), "range_end": text("\0"), "start_revision": "1"}}
    request = urllib.request.Request(f"{member.client}/v3/watch", json.dumps(create).encode())
    events = []
    with urllib.request.urlopen(request, timeout=120) as answer:
        for line in answer:
            for event in json.loads(line)["result"].get("events", []):
                revision = int(event["kv"]["mod_revision"])
                if revision > through:
                    return events
                value = None if event.get("type") == "DELETE" else event["kv"].get("value", "")
                events.append((revision, event["kv"]["key"], value))
            if events and events[-1][0] >= through:
                return events
    raise RuntimeError("the watch ended")


def keys_of(server):
    """Keys and values, page by page."""
    found, key = {}, text("\0")
    while True:
        page = server.call("kv/range", {"key": key, "range_end": text("\0"), "limit": "1000"})
        for kv in page.get("kvs", []):
            found[kv["key"]] = (kv.get("value", ""), int(kv["mod_revision"]))
        if not page.get("more"):
            return found
        key = base64.b64encode(base64.b64decode(page["kvs"][-1]["key"]) + b"\0").decode()


def check(bench, to, member, events, revisions):
    """Restores each of the revisions beside the running cluster."""
    expected, done = {}, 0
    for number, revision in enumerate(sorted(revisions)):
        while done < len(events) and events[done][0] <= revision:
            changed, key, value = events[done]
            if value is None:
                expected.pop(key, None)
            else:
                expected[key] = (value, changed)
            done += 1
        server = bench.restored(to, revision, bench.mainstay, f"restored-{number}")
        ours = server.call("maintenance/hashkv", {"revision": str(revision)})
        theirs = member.call("maintenance/hashkv", {"revision": str(revision)})
        if ours["hash"] != theirs["hash"]:
            raise RuntimeError(f"revision {revision}: HashKV {ours['hash']}, and the cluster has {theirs['hash']}")
        found = keys_of(server)
        if found != expected:
            raise RuntimeError(f"revision {revision}: {len(found)} keys, and the history says {len(expected)}")
        server.stop()
        shutil.rmtree(server.data)
    print(f"{len(revisions)} random revisions restored, every key and HashKV as the cluster has them", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mainstay", required=True, help="the program mainstay")
    server = parser.add_mutually_exclusive_group(required=True)
    server.add_argument("--minio", help="the program minio")
    server.add_argument("--versitygw", help="the program versitygw")
    parser.add_argument("--minutes", type=float, default=20, help="minutes of kills")
    parser.add_argument("--every", type=float, default=5, help="mean seconds between two kills")
    parser.add_argument("--rate", type=float, default=60, help="puts per second of each of two writers")
    parser.add_argument("--restores", type=int, default=20, help="random revisions that are restored")
    parser.add_argument("--seed", type=int, default=1, help="seed of the kills and of the revisions")
    parser.add_argument("--keep", action="store_true", help="keep the directory")
    arguments = parser.parse_args()
    arguments.mainstay = str(Path(arguments.mainstay).resolve())
    generator = random.Random(arguments.seed)
    with directory_of_run("mainstay-backup-kills-", arguments.keep) as directory:
        bench = Bench(arguments, directory)
        members = cluster_of(directory, arguments.mainstay, 3)
        to, peer = bench.bucket("of-kills"), f"http://127.0.0.1:{free_port()}"
        feeds = ",".join(member.peer for member in members)
        shipper = bench.shipper("shipper", to, f"--feed={feeds}", f"--listen-peer-urls={peer}",
                                f"--initial-advertise-peer-urls={peer}").start()
        wait_for("a base is there", lambda: bench.run("backup", "list", to, "-w", "json").strip() != "[]" or shipper.alive())
        first = bench.shipped(to)
        writers = [Writer(members, number, arguments.rate) for number in range(2)]
        for writer in writers:
            writer.start()
        kills, ends = {"shipper": 0, "member": 0, "both": 0}, time.monotonic() + arguments.minutes * 60
        while time.monotonic() < ends:
            time.sleep(generator.uniform(0.4, 1.6) * arguments.every)
            what = generator.choice(list(kills))
            kills[what] += 1
            victim = generator.choice(members)
            if what != "shipper":
                victim.stop(signal.SIGKILL)
            if what != "member":
                shipper.stop(signal.SIGKILL)
                time.sleep(generator.uniform(0, 1))
                shipper.start()
            if what != "shipper":
                victim.start()
        for writer in writers:
            writer.ends.set()
            writer.join()
        newest = members[0].hash()[0]
        begun = time.monotonic()
        bench.wait_shipped(to, newest, shipper)
        print(f"killed: {kills}; {sum(len(writer.acknowledged) for writer in writers)} puts acknowledged, "
              f"{sum(writer.failed for writer in writers)} not; revision {newest} was in the backup after "
              f"{time.monotonic() - begun:.1f} s; the last shipper took {cpu_seconds(shipper.process.pid):.1f} s of processor time",
              flush=True)
        events = history(members[0], newest)
        known = set(events)
        for writer in writers:
            missing = [one for one in writer.acknowledged if one not in known]
            if missing:
                raise RuntimeError(f"acknowledged and not in the history: {missing[:3]}")
        print(bench.run("backup", "verify", to).strip(), flush=True)
        epochs = json.loads(bench.run("backup", "list", to, "-w", "json"))
        if any(epoch["gap"] for epoch in epochs):
            raise RuntimeError(f"there are gaps: {epochs}")
        shipper.stop()
        changed = [revision for revision, _, _ in events if revision > first]
        check(bench, to, members[0], events, generator.sample(changed, min(arguments.restores, len(changed))))
    print("ok")


if __name__ == "__main__":
    main()
