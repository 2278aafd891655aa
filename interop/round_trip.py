#!/usr/bin/env python3
"""State on its way from etcd to Mainstay and back, by files.

For each release of etcd that is there: a member is filled with keys, history, leases and users and compacted; then

  snapshot   etcd saves one; `mainstay utl` says of it what etcdutl says, and restores it; Mainstay serves it, saves one in
             turn, and etcdutl (etcdctl before 3.6) of each release restores that, and etcd of that release serves it
  as etcd    `mainstay utl snapshot restore --format etcd` of etcd's snapshot; etcd serves it, users included
  directory  the member was killed: `mainstay utl import`, Mainstay serves it and writes more, `mainstay utl export`, and
             etcd serves that
  raised     etcdutl restores the snapshot with `--bump-revision`, and etcd serves that and is written to; then Mainstay serves that
             directory, and `mainstay utl` restores the snapshot in the same way in both formats, and restores and exports what was
             saved of Mainstay's before it was written to

and at every station HashKV at several revisions, the number of keys and the leases are those that the first etcd told, users,
roles and permissions too; authentication is enabled there, users log in with their passwords, may do what they were
granted and nothing else, and it is disabled again.

    interop/round_trip.py --etcd-dir DIR --mainstay target/release/mainstay [--utl PROGRAM] [--keys 100000]

DIR has programs named etcd-3.5, etcdctl-3.5, etcdutl-3.6 and so on. Python 3, standard library only.
"""

import argparse
import base64
import http.client
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time

from ports import free_ports

LEASES = 50
# What the users of `fill` may do, and the errors of those who may not.
DENIED = "etcdserver: permission denied"
FAILED = "etcdserver: authentication failed, invalid user ID or password"
LOGGED_IN = {
    "get": ["key/large"],
    "put": "OK",
    "forget": "1",
    "elsewhere": DENIED,
    "password": FAILED,
    "nobody": FAILED,
    "no password": "rpc error: code = Unknown desc = auth: authentication failed, password was given for no password user",
    "not root": DENIED,
}
CTL = "3.7"


def b64(text):
    return base64.b64encode(text if isinstance(text, bytes) else text.encode()).decode()


def memory_kib(pid):
    """The most memory that a process ever had in RAM."""
    try:
        with open(f"/proc/{pid}/status") as status:
            found = [line.split()[1] for line in status if line.startswith("VmHWM")]
        return int(found[0]) if found else 0
    except OSError:
        return 0


class Trip:
    def __init__(self, args):
        self.args = args
        self.passed = 0
        self.failed = 0
        self.figures = []

    def path(self, program, release):
        return os.path.join(self.args.etcd_dir, f"{program}-{release}")

    def has(self, program, release):
        return os.path.exists(self.path(program, release))

    def equal(self, found, expected, what):
        if found == expected:
            self.passed += 1
        else:
            self.failed += 1
            print(f"FAILED {what}\n  expected {expected}\n  found    {found}", flush=True)

    def run(self, words, what=None):
        """Runs a program; with `what`, notes seconds and most memory."""
        began = time.monotonic()
        env = dict(os.environ, ETCDCTL_API="3")
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            child = subprocess.Popen(words, stdout=out, stderr=err, env=env)
            most_kib = 0
            while True:
                # What wait4 says of memory counts this program too, which forked.
                most_kib = max(most_kib, memory_kib(child.pid)) if what else 0
                pid, status, usage = os.wait4(child.pid, os.WNOHANG if what else 0)
                if pid:
                    break
                time.sleep(0.01)
            child.returncode = os.waitstatus_to_exitcode(status)
            out.seek(0)
            err.seek(0)
            text, errors = out.read().decode(), err.read().decode()
        if child.returncode != 0:
            raise RuntimeError(f"{' '.join(words)}: {child.returncode}\n{text}{errors}")
        if what:
            took = time.monotonic() - began
            figure = f"{what}: {took:.2f} s, {usage.ru_utime + usage.ru_stime:.2f} s CPU, {most_kib / 1024:.0f} MiB at most"
            self.figures.append(figure)
            print(f"  {figure}", flush=True)
        return text

    def utl(self, words, what=None):
        return self.run(self.args.utl + words, what)


