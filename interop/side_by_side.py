#!/usr/bin/env python3
"""Runs etcd's own `benchmark`, and h2load, against several servers in turn, and prints one table.

    interop/side_by_side.py --benchmark PATH --server mainstay=PATH --server etcd-3.7=PATH [--server ...]

Each server is started fresh on loopback with an empty data directory, measured, and stopped; the servers take turns
within each run, and the table holds the medians over --runs. Server CPU is user and system time of the server's
process per request, from /proc; bytes are what /proc says the process sent to the disk; fsyncs come from /metrics.
Needs nothing but Python 3 and the programs named; h2load (Debian: nghttp2-client) is used where it is installed.
"""

import argparse
import atexit
import os
import re
import shutil
import signal
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import time
import urllib.request

TICK = os.sysconf("SC_CLK_TCK")


class Server:
    """One server process on loopback."""

    # A command that runs the server, such as a profiler.
    wrapper = ()
    # How long it may take to start.
    patience_s = 60

    def __init__(self, name, path, port, data=None):
        self.name, self.path, self.port = name, path, port
        self.dir = data or tempfile.mkdtemp(prefix="side-by-side-")
        self.log = open(os.path.join(self.dir, "stderr"), "ab")
        atexit.register(self.end)
        self.start()

    def start(self):
        if not self.free():
            sys.exit(f"port {self.port} or {self.port + 1} is in use: choose another with --port")
        url, peer = f"{self.scheme()}://127.0.0.1:{self.port}", f"http://127.0.0.1:{self.port + 1}"
        flags = ["--name", "default", "--data-dir", os.path.join(self.dir, "data"),
                 "--listen-client-urls", url, "--advertise-client-urls", url,
                 "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
                 "--initial-cluster", f"default={peer}", "--quota-backend-bytes", str(8 << 30),
                 "--log-level", "error", *self.more_flags()]
        self.began = time.monotonic()
        self.process = subprocess.Popen([*self.wrapper, self.path, *flags], stdout=self.log, stderr=self.log)
        deadline = time.monotonic() + self.patience_s
        while True:
            try:
                # /health answers only after a linearizable read.
                with urllib.request.urlopen(url + "/health", timeout=5, context=self.trust()) as answer:
                    if b"true" in answer.read():
                        break
            except OSError:
                pass
            if time.monotonic() > deadline or self.process.poll() is not None:
                sys.exit(f"{self.name} did not start; see {self.dir}/stderr")
            time.sleep(0.002)
        self.ready_s = time.monotonic() - self.began

    def scheme(self):
        return "http"

    def more_flags(self):
        return []

    def trust(self):
        """What the server's certificate is verified with; None for a plain one."""
        return None

    def free(self):
        for port in (self.port, self.port + 1):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    return False
        return True

    def stop(self, sig=signal.SIGTERM):
        self.process.send_signal(sig)
        self.process.wait()

    def end(self):
        """Whatever happens, nothing is left running."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    def clean(self):
        shutil.rmtree(self.dir, ignore_errors=True)

    def cpu_s(self):
        fields = open(f"/proc/{self.process.pid}/stat").read().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / TICK

    def written(self):
        text = open(f"/proc/{self.process.pid}/io").read()
        return int(re.search(r"^write_bytes: (\d+)", text, re.M).group(1))

    def rss_mb(self):
        text = open(f"/proc/{self.process.pid}/status").read()
        return int(re.search(r"VmRSS:\s+(\d+)", text).group(1)) / 1024

    def fsyncs(self):
        url = f"{self.scheme()}://127.0.0.1:{self.port}/metrics"
        with urllib.request.urlopen(url, timeout=10, context=self.trust()) as answer:
            text = answer.read().decode()
        names = ("etcd_disk_wal_fsync_duration_seconds_count", "etcd_disk_backend_commit_duration_seconds_count")
        return sum(float(re.search(rf"^{name} (\S+)", text, re.M).group(1)) for name in names)


def arguments(doc, port=23790):
    """A parser with what all measurements that run etcd's `benchmark` take."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--benchmark", required=True, help="etcd's benchmark tool")
    parser.add_argument("--server", action="append", required=True, metavar="NAME=PATH")
    parser.add_argument("--port", type=int, default=port)
    return parser


