#!/usr/bin/env python3
"""The figures that Mainstay is to reach, beside real etcd and beside what a bare responder and a bare log cost.

    interop/speed_targets.py --benchmark PATH --server etcd-3.6=PATH --server mainstay=target/release/mainstay \\
        --mainstay target/release/mainstay [--runs 5] [--only h2load-put,idle] [--tls] [--bare]

The first server is what the others are compared with. Each load has a fresh server, the servers take turns within each run,
and the table has the medians, with the goal of each figure and whether it is met. A ratio is the median of those of each run, whose
servers ran one right after the other: machines of a cloud change their speed within minutes. CPU is user and system time of the server's
process (of all three members, where there are three) for each request (event, renewal), from /proc. Loads are made by etcd's
`benchmark`, by h2load (Debian: nghttp2-client), and by `mainstay bench`, whose own cost leaves more of the machine to the servers.
With --results each measurement is appended to a file, as a line of JSON, with the version of the server; a later call with other loads,
other servers or --tls adds to it. With --page the tables of docs/benchmarks.md between `<!-- speed_targets [tls] [versions]: NAMES -->`
and `<!-- end -->` are written from that file, each with its date, the number of its runs and Mainstay's commit, which has to be one and the
same; tables some of whose loads are not in the file stay as they are. With --draw nothing is measured before.
With --tls clients come over TLS; the goals are those of plain connections all the same. Needs openssl for that.
With --bare there is a column of `mainstay bench responder`, which answers each request with the same bytes and does nothing: what it
costs there, protocol, network and kernel cost every server that takes these requests one by one. For puts it has an append to a file
and its sync besides, which a hundred puts share (one's own where there is one client; three files where there are three members);
for watches, nothing but the writes to sockets.
"""

import argparse
import datetime
import copy
import functools
import json
import os
import re
import resource
import shutil
import signal
import socket
import ssl
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time

import cluster_side_by_side
import json_cost
import page
from secured_clients import certificates
from security_cost import SecureServer
from side_by_side import frame, loads, measured, varint

KEY = b"side-by-side"
MILLION = 1_000_000
# Puts of many clients that share a sync, at a bare log: Mainstay has 80 to 180.
PUTS_A_SYNC = 100
# Bytes of an event of `mainstay bench watch` on the wire, with its frame.
EVENT_BYTES = 80


class Bare(SecureServer):
    """The server that does nothing."""

    def __init__(self, path, port, certificates, value_bytes):
        self.value_bytes = value_bytes
        super().__init__("bare", path, port, certificates)

    def start(self):
        command = [self.path, "bench", "responder", "--listen", f"127.0.0.1:{self.port}", "--val-size", str(self.value_bytes)]
        if self.certificates:
            command += ["--server-cert", f"{self.certificates}/server.crt", "--server-key", f"{self.certificates}/server.key"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=self.log, text=True)
        if not self.process.stdout.readline():
            sys.exit(f"the responder did not start; see {self.dir}/stderr")

    def fsyncs(self):
        return 0


class BareCluster:
    """As many servers that do nothing as a cluster has members."""

    name = "bare"

    def __init__(self, path, port, members, value_bytes):
        self.servers = [Bare(path, port + 2 * n, None, value_bytes) for n in range(members)]
        self.endpoints = [f"127.0.0.1:{server.port}" for server in self.servers]

    def cpu_s(self):
        return sum(server.cpu_s() for server in self.servers)

    def rss_mb(self):
        return sum(server.rss_mb() for server in self.servers)

    def fsyncs(self):
        return 0

    def alive(self):
        if any(server.process.poll() is not None for server in self.servers):
            sys.exit("a responder ended by itself")

    def stop(self):
        for server in self.servers:
            server.stop()

    def clean(self):
        for server in self.servers:
            server.clean()