class Server:
    """A member, of either kind."""

    def __init__(self, trip, program, directory, log):
        self.trip = trip
        ports = free_ports(2)
        client, peer = (f"http://127.0.0.1:{port}" for port in ports)
        self.port = ports[0]
        self.endpoint = f"127.0.0.1:{ports[0]}"
        words = [program, "--data-dir", directory, "--listen-client-urls", client, "--advertise-client-urls", client,
                 "--listen-peer-urls", peer, "--quota-backend-bytes", str(8 << 30)]
        self.log = open(log, "ab")
        self.child = subprocess.Popen(words, stdout=self.log, stderr=self.log)
        deadline = time.monotonic() + 60
        while True:
            try:
                self.ctl(["endpoint", "status", "--command-timeout", "2s"])
                answer = json.loads(self.ctl(["endpoint", "status", "-w", "json"]))
                if answer[0]["Status"].get("leader"):
                    break
            except RuntimeError:
                pass
            if self.child.poll() is not None or time.monotonic() > deadline:
                self.stop()
                raise RuntimeError(f"{program} does not serve {directory}; see {log}")
            time.sleep(0.1)

    def ctl(self, words, what=None):
        return self.trip.run([self.trip.path("etcdctl", CTL), "--endpoints", self.endpoint] + words, what)

    def call(self, path, body):
        connection = getattr(self, "connection", None)
        if connection is None:
            self.connection = connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.request("POST", path, json.dumps(body))
        answer = connection.getresponse()
        text = answer.read()
        if answer.status != 200:
            raise RuntimeError(f"{path}: {answer.status} {text[:200]}")
        return json.loads(text)

    def hash_kv(self, revision):
        found = json.loads(self.ctl(["endpoint", "hashkv", "--rev", str(revision), "-w", "json"]))[0]["HashKV"]
        return found["hash"], found["compact_revision"]

    def revision(self):
        status = json.loads(self.ctl(["endpoint", "status", "-w", "json"]))[0]["Status"]
        return status["header"]["revision"]

    def told(self, revisions):
        """What is compared."""
        count = self.ctl(["get", "key/", "--prefix", "--count-only", "-w", "fields"]).split('"Count" : ')[1].strip()
        leases = json.loads(self.ctl(["lease", "list", "-w", "json"]))
        ids = sorted(lease["id"] for lease in leases.get("leases", []))
        lease = json.loads(self.ctl(["lease", "timetolive", f"{ids[0]:x}", "--keys", "-w", "json"]))
        return {
            "hashes": {revision: self.hash_kv(revision) for revision in revisions},
            "keys": count,
            "leases": ids,
            "a lease": (lease["granted-ttl"], sorted(lease.get("keys") or [])),
        }

    def users(self):
        """Users, their roles, and what these allow."""
        names = self.ctl(["user", "list"]).split()
        roles = self.ctl(["role", "list"]).split()
        return {
            "users": {name: self.ctl(["user", "get", name]) for name in names},
            "roles": {role: self.ctl(["role", "get", role]) for role in roles},
        }

    def log_in(self, trip, what):
        """Users get in with their passwords, and only to what they were granted."""
        def refused(user, words):
            try:
                self.ctl(words + ["--user", user])
            except RuntimeError as error:
                return str(error).strip().splitlines()[-1].removeprefix("Error: ")
            return "nothing"

        self.ctl(["auth", "enable"])
        found = {
            "get": self.ctl(["get", "key/large", "--keys-only", "--user", "ann:secret"]).split(),
            "put": self.ctl(["put", "key/ann", "x", "--user", "ann:secret"]).strip(),
            "forget": self.ctl(["del", "key/ann", "--user", "root:rootpw"]).strip(),
            "elsewhere": refused("ann:secret", ["get", "other"]),
            "password": refused("ann:secreT", ["get", "key/large"]),
            "nobody": refused("eve:secret", ["get", "key/large"]),
            "no password": refused("cn:secret", ["get", "key/large"]),
            "not root": refused("ann:secret", ["user", "list"]),
        }
        self.ctl(["auth", "disable", "--user", "root:rootpw"])
        trip.equal(found, LOGGED_IN, f"logins at {what}")

    def stop(self, how=signal.SIGTERM):
        if self.child.poll() is None:
            self.child.send_signal(how)
            self.child.wait()
        self.log.close()


