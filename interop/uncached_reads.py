#!/usr/bin/env python3
"""How much a client that reads what is not in memory holds up others that read what is.

    interop/uncached_reads.py --bench MAINSTAY --server NAME=PATH [--server ...]

Each server runs in a cgroup with --memory MiB (256), page cache included, and is filled with twice that in values of
--value bytes, in random order. One client then reads the whole data set over and over, a page of 200 keys at a time, while four
connections read one key at 400/s in all. Prints the latency of these reads alone and beside the reader, and how
much the reader got. Needs root, for the cgroup (version 1 or 2), and Mainstay's `bench` as the load.
"""

import argparse
import json
import os
import socket
import stat
import struct
import subprocess
import sys
import tempfile
import threading
import time

import page
from side_by_side import Server, varint

PAGE_KEYS = 200


class Cgroup:
    """A cgroup with a bound on memory."""

    def __init__(self, name, limit):
        old = "/sys/fs/cgroup/memory"
        self.dir = os.path.join(old if os.path.isdir(old) else "/sys/fs/cgroup", name)
        os.makedirs(self.dir, exist_ok=True)
        file = "memory.limit_in_bytes" if os.path.isdir(old) else "memory.max"
        with open(os.path.join(self.dir, file), "w") as out:
            out.write(str(limit))

    def wrapper(self, work, path):
        """A program that is the server, in the cgroup."""
        script = os.path.join(work, "server")
        with open(script, "w") as out:
            out.write(f"#!/bin/sh\necho $$ > {self.dir}/cgroup.procs\nexec {os.path.abspath(path)} \"$@\"\n")
        os.chmod(script, os.stat(script).st_mode | stat.S_IXUSR)
        return script

    def remove(self):
        for _ in range(50):
            try:
                return os.rmdir(self.dir)
            except OSError:
                time.sleep(0.1)


class Connection:
    """Just enough gRPC for one call at a time."""

    def __init__(self, port):
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.settimeout(60)
        self.file = self.socket.makefile("rb", 1 << 20)
        self.stream = -1
        self.socket.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + self.frame(4, 0, 0, struct.pack(">HI", 4, 1 << 30))
                            + self.frame(8, 0, 0, struct.pack(">I", 1 << 30)))

    @staticmethod
    def frame(kind, flags, stream, payload):
        return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload

    def call(self, path, message):
        self.stream += 2
        text = lambda s: bytes([len(s)]) + s.encode()
        fields = [(":method", "POST"), (":scheme", "http"), (":path", path), (":authority", "localhost"),
                  ("content-type", "application/grpc"), ("te", "trailers")]
        head = b"".join(b"\0" + text(name) + text(value) for name, value in fields)
        body = b"\0" + struct.pack(">I", len(message)) + message
        self.socket.sendall(self.frame(1, 4, self.stream, head) + self.frame(0, 1, self.stream, body))
        data = bytearray()
        while True:
            head = self.file.read(9)
            length, (kind, flags, stream) = int.from_bytes(head[:3], "big"), struct.unpack(">BBI", head[3:])
            payload = self.file.read(length)
            if kind == 0:
                data += payload
                if length:
                    self.socket.sendall(self.frame(8, 0, 0, struct.pack(">I", length)))
            elif kind == 4 and not flags & 1:
                self.socket.sendall(self.frame(4, 1, 0, b""))
            elif kind == 6 and not flags & 1:
                self.socket.sendall(self.frame(6, 1, 0, payload))
            elif kind in (3, 7):
                raise OSError(f"frame {kind}: {payload!r}")
            if kind in (0, 1) and flags & 1 and stream == self.stream:
                return bytes(data[5:])


