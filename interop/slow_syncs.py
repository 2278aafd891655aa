#!/usr/bin/env python3
"""Puts on devices of which a sync takes long, for each length of the wait in which writes are gathered for one sync.

    interop/slow_syncs.py --server NAME=PATH [--server ...] --bench MAINSTAY [--seconds 4] [--runs 3]

Every server runs with a small library (made with `cc`) in front of the system's that lets each `fdatasync` and `fsync` take longer
by so much: 0, 0.5, 2 and 10 ms. Servers whose path is --bench's are run with each --batch-fsync-window. Prints the medians of the
runs; the servers take turns within each. Linux, Python 3.9+, a C compiler.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile

from side_by_side import Server

SHIM = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <time.h>

static int later(const char *name, int fd) {
    int (*call)(int) = (int (*)(int))dlsym(RTLD_NEXT, name);
    int result = call(fd);
    long us = atol(getenv("SYNC_US"));
    struct timespec wait = {us / 1000000, us % 1000000 * 1000};
    nanosleep(&wait, 0);
    return result;
}
int fdatasync(int fd) { return later("fdatasync", fd); }
int fsync(int fd) { return later("fsync", fd); }
"""


class Slow(Server):
    """A server whose syncs take longer."""

    def __init__(self, name, path, port, shim, sync_us, window):
        self.window = window
        self.wrapper = ("env", f"LD_PRELOAD={shim}", f"SYNC_US={sync_us}") if sync_us else ()
        super().__init__(name, path, port)

    def more_flags(self):
        return [f"--batch-fsync-window={self.window}"] if self.window else []


def measured(args, server, clients):
    cpu, syncs = server.cpu_s(), server.fsyncs()
    command = [args.bench, "bench", "--json=-", f"--endpoints=127.0.0.1:{args.port}", f"--conns={clients}",
               f"--clients={clients}", "put", f"--duration={args.seconds}s", "--val-size=1024", "--sequential-keys",
               "--key-space-size=100000"]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit(f"bench against {server.name}: {done.stderr}")
    row = json.loads(done.stdout)["rows"][0]["median"]
    puts = row["rate_per_s"] * args.seconds
    return (row["rate_per_s"], row["latency_ms"]["p50"], row["latency_ms"]["p99"], (server.cpu_s() - cpu) / puts * 1e6,
            puts / max(server.fsyncs() - syncs, 1))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server", action="append", required=True, metavar="NAME=PATH")
    parser.add_argument("--bench", required=True, help="Mainstay, whose `bench` is the load")
    parser.add_argument("--port", type=int, default=23790)
    parser.add_argument("--seconds", type=int, default=4)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--syncs-us", default="0,500,2000,10000")
    parser.add_argument("--windows", default="0s,1ms,2ms,5ms")
    parser.add_argument("--clients", default="1,20,200")
    args = parser.parse_args()
    work = tempfile.mkdtemp(prefix="slow-syncs-")
    source, shim = os.path.join(work, "shim.c"), os.path.join(work, "shim.so")
    with open(source, "w") as out:
        out.write(SHIM)
    subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", shim, source, "-ldl"], check=True)
    print("| sync takes longer by | clients | server | window | rate /s | p50 ms | p99 ms | CPU us | puts a sync |")
    print("|---|---|---|---|---|---|---|---|---|")
    for sync_us in map(int, args.syncs_us.split(",")):
        for clients in map(int, args.clients.split(",")):
            seen = {}
            for _ in range(args.runs):
                for name, path in (pair.split("=", 1) for pair in args.server):
                    ours = os.path.samefile(path, args.bench)
                    for window in args.windows.split(",") if ours else [""]:
                        server = Slow(name, path, args.port, shim, sync_us, window)
                        seen.setdefault((name, window), []).append(measured(args, server, clients))
                        server.stop()
                        server.clean()
            for (name, window), runs in seen.items():
                rate, p50, p99, cpu_us, together = (statistics.median(column) for column in zip(*runs))
                print(f"| {sync_us / 1000:g} ms | {clients} | {name} | {window} | {rate:,.0f} | {p50:.2f} | {p99:.2f} "
                      f"| {cpu_us:.1f} | {together:.1f} |", flush=True)


main()
