#!/usr/bin/env python3
"""Checks everything that Mainstay is installed by, and starts members as each package does.

    packages.py --server PATH/mainstay [--xtask "cargo xtask"]

The Dockerfile, the compose file, the chart, the manifests, the dashboard and the list of parts are read by the code that will read
them (`packages/`, in Go). What that finds of command lines is then run with the real binary, on loopback, with ports, hosts and paths
replaced: the image's program in a copy of its root file system, the members of the compose file over TLS, those of the chart with TLS
and without, with the users that a job makes, and while the cluster grows, the static pod with the probes that it asks for, jobs for backups with files of others and
damaged ones. The cluster of the compose file is
scraped, and Prometheus' engine evaluates every rule, alert and panel of ours over it (`promql/ours.go`). Each command of docs/install.md
is either run, or looked at by one of the checks above and named in a line that begins with SKIPPED.

Ends with "N passed, M failed" and exit code 1 if M is not 0. Python 3, standard library only; needs Go and openssl, and root for the
image.
"""

import argparse
import http.client
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request

from ports import free_port

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PACKAGING = os.path.join(ROOT, "packaging")
NAMES = ["mainstay", "etcd", "etcdctl", "etcdutl"]
# User of the image.
USER = 65532


class Tally:
    def __init__(self):
        self.passed = self.failed = 0

    def check(self, fine, text):
        if fine:
            self.passed += 1
        else:
            self.failed += 1
            print(f"FAILED {text}", flush=True)
        return fine

    def run(self, text, words, good=True, **more):
        """Runs a command, which has to succeed (or not to); returns what it prints."""
        done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, **more)
        if not self.check((done.returncode == 0) == good, f"{text}: {shlex.join(words)}: exit code {done.returncode}"):
            print(done.stdout[-3000:])
        return done.stdout

    def add(self, text, words, **more):
        """Runs a program that counts its checks itself."""
        done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, **more)
        counts = re.search(r"^(\d+) passed, (\d+) failed$", done.stdout, re.MULTILINE)
        if counts is None or (done.returncode == 0) != (counts[2] == "0") or counts[1] == "0":
            self.check(False, f"{text}: exit code {done.returncode}\n{done.stdout[-3000:]}")
            return
        print(re.sub(r"^\d+ passed, \d+ failed\n", "", done.stdout, flags=re.MULTILINE), end="")
        self.passed += int(counts[1])
        self.failed += int(counts[2])


class Member:
    """A process that a package starts."""

    def __init__(self, name, words, environment, log, **more):
        self.name, self.log = name, log
        with open(log, "w", encoding="utf-8") as file:
            self.process = subprocess.Popen(words, env=environment, stdout=file, stderr=file, **more)

    def tail(self):
        with open(self.log, encoding="utf-8") as file:
            return "".join(file.readlines()[-5:])

    def end(self):
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(30)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()


class Bench:
    """A folder with the binary under etcd's names, and the members that run."""

    def __init__(self, server):
        self.folder = tempfile.mkdtemp(prefix="packages-")
        os.chmod(self.folder, 0o755)
        self.bin = os.path.join(self.folder, "bin")
        os.mkdir(self.bin)
        for name in NAMES:
            os.symlink(server, os.path.join(self.bin, name))
        self.members = []

    def path(self, *parts):
        return os.path.join(self.folder, *parts)

    def environment(self, more):
        return {"PATH": f"{self.bin}:/usr/bin:/bin", **more}

    def program(self, word):
        """The binary by the name that a package calls it."""
        name = word.removeprefix("/usr/local/bin/")
        if name not in NAMES:
            raise SystemExit(f"a package runs {word}, which is none of {NAMES}")
        return os.path.join(self.bin, name)

    def start(self, name, words, environment):
        self.members.append(Member(name, [self.program(words[0]), *words[1:]], self.environment(environment),
                                   self.path(f"{name}.log")))

    def end(self):
        for member in self.members:
            member.end()
        self.members = []

    def close(self):
        self.end()
        subprocess.run(["chmod", "-R", "u+w", self.folder], check=False)
        shutil.rmtree(self.folder)


def replaced(text, table):
    """A text with every key replaced at once, the longest that fits first."""
    keys = "|".join(re.escape(key) for key in sorted(table, key=len, reverse=True))
    return re.sub(keys, lambda found: table[found[0]], text)


def waits(what, attempt, bench, seconds=60):
    """Tries until it succeeds; returns whether it did."""
    deadline = time.monotonic() + seconds
    said = ""
    while time.monotonic() < deadline:
        try:
            done = attempt()
        except (OSError, http.client.HTTPException) as error:
            done, said = False, str(error)
        if done:
            return True
        if any(member.process.poll() is not None for member in bench.members):
            break
        time.sleep(0.1)
    print(f"{what}: {said}")
    for member in bench.members:
        print(f"{member.name} (exit code {member.process.poll()}): {member.tail()}")
    return False


def tool(bench, words, environment):
    done = subprocess.run([bench.program(words[0]), *words[1:]], env=bench.environment(environment), text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False, timeout=60)
    return done.returncode, done.stdout


def put_and_get(tally, bench, what, environments):
    """Writes through each member and reads through the one behind it."""
    for i, environment in enumerate(environments):
        other = environments[(i + 1) % len(environments)]
        answers = []

        def attempt(environment=environment, other=other, answers=answers, i=i):
            answers[:] = [tool(bench, ["etcdctl", "put", f"key-{i}", "value"], environment),
                          tool(bench, ["etcdctl", "get", f"key-{i}"], other)]
            return [code for code, _ in answers] == [0, 0]

        good = waits(f"{what}, member {i}", attempt, bench) and answers[1][1] == f"key-{i}\nvalue\n"
        tally.check(good, f"{what}: put and get through member {i}: {answers}")


def fetch(url):
    with urllib.request.urlopen(url, timeout=10) as answer:
        return answer.read().decode()


def probe(url):
    try:
        fetch(url)
    except OSError:
        return False
    return True


# The compose file

