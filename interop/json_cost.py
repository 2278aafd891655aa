#!/usr/bin/env python3
"""Counts the processor time that servers spend on a put and on a range in JSON, through the gateway.

usage: json_cost.py NAME=PROGRAM [NAME=PROGRAM ...] [--requests N] [--connections N]

Each server is one fresh member without TLS, started here, its data in /dev/shm. As many requests as given go to it over a few
connections of HTTP/1.1 that stay open, each waiting for its answer. What is counted is user and system time of the server's process,
so that a busy machine matters less than for a throughput. The last column is the first server's time over this one's.
"""

import base64
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time

from ports import free_port

VALUE_BYTES = 256
KEYS = 1000


def cpu_seconds(pid):
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def encode(text):
    return base64.b64encode(text.encode()).decode()


def request(path, body):
    body = json.dumps(body).encode()
    return f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


PUTS = [request("/v3/kv/put", {"key": encode(f"key-{n:06}"), "value": encode("v" * VALUE_BYTES)}) for n in range(KEYS)]
RANGES = [request("/v3/kv/range", {"key": encode(f"key-{n:06}")}) for n in range(KEYS)]


def ask(sock, data):
    sock.sendall(data)
    got = b""
    while b"\r\n\r\n" not in got:
        part = sock.recv(65536)
        if not part:
            raise SystemExit("the server closed")
        got += part
    head, body = got.split(b"\r\n\r\n", 1)
    if b" 200 " not in head.split(b"\r\n", 1)[0]:
        raise SystemExit(got.decode("utf-8", "replace"))
    length = next(int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:"))
    while len(body) < length:
        body += sock.recv(65536)


def load(port, requests, count, connections):
    failed = []

    def run(at):
        try:
            ask_all(at)
        except (OSError, SystemExit) as error:
            failed.append(error)

    def ask_all(at):
        with socket.create_connection(("127.0.0.1", port)) as sock:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for n in range(at, count, connections):
                ask(sock, requests[n % len(requests)])
    threads = [threading.Thread(target=run, args=(at,)) for at in range(connections)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]


def main():
    words = sys.argv[1:]

    def number(name, default):
        return int(words[words.index(name) + 1]) if name in words else default

    count, connections = number("--requests", 20000), number("--connections", 8)
    servers = [word.split("=", 1) for word in words if "=" in word]
    if not servers:
        raise SystemExit(__doc__)
    first = {}
    for name, program in servers:
        directory = tempfile.mkdtemp(prefix="json-cost-", dir="/dev/shm" if os.path.isdir("/dev/shm") else None)
        port, peer = free_port(), free_port()
        client, peer = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{peer}"
        with open(os.path.join(directory, "log"), "wb") as log:
            process = subprocess.Popen(
                [program, "--name=m", f"--data-dir={directory}/data", f"--listen-client-urls={client}", f"--advertise-client-urls={client}",
                 f"--listen-peer-urls={peer}", f"--initial-advertise-peer-urls={peer}", f"--initial-cluster=m={peer}"], stdout=log, stderr=log)
        try:
            until = time.time() + 30
            while True:
                try:
                    load(port, PUTS, KEYS, 1)
                    break
                except (OSError, SystemExit):
                    if time.time() > until:
                        raise
                    time.sleep(0.1)
            for what, requests in (("put", PUTS), ("range", RANGES)):
                before, began = cpu_seconds(process.pid), time.time()
                load(port, requests, count, connections)
                micros = (cpu_seconds(process.pid) - before) / count * 1e6
                ratio = first.setdefault(what, micros) / micros
                print(f"{name:12} {what:6} {micros:8.1f} us of processor time a request, {count / (time.time() - began):8.0f} requests/s, {ratio:5.1f} x")
        finally:
            process.terminate()
            process.wait()
            shutil.rmtree(directory)


if __name__ == "__main__":
    main()