def fill(server, keys):
    """Gives revisions at which HashKV can be asked for."""
    numbers = random.Random(7)
    for n in range(1, LEASES + 1):
        server.call("/v3/lease/grant", {"ID": n * 1_000_003, "TTL": 7200 + n})
    ops = []

    def flush():
        if ops:
            server.call("/v3/kv/txn", {"success": ops})
            ops.clear()

    def put(n, value):
        lease = numbers.randrange(1, LEASES + 1) * 1_000_003 if numbers.randrange(20) == 0 else 0
        ops.append({"request_put": {"key": b64(f"key/{n:08}"), "value": b64(value), "lease": lease}})
        if len(ops) == 100:
            flush()

    for n in range(keys):
        put(n, bytes([n % 256]) * numbers.randrange(200))
    flush()
    for n in numbers.sample(range(keys), keys // 5):
        put(n, b"again")
    flush()
    for n in numbers.sample(range(keys), min(keys // 10, 2000)):
        server.call("/v3/kv/deleterange", {"key": b64(f"key/{n:08}")})
    server.call("/v3/kv/put", {"key": b64("key/large"), "value": b64(b"L" * 1_000_000)})
    for name, password in ("root", "rootpw"), ("ann", "secret"):
        server.call("/v3/auth/user/add", {"name": name, "password": password})
        server.call("/v3/auth/role/add", {"name": name})
        server.call("/v3/auth/user/grant", {"user": name, "role": name})
    permission = {"permType": "READWRITE", "key": b64("key/"), "range_end": b64("key0")}
    server.call("/v3/auth/role/grant", {"name": "ann", "perm": permission})
    # For certificates.
    server.call("/v3/auth/user/add", {"name": "cn", "options": {"no_password": True}})
    server.call("/v3/auth/user/grant", {"user": "cn", "role": "ann"})
    current = server.revision()
    compacted = current - min(1000, current // 3)
    server.call("/v3/kv/compaction", {"revision": compacted, "physical": True})
    for n in range(100):
        put(n, b"late")
        flush()
    # At the compact revision itself a member answers what it computed when it compacted, until it starts again.
    return [compacted + 1, compacted + 2, current - min(500, current // 6), current, current + 100]


def round_trip(trip, release, directory):
    at = lambda name: os.path.join(directory, name)
    print(f"etcd {release}", flush=True)
    server = Server(trip, trip.path("etcd", release), at("first"), at("first.log"))
    revisions = fill(server, trip.args.keys)
    expected, users = server.told(revisions), server.users()

    def station(server, what, revisions=revisions, expected=expected):
        trip.equal(server.told(revisions), expected, what)
        trip.equal(server.users(), users, f"users at {what}")

    saved = at("saved.db")
    trip.run([trip.path("etcdctl", release), "--endpoints", server.endpoint, "snapshot", "save", saved], f"etcdctl-{release} snapshot save")
    print(f"  {os.path.getsize(saved)} bytes", flush=True)
    server.stop(signal.SIGKILL)

    copy = at("copy.db")
    shutil.copy(saved, copy)
    status = [["snapshot", "status", "-w", "json"], ["hashkv", "-w", "json"], ["hashkv", "--rev", str(revisions[2]), "-w", "json"]]
    ours = [trip.utl(words + [copy], f"utl {words[0]} {words[1] if words[0] == 'snapshot' else ''}".strip()) for words in status]
    theirs = [trip.run([trip.path("etcdutl", "3.7")] + words + [copy]) for words in status]
    trip.equal(ours, theirs, "status and hashkv as etcdutl 3.7 has them")

    trip.utl(["snapshot", "restore", saved, "--data-dir", at("restored")], "utl snapshot restore")
    server = Server(trip, trip.args.mainstay, at("restored"), at("restored.log"))
    station(server, "Mainstay with etcd's snapshot")
    server.log_in(trip, "Mainstay with etcd's snapshot")
    ours = at("ours.db")
    server.ctl(["snapshot", "save", ours], "etcdctl snapshot save of Mainstay")
    print(f"  {os.path.getsize(ours)} bytes", flush=True)
    server.stop()
    for to in ["3.5", "3.6", "3.7"]:
        if not trip.has("etcd", to):
            continue
        # Before 3.6 that was a command of etcdctl.
        program = trip.path("etcdutl", to) if trip.has("etcdutl", to) else trip.path("etcdctl", to)
        back = at(f"back-{to}")
        trip.run([program, "snapshot", "restore", ours, "--data-dir", back])
        server = Server(trip, trip.path("etcd", to), back, at(f"back-{to}.log"))
        station(server, f"etcd {to} with Mainstay's snapshot")
        server.log_in(trip, f"etcd {to} with Mainstay's snapshot")
        server.stop()
        shutil.rmtree(back)

    trip.utl(["snapshot", "restore", saved, "--data-dir", at("etcd"), "--format", "etcd"], "utl snapshot restore --format etcd")
    # A state goes up one release at a time, and 3.6 takes that of 3.4 and 3.5.
    to = "3.7" if release == "3.7" else "3.6"
    server = Server(trip, trip.path("etcd", to), at("etcd"), at("etcd.log"))
    station(server, f"etcd {to} with our restore")
    server.log_in(trip, f"etcd {to} with our restore")
    server.stop()

    trip.utl(["import", "--data-dir", at("first"), "--to", at("imported")], "utl import")
    server = Server(trip, trip.args.mainstay, at("imported"), at("imported.log"))
    station(server, "Mainstay with etcd's directory")
    server.log_in(trip, "Mainstay with etcd's directory")
    server.ctl(["put", "key/after", "import"])
    last = server.revision()
    more = server.told(revisions + [last])
    server.stop()
    for to in ["3.5", "3.6", "3.7"]:
        if not trip.has("etcd", to):
            continue
        exported = at(f"exported-{to}")
        trip.utl(["export", "--data-dir", at("imported"), "--to", exported, "--release", to], f"utl export --release {to}")
        server = Server(trip, trip.path("etcd", to), exported, at(f"exported-{to}.log"))
        station(server, f"etcd {to} with our export", revisions + [last], more)
        server.log_in(trip, f"etcd {to} with our export")
        server.stop()
        # What that etcd did is thrown away, so that the member may be exported for another one.
        os.remove(os.path.join(at("imported"), "member", "exported"))


BUMP = ["--bump-revision", "1000000", "--mark-compacted"]


def raised(trip, release, directory):
    """etcd's hashes cover what a raised revision leaves in its database, for ever."""
    at = lambda name: os.path.join(directory, name)
    saved, etcd, etcdutl = at("saved.db"), trip.path("etcd", release), trip.path("etcdutl", release)

    def served(program, name, what, is_expected=True):
        """What the member says before and after writes and compactions, which are the same for all."""
        server = Server(trip, program, at(name), at(f"{name}.log"))
        first = server.revision()
        # Asked for this revision itself, etcd answers what it computed when it compacted there, at its start.
        found = [(first, server.hash_kv(0))]
        if program != etcd:
            server.ctl(["snapshot", "save", at(f"{name}.db")])
        for n in range(20):
            server.ctl(["put", "key/raised", str(n)])
        server.ctl(["compact", str(first + 10)])
        found += [(revision, server.hash_kv(revision)) for revision in range(first + 11, first + 21)]
        server.stop(signal.SIGKILL)
        server = Server(trip, program, at(name), at(f"{name}.log"))
        found += [(revision, server.hash_kv(revision)) for revision in range(first + 11, first + 21)]
        server.stop()
        if is_expected:
            trip.equal(found, expected, what)
        return found

    trip.run([etcdutl, "snapshot", "restore", saved, "--data-dir", at("raised"), *BUMP])
    shutil.copytree(at("raised"), at("taken-over"))
    shutil.copytree(at("raised"), at("to-import"))
    expected = served(etcd, "raised", "", False)
    trip.utl(["snapshot", "restore", saved, "--data-dir", at("raised-ours"), *BUMP])
    trip.utl(["snapshot", "restore", saved, "--data-dir", at("raised-format"), "--format", "etcd", *BUMP])
    trip.utl(["import", "--data-dir", at("to-import"), "--to", at("raised-import")])
    for name in ["raised-ours", "taken-over", "raised-import"]:
        served(trip.args.mainstay, name, f"Mainstay with a raised revision, {name}")
    served(etcd, "raised-format", f"etcd {release} with our restore of a raised revision")
    for name in ["raised-ours", "taken-over", "raised-import"]:
        trip.run([etcdutl, "snapshot", "restore", at(f"{name}.db"), "--data-dir", at(f"{name}-back")])
        served(etcd, f"{name}-back", f"etcd {release} with Mainstay's snapshot of a raised revision, {name}")
    trip.utl(["snapshot", "restore", at("raised-ours.db"), "--data-dir", at("raised-again")])
    trip.utl(["export", "--data-dir", at("raised-again"), "--to", at("raised-export"), "--release", release])
    served(etcd, "raised-export", f"etcd {release} with our export of a raised revision")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--etcd-dir", required=True)
    parser.add_argument("--mainstay", required=True)
    parser.add_argument("--utl", help="the tool; `mainstay utl` if not given")
    parser.add_argument("--keys", type=int, default=100_000)
    parser.add_argument("--releases", default="3.4,3.5,3.6,3.7")
    args = parser.parse_args()
    args.utl = [args.utl] if args.utl else [args.mainstay, "utl"]
    trip = Trip(args)
    for release in args.releases.split(","):
        if not trip.has("etcd", release):
            print(f"etcd {release} is not there", flush=True)
            continue
        with tempfile.TemporaryDirectory(prefix="round-trip-") as directory:
            try:
                round_trip(trip, release, directory)
                # Early releases of 3.5 have no such flag.
                if trip.has("etcdutl", release) and BUMP[0] in trip.run([trip.path("etcdutl", release), "snapshot", "restore", "--help"]):
                    raised(trip, release, directory)
            except RuntimeError as error:
                trip.failed += 1
                print(f"FAILED {error}", flush=True)
                for name in sorted(os.listdir(directory)):
                    if name.endswith(".log"):
                        with open(os.path.join(directory, name), errors="replace") as log:
                            print(f"--- {name}\n" + "".join(log.readlines()[-3:])[:1500], flush=True)
    print(f"{trip.passed} passed, {trip.failed} failed")
    sys.exit(1 if trip.failed else 0)


if __name__ == "__main__":
    main()
