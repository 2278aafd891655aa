#!/usr/bin/env python3
"""Members started as installers of Kubernetes start etcd: with their arguments, environment, paths, users and order of steps.

    kube_installers.py --server mainstay=PATH [--server etcd=PATH] --etcdctl PATH --etcdutl PATH [--programs DIR] [--only NAME,...]

  operator  etcd-operator: `/usr/local/bin/etcd` with its arguments and variables, a cluster that grows from one member to three by
            learners, which have to answer a serializable read of `health` and `status` before they are promoted, and shrinks to one
  talos     Talos: as user 60 without capabilities in a directory of mode 0700, TLS 1.3, a port of its own for HTTP, bootstrap, two
            learners that join, restarts without --initial-cluster, a leader that hands over, and recovery from a snapshot
  kops      etcd-manager: all by environment variables, a member killed and started again as it does, a snapshot restored by
            `etcdutl snapshot restore`, quarantined, with --force-new-cluster
  kubeadm   the manifest of `kubeadm init phase etcd local`, with the patch of packaging/kubernetes for Mainstay; its probes; the
            kube-apiserver of `kubeadm init phase control-plane`; a second control plane that joins by `kubeadm join phase etcd-join`;
            and, with an etcd beside Mainstay, that cluster moved from etcd to Mainstay, and back (--programs is where
            kubeadm and kube-apiserver are)

Needs root: everything runs in namespaces of its own, with the paths and addresses that the installers use. Sources: etcd-io/etcd-operator,
siderolabs/talos, kubernetes/kops and kubernetes-sigs/etcd-manager as of August 2026; kubeadm is built from its module.
Ends with "N passed, M failed". Python 3.9+, standard library only; openssl, iproute2, util-linux.
"""

import argparse
import base64
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import urllib.request

from kube_store import Authority, openssl, wait_for

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
INSIDE = "MAINSTAY_INSTALLERS_INSIDE"
CERTIFICATES = "/etc/kubernetes/pki"


def check(right, said):
    if not right:
        raise AssertionError(said)


def address(number):
    return f"10.0.0.{number + 1}"


class Setting:
    """Processes of one check, in a directory of their own."""

    def __init__(self, name, program, options):
        self.name, self.program, self.options = name, program, options
        self.ours = "Mainstay" in subprocess.run([program, "--version"], check=True, capture_output=True, text=True).stdout
        self.directory = tempfile.mkdtemp(prefix="installers-", dir="/run")
        self.processes, self.secured = {}, []
        os.makedirs("/usr/local/bin", exist_ok=True)

    def start(self, name, command, environment=None, prefix=()):
        with open(f"{self.directory}/{name}.log", "ab") as log:
            self.processes[name] = subprocess.Popen([*prefix, *command], stdout=log, stderr=log,
                                                    env={"PATH": os.environ["PATH"], **(environment or {})})

    def end(self, name, how=signal.SIGTERM):
        process = self.processes.pop(name)
        process.send_signal(how)
        process.wait(60)

    def stop(self):
        """kube-apiserver first, and without waiting for its open requests."""
        for name in reversed(list(self.processes)):
            self.end(name, signal.SIGKILL)

    def alive(self, name):
        check(self.processes[name].poll() is None, f"{name} ended: {self.log(name)[-600:]}")

    def log(self, name):
        with open(f"{self.directory}/{name}.log", encoding="utf-8", errors="replace") as file:
            return file.read()

    def ctl(self, endpoints, *arguments):
        done = subprocess.run([self.options.etcdctl, "--endpoints", ",".join(endpoints), *self.secured, "--dial-timeout=2s", *arguments],
                              capture_output=True, text=True, timeout=60, check=False)
        check(done.returncode == 0, f"etcdctl {' '.join(arguments)}: {done.stderr[-400:]}")
        return done.stdout

    def status(self, endpoint):
        return json.loads(self.ctl([endpoint], "endpoint", "status", "-w", "json"))[0]["Status"]

    def members(self, endpoints):
        return json.loads(self.ctl(endpoints, "member", "list", "-w", "json"))["members"]

    def ready(self, name, endpoint):
        def answers():
            self.alive(name)
            return self.status(endpoint)
        return wait_for(f"{name} answers", answers, 60)

    def healthy(self, endpoint):
        """As etcd-operator has it: a serializable read of the key `health`, and a status without errors."""
        self.ctl([endpoint], "get", "health", "--consistency=s")
        status = self.status(endpoint)
        check(not status.get("errors"), f"{endpoint}: {status.get('errors')}")
        return status

    def add_learner(self, endpoints, name, peer):
        """Again and again, as installers do: while a member has not been connected for five seconds, no other one is added."""
        wait_for("the member is added", lambda: self.ctl(endpoints, "member", "add", name, "--learner", f"--peer-urls={peer}"), 40)

    def promote(self, endpoints, leader, learner):
        """Once the learner has nine tenths of the leader's revision."""
        def behind():
            return self.healthy(learner)["header"]["revision"] >= 0.9 * self.healthy(leader)["header"]["revision"]
        wait_for("the learner has caught up", behind, 60)
        identity = f"{self.status(learner)['header']['member_id']:x}"
        wait_for("the learner is promoted", lambda: self.ctl(endpoints, "member", "promote", identity), 30)


