#!/usr/bin/env python3
"""Plants problems in running servers, and checks that `mainstay doctor --json` names each of them.

Starts all servers itself, on loopback ports the system picks and in a temporary directory that it removes. Every case runs
against Mainstay, real etcd, or both, as far as they are given; a healthy cluster of each has to give no finding at all.
Only Python's standard library is needed; `strace` for the cases of slow disks, `openssl` for the certificate.

    doctor_planted.py --doctor "mainstay doctor" --mainstay PATH --etcd PATH [--etcd-older PATH] [--only NAME,...] [--list]

Prints `N passed, M failed` as its last line; exits 0 when nothing failed, 1 when something did, 2 when nothing could run.
"""

import argparse
import http.server
import json
import os
import resource
import shlex
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from email.utils import formatdate

from ports import free_port

DEADLINE = 30.0


# gRPC, as little of it as load needs.

def varint(value):
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def field(number, value):
    """A field of a protobuf message: an int, text, or bytes."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    if isinstance(value, str):
        value = value.encode()
    return varint(number << 3 | 2) + varint(len(value)) + value


def read_fields(message):
    """Number and value of each field."""
    at = 0

    def read_varint():
        nonlocal at
        value = shift = 0
        while True:
            byte = message[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while at < len(message):
        key = read_varint()
        if key & 7 == 0:
            yield key >> 3, read_varint()
        elif key & 7 == 2:
            length = read_varint()
            at += length
            yield key >> 3, message[at - length:at]
        else:
            raise ValueError("a kind of field that etcd does not use")


class Grpc:
    """One connection. Calls may be started one after the other and waited for later; heads are sent, never read."""

    def __init__(self, port, timeout=DEADLINE, source="127.0.0.1"):
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=timeout, source_address=(source, 0))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.buffer = b""
        self.next_stream = 1
        self.window = 65535
        self.stream_window = 65535
        self.windows = {}
        self.bodies = {}
        self.ended = set()
        self.socket.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + self.frame(4, 0, 0, struct.pack(">HI", 4, 2**31 - 1))
                            + self.frame(8, 0, 0, struct.pack(">I", 2**30)))

    @staticmethod
    def frame(kind, flags, stream, payload):
        return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload

    @staticmethod
    def header(name, value):
        def text(data):
            data = data.encode()
            if len(data) < 127:
                return bytes([len(data)]) + data
            return b"\x7f" + varint(len(data) - 127) + data
        return b"\x00" + text(name) + text(value)

    def start(self, path, message=b"", end=True, token=None):
        stream = self.next_stream
        self.next_stream += 2
        head = (self.header(":method", "POST") + self.header(":scheme", "http") + self.header(":path", path)
                + self.header(":authority", "127.0.0.1") + self.header("content-type", "application/grpc")
                + self.header("te", "trailers"))
        if token:
            head += self.header("token", token)
        self.bodies[stream] = b""
        self.windows[stream] = self.stream_window
        self.socket.sendall(self.frame(1, 4, stream, head))
        self.send(stream, message, end)
        return stream

    def send(self, stream, message, end=False):
        rest = b"\x00" + len(message).to_bytes(4, "big") + message
        while rest:
            room = min(self.window, self.windows.get(stream, 0), 16384)
            if room <= 0:
                if stream in self.ended:
                    return
                self.read()
                continue
            part, rest = rest[:room], rest[room:]
            self.window -= len(part)
            self.windows[stream] -= len(part)
            self.socket.sendall(self.frame(0, 1 if end and not rest else 0, stream, part))

    def exactly(self, count):
        while len(self.buffer) < count:
            came = self.socket.recv(1 << 18)
            if not came:
                raise ConnectionError("the server hung up")
            self.buffer += came
        out, self.buffer = self.buffer[:count], self.buffer[count:]
        return out

    def read(self):
        """Takes one frame."""
        head = self.exactly(9)
        payload = self.exactly(int.from_bytes(head[:3], "big"))
        kind, flags, stream = head[3], head[4], int.from_bytes(head[5:], "big") & 0x7FFFFFFF
        if kind == 0:
            self.bodies[stream] = self.bodies.get(stream, b"") + payload
            if payload:
                self.socket.sendall(self.frame(8, 0, 0, struct.pack(">I", len(payload))))
        elif kind == 3:
            self.ended.add(stream)
        elif kind == 4 and not flags & 1:
            for at in range(0, len(payload), 6):
                number, value = struct.unpack(">HI", payload[at:at + 6])
                if number == 4:
                    for known in self.windows:
                        self.windows[known] += value - self.stream_window
                    self.stream_window = value
            self.socket.sendall(self.frame(4, 1, 0, b""))
        elif kind == 6 and not flags & 1:
            self.socket.sendall(self.frame(6, 1, 0, payload))
        elif kind == 7:
            raise ConnectionError("the server says goodbye")
        elif kind == 8:
            more = int.from_bytes(payload, "big") & 0x7FFFFFFF
            if stream == 0:
                self.window += more
            elif stream in self.windows:
                self.windows[stream] += more
        if kind in (0, 1) and flags & 1:
            self.ended.add(stream)

    def wait(self, stream):
        """The answer's message, or None when the call failed."""
        while stream not in self.ended:
            self.read()
        self.ended.discard(stream)
        self.windows.pop(stream, None)
        body = self.bodies.pop(stream, b"")
        return body[5:] if len(body) >= 5 else None

    def wait_for_messages(self, stream, count):
        at = found = 0
        while found < count and stream not in self.ended:
            body = self.bodies[stream]
            end = at + 5 + int.from_bytes(body[at + 1:at + 5], "big")
            if len(body) >= at + 5 and len(body) >= end:
                at, found = end, found + 1
            else:
                self.read()

    def call(self, path, message=b"", token=None):
        return self.wait(self.start(path, message, token=token))

    def close(self):
        self.socket.close()


