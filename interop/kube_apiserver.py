#!/usr/bin/env python3
"""Runs a real kube-apiserver over mutual TLS on an etcd or a Mainstay, uses it through kubectl and HTTP, and breaks things.

    kube_apiserver.py --build DIR                         builds kube-apiserver and kubectl from the Go module proxy into DIR
    kube_apiserver.py --programs DIR --server mainstay=PATH --server etcd=PATH --etcdctl PATH [--members 3]
                      [--observers N] [--auth limited|root] [--no-watch-cache] [--objects 2000] [--nodes 1000] [--only NAME,...]
                      [--migrate PATH]

Each server is started with TLS for clients (client-cert-auth) and members. With --auth its authentication is enabled and
kube-apiserver is the user that its certificate names, who may use /registry/ and compact_rev_key, or everything. Between the checks a member is
killed with SIGKILL, certificates are replaced, and kube-apiserver compacts every five seconds. With --migrate the members, of an etcd, become
those of the Mainstay at PATH one after the other, on their data, and etcd's again, beside a rolling restart of etcd's own. With --observers
kube-apiserver knows only observers of a Mainstay, which are killed, lose their data, and lose the members that feed them.

Ends with "N passed, M failed", and exit code 1 if M is not 0. Python 3, standard library only; openssl; Go for --build.
"""

import argparse
import base64
import collections
import concurrent.futures
import contextlib
import http.client
import json
import os
import re
import shutil
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time
import traceback

from kube_nodes import NodeChecks
from kube_observers import ObserverChecks
from kube_store import Authority, Ended, Store, openssl, wait_for
from ports import free_port

HERE = os.path.dirname(os.path.abspath(__file__))
COMPACTION_SECONDS = 5
CORE = "/api/v1/namespaces"


def build(directory):
    os.makedirs(directory, exist_ok=True)
    for name, package in [("kubectl", "./kubectl"), ("kube-apiserver", "./apiserver")]:
        build_one(directory, name, package)


def build_one(directory, name, package, modules="go.mod"):
    """Builds a program of interop/kube with the versions that the file `modules` there names."""
    print(f"building {name}", flush=True)
    with open(f"{HERE}/kube/{modules}", encoding="ascii") as file:
        version = re.search(r"k8s.io/kubernetes (v\d+\.\d+\.\d+)", file.read())[1]
    # As Kubernetes' own build does: kubeadm refuses to work without.
    named = " ".join(f"-X k8s.io/component-base/version.{field}={value}" for field, value in zip(
        ["gitVersion", "gitMajor", "gitMinor"], [version, *version[1:].split(".")]))
    subprocess.run(["nice", "-n", "10", "go", "build", "-p", "1", f"-modfile={modules}", f"-ldflags=-s -w {named}",
                    "-o", os.path.abspath(f"{directory}/{name}"), package], cwd=f"{HERE}/kube", check=True)


