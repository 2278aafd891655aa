"""Runs two Python clients against an etcd-compatible endpoint.

    python interop.py [--without gateway] HOST:PORT

etcd3 uses gRPC, etcd3gw the HTTP gateway. The last line is "N passed, M failed";
the exit code is 0 only when nothing failed.
"""

import io
import queue
import sys
import threading
import time
import traceback

import etcd3
import etcd3.exceptions
import etcd3gw

DEADLINE = 15.0


class Tally:
    def __init__(self):
        self.passed = 0
        self.failed = 0

    def check(self, ok, what):
        if ok:
            self.passed += 1
        else:
            self.failed += 1
            print("FAIL", what)
        return ok

    def equal(self, got, want, what):
        return self.check(got == want, f"{what}: want {want!r}, got {got!r}")

    def raises(self, kind, call, what):
        try:
            got = call()
        except kind:
            return self.check(True, what)
        except Exception as error:  # another error is a failure, with its name
            return self.check(False, f"{what}: want {kind.__name__}, got {error!r}")
        return self.check(False, f"{what}: want {kind.__name__}, got {got!r}")

    def eventually(self, condition, what):
        end = time.monotonic() + DEADLINE
        while time.monotonic() < end:
            if condition():
                return self.check(True, what)
            time.sleep(0.05)
        return self.check(False, f"{what}: not within {DEADLINE} s")


def take(events, count):
    """Takes events from an iterator in a thread, so that waiting can end."""
    found = queue.Queue()

    def read():
        for event in events:
            found.put(event)

    threading.Thread(target=read, daemon=True).start()
    taken = []
    end = time.monotonic() + DEADLINE
    while len(taken) < count:
        try:
            taken.append(found.get(timeout=max(0.01, end - time.monotonic())))
        except queue.Empty:
            break
    return taken


def grpc_kv(t, c, p):
    t.equal(c.get(p + "none"), (None, None), "get of a missing key")
    c.put(p + "a", "1")
    value, meta = c.get(p + "a")
    t.equal(value, b"1", "get")
    t.equal(meta.key, (p + "a").encode(), "key of the answer")
    t.equal(meta.version, 1, "version")
    t.equal(c.put(p + "a", "2", prev_kv=True).prev_kv.value, b"1", "previous value")
    for i in range(5):
        c.put(f"{p}list/{i}", bytes([i, 0, 255]))
    listed = list(c.get_prefix(p + "list/", sort_order="descend", sort_target="key"))
    t.equal([v for v, _ in listed], [bytes([i, 0, 255]) for i in (4, 3, 2, 1, 0)], "prefix, descending")
    t.equal(len(list(c.get_range(p + "list/1", p + "list/4"))), 3, "range")
    t.equal(len(list(c.get_prefix(p + "list/", keys_only=True))), 5, "keys only")
    t.equal([v for v, _ in c.get_prefix(p + "list/", keys_only=True)], [b""] * 5, "values of keys only")
    t.equal(c.get(p + "a", serializable=True)[0], b"2", "serializable get")
    t.equal(c.put_if_not_exists(p + "a", "3"), False, "put if not exists, existing")
    t.equal(c.put_if_not_exists(p + "new", "3"), True, "put if not exists, new")
    t.equal(c.replace(p + "a", "2", "4"), True, "replace")
    t.equal(c.replace(p + "a", "2", "5"), False, "replace with a wrong old value")
    t.equal(c.delete(p + "new"), True, "delete")
    t.equal(c.delete(p + "new"), False, "delete again")
    t.equal(c.delete_prefix(p + "list/").deleted, 5, "delete a prefix")


