#!/usr/bin/env python3
"""Runs clients of etcd's JSON gateway against servers, each a fresh member that is started here.

usage: json_clients.py NAME=PROGRAM [NAME=PROGRAM ...] [--verbose]

The clients are curl with the examples of etcd's documentation, the Python package etcd3gw, and Patroni's own client with its cache
and its leader key, without users and with a password. They must be installed: patroni[etcd3], etcd3gw, curl. What each says is
checked, and with two servers it must be the same for both, without ids, tokens and times. The last line is "N passed, M failed".
"""

import base64
import json
import logging
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time

from ports import free_port

PATIENCE = 20


def b64(text):
    return base64.b64encode(text.encode()).decode()


def wait_for(what, condition, seconds=PATIENCE):
    until = time.time() + seconds
    while True:
        value = condition()
        if value:
            return value
        if time.time() > until:
            raise AssertionError(f"{what} did not happen in {seconds} s")
        time.sleep(0.05)


class Server:
    def __init__(self, program, directory):
        self.program, self.directory = program, directory
        self.port, self.peer_port = free_port(), free_port()
        os.makedirs(directory)
        self.process = None
        self.start()

    def start(self):
        client, peer = f"http://127.0.0.1:{self.port}", f"http://127.0.0.1:{self.peer_port}"
        with open(os.path.join(self.directory, "log"), "ab") as log:
            self.process = subprocess.Popen(
                [self.program, "--name=m", f"--data-dir={self.directory}/data", f"--listen-client-urls={client}",
                 f"--advertise-client-urls={client}", f"--listen-peer-urls={peer}", f"--initial-advertise-peer-urls={peer}",
                 f"--initial-cluster=m={peer}", "--bcrypt-cost=4"], stdout=log, stderr=log)
        wait_for(f"the start of {self.program}", lambda: self.curl("/health", None)[1].startswith('{"health":"true"'))

    def stop(self):
        self.process.terminate()
        self.process.wait()

    def curl(self, path, body, *more):
        """curl's exit status and what it prints."""
        words = ["curl", "-sS", "--max-time", "20", f"http://127.0.0.1:{self.port}{path}", *more]
        if body is not None:
            words += ["-X", "POST", "-d", body if isinstance(body, str) else json.dumps(body)]
        done = subprocess.run(words, capture_output=True, text=True)
        return done.returncode, done.stdout


class Checks:
    """What a server said, in order."""

    def __init__(self, name, verbose):
        self.name, self.verbose, self.said, self.passed, self.failed = name, verbose, [], 0, 0

    def say(self, what, value):
        text = re.sub(r'"(cluster_id|member_id|raft_term|ID|token|lease|version)": ?"[^"]*"', r'"\1":*', str(value))
        self.said.append((what, text))
        if self.verbose:
            print(f"{self.name:10} {what}: {text[:200]}")

    def check(self, what, good, value=None):
        if good:
            self.passed += 1
        else:
            self.failed += 1
            print(f"FAILED {self.name}: {what}: {value!r}")

    def equal(self, what, value, wanted):
        self.say(what, value)
        self.check(what, value == wanted, value)


