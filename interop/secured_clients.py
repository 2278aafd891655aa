#!/usr/bin/env python3
"""Runs clients in several languages over TLS, as a user with a password or with a certificate, against fresh servers.

    secured_clients.py --server mainstay=PATH --server etcd=PATH --etcdctl PATH --client python,go,java,node
                       [--python PATH] [--go PATH] [--without locks]

Ways: `password` (a simple token that ends when it is not used for three seconds), `jwt` (a signed token of ten seconds) and
`certificate` (client-cert-auth; the common name is the user). The user alice may use the keys below alice/. Needed: for python
`python/requirements.txt` in the environment of --python; for go the program `interop`; for java Maven and its registry; for node
npm and its registry.

Ends with "N passed, M failed", and exit code 1 if M is not 0. Python 3, standard library only; openssl.
"""

import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time

from ports import free_port

HERE = os.path.dirname(os.path.abspath(__file__))
WAYS = ["password", "jwt", "certificate"]
PASSWORD = "wonderland"
# Lives of tokens: a simple one ends when it is not used for so long, a signed one after so long.
TOKEN_SECONDS = {"password": 3, "jwt": 10}


def openssl(*arguments):
    subprocess.run(["openssl", *arguments], check=True, capture_output=True)


def certificates(directory, names, days, nameless=()):
    """Makes an authority, ca.crt, and certificates for clients and servers on this machine, NAME.crt and NAME.key, of these common
    names, and further ones that have none."""
    def path(name):
        return os.path.join(directory, name)

    curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    openssl("req", "-x509", *curve, "-days", str(days), "-subj", "/CN=authority", "-out", path("ca.crt"), "-keyout", path("ca.key"))
    with open(path("extensions"), "w", encoding="ascii") as file:
        file.write("subjectAltName=IP:127.0.0.1,DNS:localhost\nextendedKeyUsage=serverAuth,clientAuth\n")
    for name in [*names, *nameless]:
        subject = f"/O={name}" if name in nameless else f"/CN={name}"
        openssl("req", "-new", *curve, "-subj", subject, "-out", path("request"), "-keyout", path(f"{name}.key"))
        openssl("x509", "-req", "-in", path("request"), "-CA", path("ca.crt"), "-CAkey", path("ca.key"), "-CAcreateserial",
                "-days", str(days), "-extfile", path("extensions"), "-out", path(f"{name}.crt"))


class Server:
    """One member with TLS and users."""

    def __init__(self, program, way, etcdctl):
        self.directory, self.etcdctl, self.way = tempfile.mkdtemp(prefix="secured-clients-"), etcdctl, way
        certificates(self.directory, ["server", "root", "alice"], 3)
        self.endpoint, peer = f"127.0.0.1:{free_port()}", f"http://127.0.0.1:{free_port()}"
        url = f"https://{self.endpoint}"
        more = []
        if way == "certificate":
            more = ["--client-cert-auth", "--trusted-ca-file", self.path("ca.crt")]
        elif way == "password":
            more = ["--auth-token-ttl", str(TOKEN_SECONDS[way])]
        else:
            openssl("ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", self.path("jwt.key"))
            openssl("ec", "-in", self.path("jwt.key"), "-pubout", "-out", self.path("jwt.pub"))
            more = ["--auth-token", f"jwt,pub-key={self.path('jwt.pub')},priv-key={self.path('jwt.key')},sign-method=ES256,"
                                    f"ttl={TOKEN_SECONDS[way]}s"]
        self.log = open(self.path("log"), "wb")
        self.process = subprocess.Popen([
            *shlex.split(program), "--name", "m", "--data-dir", self.path("data"), "--listen-client-urls", url,
            "--advertise-client-urls", url, "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
            "--initial-cluster", f"m={peer}", "--cert-file", self.path("server.crt"), "--key-file", self.path("server.key"), *more,
        ], stdout=self.log, stderr=self.log)
        deadline = time.monotonic() + 30
        while self.ctl("endpoint health").returncode != 0:
            if self.process.poll() is not None or time.monotonic() > deadline:
                sys.exit(f"the server did not start; see {self.path('log')}")
            time.sleep(0.1)
        secret = "--no-password" if way == "certificate" else ""
        for command in [f"user add root{secret and ' ' + secret or ':' + PASSWORD}", "user grant-role root root",
                        f"user add alice{secret and ' ' + secret or ':' + PASSWORD}", "role add reader",
                        "role grant-permission reader --prefix=true readwrite alice/", "user grant-role alice reader",
                        "auth enable"]:
            done = self.ctl(command)
            if done.returncode != 0:
                sys.exit(f"etcdctl {command}: {done.stderr.decode()}")

    def path(self, name):
        return f"{self.directory}/{name}"

    def ctl(self, command):
        who = ["--cert", self.path("root.crt"), "--key", self.path("root.key")] if self.way == "certificate" else []
        return subprocess.run([*shlex.split(self.etcdctl), "--endpoints", self.endpoint, "--cacert", self.path("ca.crt"), *who,
                               *command.split()], capture_output=True, check=False, timeout=30)

    def environment(self):
        mine = {"ENDPOINT": self.endpoint, "CACERT": self.path("ca.crt")}
        if self.way == "certificate":
            mine |= {"CERT": self.path("alice.crt"), "KEY": self.path("alice.key")}
        else:
            mine |= {"USER_NAME": "alice", "PASSWORD": PASSWORD, "TOKEN_SECONDS": str(TOKEN_SECONDS[self.way] + 2)}
        return {**os.environ, **mine}

    def stop(self):
        self.process.terminate()
        self.process.wait(20)
        self.log.close()
        shutil.rmtree(self.directory)


