#!/usr/bin/env python3
"""How many linearizable reads a server answers while others write, from no write to as many as it takes.

    interop/read_curve.py --mainstay target/release/mainstay --server etcd-3.6=PATH --server mainstay=target/release/mainstay \\
        [--members 3] [--writes 0,2000,5000,10000,20000,max] [--seconds 5] [--runs 3] [--svg FILE]

One member, or three on this machine whose reads and writes go to all of them in turn. `mainstay bench` makes both loads: reads by
clients that ask again when they have the answer, writes of 256 bytes at a held rate, and with `max` by clients that write
again when they have the answer. Each point has fresh servers, which take turns; the table has the medians of the reads per
second, the writes per second that were reached, and p99 of the reads. All of it shares the processors of one machine, so what
writes and their clients cost is missing to the reads: beside the rate stands the server's CPU time for each request of either kind.
With --svg the rates are drawn, each as a part of the rate without writes.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time

import page
from cluster_side_by_side import Cluster

COLOURS = ("#8a5a00", "#0b5fa5", "#2f7d32", "#7a3e9d")


class Bench:
    """A load of `mainstay bench`."""

    def __init__(self, args, cluster, *words):
        command = [args.mainstay, "bench", "--json=-", "--endpoints=" + ",".join(cluster.endpoints), *words]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def row(self):
        out, error = self.process.communicate(timeout=300)
        if self.process.returncode:
            sys.exit(error)
        return json.loads(out)["rows"][0]["median"]


def measured(args, cluster, writes):
    Bench(args, cluster, "--conns=1", "--clients=1", "put", "--total=1", "--val-size=256", "--key-space-size=1").row()
    seconds = f"--duration={args.seconds}s"
    before, began = cluster.cpu_s(), time.monotonic()
    load = ["--conns=20", "--clients=200", "put", "--val-size=256", "--sequential-keys", "--key-space-size=10000", seconds]
    rate = {"0": None, "max": []}.get(writes, [f"--rate={writes}"])
    writing = Bench(args, cluster, *load, *rate) if rate is not None else None
    reads = Bench(args, cluster, "--conns=20", "--clients=200", "range", "a", seconds).row()
    written = writing.row()["rate_per_s"] if writing else 0
    requests = (reads["rate_per_s"] + written) * (time.monotonic() - began)
    return {"reads": reads["rate_per_s"], "writes": written, "p99": reads["latency_ms"]["p99"],
            "cpu_us": (cluster.cpu_s() - before) / requests * 1e6}


def drawn(table, points):
    """Rates of reads as parts of those without writes, one line for each server."""
    width, height, left, top = 640, 320, 60, 20
    x = lambda at: left + at * (width - left - 20) / (len(points) - 1)
    y = lambda part: top + (1.1 - min(part, 1.1)) / 1.1 * (height - top - 40)
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12">',
           f'<rect width="{width}" height="{height}" fill="white"/>']
    for part in (0, 0.25, 0.5, 0.75, 1):
        out.append(f'<line x1="{left}" x2="{width - 20}" y1="{y(part):.0f}" y2="{y(part):.0f}" stroke="#ddd"/>'
                   f'<text x="{left - 8}" y="{y(part) + 4:.0f}" text-anchor="end">{part:g}</text>')
    for at, writes in enumerate(points):
        out.append(f'<text x="{x(at):.0f}" y="{height - 22}" text-anchor="middle">{writes}</text>')
    out.append(f'<text x="{(left + width) / 2:.0f}" y="{height - 6}" text-anchor="middle">writes per second, asked for</text>')
    for number, (name, rows) in enumerate(table.items()):
        colour = COLOURS[number % len(COLOURS)]
        parts = [rows[writes]["reads"] / rows[points[0]]["reads"] for writes in points]
        line = " ".join(f"{x(at):.1f},{y(part):.1f}" for at, part in enumerate(parts))
        out.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"/>'
                   f'<text x="{left + 10}" y="{top + 150 + 16 * number}" fill="{colour}">{name}: reads, part of '
                   f'{rows[points[0]]["reads"]:,.0f} per second</text>')
    return "\n".join([*out, "</svg>", ""])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mainstay", required=True, help="whose `bench` makes the loads")
    parser.add_argument("--server", action="append", required=True, metavar="NAME=PATH")
    parser.add_argument("--members", type=int, default=1)
    parser.add_argument("--writes", default="0,2000,5000,10000,20000,max", help="writes per second; `max` is as many as it takes")
    parser.add_argument("--seconds", type=int, default=5)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--port", type=int, default=24790)
    parser.add_argument("--page", help="write the table into this file, docs/benchmarks.md")
    parser.add_argument("--svg", help="draw the rates into this file")
    args = parser.parse_args()
    points, servers, found = args.writes.split(","), [pair.split("=", 1) for pair in args.server], {}
    for run in range(args.runs):
        for writes in points:
            for name, path in servers:
                cluster = Cluster(name, path, args.port, args.members, [])
                figures = measured(args, cluster, writes)
                cluster.stop()
                found.setdefault((name, writes), []).append(figures)
                words = " ".join(f"{figure} {value:.4g}" for figure, value in figures.items())
                print(f"run {run + 1} {writes:>6} {name:<10} {words}", file=sys.stderr, flush=True)
    median = lambda many: {figure: statistics.median(one[figure] for one in many) for figure in many[0]}
    table = {name: {writes: median(found[name, writes]) for writes in points} for name, _ in servers}
    head = ["writes /s, asked for", "server", "writes /s", "reads /s", "of those without writes", "read p99 ms", "CPU us"]
    lines = [[writes, name, f"{row['writes']:.0f}", f"{row['reads']:.0f}", f"{row['reads'] / rows[points[0]]['reads']:.2f}",
              f"{row['p99']:.1f}", f"{row['cpu_us']:.1f}"]
             for writes in points for name, rows in table.items() for row in [rows[writes]]]
    page.write_table(args.page, f"read_curve: {args.members}", page.dated(args.runs, page.measured_commit(servers)), page.markdown(head, lines))
    if args.svg:
        with open(args.svg, "w") as file:
            file.write(drawn(table, points))


if __name__ == "__main__":
    main()
