#!/usr/bin/env python3
"""Members of real etcd that become Mainstay's where they are, and etcd's again.

The binary is changed, and nothing else: Mainstay is started with etcd's flags on etcd's data directory. For each etcd given:

  single   one member, stopped or killed, with its log in the data directory or in one of its own: Mainstay goes on, is stopped,
           `mainstay utl export` gives its directory back, and etcd goes on; and then Mainstay once more, and `drop-etcd`
  kills    Mainstay is killed with SIGKILL at moments all over the takeover. Each time etcd's files are as they were; every second
           time etcd goes on in between, and writes
  cluster  three members while a client writes all the time: one after the other becomes Mainstay's, then one after the other
           etcd's again, each step as `mainstay doctor migrate` names it, which may find nothing wrong. No write that was
           acknowledged may be lost
  doctor   three members with TLS for clients and members, certificates of both, and users. What `mainstay doctor migrate` has to name
           before the first step: a member that is stopped, two that do not reach each other, NOSPACE, too little disk, a call without
           the user root. Then, without --short, one member becomes Mainstay's, and etcd's again, by the commands that it names
  leases   a lease whose client renews late is there as long as it is renewed, when three members whose leader is Mainstay's go on with
           a leader that is etcd's, and, without --short, when one member goes back by `utl export`
  disk     the disk is too small for both. Mainstay says so and ends, etcd's files are as they were, and etcd goes on
           (a tmpfs is mounted, so this needs root)

HashKV at several revisions, the number of keys, leases, members and ids are the same before and after each step, at every member.
Of 3.4, the way back leads to the oldest etcd given that is newer.

    interop/takeover.py --etcd PATH [--etcd PATH ...] --etcdctl PATH --mainstay PATH [--only single,kills] [--short]

Python 3.9+, standard library only; openssl.
"""

import argparse
import base64
import contextlib
import hashlib
import http.client
import json
import os
import random
import shutil
import signal
import ssl
import subprocess
import sys
import tempfile
import threading
import time

from secured_clients import certificates

from ports import free_ports

PATIENCE_SECONDS = 60
GUARDS = ("fffffffffffffff0-ffffffffffffffff.wal", "ffffffffffffffff-ffffffffffffffff.wal")
# A directory beside them, whose name etcd prints when it ends.
GUARD_MESSAGE = ("fffffffffffffff1-ffffffffffffffff.wal.THIS-IS-DATA-OF-MAINSTAY.start-mainstay"
                 ".or-to-go-back-to-etcd-run-mainstay-utl-export.wal")
PARTS = ("single", "kills", "cluster", "doctor", "leases", "disk")


def b64(text):
    return base64.b64encode(text if isinstance(text, bytes) else text.encode()).decode()


def release_of(program):
    """The release of an etcd, as "3.6"."""
    said = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout
    return ".".join(said.split(":", 1)[1].split()[0].split(".")[:2])


def way_back(args, etcd):
    """The etcd to which a member goes back. Nothing goes back to 3.4: the state of the cluster has left that form behind."""
    found = [one for one in args.etcd if number(release_of(one)) >= max((3, 5), number(release_of(etcd)))]
    return min(found, key=lambda one: number(release_of(one)), default=None)


def number(release):
    return tuple(int(part) for part in release.split("."))


class Wrong(Exception):
    """What was expected is not so."""


