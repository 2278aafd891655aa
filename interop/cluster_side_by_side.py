#!/usr/bin/env python3
"""Runs etcd's own `benchmark` against clusters of several servers in turn, and prints one table.

    interop/cluster_side_by_side.py --benchmark PATH --server mainstay=PATH --server etcd-3.6=PATH --server etcd-3.7=PATH

Each cluster (three members, all on this machine, on loopback) is started fresh with empty data directories, measured,
and stopped; the servers take turns within each run, in an order that moves by one from run to run, and the table holds
the medians over --runs. Loads spread over all members' client endpoints. Server CPU is user and system time of all
member processes together per 1000 requests, from /proc; memory is the sum of their resident sets at the end of the
load; fsyncs of all members come from /metrics. Where a server's name does not begin with `etcd`, its figures are also
given as a ratio to those of the etcd with the least CPU for the same load.
Needs nothing but Python 3, curl and the programs named.
"""

import argparse
import atexit
import os
import re
import shlex
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request

from side_by_side import frame

KEY = "side-by-side"
TICK = os.sysconf("SC_CLK_TCK")


class Cluster:
    """The members of one cluster on loopback."""

    # How long members may take to start, and one to end.
    patience_s, end_patience_s = 60, 30

    def __init__(self, name, path, port, members, flags):
        self.name, self.dir = name, tempfile.mkdtemp(prefix="cluster-side-by-side-")
        self.processes = []
        atexit.register(self.end)
        ports = [(port + 2 * i, port + 2 * i + 1) for i in range(members)]
        for pair in ports:
            for one in pair:
                with socket.socket() as probe:
                    if probe.connect_ex(("127.0.0.1", one)) == 0:
                        sys.exit(f"port {one} is in use: choose others with --port")
        self.endpoints = [f"127.0.0.1:{client}" for client, _ in ports]
        initial = ",".join(f"m{i}=http://127.0.0.1:{peer}" for i, (_, peer) in enumerate(ports))
        for i, (client, peer) in enumerate(ports):
            url, peer_url = f"http://127.0.0.1:{client}", f"http://127.0.0.1:{peer}"
            log = open(os.path.join(self.dir, f"m{i}.log"), "ab")
            self.processes.append(subprocess.Popen(
                [path, "--name", f"m{i}", "--data-dir", os.path.join(self.dir, f"m{i}"),
                 "--listen-client-urls", url, "--advertise-client-urls", url,
                 "--listen-peer-urls", peer_url, "--initial-advertise-peer-urls", peer_url,
                 "--initial-cluster", initial, "--initial-cluster-token", "side-by-side",
                 "--initial-cluster-state", "new", "--quota-backend-bytes", str(8 << 30), "--log-level", "error", *flags],
                stdout=log, stderr=log))
        deadline = time.monotonic() + self.patience_s
        for endpoint, process in zip(self.endpoints, self.processes):
            while not healthy(endpoint):
                if time.monotonic() > deadline or process.poll() is not None:
                    for i in range(members):
                        with open(os.path.join(self.dir, f"m{i}.log"), errors="replace") as file:
                            sys.stderr.write(file.read()[-2000:])
                    sys.exit(f"{name} did not start")
                time.sleep(0.02)

    def stop(self):
        for process in self.processes:
            process.send_signal(signal.SIGTERM)
        for process in self.processes:
            try:
                process.wait(timeout=self.end_patience_s)
            except subprocess.TimeoutExpired:
                sys.exit(f"{self.name}: a member did not end within {self.end_patience_s} s of SIGTERM")
        self.end()

    def clean(self):
        shutil.rmtree(self.dir, ignore_errors=True)

    def end(self):
        """Whatever happens, nothing is left."""
        for process in self.processes:
            if process.poll() is None:
                process.kill()
                process.wait()
        self.clean()

    def alive(self):
        for i, process in enumerate(self.processes):
            if process.poll() is not None:
                sys.exit(f"{self.name}: member m{i} ended by itself with {process.returncode}")

    def cpu_s(self):
        total = 0
        for process in self.processes:
            with open(f"/proc/{process.pid}/stat") as file:
                fields = file.read().rsplit(")", 1)[1].split()
            total += int(fields[11]) + int(fields[12])
        return total / TICK

    def rss_mb(self):
        total = 0
        for process in self.processes:
            with open(f"/proc/{process.pid}/status") as file:
                total += int(re.search(r"VmRSS:\s+(\d+)", file.read()).group(1))
        return total / 1024

    def fsyncs(self):
        names = ("etcd_disk_wal_fsync_duration_seconds_count", "etcd_disk_backend_commit_duration_seconds_count")
        total = 0.0
        for endpoint in self.endpoints:
            with urllib.request.urlopen(f"http://{endpoint}/metrics", timeout=10) as answer:
                text = answer.read().decode()
            for name in names:
                # A server may have no backend to commit to.
                if found := re.search(rf"^{name} (\S+)", text, re.M):
                    total += float(found.group(1))
        return total


