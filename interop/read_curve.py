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

import statistics
import sys

import curve
import page
from cluster_side_by_side import KEY, Cluster
from curve import MANY, Bench


def measured(args, cluster, writes):
    curve.first_key(cluster)
    seconds, before = f"--duration={args.seconds}s", cluster.cpu_s()
    load = [*MANY, "put", "--val-size=256", "--sequential-keys", "--key-space-size=10000", seconds]
    rate = {"0": None, "max": []}.get(writes, [f"--rate={writes}"])
    writing = Bench(args, cluster, *load, *rate) if rate is not None else None
    reads = Bench(args, cluster, *MANY, "range", KEY, seconds).row()
    written = writing.row() if writing else {"operations": 0, "rate_per_s": 0}
    return {"reads": reads["rate_per_s"], "writes": written["rate_per_s"], "p99": reads["latency_ms"]["p99"],
            "cpu_us": (cluster.cpu_s() - before) / (reads["operations"] + written["operations"]) * 1e6}


def drawn(table, points):
    """Rates of reads as parts of those without writes, one line for each server."""
    width, height = 640, 320
    diagram = curve.Diagram(60, 20, width - 80, height - 60, curve.linear(0, len(points) - 1), curve.linear(0, 1.1))
    diagram.up_axis([(part, f"{part:g}") for part in (0, 0.25, 0.5, 0.75, 1)])
    diagram.across_axis(list(enumerate(points)), "writes per second, asked for")
    for number, (name, rows) in enumerate(table.items()):
        colour, alone = curve.COLOURS[number % len(curve.COLOURS)], rows[points[0]]["reads"]
        diagram.line([(at, rows[writes]["reads"] / alone) for at, writes in enumerate(points)], colour)
        diagram.text(70, 170 + 16 * number, f"{name}: reads, part of {alone:,.0f} per second", "start", f' fill="{colour}"')
    return curve.picture(width, height, [diagram])


def main():
    parser = curve.arguments(__doc__, 24790)
    parser.add_argument("--writes", default="0,2000,5000,10000,20000,max", help="writes per second; `max` is as many as it takes")
    parser.add_argument("--runs", type=int, default=3)
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