PUT = "/etcdserverpb.KV/Put"
RANGE = "/etcdserverpb.KV/Range"
EVERYTHING = field(1, b"\0") + field(2, b"\0")


def put(key, value):
    return field(1, key) + field(2, value)


def put_many(port, count, key, value=b"v", in_flight=64):
    """Puts; `key` and `value` may be functions of the number. How many were acknowledged."""
    grpc = Grpc(port)
    waiting, done = [], 0
    for number in range(count):
        one = put(key(number) if callable(key) else key, value(number) if callable(value) else value)
        waiting.append(grpc.start(PUT, one))
        if len(waiting) >= in_flight:
            done += grpc.wait(waiting.pop(0)) is not None
    for stream in waiting:
        done += grpc.wait(stream) is not None
    grpc.close()
    return done


class Load:
    """Something done again and again in a thread, until the end of a `with`."""

    def __init__(self, once, pause=0.0):
        self.once, self.pause, self.stopping = once, pause, threading.Event()
        self.rounds, self.error = 0, None
        self.thread = threading.Thread(target=self.run, daemon=True)

    def run(self):
        while not self.stopping.is_set():
            try:
                self.once()
                self.rounds += 1
            except Exception as error:  # pylint: disable=broad-except
                # Servers are stopped under their clients here.
                self.error = error
                self.stopping.wait(0.1)
            if self.pause:
                self.stopping.wait(self.pause)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.stopping.set()
        self.thread.join(DEADLINE)


def putting(port, pause=0.0, count=50, size=100):
    """A load of puts, on one connection as long as it lives."""
    kept = {}

    def once():
        if "grpc" not in kept:
            kept["grpc"] = Grpc(port, timeout=5.0)
        grpc = kept["grpc"]
        try:
            streams = [grpc.start(PUT, put(f"load/{number}", b"x" * size)) for number in range(count)]
            for stream in streams:
                grpc.wait(stream)
        except Exception:
            kept.pop("grpc").close()
            raise
    return Load(once, pause)


# Servers.

def until(what, condition, seconds=DEADLINE):
    end = time.monotonic() + seconds
    while True:
        try:
            found = condition()
        except (OSError, ValueError, ConnectionError):
            found = None
        if found:
            return found
        if time.monotonic() > end:
            raise TimeoutError(f"{what} within {seconds:.0f} s")
        time.sleep(0.05)