class Load:
    """What the loads share: the programs, and the address at which each server is started."""

    def __init__(self, args, work):
        self.args, self.work = args, work
        self.endpoint, self.trust, self.certificates = f"127.0.0.1:{args.port}", None, None
        if args.tls:
            self.certificates = os.path.join(work, "certificates")
            os.mkdir(self.certificates)
            certificates(self.certificates, ["server", "client-root"], 10)
            self.trust = ssl.create_default_context(cafile=f"{self.certificates}/ca.crt")
            self.trust.set_alpn_protocols(["h2"])
        self.cases = {name: (total, command) for name, total, command in loads(args.benchmark, args.scale, work)}

    def server(self, name, path, members):
        """A fresh server, or cluster, with a key of 1 KiB."""
        if members > 1:
            cluster = cluster_side_by_side.Cluster(name, path, self.args.port, members, [])
            cluster_side_by_side.call(cluster, "Put", (1, KEY), (2, b"v" * 1024))
            return cluster
        server = SecureServer(name, path, self.args.port, self.certificates)
        self.call("etcdserverpb.KV/Put", (1, KEY), (2, b"v" * 1024))
        return server

    def bare(self, members, value_bytes):
        if members > 1:
            return BareCluster(self.args.mainstay, self.args.port, members, value_bytes)
        return Bare(self.args.mainstay, self.args.port, self.certificates, value_bytes)

    def url(self):
        return f"{'https' if self.certificates else 'http'}://{self.endpoint}"

    def call(self, method, *fields):
        """A unary call."""
        trust = ["--cacert", f"{self.certificates}/ca.crt"] if self.certificates else ["--http2-prior-knowledge"]
        body = frame(os.path.join(self.work, f"body-{threading.get_ident()}"), *fields)
        subprocess.run(["curl", "-sf", "-o", os.devnull, *trust, "-H", "content-type: application/grpc", "-H", "te: trailers",
                        "--data-binary", f"@{body}", f"{self.url()}/{method}"], check=True)

    def ctl(self):
        trust = [f"--cacert={self.certificates}/ca.crt"] if self.certificates else []
        return [self.args.mainstay, "ctl", f"--endpoints={self.url()}", *trust]

    def benchmark(self):
        trust = [f"--cacert={self.certificates}/ca.crt"] if self.certificates else []
        return [self.args.benchmark, f"--endpoints={self.url()}", *trust]

    def case(self, server, name):
        """One of the loads of side_by_side.py."""
        total, command = self.cases[name]
        words = command(self.endpoint)
        if self.certificates:
            words = [word.replace("http://", "https://") for word in words]
            if words[0] != "h2load":
                words[:2] = self.benchmark()
        return measured(server, total, words)

    def bench(self, *words, endpoint=None):
        """A load of `mainstay bench`, with what it read of the server at the port. Another endpoint is a plain one."""
        trust = [f"--cacert={self.certificates}/ca.crt"] if self.certificates and not endpoint else []
        command = [self.args.mainstay, "bench", f"--endpoints={endpoint or self.url()}", *trust, "--json=-", *words]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=900)
        if done.returncode:
            sys.exit(f"{' '.join(command)}:\n{done.stderr}")
        row = json.loads(done.stdout)["rows"][0]["median"]
        figures = {"rate": row["rate_per_s"]}
        figures |= {name: row["latency_ms"][name] for name in ("p50", "p99")}
        if row["server"]:
            figures["cpu_us"] = row["server"]["cpu_us_per_operation"]
        return figures


def with_log(measure):
    """A load of puts, of which the bare server's cost is that of a log, too, at each member."""
    @functools.wraps(measure)
    def measured_with_log(load, server):
        figures = measure(load, server)
        if isinstance(server, (Bare, BareCluster)):
            figures["cpu_us"] += bare_append(load, PUTS_A_SYNC)["cpu_us"] * getattr(measure, "members", 1)
        return figures

    return measured_with_log


@with_log
def h2load_put(load, server):
    return load.case(server, "put 1 KiB, h2load 100x10")


def h2load_range(load, server):
    return load.case(server, "range, h2load 100x10")


@with_log
def benchmark_put(load, server):
    return load.case(server, "put 1 KiB, 500 clients")


def benchmark_range(load, server):
    return load.case(server, "range l, 1000 clients")


ONE_CLIENT = ["--conns=1", "--clients=1"]


def one_put(load, server):
    if isinstance(server, Bare):
        figures = load.bench(*ONE_CLIENT, "range", KEY.decode(), "--total=20000")
        append = bare_append(load)
        return {figure: figures[figure] + append[figure] for figure in append}
    figures = load.bench(*ONE_CLIENT, "put", "--val-size=1024", "--total=3000")
    return figures | {"p50_of_bare": figures["p50"] / (bare_range_ms(load) + bare_append(load)["p50"])}


def one_range(load, server):
    figures = load.bench(*ONE_CLIENT, "range", KEY.decode(), "--total=20000")
    return figures if isinstance(server, Bare) else figures | {"p50_of_bare": figures["p50"] / bare_range_ms(load)}


