#!/usr/bin/env python3
"""Runs one long script of etcdctl commands with two tools and compares what they say.

    etcdctl_same.py --ours "mainstay ctl" --real PATH/etcdctl --server PATH/etcd [--auth] [--tls]
    etcdctl_same.py --ours "mainstay ctl" --real PATH/etcdctl --endpoints A,B [--auth]

With --server two fresh members of that program are started on loopback, one for each tool, so that both see the same
states in the same order. With --endpoints the two (fresh) servers are given: the first for the real tool. What must
differ (ports, ids of members, clusters and leases, times) is replaced by its name on both sides before comparing; in
protobuf output, where ids are varints, too. Every difference is printed. Differences that are meant to be stand in
EXPECTED with their reason; one of those that does not show up is an error like any other.

Ends with "N passed, M failed" and exit code 1 if M is not 0. Python 3, standard library only.
"""

import argparse
import os
import re
import shlex
import shutil
import signal
import ssl
import subprocess
import sys
import tempfile
import time
import urllib.request

from ports import free_port

FORMATS = ["simple", "fields", "json", "protobuf", "table"]

# Name of a step -> why it is meant to differ.
EXPECTED = {
    "txn: unknown operator": "real etcdctl crashes (panic: Unknown result op)",
    "txn: lease compare": "real etcdctl crashes (panic: bad value) up to 3.7; 3.8 compares, as ours does",
    "txn: bad flag": "real etcdctl prints the usage of a nameless command before the error",
    "lease revoke protobuf": "real etcdctl says that it cannot, with an address in memory; ours prints the answer",
    "member list bad": "real etcdctl shows the value of the flag of `get`",
    "usage: ambiguous": "the same three commands, by name instead of in the order they are registered",
    "help: completion": "ours gives an example where the real tool gives instructions",
    "help: make-mirror": "ours has --progress-key, --keep-revisions and --cut-over",
    "version": "ours tells the version of the API that it speaks",
    "env endpoint conflict": "real etcdctl says it in its log",
}


# Every command whose help text is compared.
COMMANDS = """
alarm|alarm disarm|alarm list|auth|auth disable|auth enable|auth status|check|check datascale|check perf|compaction
completion|defrag|del|downgrade|downgrade cancel|downgrade enable|downgrade validate|elect|endpoint|endpoint hashkv
endpoint health|endpoint status|get|help|lease|lease grant|lease keep-alive|lease list|lease revoke|lease timetolive
lock|make-mirror|member|member add|member list|member promote|member remove|member update|move-leader|options|put
role|role add|role delete|role get|role grant-permission|role list|role revoke-permission|snapshot|snapshot save|txn
user|user add|user delete|user get|user grant-role|user list|user passwd|user revoke-role|version|watch
""".strip().replace("\n", "|").split("|")


class Certificates:
    """An authority, a certificate of servers and one of a client, for three days."""

    def __init__(self):
        self.directory = tempfile.mkdtemp(prefix="etcdctl-same-tls-")
        self.authority, authority_key = self.path("ca.crt"), self.path("ca.key")
        new_key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
        openssl("req", "-x509", *new_key, "-days", "3", "-subj", "/CN=authority", "-out", self.authority, "-keyout",
                authority_key)
        extensions = self.path("extensions")
        with open(extensions, "w", encoding="ascii") as file:
            file.write("subjectAltName=IP:127.0.0.1,DNS:localhost\nextendedKeyUsage=serverAuth,clientAuth\n")
        for name in ["server", "client"]:
            openssl("req", "-new", *new_key, "-subj", f"/CN={name}", "-out", self.path("request"), "-keyout",
                    self.path(f"{name}.key"))
            openssl("x509", "-req", "-in", self.path("request"), "-CA", self.authority, "-CAkey", authority_key,
                    "-CAcreateserial", "-days", "3", "-extfile", extensions, "-out", self.path(f"{name}.crt"))

    def path(self, name):
        return f"{self.directory}/{name}"

    def of_server(self):
        return [f"--cert-file={self.path('server.crt')}", f"--key-file={self.path('server.key')}", "--client-cert-auth",
                f"--trusted-ca-file={self.authority}"]

    def of_client(self):
        return {"ETCDCTL_CACERT": self.authority, "ETCDCTL_CERT": self.path("client.crt"),
                "ETCDCTL_KEY": self.path("client.key")}

    def context(self):
        context = ssl.create_default_context(cafile=self.authority)
        context.load_cert_chain(self.path("client.crt"), self.path("client.key"))
        return context


def openssl(*arguments):
    subprocess.run(["openssl", *arguments], check=True, capture_output=True)


class Server:
    """A fresh single member."""

    def __init__(self, program, certificates):
        self.directory = tempfile.mkdtemp(prefix="etcdctl-same-")
        self.client, self.peer = free_port(), free_port()
        self.endpoint = f"127.0.0.1:{self.client}"
        peer = f"http://127.0.0.1:{self.peer}"
        url = f"{'https' if certificates else 'http'}://{self.endpoint}"
        context = certificates.context() if certificates else None
        arguments = [
            *shlex.split(program), "--name", "default", "--data-dir", self.directory + "/data",
            "--listen-client-urls", url, "--advertise-client-urls", url, "--listen-peer-urls", peer,
            "--initial-advertise-peer-urls", peer, "--initial-cluster", f"default={peer}",
            *(certificates.of_server() if certificates else []),
        ]
        self.log = open(self.directory + "/log", "wb")
        self.process = subprocess.Popen(arguments, stdout=self.log, stderr=self.log)
        deadline = time.monotonic() + 30
        while True:
            try:
                with urllib.request.urlopen(url + "/health", timeout=1, context=context) as answer:
                    if b"true" in answer.read():
                        return
            except OSError:
                pass
            if self.process.poll() is not None or time.monotonic() > deadline:
                sys.exit(f"the server did not start; see {self.directory}/log")
            time.sleep(0.05)

    def stop(self):
        self.process.terminate()
        self.process.wait(20)
        subprocess.run(["rm", "-rf", self.directory], check=False)


