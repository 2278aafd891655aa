#!/usr/bin/env python3
"""Continuous backup to a real S3 server (MinIO or versitygw): of a cluster of Mainstay, whose members and whose shipper are killed (-9) again and
again under load, and of a real etcd; with faults between the shipper and the server (slow, cut, 503, lost answers, a bucket that is
gone, credentials that are rotated). Random revisions are restored, and HashKV and every key must be those that the source had; real
etcd serves a restored directory.
"""

import argparse
import base64
import contextlib
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

from ports import free_port, free_ports

PATIENCE_SECONDS = 120
KEYS = {"AWS_ACCESS_KEY_ID": "mainstay", "AWS_SECRET_ACCESS_KEY": "mainstay-secret"}


def text(data):
    return base64.b64encode(data.encode()).decode()


def wait_for(what, condition):
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        found = condition()
        if found:
            return found
        if time.monotonic() > deadline:
            raise RuntimeError(f"{what}: not within {PATIENCE_SECONDS} s")
        time.sleep(0.1)


def cpu_seconds(pid):
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Process:
    """A process with its log, started again with the same command."""

    all = []

    def __init__(self, directory, name, command, environment=None):
        self.log, self.command = directory / f"{name}.log", [str(word) for word in command]
        self.environment, self.process = {**os.environ, **(environment or {})}, None

    def start(self):
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(self.command, stdout=log, stderr=log, env=self.environment)
        Process.all.append(self)
        return self

    def stop(self, how=signal.SIGTERM):
        if self.process and self.process.poll() is None:
            self.process.send_signal(how)
            self.process.wait(timeout=60)

    def alive(self):
        if self.process.poll() is not None:
            raise RuntimeError(f"{self.command[0]} has ended ({self.process.returncode}); see {self.log}")

    def said(self):
        return self.log.read_text(errors="replace")


class Server(Process):
    """A member of etcd or of Mainstay, alone in its cluster."""

    def __init__(self, directory, name, program, data=None, flags=()):
        client, peer = free_ports(2)
        self.client, self.peer = f"http://127.0.0.1:{client}", f"http://127.0.0.1:{peer}"
        self.data = data or directory / name
        super().__init__(directory, name, [
            program, f"--name={name}", f"--data-dir={self.data}", f"--listen-client-urls={self.client}",
            f"--advertise-client-urls={self.client}", f"--listen-peer-urls={self.peer}",
            f"--initial-advertise-peer-urls={self.peer}", f"--initial-cluster={name}={self.peer}", *flags])

    def start(self):
        super().start()
        wait_for(f"{self.command[0]} serves", self.serves)
        return self

    def serves(self):
        self.alive()
        try:
            return self.call("kv/range", {"key": text("x")})
        except (OSError, urllib.error.HTTPError):
            return None

    def call(self, path, body):
        request = urllib.request.Request(f"{self.client}/v3/{path}", json.dumps(body).encode())
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)

    def put(self, key, value, **more):
        return self.call("kv/put", {"key": text(key), "value": text(value), **more})

    def hash(self):
        """Revision, compact revision and HashKV of the newest state."""
        found = self.call("maintenance/hashkv", {})
        return int(found["header"]["revision"]), int(found.get("compact_revision", 0)), int(found["hash"])

    def keys(self):
        found = self.call("kv/range", {"key": text("\0"), "range_end": text("\0")})
        return {kv["key"]: (kv.get("value"), kv["mod_revision"], kv["create_revision"], kv["version"], kv.get("lease"))
                for kv in found.get("kvs", [])}


