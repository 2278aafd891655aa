#!/usr/bin/env python3
"""Keys of API version 2, from a real etcd 3.4 to a member of Mainstay.

Starts etcd with --enable-v2, makes random changes through /v2/keys (sets, creates, updates, comparisons, directories, keys in
order, times to expire at), some of which the server refuses, stops it, runs `mainstay utl import --migrate-v2`, starts a
member on the result, and compares every key, value, remaining time and the order of changes with what etcd had answered last.
Every other round etcd is killed instead, so that the log alone has the last changes.
"""

import argparse
import base64
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request

PREFIX = "/from-v2"
# What a lease may have lost or won by rounding and by the time that the test takes, in seconds.
TTL_SLACK = 60


def request(method, url, form=None, body=None):
    """The status and the JSON of an answer."""
    data, headers = body, {}
    if form is not None:
        data = urllib.parse.urlencode(form).encode()
        headers["Content-Type"] = "application/x-www-form-urlencoded"
    try:
        with urllib.request.urlopen(
            urllib.request.Request(url, data=data, method=method, headers=headers), timeout=10
        ) as answer:
            return answer.status, json.loads(answer.read() or b"null")
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read() or b"null")


class Server:
    """A server with a client URL, started in a directory of its own."""

    def __init__(self, program, data_dir, port, *flags):
        self.url = f"http://127.0.0.1:{port}"
        peer = f"http://127.0.0.1:{port + 1}"
        self.log = open(f"{data_dir}.log", "ab")
        self.process = subprocess.Popen(
            [program, "--name=m", f"--data-dir={data_dir}", f"--listen-client-urls={self.url}",
             f"--advertise-client-urls={self.url}", f"--listen-peer-urls={peer}",
             f"--initial-advertise-peer-urls={peer}", f"--initial-cluster=m={peer}", *flags],
            stdout=self.log, stderr=self.log)
        deadline = time.monotonic() + 30
        while True:
            try:
                if request("GET", f"{self.url}/health")[0] == 200:
                    return
            except (OSError, ValueError):
                pass
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.stop(signal.SIGKILL)
                raise SystemExit(f"{program} does not serve; its log is {data_dir}.log")
            time.sleep(0.05)

    def stop(self, how=signal.SIGTERM):
        self.process.send_signal(how)
        self.process.wait(timeout=30)
        self.log.close()


def change(rng, keys):
    """A random change: method, path, parameters."""
    segments = [rng.choice(["a", "b", "c", "d e", "_h"]) for _ in range(rng.randint(1, 3))]
    path = urllib.parse.quote("/".join(segments))
    value = rng.choice(["", "x", "value", "ä\n\"q\"", "v" * 300]) + str(rng.randint(0, 9))
    ttl = {"ttl": rng.choice([1, 100_000, 200_000])} if rng.random() < 0.2 else {}
    previous = {}
    if rng.random() < 0.3:
        previous = rng.choice([
            {"prevExist": "true"}, {"prevExist": "false"}, {"prevValue": value}, {"prevIndex": rng.randint(1, 200)},
            {"prevExist": "true", "refresh": "true"}])
    kind = rng.random()
    if kind < 0.5:
        return "PUT", path, {} if "refresh" in previous else {"value": value}, {**ttl, **previous}
    if kind < 0.6:
        return "PUT", path, {}, {"dir": "true", **ttl, **previous}
    if kind < 0.75:
        return "POST", path, {"value": value}, ttl
    flags = rng.choice([{}, {"dir": "true"}, {"recursive": "true"}, {"prevValue": value}])
    return "DELETE", path, None, flags


def leaves(base, path="/"):
    """The keys below a path, hidden ones too: path -> (value, modified index, seconds left or None)."""
    found = {}

    def walk(node, ttl):
        # etcd leaves out a `ttl` of 0: a key that has expired and is still there is not one that stays.
        own = node.get("ttl", 0) if "expiration" in node else None
        ttl = min((t for t in (own, ttl) if t is not None), default=None)
        for child in node.get("nodes", []):
            walk(child, ttl)
        if not node.get("dir"):
            found[node["key"]] = (node["value"], node["modifiedIndex"], ttl)
        else:
            # Directories do not list what is hidden.
            hidden = node.get("key", "") + "/_h"
            status, answer = request("GET", base + urllib.parse.quote(hidden) + "?recursive=true")
            if status == 200:
                walk(answer["node"], ttl)

    status, answer = request("GET", base + path + "?recursive=true")
    if status == 200:
        walk(answer["node"], None)
    return found