@contextlib.contextmanager
def empty(*directories):
    """These directories are empty meanwhile, and nobody else sees what is in them."""
    done = []
    try:
        for directory in directories:
            os.makedirs(directory, exist_ok=True)
            subprocess.run(["mount", "-t", "tmpfs", "none", directory], check=True)
            done.append(directory)
        yield
    finally:
        for directory in reversed(done):
            subprocess.run(["umount", "--lazy", directory], check=False)


# etcd-operator.

def operator(setting):
    """Pods of an EtcdCluster `sample` in the namespace `default`: names by DNS, http, no TLS."""
    shutil.copy(setting.program, "/usr/local/bin/etcd")
    pods = [f"sample-{number}" for number in range(3)]
    hosts = {pod: f"{pod}.sample.default.svc.cluster.local" for pod in pods}
    with open("/etc/hosts", "w", encoding="ascii") as out:
        out.write("127.0.0.1 localhost\n" + "".join(f"{address(at)} {hosts[pod]}\n" for at, pod in enumerate(pods)))
    clients = [f"http://{hosts[pod]}:2379" for pod in pods]

    def create(ordinal):
        """A pod: it listens on all of its addresses, which here is one of this machine's."""
        pod = pods[ordinal]
        setting.start(pod, ["/usr/local/bin/etcd", f"--name={pod}", f"--listen-peer-urls=http://{address(ordinal)}:2380",
                            f"--listen-client-urls=http://{address(ordinal)}:2379", f"--initial-advertise-peer-urls=http://{hosts[pod]}:2380",
                            f"--advertise-client-urls=http://{hosts[pod]}:2379"], {
            "ETCD_INITIAL_CLUSTER_STATE": "existing" if ordinal else "new", "ETCD_DATA_DIR": f"{setting.directory}/{pod}",
            "ETCD_INITIAL_CLUSTER": ",".join(f"{one}=http://{hosts[one]}:2380" for one in pods[:ordinal + 1]),
            "POD_NAME": pod, "POD_NAMESPACE": "default"})

    create(0)
    setting.ready(pods[0], clients[0])
    setting.ctl(clients[:1], "put", "a", "1")
    for ordinal in [1, 2]:
        known = clients[:ordinal]
        for client in known:
            setting.healthy(client)
        setting.add_learner(known, pods[ordinal], f"http://{hosts[pods[ordinal]]}:2380")
        check([bool(one.get("isLearner")) for one in setting.members(known)].count(True) == 1, "the new member is no learner")
        create(ordinal)
        learner = setting.ready(pods[ordinal], clients[ordinal])
        check(learner["isLearner"] is True, f"the status of a learner: {learner}")
        said = subprocess.run([setting.options.etcdctl, "--endpoints", clients[ordinal], "get", "health"], capture_output=True, text=True, check=False)
        check("rpc not supported for learner" in said.stderr, f"a linearizable read at a learner: {said.stderr}")
        leader = next(client for client in known if setting.status(client)["leader"] == setting.status(client)["header"]["member_id"])
        setting.promote(known, leader, clients[ordinal])
        check(not any(one.get("isLearner") for one in setting.members(clients[:ordinal + 1])), "the learner is one still")
    # A pod is deleted and made again with its volume.
    setting.end(pods[2])
    create(2)
    setting.ready(pods[2], clients[2])
    for ordinal in [2, 1]:
        identity = f"{setting.status(clients[ordinal])['header']['member_id']:x}"
        # It refuses to remove a member while the others have not been connected for five seconds: operators try again.
        wait_for("the member is removed", lambda identity=identity, ordinal=ordinal: setting.ctl(
            clients[:ordinal], "member", "remove", identity), 30)
        setting.end(pods[ordinal])
    check(setting.ctl(clients[:1], "get", "a", "--print-value-only").strip() == "1", "the value is lost")
    check([one["name"] for one in setting.members(clients[:1])] == [pods[0]], "members are left")