def compose(tally, bench, services, healthcheck):
    """The service that makes certificates, then the members with the image's check of their health. Returns where they are scraped."""
    certificates = bench.path("certificates")
    script = os.path.join(PACKAGING, "compose/make-certificates")
    words = [certificates if word == "/certificates" else word for word in services["certificates"]["command"]]
    tally.run("the service that makes certificates", [script, *words])
    before = sorted(os.listdir(certificates))
    first = open(os.path.join(certificates, "m1.crt"), "rb").read()
    tally.run("the service again", [script, *words])
    tally.check(before == sorted(os.listdir(certificates)) and first == open(os.path.join(certificates, "m1.crt"), "rb").read(),
                "certificates that are there stay")
    tally.run("it names what it needs", [script], good=False)
    renewed(tally, script, words, certificates)
    before = sorted(os.listdir(certificates))
    for name in before:
        mode = os.stat(os.path.join(certificates, name)).st_mode & 0o777
        owner = os.stat(os.path.join(certificates, name)).st_uid
        members = USER if os.geteuid() == 0 and name.endswith(".key") and "ca" not in name else os.geteuid()
        tally.check(mode == (0o644 if name.endswith(".crt") else 0o600) and owner == members,
                    f"{name} has the mode {mode:o} and the owner {owner}")

    names = [name for name in services if name != "certificates"]
    ports = {name: [free_port() for _ in range(3)] for name in names}
    consoles = {name: free_port() for name in names}
    environments, metrics = [], []
    for name in names:
        table = {"/certificates": certificates, "/var/lib/etcd": bench.path(f"compose-{name}")}
        for other in names:
            for port, mine in zip((2379, 2380, 2381), ports[other]):
                table[f"//{other}:{port}"] = f"//127.0.0.1:{mine}"
        for port, mine in zip((2379, 2380, 2381), ports[name]):
            table[f"//0.0.0.0:{port}"] = f"//127.0.0.1:{mine}"
        environment = {key: replaced(value, table) for key, value in services[name]["environment"].items()}
        words = [replaced(word, table) for word in services[name]["command"]]
        # More than the file asks for, so that every histogram has something, and with a console.
        bench.start(f"compose-{name}", words, {**environment, "ETCD_METRICS": "extensive", "ETCD_METRICS_HEAVY_HITTERS": "true",
                                               "ETCD_LISTEN_CONSOLE_URLS": f"http://127.0.0.1:{consoles[name]}"})
        environments.append(environment)
        metrics.append(f"http://127.0.0.1:{ports[name][2]}/metrics")
    put_and_get(tally, bench, "the compose file", environments)
    for name, environment in zip(names, environments):
        code, said = tool(bench, healthcheck, environment)
        tally.check(code == 0 and environment["ETCDCTL_ENDPOINTS"] in said, f"the health of {name}: {said}")
        without = {key: value for key, value in environment.items() if key != "ETCDCTL_CERT" and key != "ETCDCTL_KEY"}
        code, said = tool(bench, healthcheck, without)
        tally.check(code != 0, f"{name} lets a client in that has no certificate: {said}")
    console(tally, bench, consoles[names[0]], len(names))
    return environments, metrics


def console(tally, bench, port, count):
    """A member's console reaches all members with the member's own certificate."""
    said = {}

    def ask(path, data=None):
        request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", data=data, headers={"X-Mainstay-Console": "1"})
        with urllib.request.urlopen(request, timeout=10) as answer:
            return json.load(answer)

    def all_of_them():
        said["members"] = ask("/api/members")["endpoints"]
        return len(said["members"]) == count

    if not tally.check(waits("the console", all_of_them, bench), f"the console knows the members {said}"):
        return
    for member in said["members"]:
        path = f"/api/endpoint/{member['id']}/v3/maintenance/status"
        try:
            answer = ask(path, b"{}")
        except OSError as error:
            answer = {"error": str(error)}
        tally.check("leader" in answer, f"the console, at {path}: {answer}")


