"""For kube_e2e.py: a whole control plane on a store, and what stands for its nodes and clients."""

import http.client
import json
import os
import ssl
import subprocess
import threading
import time

from kube_apiserver import Kubernetes
from kube_store import Store, processor_time, wait_for
from ports import free_port

HERE = os.path.dirname(os.path.abspath(__file__))
COMPACTION_SECONDS = 30
# Requests per second of the controllers and of the scheduler. Their defaults, 20 and 50, are what a load of pods would measure.
QPS = 300
PARTS = ["kube-controller-manager", "kube-scheduler"]


class MeteredStore(Store):
    """A store whose members' processor time is counted although their processes end and begin."""

    def __init__(self, *arguments):
        self.used = {}
        super().__init__(*arguments)

    def note(self, name):
        self.used[name] = self.used.get(name, 0) + processor_time(self.processes[name].pid)

    def kill(self, name):
        self.note(name)
        super().kill(name)

    def terminate(self, name):
        self.note(name)
        super().terminate(name)

    def cpu(self, names):
        return sum(self.used.get(name, 0) + (processor_time(self.processes[name].pid) if self.runs(name) else 0) for name in names)

    def runs(self, name):
        return self.processes[name].poll() is None

    def leader(self):
        return self.leader_last()[-1]

    def scrape(self, name):
        """What a member tells of itself, as text."""
        return self.ask(name, "/metrics").decode()

    def ask(self, name, path):
        context = ssl.create_default_context(cafile=self.authority.certificate)
        context.load_cert_chain(*self.administrator)
        connection = http.client.HTTPSConnection("127.0.0.1", self.ports[name][0], context=context, timeout=30)
        try:
            connection.request("GET", path)
            return connection.getresponse().read()
        finally:
            connection.close()


