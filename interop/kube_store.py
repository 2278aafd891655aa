"""For kube_apiserver.py: the members and observers of an etcd or a Mainstay over TLS, and the certificates of all."""

import http.client
import json
import os
import shlex
import shutil
import signal
import subprocess
import time

from ports import free_port


def openssl(*arguments):
    subprocess.run(["openssl", *arguments], check=True, capture_output=True)


def wait_for(what, condition, seconds=60):
    deadline, last = time.monotonic() + seconds, None
    while time.monotonic() < deadline:
        try:
            last = condition()
            if last:
                return last
        except (OSError, http.client.HTTPException, subprocess.SubprocessError, AssertionError) as error:
            last = error
        time.sleep(0.1)
    raise AssertionError(f"{what}: not within {seconds} s ({last})")


def processor_time(pid):
    with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
        fields = file.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Ended(Exception):
    """A process that should run has ended by itself: there is nothing to wait for."""


class Authority:
    """Signs certificates. Files that exist are replaced by a rename, as an operator would."""

    def __init__(self, directory, name):
        self.directory, self.name = directory, name
        self.certificate, self.key = f"{directory}/{name}.crt", f"{directory}/{name}.key"
        openssl("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "3",
                "-subj", f"/CN={name}", "-out", self.certificate, "-keyout", self.key)

    def issue(self, file, subject):
        """Makes FILE.crt and FILE.key and returns their paths."""
        path, extensions = f"{self.directory}/{file}", f"{self.directory}/extensions"
        with open(extensions, "w", encoding="ascii") as out:
            out.write("subjectAltName=IP:127.0.0.1,DNS:localhost\nextendedKeyUsage=serverAuth,clientAuth\n")
        openssl("req", "-new", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-subj", subject,
                "-out", f"{path}.csr", "-keyout", f"{path}.key.new")
        openssl("x509", "-req", "-in", f"{path}.csr", "-CA", self.certificate, "-CAkey", self.key, "-CAcreateserial",
                "-days", "3", "-extfile", extensions, "-out", f"{path}.crt.new")
        os.rename(f"{path}.key.new", f"{path}.key")
        os.rename(f"{path}.crt.new", f"{path}.crt")
        return f"{path}.crt", f"{path}.key"