# Talos.

def talos(setting):
    shutil.copy(setting.program, "/usr/local/bin/etcd")
    authority, user, secrets = Authority(setting.directory, "etcd-ca"), "60", "/system/secrets/etcd"
    names = [f"talos-{number}" for number in range(3)]
    clients = [f"https://{address(number)}:2379" for number in range(3)]
    files = {}
    for number, name in enumerate(names):
        # Each machine has the same paths; here they are those of one machine, in folders of their own.
        home = f"{setting.directory}/{name}{secrets}"
        os.makedirs(home)
        shutil.copy(authority.certificate, f"{home}/ca.crt")
        for file in ["server", "peer", "admin"]:
            issue(authority, f"{home}/{file}", f"/CN={name}" if file != "admin" else "/O=system:masters/CN=talos")
        data = f"{setting.directory}/{name}/var/lib/etcd"
        os.makedirs(data, mode=0o700)
        subprocess.run(["chown", "-R", f"{user}:{user}", f"{setting.directory}/{name}"], check=True)
        files[name] = (home, data)
    os.chmod(setting.directory, 0o755)
    admin = files[names[0]][0]
    setting.secured = ["--cacert", f"{admin}/ca.crt", "--cert", f"{admin}/admin.crt", "--key", f"{admin}/admin.key"]

    def start(number, *more):
        name, own = names[number], address(number)
        home, data = files[name]
        arguments = {
            "name": name, "auto-tls": "false", "peer-auto-tls": "false", "data-dir": data, "listen-peer-urls": f"https://{own}:2380",
            "listen-client-urls": f"https://{own}:2379", "listen-client-http-urls": f"https://{own}:2383", "client-cert-auth": "true",
            "cert-file": f"{home}/server.crt", "key-file": f"{home}/server.key", "trusted-ca-file": f"{home}/ca.crt",
            "peer-client-cert-auth": "true", "peer-cert-file": f"{home}/peer.crt", "peer-key-file": f"{home}/peer.key",
            "peer-trusted-ca-file": f"{home}/ca.crt", "feature-gates": "InitialCorruptCheck=true,CompactHashCheck=true",
            "watch-progress-notify-interval": "5s", "tls-min-version": "TLS1.3", "advertise-client-urls": f"https://{own}:2379",
            "initial-advertise-peer-urls": f"https://{own}:2380",
        }
        setting.start(name, ["/usr/local/bin/etcd", *(f"--{flag}={value}" for flag, value in arguments.items()), *more], prefix=[
            "prlimit", "--nofile=10240:10240", "setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups", "--bounding-set=-all",
            "--inh-caps=-all", "--no-new-privs"])
    start(0, "--initial-cluster-state=new", f"--initial-cluster={names[0]}=https://{address(0)}:2380")
    setting.ready(names[0], clients[0])
    setting.ctl(clients[:1], "put", "a", "1")
    for number in [1, 2]:
        setting.add_learner(clients[:number], names[number], f"https://{address(number)}:2380")
        # As Talos builds it: the members as they are listed, with this one's name.
        listed = setting.members(clients[:number])
        initial = ",".join(f"{one.get('name') or names[number]}={one['peerURLs'][0]}" for one in listed)
        start(number, "--initial-cluster-state=existing", f"--initial-cluster={initial}")
        setting.ready(names[number], clients[number])
        setting.promote(clients[:number], leader_of(setting, clients[:number]), clients[number])
    for number in range(3):
        # A directory that is not empty: no flag says which cluster it is.
        setting.end(names[number])
        start(number)
        setting.ready(names[number], clients[number])
    context = ["curl", "--silent", "--fail", "--cacert", f"{admin}/ca.crt", "--cert", f"{admin}/admin.crt", "--key", f"{admin}/admin.key"]
    health = subprocess.run([*context, f"https://{address(0)}:2383/health"], capture_output=True, text=True, check=False).stdout
    check(json.loads(health or "{}").get("health") == "true", f"/health at the port for HTTP: {health}")
    leader = leader_of(setting, clients)
    target = next(client for client in clients if client != leader)
    setting.ctl([leader], "move-leader", f"{setting.status(target)['header']['member_id']:x}")
    wait_for("the leader has changed", lambda: leader_of(setting, clients) == target, 20)
    setting.ctl(clients, "alarm", "list")
    setting.ctl([clients[1]], "defrag")
    saved = f"{setting.directory}/etcd.snapshot"
    setting.ctl([clients[1]], "snapshot", "save", saved)
    for name in names:
        setting.end(name)
    # `talosctl bootstrap --recover-from` makes the directory of the first member by etcd's own library.
    data = files[names[0]][1]
    for name in names:
        for one in os.listdir(files[name][1]):
            path = f"{files[name][1]}/{one}"
            shutil.rmtree(path) if os.path.isdir(path) else os.remove(path)
    subprocess.run([setting.options.etcdutl, "snapshot", "restore", saved, "--name", names[0], "--data-dir", f"{data}.new",
                    "--initial-cluster", f"{names[0]}=https://{address(0)}:2380",
                    "--initial-advertise-peer-urls", f"https://{address(0)}:2380"], check=True, capture_output=True)
    for one in os.listdir(f"{data}.new"):
        os.rename(f"{data}.new/{one}", f"{data}/{one}")
    subprocess.run(["chown", "-R", f"{user}:{user}", data], check=True)
    start(0)
    setting.ready(names[0], clients[0])
    check(setting.ctl(clients[:1], "get", "a", "--print-value-only").strip() == "1", "the value is lost")


