#!/usr/bin/env python3
"""A shadow beside a real etcd: it follows puts, deletes, transactions, leases that end and compactions, is killed (-9) again and
again meanwhile, and HashKV of source and copy must be equal whenever it compares; a planted change must be found and named.

Prints the lag, the processor time and the memory of the shadow beside those of etcd.
"""

import argparse
import base64
import json
import os
import random
import signal
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
PASSWORD = "root:pw"


def text(data):
    return base64.b64encode(data.encode()).decode()


def cpu_seconds(pid):
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def rss_mib(pid):
    for line in Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    return 0.0


def wait_for(what, condition):
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        found = condition()
        if found:
            return found
        if time.monotonic() > deadline:
            raise RuntimeError(f"{what}: not within {PATIENCE_SECONDS} s")
        time.sleep(0.1)


class Etcd:
    """A member of etcd, alone in its cluster."""

    def __init__(self, program, directory, name="source"):
        self.program, self.directory, self.name = program, directory, name
        client, peer = free_ports(2)
        self.client, self.peer = f"http://127.0.0.1:{client}", f"http://127.0.0.1:{peer}"
        self.data = directory / name
        self.process, self.token = None, None

    def start(self):
        with open(self.directory / f"{self.name}.log", "ab") as log:
            self.process = subprocess.Popen(
                [self.program, f"--name={self.name}", f"--data-dir={self.data}", f"--listen-client-urls={self.client}",
                 f"--advertise-client-urls={self.client}", f"--listen-peer-urls={self.peer}",
                 f"--initial-advertise-peer-urls={self.peer}", f"--initial-cluster={self.name}={self.peer}",
                 # A login then takes longer than the shadow's ticks.
                 "--auto-compaction-retention=0", "--bcrypt-cost=15"], stdout=log, stderr=log)
        wait_for("etcd serves", self.serves)

    def serves(self):
        if self.process.poll() is not None:
            raise RuntimeError(f"{self.program} has ended; see {self.directory}/{self.name}.log")
        try:
            return self.call("kv/range", {"key": text("x")})
        except (OSError, urllib.error.HTTPError):
            return None

    def stop(self, how=signal.SIGTERM):
        if self.process and self.process.poll() is None:
            self.process.send_signal(how)
            self.process.wait(timeout=60)

    def call(self, path, body):
        headers = {"Authorization": self.token} if self.token else {}
        request = urllib.request.Request(f"{self.client}/v3/{path}", json.dumps(body).encode(), headers)
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)

    def revision(self):
        return int(self.call("kv/range", {"key": text("x")})["header"]["revision"])

    def put(self, key, value, **more):
        return self.call("kv/put", {"key": text(key), "value": text(value), **more})

    def lease(self, ttl):
        return self.call("lease/grant", {"TTL": str(ttl)})["ID"]


class Shadow:
    """A shadow of a cluster, started again at the same directory."""

    def __init__(self, mainstay, feed, directory, flags=()):
        self.mainstay, self.feed, self.data = mainstay, feed, directory / "shadow"
        self.flags = list(flags)
        self.log = directory / "shadow.log"
        self.metrics_url = f"http://127.0.0.1:{free_port()}"
        self.process, self.cpu = None, 0.0

    def start(self, *flags):
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(
                [self.mainstay, "shadow", f"--feed={self.feed}", f"--data-dir={self.data}", "--compare-interval=2s", "--compare-rest=0",
                 f"--listen-metrics-urls={self.metrics_url}", *self.flags, *flags], stdout=log, stderr=log)

    def metrics(self):
        try:
            with urllib.request.urlopen(f"{self.metrics_url}/metrics", timeout=10) as answer:
                lines = answer.read().decode().splitlines()
        except OSError:
            return {}
        pairs = (line.rsplit(" ", 1) for line in lines if line.startswith("mainstay_shadow_"))
        return {name: float(value) for name, value in pairs}

    def lines(self, message):
        """The log lines with this message."""
        found = []
        for line in self.log.read_text(errors="replace").splitlines():
            if message in line:
                try:
                    found.append(json.loads(line))
                except ValueError:
                    pass
        return [line for line in found if line["msg"].startswith(message)]

    def equal_at(self, revision):
        """Waits until an equal comparison covers this revision."""

        def is_equal():
            if self.process.poll() is not None:
                raise RuntimeError(f"the shadow has ended ({self.process.returncode}); see {self.log}")
            return any(line["revision"] >= revision for line in self.lines("source and copy are equal"))

        wait_for(f"equal at revision {revision}", is_equal)

    def different(self):
        return self.lines("source and copy are DIFFERENT")

    def end(self, how=signal.SIGTERM):
        if self.process.poll() is None:
            self.cpu += cpu_seconds(self.process.pid)
            self.process.send_signal(how)
        return self.process.wait(timeout=60)


