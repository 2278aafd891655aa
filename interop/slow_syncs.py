#!/usr/bin/env python3
"""Puts on devices of which a sync takes long, for each length of the wait in which writes are gathered for one sync.

    interop/slow_syncs.py --mainstay PATH [--seconds 2] [--runs 3]

The member runs with a small library (made with `cc`) in front of the system's that lets each `fdatasync` and `fsync` take longer,
by 0, 2 and 10 ms, and with each --batch-fsync-window; `mainstay bench` makes the load, clients that write again as soon as they are
answered. Prints the medians of the runs, in which the windows take turns. etcd cannot be measured so: its syncs do not go through
the system's library. Linux, Python 3.9+, a C compiler.
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

    def __init__(self, path, port, shim, sync_us, window):
        self.window = window
        self.wrapper = ("env", f"LD_PRELOAD={shim}", f"SYNC_US={sync_us}") if sync_us else ()
        super().__init__("mainstay", path, port)

    def more_flags(self):
        return [f"--batch-fsync-window={self.window}"]


def measured(args, server, clients):
    cpu, syncs = server.cpu_s(), server.fsyncs()
    command = [args.mainstay, "bench", "--json=-", f"--endpoints=127.0.0.1:{args.port}", f"--conns={clients}",
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
    parser.add_argument("--mainstay", required=True)
    parser.add_argument("--port", type=int, default=23790)
    parser.add_argument("--seconds", type=int, default=2)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--syncs-us", default="0,2000,10000")
    parser.add_argument("--windows", default="0s,5ms")
    parser.add_argument("--clients", default="1,2,20,200")
    args = parser.parse_args()
    work = tempfile.mkdtemp(prefix="slow-syncs-")
    source, shim = os.path.join(work, "shim.c"), os.path.join(work, "shim.so")
    with open(source, "w") as out:
        out.write(SHIM)
    subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", shim, source, "-ldl"], check=True)
    print("| sync takes longer by | clients | window | rate /s | p50 ms | p99 ms | CPU us | puts a sync |")
    print("|---|---|---|---|---|---|---|---|")
    for sync_us in map(int, args.syncs_us.split(",")):
        for clients in map(int, args.clients.split(",")):
            seen = {}
            for _ in range(args.runs):
                for window in args.windows.split(","):
                    server = Slow(args.mainstay, args.port, shim, sync_us, window)
                    seen.setdefault(window, []).append(measured(args, server, clients))
                    server.stop()
                    server.clean()
            for window, runs in seen.items():
                rate, p50, p99, cpu_us, together = (statistics.median(column) for column in zip(*runs))
                print(f"| {sync_us / 1000:g} ms | {clients} | {window} | {rate:,.0f} | {p50:.2f} | {p99:.2f} | {cpu_us:.1f} "
                      f"| {together:.1f} |", flush=True)


main()
