#!/usr/bin/env python3
"""Every command of docs/migration.md, run as it stands there.

The document is read, not repeated. Its commands are

  blocks   lines that are indented by four spaces or more, behind an empty line; a line that ends in `&&` goes on in the next
  inline   what stands between backticks and begins with the name of a program, with arguments behind it (one that is only the
           beginning of another command of the document is its name, and counts as that command)

A shell runs each, in the order and the situation that the document describes, with real etcd and with Mainstay. Words in capitals
and `…` are filled in from a table beside each call; `[…]` is what may be left out, and each way is run. Then the outcome is looked
at: the data is there, at the same member, with the same HashKV; or it was refused, with the words that the document promises.

Document and program cannot drift apart. It is a failure if

  a command of the document is run by none of the situations, or a situation has one that the document has no more
  a flag that the document has in backticks was given to no command, or words of a program in backticks were not looked for
  a way in which a table fills in a command does not fit the command any more

    interop/migration_document.py --list
    interop/migration_document.py --etcd PATH [--etcd PATH ...] [--also PATH] --etcdctl PATH --mainstay PATH [--only back_apart,mirror]

Where the release matters, a situation is run with each --etcd. `systemctl`, which `mainstay doctor migrate` names, is a script
of this program's own that ends the member's process by its id and waits for it. What needs a program that is not here, or an etcd
that is not given, is named in a line that begins with SKIPPED. Python 3.9+, bash; standard library only.
"""

import argparse
import contextlib
import gzip
import http.client
import json
import os
import re
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

from document_commands import Document, Seen, filled, ways
from takeover import (GUARD_MESSAGE, GUARDS, PATIENCE_SECONDS, Doctor, Member, Tally, Wrong, b64, fill, free_ports, number, release_of,
                      until)

HERE = os.path.dirname(os.path.abspath(__file__))
DOCUMENT = os.path.join(HERE, "..", "docs", "migration.md")
# What real etcd 3.4 left, with keys of API version 2, all of which are in its log.
OLD_STORE = os.path.join(HERE, "..", "crates", "interchange", "tests", "it", "golden", "3.4-v2")
ONLY_APART = "with --wal-dir=W only"
KEYS = 300
# What etcd and Mainstay log once they serve.
SERVES = "ready to serve client requests"

# Commands, flags and words between backticks that nothing here runs or looks for, and why.
ELSEWHERE = {
    "interop cluster history --migrate": "no command of an operator's: it is a test, and a step of .ci/run full",
    "interop/kube_apiserver.py --migrate": "no command of an operator's: it is a test",
    "--etcd-compaction-interval=0": "a flag of kube-apiserver, which interop/kube_apiserver.py runs",
    "etcdserver: request timed out, possibly due to previous leader failure":
        "an answer that depends on when a leader of etcd stops; crates/server/tests/it/stepped/forwarding.rs",
    "etcdserver: not capable": "of a cluster with members of etcd 3.4, which interop/takeover.py looks at",
    "failed to save KV snapshot": "of a stream that is cut, see crates/server/tests/it",
    "the state is in place and not durable yet": "of a disk that fails meanwhile; crates/server/tests/it/stepped/databases.rs",
    "is locked by another process: stop etcd first": "of an etcd that still runs; crates/mainstay/tests/it/takeover.rs",
    "failed to publish local member … too many requests": "what etcd says of itself, where nobody writes",
}


