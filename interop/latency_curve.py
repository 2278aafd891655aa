#!/usr/bin/env python3
"""Latency of puts and of linearizable reads against the rate, from a tenth of what a server can do to nearly all of it.

    interop/latency_curve.py --mainstay target/release/mainstay --server etcd-3.6=PATH --server mainstay=target/release/mainstay \\
        [--members 3] [--parts 10,25,50,75,90,95] [--seconds 4] [--svg FILE]

One member, or three on this machine whose loads go to all of them in turn. Each server first shows its maximum: as many requests as it
answers to clients of `mainstay bench` that ask again when they have the answer. Then parts of its own maximum are held, in percent:
requests start at fixed times whatever the server does, and a latency counts from the time at which a request was due, so that it
has the waiting in it that a slow answer causes to others. A rate counts as held if at least 95 % of it was reached and nothing
failed. Otherwise the queue grew until the end, and latencies depend on how long that took: in the table such a rate is bold, in the
plot its point is hollow.

Puts write 256 bytes to 10,000 keys in turn, as `read_curve.py` does: about the size of a Lease or a small object of Kubernetes. With 1
KiB the disk would be a larger part of the fastest server's maximum, and of what it has to show here. Reads ask for one key of 256 bytes.

Each point has fresh servers, because without compaction each put makes the history of the next ones longer. Client and members share
the processors of one machine: what a request costs the client is in the table beside what it costs the server, with the part of the
time for which the client waited for a processor. That waiting is in the latencies, too.
"""

import sys

import curve
import page
from cluster_side_by_side import KEY, Cluster
from curve import Bench

LOADS = {
    "put 256 B": ["put", "--val-size=256", "--sequential-keys", "--key-space-size=10000"],
    "range": ["range", KEY],
}
# So many that a held rate finds a free one also when answers take long: at 10,000 a second for 100 ms.
CLIENTS = ("--conns=10", "--clients=1000")
# What has to be reached of a rate that counts as held; `mainstay bench` warns below it, too.
HELD = 0.95


def measured(args, name, path, load, rate=None):
    """Figures of a load at full speed, or at a held rate, at fresh servers."""
    cluster = Cluster(name, path, args.port, args.members, [])
    curve.first_key(cluster)
    # So that the servers have their memory and their files.
    Bench(args, cluster, *CLIENTS, *load, "--total=20000").row()
    before = cluster.cpu_s()
    row = Bench(args, cluster, *CLIENTS, *load, f"--duration={args.seconds}s", *([f"--rate={rate}"] if rate else [])).row()
    cluster.alive()
    figures = {"asked": rate, "rate": row["rate_per_s"], "failed": row["failed"],
               **{percentile: row["latency_ms"][percentile] for percentile in ("p50", "p99", "p99.9")},
               "cpu_us": (cluster.cpu_s() - before) / row["operations"] * 1e6,
               "client_us": row["generator"]["cpu_us_per_operation"], "waited": row["generator"]["waited_for_cpu"]}
    # Nothing of them is wanted any more, and members of etcd take seconds to shut down one after the other.
    cluster.end()
    return figures


def is_held(row):
    return row["failed"] == 0 and row["rate"] >= HELD * row["asked"]


def measured_all(args, servers, parts):
    """Rows by load and server: the maximum first, then the parts of it."""
    found = {}
    for load_name, load in LOADS.items():
        for name, path in servers:
            rows = [measured(args, name, path, load)]
            rows += [measured(args, name, path, load, max(round(rows[0]["rate"] * part / 100), 1)) for part in parts]
            found[load_name, name] = rows
            for row in rows:
                words = " ".join(f"{figure} {value:.4g}" for figure, value in row.items() if value is not None)
                print(f"{load_name:<10} {name:<10} {words}", file=sys.stderr, flush=True)
    return found


def lines(found, parts):
    for (load, name), rows in found.items():
        for part, row in zip(["all", *(f"{part} %" for part in parts)], rows):
            reached = f"{row['rate']:,.0f}"
            asked = f"{row['asked']:,}" if row["asked"] else ""
            yield [load, name, part, asked, reached if row["asked"] is None or is_held(row) else f"**{reached}**",
                   *(page.shown(row[figure]) for figure in ("p50", "p99", "p99.9", "cpu_us", "client_us")), f"{row['waited'] * 100:.0f}"]


def drawn(found, servers, members):
    """A diagram of each load: p99 against the rate that was asked for, a line for each server, both axes logarithmic."""
    held = {key: rows[1:] for key, rows in found.items()}
    marks_ms = curve.decades([row["p99"] for rows in held.values() for row in rows])
    diagrams = []
    for at, load in enumerate(LOADS):
        marks = curve.decades([row["asked"] for name, _ in servers for row in held[load, name]])
        diagram = curve.Diagram(70 + 440 * at, 44, 360, 260, curve.logarithmic(marks[0], marks[-1]),
                                curve.logarithmic(marks_ms[0], marks_ms[-1]))
        title = f"{load}, {'one member' if members == 1 else f'{members} members'}"
        diagram.text(diagram.left + diagram.width / 2, 26, title, more=' font-size="14" font-weight="bold"')
        diagram.up_axis([(value, f"{value:,g}") for value in marks_ms], "p99, ms" if at == 0 else None)
        diagram.across_axis([(value, f"{value:,.0f}") for value in marks], "requests per second, asked for", lines=True)
        for number, (name, _) in enumerate(servers):
            rows, colour = held[load, name], curve.COLOURS[number % len(curve.COLOURS)]
            diagram.line([(row["asked"], row["p99"]) for row in rows], colour)
            for row in rows:
                diagram.dot(row["asked"], row["p99"], colour, hollow=not is_held(row))
            legend = f"{name}, to {rows[-1]['asked']:,.0f} per second"
            diagram.text(diagram.left + 10, diagram.top + 18 + 16 * number, legend, "start", f' fill="{colour}"')
        diagrams.append(diagram)
    if not all(is_held(row) for rows in held.values() for row in rows):
        diagrams[0].text(70, 370, "Hollow: the rate was not held; how high p99 is depends on how long it was tried.", "start")
    return curve.picture(910, 380, diagrams)


def main():
    parser = curve.arguments(__doc__, 24890)
    parser.add_argument("--parts", default="10,25,50,75,90,95", help="rates to hold, in percent of the maximum")
    args = parser.parse_args()
    parts, servers = [int(part) for part in args.parts.split(",")], [pair.split("=", 1) for pair in args.server]
    found = measured_all(args, servers, parts)
    head = ["load", "server", "of its maximum", "asked for /s", "reached /s", "p50 ms", "p99 ms", "p99.9 ms", "CPU us", "client CPU us",
            "client waited %"]
    heading = page.dated(1, page.measured_commit(servers))
    page.write_table(args.page, f"latency_curve: {args.members}", heading, page.markdown(head, lines(found, parts)))
    if args.svg:
        with open(args.svg, "w", encoding="utf-8") as file:
            file.write(drawn(found, servers, args.members))


if __name__ == "__main__":
    main()