class Load(threading.Thread):
    """Writes without end; each thread has keys of its own, and one kind of work beside puts."""

    def __init__(self, etcd, number, stop):
        super().__init__(daemon=True)
        self.etcd, self.number, self.stop, self.failure = etcd, number, stop, None
        self.random = random.Random(number)

    def run(self):
        try:
            while not self.stop.is_set():
                self.step()
        except Exception as error:  # pylint: disable=broad-except
            self.failure = error

    def step(self):
        etcd, pick = self.etcd, self.random
        key = f"load/{self.number}/{pick.randrange(200)}"
        kind = pick.randrange(10)
        if kind < 6:
            etcd.put(key, "v" * pick.randrange(2000))
        elif kind == 6:
            etcd.call("kv/deleterange", {"key": text(key)})
        elif kind == 7:
            operations = [{"requestPut": {"key": text(f"{key}/{n}"), "value": text(str(n))}} for n in range(pick.randrange(1, 60))]
            operations.append({"requestDeleteRange": {"key": text(f"gone/{self.number}")}})
            etcd.call("kv/txn", {"success": operations})
        elif kind == 8:
            # A lease that ends by itself, with its keys.
            lease = etcd.lease(2)
            for n in range(5):
                etcd.put(f"lease/{self.number}/{pick.randrange(50)}/{n}", "v", lease=lease)
        else:
            etcd.call("kv/deleterange", {"key": text(f"load/{self.number}/1"), "range_end": text(f"load/{self.number}/2")})


class Checks:
    def __init__(self):
        self.passed, self.wrong = 0, []

    def that(self, what, holds):
        if holds:
            self.passed += 1
        else:
            self.wrong.append(what)
            print(f"FAILED: {what}")


def under_load(args, etcd, shadow, checks):
    """Load, compactions, and kills of the shadow; at the end everything is equal."""
    stop = threading.Event()
    writers = [Load(etcd, number, stop) for number in range(4)]
    for writer in writers:
        writer.start()
    shadow.start()
    wait_for("the metrics of the shadow", shadow.metrics)
    first, began, etcd_cpu = etcd.revision(), time.monotonic(), cpu_seconds(etcd.process.pid)
    lags, seconds, kills, compactions = [], [], 0, 0
    while time.monotonic() - began < args.seconds:
        time.sleep(1)
        figures = shadow.metrics()
        if figures:
            lags.append(max(0.0, etcd.revision() - figures["mainstay_shadow_revision"]))
            seconds.append(figures["mainstay_shadow_lag_seconds"])
        elapsed = time.monotonic() - began
        if elapsed > (compactions + 1) * 6:
            etcd.call("kv/compaction", {"revision": str(etcd.revision() - 200)})
            compactions += 1
        if elapsed > (kills + 1) * 9:
            shadow.end(signal.SIGKILL)
            kills += 1
            shadow.start()
    stop.set()
    for writer in writers:
        writer.join()
        checks.that(f"writer {writer.number}: {writer.failure}", writer.failure is None)
    span, written = time.monotonic() - began, etcd.revision() - first
    # Leases may still end; the last revision comes after them.
    wait_for("all leases have ended", lambda: not etcd.call("lease/leases", {}).get("leases"))
    last = int(etcd.put("last", "x")["header"]["revision"])
    shadow.equal_at(last)
    checks.that("equal under load, through kills and compactions", not shadow.different())
    checks.that("compactions were followed", len(shadow.lines("followed a compaction of the source")) > 0)
    figures = shadow.metrics()
    checks.that("the metrics say equal", figures['mainstay_shadow_comparisons_total{result="equal"}'] > 0
                and figures["mainstay_shadow_different"] == 0 and figures["mainstay_shadow_lag_revisions"] == 0)
    shadow_cpu, etcd_cpu = shadow.cpu + cpu_seconds(shadow.process.pid), cpu_seconds(etcd.process.pid) - etcd_cpu
    print(f"{written / span:.0f} revisions a second for {span:.0f} s, {kills} kills, {compactions} compactions; "
          f"lag of revisions p50 {sorted(lags)[len(lags) // 2]:.0f}, max {max(lags):.0f}, of seconds max {max(seconds):.0f}; "
          f"shadow {shadow_cpu:.1f} s of processor time, {rss_mib(shadow.process.pid):.0f} MiB; "
          f"etcd {etcd_cpu:.1f} s, {rss_mib(etcd.process.pid):.0f} MiB")
    return last