class Store:
    """The members of one etcd or Mainstay, and observers of a Mainstay, with TLS on every port."""

    def __init__(self, program, members, observers, directory, etcdctl):
        self.program, self.directory, self.etcdctl = shlex.split(program), directory, etcdctl
        self.authority = Authority(directory, "etcd-ca")
        self.peers = Authority(directory, "etcd-peer-ca")
        self.administrator = self.authority.issue("etcd-root", "/CN=root")
        self.user = self.authority.issue("apiserver-etcd-client", "/O=kubernetes/CN=kube-apiserver")
        self.names = [f"m{number}" for number in range(members)]
        self.observers = [f"o{number}" for number in range(observers)]
        # All that run, and those of them that kube-apiserver uses.
        self.nodes, self.serving = self.names + self.observers, self.observers or self.names
        self.ports = {name: (free_port(), free_port()) for name in self.nodes}
        self.processes, self.ids = {}, {}
        # The programs, with more flags, of members that do not run the store's own.
        self.others = {}
        for name in self.nodes:
            self.authority.issue(f"{name}-server", f"/CN={name}")
            self.peers.issue(f"{name}-peer", f"/CN={name}")
        try:
            # A new observer ends when no member answers, so members come first.
            for names in [self.names, self.observers]:
                for name in names:
                    self.start(name)
                for name in names:
                    self.serves(name)
        except (AssertionError, Ended):
            self.stop()
            raise

    def endpoint(self, name):
        return f"https://127.0.0.1:{self.ports[name][0]}"

    def endpoints(self, names=None):
        return ",".join(self.endpoint(name) for name in names or self.names)

    def peer(self, name):
        return f"https://127.0.0.1:{self.ports[name][1]}"

    def role(self, name):
        """The flags that make the process a member, or an observer that each member may feed: no two try the same one first."""
        if name in self.names:
            return ["--initial-cluster", ",".join(f"{other}={self.peer(other)}" for other in self.names)]
        first = self.observers.index(name) % len(self.names)
        return ["--feed", ",".join(self.peer(feeder) for feeder in self.names[first:] + self.names[:first])]

    def start(self, name):
        client, peer = self.endpoint(name), self.peer(name)
        with open(f"{self.directory}/{name}.log", "ab") as log:
            self.processes[name] = subprocess.Popen([
                *self.others.get(name, self.program), *(["observer"] if name in self.observers else []), *self.role(name),
                "--name", name, "--data-dir", f"{self.directory}/{name}",
                "--listen-client-urls", client, "--advertise-client-urls", client,
                "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
                "--cert-file", f"{self.directory}/{name}-server.crt", "--key-file", f"{self.directory}/{name}-server.key",
                "--trusted-ca-file", self.authority.certificate, "--client-cert-auth",
                "--peer-cert-file", f"{self.directory}/{name}-peer.crt", "--peer-key-file", f"{self.directory}/{name}-peer.key",
                "--peer-trusted-ca-file", self.peers.certificate, "--peer-client-cert-auth",
            ], stdout=log, stderr=log)

    def kill(self, name):
        self.processes[name].send_signal(signal.SIGKILL)
        self.processes[name].wait()

    def terminate(self, name):
        self.processes[name].terminate()
        self.processes[name].wait(60)

    def restart(self, name):
        self.terminate(name)
        self.start(name)

    def serves(self, name):
        """Waits until a member or an observer answers a linearizable read."""
        def healthy():
            if self.processes[name].poll() is not None:
                raise Ended(f"{name} ended, with exit code {self.processes[name].returncode}")
            return self.ctl("endpoint", "health", endpoint=name)
        wait_for(f"{name} serves", healthy)

    def wipe(self, name):
        shutil.rmtree(f"{self.directory}/{name}")

    def member_ids(self):
        """The members by their ids, which they tell while all of them run."""
        if not self.ids:
            for name in self.names:
                status = json.loads(self.ctl("endpoint", "status", "-w", "json", endpoint=name))[0]["Status"]
                self.ids[status["header"]["member_id"]] = name
        return self.ids

    def feeder(self, name, but=None):
        """Waits until a member feeds an observer, and says which; not `but`, which does not answer."""
        ids, (certificate, key) = self.member_ids(), self.administrator

        def find():
            for asked in self.names:
                if asked == but:
                    continue
                done = subprocess.run([*self.program, "ctl", "--endpoints", self.endpoint(asked), "--cacert", self.authority.certificate,
                                       "--cert", certificate, "--key", key, "--command-timeout=1s", "observer", "list", "-w", "json"],
                                      capture_output=True, timeout=30, check=False)
                # What those told that answered is there, also if one did not.
                for one in json.loads(done.stdout or b"null") or []:
                    if one["name"] == name and one["active"] and ids[one["fedBy"]] != but:
                        return ids[one["fedBy"]]
        return wait_for(f"a member feeds {name}", find)

    def cpu(self, names):
        """Seconds of processor time that these have used."""
        return sum(processor_time(self.processes[name].pid) for name in names)

    def leader_last(self):
        """The members in the order in which an operator restarts them."""
        def leads(name):
            status = json.loads(self.ctl("endpoint", "status", "-w", "json", endpoint=name))[0]["Status"]
            return status["leader"] == status["header"]["member_id"]
        return sorted(self.names, key=leads)

    def revision(self):
        return json.loads(self.ctl("get", "none", "-w", "json"))["header"]["revision"]

    def check_hashes(self):
        """All members and observers have the same state at the present revision, which it returns."""
        revision = self.revision()
        for name in self.nodes:
            # Only then it has applied as much: a hash of the future is refused.
            self.ctl("get", "none", endpoint=name)
        compacted, told = (), []
        while len(compacted) != 1:
            # kube-apiserver compacts meanwhile, and a hash is of what is left.
            told = [json.loads(self.ctl("endpoint", "hashkv", "--rev", str(revision), "-w", "json", endpoint=name))[0]["HashKV"]
                    for name in self.nodes]
            compacted = {one.get("compact_revision", 0) for one in told}
        assert len({one["hash"] for one in told}) == 1, told
        return revision

    def export(self, name, mainstay, release):
        """Puts a directory of etcd's in the place of a stopped member's of Mainstay."""
        data = f"{self.directory}/{name}"
        subprocess.run([*mainstay, "utl", "export", "--data-dir", data, "--to", f"{data}.made", "--release", release],
                       check=True, capture_output=True)
        shutil.rmtree(data)
        os.rename(f"{data}.made", data)

    def ctl(self, *arguments, endpoint=None, check=True):
        certificate, key = self.administrator
        done = subprocess.run([
            *shlex.split(self.etcdctl), "--endpoints", self.endpoint(endpoint) if endpoint else self.endpoints(),
            "--cacert", self.authority.certificate, "--cert", certificate, "--key", key, *arguments,
        ], capture_output=True, timeout=30, check=False, env={**os.environ, "ETCDCTL_API": "3"})
        if check and done.returncode != 0:
            raise AssertionError(f"etcdctl {' '.join(arguments)}: {done.stderr.decode()[-500:]}")
        return done.stdout.decode() or done.stderr.decode()

    def enable_auth(self, how):
        """As etcd's documentation has it: root, and a user whose name is the certificate's, with the permissions it needs."""
        for command in ["user add root --no-password", "role add root", "user grant-role root root",
                        "user add kube-apiserver --no-password", "role add kubernetes",
                        "role grant-permission kubernetes --prefix=true readwrite /registry/",
                        "role grant-permission kubernetes readwrite compact_rev_key",
                        "user grant-role kube-apiserver kubernetes", "auth enable"]:
            # etcd has made the role root by itself since 3.6.
            self.ctl(*command.split(), check=command != "role add root")
        if how == "root":
            self.ctl("user", "grant-role", "kube-apiserver", "root")

    def stop(self):
        for process in self.processes.values():
            process.terminate()
        for process in self.processes.values():
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