class Kubernetes:
    """One kube-apiserver, and clients of it."""

    # Everything that happens by itself happens within seconds, so that checks see it.
    periods = [f"--etcd-compaction-interval={COMPACTION_SECONDS}s", "--etcd-db-metric-poll-interval=2s",
               "--etcd-count-metric-poll-period=2s", "--event-ttl=4s"]

    def __init__(self, programs, store, directory, watch_cache):
        self.programs, self.store, self.directory, self.watch_cache = programs, store, directory, watch_cache
        self.authority = Authority(directory, "kube-ca")
        self.certificate, self.key = self.authority.issue("apiserver", "/CN=kube-apiserver")
        self.admin = self.authority.issue("admin", "/O=system:masters/CN=admin")
        openssl("genrsa", "-out", f"{directory}/accounts.key", "2048")
        self.port = free_port()
        self.kubeconfig = f"{directory}/kubeconfig"
        with open(self.kubeconfig, "w", encoding="ascii") as out:
            json.dump({
                "apiVersion": "v1", "kind": "Config", "current-context": "c",
                "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
                "clusters": [{"name": "c", "cluster": {"server": f"https://127.0.0.1:{self.port}",
                                                       "certificate-authority": self.authority.certificate}}],
                "users": [{"name": "u", "user": {"client-certificate": self.admin[0], "client-key": self.admin[1]}}],
            }, out)
        self.context = ssl.create_default_context(cafile=self.authority.certificate)
        self.context.load_cert_chain(*self.admin)
        self.connections = threading.local()
        self.process = None
        self.start()

    def start(self):
        with open(f"{self.directory}/apiserver.log", "ab") as log:
            self.process = subprocess.Popen([
                f"{self.programs}/kube-apiserver", f"--etcd-servers={self.store.endpoints(self.store.serving)}",
                f"--etcd-cafile={self.store.authority.certificate}", f"--etcd-certfile={self.store.user[0]}",
                f"--etcd-keyfile={self.store.user[1]}", *self.periods,
                f"--watch-cache={'true' if self.watch_cache else 'false'}",
                "--bind-address=127.0.0.1", f"--secure-port={self.port}", "--advertise-address=192.0.2.1",
                "--endpoint-reconciler-type=none", "--service-cluster-ip-range=10.96.0.0/16",
                f"--tls-cert-file={self.certificate}", f"--tls-private-key-file={self.key}",
                f"--client-ca-file={self.authority.certificate}", "--authorization-mode=RBAC",
                "--service-account-issuer=https://kubernetes.default.svc",
                f"--service-account-key-file={self.directory}/accounts.key",
                f"--service-account-signing-key-file={self.directory}/accounts.key",
            ], stdout=log, stderr=log)
        self.wait_ready()

    def wait_ready(self, seconds=180):
        wait_for("kube-apiserver is ready", lambda: self.call("GET", "/readyz")[0] == 200, seconds)

    def stop(self):
        self.process.terminate()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def connection(self, timeout=60):
        return http.client.HTTPSConnection("127.0.0.1", self.port, context=self.context, timeout=timeout)

    def call(self, method, path, body=None, kind="application/json"):
        """One request over this thread's connection: status and answer."""
        # kube-apiserver closes connections that were idle for long.
        if getattr(self.connections, "own", None) is None or time.monotonic() - self.connections.used > 20:
            self.connections.own = self.connection()
        self.connections.used = time.monotonic()
        try:
            text = None if body is None else json.dumps(body)
            self.connections.own.request(method, path, text, {"Content-Type": kind, "Accept": "application/json"})
            answer = self.connections.own.getresponse()
            data = answer.read()
        except (OSError, http.client.HTTPException):
            self.connections.own.close()
            self.connections.own = None
            raise
        try:
            return answer.status, json.loads(data)
        except ValueError:
            return answer.status, data.decode(errors="replace")

    def expect(self, status, *arguments, **more):
        got, body = self.call(*arguments, **more)
        assert got == status, f"{' '.join(map(str, arguments[:2]))}: {got} instead of {status}: {str(body)[:400]}"
        return body

    def kubectl(self, *arguments, text=None):
        done = subprocess.run([f"{self.programs}/kubectl", "--kubeconfig", self.kubeconfig,
                               "--cache-dir", f"{self.directory}/cache", *arguments],
                              input=text, capture_output=True, timeout=120, check=False, text=True)
        assert done.returncode == 0, f"kubectl {' '.join(arguments)}: {done.stderr[-600:]}"
        return done.stdout

    def metrics(self):
        status, text = self.call("GET", "/metrics")
        assert status == 200
        found = collections.defaultdict(float)
        for line in text.splitlines():
            match = re.match(r'(etcd_request\w+|apiserver_storage\w+|apiserver_watch_cache_initializ\w+)(\{.*\})? (\S+)$', line)
            if match:
                found[match[1], match[2] or ""] += float(match[3])
        return found


def config_map(name, data, **metadata):
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, **metadata}, "data": data}