def page(port, path):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
        return answer.read().decode()


class Proxy:
    """A TCP proxy that delivers late."""

    def __init__(self, target, delay):
        self.target, self.delay = target, delay
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                client, _ = self.listener.accept()
                server = socket.create_connection(("127.0.0.1", self.target))
            except OSError:
                if self.listener.fileno() < 0:
                    return
                continue
            for source, sink in ((client, server), (server, client)):
                self.pump(source, sink)

    def pump(self, source, sink):
        pending, arrived = [], threading.Condition()

        def receive():
            while True:
                try:
                    data = source.recv(1 << 16)
                except OSError:
                    data = b""
                with arrived:
                    pending.append((time.monotonic() + self.delay, data))
                    arrived.notify()
                if not data:
                    return

        def deliver():
            while True:
                with arrived:
                    while not pending:
                        arrived.wait()
                    due, data = pending.pop(0)
                time.sleep(max(0.0, due - time.monotonic()))
                try:
                    if not data:
                        sink.shutdown(socket.SHUT_WR)
                        return
                    sink.sendall(data)
                except OSError:
                    return

        for run in (receive, deliver):
            threading.Thread(target=run, daemon=True).start()

    def close(self):
        self.listener.close()


class Member:
    def __init__(self, binary, name, directory):
        self.binary, self.name = binary, name
        self.data = os.path.join(directory, name)
        self.log = os.path.join(directory, f"{name}.log")
        self.client, self.peer = free_port(), free_port()
        self.peer_url = f"http://127.0.0.1:{self.peer}"
        self.process = None

    def start(self, cluster, flags=(), state="new", scheme="http", limit=None):
        urls = f"{scheme}://127.0.0.1:{self.client}"
        command = [self.binary, "--name", self.name, "--data-dir", self.data, "--listen-client-urls", urls,
                   "--advertise-client-urls", urls, "--listen-peer-urls", f"http://127.0.0.1:{self.peer}",
                   "--initial-advertise-peer-urls", self.peer_url, "--initial-cluster", cluster,
                   "--initial-cluster-state", state, *flags]

        def bounded():
            if limit:
                resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))

        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, preexec_fn=bounded)

    def healthy(self):
        if self.process.poll() is not None:
            with open(self.log, encoding="utf-8", errors="replace") as log:
                last = log.read()[-2000:]
            raise RuntimeError(f"{self.name} ended with {self.process.returncode}; its log ends with: {last}")
        return "true" in page(self.client, "/health")

    def signal(self, number):
        self.process.send_signal(number)

    def metric(self, name):
        for line in page(self.client, "/metrics").splitlines():
            if line.startswith(name + " "):
                return float(line.split()[-1])
        return None

    def stop(self):
        if self.process and self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
            self.process.wait()


class Cluster:
    """Members of one cluster, in a directory of their own."""

    def __init__(self, bench, binaries, flags=(), delay=None, limit=None):
        self.bench, self.flags, self.limit = bench, flags, limit
        self.directory = tempfile.mkdtemp(dir=bench.directory)
        self.members = [Member(binary, f"m{at}", self.directory) for at, binary in enumerate(binaries, 1)]
        self.proxies = []
        if delay is not None:
            # Everything that is said to the last member comes late.
            last = self.members[-1]
            self.proxies.append(Proxy(last.peer, delay))
            last.peer_url = f"http://127.0.0.1:{self.proxies[0].port}"

    def __enter__(self):
        for member in self.members:
            member.start(self.text(), self.flags, limit=self.limit)
        try:
            for member in self.members:
                until(f"{member.name} healthy", member.healthy)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for member in self.members:
            member.stop()
        for proxy in self.proxies:
            proxy.close()
        shutil.rmtree(self.directory, ignore_errors=True)

    def text(self):
        return ",".join(f"{member.name}={member.peer_url}" for member in self.members)

    def endpoints(self):
        return ",".join(f"127.0.0.1:{member.client}" for member in self.members)

    def leader(self):
        return until("a leader", lambda: next(
            (member for member in self.members if member.metric("etcd_server_is_leader") == 1), None))

    def followers(self):
        leader = self.leader()
        return [member for member in self.members if member is not leader]


