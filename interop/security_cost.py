#!/usr/bin/env python3
"""What TLS, users and tokens cost, for several servers in turn, as tables.

    interop/security_cost.py --interop PATH --bench PATH --server mainstay=PATH --server etcd-3.7=PATH [--server ...]

PATH of --interop is the built program of interop/go, that of --bench is `mainstay` (its tool `bench` loads every server
alike). Each server is started fresh on loopback for each case; the servers take turns within each run; the tables hold
medians over --runs. CPU is user and system time of the server's process, from /proc, in microseconds for each request.
"""

import argparse
import contextlib
import json
import re
import ssl
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor

import page
from side_by_side import Server

ROOT = "root:secret"


class SecureServer(Server):
    """One that serves TLS, or plain clients when `certificates` is None."""

    def __init__(self, name, path, port, certificates, mutual=False):
        self.certificates, self.mutual = certificates, mutual
        super().__init__(name, path, port)

    def scheme(self):
        return "https" if self.certificates else "http"

    def more_flags(self):
        if not self.certificates:
            return []
        flags = ["--cert-file", f"{self.certificates}/server.crt", "--key-file", f"{self.certificates}/server.key"]
        if self.mutual:
            flags += ["--client-cert-auth", "--trusted-ca-file", f"{self.certificates}/ca.crt"]
        return flags

    def trust(self):
        if not self.certificates:
            return None
        context = ssl.create_default_context(cafile=f"{self.certificates}/ca.crt")
        context.load_cert_chain(f"{self.certificates}/client-root.crt", f"{self.certificates}/client-root.key")
        return context

    def client_flags(self):
        flags = [f"--endpoints={self.scheme()}://127.0.0.1:{self.port}", f"--pid={self.process.pid}"]
        if self.certificates:
            flags.append(f"--cacert={self.certificates}/ca.crt")
        if self.mutual:
            flags += [f"--cert={self.certificates}/client-root.crt", f"--key={self.certificates}/client-root.key"]
        return flags


class Figures:
    """Values by case, server and column."""

    def __init__(self):
        self.rows = {}

    def add(self, case, server, **figures):
        print(f"{case:<44} {server:<10} {figures}", file=sys.stderr, flush=True)
        for column, value in figures.items():
            self.rows.setdefault((case, server), {}).setdefault(column, []).append(value)

    def table(self, columns):
        """Without columns that no row has."""
        columns = [column for column in columns if any(column in row for row in self.rows.values())]
        lines = [[case, server] + [page.shown(statistics.median(row[column])) if column in row else "" for column in columns]
                 for (case, server), row in self.rows.items()]
        return page.markdown(["load", "server", *columns], lines)


def percentiles(out):
    """What a load printed; `gave_up` when it got an error instead of answers."""
    rate = re.search(r"Requests/sec:\s+(\S+)", out)
    if not rate:
        print(f"a load failed: {out}", file=sys.stderr)
        return {"gave_up": 1}
    figures = {"rate": float(rate.group(1))}
    for percent, name in (("50", "p50_ms"), ("99", "p99_ms")):
        if found := re.search(rf"^\s+{percent}% in (\S+) secs", out, re.M):
            figures[name] = float(found.group(1)) * 1e3
    return figures


def bench(args, server, load, user=None):
    """The command of a load."""
    who = [f"--user={user}"] if user else []
    return [args.bench, "bench", *server.client_flags(), *who, *load]


def loaded(args, server, total, load, user=None):
    cpu = server.cpu_s()
    done = subprocess.run(bench(args, server, load, user), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          timeout=900)
    figures = percentiles(done.stdout)
    figures["cpu_us"] = (server.cpu_s() - cpu) / total * 1e6
    return figures