def fresh_server(program, driver, certificates):
    """A server whose ids have all their digits: shorter ones would make columns narrower.

    So must the ids of leases that it grants: they begin with the last 15 bits of the member's id.
    """
    while True:
        server = Server(program, certificates)
        environment = {**os.environ, **(certificates.of_client() if certificates else {})}
        listed = subprocess.run([*driver, "--endpoints", server.endpoint, "member", "list", "-w", "fields"],
                                capture_output=True, timeout=60, check=False, env=environment).stdout
        ids = [int(number) for number in re.findall(rb'"(?:Cluster)?ID" : (\d+)', listed)]
        members = [int(number) for number in re.findall(rb'(?m)^"ID" : (\d+)', listed)]
        if members and all(number >> 60 for number in ids) and all(number & 0x7FFF >= 0x1000 for number in members):
            return server
        server.stop()


def varint(number):
    number &= (1 << 64) - 1
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


class Side:
    """One tool with its server, and the names of what is its own."""

    def __init__(self, command, endpoint, driver, more, certificates):
        self.command, self.endpoint, self.driver = command, endpoint, driver
        self.metrics_url = f"{'https' if certificates else 'http'}://{endpoint}/metrics"
        self.context = certificates.context() if certificates else None
        # Environment variables beside the endpoint.
        self.more = more
        self.names = []  # (bytes, name)
        self.variables = {"EP": endpoint}
        self.name(endpoint.split(":")[1], "<PORT>")

    def name(self, text, name):
        self.names.append((text.encode() if isinstance(text, str) else text, name.encode()))
        self.names.sort(key=lambda pair: -len(pair[0]))

    def name_id(self, number, name):
        for text in (f"{number:016x}", f"{number:x}", str(number)):
            self.name(text, name)
        if number >= 1 << 62:
            self.name(str(number - (1 << 64)), name)
        self.name(varint(number), name)

    def learn(self):
        """Learns the ids of the member and its cluster."""
        out = self.drive(["member", "list", "-w", "fields"]).decode()
        cluster = int(re.search(r'"ClusterID" : (\d+)', out).group(1))
        self.name_id(cluster, "<CLUSTER>")
        for number in re.findall(r'"ID" : (\d+)', out):
            self.name_id(int(number), "<MEMBER>")
            self.variables.setdefault("MEMBER", f"{int(number):x}")
        for url in re.findall(r'"PeerURL" : "http://127.0.0.1:(\d+)"', out):
            self.name(url, "<PEERPORT>")

    def drive(self, arguments, stdin=b""):
        """Runs the real tool on this side's server, to bring about a state."""
        command = [*self.driver, *self.filled(arguments)]
        environment = self.environment({})
        done = subprocess.run(command, input=stdin, capture_output=True, env=environment, timeout=60, check=False)
        return done.stdout

    def watches(self):
        """How many watches the server has; -1 if it does not say."""
        try:
            with urllib.request.urlopen(self.metrics_url, timeout=10, context=self.context) as answer:
                found = re.search(rb"^etcd_debugging_mvcc_watcher_total (\S+)$", answer.read(), re.M)
        except OSError:
            return -1
        return int(float(found[1])) if found else -1

    def environment(self, more):
        kept = {key: value for key, value in os.environ.items() if not key.startswith("ETCDCTL_")}
        all_of_it = {**kept, "ETCDCTL_ENDPOINTS": self.endpoint, **self.more, **more}
        return {key: value for key, value in all_of_it.items() if value is not None}

    def filled(self, arguments):
        return [re.sub(r"@(\w+)@", lambda m: self.variables[m.group(1)], a) for a in arguments]

    def masked(self, output):
        for text, name in self.names:
            output = output.replace(text, name)
        return output


# How long a tool says nothing when it has said all that belongs together.
QUIET_SECONDS = 0.2
# Lines that only a Go program writes: its log.
LOG_LINE = re.compile(rb'^\{"level":.*\n', re.M)
# What stands in for such lines here (COMPAT-57): why there is no connection.
NO_CONNECTION = re.compile(rb"^Warning: \S+: connection error: desc = .*\n", re.M)
TIMES = [
    (re.compile(rb"took = [0-9.]+[a-z\xc2\xb5]+"), b"took = <TIME>"),
    (re.compile(rb"took [0-9.]+[a-z\xc2\xb5]+"), b"took <TIME>"),
    (re.compile(rb'"took":"[^"]*"'), b'"took":"<TIME>"'),
    (re.compile(rb'"Took" : \S+'), b'"Took" : <TIME>'),
    # The length of a header depends on the ids in it.
    (re.compile(rb"\n.\x08<CLUSTER>", re.S), b"\n?\x08<CLUSTER>"),
    (re.compile(rb"\x12.\x08<MEMBER>", re.S), b"\x12?\x08<MEMBER>"),
    # Ours has examples, the real tool has a program that hides what is typed and complains of a pipe.
    (re.compile(rb"Examples:\n(?:  .*\n|\n(?=  ))+\n"), b""),
    (re.compile(rb"stty: .*\n"), b""),
    (re.compile(rb"remaining\(\d+s\)"), b"remaining(<TIME>)"),
]


class Step:
    def __init__(self, name, arguments, stdin=b"", env=None, formats=None, capture=None, masks=(), before=(),
                 until=None, during=(), watches=1, stop=None, state=True, ordered=True):
        self.name, self.arguments, self.stdin, self.env = name, arguments, stdin, env or {}
        self.formats = formats
        # Name of a variable for the lease id that is printed.
        self.capture = capture
        self.masks = [(re.compile(pattern), replacement) for pattern, replacement in masks]
        # Commands of the real tool before, and while it runs once standard output matches the pattern `until[0]`.
        self.before, self.during = before, during
        # How many watches of the tool the server has before the first of `during`.
        self.watches = watches
        self.until = until
        # The signal to end it with, once standard output matches `stop[1]`.
        self.stop = stop
        self.ordered = ordered


def wait_for(is_so, seconds=15):
    """Waits until a condition holds. If it never does, what is compared tells."""
    deadline = time.monotonic() + seconds
    while not is_so() and time.monotonic() < deadline:
        time.sleep(0.02)


