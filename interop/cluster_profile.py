#!/usr/bin/env python3
"""Where the processor time of a cluster goes: for each load, role and kind of thread the time, the switches and the system calls of a request.

    interop/cluster_profile.py --benchmark PATH --server target/release/mainstay [--members 3] [--loads put,range,mixed] \\
        [--clients 1,50,500,1000] [--seconds 5] [--perf DIR] [--page FILE]

Starts the members on loopback and lets etcd's `benchmark` put values of 1 KiB (`put`), read one key (`range`), or do four reads
for each put (`mixed`), at all members in turn. Figures are differences over the middle of the load, divided by the requests that were
answered in it: processor time and switches (a thread that waits, or that another one displaces) of each thread from /proc, system
calls by `perf stat` where that is installed, requests and bytes to other members from /metrics. Threads of one kind are one
row: those of clients (shards), the core, those of other members (peers), the log, and the rest. With --perf DIR, `perf record`
writes the stacks of each load there. With one member only the leader has rows.
"""

import argparse
import collections
import math
import os
import re
import shutil
import subprocess
import sys
import time
import urllib.request

import page
from cluster_side_by_side import KEY, Cluster, call

TICK = os.sysconf("SC_CLK_TCK")
# Kinds of threads, by how their names begin.
KINDS = {r"front-\d": "shards", "core$": "core", "peer$": "peers", "log$": "log"}
# Until the load is at its full rate.
WARM_UP_S = 2


def kind_of(name):
    return next((kind for start, kind in KINDS.items() if re.match(start, name)), "others")


def threads(pid):
    """Figures of each kind of thread since the start: processor time in us, and switches."""
    found = collections.defaultdict(lambda: collections.Counter())
    for tid in os.listdir(f"/proc/{pid}/task"):
        try:
            with open(f"/proc/{pid}/task/{tid}/comm") as file:
                kind = kind_of(file.read().strip())
            with open(f"/proc/{pid}/task/{tid}/schedstat") as file:
                found[kind]["cpu_us"] += int(file.read().split()[0]) / 1e3
            with open(f"/proc/{pid}/task/{tid}/status") as file:
                switches = re.findall(r"voluntary_ctxt_switches:\s+(\d+)", file.read())
        except OSError:
            continue  # The thread has ended.
        # The second line is of the switches that the thread did not ask for.
        found[kind]["waits"] += int(switches[0])
        found[kind]["displaced"] += int(switches[1])
    return found


def metrics(endpoint):
    with urllib.request.urlopen(f"http://{endpoint}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    total = lambda pattern: sum(float(value) for value in re.findall(rf"^{pattern}(?:\{{[^}}]*\}})? (\S+)", text, re.M))
    return {"requests": sum(float(value) for value in re.findall(
                r'^grpc_server_handled_total\{grpc_code="OK",grpc_method="(?:Put|Range|Txn)"[^}]*\} (\S+)', text, re.M)),
            "sent": total("etcd_network_peer_sent_bytes_total"), "fsyncs": total("etcd_disk_wal_fsync_duration_seconds_count"),
            "leads": total("etcd_server_is_leader")}