def kept(url):
    """The keys of version 3: path -> (value, mod revision, seconds left or None)."""
    def b64(text):
        return base64.b64encode(text.encode()).decode()

    body = json.dumps({"key": b64(PREFIX + "/"), "range_end": b64(PREFIX + "0")}).encode()
    status, answer = request("POST", f"{url}/v3/kv/range", body=body)
    if status != 200:
        raise SystemExit(f"the range is answered with {status}: {answer}")
    found = {}
    for kv in answer.get("kvs", []):
        ttl = None
        if kv.get("lease", "0") != "0":
            lease = json.dumps({"ID": kv["lease"]}).encode()
            ttl = int(request("POST", f"{url}/v3/lease/timetolive", body=lease)[1]["TTL"])
        key = base64.b64decode(kv["key"]).decode()[len(PREFIX):]
        found[key] = (base64.b64decode(kv.get("value", "")).decode(), int(kv["mod_revision"]), ttl)
    return found


def compare(was, found):
    """What differs, as texts."""
    wrong = []
    for key in sorted(was.keys() | found.keys()):
        if key not in was or key not in found:
            wrong.append(f"{key!r} is only in version {2 if key in was else 3}")
            continue
        (value, _, ttl), (value3, _, ttl3) = was[key], found[key]
        if value != value3:
            wrong.append(f"{key!r}: {value!r} became {value3!r}")
        if (ttl is None) != (ttl3 is None) or ttl is not None and abs(ttl - ttl3) > TTL_SLACK:
            wrong.append(f"{key!r}: {ttl} seconds became {ttl3}")
    by_change = [sorted(keys, key=lambda key: keys[key][1]) for keys in (was, found)]
    if not wrong and by_change[0] != by_change[1]:
        wrong.append(f"the order of changes: {by_change[0]} became {by_change[1]}")
    return wrong


def one_round(options, seed, work):
    rng = random.Random(seed)
    old, new = os.path.join(work, "etcd"), os.path.join(work, "mainstay")
    etcd = Server(options.etcd, old, options.port, "--enable-v2", f"--snapshot-count={rng.choice([20, 50, 100000])}")
    base = etcd.url + "/v2/keys"
    for _ in range(options.changes):
        method, path, form, flags = change(rng, base)
        query = "?" + urllib.parse.urlencode(flags) if flags else ""
        request(method, f"{base}/{path}{query}", form)
    # What lives for a second is gone by now or goes now.
    deadline = time.monotonic() + 20
    while any(ttl is not None and ttl < 1000 for _, _, ttl in leaves(base).values()):
        if time.monotonic() > deadline:
            raise SystemExit("etcd does not expire its keys")
        time.sleep(0.1)
    was = leaves(base)
    etcd.stop(signal.SIGKILL if seed % 2 else signal.SIGTERM)
    done = subprocess.run(
        [options.mainstay, "utl", "import", "--migrate-v2", "--v2-prefix", PREFIX, "--data-dir", old, "--to", new],
        capture_output=True, text=True)
    if done.returncode != 0:
        return was, [f"the import failed: {done.stderr}"]
    member = Server(options.mainstay, new, options.port)
    try:
        status, _ = request("GET", f"{member.url}/version")
        found = kept(member.url)
    finally:
        member.stop()
    return was, compare(was, found) + ([] if status == 200 else [f"/version: {status}"])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--etcd", required=True, help="a program of etcd 3.4 or 3.5")
    parser.add_argument("--mainstay", required=True)
    parser.add_argument("--port", type=int, default=23790, help="this and the next are used")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--changes", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    passed = failed = 0
    for seed in range(options.seed, options.seed + options.rounds):
        work = tempfile.mkdtemp(prefix="v2-migration-")
        was, wrong = one_round(options, seed, work)
        if wrong:
            failed += 1
            print(f"seed {seed}: {len(wrong)} differences; the directories are in {work}")
            for line in wrong[:20]:
                print(f"  {line}")
        else:
            passed += 1
            print(f"seed {seed}: {len(was)} keys are the same")
            shutil.rmtree(work)
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