def fill(args, keys, value_bytes):
    """Puts so many keys into the server at the port."""
    subprocess.run([args.benchmark, f"--endpoints=127.0.0.1:{args.port}", "--conns=10", "--clients=200", "put",
                    f"--total={keys}", f"--val-size={value_bytes}", "--sequential-keys", f"--key-space-size={keys}"],
                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)


def filled(args, keys, value_bytes):
    """Each of the servers in turn, with so many keys in it."""
    for name, path in (pair.split("=", 1) for pair in args.server):
        server = Server(name, path, args.port)
        fill(args, keys, value_bytes)
        yield server
        server.stop()
        server.clean()


def measured(server, total, command):
    """Runs a load and gives its figures."""
    cpu, written, fsyncs = server.cpu_s(), server.written(), server.fsyncs()
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, timeout=600)
    out = done.stdout
    figures = {
        "cpu_us": (server.cpu_s() - cpu) / total * 1e6,
        "bytes": (server.written() - written) / total,
        "fsyncs": (server.fsyncs() - fsyncs) / total,
        "rss_mb": server.rss_mb(),
    }
    if "Requests/sec" in out:
        figures["rate"] = float(re.search(r"Requests/sec:\s+(\S+)", out).group(1))
        for percent, name in (("50", "p50"), ("99", "p99"), ("99.9", "p99.9")):
            # The tool leaves out percentiles that a short run does not reach.
            if found := re.search(rf"^\s+{re.escape(percent)}% in (\S+) secs", out, re.M):
                figures[name] = float(found.group(1)) * 1e3
    else:
        rate = re.search(r"finished in .*?, (\S+) req/s", out)
        succeeded = re.search(r"(\d+) succeeded", out)
        if not rate or int(succeeded.group(1)) != total:
            sys.exit(f"h2load against {server.name} failed:\n{out}")
        figures["rate"] = float(rate.group(1))
    return figures


def varint(n):
    out = b""
    while n >= 128:
        out, n = out + bytes([n & 127 | 128]), n >> 7
    return out + bytes([n])


def frame(path, *fields):
    """A gRPC message with these bytes fields, in a file for h2load."""
    message = b"".join(bytes([number << 3 | 2]) + varint(len(value)) + value for number, value in fields)
    with open(path, "wb") as file:
        file.write(b"\0" + struct.pack(">I", len(message)) + message)
    return path


def loads(benchmark, scale, work):
    """Name, number of requests, command for an endpoint."""
    key = "side-by-side"
    bench = lambda conns, clients: lambda ep: [benchmark, f"--endpoints={ep}", f"--conns={conns}", f"--clients={clients}"]
    many, reads, alone = bench(100, 500), bench(100, 1000), bench(1, 1)
    puts, ranges, few = int(100_000 * scale), int(200_000 * scale), int(3_000 * scale)
    put = ["put", f"--total={puts}", "--val-size=1024", "--sequential-keys", "--key-space-size=100000"]
    cases = [
        ("put 1 KiB, 500 clients", puts, lambda ep: many(ep) + put),
        ("range l, 1000 clients", ranges, lambda ep: reads(ep) + ["range", key, f"--total={ranges}"]),
        ("range s, 1000 clients", ranges,
         lambda ep: reads(ep) + ["range", key, f"--total={ranges}", "--consistency=s"]),
        ("put 1 KiB, one client", few, lambda ep: alone(ep) + ["put", f"--total={few}", "--val-size=1024"]),
        ("range l, one client", few * 3, lambda ep: alone(ep) + ["range", key, f"--total={few * 3}"]),
    ]
    if shutil.which("h2load"):
        put_file = frame(os.path.join(work, "put"), (1, key.encode()), (2, b"v" * 1024))
        range_file = frame(os.path.join(work, "range"), (1, key.encode()))
        h2 = lambda n, file, method: lambda ep: [
            "h2load", "-t1", "-c100", "-m10", f"-n{n}", "-d", file, "-H", "content-type: application/grpc",
            "-H", "te: trailers", f"http://{ep}/etcdserverpb.KV/{method}"]
        cases += [("put 1 KiB, h2load 100x10", ranges, h2(ranges, put_file, "Put")),
                  ("range, h2load 100x10", ranges, h2(ranges, range_file, "Range"))]
    return cases


