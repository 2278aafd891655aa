#!/usr/bin/env python3
"""What reads of large values cost servers, in turn: processor time per read, reads per second, memory.

    interop/large_values.py --benchmark PATH --etcdctl PATH --server before=PATH --server after=PATH [--server ...]

Loads, all of etcd's `benchmark` on connections of one stream each: `one`, 1000 clients read one value of 1 MB; `fifty`, 20 clients
for each of fifty such values; `64-kib`, 1000 clients read one value of 64 KiB. Prints the medians over --runs, and each run.
"""

import argparse
import os
import resource
import statistics
import subprocess
import sys

import page
from side_by_side import Server

MILLION = 1_000_000
# Name, number of values, bytes of each, clients of each, reads of each.
LOADS = (("one", 1, MILLION, 1000, 4000), ("fifty", 50, MILLION, 20, 60), ("64-kib", 1, 64 << 10, 1000, 20000))


def measure(args, server, values, value_bytes, clients, reads):
    endpoint = f"--endpoints=127.0.0.1:{args.port}"
    for n in range(values):
        subprocess.run([args.etcdctl, endpoint, "put", f"large-{n}"], input=os.urandom(value_bytes), stdout=subprocess.DEVNULL, check=True)
    cpu = server.cpu_s()
    loads = [subprocess.Popen([args.benchmark, endpoint, f"--conns={clients}", f"--clients={clients}", "range", f"large-{n}", f"--total={reads}"],
                              stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) for n in range(values)]
    rate = 0
    for load in loads:
        text, _ = load.communicate()
        if load.returncode or "Error distribution" in text:
            sys.exit(f"{server.name}: the load failed:\n{text}")
        rate += float(text.split("Requests/sec:")[1].split()[0])
    return (server.cpu_s() - cpu) / (values * reads) * 1e6, rate, server.rss_mb()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--benchmark", required=True, help="etcd's benchmark tool")
    parser.add_argument("--etcdctl", required=True)
    parser.add_argument("--server", action="append", required=True, metavar="NAME=PATH")
    parser.add_argument("--port", type=int, default=23790)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--only", default=",".join(name for name, *_ in LOADS))
    args = parser.parse_args()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    servers = [pair.split("=", 1) for pair in args.server]
    lines = []
    for name, *load in LOADS:
        if name not in args.only.split(","):
            continue
        found = {}
        for _ in range(args.runs):
            for server_name, path in servers:
                server = Server(server_name, path, args.port)
                found.setdefault(server_name, []).append(measure(args, server, *load))
                server.stop()
                server.clean()
        for server_name, _ in servers:
            cpu, rate, rss = (statistics.median(figures) for figures in zip(*found[server_name]))
            runs = " ".join(f"{run[0]:.0f}" for run in found[server_name])
            lines.append([name, server_name, f"{cpu:.1f}", f"{rate:,.0f}", f"{rss:.0f}", runs])
    print(page.markdown(["load", "server", "CPU us", "rate /s", "RSS MB", "CPU us of each run"], lines), end="")


if __name__ == "__main__":
    main()