EXIT_CODES = {"healthy": 0, "errors": 5, "warnings": 6, "unknown": 7}


class Bench:
    """What the cases have to work with."""

    def __init__(self, options, directory):
        self.options, self.directory = options, directory

    def doctor(self, endpoints, *flags, seconds=3):
        command = shlex.split(self.options.doctor) + ["--json", f"--for={seconds}s", f"--endpoints={endpoints}", *flags]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        if done.returncode not in EXIT_CODES.values():
            raise RuntimeError(f"doctor ended with {done.returncode}: {done.stderr.strip()}")
        report = json.loads(done.stdout)
        severities = {finding["severity"] for finding in report["findings"]}
        is_blind = any(blind["failed"] for blind in report["not_looked_at"])
        verdict = ("errors" if "error" in severities else "unknown" if is_blind
                   else "warnings" if severities else "healthy")
        if (done.returncode, report["verdict"]) != (EXIT_CODES[verdict], verdict):
            raise RuntimeError(f"doctor ended with {done.returncode}, and found {severities or 'nothing'}")
        return report


class Delayed:
    """A process whose syncs take longer, by strace."""

    def __init__(self, member, micros):
        self.member, self.micros, self.strace = member, micros, None

    def __enter__(self):
        self.strace = subprocess.Popen(
            ["strace", "-f", "-q", "-o", "/dev/null", "-e", "trace=fsync,fdatasync",
             "-e", f"inject=fsync,fdatasync:delay_exit={self.micros}", "-p", str(self.member.process.pid)],
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        status = f"/proc/{self.member.process.pid}/status"

        def traced():
            if self.strace.poll() is not None:
                raise RuntimeError("strace: " + self.strace.stderr.read().decode().strip())
            with open(status, encoding="ascii") as lines:
                return any(line.startswith("TracerPid:") and line.split()[1] != "0" for line in lines)
        until("strace attached", traced)
        return self

    def __exit__(self, *_):
        self.strace.send_signal(signal.SIGINT)
        try:
            self.strace.wait(10)
        except subprocess.TimeoutExpired:
            self.strace.kill()
            self.strace.wait()


# The cases: each plants one problem and gives what the doctor says.

CASES = []

# What Mainstay's own page lets the doctor say beside the name.
SAID = {"expensive-ranges": "127.0.0.1 made", "large-values": "127.0.0.1 put", "fsync-stall": "stalled",
        "crowded-connections": "127.0.0.1: "}


def case(name, servers="both", needs=()):
    def register(run):
        CASES.append((name, servers, needs, run))
        return run
    return register


@case("healthy")
def healthy(bench, binary):
    with Cluster(bench, [binary] * 3) as cluster:
        loads = [putting(member.client, pause=0.2, count=5) for member in cluster.members]
        with loads[0], loads[1], loads[2]:
            return bench.doctor(cluster.endpoints())


@case("quota-near")
def quota_near(bench, binary):
    with Cluster(bench, [binary], ["--quota-backend-bytes=20000000"]) as cluster:
        member = cluster.members[0]

        # Etcd's quota counts its file, Mainstay's what is in use.
        is_ours = member.metric("mainstay_processors") is not None
        counted = "etcd_mvcc_db_total_size_in_use_in_bytes" if is_ours else "etcd_mvcc_db_total_size_in_bytes"

        def size():
            return member.metric(counted)

        number = 0
        while size() < 16_400_000 and number < 400:
            put_many(member.client, 1, f"key/{number}", os.urandom(60_000))
            number += 1
        return bench.doctor(cluster.endpoints())


@case("alarm-nospace")
def alarm_nospace(bench, binary):
    with Cluster(bench, [binary], ["--quota-backend-bytes=2000000"]) as cluster:
        port = cluster.members[0].client
        until("a refused put", lambda: put_many(port, 10, lambda _: os.urandom(8).hex(), os.urandom(50_000)) < 10)
        return bench.doctor(cluster.endpoints())


@case("missing-compaction")
def missing_compaction(bench, binary):
    with Cluster(bench, [binary]) as cluster:
        put_many(cluster.members[0].client, 3000, "the one key")
        return bench.doctor(cluster.endpoints(), "--limit-revisions=2500")


@case("large-values")
def large_values(bench, binary):
    with Cluster(bench, [binary]) as cluster:
        put_many(cluster.members[0].client, 3, lambda number: f"blob/{number}", os.urandom(1_000_000), in_flight=1)
        return bench.doctor(cluster.endpoints())


@case("expensive-ranges")
def expensive_ranges(bench, binary):
    with Cluster(bench, [binary]) as cluster:
        port = cluster.members[0].client
        put_many(port, 10_000, lambda number: f"key/{number:06}", b"x" * 200)
        grpc = Grpc(port)
        with Load(lambda: grpc.call(RANGE, EVERYTHING)):
            return bench.doctor(cluster.endpoints(), "--sample=0")


@case("leader-changes")
def leader_changes(bench, binary):
    with Cluster(bench, [binary] * 3) as cluster:
        leader = cluster.leader()

        def pause():
            time.sleep(1.5)
            leader.signal(signal.SIGSTOP)
            time.sleep(3)
            leader.signal(signal.SIGCONT)
        thread = threading.Thread(target=pause)
        thread.start()
        report = bench.doctor(cluster.endpoints(), seconds=8)
        thread.join()
        return report


@case("slow-disk", needs=["strace"])
def slow_disk(bench, binary):
    with Cluster(bench, [binary]) as cluster, Delayed(cluster.members[0], 30_000), \
            putting(cluster.members[0].client, count=1):
        return bench.doctor(cluster.endpoints(), seconds=4)


@case("fsync-stall", needs=["strace"])
def fsync_stall(bench, binary):
    with Cluster(bench, [binary]) as cluster, Delayed(cluster.members[0], 2_100_000), \
            putting(cluster.members[0].client, count=1):
        return bench.doctor(cluster.endpoints(), seconds=8)


@case("slow-peer-link")
def slow_peer_link(bench, binary):
    flags = ["--heartbeat-interval=500", "--election-timeout=5000"]
    with Cluster(bench, [binary] * 3, flags, delay=0.1) as cluster:
        # Probes go out every few seconds; etcd looks at them after 5 s and then every half a minute, and before 3.7 at a mean that
        # begins at nothing.
        said = subprocess.run([binary, "--version"], capture_output=True, text=True, check=False).stdout
        return bench.doctor(cluster.endpoints(), seconds=70 if "etcd Version: 3.6" in said else 14)


@case("unreachable")
def unreachable(bench, binary):
    with Cluster(bench, [binary] * 3) as cluster:
        cluster.followers()[0].stop()
        alive = next(member for member in cluster.members if member.process.poll() is None)
        return bench.doctor(f"127.0.0.1:{alive.client}")


@case("no-leader")
def no_leader(bench, binary):
    with Cluster(bench, [binary] * 3) as cluster:
        left = cluster.followers()[0]
        for member in cluster.members:
            if member is not left:
                member.stop()
        until("the leader missed", lambda: left.metric("etcd_server_has_leader") == 0)
        return bench.doctor(f"127.0.0.1:{left.client}")


@case("different-clusters")
def different_clusters(bench, binary):
    with Cluster(bench, [binary]) as one, Cluster(bench, [binary]) as other:
        return bench.doctor(f"{one.endpoints()},{other.endpoints()}")


@case("unbalanced-clients")
def unbalanced(bench, binary):
    with Cluster(bench, [binary] * 3) as cluster, putting(cluster.members[0].client, pause=0.1):
        return bench.doctor(cluster.endpoints())


def waiting_requests(member):
    """Unary requests begun and not ended."""
    total = 0
    for line in page(member.client, "/metrics").splitlines():
        if 'grpc_type="unary"' in line and line.startswith(("grpc_server_started_total", "grpc_server_handled_total")):
            total += float(line.split()[-1]) * (1 if "_started_" in line else -1)
    return total


@case("overloaded")
def overloaded(bench, binary):
    """A leader without a majority: what clients propose waits."""
    # It stays leader for that long without the others; the first election takes as long at worst, within DEADLINE.
    with Cluster(bench, [binary] * 3, ["--election-timeout=12000", "--heartbeat-interval=1000"]) as cluster:
        leader = cluster.leader()
        for follower in cluster.followers():
            follower.signal(signal.SIGSTOP)
        grpc = Grpc(leader.client)
        for number in range(900):
            grpc.start(PUT, put(f"waits/{number}", b"v"))
        # Until the server has taken them all, whatever it calls the queue.
        until("a queue", lambda: waiting_requests(leader) >= 500)
        return bench.doctor(f"127.0.0.1:{leader.client}", "--cluster=false")


@case("slow-reads")
def slow_reads(bench, binary):
    with Cluster(bench, [binary] * 3) as cluster:
        leader = cluster.leader()

        def pause():
            time.sleep(1)
            for follower in followers:
                follower.signal(signal.SIGSTOP)
            time.sleep(9)
            for follower in followers:
                follower.signal(signal.SIGCONT)
        followers = cluster.followers()
        thread = threading.Thread(target=pause)
        thread.start()
        kept = []

        def read():
            if not kept:
                kept.append(Grpc(leader.client, timeout=60))
            kept[0].call(RANGE, field(1, "key"))
        with Load(read, pause=0.05):
            report = bench.doctor(f"127.0.0.1:{leader.client}", "--cluster=false", seconds=13)
        thread.join()
        return report


@case("member-behind", needs=["strace"])
def member_behind(bench, binary):
    with Cluster(bench, [binary] * 3) as cluster:
        leader, last = cluster.leader(), cluster.followers()[-1]
        with Delayed(last, 1_000_000), putting(leader.client):
            until("entries", lambda: leader.metric("etcd_server_proposals_committed_total") > 500)

            def looked():
                # An etcd whose disk is that slow does not always answer in time.
                report = bench.doctor(cluster.endpoints(), "--limit-behind=50")
                return not any(member["about"].startswith("no status") for member in report["members"]) and report
            return until("a look at all members", looked)


@case("crowded-connections")
def crowded(bench, binary):
    with Cluster(bench, [binary]) as cluster:
        grpc = Grpc(cluster.members[0].client)
        create = field(1, field(1, "watched"))
        stream = grpc.start("/etcdserverpb.Watch/Watch", create, end=False)
        # Connections of the doctor itself come from the same address.
        for number in range(20_000):
            grpc.send(stream, create)
            if number % 500 == 0:
                grpc.wait_for_messages(stream, number)
        grpc.wait_for_messages(stream, 20_001)
        return bench.doctor(cluster.endpoints())


@case("file-descriptors")
def descriptors(bench, binary):
    # Servers keep some for their files, and take fewer connections than there are descriptors; Mainstay takes at most three
    # quarters of them from one address.
    with Cluster(bench, [binary], limit=1000) as cluster:
        member = cluster.members[0]
        held = [Grpc(member.client, source=f"127.0.0.{1 + number % 2}") for number in range(740)]
        until("the connections", lambda: member.metric("process_open_fds") >= 740)
        report = bench.doctor(cluster.endpoints(), "--limit-descriptors=0.7")
        for grpc in held:
            grpc.close()
        return report


@case("clock-drift")
def clock_drift(bench, binary):
    with Cluster(bench, [binary]) as cluster:
        port = cluster.members[0].client

        class Shifted(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                try:
                    body, status = page(port, self.path).encode(), 200
                except urllib.error.HTTPError as error:
                    body, status = b"", error.code
                if self.path == "/debug/mainstay" and status == 200:
                    report = json.loads(body)
                    report["clock_unix_ns"] += 90_000_000_000
                    body = json.dumps(report).encode()
                self.send_response_only(status)
                self.send_header("Date", formatdate(time.time() + 90, usegmt=True))
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                pass
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Shifted)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            return bench.doctor(cluster.endpoints(), "--cluster=false",
                                f"--metrics-endpoints=127.0.0.1:{server.server_port}")
        finally:
            server.shutdown()
            server.server_close()


@case("cpu", servers="etcd")
def cpu(bench, binary):
    with Cluster(bench, [binary]) as cluster:
        port = cluster.members[0].client
        put_many(port, 5000, lambda number: f"key/{number:06}", b"x" * 200)
        loads = []
        for _ in range(2):
            grpc = Grpc(port)
            loads.append(Load(lambda grpc=grpc: grpc.call(RANGE, EVERYTHING)))
        with loads[0], loads[1]:
            return bench.doctor(cluster.endpoints(), "--limit-cpu=0.1", "--sample=0")


@case("fragmentation", servers="etcd")
def fragmentation(bench, binary):
    with Cluster(bench, [binary]) as cluster:
        member = cluster.members[0]
        put_many(member.client, 90, lambda number: f"blob/{number}", b"x" * 1_000_000, in_flight=4)
        grpc = Grpc(member.client)
        grpc.call("/etcdserverpb.KV/DeleteRange", EVERYTHING)
        answer = grpc.call(RANGE, field(1, "nothing"))
        header = dict(read_fields(dict(read_fields(answer))[1]))
        grpc.call("/etcdserverpb.KV/Compact", field(1, header[3]) + field(2, 1))

        def is_freed():
            # What a compaction removed is free once something else was written.
            put_many(member.client, 1, lambda _: "nothing", b"")
            return member.metric("etcd_mvcc_db_total_size_in_use_in_bytes") < 40_000_000
        until("free pages", is_freed)
        return bench.doctor(cluster.endpoints())


@case("authentication-without-token-reuse")
def authentication(bench, binary):
    with Cluster(bench, [binary], ["--bcrypt-cost=4"]) as cluster:
        port = cluster.members[0].client
        auth = "/etcdserverpb.Auth/"
        grpc = Grpc(port)
        grpc.call(auth + "UserAdd", field(1, "root") + field(2, "secret"))
        grpc.call(auth + "RoleAdd", field(1, "root"))
        grpc.call(auth + "UserGrantRole", field(1, "root") + field(2, "root"))
        if grpc.call(auth + "AuthEnable") is None:
            raise RuntimeError("auth was not enabled")
        who = field(1, "root") + field(2, "secret")

        def once():
            token = dict(read_fields(grpc.call(auth + "Authenticate", who)))[2].decode()
            if grpc.call(RANGE, field(1, "key"), token=token) is None:
                raise RuntimeError("refused")
        with Load(once, pause=0.05) as load:
            report = bench.doctor(cluster.endpoints(), "--user=root:secret", "--skip=unbalanced-clients")
        if load.rounds == 0:
            raise RuntimeError(f"no authentication succeeded: {load.error}")
        return report


@case("learner-behind", servers="etcd", needs=["strace"])
def learner_behind(bench, binary):
    with Cluster(bench, [binary]) as cluster:
        leader = cluster.members[0]
        learner = Member(binary, "learner", cluster.directory)
        text = f"{cluster.text()},learner={learner.peer_url}"
        request = field(1, learner.peer_url) + field(2, 1)
        if Grpc(leader.client).call("/etcdserverpb.Cluster/MemberAdd", request) is None:
            raise RuntimeError("no learner was added")
        learner.start(text, state="existing")
        cluster.members.append(learner)
        until("the learner", lambda: learner.metric("etcd_server_is_learner") == 1)
        with Delayed(learner, 1_000_000), putting(leader.client):
            until("entries", lambda: leader.metric("etcd_server_proposals_committed_total") > 500)
            return bench.doctor(f"127.0.0.1:{leader.client}", "--limit-behind=50")


@case("certificate-expiry", needs=["openssl"])
def certificate_expiry(bench, binary):
    directory = tempfile.mkdtemp(dir=bench.directory)
    authority, authority_key, cert, key, request = (
        os.path.join(directory, name) for name in ("ca.pem", "ca-key.pem", "cert.pem", "key.pem", "request.pem"))
    extensions = os.path.join(directory, "extensions")
    with open(extensions, "w", encoding="ascii") as file:
        file.write("subjectAltName=IP:127.0.0.1\nbasicConstraints=CA:FALSE\n")
    new_key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    for command in (
            ["req", "-x509", *new_key, "-days", "3650", "-subj", "/CN=authority", "-out", authority, "-keyout", authority_key],
            ["req", "-new", *new_key, "-subj", "/CN=localhost", "-out", request, "-keyout", key],
            ["x509", "-req", "-in", request, "-CA", authority, "-CAkey", authority_key, "-CAcreateserial", "-days", "3",
             "-extfile", extensions, "-out", cert]):
        subprocess.run(["openssl", *command], check=True, capture_output=True)
    member = Member(binary, "m1", directory)
    member.start(f"m1={member.peer_url}", [f"--cert-file={cert}", f"--key-file={key}"], scheme="https")
    try:
        until("the listener", lambda: socket.create_connection(("127.0.0.1", member.client), timeout=1))
        until("its metrics", lambda: b"ready to serve client requests" in open(member.log, "rb").read())
        return bench.doctor(f"https://127.0.0.1:{member.client}", f"--cacert={authority}")
    finally:
        member.stop()


@case("version-skew", servers="etcd", needs=["older"])
def version_skew(bench, binary):
    with Cluster(bench, [binary, bench.options.etcd_older, bench.options.etcd_older]) as cluster:
        return bench.doctor(cluster.endpoints())


def main():
    # Ended from outside, it still ends what it started.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--doctor", default="mainstay doctor", help="the command to test")
    parser.add_argument("--mainstay", help="a Mainstay binary")
    parser.add_argument("--etcd", help="an etcd binary")
    parser.add_argument("--etcd-older", help="an etcd binary of another release, for version-skew")
    parser.add_argument("--only", default="", help="names of cases, with commas between them")
    parser.add_argument("--directory", default="/dev/shm" if os.path.isdir("/dev/shm") else None,
                        help="where data goes; best in memory, so that only planted disks are slow")
    parser.add_argument("--list", action="store_true", help="print the cases and end")
    options = parser.parse_args()
    if options.list:
        for name, servers, needs, _ in CASES:
            print(f"{name:40}{servers:10}{' '.join(needs)}")
        return 0
    only = [name for name in options.only.split(",") if name]
    unknown = [name for name in only if name not in [case_name for case_name, *_ in CASES]]
    if unknown or not (options.mainstay or options.etcd):
        print(f"no such case: {', '.join(unknown)}" if unknown else "give --mainstay, --etcd, or both", file=sys.stderr)
        return 2
    passed, failed = 0, []
    with tempfile.TemporaryDirectory(prefix="doctor-planted-", dir=options.directory) as directory:
        bench = Bench(options, directory)
        for name, servers, needs, run in CASES:
            if only and name not in only:
                continue
            for kind, binary in (("mainstay", options.mainstay), ("etcd", options.etcd)):
                if not binary or servers not in ("both", kind):
                    continue
                lacking = [need for need in needs
                           if (not options.etcd_older if need == "older" else shutil.which(need) is None)]
                if lacking:
                    print(f"skip  {name} {kind}: no {', '.join(lacking)}", flush=True)
                    continue
                begun = time.monotonic()
                try:
                    report = run(bench, binary)
                    found = [finding["name"] for finding in report["findings"]]
                    good = not found if name == "healthy" else name in found
                    if good and kind == "mainstay" and name in SAID:
                        finding = next(finding for finding in report["findings"] if finding["name"] == name)
                        good = any(SAID[name] in line["text"] for line in finding["evidence"])
                    why = f"found {', '.join(found) or 'nothing'}"
                    if not good:
                        why += "; " + json.dumps(report)
                except Exception as error:  # pylint: disable=broad-except
                    good, why = False, f"{type(error).__name__}: {error}"
                passed += good
                if not good:
                    failed.append(f"{name} {kind}")
                word = "ok   " if good else "FAIL "
                print(f"{word} {name} {kind} ({time.monotonic() - begun:.0f} s): {why}", flush=True)
    for name in failed:
        print(f"failed: {name}")
    print(f"{passed} passed, {len(failed)} failed")
    return 1 if failed else 0 if passed else 2


if __name__ == "__main__":
    sys.exit(main())
