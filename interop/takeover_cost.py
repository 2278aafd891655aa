#!/usr/bin/env python3
"""What it takes to take a large member of real etcd over, and to give it back: time, processor time and memory.

etcd is filled and stopped; Mainstay is started with the same flags on the same directory, saves a snapshot, which is restored
into a directory of its own, and is stopped; `mainstay utl export` writes etcd's directory, and etcd serves it. HashKV has to be
the same at each station.

    interop/takeover_cost.py --benchmark PATH --etcd PATH --mainstay PATH [--keys 1000000] [--value-bytes 256]

The disk needs five times the size of the data. Python 3.9+, standard library only; etcd's `benchmark`.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time

from round_trip import memory_kib
from side_by_side import Server, fill
from takeover import release_of


class Member(Server):
    """A server that may hold more than the default."""

    # etcd reads its whole database, perhaps from a disk that is slow.
    patience_s = 600

    def more_flags(self):
        return ["--quota-backend-bytes", str(64 << 30), "--snapshot-count", "10000"]

    def most_mb(self):
        text = open(f"/proc/{self.process.pid}/status").read()
        return int(re.search(r"VmHWM:\s+(\d+)", text).group(1)) / 1024

    def started(self, what):
        print(f"{what}: {self.ready_s:.1f} s, {self.cpu_s():.1f} s CPU, {self.most_mb():.0f} MB at most", flush=True)


def run(what, words):
    """Runs a program and says what it took."""
    began = time.monotonic()
    with tempfile.TemporaryFile() as errors:
        child = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=errors)
        most_kib = 0
        while True:
            # What wait4 says of memory counts this program too, which forked.
            most_kib = max(most_kib, memory_kib(child.pid))
            pid, status, usage = os.wait4(child.pid, os.WNOHANG)
            if pid:
                break
            time.sleep(0.01)
        child.returncode = os.waitstatus_to_exitcode(status)
        errors.seek(0)
        if child.returncode != 0:
            sys.exit(f"{' '.join(words)}: {child.returncode}\n{errors.read().decode()}")
    took = time.monotonic() - began
    print(f"{what}: {took:.1f} s, {usage.ru_utime + usage.ru_stime:.1f} s CPU, {most_kib / 1024:.0f} MB at most", flush=True)


def hash_of(args, member):
    said = subprocess.run([args.mainstay, "ctl", "--endpoints", f"127.0.0.1:{member.port}", "--command-timeout", "10m",
                           "endpoint", "hashkv", "-w", "json"], stdout=subprocess.PIPE, text=True, check=True).stdout
    found = json.loads(said)[0]["HashKV"]
    return found["hash"], found["hash_revision"], found["compact_revision"]


def size_of(directory):
    files = (os.path.join(at, name) for at, _, names in os.walk(directory) for name in names)
    return sum(os.stat(each).st_blocks * 512 for each in files)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--benchmark", required=True, help="etcd's benchmark tool")
    parser.add_argument("--etcd", required=True, help="a real etcd, 3.5 to 3.7")
    parser.add_argument("--mainstay", required=True)
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--value-bytes", type=int, default=256)
    parser.add_argument("--port", type=int, default=23790)
    parser.add_argument("--directory", help="where the data goes; a temporary one if not given")
    args = parser.parse_args()
    failed = []

    with tempfile.TemporaryDirectory(prefix="takeover-cost-", dir=args.directory) as work:
        data = os.path.join(work, "data")

        def serve(what, program, expected=None):
            member = Member("default", program, args.port, work)
            member.started(what)
            found = hash_of(args, member)
            if expected is not None and found != expected:
                failed.append(what)
                print(f"FAILED {what}: HashKV {found}, not {expected}", flush=True)
            return member, found

        member = Member("default", args.etcd, args.port, work)
        fill(args, args.keys, args.value_bytes)
        member.stop()
        print(f"{args.keys} keys with values of {args.value_bytes} bytes: {size_of(data) / 1e6:.0f} MB on disk", flush=True)
        member, expected = serve("etcd starts", args.etcd)
        member.stop()

        member, _ = serve("Mainstay takes it over", args.mainstay, expected)
        saved = os.path.join(work, "saved.db")
        run("ctl snapshot save", [args.mainstay, "ctl", "--endpoints", f"127.0.0.1:{args.port}", "snapshot", "save", saved])
        print(f"  {os.path.getsize(saved) / 1e6:.0f} MB; the member had {member.most_mb():.0f} MB at most", flush=True)
        member.stop()
        member, _ = serve("Mainstay starts again", args.mainstay, expected)
        member.stop()

        back = os.path.join(work, "back")
        release = release_of(args.etcd)
        run("utl export", [args.mainstay, "utl", "export", "--data-dir", data, "--to", back, "--release", release])
        restored = os.path.join(work, "restored")
        run("utl snapshot restore", [args.mainstay, "utl", "snapshot", "restore", saved, "--data-dir", restored])
        os.remove(saved)
        for what, program, directory in (
            ("etcd goes on", args.etcd, back),
            ("Mainstay with the snapshot", args.mainstay, restored),
        ):
            os.rename(data, os.path.join(work, "before"))
            os.rename(directory, data)
            # A restored member is revised by nothing, so its HashKV is the snapshot's.
            member, _ = serve(what, program, expected)
            member.stop()
            subprocess.run(["rm", "-rf", os.path.join(work, "before")], check=True)
    print(f"{5 - len(failed)} passed, {len(failed)} failed")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
