#!/usr/bin/env python3
"""Runs clients of etcd through a gRPC proxy before a member, and counts what many watchers cost the member.

    through_proxy.py --server PATH --proxy mainstay=PATH [--proxy etcd=PATH] --etcdctl PATH --interop PATH --bench COMMAND
                     [--way plain,tls,namespace,leasing] [--short]

Ways: `plain`; `tls` to both sides, with certificates of clients; `namespace`, all keys below a prefix; `leasing`, with ownership of
keys and ordered reads. For each: `etcdctl.sh`, `interop concurrency`, and 10,000 watchers of one key, all of whom have to get all
events while the member has one watch more than without them. --short leaves out the long sections of `interop concurrency`, and has
1,000 watchers. What etcd's proxy cannot do is in EXPECTED, and checked for that.

Needed: the program `interop` (see README.md), an etcdctl, and `mainstay bench` for the watchers. Ends with "N passed, M failed", and
exit code 1 if M is not 0. Python 3, standard library only; openssl for tls.
"""

import argparse
import os
import re
import shlex
import shutil
import ssl
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

from ports import free_port

HERE = os.path.dirname(os.path.abspath(__file__))
WAYS = ["plain", "tls", "namespace", "leasing"]
# Seconds for a server to answer.
START = 30
# Sections of `interop concurrency` that take long, or write very much.
LONG = {"lease", "watch-order", "watch-progress", "compaction"}
SECTIONS = ["kv", "txn", "lease", "session", "mutex", "election", "stm", "watch", "watch-order", "watch-progress", "watch-fragment",
            "layers", "maintenance", "compaction"]
# Puts of the watched key, and how many of them a second.
PUTS, PUTS_A_SECOND = 30, 10

# Checks that fail by design of a proxy: patterns of their names, by kind and way ("*": all), with the reason. One that does not
# fail is an error, too, unless it begins with "~": those fail at times only.
ALL_SHARED = "~watches of the member"
EXPECTED = {
    ("mainstay", "*"): {
        r"watch-fragment/no response of a large revision was a fragment": "a shared watch has no fragments",
        r"watch-fragment/put above the request limit.*": "the proxy's own limit is met first",
    },
    ("mainstay", "leasing"): {
        r"get --stream": "streamed ranges cannot be put in order",
        r"kv/.*range stream.*": "streamed ranges cannot be put in order",
        r"lease/a revoke with keys makes one revision.*": "what is owned is told with the revision that the proxy knows",
    },
    ("etcd", "*"): {
        r"get --stream": "no streamed ranges",
        r"kv/.*range stream.*": "no streamed ranges",
        r"watch-progress/progress.*": "requests for progress are passed over",
        ALL_SHARED: "watchers that began at different revisions share one watch only after a while",
        r"watch-fragment/no response of a large revision was a fragment": "a shared watch has no fragments",
        r"watch-fragment/put above the request limit.*": "the proxy's own limit is met first",
    },
    ("etcd", "tls"): {
        r"~put without a user": "an etcd member answers `permission denied` to who comes with a certificate without a name",
    },
    ("mainstay", "tls"): {
        r"put without a user": "a member answers `permission denied` to who comes with a certificate without a name, as etcd does",
    },
    ("etcd", "leasing"): {
        r"~(put|get|del|watch|txn|compaction)( .*)?": "a write of a key that it does not own is carried out twice",
        r"~(kv|txn|lease|watch|watch-progress|watch-fragment|layers|compaction)/.*": "the same",
    },
}


class Certificates:
    """An authority, a server and clients; the one of the proxy has no common name."""

    def __init__(self, directory):
        self.directory = directory
        curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
        self.openssl("req", "-x509", *curve, "-days", "3", "-subj", "/CN=authority", "-out", self.path("ca.crt"), "-keyout",
                     self.path("ca.key"))
        with open(self.path("extensions"), "w", encoding="ascii") as file:
            file.write("subjectAltName=IP:127.0.0.1,DNS:localhost\nextendedKeyUsage=serverAuth,clientAuth\n")
        for name, subject in [("server", "/CN=server"), ("proxy", "/O=proxy"), ("client", "/CN=client")]:
            self.openssl("req", "-new", *curve, "-subj", subject, "-out", self.path("request"), "-keyout", self.path(f"{name}.key"))
            self.openssl("x509", "-req", "-in", self.path("request"), "-CA", self.path("ca.crt"), "-CAkey", self.path("ca.key"),
                         "-CAcreateserial", "-days", "3", "-extfile", self.path("extensions"), "-out", self.path(f"{name}.crt"))

    def path(self, name):
        return os.path.join(self.directory, name)

    @staticmethod
    def openssl(*arguments):
        subprocess.run(["openssl", *arguments], check=True, capture_output=True)


