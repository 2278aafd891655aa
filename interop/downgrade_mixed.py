#!/usr/bin/env python3
"""A cluster of three is taken one release down and up again, with members of etcd and of Mainstay in every mixture.

Two releases of etcd, say 3.6 and 3.7. Each mixture starts at the newer one, has `etcdctl downgrade` validate and enable the
older one, waits until every member says that its storage is ready for it, restarts one member after the other with the older
binary (Mainstay: with the older `--api-version`) while a key is written, waits until the cluster says that it is the older one
and that no downgrade is under way, and goes up again in the same way. After each step every member is asked for the release of
the cluster, its storage version, and the downgrade. What real etcd alone says after each step is what every mixture has to
say. At the end every member has the same HashKV. Then authentication is switched on, and every member is asked by root to promote
a member that is no learner, and one that is not there: those that do not lead hand it on to the one that does, with root's token.
"""

import argparse
import itertools
import json
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

from ports import free_ports

MEMBERS = 3
PATIENCE_SECONDS = 60


def release_of(program):
    """The release of an etcd, as "3.6"."""
    said = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout
    return ".".join(said.split(":", 1)[1].split()[0].split(".")[:2])


class Cluster:
    """Three members, each of which is either etcd or Mainstay for as long as it lives."""

    def __init__(self, args, kinds, directory):
        self.args, self.kinds, self.directory = args, kinds, directory
        ports = free_ports(2 * MEMBERS)
        self.clients = [f"http://127.0.0.1:{port}" for port in ports[:MEMBERS]]
        self.peers = [f"http://127.0.0.1:{port}" for port in ports[MEMBERS:]]
        self.processes = [None] * MEMBERS

    def start(self, member, release):
        command = {
            "etcd": [self.args.newer if release == self.args.newer_release else self.args.older],
            "mainstay": [self.args.mainstay, f"--api-version={release}"],
        }[self.kinds[member]]
        name = f"m{member}"
        with open(self.directory / f"{name}.log", "ab") as log:
            self.processes[member] = subprocess.Popen(
                [*command, f"--name={name}", f"--data-dir={self.directory / name}",
                 f"--listen-client-urls={self.clients[member]}", f"--advertise-client-urls={self.clients[member]}",
                 f"--listen-peer-urls={self.peers[member]}", f"--initial-advertise-peer-urls={self.peers[member]}",
                 "--initial-cluster=" + ",".join(f"m{n}={url}" for n, url in enumerate(self.peers))],
                stdout=log, stderr=log)

    def stop(self, member, how=signal.SIGTERM):
        process = self.processes[member]
        if process and process.poll() is None:
            process.send_signal(how)
            process.wait(timeout=30)

    def ctl(self, member, *command):
        """What etcdctl prints at a member; of an error its last line."""
        done = subprocess.run(
            [self.args.etcdctl, "--endpoints", self.clients[member], "--command-timeout=5s", *command],
            capture_output=True, text=True)
        return done.stdout.strip() if done.returncode == 0 else done.stderr.strip().splitlines()[-1]

    def state(self, member):
        """The release that a member runs, its storage's, and the downgrade that it knows of."""
        try:
            status = json.loads(self.ctl(member, "endpoint", "status", "--write-out=json"))[0]["Status"]
        except ValueError:
            return None
        downgrade = status.get("downgradeInfo", {})
        target = downgrade.get("targetVersion", "") if downgrade.get("enabled") else ""
        return {"runs": status["version"].rsplit(".", 1)[0], "storage": status.get("storageVersion"), "target": target}

    def cluster_release(self, member):
        """The release of the cluster as a member's page says it, or None while it says none."""
        try:
            with urllib.request.urlopen(f"{self.clients[member]}/version", timeout=5) as page:
                return json.load(page)["etcdcluster"].rsplit(".", 1)[0]
        except (OSError, ValueError):
            return None

    def all_states(self):
        return [{"cluster": self.cluster_release(n), **(self.state(n) or {})} for n in range(MEMBERS)]

    def until(self, what, holds):
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            states = self.all_states()
            if all(holds(state) for state in states):
                return states
            if time.monotonic() > deadline:
                raise RuntimeError(f"waited in vain: {what}: {states}")
            time.sleep(0.2)

    def until_written(self, member, value):
        deadline = time.monotonic() + PATIENCE_SECONDS
        while self.ctl(member, "put", "written", value) != "OK":
            if time.monotonic() > deadline:
                raise RuntimeError(f"member {member} does not take a put after its restart")
            time.sleep(0.2)

    def promotions(self):
        """What each member says to root's promotions, with authentication on."""
        for command in (["user", "add", "root:r"], ["role", "add", "root"], ["user", "grant-role", "root", "root"], ["auth", "enable"]):
            self.ctl(0, *command)
        voter = json.loads(self.ctl(0, "--user=root:r", "member", "list", "--write-out=json"))["members"][0]["ID"]
        said = []
        for member in range(MEMBERS):
            deadline = time.monotonic() + PATIENCE_SECONDS
            while self.ctl(member, "--user=root:r", "get", "nothing") and time.monotonic() < deadline:
                time.sleep(0.2)
            said.append([self.ctl(member, "--user=root:r", "member", "promote", which) for which in (f"{voter:x}", "5")])
        return said