def requests(args, certificates, figures):
    """Puts and ranges: plain, over TLS, over TLS with a client certificate, and plain with a token."""
    total = int(100_000 * args.scale)
    ways = [("plain", None, False, None), ("TLS", certificates, False, None), ("mutual TLS", certificates, True, None),
            ("plain, token", None, False, ROOT)]
    for way, files, mutual, user in ways:
        for name, path in args.servers:
            server = SecureServer(name, path, args.port, files, mutual)
            if user:
                enable_users(args, server)
            put = ["--conns=50", "--clients=200", "put", f"--total={total}", "--val-size=256", "--key-space-size=1000"]
            read = ["--conns=50", "--clients=200", "range", "security", f"--total={total}"]
            figures.add(f"put 256 B, {way}", name, **loaded(args, server, total, put, user))
            figures.add(f"range, {way}", name, **loaded(args, server, total, read, user))
            server.stop()
            server.clean()


def ctl(args, server, *words):
    """Runs etcdctl's way of administering a server; the answer does not matter, success does."""
    flags = ["--command-timeout=60s", f"--endpoints=127.0.0.1:{server.port}"]
    subprocess.run([args.bench, "ctl", *flags, *words], check=True, stdout=subprocess.DEVNULL)


def enable_users(args, server, more=0):
    """root and nine others, all with the role root, and `more` without any role: first0, first1, and so on (and first)."""
    name, password = ROOT.split(":")
    for user in [name, *(f"user{number}" for number in range(9))]:
        ctl(args, server, "user", "add", f"{user}:{password}")
        ctl(args, server, "user", "grant-role", user, "root")
    with ThreadPoolExecutor(max_workers=8) as pool:
        # The load itself logs in as `first` before it begins.
        names = ["first", *(f"first{number}" for number in range(more))] if more else []
        added = [pool.submit(ctl, args, server, "user", "add", f"{user}:{password}") for user in names]
        for each in added:
            each.result()
    ctl(args, server, "auth", "enable")


@contextlib.contextmanager
def beside(args, server, load):
    """Lets a load run with the lowest priority that there is: it takes no processor from anything else."""
    running = subprocess.Popen([*args.load_priority.split(), *bench(args, server, load, ROOT)], stdout=subprocess.DEVNULL,
                               stderr=subprocess.DEVNULL)
    try:
        time.sleep(2)
        yield
    finally:
        running.terminate()
        running.wait()


def first_time(args, figures):
    """200 clients that log in as users whose passwords were never verified, each user once."""
    for name, path in args.servers:
        server = SecureServer(name, path, args.port, None)
        enable_users(args, server, more=args.first_time)
        load = ["--conns=200", "--clients=200", "authenticate", f"--users={args.first_time}", f"--total={args.first_time}"]
        figures.add("Authenticate, 200 clients, first time", name,
                    **loaded(args, server, args.first_time, load, "first:secret"))
        server.stop()
        server.clean()


def authentication(args, figures):
    """200 clients that log in again and again."""
    for name, path in args.servers:
        server = SecureServer(name, path, args.port, None)
        enable_users(args, server)
        logins = int(args.logins.get(name, 20_000))
        load = ["--conns=200", "--clients=200", "authenticate", f"--total={logins}"]
        figures.add("Authenticate, 200 clients, one user", name, **loaded(args, server, logins, load, ROOT))
        server.stop()
        server.clean()


def others(args, figures):
    """What others feel while 200 clients log in again and again; and, to tell what is the login's own, while 200 clients
    read one key again and again, which is the cheapest that a server does: what they cost others, the shared processors
    cost."""
    storms = [("200 clients authenticate", ["authenticate"]), ("200 clients read", ["range", "security"])]
    for name, path in args.servers:
        server = SecureServer(name, path, args.port, None)
        enable_users(args, server)
        for case, load in (("put", ["put", "--val-size=256"]), ("range", ["range", "security"])):
            total = args.beside_s * 200
            load = ["--conns=10", "--clients=10", *load, f"--total={total}", "--rate=200"]
            quiet = loaded(args, server, total, load, "user0:secret")
            figures.add(f"{case} 200/s, quiet", name, **quiet)
            for storm, what in storms:
                with beside(args, server, ["--conns=200", "--clients=200", *what, "--total=100000000"]):
                    found = loaded(args, server, total, load, "user0:secret")
                if "p99_ms" in found and "p99_ms" in quiet:
                    found["p99_times"] = found["p99_ms"] / quiet["p99_ms"]
                # The CPU is that of both loads.
                del found["cpu_us"]
                figures.add(f"{case} 200/s, {storm}", name, **found)
        server.stop()
        server.clean()


