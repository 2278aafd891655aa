#!/usr/bin/env python3
"""A whole Kubernetes control plane on a store of three members, with simulated kubelets, through everything that happens to a store.

    kube_e2e.py --build DIR [--release 1.36]          builds the control plane and the simulated kubelets into DIR
    kube_e2e.py --programs DIR --etcd PATH --etcdctl PATH --mainstay PATH [--first mainstay,etcd] [--nodes 50] [--pods 500]
                [--only NAME,...] [--results FILE] [--page docs/kubernetes.md] [--chart docs/kubernetes.svg] [--draw]

kube-apiserver, kube-controller-manager and kube-scheduler run as in a cluster, over mutual TLS. The nodes are API objects: Leases are
renewed and pods that are bound become running and are deleted as kubelets do it, but there are no containers (`kube/kubelets`). For
each store named by --first, in turn:

  load            nodes register, Deployments are created, and all their pods have to run
  steady          nothing but renewals and a client that writes and reads
  rolling         the members are restarted one after the other, the leader last
  killed leader   kill -9 of the leader, three times
  compaction      the store is compacted at the newest revision, beside what kube-apiserver compacts
  moved and back  each member becomes one of the other kind, Mainstay's or etcd's, on its data, and is moved back
  restore         a namespace's Deployments are deleted; the store is restored from a continuous backup to the revision before
  API server      kube-apiserver is restarted with all objects in the store, and its lists from cache are asked for

During all of them but `load` and `steady` every second Deployment is rolled out anew, one after the other for as long as the phase takes. In all of
them the nodes renew their Leases, and a client creates, changes, reads and lists objects. After each, nothing may be lost or doubled: each
Deployment has as many pods as it should, running and bound once; pods of the others are the same and untouched; no object is missing or
new; what was acknowledged is there; every event of the watches was told once and in order; watches ended only as the API says; all members have the
same HashKV.

Says the latencies of the SLOs of SIG scalability, and the processor time and memory of all parts. Ends with "N passed, M failed", and
exit code 1 if M is not 0. Python 3.9+, standard library only; openssl; Go for --build.
"""

import argparse
import base64
import collections
import concurrent.futures
import datetime
import itertools
import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback

import kube_figures
import page
from kube_apiserver import build_one
from kube_plane import MeteredStore, Plane, Sampler
from kube_store import Ended, wait_for
from ports import free_port

PROGRAMS = [("kube-apiserver", "./apiserver"), ("kube-controller-manager", "./controllermanager"), ("kube-scheduler", "./scheduler"),
            ("kubelets", "./kubelets"), ("kubeadm", "./kubeadm")]
NAMESPACES = 10
# Beyond any number of revisions that a client may have seen after the moment that is restored.
BUMP = 1_000_000
# What changes by itself, or by what the phases do.
MOVING = ("/registry/events/", "/registry/leases/", "/registry/masterleases/", "/registry/minions/", "/registry/configmaps/written/",
          "/registry/pods/", "/registry/replicasets/", "/registry/deployments/", "/registry/peerserverleases/", "/registry/apiserver",
          "/registry/endpointslices/", "/registry/services/endpoints/")
# How a watch may end, as the API says: closed by the server, or refused as expired, behind which the objects are listed again.
DOCUMENTED = {"closed", "expired", "listed", "deleted while no watch was open"}
# And while kube-apiserver is away.
UNREACHABLE = re.compile(r"(list )?failed: (connection refused|connection reset|EOF|http2: client connection lost|apiserver is shutting down)$")


class Lost(AssertionError):
    """Something is not as it was."""


def check(right, said):
    if not right:
        raise Lost(said)


def deployment(number, replicas, wave=0):
    app = f"app-{number:04}"
    return {
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": app, "labels": {"app": app}},
        "spec": {"replicas": replicas, "revisionHistoryLimit": 1, "selector": {"matchLabels": {"app": app}}, "template": {
            "metadata": {"labels": {"app": app}, "annotations": {"wave": str(wave)}},
            "spec": {"containers": [{
                "name": "main", "image": "registry.example.com/service:v1", "resources": {"requests": {"cpu": "10m", "memory": "16Mi"}},
                "env": [{"name": f"SETTING_{n:02}", "value": f"value-{n:02}-{'x' * 20}"} for n in range(20)],
            }]}}}}