def until(what, is_so, ended=lambda: None, seen=lambda: None):
    """Waits until a condition holds. `ended` says why it no longer can, and `seen` what there is instead when time is up."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    last = None
    while True:
        try:
            if is_so():
                return
        except (OSError, http.client.HTTPException, ValueError) as error:
            last = error
        if (why := ended()) is not None or time.monotonic() > deadline:
            why = why or seen() or last
            raise Wrong(f"waited in vain until {what}{f': {why}' if why else ''}")
        time.sleep(0.05)


class Tally:
    def __init__(self):
        self.passed = self.failed = 0

    def equal(self, found, expected, what):
        if found == expected:
            self.passed += 1
        else:
            self.failed += 1
            print(f"FAILED {what}\n  expected {expected}\n  found    {found}", flush=True)


class Refused(OSError):
    """An answer other than 200."""

    def __init__(self, path, status, text):
        super().__init__(f"{path}: {status} {text[:200]}")
        self.status = status


def call(port, path, body, timeout=5, tls=None, headers=None):
    """One call of the JSON gateway."""
    if tls:
        connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=timeout, context=tls)
    else:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
    try:
        connection.request("POST", path, json.dumps(body), headers or {})
        answer = connection.getresponse()
        text = answer.read()
    finally:
        connection.close()
    if answer.status != 200:
        raise Refused(path, answer.status, text)
    return json.loads(text)


class Security:
    """TLS with certificates of clients and of members, each of its own name, and the user root once it is added."""

    USER = {"name": "root", "password": "wonderland"}

    def __init__(self, directory, members):
        self.directory, self.has_users, self.tokens = directory, False, {}
        # etcd's JSON gateway takes no certificate with a common name, which is a user elsewhere.
        certificates(directory, members, 300, ["client"])
        self.tls = ssl.create_default_context(cafile=self.path("ca.crt"))
        self.tls.load_cert_chain(self.path("client.crt"), self.path("client.key"))
        self.files = [f"--cacert={self.path('ca.crt')}", f"--cert={self.path('client.crt')}", f"--key={self.path('client.key')}"]
        self.user = [f"--user={self.USER['name']}:{self.USER['password']}"]

    def path(self, name):
        return os.path.join(self.directory, name)

    def flags(self, name):
        """Those of a member."""
        own, authority = (self.path(f"{name}.crt"), self.path(f"{name}.key")), self.path("ca.crt")
        return [f"--cert-file={own[0]}", f"--key-file={own[1]}", f"--trusted-ca-file={authority}", "--client-cert-auth",
                f"--peer-cert-file={own[0]}", f"--peer-key-file={own[1]}", f"--peer-trusted-ca-file={authority}",
                "--peer-client-cert-auth", "--bcrypt-cost=4"]

    def add_users(self, member):
        for path, body in [("user/add", self.USER), ("role/add", {"name": "root"}), ("user/grant", {"user": "root", "role": "root"}),
                           ("enable", {})]:
            member.call(f"/v3/auth/{path}", body)
        self.has_users = True

    def call(self, port, path, body):
        """A call as root, once there are users. A member knows no token from before it was started."""
        if not self.has_users:
            return call(port, path, body, tls=self.tls)
        if token := self.tokens.get(port):
            try:
                return call(port, path, body, tls=self.tls, headers={"Authorization": token})
            except OSError as error:
                if "invalid auth token" not in str(error):
                    raise
        self.tokens[port] = call(port, "/v3/auth/authenticate", self.USER, tls=self.tls)["token"]
        return call(port, path, body, tls=self.tls, headers={"Authorization": self.tokens[port]})

    def unknown_tokens(self, ports):
        """Which members do not know the token that another one gives out: pairs of ports."""
        unknown = []
        for port in ports:
            headers = {"Authorization": call(port, "/v3/auth/authenticate", self.USER, tls=self.tls)["token"]}
            for other in ports:
                # etcd may look for it before it has applied the entry that made it.
                deadline = time.monotonic() + PATIENCE_SECONDS / 6
                while True:
                    try:
                        call(other, "/v3/kv/range", {"key": b64("k")}, tls=self.tls, headers=headers)
                        break
                    except OSError as error:
                        if "invalid auth token" not in str(error):
                            raise
                    if time.monotonic() > deadline:
                        unknown.append((port, other))
                        break
                    time.sleep(0.1)
        return unknown


class Member:
    """One member, run by etcd or by Mainstay on the same directory with the same flags."""

    etcdctl = None

    def __init__(self, directory, name, ports, cluster, apart=False, security=None):
        self.directory, self.name, self.apart, self.security = directory, name, apart, security
        self.port, peer = ports
        self.log_path = os.path.join(directory, f"{name}.log")
        scheme = "https" if security else "http"
        client, peer = f"{scheme}://127.0.0.1:{self.port}", f"{scheme}://127.0.0.1:{peer}"
        self.flags = [f"--name={name}", f"--data-dir={self.data()}", f"--listen-client-urls={client}",
                      f"--advertise-client-urls={client}", f"--listen-peer-urls={peer}",
                      f"--initial-advertise-peer-urls={peer}", f"--initial-cluster={cluster}"]
        if apart:
            self.flags.append(f"--wal-dir={self.wal()}")
        if security:
            self.flags += security.flags(name)
        self.process = None

    def data(self):
        return os.path.join(self.directory, self.name)

    def wal(self):
        return os.path.join(self.directory, f"{self.name}.wal") if self.apart else os.path.join(self.data(), "member", "wal")

    def start(self, program, *more):
        with open(self.log_path, "ab") as log:
            self.began_at = log.tell()
            self.process = subprocess.Popen([program, *self.flags, *more], stdout=log, stderr=log)

    def said(self):
        """What the process logged since it was started last."""
        with open(self.log_path, "rb") as log:
            log.seek(self.began_at)
            return log.read().decode(errors="replace")

    def wait(self, meanwhile=lambda: None):
        """Waits until the member serves and knows a leader."""
        def serves():
            try:
                self.call("/v3/kv/range", {"key": b64("x")})
                return True
            except (OSError, http.client.HTTPException):
                meanwhile()
                return False

        def said():
            return self.said()[-1500:]

        until(f"{self.name} serves", serves, lambda: None if self.process.poll() is None else said(), said)

    def serve(self, program, *more):
        self.start(program, *more)
        self.wait()

    def lead(self, others):
        """Has the others move the lead here, if one of them has it."""
        for other in others:
            with contextlib.suppress(OSError, http.client.HTTPException):
                status = self.status()
                own = status["header"]["member_id"]
                if status.get("leader") in (None, own):
                    return
                other.call("/v3/maintenance/transfer-leadership", {"targetID": own})

    def stop(self, how=signal.SIGTERM):
        if self.process and self.process.poll() is None:
            self.process.send_signal(how)
            self.process.wait(timeout=PATIENCE_SECONDS)

    def call(self, path, body):
        return self.security.call(self.port, path, body) if self.security else call(self.port, path, body)

    def insist(self, path, body, done=None):
        """A call that may be made again, until it is answered: leaders go by themselves, and disks are slow, at any time. `done` is
        what is said to the second one if the first was carried out."""
        deadline, again = time.monotonic() + PATIENCE_SECONDS, False
        while True:
            try:
                return self.call(path, body)
            except (OSError, http.client.HTTPException) as error:
                if again and done and done in str(error):
                    return None
                goes_by = self.process.poll() is None and (not isinstance(error, Refused) or error.status in (503, 504))
                if not goes_by or time.monotonic() > deadline:
                    raise
            again = True
            time.sleep(0.1)

    def status(self):
        return self.call("/v3/maintenance/status", {})

    def revision(self):
        return int(self.insist("/v3/maintenance/status", {})["header"]["revision"])

    def hash_kv(self, revision):
        """HashKV, which the JSON gateway of 3.4 does not have."""
        done = subprocess.run([self.etcdctl, f"--endpoints=127.0.0.1:{self.port}", "--command-timeout=30s", "endpoint", "hashkv",
                               "--write-out=json", f"--rev={revision}"], capture_output=True, text=True,
                              env=dict(os.environ, ETCDCTL_API="3"))
        if done.returncode:
            raise Wrong(f"HashKV of {self.name} at {revision}: {done.stderr}")
        return json.loads(done.stdout)[0]["HashKV"]["hash"]

    def told(self, revisions):
        """What has to stay the same."""
        count = self.insist("/v3/kv/range", {"key": b64("k"), "range_end": b64("l"), "count_only": True})
        members = self.insist("/v3/cluster/member/list", {})
        leases = self.insist("/v3/lease/leases", {}).get("leases", [])
        return {
            "hashes": {revision: self.hash_kv(revision) for revision in revisions},
            "keys": count.get("count"),
            "leases": sorted(int(lease["ID"]) for lease in leases),
            "ids": (members["header"]["cluster_id"], members["header"]["member_id"]),
            "members": sorted((one["ID"], one["name"], *one["peerURLs"]) for one in members["members"]),
        }

    def etcds(self):
        """etcd's files: names and checksums."""
        found = {}
        for top in (os.path.join(self.data(), "member", "snap"), self.wal()):
            # The first is a file once nothing of etcd is there: for that etcd does not start.
            for name in sorted(os.listdir(top)) if os.path.isdir(top) else []:
                path = os.path.join(top, name)
                if os.path.isfile(path) and name not in GUARDS:
                    with open(path, "rb") as file:
                        found[os.path.join(top, name)] = hashlib.sha256(file.read()).hexdigest()
        return found

    def export(self, mainstay, release):
        """Puts a directory of etcd in the place of the stopped member's. Gives the seconds that it took."""
        made, old = self.data() + ".made", self.data() + ".mainstay"
        for path in made, old:
            shutil.rmtree(path, ignore_errors=True)
        began = time.monotonic()
        done = subprocess.run([mainstay, "utl", "export", "--data-dir", self.data(), "--to", made, "--release", release],
                              capture_output=True, text=True)
        if done.returncode:
            raise Wrong(f"export: {done.stderr}")
        took = time.monotonic() - began
        os.rename(self.data(), old)
        os.rename(made, self.data())
        if self.apart:
            shutil.rmtree(self.wal())
            os.rename(os.path.join(self.data(), "member", "wal"), self.wal())
        return took