def leader_of(setting, clients):
    def find():
        for client in clients:
            status = setting.status(client)
            if status.get("leader") and status["leader"] == status["header"]["member_id"]:
                return client
        return None
    return wait_for("a leader", find, 30)


def issue(authority, path, subject):
    """A certificate for the addresses of all machines: from which one of these a process connects is the kernel's choice."""
    extensions = f"{path}.extensions"
    with open(extensions, "w", encoding="ascii") as out:
        out.write(f"subjectAltName={','.join(f'IP:{address(one)}' for one in range(3))},IP:127.0.0.1\nextendedKeyUsage=serverAuth,clientAuth\n")
    openssl("req", "-new", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-subj", subject, "-out", f"{path}.csr",
            "-keyout", f"{path}.key")
    openssl("x509", "-req", "-in", f"{path}.csr", "-CA", authority.certificate, "-CAkey", authority.key, "-CAcreateserial", "-days", "3",
            "-extfile", extensions, "-out", f"{path}.crt")


# kops.

def kops(setting):
    """etcd-manager finds the programs of a version in a folder of its name, and tells them everything by the environment."""
    version = "3.7.3"
    programs = f"/opt/etcd-v{version}/usr/local/bin"
    os.makedirs(programs)
    shutil.copy(setting.program, f"{programs}/etcd")
    if setting.ours:
        os.symlink("etcd", f"{programs}/etcdutl")
    else:
        shutil.copy(setting.options.etcdutl, f"{programs}/etcdutl")
    peers, users = Authority(setting.directory, "etcd-peers-ca"), Authority(setting.directory, "etcd-clients-ca")
    names = ["etcd-a", "etcd-b", "etcd-c"]
    for number, name in enumerate(names):
        for authority, folder, file in [(peers, "peers", "me"), (users, "clients", "server")]:
            os.makedirs(f"{setting.directory}/{name}/{folder}")
            shutil.copy(authority.certificate, f"{setting.directory}/{name}/{folder}/ca.crt")
            issue(authority, f"{setting.directory}/{name}/{folder}/{file}", f"/CN={name}")
    issue(users, f"{setting.directory}/client", "/CN=etcd-manager")
    setting.secured = ["--cacert", users.certificate, "--cert", f"{setting.directory}/client.crt", "--key", f"{setting.directory}/client.key"]

    def client(number, port=4001):
        return f"https://{address(number)}:{port}"

    def start(number, state, who=(0, 1, 2), data="data", quarantined=False, more=()):
        name, home = names[number], f"{setting.directory}/{names[number]}"
        urls = client(number, 3994 if quarantined else 4001)
        setting.start(name, [f"{programs}/etcd", *more], {
            "ETCD_DATA_DIR": f"{home}/{data}", "ETCD_LOGGER": "zap", "ETCD_LOG_OUTPUTS": "stdout",
            "ETCD_LISTEN_PEER_URLS": f"https://{address(number)}:2380", "ETCD_LISTEN_CLIENT_URLS": urls, "ETCD_ADVERTISE_CLIENT_URLS": urls,
            "ETCD_INITIAL_ADVERTISE_PEER_URLS": f"https://{address(number)}:2380", "ETCD_INITIAL_CLUSTER_STATE": state,
            "ETCD_ENABLE_V2": "false", "ETCD_NAME": name, "ETCD_INITIAL_CLUSTER_TOKEN": "etcd-cluster-token-etcd",
            "ETCD_INITIAL_CLUSTER": ",".join(f"{names[one]}=https://{address(one)}:2380" for one in who),
            "ETCD_STRICT_RECONFIG_CHECK": "true",
            "ETCD_PEER_CLIENT_CERT_AUTH": "true", "ETCD_PEER_TRUSTED_CA_FILE": f"{home}/peers/ca.crt",
            "ETCD_PEER_CERT_FILE": f"{home}/peers/me.crt", "ETCD_PEER_KEY_FILE": f"{home}/peers/me.key",
            "ETCD_CLIENT_CERT_AUTH": "true", "ETCD_TRUSTED_CA_FILE": f"{home}/clients/ca.crt",
            "ETCD_CERT_FILE": f"{home}/clients/server.crt", "ETCD_KEY_FILE": f"{home}/clients/server.key"})
    for number in range(3):
        start(number, "new")
    for number in range(3):
        setting.ready(names[number], client(number))
    setting.ctl([client(0)], "put", "a", "1")
    # It ends a member by SIGKILL, also to upgrade it.
    setting.end(names[1], signal.SIGKILL)
    setting.ctl([client(0), client(2)], "put", "b", "2")
    start(1, "existing")
    setting.ready(names[1], client(1))
    saved = f"{setting.directory}/etcd.backup"
    setting.ctl([client(0)], "snapshot", "save", saved)
    for name in names:
        setting.end(name, signal.SIGKILL)
    done = subprocess.run([f"{programs}/etcdutl", "snapshot", "restore", saved, "--name", names[0],
                           "--initial-cluster", f"{names[0]}=https://{address(0)}:2380", "--initial-cluster-token", "restored",
                           "--initial-advertise-peer-urls", f"https://{address(0)}:2380",
                           "--data-dir", f"{setting.directory}/{names[0]}/restored"],
                          capture_output=True, text=True, check=False)
    check(done.returncode == 0, f"etcdutl snapshot restore: {done.stderr[-400:]}")
    start(0, "new", who=[0], data="restored", quarantined=True, more=["--force-new-cluster"])
    setting.ready(names[0], client(0, 3994))
    check(setting.ctl([client(0, 3994)], "get", "b", "--print-value-only").strip() == "2", "the value is lost")
    setting.end(names[0], signal.SIGKILL)
    start(0, "existing", who=[0], data="restored")
    setting.ready(names[0], client(0))
    check(setting.ctl([client(0)], "get", "a", "--print-value-only").strip() == "1", "the value is lost")