class Run:
    """One situation with one etcd: a directory, a PATH with the programs, and what was run of the document."""

    def __init__(self, args, document, tally, etcd, directory, seen):
        self.args, self.document, self.tally, self.etcd, self.directory, self.seen = args, document, tally, etcd, directory, seen
        self.release = release_of(etcd)
        self.bin = os.path.join(directory, "bin")
        os.mkdir(self.bin)
        self.name("mainstay", args.mainstay)
        self.name("etcdctl", args.etcdctl)
        self.name("etcd", etcd)
        stub = os.path.join(self.bin, "systemctl")
        with open(stub, "w") as file:
            file.write(SYSTEMCTL)
        os.chmod(stub, 0o755)
        self.environment = dict(os.environ, PATH=f"{self.bin}:{os.environ['PATH']}")

    def at(self, member):
        """The environment of a shell at a member's machine: what `systemctl` is about."""
        return dict(self.environment, MEMBER_PID=str(member.pid() if member else 0))

    def name(self, name, program):
        """Puts a program on the PATH."""
        link = os.path.join(self.bin, name)
        if os.path.lexists(link):
            os.remove(link)
        os.symlink(os.path.abspath(program), link)

    def script(self, beginning, table, without=None, more=""):
        """The command of the document that begins so, filled in."""
        command = self.document.find(beginning)
        self.seen.commands.add(command.text())
        script = filled(command.text(without), table) + more
        self.seen.given(script)
        return script

    def bash(self, script, expected=0, at=None):
        """What a shell prints, on both streams, of a command that ends. `at`: the member at whose machine it is."""
        done = subprocess.run(["bash", "-c", script], cwd=self.directory, env=self.at(at), text=True, timeout=PATIENCE_SECONDS,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
        if (done.returncode == 0) != (expected == 0):
            raise Wrong(f"{script}\n  ends with {done.returncode}: {done.stdout[-1500:]}")
        return done.stdout

    def takes(self, script):
        """Returns true if a command succeeds now."""
        with contextlib.suppress(Wrong):
            self.bash(script)
            return True
        return False

    def comes_to_print(self, script):
        """What a shell prints of a command once it succeeds: a member may be a moment behind."""
        said = []

        def succeeds():
            with contextlib.suppress(Wrong):
                said.append(self.bash(script))
            return bool(said)

        until(f"{script} succeeds", succeeds)
        return said[0]

    def does(self, beginning, table, expected=0, without=None, more=""):
        return self.bash(self.script(beginning, table, without, more), expected)

    def says(self, output, words, what):
        """Looks for words that the document has in backticks, in which `…` is anything."""
        if words not in self.document.words:
            raise Wrong(f"the document does not have the words `{words}`")
        self.seen.words.add(words)
        pattern = ".*".join(re.escape(part.strip()) for part in words.split("…"))
        self.equal(bool(re.search(pattern, output, re.S)), True, f"{what}: `{words}` in {output[-800:]}")

    def equal(self, found, expected, what):
        self.tally.equal(found, expected, f"etcd {self.release}, {what}")


# Ends the process of the member that this shell is for, as `systemctl stop` does, and waits for its end.
SYSTEMCTL = """#!/bin/bash
[ "$1" = stop ] || { echo "systemctl: only stop is known here" >&2; exit 1; }
kill -TERM "$MEMBER_PID" || exit 1
while [ -e "/proc/$MEMBER_PID/stat" ] && ! grep -q ') Z ' "/proc/$MEMBER_PID/stat"; do sleep 0.02; done
"""


class Server(Member):
    """A member that a shell starts."""

    def begin(self, run, script):
        with open(self.log_path, "ab") as log:
            self.began_at = log.tell()
            self.process = subprocess.Popen(["bash", "-c", script], cwd=run.directory, env=run.at(self), stdout=log, stderr=log,
                                            stdin=subprocess.DEVNULL)

    def serves(self, run, script):
        self.is_up(run, script)
        self.wait()

    def is_up(self, run, script):
        """Starts the member and waits until it serves, though perhaps not without a password."""
        self.begin(run, script)
        # The process before it may serve until the script has stopped it.
        until(f"{self.name} serves", lambda: SERVES in self.said(),
              lambda: self.said()[-1500:] if self.process.poll() is not None else None)

    def is_refused(self, run, script):
        """What is said by a command that has to fail."""
        self.begin(run, script)
        try:
            code = self.process.wait(timeout=PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            self.stop(signal.SIGKILL)
            raise Wrong(f"{script}\n  goes on: {self.said()[-1500:]}") from None
        if code == 0:
            raise Wrong(f"{script}\n  ends with 0: {self.said()[-1500:]}")
        return self.said()

    def pid(self):
        """The process that serves: the shell's own, or what the shell waits for."""
        if not self.process or self.process.poll() is not None:
            return 0
        pid = self.process.pid
        while True:
            try:
                with open(f"/proc/{pid}/task/{pid}/children") as file:
                    children = file.read().split()
            except OSError:
                return pid
            if not children:
                return pid
            pid = int(children[-1])

    def stop(self, how=signal.SIGTERM):
        deadline = time.monotonic() + PATIENCE_SECONDS
        # A script that has not come to its end may go on with the next of its parts.
        while pid := self.pid():
            if time.monotonic() > deadline:
                raise Wrong(f"{self.name} does not stop: {self.said()[-1500:]}")
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, how)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(timeout=PATIENCE_SECONDS if pid == self.process.pid else 1)

    def flags_but(self, *left_out):
        return " ".join(flag for flag in self.flags if not flag.startswith(left_out))

    def put(self, key, value):
        return int(self.call("/v3/kv/put", {"key": b64(key), "value": b64(value)})["header"]["revision"])


def one_server(directory, apart=False, name="m0"):
    ports = free_ports(2)
    return Server(directory, name, ports, f"{name}=http://127.0.0.1:{ports[1]}", apart)


def servers(directory, count, apart=()):
    ports = free_ports(2 * count)
    names = ",".join(f"m{n}=http://127.0.0.1:{ports[count + n]}" for n in range(count))
    return [Server(directory, f"m{n}", (ports[n], ports[count + n]), names, apart=n in apart) for n in range(count)]


def comes_to(member, release):
    """Waits until the member's cluster is of a release."""

    def is_there():
        with urllib.request.urlopen(f"http://127.0.0.1:{member.port}/version", timeout=5) as page:
            return json.load(page)["etcdcluster"].startswith(f"{release}.")

    until(f"the cluster is of version {release}", is_there)


SITUATIONS = {}


def situation(*commands, once=None):
    """A part of the document, with the beginnings of the commands that it runs. It is run with each etcd, or `once`: with the first
    one given, 0, or the last, -1."""

    def add(body):
        SITUATIONS[body.__name__] = (body, commands, once)
        return body

    return add


MIGRATE = "mainstay doctor migrate --endpoints HOST:2379,…"
EXPORT = "mainstay utl export --data-dir DIR --to NEW"


def earlier_export(path):
    """What is in the way of an export: files, since directories without any are what a first start leaves that failed."""
    os.makedirs(os.path.join(path, "member", "snap"))
    with open(os.path.join(path, "member", "snap", "db"), "wb") as out:
        out.write(b"of before")


def listing(path):
    """Names of all files and directories below a directory."""
    return sorted(os.path.relpath(os.path.join(top, name), path) for top, dirs, files in os.walk(path) for name in dirs + files)


@situation(MIGRATE, "etcdctl --endpoints HOST:2379 snapshot save", "mainstay FLAGS", "/usr/bin/time -v mainstay utl import",
           "mainstay utl drop-etcd")
def one(run):
    """One member, over to Mainstay: looked at before, saved, measured, taken over, etcd shut out, etcd's files deleted."""
    member = one_server(run.directory)
    member.serve(run.etcd)
    try:
        revisions = fill(member, KEYS)
        endpoint = f"127.0.0.1:{member.port}"
        options = os.path.join(run.directory, "etcd.yaml")
        with open(options, "w") as file:
            file.write(f"name: {member.name}\ndata-dir: {member.data()}\n")
        Doctor(run.args.mainstay, member.port).ready("mainstay")
        asked = run.document.find(MIGRATE).text()
        run.seen.commands.add(asked)
        for way in ways(asked):
            table = {"HOST:2379,…": endpoint, "DIR": member.data(), "W": member.wal(), "FILE": options}
            said = run.comes_to_print(filled(way, {key: value for key, value in table.items() if key in way}))
            run.seen.given(way)
            run.says(said, "ready for the next step", way)
        run.does("etcdctl --endpoints HOST:2379 snapshot save", {"HOST:2379": endpoint})
        status = json.loads(run.bash("mainstay utl snapshot status backup.db --write-out=json"))
        run.equal(status["revision"], revisions[-1], "the saved snapshot")
        expected = member.told(revisions)
        member.stop()

        measured = run.document.find("/usr/bin/time -v mainstay utl import")
        copy, new = (os.path.join(run.directory, name) for name in ("copy", "measured"))
        shutil.copytree(member.data(), copy)
        before = listing(copy)
        if os.access("/usr/bin/time", os.X_OK):
            said = run.does(measured.text(), {"COPY": copy, "NEW": new})
            run.equal("Maximum resident set size" in said, True, f"measured: {said[-500:]}")
        else:
            run.seen.commands.add(measured.text())
            print("SKIPPED measuring a takeover: /usr/bin/time is not installed; without it", flush=True)
            run.bash(filled(measured.text(), {"COPY": copy, "NEW": new}).split(" -v ", 1)[1])
        run.equal([name for name in listing(copy) if not name.endswith("lock")], before, "the copy that was measured")

        left = member.etcds()
        start = run.script("mainstay FLAGS", {"FLAGS": " ".join(member.flags)})
        asked_first = start + " --import-etcd-data=false"
        run.seen.given(asked_first)
        said = member.is_refused(run, asked_first)
        run.equal("was written by etcd" in said, True, f"who wants to be asked first: {said[-500:]}")
        run.equal(member.etcds(), left, "etcd's files, not taken over")
        member.serves(run, start)
        for words in ("the data directory was written by etcd: taking this member over", "took this member over from etcd",
                      "restored the state"):
            run.says(member.said(), words, "taken over")
        run.equal(member.told(revisions), expected, "taken over")
        run.equal(member.etcds(), left, "etcd's files beside Mainstay's")
        run.equal(os.path.exists(os.path.join(member.data(), "member", "taken-over-from-etcd")), True, "the mark")
        revisions.append(member.put("k/more", "1"))
        expected = member.told(revisions)
        # It waits for the database, which Mainstay has locked, and refuses its old log once that has stopped.
        member.stop()
        said = member.is_refused(run, f"etcd {' '.join(member.flags)}")
        run.says(said, "THIS-IS-DATA-OF-MAINSTAY.start-mainstay.or-to-go-back-to-etcd-run-mainstay-utl-export.wal: is a directory",
                 "etcd again")
        member.serves(run, start)
        run.equal(member.told(revisions), expected, "Mainstay once more")

        run.does("mainstay utl drop-etcd", {"DIR": member.data()})
        rest = sorted(os.listdir(os.path.join(member.data(), "member", "wal")))
        run.equal((rest, os.path.exists(os.path.join(member.data(), "member", "snap", "db"))), (sorted([*GUARDS, GUARD_MESSAGE]), False),
                  "etcd's files, deleted while the member runs")
        run.equal(member.told(revisions), expected, "without etcd's files")
        member.stop()
        member.is_refused(run, f"etcd {' '.join(member.flags)}")
        member.serves(run, start)
        run.equal(member.told(revisions), expected, "without etcd's files, started again")
    finally:
        member.stop(signal.SIGKILL)


def back(run, apart):
    what = "log apart" if apart else "log inside"
    member = one_server(run.directory, apart)
    data, kept, new = member.data(), f"{member.data()}.mainstay", os.path.join(run.directory, "new")
    wal = {"W": member.wal()} if apart else {}
    run.name("etcd", run.etcd)
    member.serve(run.etcd)
    try:
        revisions = fill(member, KEYS)
        member.stop()
        mainstay = run.script("mainstay FLAGS", {"FLAGS": " ".join(member.flags)})
        member.serves(run, mainstay)
        revisions.append(member.put("k/more", "1"))
        expected = member.told(revisions)
        said = run.does("mainstay doctor migrate --to etcd", {"HOST:2379,…": f"127.0.0.1:{member.port}"})
        run.says(said, "ready for the next step", f"{what}, before the way back")
        chain = run.script(EXPORT, {"DIR": data, "NEW": new, "3.7": run.release, "…": member.flags_but("--data-dir="), **wal},
                           without=None if apart else ONLY_APART)
        run.equal(f"mv {member.wal()} " in chain, apart, f"{what}: the line for --wal-dir in {chain}")

        def stays(why):
            """Nothing was moved."""
            there = [os.path.exists(path) for path in (data, kept, f"{member.wal()}.mainstay")]
            run.equal(there, [True, False, False], f"{what}, {why}: nothing is moved")

        # The member is not stopped: the export fails, and with it all that comes behind.
        writes = member.process
        said = run.bash(chain, expected=1)
        run.equal(("another process serves this data directory" in said, writes.poll()), (True, None),
                  f"{what}, a member that runs: {said[-500:]}")
        stays("a member that runs")
        member.stop()
        # An export from before is in the way: it is out of date.
        earlier_export(new)
        said = member.is_refused(run, chain)
        run.equal("if it is an earlier export, remove it" in said, True, f"{what}, an older export: {said[-500:]}")
        run.equal(listing(new), ["member", "member/snap", "member/snap/db"], f"{what}, an older export: it stays as it is")
        stays("an older export")
        shutil.rmtree(new)
        # The disk refuses.
        if os.geteuid() != 0:
            os.chmod(run.directory, 0o555)
            try:
                member.is_refused(run, chain)
            finally:
                os.chmod(run.directory, 0o755)
            stays("a disk that refuses")
        member.serves(run, mainstay)
        run.equal(member.told(revisions), expected, f"{what}: Mainstay goes on behind exports that failed")
        member.stop()

        member.serves(run, chain)
        run.equal(member.told(revisions), expected, f"{what}: etcd goes on")
        run.equal(os.path.exists(os.path.join(kept, "member", "exported")), True, f"{what}: the mark")
        revisions.append(member.put("k/more", "2"))
        expected = member.told(revisions)
        member.stop()

        # What is out of date does not start, and is not exported again.
        flags = member.flags_but("--data-dir=", "--wal-dir=") + f" --data-dir={kept}" + (f" --wal-dir={wal['W']}.mainstay" if apart else "")
        said = member.is_refused(run, f"mainstay {flags}")
        run.equal("was exported to" in said and "remove" in said or "`rm " in said, True, f"{what}, out of date: {said[-600:]}")
        said = run.bash(f"mainstay utl export --data-dir {kept} --to {new} --release {run.release}", expected=1)
        run.equal(("was exported" in said, os.path.exists(new)), (True, False), f"{what}, exported again: {said[-600:]}")

        shutil.rmtree(kept)
        shutil.rmtree(f"{member.wal()}.mainstay", ignore_errors=True)
        member.serves(run, mainstay)
        run.equal(member.told(revisions), expected, f"{what}: taken over once more")
    finally:
        member.stop(signal.SIGKILL)


@situation("mainstay doctor migrate --to etcd", EXPORT, "mainstay FLAGS")
def back_inside(run):
    """One member, back to etcd; each way in which the chain can break first."""
    back(run, False)


@situation("mainstay doctor migrate --to etcd", EXPORT, "mainstay FLAGS")
def back_apart(run):
    """The same with a log in a directory of its own."""
    back(run, True)


@situation("cd DIR/member", "cd W", "mainstay FLAGS")
def never_run(run):
    """Mainstay took the member over, and was refused before it ran: etcd goes on with its own files."""
    for apart in (False, True):
        what = "never run, log apart" if apart else "never run, log inside"
        member = one_server(run.directory, apart, name="apart" if apart else "inside")
        member.serve(run.etcd)
        try:
            revisions = fill(member, KEYS)
            expected = member.told(revisions)
            member.stop()
            left, before = member.etcds(), listing(member.data())
            start = run.script("mainstay FLAGS", {"FLAGS": " ".join(member.flags)})
            with socket.socket() as taken:
                taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                taken.bind(("127.0.0.1", member.port))
                taken.listen()
                said = member.is_refused(run, start)
            run.says(said, "took this member over from etcd", what)
            run.equal("restored the state" in said, False, f"{what}: it has not run: {said[-600:]}")
            # It was exported, and that was thrown away: then there is a mark, too.
            new = os.path.join(run.directory, f"new-{member.name}")
            export = f"mainstay utl export --data-dir {member.data()} --to {new} --release 3.5 --max-learners 1"
            run.seen.given(export)
            run.bash(export)
            shutil.rmtree(new)
            run.does("cd DIR/member", {"DIR": member.data()})
            if apart:
                run.does("cd W", {"W": member.wal()})
            run.equal([name for name in listing(member.data()) if not name.endswith("lock")],
                      [name for name in before if not name.endswith("lock")], f"{what}: what is left")
            run.equal(member.etcds(), left, f"{what}: etcd's files")
            member.serves(run, f"etcd {' '.join(member.flags)}")
            run.equal(member.told(revisions), expected, f"{what}: etcd goes on")
            member.stop()
            member.serves(run, start)
            run.equal(member.told(revisions), expected, f"{what}: taken over later")
        finally:
            member.stop(signal.SIGKILL)


@situation("mainstay FLAGS")
def never_had(run):
    """etcd on a directory that it never had: kept out, and where it was not, what it began is told and moved away."""
    member = one_server(run.directory)
    start = run.script("mainstay FLAGS", {"FLAGS": " ".join(member.flags)})
    etcd = f"etcd {' '.join(member.flags)}"
    member.serves(run, start)
    try:
        revisions = fill(member, KEYS)
        expected = member.told(revisions)
        member.stop()
        left = listing(member.data())
        run.equal("THIS-IS-DATA-OF-MAINSTAY.to-go-back-to-etcd-run-mainstay-utl-export" in left, True, "the sign")
        said = member.is_refused(run, etcd)
        if number(run.release) >= (3, 5):
            run.says(said, "failed to create snapshot directory … member/snap/.touch: not a directory", "etcd kept out")
            run.says(said, "found invalid file under data directory", "etcd kept out")
        run.equal(listing(member.data()), left, "etcd kept out")
        os.remove(os.path.join(member.data(), "member", "snap"))
        member.serves(run, etcd)
        member.stop()
        said = member.is_refused(run, start)
        run.equal("etcd's store is empty" in said and "Mainstay's data is unchanged" in said, True, said[-800:])
        run.bash(re.search("`(mkdir [^`]+)`", said)[1])
        member.serves(run, start)
        run.equal(member.told(revisions), expected, "behind what etcd began")
    finally:
        member.stop(signal.SIGKILL)


def listed(member):
    """The members of its cluster that a member knows of."""
    return member.call("/v3/cluster/member/list", {})["members"]


def agree(run, members, what):
    """All come to the newest revision, and say the same of it."""
    revision = max(one.revision() for one in members)
    until(f"all come to revision {revision}, {what}",
          lambda: all(int(one.status()["header"]["revision"]) >= revision for one in members))
    run.equal(len({one.hash_kv(revision) for one in members}), 1, f"{what}: HashKV at {revision}")


def member_of(step, members):
    return next(one for one in members if one.name == step["member"].split(" ")[0])


def carry_out(run, step, members, to):
    """The commands of a step that the doctor names, as they stand, at the machine of their member."""
    member = member_of(step, members)
    for command in step["commands"][:-1]:
        run.bash(command, at=member)
    member.serves(run, last_of(step, member, to))
    return member


def last_of(step, member, to):
    """The last command of a step, which ends with the start of the new program."""
    last = step["commands"][-1]
    if member.apart and to == "etcd":
        note = next(note for note in step["notes"] if note.startswith("With --wal-dir=W, the last part is: "))
        last = last.replace("etcd FLAGS", note.split(": ", 1)[1].rstrip("."))
    table = {"FLAGS": " ".join(member.flags), "DIR": member.data(), "W": member.wal()}
    return filled(last, {key: value for key, value in table.items() if re.search(rf"\b{key}\b", last)})


@situation("mainstay doctor migrate --endpoints …", "mainstay doctor migrate --to etcd", "mainstay rebuild FLAGS", once=0)
def cluster(run):
    """Three members over and back, each step as the doctor names it; one cannot be taken over, and is rebuilt."""
    members = servers(run.directory, 3, apart=(1,))
    endpoints = f"127.0.0.1:{members[0].port}"
    over = run.script("mainstay doctor migrate --endpoints …", {"…": endpoints})
    home = run.script("mainstay doctor migrate --to etcd", {"HOST:2379,…": endpoints})
    asked = Doctor(run.args.mainstay, members[0].port)
    try:
        for each in members:
            each.start(run.etcd)
        for each in members:
            each.wait()
        revisions = fill(members[0], KEYS)
        expected = [each.told(revisions) for each in members]
        for n in range(3):
            asked.ready("mainstay")
            run.says(run.comes_to_print(over), "ready for the next step", f"{n} of Mainstay")
            carry_out(run, asked.ready("mainstay")["next"], members, "mainstay")
            agree(run, members, f"{n + 1} of Mainstay")
        run.equal([each.told(revisions) for each in members], expected, "three of Mainstay")
        asked.ready("mainstay")
        run.equal("done" in run.comes_to_print(over), True, "the doctor sees three of Mainstay")
        # One is away: there is no step.
        members[2].stop()
        run.equal("unreachable" in run.bash(over, expected=1), True, "a member that is away")
        members[2].serve(run.args.mainstay, f"--api-version={run.release}")
        # An export from before is in the way of the first.
        step = asked.ready("etcd")["next"]
        member = member_of(step, members)
        stale = f"{member.data()}.etcd"
        earlier_export(stale)
        said = member.is_refused(run, last_of(step, member, "etcd"))
        there = [os.path.exists(path) for path in (member.data(), f"{member.data()}.mainstay", os.path.join(stale, "member", "wal"))]
        run.equal(("if it is an earlier export" in said, there), (True, [True, False, False]), f"an older export: {said[-600:]}")
        shutil.rmtree(stale)
        member.serve(run.args.mainstay, f"--api-version={run.release}")
        for n in range(3):
            asked.ready("etcd")
            run.says(run.comes_to_print(home), "ready for the next step", f"{n} of etcd again")
            carry_out(run, asked.ready("etcd")["next"], members, "etcd")
            agree(run, members, f"{n + 1} of etcd again")
        run.equal([each.told(revisions) for each in members], expected, "three of etcd again")

        # Two go over once more; the third has a damaged database.
        for n in range(2):
            carry_out(run, asked.ready("mainstay")["next"], members, "mainstay")
            agree(run, members, f"{n + 1} of Mainstay once more")
        step = asked.ready("mainstay")["next"]
        *first, _stop, _start = step["commands"]
        last = member_of(step, members)
        for command in first:
            run.bash(command)
        last.stop()
        database = os.path.join(last.data(), "member", "snap", "db")
        with open(database, "r+b") as file:
            file.write(b"\0" * 16384)
        left = last.etcds()
        flags = " ".join([*last.flags, f"--api-version={run.release}"])
        said = last.is_refused(run, f"mainstay {flags}")
        run.equal("whose files are unchanged" in said, True, f"a damaged member: {said[-600:]}")
        run.equal(last.etcds(), left, "etcd's files of a damaged member")
        last.serves(run, run.script("mainstay rebuild FLAGS", {"FLAGS": flags}))
        agree(run, members, "one rebuilt")
        asked.ready("mainstay")
        run.equal("done" in run.comes_to_print(over), True, "the doctor sees a rebuilt member")
    finally:
        for each in members:
            each.stop(signal.SIGKILL)


@situation("etcdctl --endpoints HOST:2379 downgrade enable 3.6", EXPORT, once=-1)
def downgrade(run):
    """A cluster of Mainstay's newest release lets an etcd of an older one in only once it has gone down."""
    members = servers(run.directory, 2)
    first, older = members[0], "3.6"
    try:
        for each in members:
            each.start(run.args.mainstay)
        for each in members:
            each.wait()
        revisions = fill(first, KEYS)
        expected = first.told(revisions)
        comes_to(first, "3.7")
        first.stop()
        said = first.is_refused(run, way_back(run, first, older))
        there = [os.path.exists(first.data() + end) for end in ("", ".mainstay", ".new")]
        run.equal(("downgrade enable 3.6" in said, there), (True, [True, False, False]), f"back to an older release: {said[-600:]}")
        first.serve(run.args.mainstay)
        run.does("etcdctl --endpoints HOST:2379 downgrade enable 3.6", {"HOST:2379": f"127.0.0.1:{first.port}"})
        until("a downgrade is in progress", lambda: first.status().get("downgradeInfo", {}).get("enabled"))
        comes_to(first, older)
        # It knows on its disk, too, what is committed once something is written behind it.
        first.put("behind", "1")
        first.stop()
        goes_back(run, members, older, revisions, expected, "in a cluster that goes down")
    finally:
        for each in members:
            each.stop(signal.SIGKILL)


@situation(EXPORT, once=-1)
def kept_open(run):
    """With --api-version a cluster of Mainstay stays at an older release, and its members go back to an etcd of that release."""
    for older in ("3.5", "3.6"):
        place = os.path.join(run.directory, older)
        os.mkdir(place)
        members = servers(place, 2)
        first, flag = members[0], f"--api-version={older}"
        run.seen.given(flag)
        try:
            for each in members:
                each.start(run.args.mainstay, flag)
            for each in members:
                each.wait()
            revisions = fill(first, KEYS)
            expected = first.told(revisions)
            comes_to(first, older)
            first.stop()
            goes_back(run, members, older, revisions, expected, f"behind {flag}")
        finally:
            for each in members:
                each.stop(signal.SIGKILL)


def way_back(run, member, release):
    """The way back of a member whose log is in its data directory."""
    table = {"DIR": member.data(), "NEW": f"{member.data()}.new", "3.7": release, "…": member.flags_but("--data-dir=")}
    return run.script(EXPORT, table, without=ONLY_APART)


def goes_back(run, members, older, revisions, expected, what):
    """The first member, which is stopped, goes back to an etcd of a release; if none is given, up to its start."""
    first = members[0]
    chain = way_back(run, first, older)
    etcd = next((etcd for etcd in [*run.args.etcd, *run.args.also] if release_of(etcd) == older), None)
    if not etcd:
        moves, _, last = chain.rpartition("&&")
        run.equal(last.split()[0], "etcd", f"the last part of {chain}")
        run.bash(moves)
        print(f"SKIPPED starting etcd {older} {what}: none is given", flush=True)
        return
    run.name("etcd", etcd)
    first.serves(run, chain)
    run.equal(first.told(revisions), expected, f"etcd {older} {what}")
    agree(run, members, f"etcd {older} {what}")


@situation("etcdctl --endpoints HOST:2379 member add", "mainstay FLAGS --initial-cluster-state=existing",
           "etcdctl --endpoints HOST:2379 member promote", "etcdctl --endpoints HOST:2379 member remove", once=-1)
def joined(run):
    """A member of Mainstay joins etcd's, which is removed; and etcd joins Mainstay, in the same way."""
    ports = free_ports(6)
    urls = [f"http://127.0.0.1:{port}" for port in ports[3:]]

    def add(named, others, start, *flags):
        """Adds a member by the commands of the document, and removes the one that was there."""
        at = others[0]
        endpoint = {"HOST:2379": f"127.0.0.1:{at.port}"}
        url = urls[int(named[1])]
        said = run.does("etcdctl --endpoints HOST:2379 member add", {**endpoint, "NAME": named, "http://NEW:2380": url})
        cluster_ = re.search(r'ETCD_INITIAL_CLUSTER="([^"]*)"', said)[1]
        ident = re.search(r"Member +([0-9a-f]+) added", said)[1]
        joining = Server(run.directory, named, (ports[int(named[1])], ports[3 + int(named[1])]), cluster_)
        members.append(joining)
        joining.flags += flags
        joining.begin(run, start(joining))
        promote = run.script("etcdctl --endpoints HOST:2379 member promote", {**endpoint, "ID": ident})

        # An answer that came too late may have been a yes.
        votes = lambda: any(f"{int(one['ID']):x}" == ident and not one.get("isLearner") for one in listed(at))
        until(f"{named} can be promoted", lambda: run.takes(promote) or votes(),
              lambda: joining.said()[-1500:] if joining.process.poll() is not None else None)
        joining.wait()
        agree(run, [at, joining], f"{named} joined")
        old = at.told([])["ids"][1]
        # Members take no change of their number before they have been connected for five seconds.
        remove = run.script("etcdctl --endpoints HOST:2379 member remove",
                            {"HOST:2379": f"127.0.0.1:{joining.port}", "OLD": f"{int(old):x}"})
        is_gone = lambda: all(one["ID"] != old for one in listed(joining))
        until(f"{named} takes the place of {at.name}", lambda: run.takes(remove) or is_gone())
        at.process.wait(timeout=PATIENCE_SECONDS)
        joining.wait()
        return joining

    members = [Server(run.directory, "m0", (ports[0], ports[3]), f"m0={urls[0]}")]
    try:
        members[0].serve(run.etcd)
        revisions = fill(members[0], KEYS)
        told = members[0].told(revisions)
        by_document = lambda one: run.script("mainstay FLAGS --initial-cluster-state=existing", {"FLAGS": " ".join(one.flags)})
        own = add("m1", members[:1], by_document, f"--api-version={run.release}", "--snapshot-catchup-entries=5000")
        same = ("hashes", "keys", "leases")
        found = own.told(revisions)
        run.equal([found[key] for key in same], [told[key] for key in same], "Mainstay in the place of etcd")
        run.equal(found["ids"][0], told["ids"][0], "the same cluster")
        etcd = add("m2", [own], lambda one: f"etcd {' '.join(one.flags)} --initial-cluster-state=existing")
        found = etcd.told(revisions)
        run.equal([found[key] for key in same], [told[key] for key in same], "etcd in the place of Mainstay")
    finally:
        for each in members:
            each.stop(signal.SIGKILL)


FOLLOW = "mainstay ctl --endpoints OLD make-mirror --keep-revisions NEW"
CUT_OVER = "mainstay ctl --endpoints OLD make-mirror --keep-revisions --cut-over NEW"


@situation("etcdctl --endpoints OLD snapshot save snapshot.db", "mainstay utl snapshot restore snapshot.db", FOLLOW, CUT_OVER,
           "etcdctl --endpoints OLD alarm list", "etcdctl --endpoints OLD alarm disarm")
def mirror(run):
    """A cluster of Mainstay takes the place of one of etcd without joining it."""
    source = one_server(run.directory, name="source")
    target = one_server(run.directory, name="target")
    old, new = (f"http://127.0.0.1:{each.port}" for each in (source, target))
    following = None
    sides = {"OLD": old, "NEW": new}
    try:
        options = ["--auto-compaction-retention=0", "--max-txn-ops=200"]
        run.seen.given(" ".join(options))
        source.serve(run.etcd, *options)
        revisions = fill(source, KEYS)
        run.does("etcdctl --endpoints OLD snapshot save snapshot.db", {"OLD": old})
        kept = [flag for flag in target.flags if flag.startswith(("--name=", "--initial-"))]
        run.does("mainstay utl snapshot restore snapshot.db", {"DIR": target.data(), "…": " ".join(kept)})
        target.serve(run.args.mainstay, options[1])
        for n in range(20):
            source.put(f"k/behind{n}", "1")

        def follow():
            script = run.script(FOLLOW, sides, more=" --max-txn-ops=200")
            return subprocess.Popen(["bash", "-c", f"exec {script}"], cwd=run.directory, env=run.environment,
                                    stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

        def reaches():
            wanted = int(source.status()["header"]["revision"])
            until(f"the mirror comes to revision {wanted}", lambda: int(target.status()["header"]["revision"]) >= wanted,
                  lambda: following.communicate()[0] if following.poll() is not None else None)
            revisions.append(wanted)

        following = follow()
        reaches()
        # It may be killed, and stopped; it goes on where the destination is.
        for how in (signal.SIGKILL, signal.SIGTERM):
            following.send_signal(how)
            following.communicate(timeout=PATIENCE_SECONDS)
            source.put(f"k/{how}", "1")
            following = follow()
            reaches()
        following.send_signal(signal.SIGTERM)
        following.communicate(timeout=PATIENCE_SECONDS)
        same = ("hashes", "keys", "leases")
        both = [each.told(revisions) for each in (source, target)]
        run.equal([both[1][key] for key in same], [both[0][key] for key in same], "the destination follows")

        # A time that no rehearsal can keep: it goes on without stopping writes, and ends when it is told to.
        short = run.script(CUT_OVER, sides, more=" --stop-timeout=1ns")
        following = subprocess.Popen(["bash", "-c", f"exec {short}"], cwd=run.directory, env=run.environment, text=True,
                                     stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        said = ""
        too_late = threading.Timer(PATIENCE_SECONDS, following.kill)
        too_late.start()
        while "not stopping writes yet" not in said and (line := following.stdout.readline()):
            said += line
        too_late.cancel()
        source.put("k/not-stopped", "1")
        following.send_signal(signal.SIGTERM)
        said += following.communicate(timeout=PATIENCE_SECONDS)[0]
        run.says(said, "not stopping writes yet", "a short --stop-timeout")
        run.equal(following.returncode != 0, True, f"interrupted: {said[-500:]}")
        run.equal(run.does("etcdctl --endpoints OLD alarm list", {"OLD": old}).strip(), "", "no alarm is left")
        source.put("k/goes-on", "1")

        writer = Stubborn(source)
        writer.start()
        said = run.does(CUT_OVER, sides)
        writer.join()
        run.says(said, "the destination has taken the source's place", "the cut-over")
        run.equal("corrupt cluster" in writer.refusal, True, f"a write at a source that was left: {writer.refusal}")
        revisions.append(int(source.status()["header"]["revision"]))
        both = [each.told(revisions) for each in (source, target)]
        run.equal([both[1][key] for key in same], [both[0][key] for key in same], "the destination behind the cut-over")
        found = target.call("/v3/kv/range", {"key": b64("k/writer")})["kvs"][0]["value"]
        may_be = [b64(str(written)) for written in (writer.acknowledged, writer.unanswered) if written is not None]
        run.equal(found in may_be, True, f"the last write that was acknowledged: {found}, not of {may_be}")
        run.equal("CORRUPT" in run.does("etcdctl --endpoints OLD alarm list", {"OLD": old}), True, "the alarm stays")
        said = run.does(CUT_OVER, sides, expected=1)
        run.equal("already has a CORRUPT alarm" in said, True, f"a source that was left is not cut over again: {said[-500:]}")
        try:
            urllib.request.urlopen(f"{old}/health", timeout=5).close()
            healthy = "healthy"
        except urllib.error.HTTPError as error:
            healthy = error.read().decode()
        run.equal('"health":"false"' in healthy, True, f"/health of the source: {healthy}")
        run.equal(len(source.call("/v3/kv/range", {"key": b64("k/writer")})["kvs"]), 1, "the source is read")
        target.put("k/new", "1")
        run.does("etcdctl --endpoints OLD alarm disarm", {"OLD": old})
        run.equal(run.does("etcdctl --endpoints OLD alarm list", {"OLD": old}).strip(), "", "the alarm is taken back")
        source.put("k/again", "1")
    finally:
        if following and following.poll() is None:
            following.kill()
            following.communicate()
        for each in (source, target):
            each.stop(signal.SIGKILL)


class Stubborn(threading.Thread):
    """Writes a key again and again until it is refused. What had no answer is written again: it may be there, or not."""

    def __init__(self, member):
        super().__init__(daemon=True)
        self.member, self.acknowledged, self.unanswered, self.refusal = member, -1, None, ""

    def run(self):
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                self.member.put("k/writer", str(self.acknowledged + 1))
            except (OSError, http.client.HTTPException) as error:
                self.refusal = str(error)
                if "corrupt cluster" in self.refusal or time.monotonic() > deadline:
                    return
                self.unanswered = self.acknowledged + 1
                continue
            self.acknowledged, self.unanswered = self.acknowledged + 1, None


def leaves(node):
    """How many keys are in a directory of API version 2."""
    return sum(leaves(child) for child in node.get("nodes", [])) if node.get("dir") else 1


@situation("mainstay utl import --data-dir DIR --to NEW --migrate-v2", once=-1)
def old_store(run):
    """A member with keys of API version 2: refused in place, brought over with them or without."""
    member = one_server(run.directory)
    for name, path in (("db", "snap/db"), ("wal", "wal/0000000000000000-0000000000000000.wal")):
        with gzip.open(f"{OLD_STORE}-{name}.gz") as file:
            content = file.read()
        path = os.path.join(member.data(), "member", path)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(content)
    try:
        left = member.etcds()
        said = member.is_refused(run, f"mainstay {' '.join(member.flags)}")
        run.equal("--migrate-v2" in said, True, f"keys of API version 2: {said[-600:]}")
        run.equal(member.etcds(), left, "files of a member with keys of API version 2")
        found = {}
        for option in ("--migrate-v2", "--without-old-store"):
            new = os.path.join(run.directory, option.strip("-"))
            script = run.script("mainstay utl import --data-dir DIR --to NEW --migrate-v2", {"DIR": member.data(), "NEW": new})
            if option == "--migrate-v2":
                # A key of version 3 has the name of one of them, and the import says what to do.
                run.equal("--v2-prefix" in run.bash(script, expected=1), True, "a name that is taken")
                script += " --v2-prefix /from-v2"
            script = script.replace("--migrate-v2", option)
            run.seen.given(script)
            run.bash(script)
            member.is_up(run, f"mainstay {member.flags_but('--data-dir=')} --data-dir {new}")
            # There are users, whose passwords are not known here.
            with urllib.request.urlopen(f"http://127.0.0.1:{member.port}/metrics", timeout=5) as page:
                found[option] = int(float(re.search(r"^etcd_debugging_mvcc_keys_total (\S+)", page.read().decode(), re.M)[1]))
            member.stop()
        with open(f"{OLD_STORE}-keys.json") as file:
            keys = leaves(json.load(file)["node"])
        # One is hidden, which a listing does not show.
        run.equal(found["--migrate-v2"] - found["--without-old-store"], keys + 1, "keys of API version 2 that came over")
        run.equal(member.etcds(), left, "files of a member that was imported")
    finally:
        member.stop(signal.SIGKILL)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--etcd", action="append", help="a real etcd, 3.4 to 3.7; may be repeated")
    parser.add_argument("--also", action="append", default=[], help="another release, to which members only go back")
    parser.add_argument("--etcdctl", help="an etcdctl of 3.6 or later")
    parser.add_argument("--mainstay")
    parser.add_argument("--document", default=DOCUMENT)
    parser.add_argument("--only", help="some of: " + ",".join(SITUATIONS))
    parser.add_argument("--list", action="store_true", help="print the commands, and which situations run them")
    parser.add_argument("--keep", action="store_true", help="keep data and logs of what failed")
    args = parser.parse_args()
    document, tally, seen = Document(args.document), Tally(), Seen()

    # Before anything is started: whether the two have each other's commands.
    run_by = {text: [] for text in document.commands}
    for name, (_, commands, _) in SITUATIONS.items():
        for beginning in commands:
            try:
                run_by[document.find(beginning).text()].append(name)
            except Wrong as wrong:
                tally.equal(str(wrong), "", f"{name} runs what the document does not have")
    for text, names in run_by.items():
        tally.equal(bool(names), True, f"line {document.commands[text].at}: not run by any test: {text}")
    for text in ELSEWHERE:
        tally.equal(text in document.words or text in document.flags or text in document.commands, True,
                    f"the document does not have any more: {text}")
    if args.list:
        for text, names in run_by.items():
            print(f"{document.commands[text].at:4} {text}\n     {', '.join(names)}")
        print("flags:", *document.flags, sep="\n     ")
        print("words:", *document.words, sep="\n     ")
        sys.exit(1 if tally.failed else 0)
    if not (args.etcd and args.etcdctl and args.mainstay):
        parser.error("--etcd, --etcdctl and --mainstay are needed")
    wanted = (args.only or ",".join(SITUATIONS)).split(",")
    if unknown := set(wanted) - set(SITUATIONS):
        parser.error(f"--only is of {', '.join(SITUATIONS)}, not {', '.join(sorted(unknown))}")
    Member.etcdctl = args.etcdctl
    for name in wanted:
        body, commands, once = SITUATIONS[name]
        for etcd in args.etcd if once is None else [args.etcd[once]]:
            began, failed = time.monotonic(), tally.failed
            directory = tempfile.mkdtemp(prefix="migration-document-")
            own = Seen()
            try:
                body(Run(args, document, tally, etcd, directory, own))
                for beginning in commands:
                    tally.equal(document.find(beginning).text() in own.commands, True, f"{name} has to run: {beginning}")
            except (Wrong, OSError, ValueError, http.client.HTTPException, subprocess.SubprocessError) as error:
                tally.failed += 1
                print(f"FAILED {name}, etcd {release_of(etcd)}: {error}", flush=True)
            for kind in ("commands", "words", "flags"):
                getattr(seen, kind).update(getattr(own, kind))
            print(f"{name}, etcd {release_of(etcd)}: {time.monotonic() - began:.1f} s", flush=True)
            if args.keep and tally.failed > failed:
                print(f"kept {directory}", flush=True)
            else:
                shutil.rmtree(directory)
    if not args.only:
        for words, at in document.words.items():
            if words in ELSEWHERE or words in seen.words:
                continue
            tally.equal("looked for", "not looked for", f"line {at}: words that no test looks for: `{words}`")
        for flag, at in document.flags.items():
            name = flag.split("=")[0].split(" ")[0]
            given = name in seen.flags if re.search(r"[A-Z]", flag) else flag in seen.flags
            tally.equal(given or flag in ELSEWHERE, True, f"line {at}: a flag that no test gives: {flag}")
    print(f"{tally.passed} passed, {tally.failed} failed")
    sys.exit(1 if tally.failed else 0)


if __name__ == "__main__":
    main()