def healthy(endpoint):
    """/health answers true only after a linearizable read."""
    try:
        with urllib.request.urlopen(f"http://{endpoint}/health", timeout=5) as answer:
            return b"true" in answer.read()
    except OSError:
        return False


def parsed(text, case):
    """Rate, percentiles and errors of the parts of a benchmark's report, in their order."""
    parts = []
    for part in text.split("\nSummary:")[1:]:
        figures = {}
        if found := re.search(r"Requests/sec:\s+(\S+)", part):
            figures["rate"] = float(found.group(1))
        for percent, name in (("50", "p50"), ("99", "p99")):
            # The tool leaves out percentiles that a short run does not reach.
            if found := re.search(rf"^\s+{percent}% in (\S+) secs", part, re.M):
                figures[name] = float(found.group(1)) * 1e3
        if found := re.search(r"Error distribution:\n(.*?)(?:\n\n|\Z)", part, re.S):
            print(f"{case}: errors: {found.group(1).strip()}", file=sys.stderr)
            figures["errors"] = sum(int(n) for n in re.findall(r"\[(\d+)\]", found.group(1)))
        parts.append(figures)
    return parts


def call(cluster, method, *fields):
    """One gRPC request to the first member; gives the message of the answer."""
    request = frame(os.path.join(cluster.dir, "request"), *fields)
    done = subprocess.run(["curl", "-s", "--max-time", "10", "--http2-prior-knowledge", "-H",
                           "content-type: application/grpc", "-H", "te: trailers", "--data-binary", f"@{request}",
                           f"http://{cluster.endpoints[0]}/etcdserverpb.KV/{method}"], stdout=subprocess.PIPE, check=True)
    return done.stdout[5:]


def fields_of(message):
    """The fields of a protobuf message that are varints or bytes, by number."""
    out, at = {}, 0

    def varint():
        nonlocal at
        value = shift = 0
        while True:
            byte, at = message[at], at + 1
            value, shift = value | (byte & 127) << shift, shift + 7
            if byte < 128:
                return value

    while at < len(message):
        tag = varint()
        if tag & 7 == 0:
            out[tag >> 3] = varint()
        else:
            size = varint()
            out[tag >> 3], at = message[at:at + size], at + size
    return out


def revision(cluster):
    return fields_of(fields_of(call(cluster, "Range", (1, KEY.encode())))[1])[3]


def run(command, case):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=1200)
    parts = parsed(done.stdout, case)
    if done.returncode != 0 or not parts:
        sys.exit(f"{case}: {' '.join(command)} failed:\n{done.stdout[-1000:]}{done.stderr[-1000:]}")
    return parts


class Load:
    """One row of the table for each server."""

    def __init__(self, name, total, arguments, conns, clients, parts=("",), beside=None):
        self.name, self.total, self.arguments = name, total, arguments
        self.conns, self.clients, self.parts, self.beside = conns, clients, parts, beside

    def rows(self):
        return [self.name + (f", {part}" if part else "") for part in self.parts]

    def command(self, benchmark, endpoints):
        return [benchmark, f"--endpoints={','.join(endpoints)}", f"--conns={self.conns}", f"--clients={self.clients}",
                *self.arguments]

    def measure(self, benchmark, cluster):
        """Figures by row."""
        other = None
        if self.beside:
            other = subprocess.Popen(self.beside.command(benchmark, cluster.endpoints), stdout=subprocess.PIPE,
                                     stderr=subprocess.DEVNULL, text=True)
            atexit.register(lambda: other.poll() is None and other.kill())
            time.sleep(1)  # The load beside must be at its full rate before this one is measured.
            before, began = revision(cluster), time.monotonic()
        cpu, fsyncs = cluster.cpu_s(), cluster.fsyncs()
        parts = run(self.command(benchmark, cluster.endpoints), f"{cluster.name}, {self.name}")
        used = cluster.cpu_s() - cpu
        shared = {"cpu_ms_per_1000": used / self.total * 1e6, "rss_mb": cluster.rss_mb(),
                  "fsyncs_per_1000": (cluster.fsyncs() - fsyncs) / self.total * 1e3}
        if other:
            if other.poll() is not None:
                print(f"{cluster.name}, {self.name}: the load beside ended first; raise its --scale", file=sys.stderr)
            parts.append({"rate": (revision(cluster) - before) / (time.monotonic() - began)})
            other.terminate()
            other.communicate()
            # Both loads used it: it says nothing about one of them.
            shared = {"rss_mb": shared["rss_mb"]}
        cluster.alive()
        return {row: {**shared, **part} for row, part in zip(self.rows(), parts)}


