#!/usr/bin/env python3
"""What watches that are far behind cost everybody else: the latency of puts and of other watches, and memory.

    interop/lagging_watches.py --bench target/release/mainstay --server NAME=PATH [--server ...] [--runs 1] [--events 500000]
        [--watches 10,100,1000]

Fills a server with so many puts of 256 B. Then, for 8 seconds each, 500 puts a second and, on other connections, 10 watches of a
key that is put 200 times a second:

* alone;
* beside a watch from the first revision on, which is begun again each time it has everything, on a connection that takes all at once;
* beside the same at another server of the same kind, with which this one shares nothing but the machine.

Prints p99 of the puts, and p99 of the events of those watches, from the put's answer on; how long a watch took to have everything,
alone and beside the loads, and the processor time that it cost the server. Then as many watches as --watches says begin at the first
revision, each on a connection of its own: a third with a window of 64 KiB that is never opened again, a third with a window of 2 GiB
of which the client reads nothing, a third read at 16 KiB/s. Prints how much the resident memory grew in 10 seconds, and whether a
watch begun beside them has everything. Linux, Python 3.9+, Mainstay's `bench` as the load.
"""

import argparse
import json
import os
import resource
import selectors
import socket
import statistics
import struct
import subprocess
import sys
import threading
import time

import page
from side_by_side import Server
from speed_targets import Connections, message

VALUE_BYTES, KEYS, SECONDS = 256, 10_000, 8
PUTS_PER_S, WATCHED_PUTS_PER_S = 500, 200
SETTLE_S, SLOW_BYTES_PER_S = 10, 16 << 10
# How long a watch may take to have everything; then the table has this bound.
PATIENCE_S = 30
# A key that is put behind the history: a watch that has received it has everything.
LAST = b"the last of the history"
WINDOW_MAX = (1 << 31) - 1
# Growth at which no more watches are added: the machine has to survive.
GROWTH_MB_MAX = 6000


class Lagging(Connections):
    """Connections that each have a watch of everything from the first revision on."""

    def __init__(self, port, window):
        super().__init__(port, None)
        if window > 65_535:
            # SETTINGS_INITIAL_WINDOW_SIZE for streams, and WINDOW_UPDATE for the connection.
            self.SETTINGS = (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\6\4\0\0\0\0\0" + struct.pack(">HI", 4, window)
                             + b"\0\0\4\x08\0\0\0\0\0" + struct.pack(">I", window - 65_535))

    def begin(self, receive_buffer=None):
        """Another connection with its watch, which was answered."""
        create = message((1, b"\0"), (2, b"\0"), (3, 2))
        if receive_buffer is None:
            self.open(1, ("etcdserverpb.Watch/Watch", lambda _: message((1, create))))
            return self.sockets[-1]
        # A small buffer, so that what the client does not read is not simply in the kernel.
        connection = socket.socket()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        connection.connect(("127.0.0.1", self.port))
        self.sockets.append(connection)
        connection.sendall(self.SETTINGS + self.ACK + self._frames(1, "etcdserverpb.Watch/Watch", message((1, create))))
        return connection


def catch_up(port, events, over=None):
    """Seconds until a watch from the first revision on has received so many events and the last one; PATIENCE_S at most. None if
    that is not waited for."""
    began = time.monotonic()
    lagging = Lagging(port, WINDOW_MAX)
    try:
        connection = lagging.begin()
        connection.settimeout(PATIENCE_S)
        buffer, taken, before = bytearray(1 << 20), 0, b""
        while not (over and over.is_set()):
            if time.monotonic() - began > PATIENCE_S:
                return float(PATIENCE_S)
            try:
                count = connection.recv_into(buffer)
            except socket.timeout:
                return float(PATIENCE_S)
            if not count:
                sys.exit("the server closed the connection of a watch that catches up")
            taken += count
            # Nobody searches for what cannot have come yet, so that the client costs next to nothing.
            if taken >= events * VALUE_BYTES:
                if LAST in before + buffer[:count]:
                    return time.monotonic() - began
                before = bytes(buffer[max(count - len(LAST), 0):count])
        return None
    finally:
        lagging.close()


