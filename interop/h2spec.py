#!/usr/bin/env python3
"""Runs h2spec, the conformance test of HTTP/2, against a member that it starts, over TLS.

    interop/h2spec.py --h2spec PATH --server mainstay=target/release/mainstay [--server etcd-3.6=PATH]

    go install github.com/summerwind/h2spec/cmd/h2spec@v2.2.1+incompatible

It is asked for a page that waits for the whole request: where an answer comes before, what h2spec sends next is about a stream
that is over, and it waits in vain for what would have been said of it. So it is asked over TLS, too, since a port without it
serves nothing but gRPC over HTTP/2, like etcd's, and refuses all else at once. What is only recommended is tested as well.

Ends with "N passed, M failed", and exit code 1 if M is not 0. Python 3.9+, standard library only.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time

from ports import free_port

PAGE = "/health"
PATIENCE_SECONDS = 600


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
                done = subprocess.run([args.h2spec, "-h", "127.0.0.1", "-p", str(port), "-t", "-k", "-S", "-o", "5", "-P", PAGE],
                                      stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=PATIENCE_SECONDS)
                counts = re.search(r"^(\d+) tests, (\d+) passed, (\d+) skipped, (\d+) failed", done.stdout, re.M)
                if not counts:
                    sys.exit(f"{name}: h2spec says nothing:\n{done.stdout[-2000:]}")
                print(f"{name}: {counts[0]}", flush=True)
                if counts[4] != "0":
                    print(done.stdout[done.stdout.find("Failures:"):])
                passed, failed = passed + int(counts[2]), failed + int(counts[4])
                if member.poll() is not None:
                    sys.exit(f"{name} has ended with {member.returncode}")
            finally:
                # Whatever it is amid.
                member.kill()
                member.wait()
    print(f"{passed} passed, {failed} failed")
    sys.exit(failed > 0)


main()
