#!/usr/bin/env python3
"""How long a deletion of a million keys holds up everybody else.

    interop/large_deletion.py --benchmark PATH --etcdctl PATH --server NAME=PATH [--server ...] [--keys 1000000]

Fills a server with keys, then deletes them all at once while others read one key, renew leases and put, each at a fixed
rate. Prints how long the deletion took and the slowest of each, in milliseconds. A put has to wait for the deletion, in
any server that applies entries one by one; the others need not.
"""

import argparse
import re
import subprocess
import time

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
    parser.add_argument("--etcdctl", required=True)
    parser.add_argument("--server", action="append", required=True, metavar="NAME=PATH")
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--port", type=int, default=23790)
    args = parser.parse_args()
    print("| server | deletion s | " + " | ".join(f"{load}: slowest ms" for load in LOADS) + " |")
    print("|---|---|" + "---|" * len(LOADS))
    for name, path in (pair.split("=", 1) for pair in args.server):
        server = Server(name, path, args.port)
        endpoint = f"127.0.0.1:{args.port}"
        bench = [args.benchmark, f"--endpoints={endpoint}"]
        fill = ["--conns=4", "--clients=400", "put", f"--total={args.keys}", "--val-size=16", "--sequential-keys",
                f"--key-space-size={args.keys}"]
        subprocess.run([*bench, *fill], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
        loads = {load: subprocess.Popen([*bench, "--conns=1", "--clients=20", *words, "--rate=100", "--total=3000"],
                                        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
                 for load, words in LOADS.items()}
        time.sleep(3)
        began = time.monotonic()
        ctl = [args.etcdctl, f"--endpoints={endpoint}", "--command-timeout=120s", "del", "", "--from-key=true"]
        done = subprocess.run(ctl, stdout=subprocess.PIPE, text=True)
        took = time.monotonic() - began
        slowest = []
        for load in loads.values():
            found = re.search(r"Slowest:\s+(\S+) secs", load.communicate()[0])
            slowest.append(f"{float(found.group(1)) * 1e3:.1f}" if found else "-")
        deleted = done.stdout.split()[0] if done.stdout.split() else "?"
        print(f"| {name} ({deleted} keys) | {took:.2f} | " + " | ".join(slowest) + " |", flush=True)
        server.stop()
        server.clean()


if __name__ == "__main__":
    main()