def with_curl(t, server):
    """The examples of etcd's page on its gRPC gateway."""
    def ask(what, path, body, wanted=None, *more):
        code, text = server.curl(path, body, *more)
        t.check(f"{what}: curl's status", code == 0, code)
        try:
            answer = json.loads(text)
        except ValueError:
            answer = {}
        # Whether there are spaces between tokens is chance in etcd.
        t.say(what, json.dumps(answer, sort_keys=True) if answer else text)
        for key, value in (wanted or {}).items():
            t.check(f"{what}: {key}", answer.get(key) == value, text)
        return answer

    ask("put", "/v3/kv/put", {"key": "Zm9v", "value": "YmFy"})
    kv = {"key": "Zm9v", "create_revision": "2", "mod_revision": "2", "version": "1", "value": "YmFy"}
    ask("range", "/v3/kv/range", {"key": "Zm9v"}, {"kvs": [kv], "count": "1"})
    ask("range of a prefix", "/v3/kv/range", {"key": "Zm9v", "range_end": "Zm9w"}, {"count": "1"})
    ask("beta", "/v3beta/kv/range", {"key": "Zm9v"}, {"count": "1"})
    words = ["curl", "-N", "-sS", f"http://127.0.0.1:{server.port}/v3/watch", "-X", "POST", "-d", '{"create_request": {"key":"Zm9v"} }']
    watch = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    lines = []
    reader = threading.Thread(target=lambda: lines.extend(watch.stdout.readline() for _ in range(2)))
    reader.start()
    wait_for("the watch's beginning", lambda: lines or reader.is_alive() and watch.poll() is None and server_has_watch(server))
    ask("put for the watch", "/v3/kv/put", {"key": "Zm9v", "value": "YmFy"})
    reader.join(PATIENCE)
    watch.terminate()
    watch.wait()
    watch.stdout.close()
    t.say("watch", [json.dumps(json.loads(line), sort_keys=True) for line in lines])
    t.check("an event of the watch", len(lines) == 2 and '"events"' in lines[1], lines)
    ask("txn", "/v3/kv/txn", {"compare": [{"target": "CREATE", "key": "Zm9v", "createRevision": "2"}],
                              "success": [{"requestPut": {"key": "Zm9v", "value": "YmFy"}}]}, {"succeeded": True})
    ask("txn by version", "/v3/kv/txn", {"compare": [{"version": "4", "result": "EQUAL", "target": "VERSION", "key": "Zm9v"}],
                                         "success": [{"requestRange": {"key": "Zm9v"}}]})
    lease = ask("lease", "/v3/lease/grant", {"TTL": 60}, {"TTL": "60"}).get("ID", "")
    ask("a leased put", "/v3/kv/put", {"key": b64("l"), "value": b64("1"), "lease": lease})
    ask("renewal", "/v3/lease/keepalive", {"ID": lease})
    ask("what a lease has", "/v3/lease/timetolive", {"ID": lease, "keys": True}, {"keys": [b64("l")]})
    ask("revocation", "/v3/lease/revoke", {"ID": lease})
    # Authentication.
    ask("user", "/v3/auth/user/add", {"name": "root", "password": "pass"})
    ask("role", "/v3/auth/role/add", {"name": "root"})
    ask("grant", "/v3/auth/user/grant", {"user": "root", "role": "root"})
    ask("enable", "/v3/auth/enable", {})
    token = ask("token", "/v3/auth/authenticate", {"name": "root", "password": "pass"}).get("token", "")
    ask("denied", "/v3/kv/put", {"key": "Zm9v", "value": "YmFy"}, {"code": 3, "message": "etcdserver: user name is empty"})
    ask("put with a token", "/v3/kv/put", {"key": "Zm9v", "value": "YmFy"}, {}, "-H", f"Authorization: {token}")
    ask("a bad token", "/v3/kv/put", {"key": "Zm9v", "value": "YmFy"}, {"code": 16}, "-H", "Authorization: x.1")
    ask("disable", "/v3/auth/disable", {}, {}, "-H", f"Authorization: {token}")
    ask("no path", "/v3/kv/none", {}, {"code": 5})
    ask("no JSON", "/v3/kv/put", "{", {"code": 3})


def server_has_watch(server):
    _, text = server.curl("/metrics", None)
    return re.search(r"^etcd_debugging_mvcc_watcher_total [1-9]", text, re.M)


def with_etcd3gw(t, server):
    import etcd3gw

    client = etcd3gw.client(host="127.0.0.1", port=server.port, api_path="/v3/")
    t.equal("put", client.put("gw", "1"), True)
    t.equal("get", client.get("gw"), [b"1"])
    t.equal("create again", client.create("gw", "2"), False)
    t.equal("replace", client.replace("gw", "1", "2"), True)
    t.equal("prefix", [value for value, _ in client.get_prefix("g")], [b"2"])
    lease = client.lease(ttl=60)
    t.equal("a leased put", client.put("gw-leased", "x", lease=lease), True)
    t.equal("keys of a lease", lease.keys(), [b"gw-leased"])
    t.check("renewal", lease.refresh() == 60)
    t.equal("revocation", lease.revoke(), True)
    t.equal("what had the lease", client.get("gw-leased"), [])
    events, cancel = client.watch("gw")
    client.put("gw", "3")
    event = next(events)
    t.say("event", sorted(event["kv"].items()))
    t.check("event's value", event["kv"].get("value") == b"3", event)
    cancel()
    with client.lock("gw-lock", ttl=30) as lock:
        t.equal("lock", lock.is_acquired(), True)
        t.equal("a second lock", client.lock("gw-lock", ttl=30).acquire(), False)
    t.equal("delete", client.delete("gw"), True)
    t.check("members", len(list(client.members())) == 1)