class Process:
    """A server that runs until it is closed."""

    def __init__(self, directory, name, command):
        self.log = os.path.join(directory, f"{name}.log")
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(command, cwd=directory, stdout=log, stderr=log, stdin=subprocess.DEVNULL)

    def close(self):
        self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def wait_for(self, is_there):
        """Waits until a condition holds, or raises with the end of the log."""
        until = time.monotonic() + START
        while time.monotonic() < until and self.process.poll() is None:
            if is_there():
                return
            time.sleep(0.1)
        with open(self.log, encoding="utf-8", errors="replace") as log:
            raise RuntimeError(f"{self.log}: did not start\n{log.read()[-2000:]}")


class Setting:
    """A member and a proxy before it, in one of the ways."""

    def __init__(self, server, proxy, way):
        self.directory = tempfile.mkdtemp(prefix="through-proxy-")
        self.parts, self.way, self.certificates = [], way, None
        scheme = "http"
        if way == "tls":
            self.certificates, scheme = Certificates(self.directory), "https"
        self.member, self.endpoint = (f"127.0.0.1:{free_port()}" for _ in range(2))
        client, peer = f"{scheme}://{self.member}", f"http://127.0.0.1:{free_port()}"
        command = [server, "--data-dir", os.path.join(self.directory, "member"), "--listen-client-urls", client,
                   "--advertise-client-urls", client, "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
                   "--initial-cluster", f"default={peer}"]
        # Clients see the cluster's own member list: the checks of etcdctl are about that.
        behind = [proxy, "grpc-proxy", "start", "--endpoints", client, "--listen-addr", self.endpoint, "--advertise-client-url", "",
                  "--data-dir", os.path.join(self.directory, "proxy")]
        if self.certificates:
            path = self.certificates.path
            command += ["--cert-file", path("server.crt"), "--key-file", path("server.key"), "--trusted-ca-file", path("ca.crt"),
                        "--client-cert-auth"]
            behind += ["--cacert", path("ca.crt"), "--cert", path("proxy.crt"), "--key", path("proxy.key"), "--cert-file",
                       path("server.crt"), "--key-file", path("server.key"), "--trusted-ca-file", path("ca.crt")]
        if way == "namespace":
            behind += ["--namespace", "clients/"]
        if way == "leasing":
            behind += ["--experimental-leasing-prefix", "leasing/", "--experimental-serializable-ordering"]
        try:
            for name, address, line in [("member", self.member, command), ("proxy", self.endpoint, behind)]:
                self.parts.append(Process(self.directory, name, line))
                self.parts[-1].wait_for(lambda address=address: self.answers(address))
        except RuntimeError:
            self.close()
            raise

    def page(self, address, path):
        """A page of a server."""
        context = None
        if self.certificates:
            path_of = self.certificates.path
            context = ssl.create_default_context(cafile=path_of("ca.crt"))
            context.load_cert_chain(path_of("client.crt"), path_of("client.key"))
        scheme = "https" if context else "http"
        with urllib.request.urlopen(f"{scheme}://{address}{path}", timeout=5, context=context) as answer:
            return answer.read().decode()

    def answers(self, address):
        try:
            return '"true"' in self.page(address, "/health")
        except OSError:
            return False

    def watchers(self):
        """Watches that the member has."""
        found = re.search(r"^etcd_debugging_mvcc_watcher_total (\S+)$", self.page(self.member, "/metrics"), re.M)
        return int(float(found[1]))

    def files(self):
        """The flags of TLS that all of etcd's tools have."""
        if not self.certificates:
            return []
        path = self.certificates.path
        return ["--cacert", path("ca.crt"), "--cert", path("client.crt"), "--key", path("client.key")]

    def environment(self):
        """What makes etcdctl speak TLS."""
        names = {"--cacert": "ETCDCTL_CACERT", "--cert": "ETCDCTL_CERT", "--key": "ETCDCTL_KEY"}
        files = self.files()
        return {**os.environ, **{names[flag]: file for flag, file in zip(files[::2], files[1::2])}}

    def close(self):
        for part in reversed(self.parts):
            part.close()
        shutil.rmtree(self.directory, ignore_errors=True)


class Tally:
    """What passed and what did not."""

    def __init__(self):
        self.passed = self.failed = 0

    def fail(self, name, why):
        self.failed += 1
        print(f"FAIL {name}: {why}")

    def check(self, name, is_so, why):
        if is_so:
            self.passed += 1
        else:
            self.fail(name, why)

    def report(self, name, text, expected, seen):
        """Takes the counts and the failed checks from what a program printed. Failures that are expected count as passed; `seen`
        collects which they were."""
        counts = re.findall(r"^([0-9]+) passed, ([0-9]+) failed", text, re.M)
        if not counts:
            return self.fail(name, f"it reported nothing:\n{text[-1500:]}")
        passed, failed = (int(count) for count in counts[-1])
        unexpected = []
        for line, details in re.findall(r"^FAIL (.*)$\n((?:    .*\n)*)", text, re.M):
            check = re.sub(r"^interop/[^/]*/", "", line)
            pattern = next((pattern for pattern in expected if re.fullmatch(pattern.lstrip("~"), check)), None)
            if pattern is None:
                unexpected.append(f"{check}\n{details}".rstrip())
            else:
                seen.add(pattern)
        print(f"  {name}: {passed} checks passed, {failed} failed, of which {len(unexpected)} not expected")
        self.passed += passed + failed - len(unexpected)
        for check in unexpected:
            self.fail(name, check)
        return None


