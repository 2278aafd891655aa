#!/usr/bin/env python3
"""Compares the metrics of two servers after the same work, and evaluates etcd's alert rules and dashboards over both.

    metrics_same.py --reference PATH/etcd --subject PATH/mainstay --etcdctl PATH/etcdctl [--promql]

Starts a cluster of three of each program on loopback (TCP, a port for clients and one for peers each) with
`--metrics=extensive`, does the same work with etcdctl at each, and scrapes the first member, at its client port and at its port
for metrics. Each family of the reference is one check: type, names of labels, bounds of buckets, and for families of gRPC
methods, feature gates and health checks the series themselves. What is absent on purpose stands in ABSENT with its reason; one
of those that is there after all is an error like any other. With --promql the expressions in `promql/` are evaluated by
Prometheus' own engine over the scrapes of each cluster (needs Go).

Ends with "N passed, M failed" and exit code 1 if M is not 0. Python 3, standard library only.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request

from ports import free_port

# Beginning of the name of a family -> why it is absent.
ABSENT = {
    "etcd_debugging_disk_backend_commit_": "no storage engine that commits in these steps",
    "etcd_debugging_snap_save_": "no snapshot files of the v2 store",
    "etcd_snap_": "no snapshot files",
    "etcd_debugging_store_": "no v2 store",
    "etcd_grpc_proxy_": "counted by the proxy, in its own process",
    "go_gc_": "no garbage collector",
    "go_goroutines": "no goroutines",
    "go_info": "no Go runtime; etcd_server_go_version tells the language",
    "go_memstats_": "no Go runtime; process_resident_memory_bytes tells the memory",
}

# Beginning of the name of a family -> the release of etcd that has it first: at an older reference it is one too many.
SINCE = {
    "etcd_debugging_server_watch_send_loop_": (3, 7),
    "etcd_server_request_duration_seconds": (3, 7),
}

# Families whose series have to be there one by one; etcd makes them before anything happens.
COMPLETE = ["grpc_server_", "etcd_server_feature_enabled", "etcd_server_healthcheck", "promhttp_"]

# Families that etcd makes when they first count something, and that are there from the start here.
EARLY = [
    "etcd_network_disconnected_peers_total",
    "etcd_network_peer_received_failures_total",
    "etcd_network_peer_sent_failures_total",
]

WORK = [
    ["put", "k1", "v1"],
    ["put", "k1", "v2"],
    ["put", "k2", "v", "--prev-kv"],
    ["get", "k", "--prefix"],
    ["get", "k1", "--consistency=s"],
    ["get", "--rev=99", "k1"],
    ["del", "k2"],
    ["lease", "grant", "600"],
    ["compact", "3"],
    ["defrag"],
    ["endpoint", "hashkv"],
    ["alarm", "list"],
    ["member", "list"],
    ["endpoint", "status"],
    ["user", "add", "u", "--no-password"],
    ["snapshot", "save", "{directory}/snapshot"],
]

PAGES = ["/health", "/health?serializable=true", "/livez", "/readyz", "/metrics"]


class Cluster:
    """Three members of one program."""

    def __init__(self, program, etcdctl):
        self.directory = tempfile.mkdtemp(prefix="metrics-same-")
        self.etcdctl = etcdctl
        clients, peers, metrics = ([f"http://127.0.0.1:{free_port()}" for _ in range(3)] for _ in range(3))
        self.clients, self.metrics = clients, metrics
        initial = ",".join(f"m{i}={peer}" for i, peer in enumerate(peers))
        self.processes = []
        for i in range(3):
            log = open(f"{self.directory}/m{i}.log", "w", encoding="utf-8")
            self.processes.append(subprocess.Popen(
                [program, f"--name=m{i}", f"--data-dir={self.directory}/m{i}", f"--initial-cluster={initial}",
                 f"--listen-client-urls={clients[i]}", f"--advertise-client-urls={clients[i]}",
                 f"--listen-peer-urls={peers[i]}", f"--initial-advertise-peer-urls={peers[i]}",
                 f"--listen-metrics-urls={metrics[i]}", "--metrics=extensive"], stdout=log, stderr=log))
            log.close()

    def wait(self):
        """Waits until all members are healthy, know each other, and the version is agreed on."""
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            try:
                texts = [fetch(f"{url}/metrics") for url in self.clients]
                if all(fetch(f"{url}/health") for url in self.clients) and all(
                        "etcd_network_peer_round_trip_time_seconds_count" in text and "etcd_cluster_version{" in text
                        for text in texts):
                    return
            except OSError:
                pass
            time.sleep(0.2)
        raise SystemExit(f"the cluster in {self.directory} does not become healthy")

    def work(self):
        for command in WORK:
            words = [word.format(directory=self.directory) for word in command]
            environment = {**os.environ, "ETCDCTL_API": "3"}
            subprocess.run([self.etcdctl, f"--endpoints={self.clients[0].split('//')[1]}", *words], env=environment,
                           stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
        for page in PAGES:
            fetch(self.clients[0] + page)

    def scrape(self, label):
        """Writes what each member shows into a file; returns their names."""
        names = []
        for i, url in enumerate(self.clients):
            names.append(f"{self.directory}/{label}-{i}.txt")
            with open(names[-1], "w", encoding="utf-8") as file:
                file.write(fetch(f"{url}/metrics"))
        return names

    def release(self):
        """Major and minor number of the release that the first member presents."""
        with urllib.request.urlopen(f"{self.clients[0]}/version", timeout=10) as answer:
            major, minor, _ = json.load(answer)["etcdserver"].split(".", 2)
        return int(major), int(minor)

    def end(self):
        for process in self.processes:
            process.terminate()
        for process in self.processes:
            process.wait(30)
        shutil.rmtree(self.directory)


def fetch(url):
    with urllib.request.urlopen(url, timeout=10) as answer:
        return answer.read().decode()


class Family:
    def __init__(self, kind):
        self.kind, self.labels, self.bounds, self.series = kind, set(), [], set()


def families(text):
    found, kinds = {}, {}
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            kinds[name] = kind
            found[name] = Family(kind)
        elif not line.startswith("#"):
            name, labels = re.match(r"([A-Za-z0-9_:]+)(?:\{(.*)\})? \S+$", line).groups()
            for suffix in ["_bucket", "_sum", "_count"]:
                base = name.removesuffix(suffix)
                if base != name and kinds.get(base) in ("histogram", "summary"):
                    name = base
            pairs = dict(re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', labels or ""))
            family, bound = found[name], pairs.pop("le", None)
            family.labels |= set(pairs)
            family.series.add(tuple(sorted(pairs.items())))
            if bound is not None and bound not in family.bounds:
                family.bounds.append(bound)
    return found


class Tally:
    def __init__(self):
        self.passed = self.failed = 0

    def check(self, fine, text):
        if fine:
            self.passed += 1
        else:
            self.failed += 1
            print(f"FAILED {text}")


def compare(tally, where, reference, subject, release):
    for name, theirs in sorted(reference.items()):
        why = next((why for beginning, why in ABSENT.items() if name.startswith(beginning)), None)
        ours = subject.get(name)
        if why is not None:
            tally.check(ours is None, f"{where} {name}: there, though it is listed as absent: {why}")
            continue
        if ours is None:
            tally.check(False, f"{where} {name} ({theirs.kind}): absent")
            continue
        tally.check(theirs.kind == ours.kind, f"{where} {name}: type {theirs.kind}, here {ours.kind}")
        tally.check(theirs.labels == ours.labels or not theirs.series,
                    f"{where} {name}: labels {sorted(theirs.labels)}, here {sorted(ours.labels)}")
        tally.check(theirs.bounds == ours.bounds, f"{where} {name}: bounds {theirs.bounds}, here {ours.bounds}")
        if any(name.startswith(beginning) for beginning in COMPLETE):
            missing = sorted(theirs.series - ours.series)
            tally.check(not missing, f"{where} {name}: {len(missing)} series are missing: {missing[:3]}")
    for name in sorted(set(subject) - set(reference)):
        newer = any(name.startswith(beginning) and since > release for beginning, since in SINCE.items())
        tally.check(name.startswith("mainstay_") or name in EARLY or newer,
                    f"{where} {name}: the reference has no such family")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--reference", required=True)
    parser.add_argument("--subject", required=True)
    parser.add_argument("--etcdctl", required=True)
    parser.add_argument("--promql", action="store_true")
    options = parser.parse_args()
    tally = Tally()
    clusters = [Cluster(program, options.etcdctl) for program in (options.reference, options.subject)]
    try:
        scrapes = []
        for cluster in clusters:
            cluster.wait()
            before = cluster.scrape("before")
            cluster.work()
            scrapes.append((before, cluster.scrape("after")))
        release = clusters[0].release()
        for where, urls in [("clients", "clients"), ("metrics listener", "metrics")]:
            reference, subject = (families(fetch(getattr(cluster, urls)[0] + "/metrics")) for cluster in clusters)
            compare(tally, where, reference, subject, release)
        if options.promql:
            here = os.path.join(os.path.dirname(os.path.abspath(__file__)), "promql")
            for name, (before, after) in zip(["reference", "subject"], scrapes):
                pairs = [f"{b},{a}" for b, a in zip(before, after)]
                run = subprocess.run(["go", "run", ".", *pairs], cwd=here, stdout=subprocess.PIPE, text=True, check=False)
                print(f"{name}:\n{run.stdout}", end="")
                verdict = re.search(r"(\d+) passed, (\d+) failed", run.stdout)
                if verdict is None:
                    raise SystemExit(2)
                tally.passed += int(verdict[1])
                tally.failed += int(verdict[2])
    finally:
        for cluster in clusters:
            cluster.end()
    print(f"{tally.passed} passed, {tally.failed} failed")
    return 1 if tally.failed else 0


if __name__ == "__main__":
    sys.exit(main())