def grpc_txn(t, c, p):
    tx = c.transactions
    c.put(p + "x", "old")
    done, answers = c.transaction(
        compare=[tx.value(p + "x") == "old", tx.version(p + "x") > 0, tx.create(p + "none") == 0, tx.mod(p + "x") != 0],
        success=[tx.put(p + "x", "new"), tx.get(p + "x"), tx.delete(p + "y")],
        failure=[tx.get(p + "x")],
    )
    t.equal(done, True, "transaction")
    t.equal(answers[1][0][0], b"new", "a get sees the put before it")
    done, answers = c.transaction(
        compare=[tx.value(p + "x") == "old"],
        success=[tx.put(p + "x", "never")],
        failure=[tx.txn(compare=[tx.value(p + "x") == "new"], success=[tx.put(p + "deep", "1")], failure=[])],
    )
    t.equal(done, False, "failing transaction")
    t.equal(c.get(p + "deep")[0], b"1", "put of a nested transaction")
    t.equal(c.get(p + "x")[0], b"new", "key after the failing transaction")


def grpc_lease(t, c, p):
    lease = c.lease(60)
    t.check(lease.id > 0, "lease id")
    c.put(p + "leased", "1", lease=lease)
    t.equal(lease.keys, [(p + "leased").encode()], "keys of the lease")
    t.equal(lease.granted_ttl, 60, "granted TTL")
    t.check(55 <= lease.remaining_ttl <= 60, "remaining TTL")
    t.equal([r.TTL for r in lease.refresh()], [60], "refresh")
    lease.revoke()
    t.equal(c.get(p + "leased")[0], None, "key after revoke")
    c.put(p + "short", "1", lease=c.lease(1))
    t.eventually(lambda: c.get(p + "short")[0] is None, "a lease expires")
    c.lease(60, lease_id=424242)
    t.raises(etcd3.exceptions.PreconditionFailedError, lambda: c.lease(60, lease_id=424242), "a lease id taken twice")
    c.revoke_lease(424242)


def grpc_watch(t, c, p):
    response = c.put(p + "w", "1")
    start = response.header.revision
    c.put(p + "w", "2")
    c.delete(p + "w")
    events, cancel = c.watch_prefix(p, start_revision=start, prev_kv=True)
    got = take(events, 3)
    kinds = [type(e).__name__ for e in got]
    if t.equal(kinds, ["PutEvent", "PutEvent", "DeleteEvent"], "history of a watch"):
        t.equal(got[1].prev_value, b"1", "previous value in an event")
        t.equal([e.mod_revision for e in got], [start, start + 1, start + 2], "revisions of the events")
    cancel()
    live, cancel = c.watch(p + "live")
    c.put(p + "live", "now")
    got = take(live, 1)
    t.equal([e.value for e in got], [b"now"], "live event")
    cancel()
    revision = c.put(p + "c", "1").header.revision
    c.put(p + "c", "2")
    c.compact(revision + 1, physical=True)
    seen = queue.Queue()
    c.add_watch_callback(p + "c", seen.put, start_revision=revision)
    try:
        error = seen.get(timeout=DEADLINE)
    except queue.Empty:
        error = None
    if t.check(isinstance(error, etcd3.exceptions.RevisionCompactedError), f"compacted watch: got {error!r}"):
        t.equal(error.compacted_revision, revision + 1, "compacted revision")