def prepare(client, options, work):
    """The command of a client, built where it has to be."""
    without = ["--without", options.without] if options.without else []
    if client == "python":
        return lambda server: [options.python, f"{HERE}/python/secured.py"]
    if client == "go":
        def go(server):
            command = [options.go, "concurrency", "--endpoint", server.endpoint, "--cacert", server.path("ca.crt")]
            # Its sections use many prefixes and compact: root may.
            if server.way == "certificate":
                return [*command, "--cert", server.path("root.crt"), "--key", server.path("root.key")]
            return [*command, "--user", f"root:{PASSWORD}"]
        return go
    if client == "java":
        target = f"{work}/java"
        shutil.copytree(f"{HERE}/java", target)
        subprocess.run(["mvn", "-q", "-B", "package"], cwd=target, check=True)
        return lambda server: ["java", "-cp", f"{target}/target/classes:{target}/target/lib/*", "Interop", *without]
    if client == "node":
        target = f"{work}/node"
        shutil.copytree(f"{HERE}/node", target)
        subprocess.run(["npm", "install", "--silent", "--no-package-lock"], cwd=target, check=True)
        return lambda server: ["node", f"{target}/secured.js"]
    sys.exit(f"there is no client {client}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--server", action="append", required=True, metavar="NAME=PATH")
    parser.add_argument("--etcdctl", required=True)
    parser.add_argument("--client", default="python,go,java,node")
    parser.add_argument("--way", default=",".join(WAYS))
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--go", default=f"{HERE}/go/interop")
    parser.add_argument("--without", choices=["locks"])
    options = parser.parse_args()
    passed = failed = 0
    with tempfile.TemporaryDirectory(prefix="secured-clients-build-") as work:
        clients = {client: prepare(client, options, work) for client in options.client.split(",")}
        for given in options.server:
            name, program = given.split("=", 1)
            for way in options.way.split(","):
                for client, command in clients.items():
                    server = Server(program, way, options.etcdctl)
                    began = time.monotonic()
                    try:
                        done = subprocess.run(command(server), capture_output=True, text=True, check=False, timeout=300,
                                              env=server.environment())
                    finally:
                        server.stop()
                    counts = re.findall(r"^(\d+) passed, (\d+) failed", done.stdout, re.MULTILINE)
                    good, bad = map(int, counts[-1]) if counts else (0, 1)
                    bad = max(bad, int(done.returncode != 0))
                    passed, failed = passed + good, failed + bad
                    print(f"{name} {way} {client}: {good} passed, {bad} failed ({time.monotonic() - began:.0f} s)", flush=True)
                    if bad:
                        print("    " + "\n    ".join((done.stdout + done.stderr)[-3000:].splitlines()))
    print(f"{passed} passed, {failed} failed")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
