#!/usr/bin/env python3
"""What a large amount of data costs: loading it, memory, disk, a restart, space after a compaction, a new member.

    interop/large_data.py --bench target/release/mainstay --server NAME=PATH [--server ...] [--gigabytes 30] [--value-bytes 20000]
        [--cold] [--settle 900] [--without-learner]

For each server, one after the other, with a quota large enough:

* puts so many bytes of values, five keys of six of one kind and the sixth of another, mixed, so that each part of the log has both;
* prints the rate, processor time and bytes written to the disk for each byte of values, resident memory, and the size of the files;
* kills the server with SIGKILL and starts it: the time from the start of the process until /health has been answered, which is after a
  linearizable read. With --cold the page cache is dropped before (needs root);
* deletes all keys of the second kind and compacts, so that each part of the log has a sixth of garbage; prints the size of the files over
  what is in use when it is below 1.1, or after --settle seconds;
* adds an empty learner: prints how long the learner takes to have everything, and p99 of puts at a fixed rate alone and beside it.

Needs twice the space on the disk, with the learner. Linux, Python 3.9+, Mainstay's `bench` and `ctl` as clients.
"""

import argparse
import base64
import http.client
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

import page
from side_by_side import Server
from speed_targets import settled_rss_mb

KEPT_KEY_BYTES, DELETED_KEY_BYTES = 24, 25
# One put of so many is of the second kind.
DELETED_PART = 6
PUTS_PER_S, SECONDS, PUT_BYTES = 300, 10, 1024
LISTED = 20_000
DELETED_AT_ONCE = 100
SPACE_GOAL = 1.1


class Large(Server):
    patience_s = 600

    def more_flags(self):
        # The last one counts.
        return ["--quota-backend-bytes", str(400 << 30)]


class Learner(Large):
    """A member that is being added to a server."""

    def __init__(self, name, path, port, other):
        self.other = other
        super().__init__(name, path, port)

    def start(self):
        url, peer = f"http://127.0.0.1:{self.port}", f"http://127.0.0.1:{self.port + 1}"
        others_peer = f"http://127.0.0.1:{self.other.port + 1}"
        flags = ["--name", "learner", "--data-dir", os.path.join(self.dir, "data"),
                 "--listen-client-urls", url, "--advertise-client-urls", url,
                 "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
                 "--initial-cluster", f"default={others_peer},learner={peer}", "--initial-cluster-state", "existing",
                 "--log-level", "error", *self.more_flags()]
        self.began = time.monotonic()
        self.process = subprocess.Popen([self.path, *flags], stdout=self.log, stderr=self.log)


