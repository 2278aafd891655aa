#!/usr/bin/env python3
"""A live cluster is left for another one without a member joining it: `make-mirror --keep-revisions --cut-over`.

Fills a source (any server of the API), takes a snapshot with etcdctl, restores it for the target, starts the target, and goes
over to it while clients write, delete, and hold leases. Then: every acknowledged write is at the target, nothing else is, the
hash over the whole history (HashKV) is the same on both sides, leases are there with their keys, and the source takes no
writes. Once the target is killed (-9) meanwhile, and once the mirror. Prints how long writes were stopped.
"""

import argparse
import base64
import json
import shutil
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

WRITERS = 4
PATIENCE_SECONDS = 120


def text(data):
    return base64.b64encode(data.encode()).decode()


class Member:
    """A cluster of one, started again at the same addresses."""

    def __init__(self, program, directory, name):
        self.program, self.directory, self.name = program, directory, name
        client, peer = free_ports(2)
        self.client, self.peer = f"http://127.0.0.1:{client}", f"http://127.0.0.1:{peer}"
        self.data = directory / name
        self.process = None

    def start(self):
        with open(self.directory / f"{self.name}.log", "ab") as log:
            self.process = subprocess.Popen(
                [self.program, f"--name={self.name}", f"--data-dir={self.data}", f"--listen-client-urls={self.client}",
                 f"--advertise-client-urls={self.client}", f"--listen-peer-urls={self.peer}",
                 f"--initial-advertise-peer-urls={self.peer}", f"--initial-cluster={self.name}={self.peer}",
                 f"--initial-cluster-token={self.name}"], stdout=log, stderr=log)
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                if self.call("kv/range", {"key": text("x")}):
                    return
            except OSError:
                pass
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{self.program} does not serve; see {self.directory}/{self.name}.log")
            time.sleep(0.1)

    def stop(self, how=signal.SIGTERM):
        if self.process and self.process.poll() is None:
            self.process.send_signal(how)
            self.process.wait(timeout=60)

    def call(self, path, body):
        request = urllib.request.Request(f"{self.client}/v3/{path}", json.dumps(body).encode())
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.load(answer)

    def revision(self):
        return int(self.call("kv/range", {"key": text("x")})["header"]["revision"])

    def keys(self):
        """Every key with its value, revisions, version and lease."""
        return self.call("kv/range", {"key": "AA==", "range_end": "AA=="}).get("kvs", [])

    def hash(self, etcdctl):
        """The hash over every version of the history."""
        command = [etcdctl, "--endpoints", self.client, "endpoint", "hashkv", "--write-out=json"]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        return json.loads(said)[0]["HashKV"]["hash"]


class Writer(threading.Thread):
    """Writes one key again and again until the source refuses, and deletes another in between."""

    def __init__(self, source, number):
        super().__init__()
        self.source, self.key = source, f"w{number}"
        self.acknowledged, self.refusal = None, None

    def run(self):
        number = 0
        while True:
            try:
                self.source.call("kv/put", {"key": text(self.key), "value": text(str(number))})
                self.acknowledged = str(number)
                if number % 10 == 0:
                    self.source.call("kv/put", {"key": text(f"{self.key}/gone"), "value": text("x" * 300)})
                    self.source.call("kv/deleterange", {"key": text(f"{self.key}/gone")})
            except urllib.error.HTTPError as error:
                self.refusal = error.read().decode()
                return
            except OSError as error:
                self.refusal = str(error)
                return
            number += 1


def fill(source, keys):
    for start in range(0, keys, 100):
        operations = [
            {"requestPut": {"key": text(f"k/{n:07d}"), "value": text("v" * 200)}} for n in range(start, min(start + 100, keys))]
        source.call("kv/txn", {"success": operations})
    leases = []
    for n in range(3):
        lease = source.call("lease/grant", {"TTL": str(60 + n)})["ID"]
        leases.append(lease)
        for key in range(200):
            source.call("kv/put", {"key": text(f"leased/{key:03d}/{n}"), "value": text("v"), "lease": lease})
    return leases


