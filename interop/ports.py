#!/usr/bin/env python3
"""Ports of the loopback for servers that have to be told theirs. As a program it prints one, or as many as it is told.

They lie below those that the kernel gives to connections: a client that connects can neither have one before its server listens
there, nor while a server is away that is to come back. Standard library only.
"""

import random
import socket
import sys

LOWEST = 10_000
# Of each port that was given out, the one of datagrams, which no server here needs: no other process that asks gets the port as
# long as this one runs. Processes that this one starts do not inherit them.
KEPT = []


def free_port():
    """A port that nobody listens on, another one with each call, whichever process calls."""
    with open("/proc/sys/net/ipv4/ip_local_port_range", encoding="ascii") as text:
        end = int(text.read().split()[0])
    if end <= LOWEST:
        raise RuntimeError(f"the kernel gives connections ports from {end} on, and none above {LOWEST} is left for servers")
    while True:
        port = random.randrange(LOWEST, end)
        kept = socket.socket(type=socket.SOCK_DGRAM)
        try:
            kept.bind(("127.0.0.1", port))
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", port))
        except OSError:
            kept.close()
            continue
        KEPT.append(kept)
        return port


def free_ports(count):
    return [free_port() for _ in range(count)]


if __name__ == "__main__":
    # As many as are asked for: those that two calls print may be the same.
    print(*free_ports(int(sys.argv[1]) if len(sys.argv) > 1 else 1), sep="\n")