class Faults:
    """A proxy in front of the S3 server that fails on purpose, one connection after the other."""

    def __init__(self, target):
        self.target, self.kinds, self.random = target, [], random.Random(1)
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.counts = {}
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self.serve, args=(connection,), daemon=True).start()

    def request(self, connection):
        """One request with its body, as bytes."""
        data = b""
        while b"\r\n\r\n" not in data:
            more = connection.recv(65536)
            if not more:
                return None
            data += more
        head, body = data.split(b"\r\n\r\n", 1)
        length = 0
        for line in head.split(b"\r\n")[1:]:
            name, value = line.split(b":", 1)
            if name.lower() == b"content-length":
                length = int(value)
        while len(body) < length:
            more = connection.recv(65536)
            if not more:
                return None
            body += more
        head = b"\r\n".join(line for line in head.split(b"\r\n") if not line.lower().startswith(b"connection:"))
        return head + b"\r\nConnection: close\r\n\r\n", body

    def serve(self, connection):
        with connection:
            try:
                asked = self.request(connection)
                if asked is None:
                    return
                head, body = asked
                kind = self.random.choice(self.kinds) if self.kinds and self.random.random() < 0.3 else "none"
                self.counts[kind] = self.counts.get(kind, 0) + 1
                if kind == "503":
                    connection.sendall(b"HTTP/1.1 503 Slow Down\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
                    return
                if kind == "skew":
                    answer = b"<Error><Code>RequestTimeTooSkewed</Code><Message>The clocks differ.</Message></Error>"
                    connection.sendall(b"HTTP/1.1 403 Forbidden\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s" % (len(answer), answer))
                    return
                if kind == "slow":
                    time.sleep(self.random.uniform(0.2, 1.5))
                with socket.create_connection(("127.0.0.1", self.target), timeout=30) as server:
                    if kind == "half":
                        server.sendall(head + body[: len(body) // 2])
                        return
                    server.sendall(head + body)
                    answer = b""
                    while more := server.recv(65536):
                        answer += more
                    if kind == "lost":
                        return
                    connection.sendall(answer[: len(answer) // 2] if kind == "cut" else answer)
            except OSError:
                pass


class Bench:
    """The S3 server, the proxy before it, and what ships through it."""

    def __init__(self, arguments, directory):
        self.mainstay, self.directory = arguments.mainstay, directory
        port = free_port()
        self.buckets = directory / "minio"
        self.buckets.mkdir()
        user, secret = KEYS["AWS_ACCESS_KEY_ID"], KEYS["AWS_SECRET_ACCESS_KEY"]
        if arguments.minio:
            command = [arguments.minio, "server", self.buckets, "--address", f"127.0.0.1:{port}"]
            environment = {"MINIO_ROOT_USER": user, "MINIO_ROOT_PASSWORD": secret}
        else:
            command = [arguments.versitygw, "--quiet", "--port", f"127.0.0.1:{port}", "posix", self.buckets]
            environment = {"ROOT_ACCESS_KEY": user, "ROOT_SECRET_KEY": secret}
        self.server = Process(directory, "s3", command, environment).start()
        self.faults = Faults(port)
        # Whoever restores asks the server itself.
        self.environment = {**KEYS, "AWS_REGION": "us-east-1", "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}"}
        self.port = port
        wait_for("the S3 server serves", self.serves)

    def serves(self):
        self.server.alive()
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/", timeout=5):
                return True
        except urllib.error.HTTPError as error:
            # Without credentials it refuses, and serves.
            return error.code == 403
        except OSError:
            return False

    def bucket(self, name):
        """A bucket is a directory of the S3 server's only disk."""
        (self.buckets / name).mkdir()
        return f"s3://{name}/of-tests"

    def shipper(self, name, to, *flags, environment=None):
        through = {**self.environment, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.faults.port}", **(environment or {})}
        return Process(self.directory, name, [self.mainstay, "backup", "run", f"--to={to}", f"--data-dir={self.directory / name}",
                                              "--backup-max-lag=2s", *flags], through)

    def run(self, *arguments, fails=False):
        done = subprocess.run([self.mainstay, *map(str, arguments)], capture_output=True, text=True, timeout=600, check=False,
                              env={**os.environ, **self.environment})
        if (done.returncode != 0) != fails:
            raise RuntimeError(f"mainstay {' '.join(map(str, arguments))}: {done.returncode}\n{done.stdout}{done.stderr}")
        return done.stderr if fails else done.stdout

    def shipped(self, to):
        epochs = json.loads(self.run("backup", "list", to, "-w", "json"))
        return max((epoch["to"]["revision"] for epoch in epochs), default=0)

    def wait_shipped(self, to, revision, shipper):
        def is_there():
            shipper.alive()
            return self.shipped(to) >= revision
        wait_for(f"revision {revision} is in the backup", is_there)

    def restored(self, to, revision, program, name, *flags):
        """A member of `program` on the restored directory."""
        data = self.directory / name
        server = Server(self.directory, name, program, data)
        self.run("utl", "snapshot", "restore", to, f"--to-revision={revision}", f"--data-dir={data}", f"--name={name}",
                 f"--initial-cluster={name}={server.peer}", f"--initial-advertise-peer-urls={server.peer}", *flags)
        return server.start()


def check(bench, to, seen, program, count, what, *flags, exact=False):
    """Restores random revisions, each of which must be as it was seen. A shadow learns of compactions some seconds later, so HashKV,
    which depends on them, is compared only where the compact revision is the same; `exact` says that it must be."""
    chosen, compared = random.Random(2).sample(seen, min(count, len(seen))), 0
    for (revision, compacted, hash_kv), keys in chosen:
        name = f"restored-{len(Process.all)}"
        server = bench.restored(to, revision, program, name, *flags)
        found = server.hash()
        if found[0] != revision or (found[1] == compacted and found[2] != hash_kv) or server.keys() != keys:
            raise RuntimeError(f"{what}: revision {revision} was restored as {found}, and had hash {hash_kv} for compact revision {compacted}")
        compared += found[1] == compacted
        if exact and found[1] != compacted:
            raise RuntimeError(f"{what}: revision {revision} has compact revision {found[1]}, and had {compacted}")
        server.stop()
        shutil.rmtree(server.data)
    print(f"{what}: {len(chosen)} random revisions of {len(seen)} restored, every key as it was, and HashKV of {compared}", flush=True)


def work(server, rounds, seen, between):
    """Changes of all kinds. Notes what the state was after each round."""
    generator = random.Random(3)
    for number in range(rounds):
        for _ in range(20):
            key = f"k/{generator.randrange(60)}"
            if generator.random() < 0.15:
                server.call("kv/deleterange", {"key": text(key)})
            elif generator.random() < 0.1:
                lease = server.call("lease/grant", {"TTL": "3600"})["ID"]
                server.put(key, f"leased {number}", lease=lease)
            else:
                server.put(key, f"{number} " + "x" * generator.randrange(2000))
        # A transaction with several changes is the last one, so that the state is that right after a revision.
        puts = [{"requestPut": {"key": text(f"t/{n}"), "value": text(str(number))}} for n in range(3)]
        server.call("kv/txn", {"success": puts})
        seen.append((server.hash(), server.keys()))
        if number % 10 == 9:
            server.call("kv/compaction", {"revision": str(seen[-1][0][0] - 30)})
            server.put("after", str(number))
            seen.append((server.hash(), server.keys()))
        between(number)


def of_mainstay(bench, rounds):
    member = Server(bench.directory, "member", bench.mainstay).start()
    to = bench.bucket("of-mainstay")
    peer = f"http://127.0.0.1:{free_port()}"
    shipper = bench.shipper("shipper", to, f"--feed={member.peer}", f"--listen-peer-urls={peer}",
                            f"--initial-advertise-peer-urls={peer}").start()
    wait_for("a base is there", lambda: bench.run("backup", "list", to, "-w", "json").strip() != "[]" or shipper.alive())
    seen = []
    kinds = [[], ["503"], ["lost", "cut"], ["slow"], ["half"], ["503", "lost", "cut", "slow", "half"]]

    def between(number):
        bench.faults.kinds = kinds[number % len(kinds)]
        if number % 3 == 1:
            shipper.stop(signal.SIGKILL)
            shipper.start()
        if number % 7 == 3:
            member.stop(signal.SIGKILL)
            member.start()
        if number % 2:
            bench.wait_shipped(to, seen[-2][0][0], shipper)

    work(member, rounds, seen, between)
    bench.faults.kinds = []
    bench.wait_shipped(to, seen[-1][0][0], shipper)
    shipper.stop()
    print(f"of Mainstay: faults {bench.faults.counts}", flush=True)
    print(bench.run("backup", "verify", to).strip(), flush=True)
    epochs = json.loads(bench.run("backup", "list", to, "-w", "json"))
    if any(epoch["gap"] for epoch in epochs):
        raise RuntimeError(f"there are gaps: {epochs}")
    check(bench, to, [one for one in seen if one[0][0] > epochs[0]["from"]["revision"]], bench.mainstay, 20, "of Mainstay",
          exact=True)
    print(bench.run("backup", "drill", to, f"--work-dir={bench.directory / 'drill'}", f"--page={bench.directory / 'drill.html'}").strip())
    return member


def of_etcd(bench, etcd, number, rounds):
    source = Server(bench.directory, f"source-{number}", etcd).start()
    to = bench.bucket(f"of-etcd-{number}")
    shipper = bench.shipper(f"shadow-{number}", to, f"--endpoints={source.client}", "--compare-interval=0").start()
    seen = []
    source.put("first", "x")
    wait_for("a base is there", lambda: bench.run("backup", "list", to, "-w", "json").strip() != "[]" or shipper.alive())

    def between(round_number):
        if round_number % 4 == 2:
            shipper.stop(signal.SIGKILL)
            shipper.start()
        if round_number % 2:
            bench.wait_shipped(to, seen[-1][0][0], shipper)

    work(source, rounds, seen, between)
    bench.wait_shipped(to, seen[-1][0][0], shipper)
    shipper.stop()
    source.stop()
    check(bench, to, seen, bench.mainstay, 5, f"{Path(etcd).name}, restored for Mainstay")
    check(bench, to, seen, etcd, 5, f"{Path(etcd).name}, restored for etcd", "--format=etcd")
    revision = seen[-1][0][0]
    server = bench.restored(to, revision, etcd, f"bumped-{number}", "--format=etcd", "--bump-revision=1000", "--mark-compacted")
    found = server.hash()
    if found[0] != revision + 1000 or server.keys() != seen[-1][1]:
        raise RuntimeError(f"a raised revision was restored as {found}")
    server.stop()
    print(f"{Path(etcd).name}: revision {revision} raised to {found[0]}, served by etcd", flush=True)


def refusals(bench, member):
    """Places and credentials that cannot be used: one sentence each, and the backup goes on when they can."""
    file = bench.directory / "credentials"
    file.write_text("[default]\naws_access_key_id = wrong\naws_secret_access_key = wrong\n")
    peer = f"http://127.0.0.1:{free_port()}"
    to = "s3://later/of-tests"
    without = {"AWS_SHARED_CREDENTIALS_FILE": str(file), "AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": ""}
    shipper = bench.shipper("refused", to, f"--feed={member.peer}", f"--listen-peer-urls={peer}",
                            f"--initial-advertise-peer-urls={peer}", environment=without).start()
    wait_for("wrong credentials are said", lambda: shipper.alive() or "refuses the credentials" in shipper.said())
    making = file.with_suffix(".new")
    making.write_text(f"[default]\naws_access_key_id = {KEYS['AWS_ACCESS_KEY_ID']}\naws_secret_access_key = {KEYS['AWS_SECRET_ACCESS_KEY']}\n")
    making.rename(file)
    wait_for("a missing bucket is said", lambda: shipper.alive() or "the bucket does not exist" in shipper.said())
    bench.faults.kinds = ["skew"]
    wait_for("a wrong clock is said", lambda: shipper.alive() or "clock of this machine" in shipper.said())
    bench.faults.kinds = []
    bench.bucket("later")
    revision = member.hash()[0]
    wait_for("the backup goes on", lambda: shipper.alive() or (bench.buckets / "later/of-tests").is_dir())
    bench.wait_shipped(to, revision, shipper)
    shipper.stop()
    said = bench.run("utl", "snapshot", "restore", to, "--to-revision=99999999", f"--data-dir={bench.directory / 'x'}", fails=True)
    if "reaches only to revision" not in said:
        raise RuntimeError(said)
    print("refusals: wrong credentials, a missing bucket and a wrong clock were said, and the backup went on", flush=True)


@contextlib.contextmanager
def directory_of_run(prefix, keep):
    """A new directory. At the end all processes are killed; the directory is removed, unless it is to be kept or the run has failed."""
    directory = Path(tempfile.mkdtemp(prefix=prefix))
    try:
        yield directory
    except BaseException:
        print(f"everything is in {directory}", file=sys.stderr)
        keep = True
        raise
    finally:
        for process in Process.all:
            process.stop(signal.SIGKILL)
        if not keep:
            shutil.rmtree(directory)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mainstay", required=True, help="the program mainstay")
    server = parser.add_mutually_exclusive_group(required=True)
    server.add_argument("--minio", help="the program minio")
    server.add_argument("--versitygw", help="the program versitygw")
    parser.add_argument("--etcd", action="append", default=[], help="a program etcd; may be given several times")
    parser.add_argument("--rounds", type=int, default=60, help="rounds of changes")
    parser.add_argument("--keep", action="store_true", help="keep the directory")
    arguments = parser.parse_args()
    arguments.mainstay = str(Path(arguments.mainstay).resolve())
    with directory_of_run("mainstay-backup-", arguments.keep) as directory:
        bench = Bench(arguments, directory)
        member = of_mainstay(bench, arguments.rounds)
        refusals(bench, member)
        for number, etcd in enumerate(arguments.etcd):
            of_etcd(bench, etcd, number, arguments.rounds // 3)
    print("ok")


if __name__ == "__main__":
    main()