class Cluster:
    """A store, a control plane and what runs in it, and what must be there."""

    def __init__(self, kind, options, directory):
        self.kind, self.options, self.directory = kind, options, directory
        self.mainstay, self.etcd = os.path.abspath(options.mainstay), os.path.abspath(options.etcd)
        said = subprocess.run([self.etcd, "--version"], check=True, capture_output=True, text=True).stdout
        self.etcd_release = ".".join(said.split(":", 1)[1].split()[0].split(".")[:2])
        # Members of Mainstay that etcd is to follow stay at its release.
        self.commands = {"etcd": [self.etcd, "--quota-backend-bytes=8000000000"],
                         "mainstay": [self.mainstay, "--quota-backend-bytes=8000000000", f"--api-version={self.etcd_release}"]}
        self.store = MeteredStore(" ".join(self.commands[kind]), 3, 0, directory, options.etcdctl)
        self.plane = self.backup = self.sampler = None
        try:
            self.plane = Plane(options.programs, self.store, directory, options.nodes)
            self.sampler = Sampler(self.plane)
        except BaseException:
            self.stop()
            raise
        self.threads = concurrent.futures.ThreadPoolExecutor(8)
        count = max(1, options.pods // options.replicas)
        self.replicas = {f"app-{number:04}": options.replicas for number in range(count)}
        self.waves = collections.Counter()
        # Deployments that are rolled out in turn, those of them that this phase has, and the job that does it until `over`.
        self.turns, self.changed = itertools.cycle(sorted(self.replicas)[::2]), set()
        self.over, self.rolling_out = threading.Event(), None
        self.mistaken = 0

    def namespace(self, app):
        return f"team-{int(app[4:]) % NAMESPACES}"

    def home(self, app):
        return f"/apis/apps/v1/namespaces/{self.namespace(app)}/deployments"

    def stop(self):
        if self.sampler:
            self.sampler.stop()
        if self.backup:
            self.backup.terminate()
            self.backup.wait(60)
        for one in [self.plane, self.store]:
            if one:
                one.stop()

    # What happens.

    def create(self):
        for number in range(NAMESPACES):
            self.plane.expect(201, "POST", "/api/v1/namespaces",
                              {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": f"team-{number}"}})
        wait_for("the nodes are registered", lambda: self.plane.seen("GET", "/state")["nodes"] == self.options.nodes, 600)
        list(self.threads.map(lambda item: self.plane.expect(201, "POST", self.home(item[0]), deployment(int(item[0][4:]), item[1])),
                              self.replicas.items()))

    def roll_out(self, app):
        """Makes new pods of a Deployment."""
        self.waves[app] += 1
        patch = {"spec": {"template": {"metadata": {"annotations": {"wave": str(self.waves[app])}}}}}
        wait_for(f"{app} is rolled out", lambda: self.plane.call(
            "PATCH", f"{self.home(app)}/{app}", patch, kind="application/merge-patch+json")[0] == 200, 60)

    def roll_outs(self):
        """Rolls every second Deployment out, one after the other, until the phase is over."""
        while not self.over.wait(1 / self.options.rollouts):
            app = next(self.turns)
            self.changed.add(app)
            self.roll_out(app)

    def end_roll_outs(self):
        self.over.set()
        if self.rolling_out:
            self.rolling_out.result()
            self.rolling_out = None

    def settled(self):
        """All Deployments have the pods that they should have, and no others are left."""
        wanted = sum(self.replicas.values())

        def pods():
            counts = self.plane.seen("GET", "/state")["pods"]
            return counts["all"] == counts["running"] == wanted and counts["ending"] == 0

        def deployments():
            items = self.plane.expect(200, "GET", "/apis/apps/v1/deployments")["items"]
            for item in items:
                status, replicas = item.get("status", {}), self.replicas[item["metadata"]["name"]]
                if not (status.get("observedGeneration") == item["metadata"]["generation"] and status.get("replicas", 0) == replicas
                        and status.get("updatedReplicas", 0) == replicas and status.get("readyReplicas", 0) == replicas):
                    return False
            return len(items) == len(self.replicas)

        def all_right():
            if pods() and deployments() and pods():
                return True
            time.sleep(1)
            return False
        wait_for("all pods run", all_right, self.options.patience)

    def rolling(self):
        self.each_member(self.store.restart)

    def each_member(self, step):
        """One member after the other, the leader last, with time for the others in between."""
        for name in self.store.leader_last():
            time.sleep(self.options.between)
            step(name)
            self.store.serves(name)
        time.sleep(self.options.between)

    def killed_leader(self):
        for _ in range(3):
            leader = self.store.leader()
            time.sleep(self.options.between)
            self.store.kill(leader)
            # Long enough to be missed: the other two elect one and serve.
            self.store.serves(next(name for name in self.store.names if name != leader))
            time.sleep(self.options.between)
            self.store.start(leader)
            self.store.serves(leader)

    def compaction(self):
        """A continued list of a compacted revision is answered from a cache or refused as expired, and so is a watch."""
        store, plane = self.store, self.plane
        first = plane.expect(200, "GET", "/api/v1/pods?limit=7")
        for _ in range(3):
            time.sleep(self.options.between)
            store.ctl("compact", str(store.revision()))
        begun = first["metadata"]["resourceVersion"]
        said = store.ctl("get", "/registry/health", "--rev", begun, check=False)
        check("required revision has been compacted" in said, f"revision {begun} is not compacted: {said[-200:]}")
        status, body = plane.call("GET", f"/api/v1/pods?limit=7&continue={first['metadata']['continue']}")
        check(status == 200 or status == 410 and body["reason"] == "Expired", f"a continued list: {status} {str(body)[:200]}")

    def moved_and_back(self):
        """Each member becomes one of the other kind in place, and then one of its own kind again."""
        store, release = self.store, self.etcd_release

        def to_mainstay(name):
            store.terminate(name)
            store.others[name] = self.commands["mainstay"]
            store.start(name)

        def to_etcd(name):
            store.terminate(name)
            store.export(name, [self.mainstay], release)
            store.others[name] = self.commands["etcd"]
            store.start(name)
        steps = [to_mainstay, to_etcd] if self.kind == "etcd" else [to_etcd, to_mainstay]
        for step in steps:
            self.each_member(step)
            store.check_hashes()

    # Backup and restore.

    def start_backup(self):
        store, port = self.store, free_port()
        os.makedirs(f"{self.directory}/bucket", exist_ok=True)
        peer, files = f"https://127.0.0.1:{port}", f"{self.directory}/backup-peer"
        command = [self.mainstay, "backup", "run", "--to", f"file://{self.directory}/bucket", "--data-dir", f"{self.directory}/backup"]
        if self.kind == "mainstay":
            store.peers.issue("backup-peer", "/CN=backup")
            command += ["--name=backup", "--feed", ",".join(store.peer(name) for name in store.names), "--listen-peer-urls", peer,
                        "--initial-advertise-peer-urls", peer, "--peer-cert-file", f"{files}.crt", "--peer-key-file", f"{files}.key",
                        "--peer-trusted-ca-file", store.peers.certificate, "--peer-client-cert-auth"]
        else:
            certificate, key = store.administrator
            command += ["--endpoints", store.endpoints(), "--cacert", store.authority.certificate, "--cert", certificate, "--key", key]
        with open(f"{self.directory}/backup.log", "ab") as log:
            self.backup = subprocess.Popen(command, stdout=log, stderr=log)

    def restore(self):
        store, plane = self.store, self.plane
        self.start_backup()
        time.sleep(self.options.between)
        self.end_roll_outs()
        self.settled()
        plane.seen("POST", "/pause")
        self.written()
        pods, keys, revision = self.pods(), self.keys(), store.revision()

        def is_shipped():
            check(self.backup.poll() is None, "the backup has ended: see backup.log")
            said = subprocess.run([self.mainstay, "backup", "list", f"file://{self.directory}/bucket", "-w", "json"],
                                  capture_output=True, text=True, check=False).stdout
            found = [one.get("revision", 0) for one in walk(json.loads(said or "null")) if isinstance(one.get("revision", 0), int)]
            return max(found, default=0) >= revision
        wait_for(f"revision {revision} is in the backup", is_shipped, 180)
        # The mistake: all Deployments of a namespace, and with them their pods.
        victim = "team-0"
        plane.expect(200, "DELETE", f"/apis/apps/v1/namespaces/{victim}/deployments")
        wait_for("its pods are gone", lambda: not plane.expect(200, "GET", f"/api/v1/namespaces/{victim}/pods?limit=1")["items"],
                 self.options.patience)
        times = [time.monotonic()]
        plane.stop_control()
        self.backup.terminate()
        self.backup.wait(60)
        self.backup = None
        for name in store.names:
            store.terminate(name)
            shutil.move(f"{self.directory}/{name}", f"{self.directory}/{name}.lost")
        cluster = ",".join(f"{name}={store.peer(name)}" for name in store.names)
        times.append(time.monotonic())
        for name in store.names:
            subprocess.run([self.mainstay, "utl", "snapshot", "restore", f"file://{self.directory}/bucket", "--to-revision", str(revision),
                            "--data-dir", f"{self.directory}/{name}", "--name", name, "--initial-cluster", cluster,
                            "--initial-advertise-peer-urls", store.peer(name), f"--bump-revision={BUMP}", "--mark-compacted",
                            *(["--format=etcd"] if self.kind == "etcd" else [])], check=True, capture_output=True)
            shutil.rmtree(f"{self.directory}/{name}.lost")
        for name in store.names:
            store.start(name)
        for name in store.names:
            store.serves(name)
        times.append(time.monotonic())
        plane.seen("POST", "/restored")
        plane.start_control()
        times.append(time.monotonic())
        check(store.revision() > revision + BUMP // 2, "the revision was not raised")
        self.settled()
        self.same_pods(pods, set())
        self.same_keys(keys, self.keys(), set())
        self.written()
        stopped, restored, started = (after - before for before, after in zip(times, times[1:]))
        return (f"restored to revision {revision}: all stopped in {stopped:.1f} s, three members restored and serving after {restored:.1f} s, "
                f"kube-apiserver ready after another {started:.1f} s")

    def api_server(self):
        """kube-apiserver lists everything anew, by RangeStream where it can, and answers later lists from its cache."""
        store, plane = self.store, self.plane

        def streamed():
            lines = [line for name in store.names for line in store.scrape(name).splitlines()]
            return sum(float(line.rsplit(" ", 1)[1]) for line in lines
                       if line.startswith("grpc_server_handled_total") and '"RangeStream"' in line and '"OK"' in line)
        before, began = streamed(), time.monotonic()
        plane.stop_server()
        plane.start()
        took = time.monotonic() - began
        lists = streamed() - before
        check(lists > 0 or not self.options.range_stream, "no list came by RangeStream")
        reads = self.consistent_reads()
        # What a list has to be as new as changes elsewhere each time, so that the cache has to ask the store how far it has come.
        slowest = 0
        for number in range(20):
            made = plane.expect(201, "POST", "/api/v1/namespaces/default/configmaps",
                                {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": f"newest-{number}"}})
            began = time.monotonic()
            listed = plane.expect(200, "GET", "/apis/storage.k8s.io/v1/storageclasses")
            slowest = max(slowest, time.monotonic() - began)
            check(int(listed["metadata"]["resourceVersion"]) >= int(made["metadata"]["resourceVersion"]), "a list from cache is stale")
            plane.expect(200, "DELETE", f"/api/v1/namespaces/default/configmaps/newest-{number}")
        more = {how: count - reads.get(how, 0) for how, count in self.consistent_reads().items()}
        check(more.get("cache", 0) >= 20, f"lists did not come from the cache: {more}")
        return (f"ready after {took:.1f} s, {lists:.0f} lists by RangeStream; {more.get('cache', 0):.0f} consistent lists from cache, "
                f"{more.get('store', 0):.0f} of the store instead; slowest of 20 after a write {slowest * 1000:.0f} ms")

    def consistent_reads(self):
        """Consistent lists that kube-apiserver answered from its cache, and those for which it had to ask the store."""
        text, found = self.scrape(), collections.Counter()
        for line in text.splitlines():
            if line.startswith("apiserver_watch_cache_consistent_read_total{"):
                found["store" if 'fallback="true"' in line or 'success="false"' in line else "cache"] += float(line.rsplit(" ", 1)[1])
        return found

    # What has to be so.

    def pods(self):
        return {(one["namespace"], one["name"]): one for one in self.plane.seen("GET", "/pods")}

    def same_pods(self, before, changed):
        """Each Deployment has its pods, and those whose Deployment was not rolled out are the same as before."""
        listed = self.plane.seen("GET", "/pods")
        now = {(one["namespace"], one["name"]): one for one in listed}
        check(len(now) == len(listed) == len({one["uid"] for one in listed}), "a pod is listed twice")
        wrong = [one for one in listed if not (one["running"] and one["node"] and not one["ends"])]
        check(not wrong, f"{len(wrong)} pods do not run: {wrong[:2]}")
        counts = collections.Counter((one["namespace"], one["app"]) for one in listed)
        wanted = {(self.namespace(app), app): replicas for app, replicas in self.replicas.items()}
        check(counts == wanted, f"pods by Deployment: {dict(list((collections.Counter(wanted) - counts).items())[:3])} missing, "
                                f"{dict(list((counts - collections.Counter(wanted)).items())[:3])} too many")
        hashes = collections.defaultdict(set)
        for one in listed:
            hashes[one["app"]].add(one["hash"])
        check(all(len(one) == 1 for one in hashes.values()), "old and new pods of one Deployment")
        kept = {key: one for key, one in before.items() if one["app"] not in changed}
        lost = [key for key, one in kept.items() if now.get(key) != one]
        check(not lost, f"{len(lost)} pods are not as before, of Deployments that were not changed: {lost[:3]}")
        new = [key for key, one in now.items() if one["app"] not in changed and key not in before]
        check(not new or not before, f"{len(new)} pods of Deployments that were not changed are new: {new[:3]}")
        replaced = [key for key, one in before.items() if one["app"] in changed and now.get(key, {}).get("uid") == one["uid"]]
        check(not replaced, f"{len(replaced)} pods are still those of before the rollout: {replaced[:3]}")
        return now

    def keys(self):
        """All keys of objects, with the revision of their last change."""
        held = json.loads(self.store.ctl("get", "/registry/", "--prefix", "--keys-only", "-w", "json", endpoint=self.store.names[0]))
        return {base64.b64decode(one["key"]).decode(): one["mod_revision"] for one in held["kvs"]}

    def same_keys(self, before, now, changed):
        """No object is missing or new but those that phases change, and no pod of the others was written."""
        def compared(keys):
            return {key for key in keys if not key.startswith(MOVING)}
        missing, new = compared(before) - compared(now), compared(now) - compared(before)
        check(not missing and not new, f"objects missing: {sorted(missing)[:3]}, new: {sorted(new)[:3]}")
        for key, revision in before.items():
            parts = key.split("/")
            if parts[2] in ("pods", "replicasets") and "-".join(parts[-1].split("-")[:2]) not in changed and parts[-1].startswith("app-"):
                check(key in now, f"{key} is missing")
                check(parts[2] != "pods" or now[key] == revision, f"{key} was written at {now[key]}")

    def written(self):
        """What was acknowledged is there, and the watch has told it, which may take a moment."""
        def right():
            told = self.plane.seen("GET", "/written")
            check(not told["wrong"], f"{len(told['wrong'])} wrong: {told['wrong'][:3]}")
            return told
        return wait_for("what was acknowledged is there", right, 30)

    def no_mistakes(self):
        state = self.plane.seen("GET", "/state")
        new, self.mistaken = state["mistaken"] - self.mistaken, state["mistaken"]
        check(new == 0, f"{new} events or reads were wrong: {state['mistakes'][-new:][:5]}")
        lost = state["watches"].get("nodes", {}).get("held to be lost", 0)
        return state, lost

    def scrape(self):
        status, text = self.plane.call("GET", "/metrics")
        check(status == 200, f"metrics: {status}")
        return text

    # Phases.

    def phase(self, name, action, rolls=True, same=True):
        """Runs one phase, checks what has to be so after it, and returns its figures."""
        plane = self.plane
        before, keys = (self.pods(), self.keys()) if same else ({}, {})
        plane.seen("POST", "/begin")
        self.sampler.take()
        state = plane.seen("GET", "/state")
        scraped, process = kube_figures.buckets(self.scrape()), plane.process.pid
        used, began = plane.cpu(), time.monotonic()
        plane.seen("POST", "/resume")
        self.changed = changed = set()
        self.over.clear()
        try:
            if rolls:
                self.rolling_out = self.threads.submit(self.roll_outs)
            said = action() or ""
        finally:
            self.end_roll_outs()
        self.settled()
        plane.seen("POST", "/pause")
        took, after = time.monotonic() - began, plane.cpu()
        now = kube_figures.buckets(self.scrape())
        # A kube-apiserver that was started meanwhile has counted from nothing.
        restarted = plane.process.pid != process
        calls = now if restarted else kube_figures.between(scraped, now)
        if same:
            self.same_pods(before, changed)
            self.same_keys(keys, self.keys(), changed)
        else:
            self.same_pods({}, set())
        told = self.written()
        seen, lost = self.no_mistakes()
        self.store.check_hashes()
        failed, watches = growth(state["failed"], seen["failed"]), growth(state["watches"], seen["watches"])
        undocumented = {kind: [how for how in more if how not in DOCUMENTED and not (restarted and UNREACHABLE.match(how))]
                        for kind, more in watches.items() if kind != "nodes"}
        check(not any(undocumented.values()), f"watches ended in other ways than the API says: {undocumented}")
        return {"name": name, "seconds": took, "said": said, "latency": kube_figures.latencies(calls), "clients": plane.seen("GET", "/window"),
                "cores": {part: (after[part] - used.get(part, 0)) / took for part in after}, "memory": self.sampler.take(),
                "failed": failed, "watches": watches, "lost_nodes": lost, "acknowledged": told["acknowledged"], "unsure": told["unsure"],
                "restarts": dict(plane.restarts)}

    def steady(self):
        time.sleep(self.options.steady)


# Losses that are planted, and what has to be said of each.
def without_a_pod(cluster):
    cluster.end_roll_outs()
    cluster.settled()
    app = sorted(cluster.replicas)[1]
    one = next(key for key in sorted(cluster.keys()) if key.startswith(f"/registry/pods/{cluster.namespace(app)}/{app}-"))
    cluster.store.ctl("del", one)
    wait_for("another pod takes its place", lambda: one not in cluster.keys())


def without_a_role(cluster):
    cluster.store.ctl("del", "/registry/clusterroles/system:node-proxier")


def without_an_object(cluster):
    keys = wait_for("something is written", lambda: [key for key in cluster.keys() if key.startswith("/registry/configmaps/written/w")])
    cluster.store.ctl("del", keys[0])


PLANTED = {"a lost pod": (without_a_pod, "not as before"), "a lost role": (without_a_role, "objects missing"),
           "a lost write": (without_an_object, "is lost")}


def growth(before, after):
    """What was counted since, by kind and reason."""
    new = {kind: {how: count - before.get(kind, {}).get(how, 0) for how, count in reasons.items() if count != before.get(kind, {}).get(how, 0)}
           for kind, reasons in after.items()}
    return {kind: reasons for kind, reasons in new.items() if reasons}


def walk(value):
    """All objects within a JSON value."""
    if isinstance(value, dict):
        yield value
        value = list(value.values())
    if isinstance(value, list):
        for one in value:
            yield from walk(one)


PHASES = {
    "load": (Cluster.create, False, False), "steady": (Cluster.steady, False, True), "rolling": (Cluster.rolling, True, True),
    "killed leader": (Cluster.killed_leader, True, True), "compaction": (Cluster.compaction, True, True),
    "moved and back": (Cluster.moved_and_back, True, True), "restore": (Cluster.restore, True, True),
    "API server": (Cluster.api_server, True, True),
}


def shown_phase(one):
    parts = []
    for scope in ["mutating", "resource", "namespace", "cluster", "store"]:
        if scope in one["latency"]:
            own = one["latency"][scope]
            parts.append(f"{scope} p99 {own['p99'] * 1000:.0f} ms")
    clients = one["clients"]
    if "pod started" in clients:
        parts.append(f"pods started p50 {clients['pod started']['p50']:.2f} p99 {clients['pod started']['p99']:.2f} s")
    cores = ", ".join(f"{part} {used:.2f}" for part, used in sorted(one["cores"].items()))
    lines = ["; ".join(parts), f"cores: {cores}; memory MB: store {one['memory'].get('store', 0):.0f}, "
                               f"kube-apiserver {one['memory'].get('kube-apiserver', 0):.0f}"]
    if one["said"]:
        lines.append(one["said"])
    for what in ["failed", "watches", "restarts"]:
        if one[what]:
            lines.append(f"{what}: {one[what]}")
    return "\n        ".join(lines)


def run(kind, options):
    """One store through all phases: its figures, and how many phases passed and failed."""
    directory = tempfile.mkdtemp(prefix=f"kube-e2e-{kind}-", dir=options.work)
    cluster, passed, failed = None, 0, 0
    version = subprocess.run([f"{options.programs}/kube-apiserver", "--version"], check=True, capture_output=True, text=True).stdout.split()[-1]
    figures = {"server": kind, "nodes": options.nodes, "pods": options.pods, "kubernetes": version, "date": str(datetime.date.today()),
               "build": page.commit(options.mainstay), "machine": f"{os.cpu_count()} cores, Linux {'.'.join(platform.release().split('.')[:2])}", "phases": []}
    try:
        cluster = Cluster(kind, options, directory)
        figures["etcd"] = cluster.etcd_release
        if options.planted:
            cluster.phase("load", cluster.create, rolls=False, same=False)
        for name, (plant, said) in PLANTED.items() if options.planted else []:
            try:
                cluster.phase(name, lambda plant=plant: plant(cluster), rolls=False)
                found = "nothing was found"
            except AssertionError as lost:
                found = str(lost)
            passed, failed = passed + (said in found), failed + (said not in found)
            print(f"{'ok     ' if said in found else 'FAILED '} {kind} planted: {name}: {found[:300]}", flush=True)
        for name, (action, rolls, same) in PHASES.items():
            if options.planted or (options.only and name not in options.only and name != "load"):
                continue
            began = time.monotonic()
            try:
                one = cluster.phase(name, lambda action=action: action(cluster), rolls, same)
                figures["phases"].append(one)
                passed += 1
                print(f"ok      {kind} {name} ({time.monotonic() - began:.1f} s)\n        {shown_phase(one)}", flush=True)
            except Exception as error:  # a phase may fail in any way
                failed += 1
                where = "" if isinstance(error, AssertionError) else traceback.format_exc()
                print(f"FAILED  {kind} {name} ({time.monotonic() - began:.1f} s): {error} {where}", flush=True)
                # The next phase would begin with what this one has left.
                break
    except (AssertionError, Ended) as error:
        failed += 1
        print(f"FAILED  {kind}: {error}", flush=True)
    finally:
        if cluster:
            cluster.stop()
    if failed or options.keep:
        print(f"        logs are in {directory}")
    else:
        shutil.rmtree(directory)
    return figures, passed, failed


def milliseconds(value):
    return "" if value is None else page.shown(value * 1000)


HEAD = ["phase", "store", "seconds", "objectives missed", "calls that change, p99 ms", "reads of one, p99 ms", "lists of a namespace, p99 ms",
        "lists of all, p99 ms", "requests to the store, p99 ms", "pods started, p50 s", "p99 s", "store, cores", "store, MB", "kube-apiserver, cores",
        "other control plane, cores", "whole machine, cores"]


def row(server, one):
    latency, clients = one["latency"], one["clients"].get("pod started", {})
    others = one["cores"].get("kube-controller-manager", 0) + one["cores"].get("kube-scheduler", 0)

    def p99(scope):
        return milliseconds(latency.get(scope, {}).get("p99"))
    return [one["name"], server, page.shown(one["seconds"]), kube_figures.missed(one) or "none", p99("mutating"), p99("resource"), p99("namespace"), p99("cluster"), p99("store"),
            page.shown(clients["p50"]) if clients else "", page.shown(clients["p99"]) if clients else "",
            page.shown(one["cores"]["store"]), page.shown(one["memory"].get("store", 0)), page.shown(one["cores"]["kube-apiserver"]),
            page.shown(others), page.shown(one["cores"]["machine"])]


def draw(options):
    """The table and the chart of the last run of each store in the file of results, at its size."""
    with open(options.results, encoding="utf-8") as file:
        runs = [json.loads(line) for line in file]
    latest = {one["server"]: one for one in runs if (one["nodes"], one["pods"]) == (options.nodes, options.pods)}
    runs = [latest[server] for server in ["mainstay", "etcd"] if server in latest]
    if not runs:
        sys.exit(f"{options.results} has no run with {options.nodes} nodes and {options.pods} pods")
    first = runs[0]
    heading = (f"{page.dated(1, first['build'], first['date'])} Kubernetes {first['kubernetes']}, etcd {first['etcd']}, three members, "
               f"{first['nodes']:,} nodes, {first['pods']:,} pods; {first['machine']}.")
    lines = [row(run["server"], one) for name in PHASES for run in runs for one in run["phases"] if one["name"] == name]
    page.write_table(options.page, f"kubernetes {options.nodes} nodes", heading, page.markdown(HEAD, lines))
    if options.chart:
        with open(options.chart, "w", encoding="utf-8") as out:
            out.write(kube_figures.chart(runs, f"Kubernetes {first['kubernetes']} on Mainstay and on etcd {first['etcd']}"))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", metavar="DIR")
    parser.add_argument("--release", help="of Kubernetes, for --build: one that kube/go-RELEASE.mod is there for; the newest if not given")
    parser.add_argument("--programs", metavar="DIR", help="what --build has made")
    parser.add_argument("--etcd", metavar="PATH")
    parser.add_argument("--etcdctl", metavar="PATH")
    parser.add_argument("--mainstay", metavar="PATH")
    parser.add_argument("--first", default="mainstay,etcd", type=lambda text: text.split(","), help="which stores the runs begin with")
    parser.add_argument("--nodes", type=int, default=50)
    parser.add_argument("--pods", type=int, default=500)
    parser.add_argument("--replicas", type=int, default=10, help="pods of each Deployment")
    parser.add_argument("--rollouts", type=float, default=1, help="Deployments per second that are rolled out")
    parser.add_argument("--between", type=float, default=3, help="seconds between two events, in which the control plane goes on")
    parser.add_argument("--steady", type=int, default=30, help="seconds without changes")
    parser.add_argument("--patience", type=int, default=900, help="seconds until all pods have to run")
    parser.add_argument("--no-range-stream", dest="range_stream", action="store_false", help="the release lists by Range only, or etcd is older than 3.7")
    parser.add_argument("--only", type=lambda text: text.split(","), help="phases after the first")
    parser.add_argument("--planted", action="store_true", help="plants losses instead, each of which has to be found")
    parser.add_argument("--work", metavar="DIR", help="where data and logs are, instead of the folder of temporary files")
    parser.add_argument("--keep", action="store_true", help="keeps data and logs")
    parser.add_argument("--results", metavar="FILE", help="to which figures are appended")
    parser.add_argument("--draw", action="store_true", help="runs nothing: draws what --results has")
    parser.add_argument("--page", metavar="FILE", help="page whose table is written from --results")
    parser.add_argument("--chart", metavar="FILE", help="chart that is drawn from --results")
    options = parser.parse_args()
    if (options.page or options.chart or options.draw) and not options.results:
        parser.error("--page, --chart and --draw need --results")
    if options.build:
        os.makedirs(options.build, exist_ok=True)
        for name, package in PROGRAMS:
            build_one(options.build, name, package, f"go-{options.release}.mod" if options.release else "go.mod")
    # An end from outside ends all processes, too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    passed = failed = 0
    if options.etcd and not options.draw:
        if not (options.etcdctl and options.mainstay):
            parser.error("--etcd needs --etcdctl and --mainstay")
        options.programs = os.path.abspath(options.programs or options.build)
        options.etcdctl, options.mainstay = os.path.abspath(options.etcdctl), os.path.abspath(options.mainstay)
        for kind in options.first:
            figures, good, bad = run(kind, options)
            passed, failed = passed + good, failed + bad
            if options.results and not bad:
                with open(options.results, "a", encoding="utf-8") as out:
                    out.write(json.dumps(figures) + "\n")
        print(f"{passed} passed, {failed} failed")
    elif not options.build and not options.draw:
        parser.error("nothing to do: --build, --etcd or --draw")
    if options.page or options.chart:
        draw(options)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
