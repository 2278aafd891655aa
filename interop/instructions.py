#!/usr/bin/env python3
"""How many instructions a server spends on a put and on a range, and a cluster of three on a put.

    interop/instructions.py --server NAME=PATH [--server ...] [--runs 2] [--methods put,range,cluster-put] [--top 20] [--functions 30]
        [--most put=N --most range=N --most cluster-put=N]

Each server runs under valgrind's callgrind, fresh for each figure: 200 puts, then 1,000 requests to warm up, then 4,000
that are counted (user space, all threads), by h2load on four connections with ten streams each. A put writes 1 KiB to one
key, a range reads it. `cluster-put` is a put at the leader of three members, and the sum of what all of them spend, without
what they spend in as much time without requests: the leader compares the members' states every two seconds, however slow
the machine is. Unlike times, the figures hardly depend on what else the machine does: two runs differ by some tens.
Builds are comparable only if they have the same profile. With --top N also prints the N functions of each server that
take most of their own. With --functions N also prints the N functions that differ
most between the first server and each other one, in instructions per request of their own. With --most it fails if a server
needs more than so many, in the best of its runs.
Needs valgrind and h2load (Debian: valgrind, nghttp2-client).
"""

import argparse
import collections
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time

from cluster_profile import metrics
from cluster_side_by_side import Cluster
from side_by_side import Server, frame

WARM, COUNTED = 1000, 4000
METHODS = ("put", "range", "cluster-put")
CALLGRIND = ("valgrind", "--quiet", "--tool=callgrind")


class Counted(Server):
    """A server under callgrind, which writes its counts beside the server's data."""

    def __init__(self, path, port):
        self.wrapper = (*CALLGRIND, "--callgrind-out-file=counts-%p")
        super().__init__("counted", path, port)

    def start(self):
        # Callgrind writes to where the server was started.
        before, self.path = os.getcwd(), os.path.abspath(self.path)
        os.chdir(self.dir)
        try:
            super().start()
        finally:
            os.chdir(before)

    def zero(self):
        control("--zero", self.process, self.dir)

    def counts(self):
        """What was counted since the last order to zero."""
        return dumped(self.process, self.dir)


class SlowCluster(Cluster):
    """One whose members valgrind makes slow."""

    patience_s, end_patience_s = 300, 300