class Checks(NodeChecks, ObserverChecks):
    """One server's checks, in the order of their names in ALL."""

    def __init__(self, kubernetes, store, options):
        self.kube, self.store, self.options = kubernetes, store, options
        self.threads = concurrent.futures.ThreadPoolExecutor(10)

    def namespace(self, name):
        self.kube.expect(201, "POST", CORE, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
        return f"{CORE}/{name}"

    def readiness(self):
        for page in ["livez", "readyz"]:
            text = self.kube.expect(200, "GET", f"/{page}?verbose")
            assert "[+]etcd ok" in text and "[-]" not in text, text
        assert "[+]etcd-readiness ok" in text, text
        self.kube.expect(200, "GET", "/healthz/etcd")

    def kubectl(self):
        kube = self.kube
        kube.kubectl("create", "namespace", "tools")
        kube.kubectl("-n", "tools", "create", "configmap", "one", "--from-literal=a=1")
        kube.kubectl("-n", "tools", "create", "secret", "generic", "hidden", "--from-literal=password=swordfish")
        secret = json.loads(kube.kubectl("-n", "tools", "get", "secret", "hidden", "-o", "json"))
        assert base64.b64decode(secret["data"]["password"]) == b"swordfish"
        kube.kubectl("-n", "tools", "apply", "--server-side", "-f", "-", text=json.dumps(config_map("two", {"a": "1"})))
        kube.kubectl("-n", "tools", "apply", "--server-side", "-f", "-", text=json.dumps(config_map("two", {"a": "2"})))
        kube.kubectl("-n", "tools", "label", "configmap", "two", "colour=blue")
        kube.kubectl("-n", "tools", "patch", "configmap", "two", "--type=merge", "-p", '{"data":{"b":"3"}}')
        kube.kubectl("-n", "tools", "annotate", "configmap", "--all", "note=all")
        assert kube.kubectl("-n", "tools", "get", "configmap", "-l", "colour=blue", "-o",
                            "jsonpath={.items[*].data}") == '{"a":"2","b":"3"}'
        kube.kubectl("-n", "tools", "create", "role", "reader", "--verb=get,list", "--resource=configmaps")
        kube.kubectl("-n", "tools", "create", "serviceaccount", "robot")
        kube.kubectl("-n", "tools", "create", "rolebinding", "robot", "--role=reader", "--serviceaccount=tools:robot")
        token = kube.kubectl("-n", "tools", "create", "token", "robot").strip()
        anonymous = ssl.create_default_context(cafile=kube.authority.certificate)
        connection = http.client.HTTPSConnection("127.0.0.1", kube.port, context=anonymous, timeout=60)

        def allowed(path):
            connection.request("GET", f"{CORE}/tools/{path}", headers={"Authorization": f"Bearer {token}"})
            answer = connection.getresponse()
            answer.read()
            return answer.status

        # Roles reach the authorizer by a watch.
        wait_for("the role counts", lambda: allowed("configmaps") == 200, 20)
        assert allowed("secrets") == 403
        connection.close()
        kube.kubectl("-n", "tools", "delete", "configmap", "one", "two")
        assert kube.kubectl("-n", "tools", "get", "configmap", "-o", "name") == ""

    def custom_resources(self):
        kube, group = self.kube, "interop.example.com"
        kube.kubectl("apply", "-f", "-", text=json.dumps({
            "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": {"name": f"widgets.{group}"},
            "spec": {"group": group, "scope": "Namespaced", "names": {"plural": "widgets", "singular": "widget", "kind": "Widget"},
                     "versions": [{"name": "v1", "served": True, "storage": True, "subresources": {"status": {}}, "schema": {
                         "openAPIV3Schema": {"type": "object", "properties": {
                             "spec": {"type": "object", "properties": {"size": {"type": "integer", "minimum": 0}}},
                             "status": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}}}}]}}))
        kube.kubectl("wait", "--for=condition=Established", f"crd/widgets.{group}", "--timeout=60s")
        home = f"/apis/{group}/v1/namespaces/default/widgets"
        wait_for("the new kind is served", lambda: kube.call("GET", home)[0] == 200)

        def widget(number):
            return {"apiVersion": f"{group}/v1", "kind": "Widget", "metadata": {"name": f"w{number:04}"}, "spec": {"size": number}}

        list(self.threads.map(lambda number: kube.expect(201, "POST", home, widget(number)), range(300)))
        kube.expect(422, "POST", home, {**widget(9999), "spec": {"size": -1}})
        patched = kube.expect(200, "PATCH", f"{home}/w0007/status", {"status": {"phase": "Done"}},
                              kind="application/merge-patch+json")
        assert patched["status"] == {"phase": "Done"} and patched["spec"] == {"size": 7}
        assert len(kube.expect(200, "GET", home)["items"]) == 300
        kube.expect(200, "DELETE", home)
        assert kube.expect(200, "GET", home)["items"] == []
        kube.kubectl("delete", "crd", f"widgets.{group}")
        wait_for("the kind has gone", lambda: kube.call("GET", home)[0] == 404)

    def objects(self):
        """Thousands of objects, in lists of every size and at older revisions."""
        kube, count, home = self.kube, self.options.objects, self.namespace("many")
        made = list(self.threads.map(lambda n: kube.expect(201, "POST", f"{home}/configmaps", config_map(
            f"c{n:05}", {"n": str(n), "filler": "x" * (n % 900)}, labels={"third": str(n % 3)})), range(count)))
        versions = [int(one["metadata"]["resourceVersion"]) for one in made]
        assert len(set(versions)) == count
        names = [f"c{n:05}" for n in range(count)]
        for query in ["", "?resourceVersion=0", f"?resourceVersion={max(versions)}",
                      f"?resourceVersion={max(versions)}&resourceVersionMatch=Exact"]:
            whole = kube.expect(200, "GET", f"{home}/configmaps{query}")
            assert [item["metadata"]["name"] for item in whole["items"]] == names, query
        older = sorted(versions)[count // 2]
        exact = kube.expect(200, "GET", f"{home}/configmaps?resourceVersion={older}&resourceVersionMatch=Exact&limit=100000")
        wanted = [one["metadata"]["name"] for one, version in zip(made, versions) if version <= older]
        assert [item["metadata"]["name"] for item in exact["items"]] == sorted(wanted)
        assert len(kube.expect(200, "GET", f"{home}/configmaps?labelSelector=third%3D1")["items"]) == len(names[1::3])
        for limit in [1 + count // 3, 137]:
            seen, states, query = [], set(), f"limit={limit}"
            while query:
                page = kube.expect(200, "GET", f"{home}/configmaps?{query}")
                states.add(page["metadata"]["resourceVersion"])
                seen += [item["metadata"]["name"] for item in page["items"]]
                # What is written between the pages is not in them.
                if len(seen) <= limit:
                    kube.expect(201, "POST", f"{home}/configmaps", config_map(f"late-{limit}", {}))
                token = page["metadata"].get("continue")
                assert page["metadata"].get("remainingItemCount", 0) == (count - len(seen) if token else 0), page["metadata"]
                query = token and f"limit={limit}&continue={token}"
            kube.expect(200, "DELETE", f"{home}/configmaps/late-{limit}")
            assert seen == names and len(states) == 1, (len(seen), states)

    def compaction(self):
        """kube-apiserver compacts; what is older cannot be read, and it says so in its own words."""
        kube, home = self.kube, self.namespace("compacted")
        for n in range(20):
            kube.expect(201, "POST", f"{home}/configmaps", config_map(f"c{n}", {}))
        first = kube.expect(200, "GET", f"{home}/configmaps?limit=7")
        revision = first["metadata"]["resourceVersion"]

        def is_compacted():
            kube.expect(200, "PUT", f"{home}/configmaps/c0", config_map("c0", {"at": str(time.time())}))
            answer = self.store.ctl("get", "/registry/health", "--rev", revision, check=False)
            return "required revision has been compacted" in answer

        if self.options.auth == "limited":
            # Since etcd 3.6.9 only root may compact. An operator does it instead, or --auto-compaction-retention.
            refused = "compact failed: etcdserver: permission denied"
            with open(f"{kube.directory}/apiserver.log", encoding="utf-8", errors="replace") as log:
                wait_for("the refusal", lambda: refused in log.read(), 4 * COMPACTION_SECONDS)
            assert not is_compacted() and not is_compacted()
            # Beyond where a watch from there begins: at the revision of a compaction itself there are events, without what was before.
            self.store.ctl("compact", str(int(revision) + 2))
        wait_for("a compaction", is_compacted, 12 * COMPACTION_SECONDS)
        assert json.loads(self.store.ctl("get", "compact_rev_key", "-w", "json"))["kvs"][0]["version"] >= 2
        # Lists may come from kube-apiserver's own snapshots as long as it keeps them.
        status, body = kube.call("GET", f"{home}/configmaps?limit=7&continue={first['metadata']['continue']}")
        assert status in [200, 410], body
        if status == 410:
            assert body["reason"] == "Expired" and body["metadata"].get("continue"), body
            rest = kube.expect(200, "GET", f"{home}/configmaps?limit=100&continue={body['metadata']['continue']}")
            assert len(rest["items"]) == 13
        if self.options.watch_cache:
            return
        status, body = kube.call("GET", f"{home}/configmaps?watch=true&resourceVersion={revision}&timeoutSeconds=3")
        said = json.dumps(body)
        assert status == 410 or "too old resource version" in said or "Expired" in said, (status, said[:300])

    def watches(self):
        kube, home = self.kube, self.namespace("watched")
        begin = kube.expect(200, "GET", f"{home}/configmaps")["metadata"]["resourceVersion"]
        rounds, watchers = 60, 12
        seen = [[] for _ in range(watchers)]
        stop = f"w{rounds - 1}"

        def watch(number):
            connection = kube.connection()
            connection.request("GET", f"{home}/configmaps?watch=true&resourceVersion={begin}&allowWatchBookmarks=true"
                                      "&timeoutSeconds=60", headers={"Accept": "application/json"})
            answer = connection.getresponse()
            assert answer.status == 200
            for line in answer:
                event = json.loads(line)
                if event["type"] == "BOOKMARK":
                    continue
                item = event["object"]
                seen[number].append((event["type"], item["metadata"]["name"], item.get("data", {}).get("n"),
                                     int(item["metadata"]["resourceVersion"])))
                if event["type"] == "DELETED" and item["metadata"]["name"] == stop:
                    break
            connection.close()

        threads = [threading.Thread(target=watch, args=(number,)) for number in range(watchers)]
        for thread in threads:
            thread.start()
        wanted = []
        for n in range(rounds):
            kube.expect(201, "POST", f"{home}/configmaps", config_map(f"w{n}", {"n": "1"}))
            kube.expect(200, "PUT", f"{home}/configmaps/w{n}", config_map(f"w{n}", {"n": "2"}))
            kube.expect(200, "DELETE", f"{home}/configmaps/w{n}")
            wanted += [("ADDED", f"w{n}", "1"), ("MODIFIED", f"w{n}", "2"), ("DELETED", f"w{n}", "2")]
        for thread in threads:
            thread.join(90)
        for events in seen:
            # kube-apiserver puts its own kube-root-ca.crt nowhere: there is no controller manager.
            assert [event[:3] for event in events] == wanted, (len(events), len(wanted))
            assert [event[3] for event in events] == sorted({event[3] for event in events})

    def conflicts(self):
        kube, home = self.kube, self.namespace("contended")
        first = kube.expect(201, "POST", f"{home}/configmaps", config_map("counter", {"n": "0"}))
        kube.expect(409, "POST", f"{home}/configmaps", config_map("counter", {"n": "0"}))
        kube.expect(200, "PUT", f"{home}/configmaps/counter", {**first, "data": {"n": "0", "x": "y"}})
        stale = kube.expect(409, "PUT", f"{home}/configmaps/counter", {**first, "data": {"n": "7"}})
        assert stale["reason"] == "Conflict", stale
        refused = collections.Counter()

        def count(_):
            for _ in range(15):
                while True:
                    now = kube.expect(200, "GET", f"{home}/configmaps/counter")
                    now["data"]["n"] = str(int(now["data"]["n"]) + 1)
                    status, _ = kube.call("PUT", f"{home}/configmaps/counter", now)
                    if status == 200:
                        break
                    assert status == 409, status
                    refused["n"] += 1

        list(self.threads.map(count, range(8)))
        assert kube.expect(200, "GET", f"{home}/configmaps/counter")["data"]["n"] == "120"
        uid = first["metadata"]["uid"]
        status, _ = kube.call("DELETE", f"{home}/configmaps/counter", {"preconditions": {"uid": "wrong"}})
        assert status == 409
        kube.expect(200, "DELETE", f"{home}/configmaps/counter", {"preconditions": {"uid": uid}})
        held = kube.expect(201, "POST", f"{home}/configmaps", config_map("held", {}, finalizers=["interop.example.com/wait"]))
        kube.expect(200, "DELETE", f"{home}/configmaps/held")
        assert kube.expect(200, "GET", f"{home}/configmaps/held")["metadata"]["deletionTimestamp"]
        kube.expect(200, "PATCH", f"{home}/configmaps/held", {"metadata": {"finalizers": None}},
                    kind="application/merge-patch+json")
        kube.expect(404, "GET", f"{home}/configmaps/{held['metadata']['name']}")

    def leases(self):
        """Lease objects as nodes renew them, and events, which etcd's own leases end."""
        kube, home = self.kube, self.namespace("leased")
        leases = f"/apis/coordination.k8s.io/v1/namespaces/leased/leases"

        def lease(number, renewed):
            return {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": f"node-{number}"},
                    "spec": {"holderIdentity": f"node-{number}", "leaseDurationSeconds": 40,
                             "renewTime": f"2026-01-01T00:00:{renewed:02}.000000Z"}}

        list(self.threads.map(lambda n: kube.expect(201, "POST", leases, lease(n, 0)), range(50)))
        for turn in range(1, 5):
            list(self.threads.map(lambda n, turn=turn: kube.expect(
                200, "PATCH", f"{leases}/node-{n}", {"spec": lease(n, turn)["spec"]}, kind="application/merge-patch+json"), range(50)))
        times = {item["spec"]["renewTime"] for item in kube.expect(200, "GET", leases)["items"]}
        assert times == {"2026-01-01T00:00:04.000000Z"}, times
        for n in range(100):
            kube.expect(201, "POST", f"{home}/events", {
                "apiVersion": "v1", "kind": "Event", "metadata": {"name": f"e{n}", "namespace": "leased"}, "reason": "Tested",
                "involvedObject": {"kind": "ConfigMap", "namespace": "leased", "name": "none"}, "type": "Normal"})

        def stored():
            return json.loads(self.store.ctl("get", "/registry/events/leased/", "--prefix", "--keys-only", "-w", "json")).get("count", 0)

        assert stored() == 100 and re.search(r"found [1-9]\d* leases", self.store.ctl("lease", "list"))
        wait_for("the events end", lambda: kube.expect(200, "GET", f"{home}/events")["items"] == [], 150)
        assert stored() == 0

    def namespaces(self):
        """The end of a namespace, with the finalizer that a controller would remove."""
        kube, home = self.kube, self.namespace("short-lived")
        kube.expect(201, "POST", f"{home}/configmaps", config_map("a", {}))
        kube.expect(200, "DELETE", home)
        kube.expect(403, "POST", f"{home}/configmaps", config_map("b", {}))
        kube.expect(200, "DELETE", f"{home}/configmaps")
        whole = kube.expect(200, "GET", home)
        assert whole["status"]["phase"] == "Terminating"
        whole["spec"]["finalizers"] = []
        kube.expect(200, "PUT", f"{home}/finalize", whole)
        wait_for("the namespace has gone", lambda: kube.call("GET", home)[0] == 404)

    def writing(self, home, during):
        """Creates objects all the time while something is done, and checks that whatever was acknowledged is there."""
        kube, over, acknowledged, errors = self.kube, threading.Event(), [], []

        def write(number):
            n = 0
            while not over.is_set():
                name = f"{number}-{n:05}"
                n += 1
                try:
                    status, body = kube.call("POST", f"{home}/configmaps", config_map(name, {"n": name}))
                except (OSError, http.client.HTTPException) as error:
                    errors.append(str(error))
                    continue
                if status == 201:
                    acknowledged.append(name)
                else:
                    errors.append(f"{status} {str(body)[:200]}")
                    time.sleep(0.05)

        writers = [self.threads.submit(write, number) for number in range(4)]
        try:
            during(acknowledged)
        finally:
            over.set()
            for writer in writers:
                writer.result()
        kube.wait_ready()
        there = {item["metadata"]["name"] for item in kube.expect(200, "GET", f"{home}/configmaps")["items"]}
        lost = set(acknowledged) - there
        assert not lost, f"{len(lost)} acknowledged objects are gone: {sorted(lost)[:5]}"
        return len(acknowledged), errors

    def more_than(self, acknowledged, more):
        wanted = len(acknowledged) + more
        wait_for("writes are acknowledged", lambda: len(acknowledged) >= wanted, 120)

    def killed_members(self):
        store = self.store

        def during(acknowledged):
            for name in store.names:
                self.more_than(acknowledged, 50)
                store.kill(name)
                if len(store.names) > 1:
                    self.more_than(acknowledged, 50)
                store.start(name)
                store.serves(name)
            self.more_than(acknowledged, 50)

        count, errors = self.writing(self.namespace("killed"), during)
        return f"{count} acknowledged, {len(errors)} not"

    def rotated_certificates(self):
        """New certificates for the members and for kube-apiserver while it writes. Then each member restarts, so that all
        connections are made again."""
        store = self.store

        def serial(name):
            certificate, key = store.administrator
            context = ssl.create_default_context(cafile=store.authority.certificate)
            context.load_cert_chain(certificate, key)
            with socket.create_connection(("127.0.0.1", store.ports[name][0]), 10) as plain:
                with context.wrap_socket(plain, server_hostname="localhost") as secured:
                    return secured.getpeercert()["serialNumber"]

        def during(acknowledged):
            self.more_than(acknowledged, 20)
            before = {name: serial(name) for name in store.nodes}
            for name in store.nodes:
                store.authority.issue(f"{name}-server", f"/CN={name}")
                store.peers.issue(f"{name}-peer", f"/CN={name}")
            store.authority.issue("apiserver-etcd-client", "/O=kubernetes/CN=kube-apiserver")
            for name in store.nodes:
                wait_for("the new certificate is shown", lambda name=name: serial(name) != before[name], 30)
            self.more_than(acknowledged, 20)
            for name in store.nodes:
                store.restart(name)
                store.serves(name)
                self.more_than(acknowledged, 20)

        count, errors = self.writing(self.namespace("rotated"), during)
        return f"{count} acknowledged, {len(errors)} not"

    def rolled(self, label, step, names=None):
        """Each member, or each of these, is stopped and started again, by `step`, while clients of all kinds go on. Whatever was
        acknowledged is there, no later read was older than it, watches have seen it once, and kube-apiserver's caches are right. Says how
        many requests failed, and the longest time without a success, by kind. `step` also gets a function that waits until more has
        been created."""
        kube, store, home, over = self.kube, self.store, self.namespace(label), threading.Event()
        gone, watching = threading.Event(), [None, None]
        leases = f"/apis/coordination.k8s.io/v1/namespaces/{label}/leases"
        renewed = {"spec": {"holderIdentity": "n", "leaseDurationSeconds": 40}}
        kube.expect(201, "POST", leases, {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "node"}, **renewed})
        begin = kube.expect(200, "GET", f"{home}/configmaps")["metadata"]["resourceVersion"]
        done, failed, longest = collections.Counter(), collections.defaultdict(collections.Counter), collections.Counter()
        created, seen, resumed = [], [[], []], collections.Counter()
        # The newest resourceVersion that was acknowledged of any object and of the lease, and the reads that began later and saw less.
        newest, stale = collections.Counter(), []

        def acknowledged(kind, answer, wanted):
            if answer[0] == wanted:
                newest[kind] = max(newest[kind], int(answer[1]["metadata"]["resourceVersion"]))
            return answer

        def fresh(kind, path):
            least = newest[kind]
            status, body = kube.call("GET", path)
            if status == 200 and int(body["metadata"]["resourceVersion"]) < least:
                stale.append(f"GET {path} is of {body['metadata']['resourceVersion']}, after {least} was acknowledged")
            return status, body

        def repeat(kind, wanted, request):
            last, n = time.monotonic(), 0
            while not over.is_set():
                n += 1
                try:
                    status, body = request(n)
                    why = f"{status} {body.get('message', '') if isinstance(body, dict) else body}"
                except (OSError, http.client.HTTPException) as error:
                    status, why = None, str(error)
                now = time.monotonic()
                if status == wanted:
                    done[kind] += 1
                    longest[kind] = max(longest[kind], now - last)
                    last = now
                else:
                    failed[kind][why[:90]] += 1
                    time.sleep(0.02)
            longest[kind] = max(longest[kind], time.monotonic() - last)

        def create(number):
            def request(n):
                answer = kube.call("POST", f"{home}/configmaps", config_map(f"{number}-{n:05}", {"n": str(n)}))
                if answer[0] == 201:
                    created.append(f"{number}-{n:05}")
                return acknowledged("any", answer, 201)
            return request

        def renew(n):
            change = {"metadata": {"annotations": {"n": str(n)}}}
            answer = acknowledged("lease", kube.call("PATCH", f"{leases}/node", change, kind="application/merge-patch+json"), 200)
            # At once: the next request of kube-apiserver goes to another node of the store.
            return fresh("lease", f"{leases}/node") if answer[0] == 200 else answer

        def by_kubectl(n):
            over.wait(0.3)  # What the program itself costs should not be most of the load.
            try:
                kube.kubectl("-n", label, "create", "configmap", f"kubectl-{n:05}", f"--from-literal=n={n}")
            except (AssertionError, subprocess.TimeoutExpired) as error:
                return None, str(error).rsplit(": ", 1)[-1]
            created.append(f"kubectl-{n:05}")
            return 201, None

        def watch(number):
            at, ended = begin, False
            while not ended and not gone.is_set():
                connection = watching[number] = kube.connection()
                try:
                    connection.request("GET", f"{home}/configmaps?watch=true&resourceVersion={at}&allowWatchBookmarks=true")
                    answer = connection.getresponse()
                    assert answer.status == 200, answer.status
                    for line in answer:
                        event = json.loads(line)
                        assert event["type"] != "ERROR", event
                        at = event["object"]["metadata"]["resourceVersion"]
                        if event["type"] == "ADDED":
                            seen[number].append(event["object"]["metadata"]["name"])
                            ended = seen[number][-1] == "the-end"
                            if ended:
                                break
                except (OSError, http.client.HTTPException):
                    pass
                finally:
                    connection.close()
                resumed["times"] += not ended

        jobs = [self.threads.submit(repeat, "create", 201, create(number)) for number in range(2)]
        jobs.append(self.threads.submit(repeat, "kubectl", 201, by_kubectl))
        jobs.append(self.threads.submit(repeat, "list", 200, lambda _: fresh("any", f"{home}/configmaps?limit=50")))
        jobs.append(self.threads.submit(repeat, "get", 200, lambda _: fresh("lease", f"{leases}/node")))
        jobs.append(self.threads.submit(repeat, "renew", 200, renew))
        watches = [self.threads.submit(watch, number) for number in range(2)]
        try:
            for name in names or store.leader_last():
                step(name, lambda: self.more_than(created, 30))
                store.serves(name)
                self.more_than(created, 30)
            over.set()
            for job in jobs:
                job.result()
            kube.wait_ready()
            kube.expect(201, "POST", f"{home}/configmaps", config_map("the-end", {}))
            for one in watches:
                one.result(120)
        finally:
            # After a failure nothing may go on.
            over.set()
            gone.set()
            for connection in watching:
                if connection and connection.sock:
                    with contextlib.suppress(OSError):
                        connection.sock.shutdown(socket.SHUT_RDWR)
        there = {item["metadata"]["name"] for item in kube.expect(200, "GET", f"{home}/configmaps")["items"]}
        assert not stale, f"{len(stale)} stale reads: {stale[0]}"
        assert set(created) <= there, f"{len(set(created) - there)} acknowledged objects are gone"
        for events in seen:
            assert len(events) == len(set(events)) and set(events) == there, (len(events), len(there))
        store.check_hashes()
        self.caches_are_right(label)
        said = [f"{kind} {done[kind]}, {sum(failed[kind].values())} failed, longest {longest[kind]:.2f} s" for kind in sorted(done)]
        why = collections.Counter()
        for reasons in failed.values():
            why.update(reasons)
        return f"{label}: {'; '.join(said)}; watches resumed {resumed['times']} times {dict(why) or ''}"

    def caches_are_right(self, label):
        """What kube-apiserver has cached is what it lists, and what every member and observer of the store holds."""
        kube, path = self.kube, f"{CORE}/{label}/configmaps"

        def versions(query):
            items = kube.expect(200, "GET", f"{path}{query}")["items"]
            return {item["metadata"]["name"]: int(item["metadata"]["resourceVersion"]) for item in items}

        listed = versions("")
        wait_for("the cache has what is listed", lambda: versions("?resourceVersion=0") == listed, 30)
        for name in self.store.nodes:
            held = json.loads(self.store.ctl("get", f"/registry/configmaps/{label}/", "--prefix", "--keys-only", "-w", "json", endpoint=name))
            held = {base64.b64decode(kv["key"]).decode().rsplit("/", 1)[1]: kv["mod_revision"] for kv in held["kvs"]}
            assert held == listed, f"{name} holds {len(held)} objects, kube-apiserver lists {len(listed)}, or other revisions of them"

    def restarted(self, name, _):
        self.store.restart(name)

    def rolling(self):
        """A rolling restart, with the same binary."""
        return self.rolled("rolling", self.restarted)

    def migrated(self):
        """Every member becomes Mainstay's on etcd's data, and etcd's again."""
        store, mainstay = self.store, [os.path.abspath(self.options.migrate)]
        version = subprocess.run([*store.program, "--version"], check=True, capture_output=True, text=True).stdout.split()[2]
        release = ".".join(version.split(".")[:2])

        def over(name, _):
            store.terminate(name)
            store.others[name] = [*mainstay, f"--api-version={release}"]
            store.start(name)

        def back(name, _):
            store.terminate(name)
            store.export(name, mainstay, release)
            del store.others[name]
            store.start(name)
        steps = [("to-mainstay", over), ("restarted-mainstay", self.restarted), ("to-etcd", back)]
        return "\n        ".join(["", *(self.rolled(label, step) for label, step in steps)])

    def restart(self):
        """A new kube-apiserver finds what the old one had stored."""
        kube = self.kube
        before = {item["metadata"]["uid"] for item in kube.expect(200, "GET", "/api/v1/configmaps")["items"]}
        kube.stop()
        kube.connections.own = None
        kube.start()
        self.readiness()
        assert before == {item["metadata"]["uid"] for item in kube.expect(200, "GET", "/api/v1/configmaps")["items"]}

    def metrics(self):
        kube = self.kube
        kube.expect(200, "GET", "/api/v1/configmaps?limit=3")

        def sizes():
            return [n for (name, _), n in kube.metrics().items() if name == "apiserver_storage_size_bytes"]

        # What Status tells, which asks for no permission, of the members one by one.
        wait_for("sizes of the members", lambda: sizes() and all(size > 100_000 for size in sizes()))
        metrics = kube.metrics()
        requests = {labels: n for (name, labels), n in metrics.items() if name == "etcd_requests_total"}
        errors = {labels: n for (name, labels), n in metrics.items() if name == "etcd_request_errors_total" and n > 0}
        assert sum(requests.values()) > 100, requests
        # Creations of what exists, and updates that came second, are answers and not errors of etcd. The check of compactions
        # reads what is compacted.
        assert all('operation="list' in labels and not self.options.watch_cache for labels in errors), errors
        return f"{sum(requests.values()):.0f} requests of {len(requests)} kinds, sizes {sizes()}"

    def strangers(self):
        """Who has no certificate, or one of another authority, is not let in; and nor is another user."""
        store = self.store
        with tempfile.TemporaryDirectory() as other:
            stranger = Authority(other, "etcd-ca").issue("stranger", "/CN=root")
            for name, files in [(name, files) for name in dict.fromkeys(["m0", store.serving[0]]) for files in [None, stranger]]:
                context = ssl.create_default_context(cafile=store.authority.certificate)
                if files:
                    context.load_cert_chain(*files)
                try:
                    connection = http.client.HTTPSConnection("127.0.0.1", store.ports[name][0], context=context, timeout=10)
                    connection.request("GET", "/version")
                    status = connection.getresponse().status
                except (OSError, http.client.HTTPException):
                    continue
                raise AssertionError(f"a stranger got {status}")
        if self.options.auth == "limited":
            kept = store.administrator
            store.administrator = store.authority.issue("nobody", "/CN=nobody")
            try:
                said = store.ctl("get", "/registry/", "--prefix", "--limit=1", check=False)
                store.administrator = store.user
                beyond = store.ctl("get", "a", check=False)
                users = store.ctl("user", "list", check=False)
            finally:
                store.administrator = kept
            assert "permission denied" in beyond and "permission denied" in users, (beyond, users)
            assert "error" in said.lower() and "/registry/" not in said.replace("get /registry/", ""), said


ALL = ["readiness", "kubectl", "custom_resources", "objects", "watches", "conflicts", "namespaces", "leases", "compaction",
       "metrics", "strangers", "killed_members", "rotated_certificates", "restart", "metrics", "node_leases"]
OF_OBSERVERS = ["killed_observers", "wiped_observers", "killed_feeders", "paused_feeders"]


def run(name, program, options):
    directory = tempfile.mkdtemp(prefix=f"kube-{name}-")
    store = kubernetes = None
    passed, failed = 0, 0
    try:
        store = Store(program, options.members, options.observers, directory, options.etcdctl)
        if options.auth:
            store.enable_auth(options.auth)
        kubernetes = Kubernetes(options.programs, store, directory, options.watch_cache)
        checks = Checks(kubernetes, store, options)
        for check in ALL + (OF_OBSERVERS if options.observers else []) + (["rolling", "migrated"] if options.migrate else []):
            if options.only and check not in options.only:
                continue
            began = time.monotonic()
            try:
                more = getattr(checks, check)() or ""
                passed += 1
                print(f"ok      {name} {check} ({time.monotonic() - began:.1f} s) {more}", flush=True)
            except Exception as error:  # a check may fail in any way
                failed += 1
                where = "" if isinstance(error, AssertionError) else traceback.format_exc()
                print(f"FAILED  {name} {check} ({time.monotonic() - began:.1f} s): {error} {where}", flush=True)
    except (AssertionError, Ended) as error:
        failed += 1
        print(f"FAILED  {name}: {error}", flush=True)
    finally:
        for one in [kubernetes, store]:
            if one:
                one.stop()
    if failed or options.keep:
        print(f"        logs are in {directory}")
    else:
        shutil.rmtree(directory)
    return passed, failed


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", metavar="DIR")
    parser.add_argument("--programs", metavar="DIR", help="where kube-apiserver and kubectl are")
    parser.add_argument("--server", action="append", default=[], metavar="NAME=PATH")
    parser.add_argument("--etcdctl", default="etcdctl")
    parser.add_argument("--members", type=int, default=1)
    parser.add_argument("--observers", type=int, default=0,
                        help="observers of a Mainstay, which kube-apiserver uses instead of the members")
    parser.add_argument("--auth", choices=["limited", "root"],
                        help="enables authentication: kube-apiserver may use its keys only, or has the role root besides")
    parser.add_argument("--no-watch-cache", dest="watch_cache", action="store_false")
    parser.add_argument("--objects", type=int, default=2000)
    parser.add_argument("--nodes", type=int, default=1000, help="whose Lease objects are created and renewed")
    parser.add_argument("--only", type=lambda text: text.split(","))
    parser.add_argument("--migrate", metavar="PATH", help="Mainstay's binary, which members of an etcd become and leave again")
    parser.add_argument("--keep", action="store_true", help="keeps data and logs")
    options = parser.parse_args()
    if options.build:
        build(options.build)
    if not options.server:
        sys.exit(0 if options.build else 2)
    if options.observers and (options.members < 3 or options.migrate):
        parser.error("--observers needs three members, of which one at a time is killed, and cannot follow those of an etcd")
    options.programs = os.path.abspath(options.programs or options.build)
    passed = failed = 0
    for server in options.server:
        name, program = server.split("=", 1)
        good, bad = run(name, program, options)
        passed, failed = passed + good, failed + bad
    print(f"{passed} passed, {failed} failed")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