def move(args, directory, faults):
    """One move; what was wrong, and how many things were right."""
    source = Member(args.source, directory, "source")
    target = Member(args.target, directory, "target")
    passed, wrong = 0, []

    def check(what, holds):
        nonlocal passed
        if holds:
            passed += 1
        else:
            wrong.append(what)

    processes = [source, target]
    try:
        source.start()
        leases = fill(source, args.keys)
        snapshot = directory / "snapshot.db"
        subprocess.run([args.etcdctl, "--endpoints", source.client, "snapshot", "save", snapshot], check=True,
                       capture_output=True)
        subprocess.run(
            [*args.restore.split(), "snapshot", "restore", snapshot, "--data-dir", target.data, "--name", "target",
             "--initial-cluster", f"target={target.peer}", "--initial-advertise-peer-urls", target.peer,
             "--initial-cluster-token", "target"], check=True, capture_output=True)
        target.start()
        # What the snapshot does not have: among it the end of a lease with more keys than a transaction may name.
        source.call("lease/revoke", {"ID": leases[0]})
        source.call("kv/deleterange", {"key": text("k/00000"), "range_end": text("k/00001")})
        late = source.call("lease/grant", {"TTL": "90"})["ID"]
        source.call("kv/put", {"key": text("late"), "value": text("v"), "lease": late})
        writers = [Writer(source, n) for n in range(WRITERS)]
        for writer in writers:
            writer.start()
        command = [args.mainstay, "ctl", "--endpoints", source.client, "make-mirror", "--keep-revisions", target.client]
        began = time.monotonic()
        if faults:
            mirror = subprocess.Popen(command, stdout=subprocess.DEVNULL)
            behind = source.revision()
            while target.revision() < behind:
                time.sleep(0.05)
            target.stop(signal.SIGKILL)
            target.start()
            behind = source.revision()
            while target.revision() < behind:
                time.sleep(0.05)
            mirror.kill()
            mirror.wait()
        done = subprocess.run([*command, "--cut-over"], capture_output=True, text=True, timeout=PATIENCE_SECONDS)
        took = time.monotonic() - began
        if done.returncode != 0:
            # The writers go on: let the source go, so that they end.
            source.stop(signal.SIGKILL)
            raise RuntimeError(f"the mirror failed: {done.stdout}{done.stderr}")
        for writer in writers:
            writer.join()
            check(f"{writer.key} was refused with {writer.refusal}", "corrupt cluster" in writer.refusal)
            got = target.call("kv/range", {"key": text(writer.key)})["kvs"][0]["value"]
            check(f"{writer.key} is {got}", base64.b64decode(got).decode() == writer.acknowledged)
        check("keys differ", source.keys() == target.keys())
        hashes = source.hash(args.etcdctl), target.hash(args.etcdctl)
        check(f"hashes differ: {hashes}", hashes[0] == hashes[1])
        check("revisions differ", source.revision() == target.revision())
        for lease in [*leases[1:], late]:
            both = [side.call("lease/timetolive", {"ID": lease, "keys": True}) for side in (source, target)]
            check(f"lease {lease}: {both}", both[0]["grantedTTL"] == both[1]["grantedTTL"]
                  and sorted(both[0].get("keys", [])) == sorted(both[1].get("keys", []))
                  and int(both[1]["TTL"]) > int(both[1]["grantedTTL"]) - 20)
        gone = target.call("lease/timetolive", {"ID": leases[0]})
        check(f"a lease that was ended is there: {gone}", gone["TTL"] == "-1")
        target.call("kv/put", {"key": text("new"), "value": text("v")})
        passed += 1
        print(f"  {took:.1f} s in all, {source.revision()} revisions; {done.stdout.splitlines()[-2]}")
    finally:
        for each in processes:
            each.stop(signal.SIGKILL)
    return passed, wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", required=True, help="the server that is left")
    parser.add_argument("--target", required=True, help="the server that is gone over to")
    parser.add_argument("--restore", required=True, help='what restores the snapshot for the target: "mainstay utl" or an etcdutl')
    parser.add_argument("--mainstay", required=True, help="Mainstay's binary, for its make-mirror")
    parser.add_argument("--etcdctl", required=True)
    parser.add_argument("--keys", type=int, default=20000)
    args = parser.parse_args()
    passed = failed = 0
    for faults in (False, True):
        directory = Path(tempfile.mkdtemp(prefix="mainstay-live-import-"))
        try:
            good, wrong = move(args, directory, faults)
        except (RuntimeError, OSError, subprocess.SubprocessError) as error:
            good, wrong = 0, [str(error)]
        for line in wrong:
            print(f"FAILED {line}")
        passed += good
        failed += len(wrong)
        if wrong:
            print(f"kept {directory}")
        else:
            shutil.rmtree(directory)
    print(f"{passed} passed, {failed} failed")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