def large(args, etcd, shadow, checks):
    """Revisions with very many changes: a deleted range, and a lease with many keys that ends."""
    lease = etcd.lease(3600)
    for start in range(0, args.keys, 100):
        def put(key, start=start, **more):
            return [{"requestPut": {"key": text(f"{key}/{n:07d}"), "value": text("v"), **more}} for n in range(start, start + 50)]
        etcd.call("kv/txn", {"success": put("many") + put("leased", lease=lease)})
    etcd.call("kv/deleterange", {"key": text("many/"), "range_end": text("many0")})
    etcd.call("lease/revoke", {"ID": lease})
    shadow.equal_at(etcd.revision())
    checks.that("equal after revisions with many changes", not shadow.different())


def away(etcd, shadow, checks):
    """The source is away, and comes back; and then it is outrun while the shadow is away."""
    etcd.stop(signal.SIGKILL)
    wait_for("the shadow says that its source is away", lambda: shadow.lines("cannot follow the source"))
    wait_for("the lag grows", lambda: shadow.metrics().get("mainstay_shadow_lag_seconds", 0) > 12)
    etcd.start()
    shadow.equal_at(int(etcd.put("back", "x")["header"]["revision"]))
    checks.that("equal after the source was away", not shadow.different())
    checks.that("the shadow stops with code 0", shadow.end() == 0)
    for n in range(20):
        etcd.put("outrun", str(n))
    etcd.call("kv/compaction", {"revision": str(etcd.revision())})
    shadow.start()
    shadow.equal_at(int(etcd.put("made", "again")["header"]["revision"]))
    checks.that("it began again from a snapshot", len(shadow.lines("the shadow begins again from a snapshot")) == 1)


def corrupt(etcd, shadow, checks):
    """The CORRUPT alarm of the source is named, and its end, too."""
    member = etcd.call("kv/range", {"key": text("x")})["header"]["member_id"]
    alarm = {"memberID": member, "alarm": "CORRUPT"}
    etcd.call("maintenance/alarm", {"action": "ACTIVATE", **alarm})
    wait_for("the shadow names the alarm", lambda: [line for line in shadow.lines("the source has alarms") if "CORRUPT" in str(line)])
    etcd.call("maintenance/alarm", {"action": "DEACTIVATE", **alarm})
    wait_for("the shadow says that it has ended", lambda: shadow.lines("the source has no alarms any more"))
    shadow.equal_at(int(etcd.put("repaired", "x")["header"]["revision"]))
    checks.that("equal after the CORRUPT alarm", not shadow.different())