class CatchUps:
    """One watch after another, each from the first revision on, until it is stopped."""

    def __init__(self, server, events):
        self.server, self.events, self.took, self.over = server, events, [], threading.Event()
        self.thread = threading.Thread(target=self._run)

    def _run(self):
        while not self.over.is_set():
            if (took := catch_up(self.server.port, self.events, self.over)) is not None:
                self.took.append(took)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.over.set()
        self.thread.join()


def bench(args, server, *words):
    """The rows of a load of `mainstay bench`."""
    command = [args.bench, "bench", f"--endpoints=127.0.0.1:{server.port}", "--json=-", *words]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=900)
    if done.returncode:
        sys.exit(f"{' '.join(command)}:\n{done.stderr}")
    return [row["median"] for row in json.loads(done.stdout)["rows"]]


def filled(args, name, path, port):
    """A server with a history."""
    server = Server(name, path, port)
    bench(args, server, "--conns=10", "--clients=500", "put", f"--val-size={VALUE_BYTES}", f"--key-space-size={KEYS}",
          "--sequential-keys", f"--total={args.events}")
    put_last(args, server)
    return server


def put_last(args, server):
    subprocess.run([args.bench, "ctl", f"--endpoints=127.0.0.1:{server.port}", "put", LAST.decode(), "x"],
                   stdout=subprocess.DEVNULL, check=True)


def paced(args, server):
    """The p99 in ms of puts, and of events of watches that are not behind."""
    found = {}

    def watch():
        rows = bench(args, server, "--conns=10", "watch-latency", "--streams=10", "--watchers-per-stream=1",
                     f"--put-rate={WATCHED_PUTS_PER_S}", f"--put-total={WATCHED_PUTS_PER_S * SECONDS}")
        found["event"] = rows[1]["latency_ms"]["p99"]

    watching = threading.Thread(target=watch)
    watching.start()
    rows = bench(args, server, "--conns=10", "--clients=50", "put", f"--val-size={VALUE_BYTES}", f"--key-space-size={KEYS}",
                 f"--rate={PUTS_PER_S}", f"--total={PUTS_PER_S * SECONDS}")
    watching.join()
    return found | {"put": rows[0]["latency_ms"]["p99"]}


def latencies(args, server, other):
    figures = {}
    cpu = server.cpu_s()
    figures["catch_up_s"] = catch_up(server.port, args.events)
    figures["catch_up_cpu_s"] = server.cpu_s() - cpu
    for name, load in paced(args, server).items():
        figures[f"{name}_alone"] = load
    for where, asked in (("beside", server), ("elsewhere", other)):
        with CatchUps(asked, args.events) as busy:
            for name, load in paced(args, server).items():
                figures[f"{name}_{where}"] = load
        figures[f"times_{where}"] = len(busy.took)
        if busy.took:
            figures[f"catch_up_s_{where}"] = statistics.median(busy.took)
    for name in ("put", "event"):
        figures[f"{name}_of_alone"] = figures[f"{name}_beside"] / figures[f"{name}_alone"]
        figures[f"{name}_of_elsewhere"] = figures[f"{name}_beside"] / figures[f"{name}_elsewhere"]
    return figures


def read_slowly(connections, until):
    """Reads each of the connections at SLOW_BYTES_PER_S."""
    selector, share = selectors.DefaultSelector(), SLOW_BYTES_PER_S // 4
    for connection in connections:
        connection.setblocking(False)
        selector.register(connection, selectors.EVENT_READ)
    while time.monotonic() < until:
        next_at = time.monotonic() + 0.25
        for key, _ in selector.select(0):
            key.fileobj.recv(share)
        time.sleep(max(next_at - time.monotonic(), 0))
    selector.close()


def growth(args, server, watches):
    """Growth of the resident memory in MB, for so many watches that are behind; and how long one beside them takes."""
    shut, unread, slow = Lagging(server.port, 65_535), Lagging(server.port, WINDOW_MAX), Lagging(server.port, WINDOW_MAX)
    kinds = [shut, unread, slow]
    before = most = server.rss_mb()
    try:
        begun = 0
        while begun < watches and most - before < args.growth_max:
            kinds[begun % 3].begin(receive_buffer=64 << 10)
            begun += 1
            most = max(most, server.rss_mb())
        until = time.monotonic() + SETTLE_S
        reading = threading.Thread(target=read_slowly, args=(slow.sockets, until))
        reading.start()
        while time.monotonic() < until and most - before < args.growth_max:
            time.sleep(0.2)
            most = max(most, server.rss_mb())
        reading.join()
        if most - before >= args.growth_max:
            return f"> {args.growth_max:,} with {begun}", "-"
        return most - before, catch_up(server.port, args.events)
    finally:
        for kind in kinds:
            kind.close()


