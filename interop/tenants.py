#!/usr/bin/env python3
"""What a tenant that asks for ten times its share costs the others.

    interop/tenants.py --bench target/release/mainstay --server NAME=PATH [--server ...] [--tenants 100] [--rate 20] [--seconds 10] [--runs 3]

Starts a server with TLS and client-cert-auth, and for each tenant makes a certificate, the user that it names, a role and a prefix of its
own. Each tenant puts values of 1 KiB under its prefix at --rate a second, from a process, connection and certificate of its own:

* all but one, which does nothing;
* all, and the one at ten times the rate;
* all, and the one as fast as it can, with 64 requests in flight on one connection.

Prints the median and the largest p99 of the others' puts, in ms, and the ratios to the first row. A tenant that writes below the prefix of
another is refused, which is checked. Linux, Python 3.9+, openssl, Mainstay's `bench` and `ctl` as clients.
"""

import argparse
import concurrent.futures
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile

import page
from secured_clients import certificates
from security_cost import SecureServer

TIMES, IN_FLIGHT = 10, 64


def tenant(number):
    return f"tenant-{number:03d}"


class Tenants:
    """A server and its tenants."""

    def __init__(self, args, name, path, directory):
        self.args, self.directory, self.failed = args, directory, 0
        self.server = SecureServer(name, path, args.port, directory, mutual=True)
        for number in range(args.tenants):
            who = tenant(number)
            self.ctl("user", "add", who, "--no-password")
            self.ctl("role", "add", who)
            self.ctl("role", "grant-permission", who, "readwrite", f"/{who}/", "--prefix")
            self.ctl("user", "grant-role", who, who)
        self.ctl("user", "add", "root", "--no-password")
        self.ctl("user", "grant-role", "root", "root")
        self.ctl("auth", "enable")
        if self.run(0, ["ctl", "put", f"/{tenant(1)}/x", "y"]).returncode == 0:
            sys.exit(f"{name}: a tenant may write below the prefix of another")

    def flags(self, who):
        return [f"--endpoints=https://127.0.0.1:{self.args.port}", f"--cacert={self.directory}/ca.crt",
                f"--cert={self.directory}/{who}.crt", f"--key={self.directory}/{who}.key"]

    def ctl(self, *words):
        done = subprocess.run([self.args.bench, "ctl", *self.flags("root"), *words], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                              text=True)
        if done.returncode:
            sys.exit(f"{' '.join(words)}: {done.stderr}")

    def run(self, number, words):
        return subprocess.run([self.args.bench, words[0], *self.flags(tenant(number)), *words[1:]], stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True, timeout=600)

    def put(self, number, *words):
        """p99 of a tenant's puts in ms, and their rate."""
        who = tenant(number)
        done = self.run(number, ["bench", "--json=-", "put", "--val-size=1024", f"--key-prefix=/{who}/", "--key-space-size=100",
                                 f"--duration={self.args.seconds}s", *words])
        if done.returncode:
            sys.exit(f"the puts of {who} failed: {done.stderr}")
        row = json.loads(done.stdout)["rows"][0]["median"]
        if row["failed"]:
            print(f"{row['failed']} of {row['operations']} puts of {who} failed: {done.stderr}", file=sys.stderr)
            self.failed += row["failed"]
        return row["latency_ms"]["p99"], row["rate_per_s"]

    def measure(self, busy=None):
        """The p99 of each of the other tenants, beside one that puts with these flags; and its rate."""
        others = range(1, self.args.tenants)
        with concurrent.futures.ThreadPoolExecutor(self.args.tenants) as pool:
            asked = [pool.submit(self.put, number, f"--rate={self.args.rate}") for number in others]
            beside = pool.submit(self.put, 0, *busy) if busy else None
            return [each.result()[0] for each in asked], beside.result()[1] if beside else 0.0


LOADS = [("alone", "without it", None),
         ("times", f"beside it at {TIMES} times the rate", lambda rate: [f"--rate={TIMES * rate}", f"--clients={IN_FLIGHT}"]),
         ("flood", f"beside it as fast as it can, {IN_FLIGHT} in flight", lambda _: [f"--clients={IN_FLIGHT}"])]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bench", required=True, metavar="MAINSTAY", help="whose bench makes the loads")
    parser.add_argument("--server", action="append", required=True, metavar="NAME=PATH")
    parser.add_argument("--port", type=int, default=23790)
    parser.add_argument("--tenants", type=int, default=100)
    parser.add_argument("--rate", type=int, default=20, help="puts a second of each tenant")
    parser.add_argument("--seconds", type=int, default=10)
    parser.add_argument("--runs", type=int, default=3)
    args = parser.parse_args()
    directory = tempfile.mkdtemp(prefix="tenants-")
    certificates(directory, ["server", "client-root", "root", *(tenant(number) for number in range(args.tenants))], 3)
    names, lines, measured = [pair.split("=", 1) for pair in args.server], [], {}
    try:
        for name, path in names:
            tenants = Tenants(args, name, path, directory)
            try:
                for _ in range(args.runs):
                    for load, _, flags in LOADS:
                        latencies, rate = tenants.measure(flags and flags(args.rate))
                        figures = measured.setdefault((name, load), {"median": [], "largest": [], "rate": []})
                        figures["median"].append(statistics.median(latencies))
                        figures["largest"].append(max(latencies))
                        figures["rate"].append(rate)
            finally:
                print(f"{name}: {tenants.failed} puts failed", file=sys.stderr)
                tenants.server.end()
                tenants.server.clean()
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    for load, title, _ in LOADS:
        for name, _ in names:
            median, rate = (statistics.median(measured[name, load][figure]) for figure in ("median", "rate"))
            largest = max(measured[name, load]["largest"])
            alone = statistics.median(measured[name, "alone"]["median"])
            lines.append([title, name, page.shown(median), page.shown(largest), page.shown(median / alone), page.shown(rate)])
    columns = ["the others", "server", "median of p99, ms", "largest p99, ms", "of alone", "its puts /s"]
    print(page.markdown(columns, lines))


if __name__ == "__main__":
    main()