def renewed(tally, script, words, folder):
    """Certificates that end soon, are not for what is asked now, or are of another authority are made again, and their keys stay."""
    def openssl(*rest):
        return tally.run("openssl", ["openssl", *rest], cwd=folder)

    def text(name):
        return open(os.path.join(folder, name), encoding="utf-8").read()

    def ends(name, days):
        """Whether a certificate ends within so many days."""
        return subprocess.run(["openssl", "x509", "-in", name, "-noout", "-checkend", str(days * 86400)], cwd=folder,
                              stdout=subprocess.DEVNULL, check=False).returncode != 0

    def sign(name, authority, days, usages):
        with open(os.path.join(folder, "extensions"), "w", encoding="utf-8") as file:
            file.write(f"extendedKeyUsage={usages}\nsubjectAltName=DNS:{name}\n")
        openssl("req", "-new", "-key", f"{name}.key", "-subj", f"/CN={name}", "-out", "request")
        openssl("x509", "-req", "-in", "request", "-CA", f"{authority}.crt", "-CAkey", f"{authority}.key", "-CAcreateserial", "-days",
                str(days), "-extfile", "extensions", "-out", f"{name}.crt")
        os.remove(os.path.join(folder, "extensions"))
        os.remove(os.path.join(folder, "request"))

    authority = text("ca.crt")
    # As earlier versions made it: the members' authority ends with what it signs.
    openssl("req", "-x509", "-key", "peer-ca.key", "-days", "365", "-subj", "/CN=Mainstay peer-ca", "-addext",
            "basicConstraints=critical,CA:TRUE", "-out", "peer-ca.crt")
    sign("m1", "ca", 20, "serverAuth,clientAuth")
    sign("m2", "ca", 365, "serverAuth")
    sign("client", "ca", 20, "clientAuth")
    sign("m3", "peer-ca", 365, "serverAuth,clientAuth")
    changed = ["m1.crt", "m2.crt", "m3.crt", "client.crt", "peer-ca.crt"]
    before = {name: text(name) for name in os.listdir(folder)}
    tally.check(ends("m1.crt", 30) and ends("client.crt", 30) and ends("peer-ca.crt", 366), "old certificates could not be planted")
    tally.run("the service, with old certificates", [script, *words])
    for name, old in sorted(before.items()):
        if not name.endswith(".srl"):
            tally.check((text(name) != old) == (name in changed), f"{name}: made again is {text(name) != old}")
    tally.check(authority == text("ca.crt"), "the authority does not stay")
    for name in ("m1", "m2", "m3", "client", "m1-peer"):
        signer = "peer-ca" if "peer" in name else "ca"
        tally.check(not ends(f"{name}.crt", 300) and not ends(f"{signer}.crt", 366), f"{name} ends within 300 days, or {signer} before it")
        # The console and the JSON gateway show a member's certificate to other members.
        for purpose in ("sslclient",) if name == "client" else ("sslclient", "sslserver"):
            openssl("verify", "-CAfile", f"{signer}.crt", "-purpose", purpose, f"{name}.crt")
    # The keys of the authorities and of the client may be kept elsewhere until something has to be signed.
    away = ["ca.key", "peer-ca.key", "client.key"]
    before = {name: text(name) for name in os.listdir(folder)}

    def moved(names, back=False):
        for name in names:
            ends_with = (f"{name}.away", name) if back else (name, f"{name}.away")
            os.rename(*(os.path.join(folder, end) for end in ends_with))

    moved(away)
    tally.run("the service, with keys that are elsewhere", [script, *words])
    for name, old in sorted(before.items()):
        if name not in away:
            tally.check(text(name) == old, f"{name} is another one once keys are elsewhere")
    tally.check(not any(os.path.exists(os.path.join(folder, name)) for name in away), "a key was made in place of one that is elsewhere")
    # What is missing is told by name; what can be made is made, and handed over, all the same.
    moved(["peer-ca.key"], back=True)
    moved(["m1.crt"])
    os.remove(os.path.join(folder, "m2-peer.crt"))
    os.remove(os.path.join(folder, "m2-peer.key"))
    said = tally.run("a certificate to be made without its authority's key", [script, *words], good=False)
    tally.check("ca.key, which signs it, is not there" in said, f"without an authority's key: {said}")
    again = os.path.join(folder, "m2-peer.key")
    tally.check(os.path.exists(again) and not ends("m2-peer.crt", 300), "one certificate that cannot be made keeps another from it")
    tally.check(os.stat(again).st_uid == (USER if os.geteuid() == 0 else os.geteuid()), "a key that was made is not handed over")
    moved(["m1.crt"], back=True)
    moved(["ca.key"], back=True)

    # A client whose key is elsewhere: a certificate of another key would lock its owner out. While the one that is there is good, members start.
    def client_ends(days):
        moved(["client.key"], back=True)
        sign("client", "ca", days, "clientAuth")
        moved(["client.key"])
        return text("client.crt")

    old = client_ends(20)
    said = tally.run("a client's certificate that ends soon, without its key", [script, *words])
    tally.check("client.key is not there" in said and old == text("client.crt"), f"without the client's key: {said}")
    old = client_ends(0)
    said = tally.run("a client's certificate that has ended, without its key", [script, *words], good=False)
    tally.check("client.key is not there" in said and old == text("client.crt"), f"ended, without the client's key: {said}")
    moved(["client.key"], back=True)
    # A key that is not the authority's.
    moved(["ca.key"])
    shutil.copyfile(os.path.join(folder, "m1.key"), os.path.join(folder, "ca.key"))
    said = tally.run("an authority with another key", [script, *words], good=False)
    tally.check("ca.key is not the key" in said and authority == text("ca.crt"), f"an authority with another key: {said}")
    moved(["ca.key"], back=True)
    tally.run("the service, with all keys again", [script, *words])


def majority_lost(tally, bench, healthcheck, environments, metrics):
    """A member whose majority is gone is alive, so that nobody restarts it."""
    for member in [member for member in bench.members if member.name.startswith("compose-")][1:]:
        bench.members.remove(member)
        member.end()
    url = metrics[0].removesuffix("/metrics")
    tally.check(waits("a lost majority", lambda: not probe(f"{url}/readyz"), bench), "a member without a majority is ready")
    tally.check(probe(f"{url}/livez"), "a member without a majority is not alive")
    code, said = tool(bench, healthcheck, environments[0])
    tally.check(code == 0, f"a member without a majority counts as unhealthy: {said}")