def handshakes(args, certificates, figures):
    """What a handshake costs, and what established clients feel of 5,000 that arrive at once."""
    for mutual in (False, True):
        for name, path in args.servers:
            server = SecureServer(name, path, args.port, certificates, mutual)
            command = [args.interop, "handshakes", "--endpoint", f"127.0.0.1:{args.port}", "--cacert",
                       f"{certificates}/ca.crt", "--pid", str(server.process.pid), "--load-priority", args.load_priority]
            if mutual:
                command += ["--cert", f"{certificates}/client-root.crt", "--key", f"{certificates}/client-root.key"]
            kind = "mutual TLS" if mutual else "TLS"
            cases = [(f"handshake, {kind}", ["--connections=2000", "--established=0"]),
                     (f"resumed, {kind}", ["--connections=2000", "--established=0", "--resume"]),
                     (f"5,000 at once, {kind}", ["--connections=5000"])]
            for case, flags in cases:
                done = subprocess.run([*command, *flags], stdout=subprocess.PIPE, text=True, timeout=900, check=True)
                found = json.loads(done.stdout)
                shown = {"failed": found["failed"], "seconds": found["seconds"], "cpu_us": found["cpu_us"]}
                if found["p99_before_ms"]:
                    # The ranges beside them are in the CPU.
                    del shown["cpu_us"]
                    shown |= {key: found[key] for key in ("p99_before_ms", "p99_during_ms", "max_during_ms")}
                    shown["p99_times"] = found["p99_during_ms"] / found["p99_before_ms"]
                figures.add(case, name, **shown)
            server.stop()
            server.clean()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--interop", required=True, help="the built program of interop/go")
    parser.add_argument("--bench", required=True, help="mainstay, whose tools load the servers")
    parser.add_argument("--server", action="append", required=True, metavar="NAME=PATH")
    parser.add_argument("--port", type=int, default=23790)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--scale", type=float, default=1.0, help="how many puts and ranges, as a factor")
    parser.add_argument("--logins", action="append", default=[], metavar="NAME=COUNT", help="how many logins at a server")
    parser.add_argument("--beside-s", type=int, default=10, help="seconds for which others are measured")
    parser.add_argument("--only", default="requests,handshakes,authentication,first-time,others",
                        help="which measurements, all without it")
    parser.add_argument("--first-time", type=int, default=400, help="logins with passwords that were never verified")
    parser.add_argument("--page", help="write the tables into this file, docs/benchmarks.md")
    parser.add_argument("--load-priority", default="chrt --idle 0", metavar="COMMAND",
                        help="command by which a load runs that others are measured beside; with `nice -n 19` Linux lets "
                             "it keep a processor for milliseconds that others wait for")
    args = parser.parse_args()
    args.servers = [pair.split("=", 1) for pair in args.server]
    args.logins = dict(pair.split("=", 1) for pair in args.logins)
    tables = {"requests": (requests, ["rate", "cpu_us", "p50_ms", "p99_ms", "gave_up"]),
              "handshakes": (handshakes, ["cpu_us", "seconds", "failed", "p99_before_ms", "p99_during_ms", "max_during_ms", "p99_times"]),
              "authentication": (authentication, ["rate", "cpu_us", "p50_ms", "p99_ms", "gave_up"]),
              "first-time": (first_time, ["rate", "cpu_us", "p50_ms", "p99_ms", "gave_up"]),
              "others": (others, ["rate", "p50_ms", "p99_ms", "p99_times", "gave_up"])}
    with tempfile.TemporaryDirectory() as certificates:
        subprocess.run([args.interop, "certificates", "--dir", certificates, "--users", "root"], check=True)
        for wanted in args.only.split(","):
            measure, columns = tables[wanted]
            figures = Figures()
            for _ in range(args.runs):
                inputs = (args, certificates, figures) if measure in (requests, handshakes) else (args, figures)
                measure(*inputs)
            heading = page.dated(args.runs, page.measured_commit(args.servers))
            page.write_table(args.page, f"security_cost: {wanted}", heading, figures.table(columns))


if __name__ == "__main__":
    main()