def with_patroni(t, server, user=None):
    from patroni.dcs import get_dcs

    scope = "users" if user else "open"

    def member(name, **more):
        etcd3 = {"host": f"127.0.0.1:{server.port}", **more}
        if user:
            etcd3["username"], etcd3["password"] = user
        dcs = get_dcs({"etcd3": etcd3, "scope": scope, "name": name, "namespace": "/service/", "ttl": 30, "loop_wait": 10,
                       "retry_timeout": 10})
        return dcs

    one, two = member("one"), member("two")

    def cluster(dcs):
        return dcs.get_cluster()

    t.equal("initialize", bool(one.initialize(create_new=True, sysid="4711")), True)
    t.equal("initialize again", bool(two.initialize(create_new=True, sysid="4712")), False)
    t.equal("config", one.set_config_value(json.dumps({"ttl": 30, "postgresql": {"parameters": {"a": "é<&>"}}})), True)
    for dcs, name in ((one, "one"), (two, "two")):
        cluster(dcs)
        t.equal(f"touch {name}", dcs.touch_member({"conn_url": f"postgres://{name}", "state": "running"}), True)
    t.equal("leader", bool(one.attempt_to_acquire_leader()), True)
    t.equal("a second leader", bool(two.attempt_to_acquire_leader()), False)
    wait_for("the leader, by the watch of the second", lambda: cluster(two).leader_name == "one")
    seen = cluster(two)
    t.equal("members", sorted(m.name for m in seen.members), ["one", "two"])
    t.equal("initialize's value", seen.initialize, "4711")
    t.equal("config's value", seen.config.data["postgresql"]["parameters"]["a"], "é<&>")
    t.equal("update leader", bool(one.update_leader(cluster(one), 123, {"slot": 7})), True)
    wait_for("the leader's status", lambda: cluster(two).status.last_lsn == 123)
    t.equal("failover", two.manual_failover("one", "two"), True)
    wait_for("the failover key", lambda: (cluster(one).failover or None) and cluster(one).failover.candidate == "two")
    t.equal("sync state", bool(one.write_sync_state("one", ["two"], 0, version=None)), True)
    wait_for("sync state", lambda: cluster(two).sync.leader == "one")
    t.equal("sync state of an old version", bool(one.set_sync_state_value("{}", version="1")), False)
    t.equal("history", one.set_history_value("[[1,2,\"x\"]]"), True)
    two.event.clear()
    t.equal("delete leader", bool(one.delete_leader(cluster(one).leader)), True)
    t.equal("the watch wakes", two.event.wait(PATIENCE), True)
    wait_for("no leader", lambda: not cluster(two).leader_name)
    t.equal("the next leader", bool(two.attempt_to_acquire_leader()), True)
    wait_for("the next leader, at the first", lambda: cluster(one).leader_name == "two")
    if user:
        # Every token is void now, as after a change of any user: both log in again.
        _, text = server.curl("/v3/auth/authenticate", {"name": user[0], "password": user[1]})
        token = json.loads(text)["token"]
        server.curl("/v3/auth/user/add", {"name": "another", "password": "x"}, "-H", f"Authorization: {token}")
        t.equal("update by an old token", bool(two.update_leader(cluster(two), 124)), True)
    # Watches and requests survive a restart of the server.
    server.stop()
    server.start()
    wait_for("an update after the restart", lambda: patiently(lambda: two.update_leader(cluster(two), 125)))
    wait_for("the status after the restart", lambda: patiently(lambda: cluster(one).status.last_lsn == 125))
    t.equal("cancel initialization", bool(one.cancel_initialization()), True)
    t.equal("delete cluster", bool(one.delete_cluster()), True)
    wait_for("nothing left", lambda: cluster(two).is_empty())


def patiently(attempt):
    try:
        return attempt()
    except Exception as error:  # A server that is away: the caller asks again.
        logging.debug("not yet: %r", error)
        return None


def with_users(server):
    for path, body in (("user/add", {"name": "root", "password": "rootpw"}), ("role/add", {"name": "root"}),
                       ("user/grant", {"user": "root", "role": "root"}), ("user/add", {"name": "patroni", "password": "secret"}),
                       ("role/add", {"name": "service"}),
                       ("role/grant", {"name": "service", "perm": {"permType": "READWRITE", "key": b64("/service/"), "range_end": b64("/service0")}}),
                       ("user/grant", {"user": "patroni", "role": "service"}), ("user/grant", {"user": "patroni", "role": "root"}),
                       ("enable", {})):
        server.curl(f"/v3/auth/{path}", body)


def main():
    verbose = "--verbose" in sys.argv
    servers = [word.split("=", 1) for word in sys.argv[1:] if not word.startswith("--")]
    if not servers or any(len(server) != 2 for server in servers) or not shutil.which("curl"):
        raise SystemExit(__doc__)
    logging.getLogger().setLevel(logging.CRITICAL)
    told = []
    with tempfile.TemporaryDirectory(prefix="json-clients-") as directory:
        for at, (name, program) in enumerate(servers):
            t = Checks(name, verbose)
            told.append(t)
            for kind, run in (("curl", with_curl), ("etcd3gw", with_etcd3gw), ("patroni", with_patroni),
                              ("patroni with a password", lambda t, server: with_patroni(t, server, ("patroni", "secret")))):
                server = Server(program, f"{directory}/{at}-{kind}")
                try:
                    if "password" in kind:
                        with_users(server)
                    t.say("client", kind)
                    run(t, server)
                except Exception as error:
                    t.check(kind, False, error)
                    if verbose:
                        raise
                finally:
                    server.stop()
    failed = sum(t.failed for t in told)
    if len(told) > 1:
        for first, other in zip(told[0].said, told[1].said):
            if first != other:
                failed += 1
                print(f"DIFFERS {first[0]}:\n  {told[0].name}: {first[1][:600]}\n  {told[1].name}: {other[1][:600]}")
        if len(told[0].said) != len(told[1].said):
            failed += 1
            print(f"DIFFERS: {len(told[0].said)} and {len(told[1].said)} answers")
    print(f"{sum(t.passed for t in told)} passed, {failed} failed")
    sys.stdout.flush()
    # Patroni's threads watch for ever.
    os._exit(1 if failed else 0)


main()