class CountedCluster:
    """Three members under callgrind. Requests go to the leader, which stays the same: valgrind makes members slow, so elections need
    long silence."""

    def __init__(self, path, port):
        self.work = tempfile.TemporaryDirectory(prefix="instructions-")
        self.dir = self.work.name
        program = os.path.join(self.dir, "member")
        with open(program, "w") as file:
            words = [*CALLGRIND, f"--callgrind-out-file={self.dir}/counts-%p", os.path.abspath(path)]
            file.write(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n')
        os.chmod(program, 0o755)
        self.cluster = SlowCluster("counted", program, port, 3, ["--heartbeat-interval=1000", "--election-timeout=10000"])
        self.leader = self.leading()
        self.port = int(self.leader.rsplit(":", 1)[1])

    def leading(self):
        leaders = [endpoint for endpoint in self.cluster.endpoints if metrics(endpoint)["leads"]]
        if len(leaders) != 1:
            sys.exit(f"{len(leaders)} members lead")
        return leaders[0]

    def zero(self):
        self.answered = metrics(self.leader)["requests"]
        self.zero_counts()

    def zero_counts(self):
        for process in self.cluster.processes:
            control("--zero", process, self.dir)

    def counts(self):
        found = self.dumped()
        answered = metrics(self.leader)["requests"] - self.answered
        if self.leading() != self.leader or answered != COUNTED:
            sys.exit(f"another member leads, or {answered:.0f} requests succeeded at the leader, not {COUNTED}")
        return found

    def dumped(self):
        return "".join(dumped(process, self.dir) for process in self.cluster.processes)

    def idle_counts(self, seconds):
        """What members without requests spend in that time."""
        self.zero_counts()
        time.sleep(seconds)
        return self.dumped()

    def stop(self):
        self.cluster.stop()

    def clean(self):
        self.work.cleanup()


def control(order, process, directory):
    subprocess.run(["callgrind_control", order, str(process.pid)], cwd=directory, stdout=subprocess.DEVNULL,
                   stderr=subprocess.DEVNULL, check=True)


def dumped(process, directory):
    control("--dump", process, directory)
    # Each dump is a file with the next number.
    written = [name for name in os.listdir(directory) if name.startswith(f"counts-{process.pid}.")]
    with open(os.path.join(directory, max(written, key=lambda name: int(name.rsplit(".", 1)[1])))) as counts:
        return counts.read()


def load(server, method, count):
    body = frame(os.path.join(server.dir, "body"), (1, b"key"), *([(2, b"x" * 1024)] if method == "put" else []))
    url = f"http://127.0.0.1:{server.port}/etcdserverpb.KV/{method.capitalize()}"
    done = subprocess.run(["h2load", "-t1", "-c4", "-m10", "-n", str(count), "-d", body,
                           "-H", "content-type: application/grpc", "-H", "te: trailers", url],
                          stdout=subprocess.PIPE, text=True, check=True).stdout
    if f" {count} succeeded" not in done:
        sys.exit(f"{method}: not all of {count} requests were answered:\n{done}")


def measure(path, method, port):
    """Instructions of each function itself for a request, and of all of them together."""
    server = CountedCluster(path, port) if method.startswith("cluster-") else Counted(path, port)
    is_cluster = isinstance(server, CountedCluster)
    method = method.removeprefix("cluster-")
    load(server, "put", 200)
    load(server, method, WARM)
    server.zero()
    began = time.monotonic()
    load(server, method, COUNTED)
    took = time.monotonic() - began
    counts = server.counts()
    figures, whole = by_function(counts), total(counts)
    if is_cluster:
        idle = server.idle_counts(took)
        figures.subtract(by_function(idle))
        whole -= total(idle)
    server.stop()
    server.clean()
    return figures, whole


def total(counts):
    """Of all processes whose counts these are."""
    return sum(map(int, re.findall(r"^summary: (\d+)", counts, re.M) or re.findall(r"^totals: (\d+)", counts, re.M))) / COUNTED


def by_function(counts):
    """Instructions per request of each function itself."""
    names, function, called, figures = {}, None, False, collections.Counter()
    for line in counts.splitlines():
        if line.startswith(("fn=", "cfn=")):
            number, _, name = line.split("=", 1)[1].partition(" ")
            if name:
                # The name of a build's own crates ends with a hash.
                names[number] = re.sub(r"'\d+$|\b[0-9a-f]{16}\b", "", name)
            if line.startswith("fn="):
                function = names[number]
        elif line.startswith("calls="):
            called = True
        elif line and line[0] in "0123456789+-*":
            # The line behind a call has what the called function took.
            if not called:
                figures[function] += int(line.split()[1]) / COUNTED
            called = False
    return figures


def differences(first, other, count):
    both = sorted(first.keys() | other.keys(), key=lambda name: -abs(other[name] - first[name]))
    for name in both[:count]:
        print(f"  {other[name] - first[name]:+9.1f} {first[name]:9.1f} {other[name]:9.1f}  {name[:150]}")


def top(figures, count):
    whole = sum(figures.values())
    for name, figure in figures.most_common(count):
        print(f"  {figure:9.1f} {figure / whole:6.1%}  {name[:150]}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server", action="append", required=True, metavar="NAME=PATH")
    parser.add_argument("--runs", type=int, default=2)
    parser.add_argument("--methods", default="put,range", help="of " + ", ".join(METHODS))
    parser.add_argument("--top", type=int, default=0)
    parser.add_argument("--functions", type=int, default=0)
    parser.add_argument("--most", action="append", default=[], metavar="METHOD=N", help="put or range, and its limit")
    parser.add_argument("--port", type=int, default=23790)
    args = parser.parse_args()
    limits = {method: int(most) for method, most in (limit.split("=", 1) for limit in args.most)}
    methods = args.methods.split(",")
    if unknown := set(methods) - set(METHODS):
        parser.error(f"--methods: there is no {', '.join(sorted(unknown))}")
    if unknown := limits.keys() - set(methods):
        parser.error(f"--most: there is no figure for {', '.join(sorted(unknown))}")
    beyond = []
    servers = dict(server.split("=", 1) for server in args.server)
    last = {}
    print("| server |" + "".join(f" {method} |" for method in methods for _ in range(args.runs)))
    print("|---|" + "---|" * (len(methods) * args.runs))
    for name, path in servers.items():
        line = ""
        for method in methods:
            figures = []
            for _ in range(args.runs):
                last[name, method], whole = measure(path, method, args.port)
                figures.append(whole)
                line += f" {figures[-1]:.0f} |"
            if method in limits and min(figures) > limits[method]:
                beyond.append(f"{name}: {min(figures):.0f} instructions for a {method}, of {limits[method]} that it may take")
        print(f"| {name} |{line}", flush=True)
    for name in servers if args.top else ():
        for method in methods:
            print(f"\n{method}: {name}")
            top(last[name, method], args.top)
    first, *others = servers
    for other in others if args.functions else ():
        for method in methods:
            print(f"\n{method}: {other} against {first}")
            differences(last[first, method], last[other, method], args.functions)
    if beyond:
        sys.exit("\n".join(beyond))


if __name__ == "__main__":
    main()
