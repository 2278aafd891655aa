#!/usr/bin/env python3
"""Runs h2spec, the conformance test of HTTP/2, against a member that it starts, over TLS.

    interop/h2spec.py --h2spec PATH --server mainstay=target/release/mainstay [--server etcd-3.6=PATH]

    go install github.com/summerwind/h2spec/cmd/h2spec@v2.2.1+incompatible

It is asked for a page that waits for the whole request and for one that does not; `--strict` has what is only recommended
tested, too. Over TLS, since a port without it serves nothing but gRPC over HTTP/2, like etcd's: what is no gRPC is refused
there before its body comes, and h2spec waits in vain for what would have been said of the body.

Ends with "N passed, M failed", and exit code 1 if M is not 0. Python 3.9+, standard library only.
"""

import argparse
import os
import re
import socket
import subprocess
import sys
import tempfile
import time

PAGES = ("/health", "/v3/kv/range")


def free_port():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


def start(path, directory, port):
    client, peer = f"https://127.0.0.1:{port}", f"http://127.0.0.1:{free_port()}"
    with open(os.path.join(directory, "log"), "wb") as log:
        member = subprocess.Popen([
            path, "--data-dir", os.path.join(directory, "data"), "--auto-tls", "--listen-client-urls", client, "--advertise-client-urls",
            client, "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", f"default={peer}",
        ], stdout=log, stderr=subprocess.STDOUT)
    deadline = time.monotonic() + 60
    while True:
        with open(os.path.join(directory, "log"), encoding="utf-8", errors="replace") as log:
            said = log.read()
        if "ready to serve client requests" in said or "serving client traffic securely" in said:
            return member
        if member.poll() is not None or time.monotonic() > deadline:
            member.kill()
            sys.exit(f"{path} does not serve:\n{said[-2000:]}")
        time.sleep(0.05)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--h2spec", required=True)
    parser.add_argument("--server", action="append", required=True, metavar="NAME=PATH")
    args = parser.parse_args()
    passed = failed = 0
    for server in args.server:
        name, _, path = server.partition("=")
        with tempfile.TemporaryDirectory() as directory:
            port = free_port()
            member = start(path, directory, port)
            try:
                for page in PAGES:
                    done = subprocess.run([args.h2spec, "-h", "127.0.0.1", "-p", str(port), "-t", "-k", "-S", "-o", "5", "-P", page],
                                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=600)
                    counts = re.search(r"^(\d+) tests, (\d+) passed, (\d+) skipped, (\d+) failed", done.stdout, re.M)
                    if not counts:
                        sys.exit(f"{name}, {page}: h2spec says nothing:\n{done.stdout[-2000:]}")
                    print(f"{name}, {page}: {counts[0]}", flush=True)
                    if counts[4] != "0":
                        print(done.stdout[done.stdout.find("Failures:"):])
                    passed, failed = passed + int(counts[2]), failed + int(counts[4])
                if member.poll() is not None:
                    sys.exit(f"{name} has ended with {member.returncode}")
            finally:
                member.terminate()
                member.wait(30)
    print(f"{passed} passed, {failed} failed")
    sys.exit(failed > 0)


main()