def single_member(directory, apart=False):
    ports = free_ports(2)
    return Member(directory, "m0", ports, f"m0=http://127.0.0.1:{ports[1]}", apart)


def fill(member, keys, value_bytes=100):
    """Fills a member, and gives revisions at which it is asked for HashKV."""
    numbers = random.Random(11)
    for n in range(1, 21):
        member.insist("/v3/lease/grant", {"ID": n * 1_000_003, "TTL": 7200 + n}, "lease already exists")
    for first in range(0, keys, 100):
        puts = [{"request_put": {"key": b64(f"k/{n:08}"), "value": b64(numbers.randbytes(value_bytes)),
                                 "lease": numbers.randrange(1, 21) * 1_000_003 if n % 20 == 0 else 0}}
                for n in range(first, min(first + 100, keys))]
        member.insist("/v3/kv/txn", {"success": puts})
    for n in numbers.sample(range(keys), keys // 20):
        member.insist("/v3/kv/put", {"key": b64(f"k/{n:08}"), "value": b64("again")})
    for n in numbers.sample(range(keys), 20):
        member.insist("/v3/kv/deleterange", {"key": b64(f"k/{n:08}")})
    last = member.revision()
    member.insist("/v3/kv/compaction", {"revision": last // 2, "physical": True}, "has been compacted")
    return [last // 2 + 1, last - last // 4, last]


def is_mainstay(member):
    return "took this member over from etcd" in member.said()


def single(args, tally, etcd, directory, how, apart):
    release = release_of(etcd)
    what = f"etcd {release}, {'killed' if how == signal.SIGKILL else 'stopped'}{', log apart' if apart else ''}"
    member = single_member(directory, apart)
    member.serve(etcd)
    try:
        revisions = fill(member, args.keys)
        term = member.insist("/v3/maintenance/status", {})["raftTerm"]
        expected = member.told(revisions)
        member.stop(how)
        left = member.etcds()
        member.serve(args.mainstay)
        tally.equal(is_mainstay(member), True, f"{what}: it is taken over")
        tally.equal(member.told(revisions), expected, f"{what}: Mainstay")
        tally.equal(int(member.insist("/v3/maintenance/status", {})["raftTerm"]) >= int(term), True, f"{what}: the term goes on")
        tally.equal(member.etcds(), left, f"{what}: etcd's files beside Mainstay's")
        more = int(member.insist("/v3/kv/put", {"key": b64("k/more"), "value": b64("1")})["header"]["revision"])
        expected = member.told([*revisions, more])
        member.stop()
        # etcd refuses its old files, and does not touch them.
        member.start(etcd)
        try:
            code = member.process.wait(timeout=PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            code = None
        tally.equal(code not in (0, None), True, f"{what}: etcd on what is out of date ends")
        last = [line for line in member.said().splitlines() if line.strip()][-1]
        tally.equal(GUARD_MESSAGE in last, True, f"{what}: etcd's last line says what to do: {last[-600:]}")
        wal = {path: sum for path, sum in member.etcds().items() if path.endswith(".wal")}
        tally.equal(wal, {path: sum for path, sum in left.items() if path.endswith(".wal")}, f"{what}: etcd's log then")
        member.serve(args.mainstay)
        tally.equal(member.told([*revisions, more]), expected, f"{what}: Mainstay once more")
        member.stop()
        back = way_back(args, etcd)
        if not back:
            print("  the way back was not tried: it leads to etcd 3.5 or later, and none is given", flush=True)
            return
        member.export(args.mainstay, release_of(back))
        member.serve(back)
        tally.equal(member.told([*revisions, more]), expected, f"{what}: etcd again")
        more = int(member.insist("/v3/kv/put", {"key": b64("k/more"), "value": b64("2")})["header"]["revision"])
        expected = member.told([*revisions, more])
        member.stop()
        member.serve(args.mainstay)
        tally.equal(member.told([*revisions, more]), expected, f"{what}: Mainstay behind etcd")
        # While it runs.
        subprocess.run([args.mainstay, "utl", "drop-etcd", "--data-dir", member.data()], check=True, capture_output=True)
        tally.equal(member.etcds(), {}, f"{what}: etcd's files dropped")
        member.stop()
        member.serve(args.mainstay)
        tally.equal(member.told([*revisions, more]), expected, f"{what}: Mainstay without them")
    finally:
        member.stop(signal.SIGKILL)


def kills(args, tally, etcd, directory):
    release = release_of(etcd)
    member = single_member(directory)
    member.serve(etcd)
    try:
        revisions = fill(member, args.keys * 5)
        expected = member.told(revisions)
        member.stop(signal.SIGKILL)
        left = member.etcds()
        kept = os.path.join(directory, "kept")

        def restore():
            shutil.rmtree(member.data())
            shutil.copytree(kept, member.data())

        shutil.copytree(member.data(), kept)
        guard = os.path.join(member.wal(), GUARDS[0])
        began = time.monotonic()
        member.start(args.mainstay)
        # The last step before it serves.
        while not os.path.exists(guard) and member.process.poll() is None:
            time.sleep(0.001)
        takes = 1.1 * (time.monotonic() - began)
        member.wait()
        member.stop()
        restore()
        behind = 0
        for n in range(args.kills):
            what = f"etcd {release}, kill {n} of {args.kills} in {takes:.2f} s"
            member.start(args.mainstay)
            time.sleep(takes * (n + 0.5) / args.kills)
            member.stop(signal.SIGKILL)
            tally.equal(member.etcds(), left, f"{what}: etcd's files")
            if os.path.exists(guard):
                # It was about to serve, and etcd is shut out.
                behind += 1
                member.serve(args.mainstay)
                tally.equal(member.told(revisions), expected, f"{what}: Mainstay goes on")
                member.stop()
                restore()
            elif n % 2:
                # Mainstay has not served: etcd may go on.
                member.serve(etcd)
                tally.equal(member.told(revisions), expected, f"{what}: etcd goes on")
                put = member.call("/v3/kv/put", {"key": b64(f"k/kill{n}"), "value": b64("1")})
                revisions.append(int(put["header"]["revision"]))
                expected = member.told(revisions)
                member.stop(signal.SIGKILL)
                left = member.etcds()
                shutil.rmtree(kept)
                shutil.copytree(member.data(), kept)
        member.serve(args.mainstay)
        tally.equal(member.told(revisions), expected, f"etcd {release}: Mainstay after {args.kills} kills")
        print(f"  {args.kills} kills over {takes:.2f} s, {behind} of them when etcd was shut out", flush=True)
    finally:
        member.stop(signal.SIGKILL)


class Writer(threading.Thread):
    """Writes all the time, each key at one member after the other until it is acknowledged."""

    def __init__(self, ports):
        super().__init__(daemon=True)
        self.ports, self.acknowledged, self.longest, self.over = ports, 0, 0.0, threading.Event()
        self.given_up = None

    def run(self):
        turn = 0
        while not self.over.is_set():
            began = time.monotonic()
            body = {"key": b64(f"w/{self.acknowledged:08}"), "value": b64(str(self.acknowledged))}
            while True:
                turn += 1
                try:
                    call(self.ports[turn % len(self.ports)], "/v3/kv/put", body, timeout=3)
                    break
                except (OSError, http.client.HTTPException) as error:
                    if time.monotonic() - began > PATIENCE_SECONDS:
                        self.given_up = str(error)
                        return
                    time.sleep(0.02)
            self.longest = max(self.longest, time.monotonic() - began)
            self.acknowledged += 1


class Doctor:
    """What `mainstay doctor migrate` says of a cluster."""

    def __init__(self, mainstay, port, flags=()):
        self.mainstay, self.port, self.flags = mainstay, port, flags

    def ask(self, to, *flags, port=None):
        """The exit code, and the report."""
        done = subprocess.run([self.mainstay, "doctor", "migrate", f"--endpoints=127.0.0.1:{port or self.port}", f"--to={to}", "--json",
                               *self.flags, *flags], capture_output=True, text=True, timeout=PATIENCE_SECONDS)
        try:
            report = json.loads(done.stdout)
        except ValueError:
            raise Wrong(f"doctor migrate ended with {done.returncode}: {done.stdout} {done.stderr}") from None
        # Faults of the release that is tried are not what a cluster is set up for here; the doctor's own tests have that warning.
        names = {finding["name"] for finding in report["findings"] if finding["severity"] == "error" or finding["name"] != "patch-releases"}
        report["names"] = sorted(names)
        return done.returncode, report

    def next(self, to, flags=()):
        """The member that is next, and the commands, once the cluster is ready for them. Nothing may be found."""
        report = self.ready(to, *flags)
        if report["names"] or not report["hash_kv"]:
            raise Wrong(f"doctor migrate --to={to} finds something: {report}")
        step, there = report["next"], [member["runs"] for member in report["members"]].count(to)
        if step["is_leader"] and there < len(report["members"]) - 1:
            raise Wrong(f"doctor migrate --to={to} names the leader first: {report}")
        return step["member"].split(" ")[0], step["commands"]

    def ready(self, to, *flags):
        """The first report by which the cluster is ready and knows its version: a member that just started has to catch up."""
        report = None

        def is_content():
            nonlocal report
            code, report = self.ask(to, *flags)
            return code == 0 and "cluster-version" not in report["names"]

        until(f"doctor migrate --to={to} is content", is_content, seen=lambda: report)
        return report


def cluster(args, tally, etcd, directory):
    release = release_of(etcd)
    ports = free_ports(6)
    names = ",".join(f"m{n}=http://127.0.0.1:{ports[3 + n]}" for n in range(3))
    # One of them has its log in a directory of its own.
    members = [Member(directory, f"m{n}", (ports[n], ports[3 + n]), names, apart=n == 1) for n in range(3)]

    def agree(what):
        """All members come to the same revision and say the same of it, while the writer goes on."""
        revision = max(one.revision() for one in members)
        until(f"all come to revision {revision}, {what}",
              lambda: all(int(one.status()["header"]["revision"]) >= revision for one in members))
        tally.equal(len({one.hash_kv(revision) for one in members}), 1, f"etcd {release}, {what}: HashKV at {revision}")

    writer = Writer(ports[:3])
    try:
        for one in members:
            one.start(etcd)
        for one in members:
            one.wait()
        revisions = fill(members[0], args.keys)
        agree("three of etcd")
        expected = [one.told(revisions) for one in members]
        back = way_back(args, etcd)
        writer.start()
        took = {"over": [], "back": []}
        asked, named = Doctor(args.mainstay, ports[0]), {one.name: one for one in members}
        for n in range(3):
            name, commands = asked.next("mainstay")
            # The leader is not asked to let another one lead before it is killed. With --api-version the cluster does not rise to
            # Mainstay's release, and lets etcd of an older one in again.
            one, flags = named[name], [word for word in commands[-1].split() if word.startswith("--")]
            one.stop(signal.SIGKILL if n == 2 else signal.SIGTERM)
            began = time.monotonic()
            one.serve(args.mainstay, *flags)
            took["over"].append(time.monotonic() - began)
            tally.equal(is_mainstay(one), True, f"etcd {release}: {one.name} is taken over")
            agree(f"{n + 1} of Mainstay")
            if n < 2 and number(release) < (3, 5):
                # It would get an empty password at members of 3.4.
                try:
                    one.call("/v3/auth/user/add", {"name": f"user{n}", "password": "secret"})
                    refused = "nothing"
                except OSError as error:
                    refused = str(error)
                tally.equal("not capable" in refused, True, f"etcd {release}: a password in a mixed cluster: {refused}")
        tally.equal([one.told(revisions) for one in members], expected, f"etcd {release}: three of Mainstay")
        tally.equal(asked.ready("mainstay")["done"], True, f"etcd {release}: the doctor sees three of Mainstay")
        for n in range(3 if back else 0):
            name, commands = asked.next("etcd")
            one = named[name]
            if "move-leader" in commands[0]:
                subprocess.run([args.mainstay, *commands.pop(0).split()[1:]], check=True, capture_output=True)
            one.stop(signal.SIGKILL if n == 0 else signal.SIGTERM)
            began = time.monotonic()
            one.export(args.mainstay, commands[0].split("--release ")[1].split()[0])
            one.serve(back)
            took["back"].append(time.monotonic() - began)
            agree(f"{n + 1} of etcd again")
        if back:
            tally.equal([one.told(revisions) for one in members], expected, f"etcd {release}: three of etcd again")
            tally.equal(asked.ready("etcd")["done"], True, f"etcd {release}: the doctor sees three of etcd")
        writer.over.set()
        writer.join(PATIENCE_SECONDS + 10)
        tally.equal(writer.given_up, None, f"etcd {release}: a write that was never acknowledged")
        agree("at the end")
        lost = []
        for one in members:
            found = one.call("/v3/kv/range", {"key": b64("w/"), "range_end": b64("w0")}).get("kvs", [])
            values = {base64.b64decode(kv["key"]).decode(): base64.b64decode(kv["value"]).decode() for kv in found}
            lost += [n for n in range(writer.acknowledged) if values.get(f"w/{n:08}") != str(n)]
        tally.equal(lost, [], f"etcd {release}: lost writes")
        seconds = {key: [round(value, 2) for value in values] for key, values in took.items()}
        print(f"  {writer.acknowledged} writes, the longest waited {writer.longest:.2f} s; seconds from stop to service: {seconds}",
              flush=True)
    finally:
        writer.over.set()
        for one in members:
            one.stop(signal.SIGKILL)


def doctor(args, tally, etcd, directory):
    release = release_of(etcd)
    ports = free_ports(6)
    names = [f"m{n}" for n in range(3)]
    cluster = ",".join(f"{name}=https://127.0.0.1:{port}" for name, port in zip(names, ports[3:]))
    security = Security(directory, names)
    members = {name: Member(directory, name, each, cluster, security=security)
               for name, each in zip(names, zip(ports, ports[3:]))}
    asked = Doctor(args.mainstay, ports[0], [*security.files, *security.user])

    def planted(what, name, *flags, port=None, by=asked):
        code, report = by.ask("mainstay", *flags, port=port)
        tally.equal((code, name in report["names"]), (1, True), f"etcd {release}, {what}: {name} in {report['names']}")
        tally.equal(report["next"], None, f"etcd {release}, {what}: no step")

    try:
        for one in members.values():
            one.start(etcd)
        for one in members.values():
            one.wait()
        fill(members["m0"], args.keys)
        security.add_users(members["m0"])
        before = asked.ready("mainstay", f"--data-dir={members['m0'].data()}")
        runs = [member["runs"] for member in before["members"]]
        # Passwords cannot be changed while members of 3.4 and of Mainstay are together.
        expected = ["passwords-while-mixed"] if number(release) < (3, 5) else []
        tally.equal((before["names"], runs), (expected, ["etcd"] * 3), f"etcd {release}: nothing found")
        tally.equal([one["name"] for one in before["not_looked_at"]], ["old-keys", "settings"], f"etcd {release}: not looked at")
        planted("nobody is named", "hash-kv", by=Doctor(args.mainstay, ports[0], security.files))
        leader = next(one for one in members.values() if one.status()["leader"] == one.status()["header"]["member_id"])
        follower, other = (one for one in members.values() if one is not leader)

        # They take no connection but the leader's, so that the leader brings both up to date, and neither could follow the other.
        # A slow machine may elect another one meanwhile, whom they could not hear.
        keep = lambda: leader.lead((follower, other))
        for one in follower, other:
            one.stop()
            one.start(etcd, f"--peer-cert-allowed-cn={leader.name}")
            one.wait(keep)
        keep()
        planted("followers do not reach each other", "broken-peer-links", port=leader.port)
        follower.stop()
        planted("a member is stopped", "unreachable", f"--data-dir={follower.data()}", port=other.port)
        small = os.path.join(directory, "small")
        is_mounted = os.geteuid() == 0 and mount_small(small)
        if is_mounted:
            shutil.copytree(follower.data(), os.path.join(small, "data"))
        follower.start(etcd, "--quota-backend-bytes=100000")
        follower.wait(keep)
        other.stop()
        other.serve(etcd)
        try:
            follower.call("/v3/kv/put", {"key": b64("k/more"), "value": b64("1")})
        except OSError:
            pass
        planted("a quota is used up", "alarm-nospace")
        follower.stop()
        follower.serve(etcd)
        alarm = int(follower.status()["header"]["member_id"])
        follower.call("/v3/maintenance/alarm", {"action": "DEACTIVATE", "memberID": alarm, "alarm": "NOSPACE"})
        if is_mounted:
            try:
                flag, filler = f"--data-dir={os.path.join(small, 'data')}", os.path.join(small, "filler")
                tally.equal(asked.ready("mainstay", flag)["names"], expected, f"etcd {release}: there is space")
                free = os.statvfs(small)
                with open(filler, "wb") as file:
                    os.posix_fallocate(file.fileno(), 0, free.f_bavail * free.f_frsize - (8 << 20))
                planted("the disk is full", "disk-space", flag)
            finally:
                subprocess.run(["umount", small], check=True)
        else:
            print("SKIPPED a disk with too little space: a tmpfs is mounted by root only", flush=True)

        if args.short:
            return
        back = way_back(args, etcd)
        step = asked.ready("mainstay")["next"]
        one = members[step["member"].split(" ")[0]]
        one.stop()
        one.serve(args.mainstay, *[word for word in step["commands"][-1].split() if word.startswith("--")])
        mixed = asked.ready("mainstay")
        tally.equal((mixed["names"], sorted(member["runs"] for member in mixed["members"])),
                    (expected, ["etcd", "etcd", "mainstay"]), f"etcd {release}: one of Mainstay")
        tally.equal(security.unknown_tokens(ports[:3]), [], f"etcd {release}: tokens count at all members")
        if back:
            step = asked.ready("etcd")["next"]
            tally.equal(step["member"].split(" ")[0], one.name, f"etcd {release}: the one that goes back")
            one.stop()
            one.export(args.mainstay, step["commands"][-1].split("--release ")[1].split()[0])
            one.serve(back)
            tally.equal(asked.ready("etcd")["done"], True, f"etcd {release}: three of etcd again")
    finally:
        for one in members.values():
            one.stop(signal.SIGKILL)


class Held:
    """A lease with a key, whose client renews it late: after more than half of its time."""

    TTL_S, LATE_S, ROUNDS = 10, 6, 3

    def __init__(self, member):
        self.id = int(member.call("/v3/lease/grant", {"TTL": self.TTL_S})["ID"])
        member.call("/v3/kv/put", {"key": b64("k/held"), "value": b64("1"), "lease": self.id})

    def rest(self):
        # Time is what a lease is about: nothing else tells that so much of it has passed.
        time.sleep(self.LATE_S)

    def renew(self, member):
        """The time that it is given; 0 if it is gone."""
        return int(member.call("/v3/lease/keepalive", {"ID": self.id})["result"].get("TTL", 0))

    def keep(self, member, tally, what):
        """It is renewed at once, as by a client that has waited for the step, and then late each time."""
        given = [self.renew(member)]
        for _ in range(self.ROUNDS):
            self.rest()
            given.append(self.renew(member))
        tally.equal(given, [self.TTL_S] * (self.ROUNDS + 1), f"{what}: what each renewal gives")
        count = member.call("/v3/kv/range", {"key": b64("k/held"), "count_only": True}).get("count")
        tally.equal(count, "1", f"{what}: the key of a lease that is renewed")


def leases(args, tally, etcd, directory):
    release = release_of(etcd)
    ports = free_ports(6)
    names = ",".join(f"m{n}=http://127.0.0.1:{ports[3 + n]}" for n in range(3))
    members = [Member(directory, f"m{n}", (ports[n], ports[3 + n]), names) for n in range(3)]
    ours, *others = members
    try:
        for one in members:
            one.start(etcd)
        for one in members:
            one.wait()
        ours.stop()
        ours.serve(args.mainstay)

        def leads():
            ours.lead(others)
            status = ours.status()
            return status.get("leader") == status["header"]["member_id"]

        until("Mainstay leads", leads)
        held = Held(ours)
        held.rest()
        ours.stop()
        others[0].wait()
        held.keep(others[0], tally, f"etcd {release}, three members, the lead goes to etcd")
    finally:
        for one in members:
            one.stop(signal.SIGKILL)
    back = way_back(args, etcd)
    if args.short or not back:
        return
    alone = os.path.join(directory, "alone")
    os.mkdir(alone)
    member = single_member(alone)
    try:
        member.serve(etcd)
        member.stop()
        member.serve(args.mainstay)
        held = Held(member)
        held.rest()
        member.stop()
        member.export(args.mainstay, release_of(back))
        member.serve(back)
        held.keep(member, tally, f"etcd {release}, one member, back by export")
    finally:
        member.stop(signal.SIGKILL)


def mount_small(path):
    """Mounts a tmpfs in which a member with few keys has space, and Mainstay's files beside it just so."""
    os.mkdir(path)
    return subprocess.run(["mount", "-t", "tmpfs", "-o", "size=320m", "tmpfs", path], capture_output=True).returncode == 0


def disk(args, tally, etcd, directory):
    release = release_of(etcd)
    if os.geteuid() != 0:
        print("SKIPPED a full disk: a tmpfs is mounted by root only", flush=True)
        return
    small = os.path.join(directory, "small")
    os.mkdir(small)
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=400m", "tmpfs", small], capture_output=True, text=True)
    if mounted.returncode:
        print(f"SKIPPED a full disk: {mounted.stderr.strip()}", flush=True)
        return
    try:
        member = single_member(small)
        # What it says has room.
        member.log_path = os.path.join(directory, "m0.log")
        member.serve(etcd)
        try:
            revisions = fill(member, args.keys, 2000)
            expected = member.told(revisions)
            member.stop()
            left = member.etcds()
            for room in (0, 64 << 10, 1 << 20, 8 << 20):
                filler = os.path.join(small, "filler")
                free = os.statvfs(small)
                with open(filler, "wb") as file:
                    os.posix_fallocate(file.fileno(), 0, max(1, free.f_bavail * free.f_frsize - room))
                member.start(args.mainstay)
                try:
                    code = member.process.wait(timeout=PATIENCE_SECONDS)
                except subprocess.TimeoutExpired:
                    code = None
                    member.stop(signal.SIGKILL)
                said = member.said()
                tally.equal(code, 1, f"etcd {release}, {room} bytes are free: exit code")
                tally.equal("whose files are unchanged: the disk has no space" in said, True,
                            f"etcd {release}, {room} bytes are free: it says so: {said[-600:]}")
                tally.equal(member.etcds(), left, f"etcd {release}, {room} bytes are free: etcd's files")
                os.remove(filler)
                rest = sorted(name for name in os.listdir(os.path.join(member.data(), "member")) if name != "lock")
                tally.equal(rest, ["snap", "wal"], f"etcd {release}, {room} bytes are free: nothing is left behind")
            member.serve(etcd)
            tally.equal(member.told(revisions), expected, f"etcd {release}, on the disk that was full")
            member.stop()
            member.serve(args.mainstay)
            tally.equal(member.told(revisions), expected, f"etcd {release}: Mainstay, once there is room")
        finally:
            member.stop(signal.SIGKILL)
    finally:
        subprocess.run(["umount", small], check=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--etcd", action="append", required=True, help="a real etcd, 3.4 to 3.7; may be repeated")
    parser.add_argument("--etcdctl", required=True)
    parser.add_argument("--mainstay", required=True)
    parser.add_argument("--only", default=",".join(PARTS), help="some of: %(default)s")
    parser.add_argument("--keys", type=int, default=4000)
    parser.add_argument("--kills", type=int, default=24)
    parser.add_argument("--keep", action="store_true", help="keep data and logs of what failed")
    parser.add_argument("--short", action="store_true", help="a part of it, in a minute")
    args = parser.parse_args()
    Member.etcdctl = args.etcdctl
    wanted = args.only.split(",")
    if unknown := set(wanted) - set(PARTS):
        parser.error(f"--only is of {', '.join(PARTS)}, not {', '.join(sorted(unknown))}")
    singles = [(signal.SIGTERM, False), (signal.SIGKILL, True)]
    if args.short:
        args.keys, args.kills = min(args.keys, 1000), min(args.kills, 8)
        singles = singles[1:]
    else:
        singles += [(signal.SIGKILL, False), (signal.SIGTERM, True)]
    tally = Tally()
    runs = []
    for etcd in args.etcd:
        if "single" in wanted:
            runs += [(etcd, "single", lambda *given, how=how, apart=apart: single(*given, how, apart)) for how, apart in singles]
        runs += [(etcd, part.__name__, part) for part in (kills, cluster, doctor, leases, disk) if part.__name__ in wanted]
    for etcd, name, run in runs:
        print(f"{name}, etcd {release_of(etcd)}", flush=True)
        directory, failed = tempfile.mkdtemp(prefix="takeover-"), tally.failed
        try:
            run(args, tally, etcd, directory)
        except (Wrong, OSError, http.client.HTTPException, subprocess.SubprocessError) as error:
            tally.failed += 1
            print(f"FAILED {error}", flush=True)
        if args.keep and tally.failed > failed:
            print(f"kept {directory}", flush=True)
        else:
            shutil.rmtree(directory)
    print(f"{tally.passed} passed, {tally.failed} failed")
    sys.exit(1 if tally.failed else 0)


if __name__ == "__main__":
    main()