def rehearse(args, kinds, directory):
    """Takes one mixture down and up; a list of what was seen at each step, and the hashes."""
    old, new = args.older_release, args.newer_release
    cluster = Cluster(args, kinds, directory)
    seen = []

    def note(step, states):
        seen.append((step, states))

    try:
        for member in range(MEMBERS):
            cluster.start(member, new)
        note("at the newer release", cluster.until(
            "the newer release", lambda s: (s["cluster"], s.get("storage"), s.get("target")) == (new, f"{new}.0", "")))
        cluster.until_written(0, "first")
        for member in range(MEMBERS):
            note(f"refused at {member}", [
                cluster.ctl(member, "downgrade", "validate", target) for target in (f"{new}.0", "3.4.0", "nonsense")])
            note(f"valid at {member}", cluster.ctl(member, "downgrade", "validate", f"{old}.0"))
        note("nothing to cancel", cluster.ctl(1, "downgrade", "cancel"))
        note("enabled and cancelled", [
            cluster.ctl(2, "downgrade", "enable", f"{old}.0"), cluster.ctl(0, "downgrade", "cancel")])
        note("as before", cluster.until(
            "no downgrade", lambda s: (s["cluster"], s.get("storage"), s.get("target")) == (new, f"{new}.0", "")))
        note("enabled", cluster.ctl(MEMBERS - 1, "downgrade", "enable", f"{old}.0"))
        note("ready", cluster.until(
            "storage of the older release", lambda s: (s["cluster"], s.get("storage"), s.get("target")) == (old, f"{old}.0", f"{old}.0")))
        for release, step in ((old, "down"), (new, "up")):
            for member in range(MEMBERS):
                cluster.stop(member)
                cluster.start(member, release)
                cluster.until_written(member, f"{step} {member}")
                if member < MEMBERS - 1:
                    note(f"{step}, {member + 1} of them", cluster.until("it runs", lambda s: "runs" in s))
            note(step, cluster.until(
                f"the cluster is {release}", lambda s: (s["cluster"], s.get("storage"), s.get("target"))
                == (release, f"{release}.0", "")))
        values = {cluster.ctl(n, "get", "written", "--write-out=simple") for n in range(MEMBERS)}
        hashes = [json.loads(cluster.ctl(n, "endpoint", "hashkv", "--write-out=json"))[0]["HashKV"]["hash"] for n in range(MEMBERS)]
        for member, said in enumerate(cluster.promotions()):
            note(f"promotions at {member}", said)
        return seen, values, hashes
    finally:
        for member in range(MEMBERS):
            cluster.stop(member, signal.SIGKILL)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--older", required=True, help="etcd of the older release, 3.6 or later")
    parser.add_argument("--newer", required=True, help="etcd of the release after it")
    parser.add_argument("--mainstay", required=True, help="Mainstay's binary")
    parser.add_argument("--etcdctl", required=True, help="an etcdctl that knows `downgrade`")
    parser.add_argument("--keep", action="store_true", help="keep the data and the logs")
    args = parser.parse_args()
    args.older_release, args.newer_release = release_of(args.older), release_of(args.newer)
    directory = Path(tempfile.mkdtemp(prefix="mainstay-downgrade-"))
    passed = failed = 0
    expected = None
    # All of etcd first: it says what is expected.
    for number, kinds in enumerate(itertools.product(("etcd", "mainstay"), repeat=MEMBERS)):
        place = directory / str(number)
        place.mkdir()
        try:
            seen, values, hashes = rehearse(args, kinds, place)
        except (RuntimeError, subprocess.SubprocessError) as error:
            print(f"FAILED {' '.join(kinds)}: {error}")
            failed += 1
            if expected is None:
                break
            continue
        expected = expected or seen
        wrong = [f"{step}: {is_}, not {should}" for (step, is_), (_, should) in zip(seen, expected) if is_ != should]
        if len(values) != 1 or len(set(hashes)) != 1:
            wrong.append(f"the members differ: {values} {hashes}")
        for line in wrong:
            print(f"FAILED {' '.join(kinds)}: {line}")
        passed += len(expected) + 1 - len(wrong)
        failed += len(wrong)
    if args.keep or failed:
        print(f"kept {directory}")
    else:
        shutil.rmtree(directory)
    print(f"{passed} passed, {failed} failed")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