def secured(etcd, shadow, checks, etcdctl):
    """With authentication only root may be followed."""
    run = [etcdctl, "--endpoints", etcd.client]
    for words in (["user", "add", PASSWORD], ["user", "grant-role", "root", "root"], ["auth", "enable"]):
        subprocess.run([*run, *words], check=True, capture_output=True, env={"ETCDCTL_API": "3"})
    checks.that("the shadow stops", shadow.end() == 0)
    shadow.start()
    checks.that("without a user it is refused", shadow.process.wait(timeout=60) == 1)
    checks.that("and says what it needs", "a user with the role root" in shadow.log.read_text(errors="replace"))
    shadow.flags.append(f"--user={PASSWORD}")
    shadow.start()
    name, password = PASSWORD.split(":")
    etcd.token = etcd.call("auth/authenticate", {"name": name, "password": password})["token"]
    shadow.equal_at(int(etcd.put("secured", "x")["header"]["revision"]))
    checks.that("equal with authentication", not shadow.different())


def planted(args, etcd, shadow, checks):
    """A change of the copy by another program is found and named."""
    checks.that("the shadow stops with code 0 while all is equal", shadow.end() == 0)
    client, peer = free_ports(2)
    with open(shadow.data.parent / "planting.log", "ab") as log:
        member = subprocess.Popen(
            [args.mainstay, "--name=shadow", f"--data-dir={shadow.data / 'data'}", f"--listen-client-urls=http://127.0.0.1:{client}",
             f"--advertise-client-urls=http://127.0.0.1:{client}", f"--listen-peer-urls=http://127.0.0.1:{peer}"],
            stdout=log, stderr=log)
    run = [args.etcdctl, "--endpoints", f"127.0.0.1:{client}", "put", "planted", "y"]
    wait_for("a planted change", lambda: subprocess.run(run, capture_output=True, env={"ETCDCTL_API": "3"}).returncode == 0)
    member.terminate()
    member.wait(timeout=60)
    etcd.put("planted", "x")
    etcd.put("after", "x")
    shadow.start("--exit-on-mismatch")
    checks.that("the shadow ends with code 3", shadow.process.wait(timeout=PATIENCE_SECONDS) == 3)
    found = shadow.different()
    checks.that("the difference is said once, with the key", len(found) == 1 and '"planted"' in found[0]["difference"])


def beside(args, program, checks):
    with tempfile.TemporaryDirectory(prefix="shadow-", dir=args.dir) as directory:
        directory = Path(directory)
        etcd = Etcd(program, directory)
        shadow = Shadow(args.mainstay, etcd.client, directory)
        try:
            etcd.start()
            for n in range(500):
                etcd.put(f"before/{n}", "v" * 100)
            under_load(args, etcd, shadow, checks)
            large(args, etcd, shadow, checks)
            away(etcd, shadow, checks)
            corrupt(etcd, shadow, checks)
            secured(etcd, shadow, checks, args.etcdctl)
            planted(args, etcd, shadow, checks)
        except Exception:
            print("\n".join(shadow.log.read_text(errors="replace").splitlines()[-30:]) if shadow.log.exists() else "")
            raise
        finally:
            if shadow.process and shadow.process.poll() is None:
                shadow.process.kill()
                shadow.process.wait()
            etcd.stop(signal.SIGKILL)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--etcd", action="append", required=True, help="program of the source; may be given several times")
    parser.add_argument("--etcdctl", required=True)
    parser.add_argument("--mainstay", required=True)
    parser.add_argument("--seconds", type=float, default=40, help="duration of the load")
    parser.add_argument("--keys", type=int, default=40_000, help="keys that one revision deletes")
    parser.add_argument("--dir", help="where directories are made")
    args = parser.parse_args()
    checks = Checks()
    for program in args.etcd:
        version = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout.splitlines()[0]
        print(f"beside {version}")
        try:
            beside(args, program, checks)
        except (RuntimeError, OSError, subprocess.SubprocessError) as error:
            checks.that(f"{version}: {error}", False)
    print(f"{checks.passed} passed, {len(checks.wrong)} failed")
    return 1 if checks.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