def main():
    parser = arguments(__doc__)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--scale", type=float, default=1.0, help="how many requests, as a factor")
    parser.add_argument("--million", action="store_true", help="also load 1M keys of 256 B: RSS, restart after kill -9")
    args = parser.parse_args()
    servers = [pair.split("=", 1) for pair in args.server]
    results = {}
    with tempfile.TemporaryDirectory() as work:
        cases = loads(args.benchmark, args.scale, work)
        for run in range(args.runs):
            for name, path in servers:
                server = Server(name, path, args.port)
                endpoint = f"127.0.0.1:{args.port}"
                put = frame(os.path.join(work, "seed"), (1, b"side-by-side"), (2, b"v" * 1024))
                subprocess.run(["curl", "-s", "-o", os.devnull, "--http2-prior-knowledge", "-H",
                                "content-type: application/grpc", "-H", "te: trailers", "--data-binary", f"@{put}",
                                f"http://{endpoint}/etcdserverpb.KV/Put"], check=True)
                for case, total, command in cases:
                    figures = measured(server, total, command(endpoint))
                    results.setdefault((case, name), []).append(figures)
                    print(f"run {run + 1} {name:<10} {case:<26} {figures['rate']:>9.0f}/s "
                          f"{figures['cpu_us']:>7.1f} us", file=sys.stderr)
                server.stop()
                server.clean()
    columns = ["rate", "cpu_us", "p50", "p99", "p99.9", "bytes", "fsyncs", "rss_mb"]
    print("| load | server | " + " | ".join(columns) + " |")
    print("|---|---|" + "---|" * len(columns))
    for case, _, _ in cases:
        for name, _ in servers:
            row = results[(case, name)]
            cells = []
            for column in columns:
                values = [figures[column] for figures in row if column in figures]
                cells.append(f"{statistics.median(values):.3g}" if values and column == "fsyncs"
                             else f"{statistics.median(values):.0f}" if values and column in ("rate", "bytes", "rss_mb")
                             else f"{statistics.median(values):.2f}" if values else "")
            print(f"| {case} | {name} | " + " | ".join(cells) + " |")
    if args.million:
        million(args, servers)


def million(args, servers):
    """RSS with 1M keys of 256 B, and the time from start to the first linearizable read after kill -9."""
    print("\n| 1M keys x 256 B | rss_mb | disk_mb | restart_s |\n|---|---|---|---|")
    for name, path in servers:
        server = Server(name, path, args.port)
        subprocess.run([args.benchmark, f"--endpoints=127.0.0.1:{args.port}", "--conns=100", "--clients=1000", "put",
                        "--total=1000000", "--val-size=256", "--key-size=24", "--sequential-keys",
                        "--key-space-size=1000000"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
        rss = server.rss_mb()
        usage = subprocess.run(["du", "-sm", server.dir], stdout=subprocess.PIPE, text=True).stdout.split()[0]
        times = []
        for _ in range(args.runs):
            server.stop(signal.SIGKILL)
            server.start()
            times.append(server.ready_s)
        print(f"| {name} | {rss:.0f} | {usage} | {statistics.median(times):.2f} |")
        server.stop()
        server.clean()


if __name__ == "__main__":
    main()