class Plane(Kubernetes):
    """kube-apiserver, the controllers and the scheduler as a control plane has them, and the simulated kubelets."""

    periods = [f"--etcd-compaction-interval={COMPACTION_SECONDS}s", "--etcd-healthcheck-timeout=10s", "--profiling=false"]

    def __init__(self, programs, store, directory, nodes):
        # Processor time of processes that have ended, and of those that run as it was a moment ago.
        self.nodes, self.parts, self.used, self.latest, self.restarts = nodes, {}, {}, {}, {}
        self.lock, self.ending = threading.Lock(), False
        self.process = self.kubelets = None
        self.kubelets_port = free_port()
        try:
            super().__init__(programs, store, directory, True)
            self.expect(201, "POST", "/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "written"}})
            for name in PARTS:
                self.start_part(name)
            self.kubelets = self.spawn("kubelets", [f"{programs}/kubelets", f"--kubeconfig={self.kubeconfig}", f"--nodes={nodes}",
                                                    f"--listen=127.0.0.1:{self.kubelets_port}"])
            wait_for("the kubelets answer", lambda: self.seen("GET", "/state"))
        except BaseException:
            self.stop()
            raise
        threading.Thread(target=self.tend, daemon=True).start()

    def spawn(self, name, command):
        with open(f"{self.directory}/{name}.log", "ab") as log:
            return subprocess.Popen(command, stdout=log, stderr=log)

    def start_part(self, name):
        port = free_port()
        if name == "kube-scheduler":
            config = f"{self.directory}/scheduler.json"
            with open(config, "w", encoding="ascii") as out:
                json.dump({"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration",
                           "clientConnection": {"kubeconfig": self.kubeconfig, "qps": QPS, "burst": QPS,
                                                "contentType": "application/vnd.kubernetes.protobuf"}}, out)
            flags = [f"--config={config}"]
        else:
            flags = [f"--kubeconfig={self.kubeconfig}", f"--kube-api-qps={QPS}", f"--kube-api-burst={QPS}",
                     f"--service-account-private-key-file={self.directory}/accounts.key", f"--root-ca-file={self.authority.certificate}",
                     "--concurrent-deployment-syncs=10", "--concurrent-replicaset-syncs=10"]
        self.parts[name] = self.spawn(name, [f"{self.programs}/{name}", *flags, "--bind-address=127.0.0.1", f"--secure-port={port}"])

    def tend(self):
        """Starts again what ended by itself, as the kubelet of a control plane's node does: controllers end when they lose their lease."""
        while not self.ending:
            with self.lock:
                for name, process in list(self.parts.items()):
                    if process.poll() is None:
                        self.latest[name] = processor_time(process.pid)
                    elif not self.ending:
                        self.used[name] = self.used.get(name, 0) + self.latest.pop(name, 0)
                        self.restarts[name] = self.restarts.get(name, 0) + 1
                        self.start_part(name)
            time.sleep(1)

    def start(self):
        self.connections.own = None
        super().start()

    def stop_control(self):
        """Ends everything but the kubelets, which are on other machines."""
        self.ending = True
        with self.lock:
            for name, process in self.parts.items():
                self.used[name] = self.used.get(name, 0) + processor_time(process.pid)
                process.terminate()
            for process in self.parts.values():
                process.wait(60)
            self.parts.clear()
        self.stop_server()

    def stop_server(self):
        """Not for as long as kube-apiserver waits for its open watches: its clients find out soon enough."""
        self.used["kube-apiserver"] = self.used.get("kube-apiserver", 0) + processor_time(self.process.pid)
        self.process.terminate()
        try:
            self.process.wait(3)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def start_control(self):
        self.start()
        for name in PARTS:
            self.start_part(name)
        self.ending = False
        threading.Thread(target=self.tend, daemon=True).start()

    def stop(self):
        self.ending = True
        with self.lock:
            processes = [process for process in [*self.parts.values(), self.kubelets, self.process] if process]
        for process in processes:
            process.terminate()
        for process in processes:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def cpu(self):
        """Seconds of processor time so far, by part, and of everything on the machine."""
        now = {"store": self.store.cpu(self.store.names), "kubelets": processor_time(self.kubelets.pid), "machine": busy()}
        with self.lock:
            for name, process in {**self.parts, "kube-apiserver": self.process}.items():
                try:
                    own = processor_time(process.pid)
                except OSError:
                    own = 0
                now[name] = self.used.get(name, 0) + own
        return now

    def seen(self, method, path):
        """What the simulated kubelets answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.kubelets_port, timeout=120)
        try:
            connection.request(method, path)
            answer = connection.getresponse()
            text = answer.read()
            assert answer.status == 200, f"{method} {path}: {answer.status} {text[:300]}"
            return json.loads(text)
        finally:
            connection.close()


def busy():
    """Seconds of processor time that anything on this machine has used, or waited for because a hypervisor took it."""
    with open("/proc/stat", encoding="ascii") as file:
        user, nice, system, _, _, interrupts, soft, stolen = map(int, file.readline().split()[1:9])
    return (user + nice + system + interrupts + soft + stolen) / os.sysconf("SC_CLK_TCK")


def resident_mb(pid):
    """Memory of a process, in MB; 0 if it has ended."""
    try:
        with open(f"/proc/{pid}/status", encoding="ascii") as file:
            return next(int(line.split()[1]) / 1000 for line in file if line.startswith("VmRSS"))
    except (OSError, StopIteration):
        return 0


class Sampler:
    """The most memory that the members had together, and kube-apiserver, since the last call of `take`."""

    def __init__(self, plane):
        self.plane, self.most, self.over = plane, {}, threading.Event()
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self):
        while not self.over.wait(0.5):
            store = self.plane.store
            for name, pids in [("store", [process.pid for process in list(store.processes.values())]),
                               ("kube-apiserver", [self.plane.process.pid])]:
                self.most[name] = max(self.most.get(name, 0), sum(map(resident_mb, pids)))

    def take(self):
        most, self.most = self.most, {}
        return most

    def stop(self):
        self.over.set()
        self.thread.join()
