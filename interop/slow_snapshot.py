#!/usr/bin/env python3
"""What a snapshot costs in memory while its client takes nothing of it and others write.

    interop/slow_snapshot.py --benchmark PATH --server NAME=PATH [--server ...]

100,000 keys of 256 B; then puts to them at 10,000/s for 20 seconds, first with nobody reading, then while one client has
asked for a snapshot and reads no more than the first 64 KiB of it. Prints how much the resident memory grew in each, and
the difference for each put.
"""

import socket
import subprocess
import time

import page
from side_by_side import arguments, filled

RATE, SECONDS, KEYS, VALUE_BYTES = 10_000, 20, 100_000, 256


def frame(kind, flags, stream, payload):
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


def ask_for_snapshot(port):
    """A connection with a snapshot under way, whose window is never opened again."""
    headers = b""
    for name, value in [(":method", "POST"), (":scheme", "http"), (":path", "/etcdserverpb.Maintenance/Snapshot"),
                        (":authority", "slow"), ("content-type", "application/grpc"), ("te", "trailers")]:
        headers += b"\0" + bytes([len(name)]) + name.encode() + bytes([len(value)]) + value.encode()
    connection = socket.create_connection(("127.0.0.1", port))
    connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0, b"") + frame(1, 4, 1, headers)
                       + frame(0, 1, 1, bytes(5)))
    taken = 0
    connection.settimeout(5)
    while taken < 60_000:
        taken += len(connection.recv(65536))
    return connection


def memory_kb(pid):
    with open(f"/proc/{pid}/status") as status:
        return int(next(line for line in status if line.startswith("VmRSS")).split()[1])


def growth_kb(server, put, seconds):
    """Of the resident memory, while so many puts arrive."""
    before = memory_kb(server.process.pid)
    subprocess.run([*put, f"--rate={RATE}", f"--total={RATE * seconds}", "--sequential-keys=false"],
                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
    time.sleep(1)
    return memory_kb(server.process.pid) - before


def main():
    parser = arguments(__doc__)
    parser.add_argument("--page", help="write the table into this file, docs/benchmarks.md")
    args, lines = parser.parse_args(), []
    for server in filled(args, KEYS, VALUE_BYTES):
        put = [args.benchmark, f"--endpoints=127.0.0.1:{args.port}", "--conns=10", "--clients=200", "put",
               f"--val-size={VALUE_BYTES}", f"--key-space-size={KEYS}"]
        growth_kb(server, put, 5)
        alone = growth_kb(server, put, SECONDS)
        held = ask_for_snapshot(args.port)
        beside = growth_kb(server, put, SECONDS)
        held.close()
        lines.append([server.name, f"{alone / 1e3:.0f}", f"{beside / 1e3:.0f}", f"{(beside - alone) / (RATE * SECONDS):.2f}"])
    head = ["server", "growth MB, no snapshot", "growth MB, snapshot held", "KB per put"]
    page.write_table(args.page, "slow_snapshot", page.dated(1, page.measured_commit([pair.split("=", 1) for pair in args.server])), page.markdown(head, lines))


if __name__ == "__main__":
    main()