def fields(message):
    """The length-delimited fields of a message, and the numbers as they come."""
    at = 0

    def number():
        nonlocal at
        value = shift = 0
        while True:
            byte = message[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while at < len(message):
        tag = number()
        value = number()
        if tag & 7 == 2:
            yield tag >> 3, message[at:at + value]
            at += value


class Reader(threading.Thread):
    """Reads all there is, page by page, until it is told to end."""

    def __init__(self, port):
        super().__init__(daemon=True)
        self.port, self.bytes, self.rounds, self.ends, self.failed = port, 0, 0, False, None

    def run(self):
        try:
            connection, key = Connection(self.port), b"\0"
            while not self.ends:
                request = b"".join(bytes([n << 3 | 2]) + varint(len(v)) + v for n, v in ((1, key), (2, b"\0")))
                answer = connection.call("/etcdserverpb.KV/Range", request + b"\x18" + varint(PAGE_KEYS))
                self.bytes += len(answer)
                kvs = [value for number, value in fields(answer) if number == 2]
                if len(kvs) < PAGE_KEYS:
                    self.rounds, key = self.rounds + 1, b"\0"
                else:
                    key = next(value for number, value in fields(kvs[-1]) if number == 1) + b"\0"
        except (OSError, IndexError, struct.error) as error:
            self.failed = error


def reads_ms(bench, port, seconds):
    with tempfile.NamedTemporaryFile() as out:
        subprocess.run([bench, "bench", f"--endpoints=127.0.0.1:{port}", "--conns=4", "--clients=64", "range", "hot",
                        "--rate=400", f"--duration={seconds}s", "--json", out.name],
                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
        found = json.load(open(out.name))["rows"][0]["median"]["latency_ms"]
        return " / ".join(f"{found[figure]:.2f}" for figure in ("p50", "p99", "p99.9", "max"))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bench", required=True, metavar="MAINSTAY", help="a mainstay whose bench makes the load")
    parser.add_argument("--server", action="append", required=True, metavar="NAME=PATH")
    parser.add_argument("--memory", type=int, default=256, metavar="MiB")
    parser.add_argument("--value", type=int, default=4096, metavar="BYTES")
    parser.add_argument("--seconds", type=int, default=20)
    parser.add_argument("--page", help="write the table into this file, docs/benchmarks.md")
    parser.add_argument("--port", type=int, default=24790)
    args = parser.parse_args()
    lines = []
    servers = [pair.split("=", 1) for pair in args.server]
    for name, path in servers:
        group = Cgroup(f"uncached-reads-{os.getpid()}", args.memory << 20)
        with tempfile.TemporaryDirectory() as work:
            server = Server(name, group.wrapper(work, path), args.port)
            # So many puts at random hit 63 in 100 of the keys.
            keys = int(2 / 0.632 * (args.memory << 20)) // args.value
            bench = [args.bench, "bench", f"--endpoints=127.0.0.1:{args.port}", "--conns=10", "--clients=100"]
            fill = ["put", f"--total={keys}", f"--val-size={args.value}", f"--key-space-size={keys}"]
            subprocess.run([*bench, *fill], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
            hot = Connection(args.port)
            hot.call("/etcdserverpb.KV/Put", b"\x0a\x03hot\x12\x05value")
            alone = reads_ms(args.bench, args.port, args.seconds)
            reader = Reader(args.port)
            reader.start()
            time.sleep(2)
            before, began = reader.bytes, time.monotonic()
            beside = reads_ms(args.bench, args.port, args.seconds)
            rate = (reader.bytes - before) / (time.monotonic() - began) / 1e6
            reader.ends = True
            reader.join()
            if reader.failed:
                sys.exit(f"{name}: the reader failed: {reader.failed}")
            lines.append([name, alone, beside, f"{rate:.0f}"])
            server.stop()
            server.clean()
        group.remove()
    head = ["server", "alone: p50 / p99 / p99.9 / max ms", "beside the reader: p50 / p99 / p99.9 / max ms", "reader MB/s"]
    page.write_table(args.page, "uncached_reads", page.dated(1, page.measured_commit(servers)), page.markdown(head, lines))


if __name__ == "__main__":
    main()