# kubeadm.

def manifest(file, path=None):
    """What a static pod of kubeadm runs: the command, the image and the probes' paths and ports."""
    with open(path or f"/etc/kubernetes/manifests/{file}.yaml", encoding="utf-8") as text:
        text = text.read()
    command = re.search(r"^  - command:\n((?:    - .*\n)+)", text, re.M)[1]
    probes = {}
    for probe, body in re.findall(r"^    (\w+)Probe:\n((?:      .*\n)+)", text, re.M):
        probes[probe] = re.search(r"path: (\S+)", body)[1], re.search(r"^ +port: (\S+)", body, re.M)[1]
    return {"command": [line[6:].strip('"') for line in command.splitlines()], "image": re.search(r"image: (\S+)", text)[1], "probes": probes,
            "text": text}


def kubeadm(setting):
    options = setting.options
    if not options.programs:
        print("SKIPPED kubeadm: --programs is not given")
        return
    own, tool = address(0), f"{options.programs}/kubeadm"
    with empty("/etc/kubernetes", "/var/lib"):
        def run(*arguments):
            done = subprocess.run([tool, "init", "phase", *arguments], capture_output=True, text=True, check=False)
            check(done.returncode == 0, f"kubeadm init phase {' '.join(arguments)}: {done.stderr[-600:]}")
        config = f"{setting.directory}/kubeadm.yaml"
        version = subprocess.run([f"{options.programs}/kube-apiserver", "--version"], check=True, capture_output=True, text=True).stdout.split()[-1]
        with open(config, "w", encoding="ascii") as out:
            out.write(f"""apiVersion: kubeadm.k8s.io/v1beta4
kind: InitConfiguration
localAPIEndpoint: {{advertiseAddress: {own}, bindPort: 6443}}
nodeRegistration: {{name: control-plane, criSocket: "unix:///run/containerd/containerd.sock"}}
patches: {{directory: {ROOT}/packaging/kubernetes/patches}}
---
apiVersion: kubeadm.k8s.io/v1beta4
kind: ClusterConfiguration
kubernetesVersion: {version}
controlPlaneEndpoint: {own}:6443
# On one machine a connection to an address comes from that address.
etcd: {{local: {{peerCertSANs: [{own}, {address(1)}]}}}}
""")
        run("certs", "all", f"--config={config}")
        run("kubeconfig", "super-admin", f"--config={config}")
        run("etcd", "local", f"--config={config}")
        run("control-plane", "apiserver", f"--config={config}")
        store, server = manifest("etcd"), manifest("kube-apiserver")
        check("mainstay" in store["image"], f"the patch was not applied: {store['image']}")
        check("runAsUser: 0" in store["text"], "the patch was not applied: the user is not root")
        setting.secured = ["--cacert", f"{CERTIFICATES}/etcd/ca.crt", "--cert", f"{CERTIFICATES}/apiserver-etcd-client.crt",
                           "--key", f"{CERTIFICATES}/apiserver-etcd-client.key"]
        clients, data = [f"https://{own}:2379"], "/var/lib/etcd"

        def start(program, more=()):
            setting.start("etcd", [program, *store["command"][1:], *more])
            setting.ready("etcd", clients[0])
            for probe, (path, port) in store["probes"].items():
                number = port if port.isdigit() else re.search(rf"- containerPort: (\d+)\n +name: {port}\n", store["text"])[1]

                def right(path=path, number=number):
                    return urllib.request.urlopen(f"http://127.0.0.1:{number}{path}", timeout=10).status == 200
                wait_for(f"the {probe} probe passes", right, 30)

        def kubectl(method, path, body=None):
            # The other administrator's rights are granted in a later phase.
            with open("/etc/kubernetes/super-admin.conf", encoding="utf-8") as file:
                kubeconfig = file.read()
            for part, file in [("client-certificate-data", "c.crt"), ("client-key-data", "c.key")]:
                with open(f"{setting.directory}/{file}", "wb") as out:
                    out.write(base64.b64decode(re.search(rf"{part}: (\S+)", kubeconfig)[1]))
            done = subprocess.run(["curl", "--silent", "--show-error", "--cacert", f"{CERTIFICATES}/ca.crt", "--cert", f"{setting.directory}/c.crt",
                                   "--key", f"{setting.directory}/c.key", "-X", method, "-H", "Content-Type: application/json",
                                   *(["-d", json.dumps(body)] if body else []), f"https://{own}:6443{path}"],
                                  capture_output=True, text=True, check=False)
            check(done.returncode == 0, done.stderr)
            return done.stdout if path == "/readyz" else json.loads(done.stdout)

        def served():
            wait_for("kube-apiserver is ready", lambda: kubectl("GET", "/readyz") == "ok", 180)
            return {one["metadata"]["name"]: one["data"]["of"] for one in kubectl("GET", "/api/v1/namespaces/default/configmaps")["items"]
                    if one["metadata"]["name"].startswith("kept-")}

        def create(name):
            kubectl("POST", "/api/v1/namespaces/default/configmaps", {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name},
                                                                      "data": {"of": name}})
        def joined(program):
            """A second control plane, with folders of its own, joins as kubeadm does it, and is removed."""
            run("kubeconfig", "admin", f"--config={config}")
            for phase in [["upload-config", "all"], ["bootstrap-token"]]:
                run(*phase, f"--config={config}")
            # The kubelet mirrors static pods; kubeadm reads the members' addresses from there.
            for body, path in [({"kind": "ServiceAccount", "metadata": {"name": "default"}}, "serviceaccounts"),
                               ({"kind": "Pod", "metadata": {"name": "etcd-control-plane", "labels": {"component": "etcd", "tier": "control-plane"},
                                                             "annotations": {"kubeadm.kubernetes.io/etcd.advertise-client-urls": clients[0]}},
                                 "spec": {"containers": [{"name": "etcd", "image": "etcd"}]}}, "pods")]:
                kubectl("POST", f"/api/v1/namespaces/kube-system/{path}", {"apiVersion": "v1", **body})
            other, shared = f"{setting.directory}/second", ["ca", "front-proxy-ca", "sa", "etcd/ca"]
            os.makedirs(f"{other}/kubernetes/pki/etcd")
            os.makedirs(f"{other}/etcd", mode=0o700)
            for file in shared:
                for ending in ["key", "pub" if file == "sa" else "crt"]:
                    shutil.copy(f"{CERTIFICATES}/{file}.{ending}", f"{other}/kubernetes/pki/{file}.{ending}")
            shutil.copy("/etc/kubernetes/super-admin.conf", f"{setting.directory}/discovery.conf")
            with open(f"{setting.directory}/join.yaml", "w", encoding="ascii") as out:
                out.write(f"""apiVersion: kubeadm.k8s.io/v1beta4
kind: JoinConfiguration
discovery: {{file: {{kubeConfigPath: {setting.directory}/discovery.conf}}}}
nodeRegistration: {{name: second, criSocket: "unix:///run/containerd/containerd.sock"}}
controlPlane: {{localAPIEndpoint: {{advertiseAddress: {address(1)}, bindPort: 6443}}}}
patches: {{directory: {ROOT}/packaging/kubernetes/patches}}
""")
            there = ["unshare", "--mount", "sh", "-c", f"mount --bind {other}/kubernetes /etc/kubernetes && mount --bind {other}/etcd {data} && "
                     'exec "$@"', "second"]

            def at_second(*arguments):
                done = subprocess.run([*there, tool, *arguments], capture_output=True, text=True, check=False)
                check(done.returncode == 0, f"kubeadm {' '.join(arguments)}: {done.stderr[-600:]}")
                return done.stdout
            for phase in ["certs", "kubeconfig"]:
                at_second("join", "phase", "control-plane-prepare", phase, f"--config={setting.directory}/join.yaml")
            setting.start("join", [tool, "join", "phase", "etcd-join", f"--config={setting.directory}/join.yaml", "--v=1"], prefix=there)
            path = f"{other}/kubernetes/manifests/etcd.yaml"
            wait_for("kubeadm has added a learner and written its manifest", lambda: os.path.exists(path) or setting.alive("join"), 60)
            # Both machines are this one: what listens on its loopback has to go elsewhere.
            words = [word.replace("https://127.0.0.1:2379,", "").replace("127.0.0.1:2381", "127.0.0.1:2391") for word in manifest("etcd", path)["command"]]
            setting.start("second", [program, *words[1:]], prefix=there)
            check(setting.processes["join"].wait(180) == 0, f"kubeadm join phase etcd-join: {setting.log('join')[-800:]}")
            setting.processes.pop("join")
            members = setting.members(clients)
            check(sorted(one["name"] for one in members) == ["control-plane", "second"] and not any(one.get("isLearner") for one in members),
                  f"members after the join: {members}")
            setting.healthy(f"https://{address(1)}:2379")
            identity = next(f"{one['ID']:x}" for one in members if one["name"] == "second")
            wait_for("the second member is removed", lambda: setting.ctl(clients, "member", "remove", identity), 40)
            setting.end("second", signal.SIGKILL)

        others = dict(one.split("=", 1) for one in options.server)
        etcd = others.get("etcd")
        moving = setting.ours and etcd
        start(etcd if moving else setting.program)
        setting.start("kube-apiserver", [f"{options.programs}/kube-apiserver", *server["command"][1:]])
        wait_for("kube-apiserver is ready", lambda: kubectl("GET", "/readyz") == "ok", 180)
        create("kept-1")
        if not moving:
            joined(setting.program)
            check(served() == {"kept-1": "kept-1"}, "an object is lost")
            return
        # kubeadm's etcd becomes a member of Mainstay by another image in its manifest, which the kubelet sees.
        setting.end("etcd")
        start(setting.program)
        check("took this member over from etcd" in setting.log("etcd"), "it was not taken over")
        check(served() == {"kept-1": "kept-1"}, "an object is lost by the move")
        create("kept-2")
        joined(setting.program)
        # And back, by the steps of docs/migration.md.
        setting.end("etcd")
        said = subprocess.run([etcd, "--version"], check=True, capture_output=True, text=True).stdout
        release = ".".join(said.split(":", 1)[1].split()[0].split(".")[:2])
        subprocess.run([setting.program, "utl", "export", "--data-dir", data, "--to", f"{data}.new", "--release", release], check=True,
                       capture_output=True)
        os.rename(data, f"{data}.mainstay")
        os.rename(f"{data}.new", data)
        start(etcd)
        check(served() == {"kept-1": "kept-1", "kept-2": "kept-2"}, "an object is lost by the way back")