def grpc_lock(t, c, p):
    with c.lock(p + "lock", ttl=20) as lock:
        t.equal(lock.is_acquired(), True, "lock is acquired")
        t.equal(c.lock(p + "lock", ttl=20).acquire(timeout=1), False, "a second lock is refused")
    second = c.lock(p + "lock", ttl=20)
    t.equal(second.acquire(timeout=5), True, "lock after release")
    t.equal(second.release(), True, "release")
    holders, worst, total = [0], [0], [0]

    def work(client):
        for _ in range(3):
            with client.lock(p + "many", ttl=30):
                holders[0] += 1
                worst[0] = max(worst[0], holders[0])
                total[0] += 1
                time.sleep(0.005)
                holders[0] -= 1

    threads = [threading.Thread(target=work, args=(c,)) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    t.equal((worst[0], total[0]), (1, 15), "most holders at once, and rounds")


def grpc_maintenance(t, c, p):
    status = c.status()
    t.check(status.version.startswith("3."), f"version {status.version}")
    t.check(status.db_size > 0 and status.leader is not None, "status")
    t.check(len(list(c.members)) >= 1, "members")
    t.equal(list(c.list_alarms()), [], "alarms")
    file = io.BytesIO()
    c.snapshot(file)
    t.equal(len(file.getvalue()) % 512, 32, "snapshot size modulo 512")
    c.defragment()


def gateway(t, c, p):
    t.check(c.status()["version"].startswith("3."), "status over the gateway")
    t.check(len(c.members()) >= 1, "members over the gateway")
    t.equal(c.put(p + "a", "1"), True, "put")
    t.equal(c.get(p + "a"), [b"1"], "get")
    value, meta = c.get(p + "a", metadata=True)[0]
    t.equal((value, meta["key"], meta["version"]), (b"1", (p + "a").encode(), "1"), "get with metadata: 64-bit numbers are strings")
    t.equal(c.create(p + "a", "2"), False, "create existing")
    t.equal(c.create(p + "b", "2"), True, "create")
    t.equal(c.replace(p + "b", "2", "3"), True, "replace")
    t.equal([v for v, _ in c.get_prefix(p, sort_order="descend", sort_target="key")], [b"3", b"1"], "prefix, descending")
    lease = c.lease(60)
    c.put(p + "leased", "1", lease=lease)
    t.equal(lease.keys(), [(p + "leased").encode()], "keys of a lease")
    t.check(50 <= lease.ttl() <= 60, "TTL of a lease")
    t.equal(lease.refresh(), 60, "refresh of a lease")
    t.equal(lease.revoke(), True, "revoke")
    t.equal(c.get(p + "leased"), [], "key after revoke")
    events, cancel = c.watch_prefix(p + "w/")
    writer = threading.Thread(target=lambda: [c.put(p + "w/x", "1"), c.put(p + "w/x", "2"), c.delete(p + "w/x")])
    writer.start()
    got = take(events, 3)
    writer.join()
    t.equal([(e.get("type", "PUT"), e["kv"].get("value")) for e in got], [("PUT", b"1"), ("PUT", b"2"), ("DELETE", None)], "watch over the gateway")
    cancel()
    with c.lock(p + "lock", ttl=20) as lock:
        t.equal(lock.is_acquired(), True, "lock over the gateway")
        t.equal(c.lock(p + "lock", ttl=20).acquire(), False, "a second lock over the gateway")
    answer = c.transaction({"success": [{"request_range": {"key": "YQ==", "range_end": "Yg==", "count_only": True}}]})
    t.equal(answer.get("succeeded"), True, "transaction over the gateway")
    refused = c.session.post(c.get_url("/kv/range"), json={"key": ""})
    t.equal((refused.status_code, refused.json().get("code"), refused.json().get("message")),
            (400, 3, "etcdserver: key is not provided"), "error over the gateway")
    t.equal(c.delete_prefix(p), True, "delete a prefix")


def main():
    arguments = sys.argv[1:]
    without_gateway = arguments[:2] == ["--without", "gateway"]
    if without_gateway:
        arguments = arguments[2:]
    if len(arguments) != 1:
        print(__doc__, file=sys.stderr)
        return 2
    host, port = arguments[0].removeprefix("http://").rsplit(":", 1)
    prefix = f"interop-python/{time.time_ns():x}/"
    t = Tally()
    grpc_client = etcd3.client(host=host, port=int(port), timeout=10)
    http_client = etcd3gw.Etcd3Client(host=host, port=int(port), timeout=10)
    for section, client in [(grpc_kv, grpc_client), (grpc_txn, grpc_client), (grpc_lease, grpc_client), (grpc_watch, grpc_client),
                            (grpc_lock, grpc_client), (grpc_maintenance, grpc_client), (gateway, http_client)]:
        if section is gateway and without_gateway:
            print("1 section left out: gateway")
            continue
        before = t.passed + t.failed
        try:
            section(t, client, f"{prefix}{section.__name__}/")
        except Exception:  # a section that breaks off is a failure, not the end
            t.check(False, f"{section.__name__} broke off:\n{traceback.format_exc()}")
        print(f"{section.__name__:20} {t.passed + t.failed - before} checks")
    print(f"{t.passed} passed, {t.failed} failed")
    return 0 if t.failed == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