def call(port, path, body, timeout=600):
    """The answer of the JSON gateway."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
    try:
        connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        text = answer.read()
        if answer.status != 200:
            raise OSError(f"{path}: {answer.status} {text[:300]}")
        return json.loads(text)
    finally:
        connection.close()


def base64_of(key):
    return base64.b64encode(key).decode()


def keys_of(port, length):
    """All keys of this length."""
    start, found = b"\0", []
    while True:
        answer = call(port, "/v3/kv/range", {"key": base64_of(start), "range_end": base64_of(b"\0"), "keys_only": True, "limit": LISTED})
        keys = [base64.b64decode(each["key"]) for each in answer.get("kvs", [])]
        found += [key for key in keys if len(key) == length]
        if not answer.get("more"):
            return found
        start = keys[-1] + b"\0"


def put(args, port, total, key_bytes, clients):
    command = [args.bench, "bench", f"--endpoints=127.0.0.1:{port}", f"--conns={max(clients // 10, 1)}", f"--clients={clients}", "put",
               f"--total={total}", f"--val-size={args.value_bytes}", f"--key-size={key_bytes}", "--sequential-keys",
               f"--key-space-size={total}"]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def put_p99(args, port):
    """p99 in ms of puts at a fixed rate."""
    command = [args.bench, "bench", f"--endpoints=127.0.0.1:{port}", "--json=-", "--conns=5", "--clients=50", "put",
               f"--val-size={PUT_BYTES}", "--key-size=16", f"--rate={PUTS_PER_S}", f"--total={PUTS_PER_S * SECONDS}"]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=900)
    if done.returncode:
        sys.exit(f"{' '.join(command)}:\n{done.stderr}")
    return json.loads(done.stdout)["rows"][0]["median"]["latency_ms"]["p99"]


def status(port):
    return call(port, "/v3/maintenance/status", {}, timeout=10)


def file_bytes(server):
    total = 0
    for directory, _, names in os.walk(os.path.join(server.dir, "data")):
        for name in names:
            try:
                total += os.stat(os.path.join(directory, name)).st_blocks * 512
            except FileNotFoundError:
                pass
    return total


def load(args, server, figures):
    values = int(args.gigabytes * 1e9 / args.value_bytes)
    deleted = values // DELETED_PART
    began, cpu, written = time.monotonic(), server.cpu_s(), server.written()
    loads = [put(args, server.port, values - deleted, KEPT_KEY_BYTES, 10 * (DELETED_PART - 1)),
             put(args, server.port, deleted, DELETED_KEY_BYTES, 10)]
    for running in loads:
        _, why = running.communicate()
        if running.returncode:
            sys.exit(f"a load of {server.name} failed:\n{why}")
    took = time.monotonic() - began
    data = values * args.value_bytes
    figures["load_s"], figures["load_mb_s"] = took, data / took / 1e6
    figures["load_cpu_s_gb"] = (server.cpu_s() - cpu) / (data / 1e9)
    figures["written"] = (server.written() - written) / data
    figures["rss_mb"] = settled_rss_mb(server)
    figures["files"] = file_bytes(server) / data


def restart(args, server, figures):
    server.stop(signal.SIGKILL)
    if args.cold:
        os.sync()
        with open("/proc/sys/vm/drop_caches", "w", encoding="ascii") as file:
            file.write("3")
    server.start()
    figures["restart_s"], figures["rss_mb_restarted"] = server.ready_s, settled_rss_mb(server)


def thin_out(args, server, figures):
    """Deletes a sixth of the values of each part of the log."""
    keys = keys_of(server.port, DELETED_KEY_BYTES)
    for at in range(0, len(keys), DELETED_AT_ONCE):
        answer = call(server.port, "/v3/kv/txn", {"success": [
            {"request_delete_range": {"key": base64_of(key)}} for key in keys[at:at + DELETED_AT_ONCE]]})
    call(server.port, "/v3/kv/compaction", {"revision": answer["header"]["revision"]})
    began, written = time.monotonic(), server.written()
    while True:
        now = status(server.port)
        ratio, took = int(now["dbSize"]) / int(now["dbSizeInUse"]), time.monotonic() - began
        # What is in use shrinks as the compaction goes on, and the files only after that.
        if took > args.settle or (took > 30 and ratio <= SPACE_GOAL):
            break
        time.sleep(1)
    figures["space"], figures["space_s"] = ratio, took
    figures["space_written_gb"] = (server.written() - written) / 1e9


def add_learner(args, server, name, path, figures):
    figures["put_alone"] = put_p99(args, server.port)
    port = args.port + 10
    call(server.port, "/v3/cluster/member/add", {"peerURLs": [f"http://127.0.0.1:{port + 1}"], "isLearner": True})
    learner = Learner(name, path, port, server)
    try:
        wanted, over, latencies = int(status(server.port)["raftAppliedIndex"]), threading.Event(), []

        def puts():
            while not over.is_set():
                latencies.append(put_p99(args, server.port))

        beside = threading.Thread(target=puts)
        beside.start()
        while True:
            if learner.process.poll() is not None:
                sys.exit(f"the learner of {name} ended; see {learner.dir}/stderr")
            try:
                if int(status(port).get("raftAppliedIndex", 0)) >= wanted:
                    break
            except OSError:
                pass
            time.sleep(0.05)
        took = time.monotonic() - learner.began
        over.set()
        beside.join()
        in_use = int(status(server.port)["dbSizeInUse"])
        # The first of the loads began with the transfer.
        figures["learner_s"], figures["learner_mb_s"], figures["put_beside"] = took, in_use / took / 1e6, latencies[0]
    finally:
        learner.end()
        learner.clean()


def measure(args, name, path):
    server, figures = Large(name, path, args.port), {}
    try:
        load(args, server, figures)
        restart(args, server, figures)
        thin_out(args, server, figures)
        if not args.without_learner:
            add_learner(args, server, name, path, figures)
    finally:
        server.end()
        server.clean()
    return figures


TITLES = {
    "load_s": "load, s", "load_mb_s": "load, MB/s", "load_cpu_s_gb": "load, CPU s for a GB", "written": "bytes written for a byte of values",
    "rss_mb": "RSS after it, MB", "files": "bytes of files for a byte of values", "restart_s": "restart after SIGKILL, s",
    "rss_mb_restarted": "RSS, restarted, MB", "space": "files over data in use, a sixth deleted and compacted",
    "space_s": "after so many s", "space_written_gb": "GB written meanwhile", "learner_s": "a learner has everything after, s",
    "learner_mb_s": "the same, MB/s", "put_alone": f"put p99 ms at {PUTS_PER_S} /s, alone", "put_beside": "beside the learner",
}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bench", required=True, metavar="MAINSTAY", help="whose bench makes the loads")
    parser.add_argument("--server", action="append", required=True, metavar="NAME=PATH")
    parser.add_argument("--port", type=int, default=23790)
    parser.add_argument("--gigabytes", type=float, default=30)
    parser.add_argument("--value-bytes", type=int, default=20_000)
    parser.add_argument("--cold", action="store_true", help="drop the page cache before the restart (root)")
    parser.add_argument("--settle", type=float, default=900, help="seconds to wait for space after the compaction")
    parser.add_argument("--without-learner", action="store_true")
    parser.add_argument("--page", help="write the table into this file, docs/large-data.md")
    args = parser.parse_args()
    servers, measured = [pair.split("=", 1) for pair in args.server], {}
    needed = args.gigabytes * 1e9 * (1.3 if args.without_learner else 2.4)
    if shutil.disk_usage(tempfile.gettempdir()).free < needed:
        sys.exit(f"{tempfile.gettempdir()} has less than {needed / 1e9:.0f} GB free: choose less data, or another TMPDIR")
    for name, path in servers:
        measured[name] = measure(args, name, path)
        words = " ".join(f"{figure} {value:.4g}" for figure, value in measured[name].items())
        print(f"{name}: {words}", file=sys.stderr, flush=True)
    lines = [[title, *(page.shown(measured[name][figure]) if figure in measured[name] else "" for name, _ in servers)]
             for figure, title in TITLES.items() if any(figure in measured[name] for name, _ in servers)]
    heading = page.dated(1, page.measured_commit(servers)) if args.page else ""
    page.write_table(args.page, "large_data", heading, page.markdown(["figure", *(name for name, _ in servers)], lines))


if __name__ == "__main__":
    main()