def output_of(command, environment=None, limit=600):
    try:
        done = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              timeout=limit, check=False)
    except subprocess.TimeoutExpired as late:
        return (late.stdout or b"").decode(errors="replace") + "\nit did not end in time"
    return done.stdout.decode(errors="replace")


def watch_together(setting, tally, name, bench, total, expected):
    """Has many watchers of one key, and looks at the member meanwhile."""
    before = setting.watchers()
    counts, over = [], threading.Event()

    def look():
        while not over.wait(0.1):
            counts.append(setting.watchers())

    looking = threading.Thread(target=look)
    looking.start()
    # The puts take some seconds, in which the watchers stand.
    text = output_of([*bench, "watch", "--endpoints", setting.endpoint, *setting.files(), "--streams", "10", "--watch-per-stream",
                      str(total // 10), "--watched-key-total", "1", "--put-total", str(PUTS), "--put-rate", str(PUTS_A_SECOND)])
    over.set()
    looking.join()
    events = sum(int(count) for count in re.findall(r"^ *[0-9.]+ \[([0-9]+)\]", text.rpartition("Summary:")[2], re.M))
    tally.check(f"{name}, events", events == total * PUTS, f"{events} of {total * PUTS} events came\n{text[-1500:]}")
    standing = [count - before for count in counts if count > before]
    is_one = bool(standing) and standing[-1] == 1
    tally.check(f"{name}, watches of the member", is_one or ALL_SHARED in expected,
                f"the watchers cost it {standing[-1] if standing else 'no'} watches")


def run(options, kind, proxy, way, tally):
    """All checks of one proxy in one way."""
    print(f"{kind}, {way}")
    expected = {**EXPECTED.get((kind, "*"), {}), **EXPECTED.get((kind, way), {})}
    seen, without = set(), ["members"]
    if way in ("namespace", "leasing"):
        # A user needs rights to the keys as they are in the cluster, and to the leasing keys.
        without.append("auth")
    setting = Setting(options.server, proxy, way)
    try:
        text = output_of(["bash", os.path.join(HERE, "etcdctl.sh"), "--without", ",".join(without), setting.endpoint, options.etcdctl],
                         setting.environment())
        tally.report(f"{kind}, {way}, etcdctl", text, expected, seen)
        sections = [section for section in SECTIONS if not (options.short and section in LONG)]
        for section in sections if options.short else [""]:
            only = ["--section", section] if section else []
            text = output_of([options.interop, "concurrency", "--endpoint", setting.endpoint, *setting.files(), *only])
            tally.report(f"{kind}, {way}, etcd's Go client {section}".rstrip(), text, expected, seen)
        total = 1_000 if options.short else 10_000
        watch_together(setting, tally, f"{kind}, {way}, {total} watchers", options.bench, total, expected)
        if not options.short:
            for pattern in expected:
                if not pattern.startswith("~"):
                    tally.check(f"{kind}, {way}", pattern in seen, f"{pattern} passed, though it is expected to fail")
    except (OSError, RuntimeError) as error:
        tally.fail(f"{kind}, {way}", error)
    finally:
        setting.close()


def main():
    parser = argparse.ArgumentParser(usage=__doc__, add_help=False)
    parser.add_argument("--server", required=True)
    parser.add_argument("--proxy", action="append", required=True)
    parser.add_argument("--etcdctl", required=True)
    parser.add_argument("--interop", required=True)
    parser.add_argument("--bench", required=True, type=shlex.split)
    parser.add_argument("--way", default=",".join(WAYS))
    parser.add_argument("--short", action="store_true")
    options = parser.parse_args()
    ways = options.way.split(",")
    proxies = [proxy.partition("=") for proxy in options.proxy]
    if any(way not in WAYS for way in ways) or any(kind not in ("mainstay", "etcd") for kind, _, _ in proxies):
        parser.error("an unknown way, or kind of proxy")
    for name in ["server", "etcdctl", "interop"]:
        setattr(options, name, shutil.which(getattr(options, name)) or parser.error(f"there is no {getattr(options, name)}"))
    options.server, options.interop = os.path.abspath(options.server), os.path.abspath(options.interop)
    options.etcdctl = os.path.abspath(options.etcdctl)
    tally = Tally()
    for kind, _, path in proxies:
        for way in ways:
            run(options, kind, os.path.abspath(path), way, tally)
    print(f"{tally.passed} passed, {tally.failed} failed")
    return 1 if tally.failed else 0


if __name__ == "__main__":
    sys.exit(main())