def bare_range_ms(load):
    """The median of the same reads from a server that does nothing."""
    command = [load.args.mainstay, "bench", "responder", "--listen", "127.0.0.1:0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as responder:
        try:
            words = responder.stdout.readline().split()
            endpoint = next(word for word in words if word.startswith("127.0.0.1:"))
            return load.bench(*ONE_CLIENT, "range", KEY.decode(), "--total=20000", endpoint=endpoint)["p50"]
        finally:
            responder.terminate()


def bare_append(load, records=1):
    """An append of so many records of 1 KiB to a file that has its blocks, with fdatasync: its median in ms, and the processor time of
    a record."""
    times, record = [], os.urandom(1100 * records)
    appends, size = (2000, 16 << 20) if records == 1 else (500, 64 << 20)
    with tempfile.NamedTemporaryFile(dir=load.args.dir, prefix="bare-log-") as file:
        os.posix_fallocate(file.fileno(), 0, size)
        for at in range(0, size, 1 << 20):
            os.pwrite(file.fileno(), bytes(1 << 20), at)
        os.fsync(file.fileno())
        cpu = time.process_time()
        for n in range(appends):
            began = time.perf_counter()
            os.pwrite(file.fileno(), record, n * len(record))
            os.fdatasync(file.fileno())
            times.append(time.perf_counter() - began)
        cpu = time.process_time() - cpu
    return {"p50": statistics.median(times) * 1e3, "cpu_us": cpu / (appends * records) * 1e6}


def large_values(load, server):
    """Reads of one value of 1 MB by 1000 clients at once."""
    if not isinstance(server, Bare):
        load.call("etcdserverpb.KV/Put", (1, b"large"), (2, os.urandom(MILLION)))
    figures = load.bench("--conns=1000", "--clients=1000", "range", "large", "--total=4000")
    return figures | {"rss_mb": server.rss_mb()}


def many_connections(load, server):
    """Linearizable reads of 1000 connections with one call each at a time."""
    return load.bench("--conns=1000", "--clients=1000", "range", KEY.decode(), "--total=100000")


def fan_out(load, server):
    """A thousand events for each of a thousand watchers on a hundred connections."""
    if isinstance(server, Bare):
        return {"cpu_us": bare_fan_out()}
    cpu = server.cpu_s()
    load.bench("--conns=100", "watch", "--streams=100", "--watch-per-stream=10", "--put-total=1000")
    return {"cpu_us": (server.cpu_s() - cpu) / MILLION * 1e6}


def bare_fan_out():
    """Processor time for each event, in us, of one who only writes what a change costs at least: ten events at once to each of a hundred
    connections, of which another process reads all that comes."""
    connections, changes, events = 100, 1000, bytes(10 * EVENT_BYTES)
    with socket.create_server(("127.0.0.1", 0), backlog=2 * connections) as listener:
        reading = subprocess.Popen([sys.executable, "-c", READER, str(listener.getsockname()[1]), str(connections)])
        sockets = [listener.accept()[0] for _ in range(connections)]
    for each in sockets:
        each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    cpu = time.process_time()
    for _ in range(changes):
        for each in sockets:
            each.sendall(events)
    cpu = time.process_time() - cpu
    for each in sockets:
        each.close()
    reading.wait()
    return cpu / (connections * changes * 10) * 1e6


# Reads all that comes on so many connections to a port, until they are closed.
READER = """
import selectors, socket, sys
selector = selectors.DefaultSelector()
for _ in range(int(sys.argv[2])):
    selector.register(socket.create_connection(("127.0.0.1", int(sys.argv[1]))), selectors.EVENT_READ)
while selector.get_map():
    for key, _ in selector.select():
        if not key.fileobj.recv(65536):
            selector.unregister(key.fileobj)
"""


def renewals(load, server):
    return load.bench("--conns=100", "--clients=100", "lease-keepalive", "--total=200000")


class Connections:
    """Connections that stay, each with a message or two on streams that stay open."""

    SETTINGS = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"
    ACK = b"\0\0\0\4\1\0\0\0\0"

    def __init__(self, port, trust):
        self.port, self.trust, self.sockets = port, trust, []

    @staticmethod
    def _text(text):
        # As HPACK has lengths below 127.
        return bytes([len(text)]) + text.encode()

    def _frames(self, stream, method, message):
        """HEADERS with literal fields that no table remembers, and DATA, which leaves the stream open if more may follow."""
        fields = [(":method", "POST"), (":scheme", "http"), (":path", "/" + method), (":authority", "127.0.0.1"),
                  ("te", "trailers"), ("content-type", "application/grpc"), ("user-agent", "speed-targets")]
        block = b"".join(b"\0" + self._text(name) + self._text(value) for name, value in fields)
        body = b"\0" + struct.pack(">I", len(message)) + message
        end = 0 if method.rsplit("/", 1)[1] in ("Watch", "LeaseKeepAlive") else 1
        return b"".join(struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload
                        for kind, flags, payload in ((1, 4, block), (0, end, body)))

    def open(self, count, *streams):
        """`streams` has a method for each stream of a connection, and what gives its message for the number of the connection.
        Returns when each had an answer."""
        for _ in range(count):
            connection = socket.create_connection(("127.0.0.1", self.port))
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self.trust:
                connection = self.trust.wrap_socket(connection, server_hostname="127.0.0.1")
            self.sockets.append(connection)
            connection.sendall(self.SETTINGS + self.ACK)
            buffer = b""
            for at, (method, message_of) in enumerate(streams):
                connection.sendall(self._frames(2 * at + 1, method, message_of(len(self.sockets))))
                buffer = self._until_data(connection, buffer)

    @staticmethod
    def _until_data(connection, buffer):
        """Reads until a message came, and returns what came behind it."""
        while True:
            while len(buffer) >= 9 and len(buffer) >= (end := 9 + int.from_bytes(buffer[:3], "big")):
                kind, buffer = buffer[3], buffer[end:]
                if kind == 0:
                    return buffer
            data = connection.recv(65536)
            if not data:
                sys.exit("the server closed a connection that was to stay")
            buffer += data

    def close(self):
        for connection in self.sockets:
            connection.close()
        self.sockets = []


def message(*fields):
    """A message of protocol buffers: bytes are fields of bytes, numbers are integers."""
    out = b""
    for number, value in fields:
        if isinstance(value, int):
            out += bytes([number << 3]) + varint(value)
        else:
            out += bytes([number << 3 | 2]) + varint(len(value)) + value
    return out


def settled_rss_mb(server):
    """Memory once it no longer changes: servers give buffers back some seconds after their last use."""
    last, still = server.rss_mb(), 0
    while still < 5:
        time.sleep(1)
        now = server.rss_mb()
        still = still + 1 if abs(now - last) < 0.3 else 0
        last = now
    return last


def idle_with(load, server, *streams):
    connections, count = Connections(load.args.port, load.trust), load.args.connections
    try:
        connections.open(500, *streams)
        before = settled_rss_mb(server)
        connections.open(count, *streams)
        return {"kb_each": (settled_rss_mb(server) - before) * 1024 / count}
    finally:
        connections.close()


def idle(load, server):
    """Connections that made a call once."""
    return idle_with(load, server, ("etcdserverpb.KV/Range", lambda _: message((1, KEY))))


def idle_watch(load, server):
    """Connections with a lease, a watch, and a stream on which the lease was renewed."""
    return idle_with(load, server, ("etcdserverpb.Lease/LeaseGrant", lambda n: message((1, 3600), (2, n))),
                     ("etcdserverpb.Watch/Watch", lambda n: message((1, message((1, b"watched/%d" % n))))),
                     ("etcdserverpb.Lease/LeaseKeepAlive", lambda n: message((1, n))))


def paced(load, seconds=8):
    """The p99 of reads and of writes, in ms, both at held rates that leave most of the machine free, and both at once."""
    found = {}

    def run(name, *words):
        found[name] = load.bench("--conns=10", "--clients=50", *words, f"--duration={seconds}s")["p99"]

    writes = threading.Thread(target=run, args=("write", "put", "--val-size=256", "--rate=500"))
    writes.start()
    run("read", "range", KEY.decode(), "--rate=2000")
    writes.join()
    return found


def beside(load, alone, busy):
    """How much longer p99 is while `busy` is called five times a second, or as often as the server manages; and how often it was."""
    over, times = threading.Event(), 0

    def again():
        nonlocal times
        while not over.is_set():
            next_at = time.monotonic() + 0.2
            busy()
            times += 1
            over.wait(max(next_at - time.monotonic(), 0))

    other = threading.Thread(target=again)
    other.start()
    found = paced(load)
    over.set()
    other.join()
    figures = {f"{name}_p99": found[name] for name in found}
    return figures | {f"{name}_p99_of_alone": found[name] / alone[name] for name in found} | {"times": times}


def fill(load, keys, value_bytes, rounds=1):
    load.bench("--conns=10", "--clients=500", "put", f"--val-size={value_bytes}", "--sequential-keys",
               f"--key-space-size={keys}", f"--total={keys * rounds}")


def compared(load, server, prepare, busy_at):
    """Cheap reads and writes beside what `busy_at` gives for a server that was prepared; and, as the limit, beside the same at
    another server, with which this one shares nothing but the machine."""
    prepare(load)
    alone = paced(load)
    figures = beside(load, alone, busy_at(load))
    elsewhere = copy.copy(load)
    elsewhere.endpoint = f"127.0.0.1:{server.port + 10}"
    other = SecureServer(server.name, server.path, server.port + 10, server.certificates)
    prepare(elsewhere)
    limit = beside(load, alone, busy_at(elsewhere))
    other.stop()
    other.clean()
    ratios = {f"{name}_of_elsewhere": figures[name] / limit[name] for name in ("read_p99", "write_p99")}
    return figures | {f"{name}_elsewhere": limit[name] for name in ("read_p99", "write_p99", "times")} | ratios


def expensive_list(load, server):
    """While one client reads 20,000 keys of 1 KiB five times a second."""
    everything = (1, b"\0"), (2, b"\0")
    return compared(load, server, lambda at: fill(at, 20_000, 1024),
                    lambda at: lambda: at.call("etcdserverpb.KV/Range", *everything))


def maintenance(load, server):
    """While the history of 200,000 keys is compacted, hashed, and sent as a snapshot."""
    def busy_at(at):
        revision = 0

        def busy():
            nonlocal revision
            # In parts, so that it goes on all the time that is measured, and not beyond what was filled in.
            if revision < 600_000:
                revision += 10_000
                subprocess.run([*at.ctl(), "compact", str(revision), "--physical"], stdout=subprocess.DEVNULL, check=True)
            at.call("etcdserverpb.Maintenance/HashKV")
            at.call("etcdserverpb.Maintenance/Snapshot")

        return busy

    return compared(load, server, lambda at: fill(at, 200_000, 256, rounds=3), busy_at)


def heartbeats(load, server):
    """5,000 renewals a second of 4,000 connections, as many as come of 100,000 that renew every 20 seconds: the share of a core that
    they take."""
    figures = load.bench("--conns=4000", "--clients=4000", "lease-keepalive", "--rate=5000", "--total=50000")
    return {"core": figures["cpu_us"] * 5000 / 1e6, "p99": figures["p99"]}


def in_json(requests):
    """Requests to the JSON gateway over eight connections of HTTP/1.1."""
    def measure(load, server):
        json_cost.load(server.port, json_cost.PUTS, json_cost.KEYS, 1)
        total, cpu, began = 20_000, server.cpu_s(), time.monotonic()
        json_cost.load(server.port, requests, total, 8)
        return {"cpu_us": (server.cpu_s() - cpu) / total * 1e6, "rate": total / (time.monotonic() - began)}

    return measure


def three(name):
    """A load of cluster_side_by_side.py."""
    def measure(load, cluster):
        case = next(each for each in cluster_side_by_side.loads(load.args.scale) if each.name == name)
        rows = list(case.measure(load.args.benchmark, cluster).values())
        figures = {"cpu_us": rows[0]["cpu_ms_per_1000"], "rate": sum(row["rate"] for row in rows)}
        if len(rows) == 1:
            figures |= {figure: rows[0][figure] for figure in ("p50", "p99") if figure in rows[0]}
        return figures | {"rss_mb": rows[0]["rss_mb"]}

    measure.members = 3
    return measure


def million(load, server):
    """A million keys of 24 bytes with values of 256 bytes."""
    subprocess.run([*load.benchmark(), "--conns=100", "--clients=1000", *keys_of_24_bytes(MILLION)],
                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
    return restarted(server)


def five_million(load, server):
    """Five million of them, which etcd's `benchmark` would write for minutes."""
    load.bench("--conns=100", "--clients=1000", *keys_of_24_bytes(5 * MILLION))
    return restarted(server)


def keys_of_24_bytes(keys):
    """So many, as both load generators write them."""
    return ["put", f"--total={keys}", "--val-size=256", "--key-size=24", "--sequential-keys", f"--key-space-size={keys}"]


def restarted(server):
    """Memory after the load and after a restart, which kill -9 begins."""
    loaded = settled_rss_mb(server)
    server.stop(signal.SIGKILL)
    server.start()
    return {"rss_mb": loaded, "restart_s": server.ready_s, "rss_mb_restarted": settled_rss_mb(server)}


# Others are to feel this work no more than if another server on the machine did it.
BESIDE_GOALS = [("read_p99_of_elsewhere", "at most", 1.2), ("write_p99_of_elsewhere", "at most", 1.2)]

# Each load with its goals: a figure, what it is compared with, and the bound. "of": times the first server's, at most; "times": times
# the first server's, at least; "at most": as it is.
LOADS = {
    "h2load-put": (h2load_put, [("cpu_us", "of", 1 / 13), ("rate", "times", 8)]),
    "h2load-range": (h2load_range, [("cpu_us", "of", 1 / 18), ("rate", "times", 6)]),
    "benchmark-put": (benchmark_put, [("cpu_us", "of", 7 / 67.6), ("p99", "of", 0.4)]),
    "benchmark-range": (benchmark_range, [("cpu_us", "of", 3 / 38.6), ("p99", "of", 0.4)]),
    "one-put": (one_put, [("p50_of_bare", "at most", 1.3), ("cpu_us", "of", 65 / 250)]),
    "one-range": (one_range, [("p50_of_bare", "at most", 1.3)]),
    "large-values": (large_values, [("cpu_us", "of", 1 / 4), ("rss_mb", "at most", 200)]),
    "many-connections": (many_connections, [("cpu_us", "of", 1 / 5)]),
    "fan-out": (fan_out, [("cpu_us", "of", 0.8 / 6.9)]),
    "renewals": (renewals, [("cpu_us", "of", 3 / 28.5)]),
    "idle": (idle, [("kb_each", "at most", 2)]),
    "idle-watch": (idle_watch, [("kb_each", "at most", 3)]),
    "heartbeats": (heartbeats, [("core", "at most", 0.1)]),
    "list": (expensive_list, BESIDE_GOALS),
    "maintenance": (maintenance, BESIDE_GOALS),
    "three-put": (with_log(three("put 1 KiB, 500 clients")), [("cpu_us", "of", 14 / 143), ("rate", "times", 4)]),
    "three-range": (three("range l, 1000 clients"), [("cpu_us", "of", 5 / 41)]),
    "three-mixed": (three("80 % range l, 20 % put 1 KiB"), [("cpu_us", "of", 10 / 90)]),
    "three-serializable": (three("range s, 1000 clients"), []),
    "three-one-put": (three("put 1 KiB, one client"), []),
    "three-one-range": (three("range l, one client"), []),
    "json-put": (in_json(json_cost.PUTS), []),
    "json-range": (in_json(json_cost.RANGES), []),
    "million": (million, [("rss_mb", "at most", 160), ("rss_mb_restarted", "at most", 160), ("restart_s", "at most", 0.3)]),
    "five-million": (five_million, [("restart_s", "at most", 1)]),
}
# The loads of --bare, with the size of the value that it answers with.
BARE = {"h2load-put": 0, "h2load-range": 1024, "benchmark-put": 0, "benchmark-range": 1024, "large-values": MILLION,
        "many-connections": 1024, "renewals": 0, "idle": 1024, "idle-watch": 1024, "heartbeats": 0,
        "three-put": 0, "three-range": 1024, "one-put": 0, "one-range": 1024, "fan-out": 0}


def is_met(kind, bound, values, first):
    """Whether the figures of each run, and those of the first server, meet a goal."""
    if kind == "at most":
        return statistics.median(values) <= bound
    ratio = statistics.median(value / other for value, other in zip(values, first))
    return ratio <= bound if kind == "of" else ratio >= bound


# How docs/benchmarks.md calls loads and figures.
TITLES = {
    "h2load-put": "put 1 KiB, h2load 100 x 10", "h2load-range": "range 1 KiB, h2load 100 x 10",
    "benchmark-put": "put 1 KiB, etcd's `benchmark`, 500 clients", "benchmark-range": "range, etcd's `benchmark`, 1000 clients",
    "one-put": "put 1 KiB, one client", "one-range": "range, one client", "many-connections": "range, 1000 connections of one stream",
    "json-put": "put 256 B in JSON", "json-range": "range in JSON", "large-values": "a value of 1 MB, 1000 clients",
    "three-put": "three members, put 1 KiB, 500 clients", "three-range": "three members, range, 1000 clients",
    "three-mixed": "three members, 80 % range, 20 % put", "three-serializable": "three members, serializable range, 1000 clients",
    "three-one-put": "three members, put 1 KiB, one client", "three-one-range": "three members, range, one client",
    "fan-out": "watch fan-out, 1000 watchers, an event",
    "renewals": "lease renewals, 100 clients", "heartbeats": "5,000 renewals a second on 4,000 connections",
    "idle": "an idle connection", "idle-watch": "the same with lease, watch and renewals", "million": "a million keys x 256 B",
    "five-million": "five million keys x 256 B",
    "list": "reads and writes beside lists", "maintenance": "reads and writes beside maintenance",
}
FIGURES = {
    "cpu_us": "CPU us", "core": "share of a core", "rate": "rate /s", "p50": "p50 ms", "p50_of_bare": "p50, of bare", "p99": "p99 ms",
    "kb_each": "KB each", "rss_mb": "RSS MB", "rss_mb_restarted": "RSS MB, restarted", "restart_s": "restart s", "bytes": "bytes written",
    "fsyncs": "fsyncs", "read_p99": "read p99 ms", "read_p99_elsewhere": "the same, elsewhere",
    "read_p99_of_elsewhere": "read p99, of elsewhere", "read_p99_of_alone": "read p99, of alone", "write_p99": "write p99 ms",
    "write_p99_elsewhere": "the same, elsewhere", "write_p99_of_elsewhere": "write p99, of elsewhere", "write_p99_of_alone": "write p99, of alone",
    "times": "times in 8 s", "times_elsewhere": "the same, elsewhere",
}
# Those of the tables of other releases and of TLS.
MAIN_FIGURES = ("cpu_us", "core", "rate", "p99", "kb_each")
# Figures of which a ratio to the first server's says nothing.
WITHOUT_RATIO = {"p50_of_bare", "read_p99_of_alone", "write_p99_of_alone", "read_p99_of_elsewhere", "write_p99_of_elsewhere", "times",
                 "times_elsewhere"}
MARK = re.compile(r"<!-- (speed_targets( tls)?( versions)?: ([a-z0-9,-]+)) -->\n")


class Results:
    """Measurements, in the order in which they were made."""

    def __init__(self, path):
        self.path, self.rows = path, []
        if path and os.path.exists(path):
            with open(path, encoding="utf-8") as file:
                self.rows = [json.loads(line) for line in file]

    def add(self, row):
        self.rows.append(row)
        if self.path:
            with open(self.path, "a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")

    def of(self, name, tls):
        """Figures of a load by server and run. A run is a call of this program and a number."""
        found = {}
        for row in self.rows:
            if row["load"] == name and row["tls"] == tls:
                found.setdefault(row["server"], {})[row["run"]] = row["figures"]
        return found

    def commit_and_date(self, names, tls):
        rows = [row for row in self.rows if row["load"] in names and row["tls"] == tls]
        commits = {row["commit"] for row in rows if row["commit"]}
        if len(commits) != 1 or len({row["scale"] for row in rows}) != 1:
            sys.exit(f"{', '.join(names)}: measured of {len(commits)} builds of Mainstay ({', '.join(sorted(commits))}), or at several scales")
        return commits.pop(), max(row["date"] for row in rows)


def table_lines(results, names, tls, servers, title_of, figures=tuple(FIGURES)):
    """Rows of a table: a load, a figure, its median at each server, the ratio of the last server's to the first one's (the bare
    one apart), and the goal."""
    first, last = servers[0], "mainstay" if "mainstay" in servers else servers[-1]
    for name in names:
        runs, title = results.of(name, tls), title_of(name)
        goals = {figure: (kind, bound) for figure, kind, bound in LOADS[name][1]}
        for figure in [each for each in figures if any(each in run for run in runs[first].values())]:
            # A load of reads writes nothing.
            if figure in ("bytes", "fsyncs") and "put" not in name:
                continue
            of = {server: {run: row[figure] for run, row in runs.get(server, {}).items() if figure in row} for server in servers}
            cells = [page.shown(statistics.median(of[server].values())) if of[server] else "" for server in servers]
            # Of the runs that both were in.
            both = [run for run in of[first] if run in of[last] and of[first][run]]
            values = {server: [of[server][run] for run in both] for server in (first, last)}
            ratio = ""
            if both and figure not in WITHOUT_RATIO:
                ratio = f"{statistics.median(one / other for one, other in zip(values[last], values[first])):.3f}"
            goal = ""
            # A figure that is compared with a bound is judged by all runs, whichever the first server was in.
            kind, bound = goals.get(figure, (None, None))
            own = list(of[last].values()) if kind == "at most" else values[last]
            if kind and own:
                goal = f"{bound:.3g}: " + ("met" if is_met(kind, bound, own, values[first]) else "**missed**")
            yield [title, FIGURES[figure], *cells, ratio, goal]
            title = ""


def write_page(path, results):
    """Writes the tables of the page whose loads were all measured."""
    with open(path, encoding="utf-8") as file:
        text = file.read()
    for mark in MARK.finditer(text):
        tls, versions, names = bool(mark.group(2)), bool(mark.group(3)), mark.group(4).split(",")
        runs = [results.of(name, tls) for name in names]
        servers = max((list(each) for each in runs), key=len, default=[])
        if not versions:
            # Of the releases of etcd, the one that the goals are measured by.
            servers = [server for server in servers if server in ("etcd-3.6", "mainstay", "bare")]
        if len(servers) < (4 if versions else 2) or not all(set(servers) - {"bare"} <= set(each) for each in runs):
            continue
        if versions:
            servers = sorted(server for server in servers if server.startswith("etcd")) + ["mainstay"]
        build, date = results.commit_and_date(names, tls)
        lines = list(table_lines(results, names, tls, servers, TITLES.get, MAIN_FIGURES if tls or versions else tuple(FIGURES)))
        head = ["load", "figure", *servers, "ratio", "goal"]
        if versions:
            head, lines = head[:-2], [line[:-2] for line in lines]
        heading = page.dated(min(len(each["mainstay"]) for each in runs), build, date)
        text = page.replaced(text, mark.group(1), heading, page.markdown(head, lines))
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--benchmark", help="etcd's benchmark tool")
    parser.add_argument("--mainstay", help="whose `bench` makes loads")
    parser.add_argument("--server", action="append", default=[], metavar="NAME=PATH")
    parser.add_argument("--port", type=int, default=23790)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--scale", type=float, default=1.0, help="how many requests of etcd's `benchmark` and h2load, as a factor")
    parser.add_argument("--connections", type=int, default=5000, help="idle ones")
    parser.add_argument("--tls", action="store_true", help="clients come over TLS; not for three members")
    parser.add_argument("--bare", action="store_true", help="with a column of a server that does nothing, where it can answer")
    parser.add_argument("--dir", default=tempfile.gettempdir(), help="where the bare log is written: on the disk of the servers")
    parser.add_argument("--results", metavar="FILE", help="where measurements are kept")
    parser.add_argument("--page", metavar="FILE", help="the page whose tables are written from --results: docs/benchmarks.md")
    parser.add_argument("--draw", action="store_true", help="measure nothing, only write --page from --results")
    parser.add_argument("--only", help="some of: " + ",".join(LOADS))
    args = parser.parse_args()
    members = lambda name: getattr(LOADS[name][0], "members", 1)
    wanted = (args.only or ",".join(name for name in LOADS if not args.tls or members(name) == 1)).split(",")
    results = Results(args.results)
    if args.draw:
        write_page(args.page, results)
        return
    if not (args.benchmark and args.mainstay and args.server):
        parser.error("measuring needs --benchmark, --mainstay and --server")
    if unknown := set(wanted) - set(LOADS):
        parser.error(f"--only is of {', '.join(LOADS)}, not {', '.join(sorted(unknown))}")
    if args.tls and any(members(name) > 1 for name in wanted):
        parser.error("--tls is for one member")
    if any(name.startswith("h2load") for name in wanted) and not shutil.which("h2load"):
        parser.error("h2load is not installed (Debian: nghttp2-client)")
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    servers = [pair.split("=", 1) for pair in args.server]
    commits = {name: page.commit(path) for name, path in servers}
    began, generator = f"{datetime.datetime.now():%F %T}", page.commit(args.mainstay)
    has_bare = lambda name: args.bare and name in BARE
    measured = Results(None)
    with tempfile.TemporaryDirectory(prefix="speed-targets-") as work:
        load = Load(args, work)
        for run in range(args.runs):
            for name in wanted:
                for server_name, path in servers + [("bare", None)] * has_bare(name):
                    server = load.server(server_name, path, members(name)) if path else load.bare(members(name), BARE[name])
                    figures = LOADS[name][0](load, server)
                    server.stop()
                    server.clean()
                    row = {"date": str(datetime.date.today()), "run": f"{began}, {run + 1}", "load": name, "tls": args.tls,
                           "server": server_name, "commit": commits.get(server_name), "generator": generator, "scale": args.scale,
                           "figures": figures}
                    measured.add(row)
                    results.add(row)
                    words = " ".join(f"{figure} {value:.4g}" for figure, value in figures.items())
                    print(f"run {run + 1} {name:<16} {server_name:<10} {words}", file=sys.stderr, flush=True)
    if args.page:
        write_page(args.page, results)
    columns = [name for name, _ in servers] + ["bare"] * args.bare
    print(page.markdown(["load", "figure", *columns, "ratio", "goal"], table_lines(measured, wanted, args.tls, columns, lambda name: name)), end="")


if __name__ == "__main__":
    main()
