#!/usr/bin/env python3
"""What a node of a Kubernetes cluster costs: `mainstay bench kubernetes` at several numbers of nodes, against one and three members.

    interop/kubernetes_scale.py --mainstay target/release/mainstay --server mainstay=target/release/mainstay [--server etcd-3.6=PATH] \\
        [--members 1,3] [--nodes 1000,10000,100000] [--bench "--pods-per-node 1 --duration 30s"] [--results FILE] [--page docs/scale.md]

Each measurement has a fresh cluster on this machine, on loopback, whose members share its cores with the generator. With --results each
measurement is appended to a file as a line of JSON. With --page the table of docs/scale.md is written from that file, or from this run.
With --draw nothing is measured before. Needs nothing but Python 3 and the programs named.
"""

import argparse
import datetime
import json
import os
import shlex
import subprocess
import sys
import tempfile

import page
from cluster_side_by_side import Cluster

NAME = "kubernetes_scale"
HEAD = [
    "nodes", "members", "server", "ops/s", "renewal p50", "renewal p99", "worst p99", "delivery p99", "CPU us", "cores", "busiest thread",
    "RSS MB", "log B", "disk B", "generator cores", "carried",
]


def measured(args, name, path, members, nodes):
    cluster = Cluster(name, path, args.port, members, shlex.split(args.flags))
    try:
        with tempfile.NamedTemporaryFile("r", suffix=".json") as out:
            command = [args.mainstay, "bench", "--endpoints", ",".join(cluster.endpoints), "--json", out.name, "kubernetes",
                       "--nodes", str(nodes), *shlex.split(args.bench)]
            result = subprocess.run(command, stdout=subprocess.PIPE, text=True)
            sys.stderr.write(result.stdout)
            if result.returncode != 0:
                sys.exit(f"{name}, {members} members, {nodes} nodes: the measurement failed")
            document = json.load(out)
        cluster.alive()
    finally:
        cluster.end()
    return {
        "server": name, "build": page.commit(path), "members": members, "nodes": nodes, "bench": args.bench,
        "date": str(datetime.date.today()), "numbers": document["numbers"][""], "conclusion": document["conclusions"][-1],
        "rows": {row["workload"]: row["median"] for row in document["rows"]},
    }


def line(one):
    numbers, rows = one["numbers"], one["rows"]
    own = {name: row for name, row in rows.items() if name != "event delivery"}
    worst = max(own, key=lambda name: own[name]["latency_ms"]["p99"])
    threads = {name: cores for name, cores in numbers.items() if name.startswith("thread ") and name.endswith(" busiest_cores")}
    busiest = max(threads, key=threads.get, default=None)
    thread = f"{busiest.split(' ')[1]} {threads[busiest] * 100:.0f} %" if busiest else "?"
    shown = page.shown
    return [
        f"{one['nodes']:,}", one["members"], one["server"], shown(sum(row["rate_per_s"] for row in own.values())),
        shown(rows["lease renewal"]["latency_ms"]["p50"]), shown(rows["lease renewal"]["latency_ms"]["p99"]),
        f"{shown(own[worst]['latency_ms']['p99'])} ({worst})", shown(rows["event delivery"]["latency_ms"]["p99"]),
        shown(numbers["server_cpu_us_per_node_per_s"]), shown(numbers["server_cpu_cores"]), thread,
        shown(numbers["server_rss_bytes_max"] / 1e6), shown(numbers.get("log_bytes_per_node_per_s", 0)),
        shown(numbers.get("disk_bytes_per_node_per_s", 0)), shown(numbers["generator_cpu_cores"]),
        "no" if numbers["shortfalls"] else "yes",
    ]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mainstay", required=True, help="binary whose `bench` generates the load")
    parser.add_argument("--server", action="append", required=True, help="NAME=PATH")
    parser.add_argument("--members", default="1,3")
    parser.add_argument("--nodes", default="1000,10000,100000")
    parser.add_argument("--bench", default="--pods-per-node 1 --compaction-interval 15s --duration 30s")
    parser.add_argument("--flags", default="--quota-backend-bytes=60000000000", help="further flags of every member")
    parser.add_argument("--port", type=int, default=24790)
    parser.add_argument("--results", help="file to which each measurement is appended")
    parser.add_argument("--draw", action="store_true", help="measure nothing, draw the table of --results")
    parser.add_argument("--page", help="page whose table is written")
    args = parser.parse_args()
    all_results = []
    servers = [server.split("=", 1) for server in args.server]
    if not args.draw:
        for nodes in map(int, args.nodes.split(",")):
            for members in map(int, args.members.split(",")):
                for name, path in servers:
                    one = measured(args, name, path, members, nodes)
                    all_results.append(one)
                    if args.results:
                        with open(args.results, "a", encoding="utf-8") as file:
                            file.write(json.dumps(one) + "\n")
    if args.results and os.path.exists(args.results):
        with open(args.results, encoding="utf-8") as file:
            all_results = [json.loads(text) for text in file]
    if not all_results:
        sys.exit("there is nothing to draw: give --results, or leave out --draw")
    # A later measurement of the same cluster replaces an earlier one.
    latest = {(one["nodes"], one["members"], one["server"]): one for one in all_results}
    latest = [latest[key] for key in sorted(latest)]
    builds = sorted({one["build"] for one in latest if one["build"]})
    heading = page.dated(1, ", ".join(builds) or "?", max(one["date"] for one in latest))
    page.write_table(args.page, NAME, heading, page.markdown(HEAD, [line(one) for one in latest]))


if __name__ == "__main__":
    main()