def measure(args, name, path):
    server, other = filled(args, name, path, args.port), filled(args, name, path, args.port + 10)
    figures = latencies(args, server, other)
    other.stop()
    other.clean()
    for watches in args.watches:
        # A fresh process, so that no watch finds memory that an earlier one has left.
        server.stop()
        server.start()
        grown, took = growth(args, server, watches)
        figures[f"growth_{watches}"], figures[f"beside_{watches}"] = grown, took
    server.stop()
    server.clean()
    return figures


TITLES = {
    "put_alone": "put p99 ms, alone", "put_beside": "beside a watch that catches up", "put_elsewhere": "the same, elsewhere",
    "put_of_alone": "beside, of alone", "put_of_elsewhere": "beside, of elsewhere",
    "event_alone": "event p99 ms, alone", "event_beside": "beside a watch that catches up", "event_elsewhere": "the same, elsewhere",
    "event_of_alone": "beside, of alone", "event_of_elsewhere": "beside, of elsewhere",
    "catch_up_s": "catching up alone, s", "catch_up_cpu_s": "the same, CPU s of the server",
    "catch_up_s_beside": "catching up beside these puts and events, s", "times_beside": f"times in {SECONDS} s",
    "times_elsewhere": "the same, elsewhere",
}


def is_time(figure):
    """Whether a figure is the time that a watch takes to have everything."""
    return figure.startswith(("catch_up_s", "beside_"))


def title(figure):
    if figure.startswith("growth_"):
        return f"growth of {figure[7:]} lagging watches, MB"
    if figure.startswith("beside_"):
        return f"catching up beside {figure[7:]} lagging watches, s"
    return TITLES[figure]


def cell(values, bounded=False):
    if any(isinstance(value, str) for value in values):
        return next(value for value in values if isinstance(value, str))
    shown = page.shown(statistics.median(values)) if values else ""
    return f"> {shown}" if values and bounded and statistics.median(values) >= PATIENCE_S else shown


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bench", required=True, metavar="MAINSTAY", help="whose bench makes the loads")
    parser.add_argument("--server", action="append", required=True, metavar="NAME=PATH")
    parser.add_argument("--port", type=int, default=23790)
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--events", type=int, default=500_000, help="how far behind a watch begins")
    parser.add_argument("--watches", type=lambda text: [int(word) for word in text.split(",") if word], default=[10, 100, 1000],
                        help="numbers of lagging watches whose memory is measured")
    parser.add_argument("--growth-max", type=int, default=GROWTH_MB_MAX, help="MB of growth at which no more watches are begun")
    parser.add_argument("--page", help="write the table into this file, docs/benchmarks.md")
    args = parser.parse_args()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    servers, measured = [pair.split("=", 1) for pair in args.server], {}
    for run in range(args.runs):
        for name, path in servers:
            figures = measure(args, name, path)
            words = " ".join(f"{figure} {value if isinstance(value, str) else format(value, '.4g')}" for figure, value in figures.items())
            print(f"run {run + 1} {name}: {words}", file=sys.stderr, flush=True)
            for figure, value in figures.items():
                measured.setdefault(figure, {}).setdefault(name, []).append(value)
    order = [*TITLES, *(f"{kind}_{watches}" for kind in ("growth", "beside") for watches in args.watches)]
    lines = [[title(figure), *(cell(measured[figure].get(name, []), is_time(figure)) for name, _ in servers)]
             for figure in order if figure in measured]
    heading = page.dated(args.runs, page.measured_commit(servers)) if args.page else ""
    page.write_table(args.page, "lagging_watches", heading, page.markdown(["figure", *(name for name, _ in servers)], lines))


if __name__ == "__main__":
    main()