CHECKS = {"operator": operator, "talos": talos, "kops": kops, "kubeadm": kubeadm}


def inside(options):
    """All checks of all servers, in namespaces that nobody else sees."""
    subprocess.run(["mount", "--make-rprivate", "/"], check=True)
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    for number in range(3):
        subprocess.run(["ip", "address", "add", f"{address(number)}/32", "dev", "lo"], check=True)
    subprocess.run(["ip", "route", "add", "default", "dev", "lo"], check=True)
    passed = failed = 0
    for server in options.server:
        name, program = server.split("=", 1)
        for what, action in CHECKS.items():
            if options.only and what not in options.only:
                continue
            began, setting = time.monotonic(), None
            with empty("/usr/local/bin", "/opt", "/run", "/system"):
                os.makedirs("/run/etc")
                shutil.copy("/etc/hosts", "/run/etc/hosts")
                subprocess.run(["mount", "--bind", "/run/etc/hosts", "/etc/hosts"], check=True)
                try:
                    setting = Setting(what, program, options)
                    action(setting)
                    passed += 1
                    print(f"ok      {name} {what} ({time.monotonic() - began:.1f} s)", flush=True)
                except Exception as error:  # a check may fail in any way
                    failed += 1
                    where = "" if isinstance(error, AssertionError) else traceback.format_exc()
                    print(f"FAILED  {name} {what} ({time.monotonic() - began:.1f} s): {error} {where}", flush=True)
                    for process in setting.processes if setting else []:
                        print("\n".join(f"    {process}: {line}" for line in setting.log(process).splitlines()[-8:]))
                finally:
                    if setting:
                        setting.stop()
                    subprocess.run(["umount", "--lazy", "/etc/hosts"], check=False)
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server", action="append", required=True, metavar="NAME=PATH")
    parser.add_argument("--etcdctl", required=True)
    parser.add_argument("--etcdutl", required=True)
    parser.add_argument("--programs", metavar="DIR", help="where kubeadm and kube-apiserver are")
    parser.add_argument("--only", type=lambda text: text.split(","))
    options = parser.parse_args()
    if os.geteuid() != 0 or not shutil.which("ip") or not shutil.which("unshare"):
        print("SKIPPED installers of Kubernetes: they need root, iproute2 and util-linux")
        return 0
    if INSIDE not in os.environ:
        return subprocess.run(["unshare", "--mount", "--net", "--pid", "--fork", "--mount-proc", sys.executable, *sys.argv],
                              env={**os.environ, INSIDE: "1"}, check=False).returncode
    options.etcdctl, options.etcdutl = os.path.abspath(options.etcdctl), os.path.abspath(options.etcdutl)
    options.programs = options.programs and os.path.abspath(options.programs)
    options.server = ["=".join([server.split("=", 1)[0], os.path.abspath(server.split("=", 1)[1])]) for server in options.server]
    return inside(options)


if __name__ == "__main__":
    sys.exit(main())