def observed(tally, bench, environments, metrics):
    """Rules, alerts and panels over scrapes of the compose file's cluster, and of a member that has raised NOSPACE."""
    peer, client, figures = (free_port() for _ in range(3))
    bench.start("troubled", ["etcd", "--name=troubled", f"--data-dir={bench.path('troubled')}",
                             f"--listen-client-urls=http://127.0.0.1:{client}", f"--advertise-client-urls=http://127.0.0.1:{client}",
                             f"--listen-peer-urls=http://127.0.0.1:{peer}", f"--initial-advertise-peer-urls=http://127.0.0.1:{peer}",
                             f"--initial-cluster=troubled=http://127.0.0.1:{peer}", f"--listen-metrics-urls=http://127.0.0.1:{figures}",
                             "--quota-backend-bytes=65536"], {})
    troubled = {"ETCDCTL_ENDPOINTS": f"http://127.0.0.1:{client}"}
    tally.check(waits("the troubled member", lambda: probe(f"http://127.0.0.1:{figures}/readyz"), bench), "the troubled member serves")

    def full():
        code, said = tool(bench, ["etcdctl", "put", "big", "v" * 30_000], troubled)
        return code != 0 and "database space exceeded" in said

    tally.check(waits("a full quota", full, bench), "a member whose quota is full refuses puts")
    pages = [*metrics, f"http://127.0.0.1:{figures}/metrics"]

    def known():
        return all("etcd_network_peer_round_trip_time_seconds_count" in fetch(page) and "etcd_cluster_version{" in fetch(page)
                   for page in metrics)

    tally.check(waits("figures of peers", known, bench), "members count round trips")

    def scrape(label):
        files = []
        for i, page in enumerate(pages):
            files.append(bench.path(f"{label}-{i}.txt"))
            with open(files[-1], "w", encoding="utf-8") as file:
                file.write(fetch(page))
        return files

    before = scrape("before")
    for environment in environments:
        for words in (["put", "k", "v"], ["get", "k"], ["del", "k"], ["lease", "grant", "60"], ["txn"]):
            done = subprocess.run([bench.program("etcdctl"), *words], env=bench.environment(environment), input="\n\nput t v\n\n\n",
                                  text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
            tally.check(done.returncode == 0, f"etcdctl {words}: {done.stdout}")
    pairs = [f"{b},{a}" for b, a in zip(before, scrape("after"))]
    tally.add("rules, alerts and panels", ["go", "run", ".", "--ours", PACKAGING, "--troubled", pairs[-1], *pairs[:-1]],
              cwd=os.path.join(ROOT, "interop/promql"))
    if shutil.which("promtool"):
        tally.run("promtool", ["promtool", "test", "rules", "mainstay-test.yaml"], cwd=os.path.join(PACKAGING, "prometheus"))
    else:
        print("SKIPPED promtool: it is not installed; Prometheus' own parser and engine did the same (interop/promql/ours.go)")


# The chart

def chart(tally, bench, what, entry):
    """The members of the StatefulSet, the pod of `helm test`, and the job for backups."""
    count, container = entry["replicas"], entry["members"]
    tls = any("https" in word for word in container["args"])
    base = what.replace(" ", "-")
    certificates = bench.path(f"chart-certificates-{base}")
    ports = [[free_port() for _ in range(3)] for _ in range(count)]
    hosts = {}
    for i in range(count):
        for port, mine in zip((2379, 2380, 2381), ports[i]):
            hosts[f"//mainstay-{i}.mainstay-members.apps.svc:{port}"] = f"//127.0.0.1:{mine}"
    hosts["//mainstay.apps.svc:2379"] = f"//127.0.0.1:{ports[0][0]}"
    if tls:
        tally.run("certificates for the chart", [os.path.join(PACKAGING, "compose/make-certificates"), certificates, "m"])
    files = {"/tls/client/tls": f"{certificates}/m", "/tls/client/ca": f"{certificates}/ca",
             "/tls/peer/tls": f"{certificates}/m-peer", "/tls/peer/ca": f"{certificates}/peer-ca",
             "/tls/tls": f"{certificates}/client", "/tls/ca": f"{certificates}/ca"}

    def filled(words, pod, more):
        table = {**hosts, **files, **more}
        return [replaced(word.replace("$(POD_NAME)", pod), table) for word in words]

    def variables(part, pod, more):
        # A label of the pod that is not there gives an empty value, as in Kubernetes before 1.35.
        labels = {variable["name"]: "" for variable in part.get("env", [])
                  if "metadata.labels" in variable.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath", "")}
        secrets = {variable["name"]: "password of " + variable["valueFrom"]["secretKeyRef"]["name"] for variable in part.get("env", [])
                   if "secretKeyRef" in variable.get("valueFrom", {})}
        return {variable["name"]: filled([variable["value"]], pod, more)[0] if "value" in variable else pod
                for variable in part.get("env", [])} | labels | secrets

    for i in range(count):
        pod = f"mainstay-{i}"
        more = {"/var/lib/etcd": bench.path(f"chart-{base}-{i}")}
        more |= {f"//0.0.0.0:{port}": f"//127.0.0.1:{mine}" for port, mine in zip((2379, 2380, 2381), ports[i])}
        bench.start(f"chart-{base}-{i}", filled(container["command"] + container["args"], pod, more), variables(container, pod, more))
    probes = {kind: container[kind]["httpGet"] for kind in ("startupProbe", "livenessProbe", "readinessProbe")}
    named = {port["name"]: port["containerPort"] for port in container["ports"]}
    for i in range(count):
        for kind, asked in probes.items():
            port = ports[i][named[asked["port"]] - 2379]
            tally.check(waits(kind, lambda port=port, asked=asked: probe(f"http://127.0.0.1:{port}{asked['path']}"), bench),
                        f"the chart with {what}: {kind} of member {i}")
    if "users" in entry:
        users(tally, bench, entry["users"], filled, variables)
    test = entry["test"]
    environment = variables(test, "", {})
    environments = []
    for i in range(count):
        scheme = "https" if tls else "http"
        environments.append({**environment, "ETCDCTL_ENDPOINTS": f"{scheme}://127.0.0.1:{ports[i][0]}"})
    put_and_get(tally, bench, f"the chart with {what}", environments)
    code, said = tool(bench, filled(test["command"] + test["args"], "", {}), environment)
    tally.check(code == 0 and said.count("is healthy") == count, f"the chart with {what}: helm test: {said}")
    if "backup" in entry:
        backup(tally, bench, entry["backup"], filled, variables)
    if entry["observers"]:
        zones(tally, bench, what, entry["observers"], environment, hosts, filled, variables)


def users(tally, bench, job, filled, variables):
    """The job that makes users: every step once, as Kubernetes runs them, and what each user may do then."""
    for part in job["initContainers"] + job["containers"]:
        environment = variables(part, "", {})
        # $(NAME) in arguments is that variable, as in Kubernetes.
        words = [re.sub(r"\$\((\w+)\)", lambda name, environment=environment: environment[name[1]], word)
                 for word in filled(part["command"] + part["args"], "", {})]
        asked = {name: value for name, value in environment.items() if name != "PASSWORD"}
        code, said = tool(bench, words, asked)
        if not tally.check(code == 0, f"the job for users, step {part['name']}: {said}"):
            return
    for user, key, good in (("root", "/other", True), ("app", "/app/key", True), ("app", "/other", False), ("operator", "/other", True)):
        code, said = tool(bench, ["etcdctl", "--command-timeout=50s", "put", key, "value"], {**asked, "ETCDCTL_USER": user, "ETCDCTL_PASSWORD": f"password of {user}"})
        tally.check((code == 0) == good, f"the user {user} puts {key}: {said}")
    code, said = tool(bench, ["etcdctl", "put", "/app/key", "value"], asked)
    tally.check(code != 0, f"nobody puts a key: {said}")


def zones(tally, bench, what, sets, environment, hosts, filled, variables):
    """Observers of the members that run: they serve, and a client in the zone of some of them is shown these alone."""
    ports = {}
    for observers in sets:
        for i in range(observers["replicas"]):
            pod = f"{observers['name']}-{i}"
            ports[pod] = [free_port() for _ in range(3)]
            for port, mine in zip((2379, 2380, 2381), ports[pod]):
                hosts[f"//{pod}.mainstay-observers.apps.svc:{port}"] = f"//127.0.0.1:{mine}"
    for observers in sets:
        container = observers["container"]
        for i in range(observers["replicas"]):
            pod = f"{observers['name']}-{i}"
            more = {"/var/lib/etcd": bench.path(f"chart-{pod}")}
            more |= {f"//0.0.0.0:{port}": f"//127.0.0.1:{mine}" for port, mine in zip((2379, 2380, 2381), ports[pod])}
            bench.start(f"chart-{pod}", filled(container["command"] + container["args"], pod, more), variables(container, pod, more))
    for pod, (_, _, metrics) in ports.items():
        tally.check(waits(pod, lambda metrics=metrics: probe(f"http://127.0.0.1:{metrics}/readyz"), bench),
                    f"the chart with {what}: {pod} does not serve")
    put_and_get(tally, bench, f"the chart with {what}, observers",
                [{**environment, "ETCDCTL_ENDPOINTS": f"http://127.0.0.1:{client}"} for client, _, _ in ports.values()])
    # The values put all of this machine's addresses into the zone of the first set.
    zone = next(word.removeprefix("--zone=") for word in sets[0]["container"]["args"] if word.startswith("--zone="))
    near = {f"{observers['name']}-{i}" for observers in sets for i in range(observers["replicas"])
            if f"--zone={zone}" in observers["container"]["args"]}
    shown = set()

    def attempt():
        code, said = tool(bench, ["etcdctl", "member", "list"], environment)
        shown.clear()
        shown.update(line.split(", ")[2] for line in said.splitlines() if line.count(", ") > 2)
        return code == 0 and shown == near

    tally.check(waits("the list of members of a zone", attempt, bench) and 0 < len(near) < len(ports),
                f"the chart with {what}: a client in zone {zone} is shown {shown}, not {near}")


def backup(tally, bench, job, filled, variables):
    """Runs the job where three snapshots are kept: well, with snapshots that were damaged on their way, and well again."""
    folder = tempfile.mkdtemp(prefix="backups-", dir=bench.folder)
    # Files of others on the same claim, and of the release's own that are not to be touched, all older than any snapshot.
    others = ["other-backup-28990001-abcde.db", "mainstay-backup-backup-28990001-abcde.db", "mainstay-backup-1-backup-28990001-abcde.db",
              "mine.db", "by-hand-abcde.db", "other-backup-28990001-abcde.unverified", "other-backup-28990001-abcde.db.part"]
    leftovers = ["mainstay-backup-28980001-abcde.unverified", "mainstay-backup-28980002-abcde.unverified.part",
                 "mainstay-backup-28980003-abcde.db.part"]
    for name in others + leftovers:
        with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
            file.write("not a snapshot")
        os.utime(os.path.join(folder, name), (1_000, 1_000))
    # One that another job writes right now.
    busy = "mainstay-backup-28990009-abcde.unverified.part"
    with open(os.path.join(folder, busy), "w", encoding="utf-8"):
        pass

    def run(number, damage=None):
        """The job's containers until one fails; returns the name of that one."""
        pod = f"mainstay-backup-2899000{number}-abcde"
        for part in job["initContainers"] + job["containers"]:
            words = filled(part["command"] + part["args"], pod, {"/backup": folder})
            environment = variables(part, pod, {})
            if words[0] == "sh":
                # That of the container's image, if it is there.
                words = [*(["busybox"] if shutil.which("busybox") else []), *words]
                done = subprocess.run(words, env={"PATH": "/usr/bin:/bin", **environment}, text=True, stdout=subprocess.PIPE,
                                      stderr=subprocess.STDOUT, check=False, timeout=60)
                code, said = done.returncode, done.stdout
            else:
                code, said = tool(bench, words, environment)
            if code != 0:
                tally.check(damage is not None, f"the backup {number}, container {part['name']}: {said}")
                return part["name"]
            if part["name"] == "save" and damage is not None:
                written = [name for name in os.listdir(folder) if name.startswith(pod)]
                if tally.check(len(written) == 1, f"save writes {written}"):
                    path = os.path.join(folder, written[0])
                    with open(path, "r+b") as file:
                        at = damage(os.path.getsize(path))
                        file.seek(at)
                        byte = file.read(1)[0]
                        file.seek(at)
                        file.write(bytes([byte ^ 1]))
        # Names have no meaning to the cleaner: times have.
        made = os.path.join(folder, f"{pod}.db")
        if tally.check(os.path.exists(made), f"the backup did not write {made}"):
            os.utime(made, (1_000_000 + number, 1_000_000 + number))
        return ""

    for number in range(4):
        run(number)
    good = [f"mainstay-backup-2899000{number}-abcde.db" for number in (1, 2, 3)]
    kept = sorted(os.listdir(folder))
    tally.check(kept == sorted([*good, *others, busy]), f"kept are {kept}")
    # In the last byte of the database, in its middle, in the digest.
    for number, damage in ((4, lambda size: size - 33), (5, lambda size: size // 2), (6, lambda size: size - 1)):
        tally.check(run(number, damage) == "keep", f"a snapshot with a flipped byte is taken for a good one ({number})")
    kept = sorted(name for name in os.listdir(folder) if name.endswith(".db"))
    tally.check(kept == sorted([*good, *(name for name in others if name.endswith(".db"))]), f"after damage, kept are {kept}")
    run(7)
    good = [*good[1:], "mainstay-backup-28990007-abcde.db"]
    kept = sorted(name for name in os.listdir(folder) if name.endswith(".db"))
    tally.check(kept == sorted([*good, *(name for name in others if name.endswith(".db"))]), f"after a good one, kept are {kept}")
    for name in good:
        words = ["etcdutl", "snapshot", "restore", os.path.join(folder, name), "--data-dir", f"{folder}-restored-{name}"]
        code, said = tool(bench, words, {})
        tally.check(code == 0, f"{name} cannot be restored: {said}")


def growing(tally, bench, grown):
    """Members that a larger number of replicas adds join the cluster that runs, once announced, and never form another one."""
    for formed, steps in ((1, ("2 of 1", "3 of 1")), (3, ("4 of 3", "5 of 3"))):
        largest = "3 of 1" if formed == 1 else "7 of 3"
        ports = [[free_port() for _ in range(3)] for _ in range(7)]
        hosts = {f"//mainstay-{i}.mainstay-members.apps.svc:{port}": f"//127.0.0.1:{mine}" for i in range(7)
                 for port, mine in zip((2379, 2380, 2381), ports[i])}

        def start(render, i, formed=formed, ports=ports, hosts=hosts):
            container, pod = grown[render]["members"], f"mainstay-{i}"
            table = {**hosts, "/var/lib/etcd": bench.path(f"grown-{formed}-{i}")}
            table |= {f"//0.0.0.0:{port}": f"//127.0.0.1:{mine}" for port, mine in zip((2379, 2380, 2381), ports[i])}
            words = [replaced(word.replace("$(POD_NAME)", pod), table) for word in container["command"] + container["args"]]
            bench.start(f"grown-{formed}-{i}", words, {})
            return bench.members[-1]

        def asked(i, *words, ports=ports):
            return tool(bench, ["etcdctl", f"--endpoints=http://127.0.0.1:{ports[i][0]}", *words], {})

        def serves(i, ports=ports):
            return probe(f"http://127.0.0.1:{ports[i][2]}/readyz")

        what = f"a cluster formed with {formed}"
        first = [start(f"{formed} of {formed}", i) for i in range(formed)]
        for i in range(formed):
            tally.check(waits(f"{what}, member {i}", lambda i=i: serves(i), bench), f"{what}: member {i} does not serve")
        code, said = asked(0, "put", "old", "key")
        tally.check(code == 0, f"{what}: {said}")

        # Not announced: each ends, and none answers.
        count = grown[largest]["replicas"]
        early = [start(largest, i) for i in range(formed, count)]
        deadline = time.monotonic() + 30
        while any(member.process.poll() is None for member in early) and time.monotonic() < deadline:
            if any(serves(i) for i in range(formed, count)):
                break
            time.sleep(0.1)
        for i, member in zip(range(formed, count), early):
            tally.check(member.process.poll() not in (None, 0),
                        f"{what}: member {i} of {count} runs without being announced: {member.tail()}")
            tally.check(not serves(i), f"{what}: member {i} of {count} serves without being announced")
            bench.members.remove(member)
            member.end()
        formed_ids = cluster_ids(asked, formed)
        tally.check(len(formed_ids) == 1, f"{what}: members of several clusters: {formed_ids}")

        # As docs/install.md has it.
        for i, render in enumerate(steps, formed):
            peer = f"http://127.0.0.1:{ports[i][1]}"
            answers = []

            # Refused while members that have just started are not known to be connected.
            def announced(i=i, peer=peer, answers=answers):
                answers.append(asked(0, "member", "add", f"mainstay-{i}", "--learner", f"--peer-urls={peer}"))
                return answers[-1][0] == 0

            done = waits(f"{what}, announcing {i}", announced, bench)
            found = re.search(r"Member +([0-9a-f]+) added", answers[-1][1])
            if not tally.check(done and found, f"{what}: member add: {answers[-1]}"):
                bench.end()
                return
            start(render, i)

            def promoted(found=found):
                return asked(0, "member", "promote", found[1])[0] == 0

            tally.check(waits(f"{what}, promoting {i}", promoted, bench), f"{what}: member {i} is not promoted")
            tally.check(waits(f"{what}, member {i}", lambda i=i: serves(i), bench), f"{what}: member {i} does not serve")
            # Kubernetes starts the others again, with the new arguments.
            for j in range(i):
                member = next(one for one in bench.members if one.name == f"grown-{formed}-{j}")
                bench.members.remove(member)
                member.end()
                start(render, j)
                tally.check(waits(f"{what}, member {j} again", lambda j=j: serves(j), bench), f"{what}: member {j} does not serve again")
        total = formed + len(steps)
        for i in range(total):
            code, said = asked(i, "get", "old")
            tally.check((code, said) == (0, "old\nkey\n"), f"{what}: member {i} of {total} answers {said}")
        ids = cluster_ids(asked, total)
        tally.check(len(ids) == 1, f"{what}: {total} members are of several clusters: {ids}")
        tally.check(ids == formed_ids, f"{what}: the cluster is another one: {ids}")
        if formed == 1:
            shrinking(tally, what, asked, serves, start, bench)
        bench.end()


def cluster_ids(asked, count):
    """The clusters that members say they are of."""
    ids = set()
    for i in range(count):
        code, said = asked(i, "endpoint", "status", "--write-out=json")
        ids.add(json.loads(said)[0]["Status"]["header"]["cluster_id"] if code == 0 else said)
    return ids


def shrinking(tally, what, asked, serves, start, bench):
    """Three members become one, and then no member without data forms a cluster, whatever the number."""
    listed = json.loads(asked(0, "member", "list", "--write-out=json")[1])["members"]
    for i in (2, 1):
        member = next(one for one in listed if one["name"] == f"mainstay-{i}")

        def removed(member=member):
            return asked(0, "member", "remove", f"{member['ID']:x}")[0] == 0

        tally.check(waits(f"{what}, removing {i}", removed, bench), f"{what}: member {i} is not removed")
        # It ends by itself, and so does its pod.
        gone = next(one for one in bench.members if one.name.endswith(f"-{i}"))
        bench.members.remove(gone)
        gone.end()
        shutil.rmtree(bench.path(gone.name))
    tally.check(waits(f"{what}, alone", lambda: asked(0, "put", "alone", "x")[0] == 0, bench), f"{what}: the last member takes no puts")
    early = [start("3 of 0", i) for i in (1, 2)]
    deadline = time.monotonic() + 30
    while any(member.process.poll() is None for member in early) and time.monotonic() < deadline and not (serves(1) or serves(2)):
        time.sleep(0.1)
    for member in early:
        tally.check(member.process.poll() not in (None, 0), f"{what}: {member.name} runs after all but one were removed: {member.tail()}")
        bench.members.remove(member)
        member.end()


# The static pod

def static_pod(tally, bench, container):
    certificates = bench.path("pki")
    script = os.path.join(PACKAGING, "compose/make-certificates")
    tally.run("certificates for the static pod", [script, certificates, "node"])
    # kubeadm has one authority for both sides; a file of two is the same to the member.
    with open(f"{certificates}/both.crt", "wb") as file:
        for name in ("ca.crt", "peer-ca.crt"):
            file.write(open(f"{certificates}/{name}", "rb").read())
    # It listens at the node's address and on loopback; here both are on loopback.
    node, local, peer, metrics = (free_port() for _ in range(4))
    table = {"NODE_IP:2379": f"127.0.0.1:{node}", "NODE_IP:2380": f"127.0.0.1:{peer}", "127.0.0.1:2379": f"127.0.0.1:{local}",
             "127.0.0.1:2381": f"127.0.0.1:{metrics}", "NODE_NAME": "node", "/var/lib/etcd": bench.path("static"),
             "/etc/kubernetes/pki/etcd/server": f"{certificates}/node", "/etc/kubernetes/pki/etcd/peer": f"{certificates}/node-peer",
             "/etc/kubernetes/pki/etcd/ca": f"{certificates}/both"}
    words = [replaced(word, table) for word in container["command"]]
    bench.start("static", words, {})
    for kind in ("startupProbe", "livenessProbe", "readinessProbe"):
        asked = container[kind]["httpGet"]
        url = replaced(f"http://{asked['host']}:{asked['port']}{asked['path']}", table)
        tally.check(waits(kind, lambda url=url: probe(url), bench), f"the static pod: {kind}: {url}")
    client = {"ETCDCTL_CACERT": f"{certificates}/ca.crt", "ETCDCTL_CERT": f"{certificates}/client.crt",
              "ETCDCTL_KEY": f"{certificates}/client.key"}
    put_and_get(tally, bench, "the static pod", [{**client, "ETCDCTL_ENDPOINTS": f"https://127.0.0.1:{port}"} for port in (node, local)])


# The image

def image(tally, bench, server, settings):
    """The root file system of the image, and its program in it, as its user."""
    if os.geteuid() != 0:
        print("SKIPPED the image's program in its root file system: this user may not change the root")
        return
    root = bench.path("image")
    script = os.path.join(PACKAGING, "docker/root-filesystem")
    tally.run("the image's root file system", [script, server, root])
    tally.run("another one over it", [script, server, root], good=False)
    tally.run("one of no program", [script, bench.path("nothing"), bench.path("image-2")], good=False)
    shells = [name for folder, _, names in os.walk(root) for name in names if name in ("sh", "bash", "busybox", "apt", "dpkg")]
    tally.check(not shells, f"the image has {shells}")
    # As an engine does.
    for path, text in (("etc/hosts", "127.0.0.1 localhost\n"), ("etc/resolv.conf", "")):
        with open(os.path.join(root, path), "w", encoding="utf-8") as file:
            file.write(text)
    os.makedirs(os.path.join(root, "dev"))
    os.mknod(os.path.join(root, "dev/null"), 0o666 | 0o020000, os.makedev(1, 3))
    os.chmod(os.path.join(root, "dev/null"), 0o666)
    os.mkdir(os.path.join(root, "proc"))

    user, group = (int(number) for number in settings["User"].split(":"))
    tally.check(user == group == USER, f"the image runs as {settings['User']}")

    def enter():
        os.chroot(root)
        os.chdir(settings["WorkingDir"])
        os.setgroups([])
        os.setgid(group)
        os.setuid(user)

    path = dict(variable.split("=", 1) for variable in settings["Env"])

    def run(words, more=None):
        return subprocess.run([os.path.join("/usr/local/bin", words[0]), *words[1:]], env={**path, **(more or {})}, preexec_fn=enter,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, timeout=60)

    for words, wanted in ((["etcd", "--version"], "etcd Version"), (["etcdctl", "version"], "etcdctl version"),
                          (["etcdutl", "version"], "etcdutl version"), (["mainstay", "ctl", "version"], "etcdctl version")):
        done = run(words)
        tally.check(done.returncode == 0 and wanted in done.stdout, f"in the image: {words}: {done.stdout}")
    client, peer = free_port(), free_port()
    environment = {**path, "ETCD_LISTEN_CLIENT_URLS": f"http://localhost:{client}", "ETCD_ADVERTISE_CLIENT_URLS": f"http://localhost:{client}",
                   "ETCD_LISTEN_PEER_URLS": f"http://localhost:{peer}", "ETCD_INITIAL_ADVERTISE_PEER_URLS": f"http://localhost:{peer}",
                   "ETCD_INITIAL_CLUSTER": f"default=http://localhost:{peer}"}
    bench.members.append(Member("image", settings["Cmd"], environment, bench.path("image.log"), preexec_fn=enter))
    check = settings["Healthcheck"]["Test"]
    tally.check(check[0] == "CMD", f"the check of its health is {check}")
    words = [check[1].removeprefix("/usr/local/bin/"), *check[2:]]
    at = {"ETCDCTL_ENDPOINTS": f"http://localhost:{client}"}
    tally.check(waits("the image", lambda: run(words, at).returncode == 0, bench), "the image's member says that it is healthy")
    put_and_get(tally, bench, "the image", [at])
    data = os.path.join(root, "var/lib/etcd/default.etcd")
    tally.check(os.path.isdir(data) and os.stat(data).st_uid == USER, f"the data are not at {data}")
    member = bench.members.pop()
    member.end()
    done = run(words, at)
    tally.check(done.returncode != 0, f"a member that is down counts as healthy: {done.stdout}")


# The document

# How each command of docs/install.md is checked; `run` is run here, others are named.
DOCUMENT = [
    ("skopeo copy --all oci:", "packaging/try-release copies the image"), ("skopeo copy oci:", "there is no daemon here"),
    ("kind load", "there is no container engine here"),
    ("cargo build --release", "by .ci/run full, before this"),
    ("RUSTFLAGS=", "a build of its own takes too long here"),
    ("target/release/mainstay --version", "run"),
    ("cargo xtask deb", "by packaging/try-deb"),
    ("apt-get install ./target/debian/", "by packaging/try-deb"),
    ("systemctl enable --now mainstay", "systemd-analyze verifies the unit in packaging/try-deb"),
    ("docker build", "there is no engine; BuildKit's linter read the Dockerfile, and the image's files were made and run"),
    ("docker run", "there is no engine; the image's program was run in its root file system"),
    ("docker compose", "there is no engine; Compose's loader read the file, and its members were run"),
    ("packaging/compose/make-certificates certificates m1 m2 m3", "run"),
    ("helm ", "there is no Kubernetes; Helm's engine rendered the chart, and its members were run"),
    ("kubectl ", "there is no Kubernetes; the members of each size were run, and etcdctl's commands at them"),
    ("kubeadm ", "there is no Kubernetes; its way of patching was applied, and the static pod was run"),
    ("sed ", "run"),
    ("cargo xtask sbom", "run"),
    ("cargo xtask release-notes 0.1.0", "run"),
]


def document(tally, bench, server, xtask):
    with open(os.path.join(ROOT, "docs/install.md"), encoding="utf-8") as file:
        lines = file.read().split("\n")
    commands = [line.strip() for line in lines if line.startswith("    ")]
    tally.check(len(commands) > 12, f"docs/install.md has only {len(commands)} commands")
    found = {command: [how for beginning, how in DOCUMENT if command.startswith(beginning)] for command in commands}
    for command, hows in found.items():
        if not tally.check(len(hows) == 1, f"docs/install.md: {command}: nothing says how it is checked"):
            continue
        if hows[0] != "run":
            print(f"SKIPPED docs/install.md: {command}: {hows[0]}")
            continue
        folder = bench.path("document")
        shutil.rmtree(folder, ignore_errors=True)
        os.makedirs(os.path.join(folder, "target/release"))
        os.makedirs(os.path.join(folder, "manifests"))
        os.symlink(server, os.path.join(folder, "target/release/mainstay"))
        os.symlink(PACKAGING, os.path.join(folder, "packaging"))
        script = command.replace("cargo xtask", xtask).replace("/etc/kubernetes/manifests", "manifests")
        where = ROOT if command.startswith("cargo xtask") else folder
        said = tally.run(f"docs/install.md: {command}", ["bash", "-euo", "pipefail", "-c", script], cwd=where)
        if command.startswith("sed "):
            text = open(os.path.join(folder, "manifests/etcd.yaml"), encoding="utf-8").read()
            left = [line for line in text.split("\n") if "NODE_" in line and not line.startswith("#")]
            tally.check(not left and "https://10.0.0.1:2380" in text, f"docs/install.md: sed leaves {left}")
        if "--version" in command:
            tally.check("etcd Version: " in said, f"docs/install.md: {command}: {said}")
        if "release-notes" in command:
            tally.check(said.startswith("# Mainstay 0.1.0"), f"docs/install.md: {command}: {said[:100]}")
    for beginning, _ in DOCUMENT:
        tally.check(any(command.startswith(beginning) for command in commands), f"docs/install.md has no command any more: {beginning}")
    # One version everywhere.
    with open(os.path.join(ROOT, "Cargo.toml"), encoding="utf-8") as file:
        version = re.search(r'^version = "(.+)"$', file.read(), re.MULTILINE)[1]
    for name in ("docs/install.md", "packaging/compose/compose.yaml", "packaging/docker/Dockerfile", "packaging/helm/mainstay/Chart.yaml",
                 "packaging/kubernetes/etcd.yaml", "packaging/kubernetes/patches/etcd+strategic.yaml"):
        with open(os.path.join(ROOT, name), encoding="utf-8") as file:
            named = re.findall(r"mainstay(?:-certificates)?:(\d[\w.-]*)|[vV]ersion: (\d[\w.-]*)", file.read())
        others = {one or other for one, other in named} - {version}
        tally.check(named and not others, f"{name} names the version {others}, not {version}")
    # Every file of ours that the document names is there.
    for name in set(re.findall(r"packaging/[\w./+-]*\w", "\n".join(lines))):
        tally.check(os.path.exists(os.path.join(ROOT, name)), f"docs/install.md: there is no {name}")


def sbom(tally, bench, xtask):
    """Makes the list of parts twice; returns its path."""
    texts = []
    path = ""
    for _ in range(2):
        said = tally.run("the list of parts", ["bash", "-c", f"{xtask} sbom"], cwd=ROOT)
        wrote = re.search(r"^wrote (.+): \d+ components$", said, re.MULTILINE)
        path = wrote[1] if wrote else ""
        try:
            texts.append(open(os.path.join(ROOT, path), "rb").read())
        except OSError as error:
            tally.check(False, f"the list of parts: {error}")
    tally.check(len(texts) == 2 and texts[0] == texts[1], "the list of parts differs from run to run")
    for version, wanted in (("latest", "is no version"), ("99.0.0", "has no section for 99.0.0")):
        said = tally.run("no version", ["bash", "-c", f"{xtask} release-notes {version}"], good=False, cwd=ROOT)
        tally.check(wanted in said, f"release notes of {version}: {said}")
    tally.run("generated dashboards", ["bash", "-c", f"{xtask} dashboards --check"], cwd=ROOT)
    return os.path.join(ROOT, path)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server", required=True)
    parser.add_argument("--xtask", default="cargo xtask")
    options = parser.parse_args()
    server = os.path.abspath(options.server)
    tally, bench = Tally(), Bench(server)
    try:
        started = bench.path("started.json")
        parts = sbom(tally, bench, options.xtask)
        here = os.path.join(ROOT, "interop/packages")
        tally.run("go vet", ["go", "vet", "./..."], cwd=here)
        tally.add("what reads the packages", ["go", "run", ".", "--root", ROOT, "--sbom", parts, "--out", started], cwd=here)
        with open(started, encoding="utf-8") as file:
            found = json.load(file)
        if any(found[part] is None for part in ("image", "compose", "chart", "static pod")):
            raise SystemExit(f"some package could not be read: {tally.failed} checks failed")
        healthcheck = found["image"]["Healthcheck"]["Test"][1:]
        environments, metrics = compose(tally, bench, found["compose"], healthcheck)
        observed(tally, bench, environments, metrics)
        majority_lost(tally, bench, healthcheck, environments, metrics)
        bench.end()
        for what in ("TLS", "a backup", "users", "observers"):
            chart(tally, bench, what, found["chart"]["started"][what])
            bench.end()
        growing(tally, bench, found["chart"]["grown"])
        bench.end()
        static_pod(tally, bench, found["static pod"])
        bench.end()
        image(tally, bench, server, found["image"])
        document(tally, bench, server, options.xtask)
    finally:
        bench.close()
    print(f"{tally.passed} passed, {tally.failed} failed")
    return 1 if tally.failed else 0


if __name__ == "__main__":
    sys.exit(main())
