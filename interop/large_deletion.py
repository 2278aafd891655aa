#!/usr/bin/env python3
"""How long a deletion of a million keys holds up everybody else.

    interop/large_deletion.py --benchmark PATH --bench target/release/mainstay --etcdctl PATH --server NAME=PATH [--server ...]
        [--keys 1000000]

Fills a server with keys, then deletes them all at once while others read one key, renew leases and put, each at a fixed
rate. Prints how long the deletion took and the slowest of each, in milliseconds. A put has to wait for the deletion, in
any server that applies entries one by one; the others need not.
"""

import argparse
import json
import subprocess
import sys
import time

import page
from side_by_side import Server

LOADS = {
    "serializable read": ["range", "cheap", "--consistency=s"],
    "linearizable read": ["range", "cheap"],
    "lease renewal": ["lease-keepalive"],
    "put": ["put", "--val-size=16", "--key-space-size=1"],
}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--benchmark", required=True)
    parser.add_argument("--bench", required=True, metavar="MAINSTAY", help="whose bench makes the loads beside the deletion")
    parser.add_argument("--etcdctl", required=True)
    parser.add_argument("--server", action="append", required=True, metavar="NAME=PATH")
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--port", type=int, default=23790)
    parser.add_argument("--page", help="write the table into this file, docs/benchmarks.md")
    args = parser.parse_args()
    servers, lines = [pair.split("=", 1) for pair in args.server], []
    for name, path in servers:
        server = Server(name, path, args.port)
        endpoint = f"127.0.0.1:{args.port}"
        fill = ["--conns=4", "--clients=400", "put", f"--total={args.keys}", "--val-size=16", "--sequential-keys",
                f"--key-space-size={args.keys}"]
        subprocess.run([args.benchmark, f"--endpoints={endpoint}", *fill], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
        bench = [args.bench, "bench", f"--endpoints={endpoint}", "--conns=1", "--clients=20", "--json=-"]
        loads = {load: subprocess.Popen([*bench, *words, "--rate=100", "--total=3000"],
                                        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
                 for load, words in LOADS.items()}
        time.sleep(3)
        began = time.monotonic()
        ctl = [args.etcdctl, f"--endpoints={endpoint}", "--command-timeout=120s", "del", "", "--from-key=true"]
        done = subprocess.run(ctl, stdout=subprocess.PIPE, text=True)
        took = time.monotonic() - began
        slowest = []
        for load in loads.values():
            out, error = load.communicate()
            if load.returncode:
                sys.exit(f"{name}: a load failed:\n{error[-1000:]}")
            slowest.append(f"{json.loads(out)['rows'][0]['median']['latency_ms']['max']:.1f}")
        deleted = done.stdout.split()[0] if done.stdout.split() else "?"
        lines.append([f"{name} ({deleted} keys)", f"{took:.2f}", *slowest])
        server.stop()
        server.clean()
    head = ["server", "deletion s", *(f"{load}: slowest ms" for load in LOADS)]
    page.write_table(args.page, "large_deletion", page.dated(1, page.measured_commit(servers)), page.markdown(head, lines))


if __name__ == "__main__":
    main()