def one_run(side, step, form):
    arguments = side.filled(step.arguments)
    if form:
        arguments = [*arguments[:1], "-w", form, *arguments[1:]]
    for command in step.before:
        side.drive(command)
    # A flag and its variable exclude each other.
    names_files = any(argument.split("=")[0] in ("--cacert", "--cert", "--key") for argument in arguments)
    environment = side.environment({**dict.fromkeys(side.more if names_files else []), **step.env})
    stdin = step.stdin
    if step.stop is None:
        done = subprocess.run([*side.command, *arguments], input=stdin, capture_output=True, env=environment,
                              timeout=90, check=False)
        out = b"".join(sorted(done.stdout.splitlines(True))) if not step.ordered else done.stdout
        return out, done.stderr, done.returncode
    if step.during:
        # Those of the step before may not have ended yet.
        wait_for(lambda: side.watches() == 0)
    process = subprocess.Popen([*side.command, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, env=environment)
    process.stdin.write(stdin)
    process.stdin.flush()
    os.set_blocking(process.stdout.fileno(), False)
    out = b""

    def ended():
        return process.poll() is not None

    def read():
        nonlocal out
        out += process.stdout.read() or b""
        return out

    def read_until(is_so, seconds):
        wait_for(lambda: is_so(read()) or ended(), seconds)
        # What belongs to it may come in writes of its own.
        size = -1
        while size < len(out) and not ended():
            size = len(out)
            time.sleep(QUIET_SECONDS)
            read()

    if step.during:
        # The tool says nowhere that its stream stands.
        wait_for(lambda: ended() or side.watches() >= step.watches)
    for number, drive in enumerate(step.during):
        if number > 0:
            # One after the other: what comes of each is shown before the next.
            read_until(lambda text: len(text) > size_before, 15)
        size_before = len(read())
        if isinstance(drive, bytes):
            process.stdin.write(drive)
            process.stdin.flush()
        else:
            side.drive(drive)
    number, pattern = step.stop
    read_until(lambda text: re.search(pattern, text, re.S), 10)
    if not ended() and number:
        process.send_signal(number)
    try:
        process.wait(15)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    out += process.stdout.read() or b""
    return out, process.stderr.read(), process.returncode


def normal(side, step, run, form):
    out, err, code = run
    if step.capture:
        found = re.search(rb"lease ([0-9a-f]{16})|\"ID\" ?: ?(\d+)", out)
        if found:
            number = int(found.group(1), 16) if found.group(1) else int(found.group(2))
            side.variables[step.capture] = f"{number:016x}"
            side.name_id(number, f"<{step.capture}>")
    err = NO_CONNECTION.sub(b"", LOG_LINE.sub(b"", err))
    out, err = side.masked(out), side.masked(err)
    for pattern, replacement in [*TIMES, *step.masks]:
        out, err = pattern.sub(replacement, out), pattern.sub(replacement, err)
    if not step.ordered:
        # Once more: names do not sort as what they stand for.
        out = b"".join(sorted(out.splitlines(True)))
    return out, err, code


def shown(result):
    out, err, code = result
    text = out.decode("utf-8", "backslashreplace") + "".join(
        f"2> {line}\n" for line in err.decode("utf-8", "backslashreplace").splitlines())
    return text + f"exit {code}\n"


def steps_of_keys():
    put = lambda *words: ["put", *words]
    yield Step("put", put("a", "1"), formats=FORMATS)
    yield Step("put prev-kv", put("a", "2", "--prev-kv"), formats=FORMATS)
    yield Step("put html", put("h<t>&ml", "<b>&\u2028\"\\\n\t\x01"), formats=["simple"])
    yield Step("put stdin", put("stdin"), stdin=b"from \xff\x00 stdin\n")
    yield Step("put stdin empty", put("stdin"))
    yield Step("put dash", put("dash", "--", "-v"))
    yield Step("put none", put())
    yield Step("put ignore-value", put("a", "--ignore-value"))
    yield Step("put ignore-value two", put("a", "b", "--ignore-value"))
    yield Step("put ignore-value missing", put("missing", "--ignore-value"))
    yield Step("put ignore-lease", put("a", "3", "--ignore-lease"))
    yield Step("put lease unknown", put("a", "b", "--lease=1234abcd"))
    yield Step("put lease bad", put("a", "b", "--lease=xyz"))
    yield Step("put empty key", put("", "b"))
    yield Step("put no format", put("a", "b", "-w", "yaml"))
    yield Step("put too large", put("large"), stdin=b"x" * (3 << 20))
    yield Step("put above server's", put("large"), stdin=b"x" * (1800 << 10))
    for key in "bcdef":
        yield Step(f"put {key}", put(key, f"value {key}"))
    get = lambda *words: ["get", *words]
    yield Step("get", get("a"), formats=FORMATS)
    yield Step("get hex", get("a", "--hex"), formats=FORMATS)
    yield Step("get html", get("h<t>&ml"), formats=FORMATS)
    yield Step("get binary", get("stdin"), formats=FORMATS)
    yield Step("get missing", get("missing"), formats=FORMATS)
    yield Step("get prefix", get("--prefix", ""), formats=FORMATS)
    yield Step("get range", get("b", "d"), formats=FORMATS)
    yield Step("get from-key", get("--from-key", "d"), formats=["simple", "json"])
    yield Step("get from-key empty", get("--from-key", ""), formats=["simple", "json"])
    yield Step("get limit", get("--prefix", "", "--limit=2"), formats=FORMATS)
    yield Step("get rev", get("a", "--rev=2"), formats=FORMATS)
    yield Step("get future rev", get("a", "--rev=2000"))
    yield Step("get keys-only", get("--prefix", "", "--keys-only"), formats=FORMATS)
    yield Step("get count-only", get("--prefix", "", "--count-only"), formats=FORMATS)
    yield Step("get value-only", get("--prefix", "", "--print-value-only"), formats=FORMATS)
    for order in ("ASCEND", "descend"):
        for by in ("create", "KEY", "MODIFY", "VALUE", "VERSION"):
            yield Step(f"get sorted {by} {order}", get("--prefix", "", "--order", order, "--sort-by", by))
    yield Step("get sort without order", get("--prefix", "", "--sort-by=VALUE"))
    yield Step("get bad order", get("a", "--order=UP"))
    yield Step("get bad sort", get("a", "--sort-by=SIZE"))
    yield Step("get serializable", get("a", "--consistency=s"))
    yield Step("get bad consistency", get("a", "--consistency=x"))
    yield Step("get mod revs", get("--prefix", "", "--min-mod-rev=3", "--max-mod-rev=9"))
    yield Step("get create revs", get("--prefix", "", "--min-create-rev=3", "--max-create-rev=9"))
    yield Step("get bad mod revs", get("a", "--min-mod-rev=9", "--max-mod-rev=3"))
    yield Step("get bad create revs", get("a", "--min-create-rev=9", "--max-create-rev=3"))
    yield Step("get prefix and from-key", get("a", "--prefix", "--from-key"))
    yield Step("get keys and count", get("a", "--keys-only", "--count-only"))
    yield Step("get prefix two", get("a", "b", "--prefix"))
    yield Step("get stream", get("--prefix", "", "--stream"), formats=FORMATS)
    yield Step("get stream missing", get("missing", "--stream"), formats=FORMATS)
    yield Step("get none", get())
    yield Step("get three", get("b", "d", "e"))
    yield Step("get empty", get(""))
    txn = lambda name, text, **more: Step(f"txn: {name}", ["txn"], stdin=text.encode(), **more)
    yield txn("success", 'mod("a") > "0"\nval("b") = "value b"\n\nput a "txn 1" --prev-kv\nget b\ndel c\n\nget a\n\n',
              formats=FORMATS)
    yield txn("failure", 'ver("a") = "100"\n\nput a 1\n\nget a\nget --prefix "" --limit=2\ndel d --prev-kv\n\n',
              formats=FORMATS)
    yield txn("empty", "\n\n\n", formats=FORMATS)
    yield Step("txn: interactive", ["txn", "-i"], stdin=b'create("new") = "0"\n\nput new 1\n\nget new\n\n')
    yield Step("txn: argument", ["txn", "x"])
    yield txn("cut off", 'mod("a") > "0"\n\nput a 1\n')
    yield txn("no input", "")
    for number, line in enumerate(["foo", "mod(k) = 1", 'mod("k" = "1"', 'mod("k") ="1"', 'mod("k") = 1', 'mod("k") = "x"',
                                   'x("k") = "1"', 'mod("k")= "1"', 'val("\\q") = "1"', 'mod ("k") = "1"']):
        yield txn(f"bad comparison {number}", line + "\n\nget a\n\n\n")
    yield txn("unknown operator", 'mod("k") == "1"\n\n\n\n')
    yield txn("lease compare", 'lease("a") = "0"\n\nget a\n\n\n')
    yield txn("one word", "\nget\n\n\n")
    yield txn("unknown request", "\nfoo bar\n\n\n")
    yield txn("bad flag", "\nget --foo a\n\n\n")
    yield txn("bad escape", '\nput "\\q" a\n\n\n')
    yield txn("put without value", "\nput --prev-kv a\n\n\n")
    yield txn("bad sort", "\nget a --order=UP\n\n\n")
    yield txn("twice", "\nput a 1\nput a 2\n\n\n")
    yield txn("quotes", "\nput 'x y' \"a\\tb\"\nget 'x y'\n\n\n")
    yield txn("prefixes of commands", "\np pp 1\nge pp\nd pp\n\n\n")
    dele = lambda *words: ["del", *words]
    yield Step("del missing", dele("missing"), formats=FORMATS)
    yield Step("del", dele("e"), formats=FORMATS)
    yield Step("del prev-kv", dele("f", "--prev-kv"), formats=FORMATS, before=[["put", "f", "again"]])
    yield Step("del range", dele("x1", "x3", "--range"), formats=["simple"], before=[["put", "x1", "1"], ["put", "x2", "1"]])
    yield Step("del range warns", dele("x1", "x3"), before=[["put", "x1", "1"]])
    yield Step("del prefix", dele("x", "--prefix", "--prev-kv"), before=[["put", "x1", "1"], ["put", "x2", "1"]])
    yield Step("del from-key", dele("x", "--from-key"), before=[["put", "x1", "1"]])
    yield Step("del none", dele())
    yield Step("del three", dele("a", "b", "c"))
    yield Step("del both", dele("a", "--prefix", "--from-key"))
    yield Step("del prefix two", dele("a", "b", "--prefix"))
    yield Step("del all", dele("", "--prefix"), before=[])
    yield Step("compaction", ["compaction", "10"])
    yield Step("compaction physical", ["compaction", "12", "--physical"])
    yield Step("compaction again", ["compaction", "11"])
    yield Step("compaction future", ["compaction", "11000"])
    yield Step("compaction bad", ["compaction", "x"])
    yield Step("compaction none", ["compaction"])
    yield Step("compaction format", ["compaction", "13", "-w", "json"])
    yield Step("get compacted", get("a", "--rev=5"), formats=FORMATS)

    yield Step("endpoint hashkv", ["endpoint", "hashkv"], formats=FORMATS)
    yield Step("endpoint hashkv rev", ["endpoint", "hashkv", "--rev=15"], formats=["json"])
    yield Step("endpoint hashkv future", ["endpoint", "hashkv", "--rev=15000"])
    yield Step("endpoint hashkv cluster", ["endpoint", "hashkv", "--cluster"])


def steps_of_watches():
    interrupt = (signal.SIGINT, None)
    write = [["put", "w", "1"], ["put", "w", "2"], ["del", "w"], ["put", "w2", "x"]]
    def watch(name, words, pattern, during=write, **more):
        return Step(f"watch: {name}", ["watch", *words], during=during, stop=(signal.SIGKILL, pattern), **more)
    ends = {"simple": rb"x\n", "fields": rb'"Value" : "x"', "json": rb'"eA=="', "protobuf": rb"w2.*x"}
    for form, pattern in ends.items():
        yield watch(f"prefix {form}", ["--prefix", "w", "-w", form], pattern)
        yield watch(f"prev-kv {form}", ["--prefix", "w", "--prev-kv", "-w", form], pattern)
    yield watch("table", ["w", "-w", "table"], rb"never")
    yield watch("hex", ["--prefix", "w", "--hex"], rb"x78")
    yield watch("key", ["w"], rb"3\n", during=[["put", "w", "3"]])
    yield watch("range", ["w", "w3"], rb"x\n")
    yield watch("from rev", ["w2", "--rev=14"], rb"x\n.*x\n", during=[])
    yield watch("compacted", ["w", "--rev=2"], rb"never", during=[])
    for form in ("fields", "json", "protobuf"):
        yield watch(f"compacted {form}", ["w", "--rev=2", "-w", form], rb"never", during=[])
    yield watch("exec", ["w", "--", "sh", "-c", "env | grep ETCD_WATCH | sort; echo $0 $1", "x y", "z"],
                rb"DELETE.*x y z", during=[["put", "w", "v \"1\""], ["del", "w"]])
    yield watch("exec fails", ["w", "--", "sh", "-c", "echo out; echo err >&2; exit 3"], rb"never", during=[["put", "w", "1"]])
    yield watch("exec unknown", ["w", "--", "/no/such/program"], rb"never", during=[["put", "w", "1"]])
    yield watch("exec not in path", ["w", "--", "no-such-program"], rb"never", during=[["put", "w", "1"]])
    yield watch("env", [], rb"9\n", env={"ETCDCTL_WATCH_KEY": "w"}, during=[["put", "w", "9"]])
    yield watch("env range", ["--prev-kv"], rb"x\n", env={"ETCDCTL_WATCH_KEY": "w", "ETCDCTL_WATCH_RANGE_END": "w3"})
    yield watch("env exec", ["--", "echo", "hi"], rb"hi\n", env={"ETCDCTL_WATCH_KEY": "w"}, during=[["put", "w", "9"]])
    for name, words, env in [
        ("none", [], {}), ("dash only", ["w", "--"], {}), ("env and key", ["w"], {"ETCDCTL_WATCH_KEY": "w"}),
        ("env and exec key", ["w", "--", "echo", "1"], {"ETCDCTL_WATCH_KEY": "w"}),
        ("env end alone", ["w"], {"ETCDCTL_WATCH_RANGE_END": "w"}), ("prefix and end", ["w", "x", "--prefix"], {}),
        ("exec without key", ["--", "echo", "1"], {}),
    ]:
        yield Step(f"watch: {name}", ["watch", *words], env=env)
    yield watch("interactive", ["-i"], rb"7\n.*8\n", stdin=b"watch w\nfoo\n\nwatch\nwatch --prefix v --prev-kv\n",
                during=[["put", "w", "7"], ["put", "v1", "8"]], watches=2)
    yield watch("interactive progress", ["-i"], rb"progress notify", stdin=b"watch w\n", during=[b"progress\n"],
                masks=[(rb"progress notify: \d+", b"progress notify: N")])
    yield Step("watch: interactive end", ["watch", "-i"], stdin=b"watch w\n")
    yield Step("watch: interactive bad flag", ["watch", "-i"], stdin=b"watch w --foo\n")
    yield Step("watch: interactive bad range", ["watch", "-i"], stdin=b"watch w x --prefix\n")
    yield Step("watch: interactive dash", ["watch", "-i"], stdin=b"watch w --\n")
    yield Step("watch: interactive exec", ["watch", "-i"], stdin=b"watch w -- echo hi\n", during=[["put", "w", "1"]],
               stop=(signal.SIGKILL, rb"hi\n"))


def steps_of_leases():
    yield Step("lease grant", ["lease", "grant", "600"], capture="LEASE1")
    for number, form in enumerate(FORMATS):
        yield Step(f"lease grant {form}", ["lease", "grant", "600", "-w", form], capture=f"L{number}",
                   masks=[(rb"", b"")])
    yield Step("lease grant bad", ["lease", "grant", "x"])
    yield Step("lease grant none", ["lease", "grant"])
    yield Step("lease grant 0", ["lease", "grant", "0"], masks=[(rb"lease [0-9a-f]{16}", b"lease <ID>")])
    yield Step("lease grant huge", ["lease", "grant", "9000000001"])
    yield Step("put with lease", ["put", "leased", "v", "--lease", "@LEASE1@"])
    yield Step("get with lease", ["get", "leased"], formats=FORMATS)
    yield Step("get with lease hex", ["get", "leased", "--hex"], formats=["fields", "json"])
    ttl = [(rb'"TTL" : 5\d\d', b'"TTL" : <TTL>'), (rb'"ttl":5\d\d', b'"ttl":<TTL>')]
    yield Step("lease timetolive", ["lease", "timetolive", "@LEASE1@"], formats=FORMATS, masks=ttl)
    yield Step("lease timetolive keys", ["lease", "timetolive", "@LEASE1@", "--keys"], formats=FORMATS, masks=ttl)
    yield Step("lease timetolive hex", ["lease", "timetolive", "@LEASE1@", "--hex"], formats=["fields"], masks=ttl)
    yield Step("lease timetolive unknown", ["lease", "timetolive", "1234"], formats=FORMATS)
    yield Step("lease timetolive bad", ["lease", "timetolive", "xyz"])
    yield Step("lease timetolive none", ["lease", "timetolive"])
    yield Step("lease keep-alive once", ["lease", "keep-alive", "--once", "@LEASE1@"], formats=FORMATS)
    yield Step("lease keep-alive once hex", ["lease", "keep-alive", "--once", "@LEASE1@", "--hex"], formats=["fields"])
    yield Step("lease keep-alive once unknown", ["lease", "keep-alive", "--once", "1234"])
    yield Step("lease keep-alive unknown", ["lease", "keep-alive", "1234"], formats=["simple", "json"])
    yield Step("lease keep-alive", ["lease", "keep-alive", "@LEASE1@"], stop=(signal.SIGINT, rb"TTL\(600\)"))
    yield Step("lease keep-alive bad", ["lease", "keep-alive", "xyz"])
    many = [(rb"found \d+ leases", b"found N leases"), (rb'(?:,?\{"id":[^}]*\})+', b"<IDS>"), (rb'("ID" : \S+\n)+', b"<IDS>\n"),
            (rb"(?m)^([0-9a-f]{16}|<L\w+>)\n", b"<ID>\n")]
    yield Step("lease list", ["lease", "list"], formats=FORMATS, masks=many, ordered=False)
    yield Step("lease revoke", ["lease", "revoke", "@LEASE1@"])
    for number, form in enumerate(FORMATS):
        yield Step(f"lease grant to revoke {form}", ["lease", "grant", "600"], capture=f"R{number}")
        yield Step(f"lease revoke {form}", ["lease", "revoke", f"@R{number}@", "-w", form])
    yield Step("lease revoke unknown", ["lease", "revoke", "1234"])
    yield Step("lease revoke bad", ["lease", "revoke", "xyz"])
    yield Step("lease none", ["lease"])


def steps_of_cluster():
    yield Step("member list", ["member", "list"], formats=FORMATS)
    yield Step("member list hex", ["member", "list", "--hex"], formats=FORMATS)
    yield Step("member list serializable", ["member", "list", "--consistency=s"])
    yield Step("member list bad", ["member", "list", "--consistency=x"])
    yield Step("endpoint health", ["endpoint", "health"], formats=FORMATS, masks=[(rb"\s+[0-9.]+.?.?s \xe2", b" <TIME> |"), (rb"(\xe2\x94[\x80-\xbf])+", b"-"), (rb" +TOOK +", b" TOOK ")])
    yield Step("endpoint health cluster", ["endpoint", "health", "--cluster"])
    yield Step("endpoint health down", ["endpoint", "health", "--endpoints", "127.0.0.1:1", "--command-timeout=300ms", "--dial-timeout=200ms"], env={"ETCDCTL_ENDPOINTS": None}, formats=["simple", "json", "fields"])
    index = [(rb'"Raft(Applied)?Index" : \d+', b"<INDEX>"), (rb'"raft(Applied)?Index":\d+', b"<INDEX>"),
             (rb"\d+ kB", b"<SIZE>"), (rb'"DBSize(InUse)?" : \d+', b"<SIZE>"), (rb'"dbSize(InUse)?":\d+', b"<SIZE>"),
             (rb"\d+%", b"<SHARE>"), (rb", \d+, \d+, (?=[^,\n]*, [^,\n]*, (?:false|true)\n)", b", <INDEX>, <INDEX>, "),
             (rb"\xe2\x94\x82 +\d+ \xe2\x94\x82 +\d+ (?=\xe2\x94\x82 [^\xe2]*\xe2\x94\x82 [^\xe2]*\xe2\x94\x82 +(?:true|false))", b"<INDEXES>"),
             (rb" +<SIZE>", b" <SIZE>"), (rb" +<SHARE>", b" <SHARE>"), (rb"(\xe2\x94[\x80-\xbf])+", b"-"), (rb"  +", b" ")]
    yield Step("endpoint status", ["endpoint", "status"], formats=FORMATS, masks=index)
    yield Step("endpoint status cluster", ["endpoint", "status", "--cluster"], masks=index)
    yield Step("endpoint status down", ["endpoint", "status", "--endpoints", "127.0.0.1:1", "--command-timeout=300ms"], env={"ETCDCTL_ENDPOINTS": None}, formats=["simple", "json"])
    yield Step("endpoint none", ["endpoint"])
    yield Step("alarm list", ["alarm", "list"], formats=FORMATS)
    yield Step("alarm disarm none", ["alarm", "disarm"], formats=FORMATS)
    yield Step("alarm list argument", ["alarm", "list", "x"])
    yield Step("alarm disarm argument", ["alarm", "disarm", "x"])
    yield Step("defrag", ["defrag"])
    yield Step("defrag cluster", ["defrag", "--cluster"])
    yield Step("defrag down", ["defrag", "--endpoints", "127.0.0.1:1", "--command-timeout=300ms"], env={"ETCDCTL_ENDPOINTS": None})
    yield Step("move-leader none", ["move-leader"])
    yield Step("move-leader bad", ["move-leader", "xyz"])
    yield Step("move-leader unknown", ["move-leader", "1234"])
    yield Step("move-leader self", ["move-leader", "@MEMBER@"], formats=FORMATS)
    for action in ("validate", "enable"):
        yield Step(f"downgrade {action} none", ["downgrade", action])
        yield Step(f"downgrade {action} two", ["downgrade", action, "1", "2"])
        yield Step(f"downgrade {action} empty", ["downgrade", action, ""])
        yield Step(f"downgrade {action} bad", ["downgrade", action, "x"])
        yield Step(f"downgrade {action} same", ["downgrade", action, "3.0"])
    yield Step("downgrade validate", ["downgrade", "validate", "3.6"], formats=FORMATS)
    yield Step("downgrade cancel none", ["downgrade", "cancel"], formats=FORMATS)
    with tempfile.TemporaryDirectory() as directory:
        snapshot = directory + "/snapshot.db"
        yield Step("snapshot save", ["snapshot", "save", snapshot])
        yield Step("snapshot save none", ["snapshot", "save"])
        yield Step("snapshot save no directory", ["snapshot", "save", directory + "/no/such/snapshot.db"])
        yield Step("snapshot save two endpoints", ["snapshot", "save", snapshot, "--endpoints", "a:1,b:2"], env={"ETCDCTL_ENDPOINTS": None})
    learner = ["member", "add", "m2", "--learner", "--peer-urls=http://127.0.0.1:1"]
    fresh = [(rb"Member [0-9a-f]{16} added", b"Member <NEW> added"), (rb"(?:^|(?<=\n))[0-9a-f]{15,16}, unstarted", b"<NEW>, unstarted"),
             (rb'"ID" : (?!<)\S+', b'"ID" : <NEW>'), (rb'"ID":"?(?!<)[0-9a-f]+"?', b'"ID":<NEW>'), (rb"\xe2\x94\x82 +[0-9a-f]{15,16} \xe2", b"<NEW>\xe2")]
    # Members come in the order of their ids, which are drawn at random.
    fresh += [(rb'(?<=ETCD_INITIAL_CLUSTER=")[^"\n]*', lambda found: b",".join(sorted(found[0].split(b",")))),
              (rb'(?<="members":\[\{).*(?=\}\])', lambda found: b"},{".join(sorted(found[0].split(b"},{"))))]
    yield Step("member add none", ["member", "add"])
    yield Step("member add two", ["member", "add", "m2", "http://127.0.0.1:1"])
    yield Step("member add no urls", ["member", "add", "m2"])
    for number, url in enumerate(["a", "ftp://a:1", "http://a", "http://a:1/x", "http://a:x", "127.0.0.1:1", ":80", "http:a", "http://[::1"]):
        yield Step(f"member add bad url {number}", ["member", "add", "m2", f"--peer-urls={url}"])
    yield Step("member add learner", learner, masks=fresh)
    yield Step("member list learner", ["member", "list"], formats=["simple", "fields", "json", "table"], masks=fresh, ordered=False)
    yield Step("member update none", ["member", "update"])
    yield Step("member update no urls", ["member", "update", "1234"])
    yield Step("member update bad", ["member", "update", "xyz", "--peer-urls=http://127.0.0.1:2"])
    yield Step("member update unknown", ["member", "update", "1234", "--peer-urls=http://127.0.0.1:2"])
    yield Step("member remove none", ["member", "remove"])
    yield Step("member remove bad", ["member", "remove", "xyz"])
    yield Step("member remove unknown", ["member", "remove", "1234"])
    yield Step("member promote none", ["member", "promote"])
    yield Step("member promote unknown", ["member", "promote", "1234"])


def steps_of_locks():
    key = [(rb"/[0-9a-f]{15,16}", b"/<LEASE>"), (rb"ETCD_LOCK_REV=\d+", b"ETCD_LOCK_REV=<REV>")]
    yield Step("lock none", ["lock"])
    yield Step("lock", ["lock", "l"], stop=(signal.SIGINT, rb"l/\w+\n"), masks=key)
    yield Step("lock SIGTERM", ["lock", "l"], stop=(signal.SIGTERM, rb"l/\w+\n"), masks=key)
    yield Step("lock command", ["lock", "l", "sh", "--", "-c", "env | grep ETCD_LOCK | sort; echo $0", "zero"], masks=key)
    yield Step("lock command fails", ["lock", "l", "--", "sh", "-c", "echo out; echo err >&2; exit 7"])
    yield Step("lock command killed", ["lock", "l", "--", "sh", "-c", "kill -9 $$"])
    yield Step("lock command unknown", ["lock", "l", "no-such-program"])
    yield Step("lock ttl", ["lock", "--ttl=5", "l", "true"])
    yield Step("elect none", ["elect"])
    yield Step("elect no proposal", ["elect", "e"])
    yield Step("elect both", ["elect", "-l", "e", "p"])
    yield Step("elect", ["elect", "e", "p"], stop=(signal.SIGINT, rb"p\n"), masks=key)
    for name in ("lock", "elect"):
        yield Step(f"{name} is gone", ["get", "--prefix", name[0] + "/"])


def steps_of_usage():
    yield Step("help: root", [])
    yield Step("help: root flag", ["--help"])
    yield Step("help: help", ["help"])
    for words in COMMANDS:
        yield Step(f"help: {words}", [*words.split(), "--help"])
    yield Step("help: help member add", ["help", "member", "add"])
    yield Step("help: unknown topic", ["help", "gett"])
    yield Step("options", ["options"])
    yield Step("version", ["version"])
    yield Step("usage: unknown command", ["gett"])
    yield Step("usage: unknown flag", ["get", "--foo"])
    yield Step("usage: bad number", ["get", "--limit=x", "a"])
    yield Step("usage: ambiguous", ["m", "list"])
    yield Step("usage: prefix", ["le", "li", "-w", "table"])
    yield Step("usage: shell", ["completion", "tcsh"])
    yield Step("env endpoint conflict", ["get", "a", "--endpoints", "@EP@"], masks=[])
    yield Step("env format", ["get", "missing"], env={"ETCDCTL_WRITE_OUT": "json"})
    yield Step("no endpoints", ["get", "a", "--endpoints="], env={"ETCDCTL_ENDPOINTS": None})
    yield Step("dead endpoint", ["get", "a", "--endpoints=127.0.0.1:1", "--command-timeout=300ms"], env={"ETCDCTL_ENDPOINTS": None})
    yield Step("failover", ["get", "missing", "--endpoints=127.0.0.1:1,@EP@"], env={"ETCDCTL_ENDPOINTS": None}, formats=["json"])
    yield Step("cert without key", ["get", "a", "--cert=/no/such"])
    yield Step("cacert missing", ["get", "a", "--cacert=/no/such"])
    yield Step("cacert empty", ["get", "a", "--cacert="])
    yield Step("jwt and user", ["get", "a", "--auth-jwt-token=x", "--user=a:b"])
    yield Step("user without auth", ["get", "missing", "--user=a:b", "-w", "json"])


def steps_of_auth():
    root = ["--user=root:pw"]
    yield Step("auth status", ["auth", "status"], formats=FORMATS)
    yield Step("auth enable early", ["auth", "enable"])
    yield Step("auth argument", ["auth", "status", "x"])
    for number, form in enumerate(FORMATS):
        yield Step(f"user add {form}", ["user", "add", f"u{number}:pw", "-w", form])
        yield Step(f"role add {form}", ["role", "add", f"r{number}", "-w", form])
    yield Step("user add again", ["user", "add", "u0:pw"])
    yield Step("user add none", ["user", "add"])
    yield Step("user add empty", ["user", "add", ":pw"])
    yield Step("user add stdin", ["user", "add", "us", "--interactive=false"], stdin=b"secret word\n")
    yield Step("user add flag", ["user", "add", "uf", "--new-user-password=pw"])
    yield Step("user add no password", ["user", "add", "un", "--no-password"])
    yield Step("role add again", ["role", "add", "r0"])
    for arguments in [["role", "add"], ["role", "delete"], ["role", "get"], ["role", "list", "x"], ["role", "grant-permission", "r0", "read"],
                      ["role", "revoke-permission", "r0"], ["user", "get"], ["user", "list", "x"], ["user", "passwd"], ["user", "delete"],
                      ["user", "grant-role", "u0"], ["user", "revoke-role", "u0"], ["role", "grant-permission", "r0", "rw", "a"]]:
        yield Step(" ".join(arguments) + " refused", arguments)
    grants = [["read", "a"], ["write", "b", "c"], ["readwrite", "d", "--prefix"], ["READ", "e", "--from-key"], ["read", "", "--prefix"],
              ["write", ""], ["read", "x", "--prefix", "--from-key"], ["read", "x", "y", "--prefix"], ["read", "x", "y", "--from-key"]]
    for number, grant in enumerate(grants):
        yield Step(f"role grant {number}", ["role", "grant-permission", "r0", *grant])
    for form in FORMATS:
        yield Step(f"role grant {form}", ["role", "grant-permission", "r0", "read", "a", "-w", form])
    yield Step("role get", ["role", "get", "r0"], formats=FORMATS)
    yield Step("role get unknown", ["role", "get", "nobody"])
    yield Step("role list", ["role", "list"], formats=FORMATS)
    yield Step("user grant-role", ["user", "grant-role", "u0", "r0"], formats=FORMATS)
    yield Step("user get", ["user", "get", "u0"], formats=FORMATS)
    yield Step("user get detail", ["user", "get", "u0", "--detail"], formats=FORMATS)
    yield Step("user get unknown", ["user", "get", "nobody"])
    yield Step("user list", ["user", "list"], formats=FORMATS)
    yield Step("user passwd", ["user", "passwd", "u0", "--interactive=false"], stdin=b"pw2\n", formats=["simple"])
    for form in FORMATS:
        yield Step(f"user passwd {form}", ["user", "passwd", "u0", "--interactive=false", "-w", form], stdin=b"pw\n")
    for number, revoke in enumerate([["a"], ["b", "c"], ["d", "--prefix"], ["e", "--from-key"], ["", "--prefix"], ["nothing"]]):
        yield Step(f"role revoke {number}", ["role", "revoke-permission", "r0", *revoke])
    for form in FORMATS[1:]:
        yield Step(f"role revoke {form}", ["role", "revoke-permission", "r0", "k", "-w", form], before=[["role", "grant-permission", "r0", "read", "k"]])
    yield Step("user revoke-role", ["user", "revoke-role", "u0", "r0"], formats=["simple"])
    for form in FORMATS[1:]:
        yield Step(f"user revoke-role {form}", ["user", "revoke-role", "u0", "r0", "-w", form], before=[["user", "grant-role", "u0", "r0"]])
    for number, form in enumerate(FORMATS):
        yield Step(f"user delete {form}", ["user", "delete", f"u{number}", "-w", form])
        yield Step(f"role delete {form}", ["role", "delete", f"r{number}", "-w", form])
    yield Step("user delete unknown", ["user", "delete", "nobody"])
    yield Step("user add root", ["user", "add", "root:pw"])
    yield Step("auth enable", ["auth", "enable"])
    yield Step("auth status on", ["auth", "status", *root], formats=FORMATS)
    yield Step("role get root", ["role", "get", "root", *root], formats=FORMATS)
    yield Step("get without user", ["get", "a"])
    yield Step("get wrong password", ["get", "a", "--user=root:no"])
    yield Step("get as root", ["get", "a", *root], formats=["simple"])
    yield Step("get as root, password flag", ["get", "a", "--user=root", "--password=pw"])
    yield Step("get as root, prompt", ["get", "a", "--user=root"], stdin=b"pw\n")
    yield Step("add a user", ["user", "add", "plain:pw", *root])
    yield Step("get denied", ["get", "a", "--user=plain:pw"])
    yield Step("health denied", ["endpoint", "health", "--user=plain:pw"])
    yield Step("health without user", ["endpoint", "health"])
    yield Step("user list denied", ["user", "list", "--user=plain:pw"])
    with tempfile.TemporaryDirectory() as directory:
        yield Step("snapshot denied", ["snapshot", "save", directory + "/denied.db"])
    yield Step("auth disable", ["auth", "disable", *root])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ours", required=True, help="our tool, with arguments")
    parser.add_argument("--real", required=True, help="the real etcdctl")
    parser.add_argument("--server", help="program of a server to start twice")
    parser.add_argument("--endpoints", help="two fresh servers, with a comma between")
    parser.add_argument("--auth", action="store_true", help="also the commands of users and roles")
    parser.add_argument("--tls", action="store_true", help="with --server: over TLS, with a certificate of the client")
    parser.add_argument("--only", default="", help="only steps whose name matches this")
    parser.add_argument("--report", action="store_true", help="print what is equal, too")
    arguments = parser.parse_args()
    real = shlex.split(arguments.real)
    servers = []
    certificates = Certificates() if arguments.tls and arguments.server else None
    if arguments.server:
        servers = [fresh_server(arguments.server, real, certificates) for _ in range(2)]
        endpoints = [server.endpoint for server in servers]
    else:
        endpoints = arguments.endpoints.split(",")
    passed = failed = 0
    seen = set()
    try:
        more = certificates.of_client() if certificates else {}
        sides = [Side(real, endpoints[0], real, more, certificates),
                 Side(shlex.split(arguments.ours), endpoints[1], real, more, certificates)]
        for side in sides:
            side.learn()
        groups = [steps_of_keys, steps_of_watches, steps_of_leases, steps_of_cluster, steps_of_locks, steps_of_usage]
        groups += [steps_of_auth] if arguments.auth else []
        for group in groups:
            for step in group():
                if not re.search(arguments.only, step.name):
                    continue
                for form in step.formats or [None]:
                    name = step.name if form is None else f"{step.name} [{form}]"
                    results = []
                    for side in sides:
                        run = one_run(side, step, form)
                        results.append(normal(side, step, run, form))
                    same = results[0] == results[1]
                    reason = EXPECTED.get(name)
                    seen.add(name)
                    if same and reason is None:
                        passed += 1
                        if arguments.report:
                            print(f"same: {name}")
                    elif not same and reason is not None:
                        passed += 1
                        print(f"meant: {name}: {reason}")
                    elif same:
                        failed += 1
                        print(f"UNEXPECTED PASS: {name}: {reason}")
                    else:
                        failed += 1
                        print(f"DIFFERENT: {name}: {' '.join(step.arguments)}\n--- real\n{shown(results[0])}--- ours\n{shown(results[1])}---",
                              flush=True)
    finally:
        for server in servers:
            server.stop()
        if certificates:
            shutil.rmtree(certificates.directory)
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