def loads(scale):
    """Sizes and numbers of clients as in side_by_side.py."""
    at_least = lambda n: max(int(n * scale), 500)
    puts, ranges, mixed = at_least(100_000), at_least(200_000), at_least(100_000)
    put = lambda n: ["put", f"--total={n}", "--val-size=1024", "--sequential-keys", "--key-space-size=100000"]
    small = lambda n: ["put", f"--total={n}", "--val-size=256", "--sequential-keys", "--key-space-size=100000"]
    forever = Load("", 0, put(10 ** 9), 100, 500)
    return [
        # First, and over few keys: the tool reads the first of all keys, for which a server also counts all.
        Load("80 % range l, 20 % put 1 KiB", mixed,
             ["txn-mixed", KEY, f"--total={mixed}", "--rw-ratio=4", "--val-size=1024", "--key-space-size=100",
              "--limit=1"], 100, 500, ("reads", "writes")),
        Load("put 1 KiB, 500 clients", puts, put(puts), 100, 500),
        Load("put 256 B, 500 clients", puts, small(puts), 100, 500),
        Load("range l, 1000 clients", ranges, ["range", KEY, f"--total={ranges}"], 100, 1000),
        Load("range s, 1000 clients", ranges, ["range", KEY, f"--total={ranges}", "--consistency=s"], 100, 1000),
        Load("range l beside full writes", at_least(20_000), ["range", KEY, f"--total={at_least(20_000)}"], 10, 50,
             ("reads", "writes"), beside=forever),
        Load("put 1 KiB, one client", at_least(3_000), ["put", f"--total={at_least(3_000)}", "--val-size=1024"], 1, 1),
        Load("range l, one client", at_least(9_000), ["range", KEY, f"--total={at_least(9_000)}"], 1, 1),
    ]


COLUMNS = ["rate", "p50", "p99", "cpu_ms_per_1000", "rss_mb", "fsyncs_per_1000", "errors"]


def shown(value, column):
    return f"{value:.0f}" if column in ("rate", "rss_mb", "errors") else f"{value:.3g}"


def table(rows, names, results):
    print("| load | server | " + " | ".join(COLUMNS) + " |")
    print("|---|---|" + "---|" * len(COLUMNS))
    for row in rows:
        medians = {}
        for name in names:
            runs = results.get((row, name), [])
            medians[name] = {column: statistics.median(values) for column in COLUMNS
                             if (values := [figures[column] for figures in runs if column in figures])}
            cells = [shown(medians[name][column], column) if column in medians[name] else "" for column in COLUMNS]
            print(f"| {row} | {name} | " + " | ".join(cells) + " |")
        etcds = [name for name in names if name.startswith("etcd") and medians[name]]
        if not etcds:
            continue
        least = lambda name: medians[name].get("cpu_ms_per_1000", medians[name].get("p99", 0))
        cheapest = min(etcds, key=least)
        for name in names:
            if name in etcds:
                continue
            cells = [f"{medians[name][column] / medians[cheapest][column]:.2f}x"
                     if column in medians[name] and medians[cheapest].get(column) else "" for column in COLUMNS]
            print(f"| {row} | {name} / {cheapest} | " + " | ".join(cells) + " |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--benchmark", required=True, help="etcd's benchmark tool")
    parser.add_argument("--server", action="append", required=True, metavar="NAME=PATH")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--scale", type=float, default=1.0, help="how many requests, as a factor")
    parser.add_argument("--members", type=int, default=3)
    parser.add_argument("--port", type=int, default=61790, help="first of 2 ports for each member")
    parser.add_argument("--flags", default="", help="more flags for every member, as one word")
    parser.add_argument("--only", default="", help="only the loads whose name contains this")
    args = parser.parse_args()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(1))  # So that what runs at the exit does.
    servers = [pair.split("=", 1) for pair in args.server]
    if any(len(pair) != 2 for pair in servers):
        parser.error("--server takes NAME=PATH")
    cases = [load for load in loads(args.scale) if args.only in load.name]
    if not cases:
        parser.error("--only leaves no load")
    results = {}
    for number in range(args.runs):
        turn = number % len(servers)
        for name, path in servers[turn:] + servers[:turn]:
            cluster = Cluster(name, path, args.port, args.members, shlex.split(args.flags))
            call(cluster, "Put", (1, KEY.encode()), (2, b"v" * 1024))  # What the ranges read.
            for load in cases:
                for row, figures in load.measure(args.benchmark, cluster).items():
                    results.setdefault((row, name), []).append(figures)
                    print(f"run {number + 1} {name:<10} {row:<36} {figures.get('rate', 0):>9.0f}/s p99 "
                          f"{figures.get('p99', 0):>8.2f} ms {figures.get('cpu_ms_per_1000', 0):>8.1f} ms CPU per 1000",
                          file=sys.stderr)
            cluster.stop()
    print(f"{args.members} members, {args.runs} runs, scale {args.scale}; repeat with:\n\n    {shlex.join(sys.argv)}\n")
    table([row for load in cases for row in load.rows()], [name for name, _ in servers], results)


if __name__ == "__main__":
    main()