def system_calls(process, seconds):
    """Starts counting the system calls of each thread of a process; None without `perf`."""
    if not shutil.which("perf"):
        return None
    return subprocess.Popen(["perf", "stat", "--per-thread", "-x", ";", "-e", "raw_syscalls:sys_enter", "-p", str(process.pid), "--",
                             "sleep", str(seconds)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def counted(counting):
    """System calls by kind of thread; None if they were not counted."""
    if not counting:
        return None
    found, out = collections.Counter(), counting.communicate()[1]
    if counting.returncode:
        print(f"perf cannot count system calls:\n{out[-500:]}", file=sys.stderr)
        return None
    for line in out.splitlines():
        cells = line.split(";")
        if len(cells) > 3 and cells[1].isdigit():
            found[kind_of(cells[0].rsplit("-", 1)[0])] += int(cells[1])
    return found


def command(args, cluster, load, clients):
    words = {"put": ["put", "--total=100000000", "--val-size=1024", "--sequential-keys", "--key-space-size=100000"],
             "range": ["range", KEY, "--total=100000000"],
             "mixed": ["txn-mixed", KEY, "--total=100000000", "--rw-ratio=4", "--val-size=1024", "--key-space-size=100", "--limit=1"]}
    return [args.benchmark, f"--endpoints={','.join(cluster.endpoints)}", f"--conns={min(clients, 100)}", f"--clients={clients}", *words[load]]


def measured(args, load, clients):
    """Rows of the load: role, kind of thread, figures of a request."""
    cluster = Cluster("mainstay", args.server, args.port, args.members, [])
    call(cluster, "Put", (1, KEY.encode()), (2, b"v" * 1024))
    running = subprocess.Popen(command(args, cluster, load, clients), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    recording = None
    try:
        time.sleep(WARM_UP_S)
        if args.perf:
            pids = ",".join(str(process.pid) for process in cluster.processes)
            data = os.path.join(args.perf, f"{load}-{clients}.data")
            recording = subprocess.Popen(["perf", "record", "-q", "-e", "cpu-clock", "-F", "997", "-g", "-o", data, "-p", pids,
                                          "--", "sleep", str(args.seconds)])
        counting = [system_calls(process, args.seconds) for process in cluster.processes]
        before = [(threads(process.pid), metrics(endpoint)) for process, endpoint in zip(cluster.processes, cluster.endpoints)]
        taken = time.monotonic()
        time.sleep(args.seconds - 0.5)
        if running.poll() is not None:
            sys.exit(f"{load} of {clients} clients: benchmark ended with {running.returncode}")
        taken = time.monotonic() - taken
        after = [(threads(process.pid), metrics(endpoint)) for process, endpoint in zip(cluster.processes, cluster.endpoints)]
        calls = [counted(each) for each in counting]
    finally:
        running.terminate()
        running.wait()
    if recording:
        recording.wait()
    cluster.alive()
    cluster.stop()
    requests = sum(now["requests"] - then["requests"] for (_, then), (_, now) in zip(before, after))
    if not requests:
        sys.exit(f"{load} of {clients} clients: no request was answered")
    rows = collections.defaultdict(collections.Counter)
    leads = [[figures["leads"] for _, figures in moment] for moment in (before, after)]
    if leads[0] != leads[1] or sum(leads[0]) != 1:
        sys.exit(f"{load} of {clients} clients: leadership changed while this was measured")
    for (then, _), (now, end), system in zip(before, after, calls):
        role = "leader" if end["leads"] else "followers"
        for kind in now:
            row = rows[role, kind]
            for figure in ("cpu_us", "waits", "displaced"):
                row[figure] += (now[kind][figure] - then[kind][figure]) / requests
            # `perf` counted a little longer.
            row["calls"] += system[kind] * taken / args.seconds / requests if system else math.nan
    total = lambda figure: sum(now[figure] - then[figure] for (_, then), (_, now) in zip(before, after)) / requests
    about = {"rate": requests / taken, "sent": total("sent"), "fsyncs": total("fsyncs")}
    return about, rows


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--benchmark", required=True, help="etcd's benchmark tool")
    parser.add_argument("--server", required=True, help="a program of Mainstay")
    parser.add_argument("--members", type=int, default=3)
    parser.add_argument("--loads", default="put,range,mixed")
    parser.add_argument("--clients", default="1,50,500,1000")
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--port", type=int, default=61790, help="first of 2 ports for each member")
    parser.add_argument("--perf", metavar="DIR", help="where stacks are recorded")
    parser.add_argument("--page", help="write the table into this file, docs/profile.md")
    args = parser.parse_args()
    lines = []
    for load in args.loads.split(","):
        for clients in map(int, args.clients.split(",")):
            about, rows = measured(args, load, clients)
            title = f"{load}, {clients} {'clients' if clients > 1 else 'client'}: {about['rate']:,.0f}/s"
            for kind in (*KINDS.values(), "others"):
                cells = []
                for role in ("leader", "followers")[:args.members]:
                    row = rows.get((role, kind), {})
                    cells += [f"{row.get('cpu_us', 0):.2f}", f"{row.get('waits', 0) + row.get('displaced', 0):.2f}", f"{row.get('calls', 0):.2f}"]
                lines.append([title, kind, *cells])
                title = ""
            sums = []
            for role in ("leader", "followers")[:args.members]:
                each = [row for (of, _), row in rows.items() if of == role]
                sums += [f"{sum(row['cpu_us'] for row in each):.2f}", f"{sum(row['waits'] + row['displaced'] for row in each):.2f}",
                         f"{sum(row['calls'] for row in each):.2f}"]
            lines.append([f"{about['sent']:,.0f} bytes to members, {about['fsyncs']:.3f} syncs", "all", *sums])
            print("\n".join(" | ".join(line) for line in lines[-6:]), file=sys.stderr, flush=True)
    roles = [f"{role}: {figure}" for role in ("leader", "followers")[:args.members] for figure in ("CPU us", "switches", "calls")]
    page.write_table(args.page, f"cluster_profile: {args.members}", page.dated(1, page.commit(args.server)),
                     page.markdown(["load", "threads", *roles], lines))


if __name__ == "__main__":
    main()
