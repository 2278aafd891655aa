#!/usr/bin/env python3
"""Sends the same requests in JSON to real etcd and to Mainstay and compares what they answer.

usage: gateway_same.py ETCD MAINSTAY [--verbose] [--older]

Both are started here, one member each, without TLS. Compared are the status, the headers that matter and the body byte for byte,
without ids, times and sizes; with --older, for etcd 3.4, what all releases answer alike (COMPAT-143); spaces between tokens are not compared, since Go's protobuf puts them there by chance, one way or the
other for each build. Exit status 1 if anything differs that EXPECTED does not name.
"""

import base64
import http.client
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import time

from ports import free_port

HEADERS = [
    "content-type", "grpc-metadata-content-type", "www-authenticate", "location", "x-content-type-options", "allow",
    "access-control-allow-origin", "access-control-allow-headers", "access-control-allow-methods",
]

# What differs on purpose, by the name of the case: see COMPAT.md.
EXPECTED = {
    "every cluster/member/update ": "COMPAT-142",
    'every cluster/member/update {"key":7,"name":7,"r': "COMPAT-142",
}

# Numbers that differ between two servers.
IDS = re.compile(
    r'"(cluster_id|member_id|raft_term|raftTerm|raftIndex|raftAppliedIndex|leader|ID|memberID|dbSize|dbSizeInUse|'
    r'dbSizeQuota|hash|token|downgradeInfo|version|storageVersion|remaining_bytes|blob|lease|clientURLs|peerURLs|name)":'
    r'("(?:[^"\\]|\\.)*"|\[[^\]]*\]|\{[^}]*\}|[0-9]+)'
)


# Requests that end an etcd of 3.4, or that its gateway reads otherwise.
NOT_OLDER = {
    "range target 9", "range limit float", "range limit e", "range sort unknown", "range sort number unknown", "txn two members",
    "txn member null", "txn list of null", "txn list of number", "txn object for list", "txn unknown target",
    "txn two compare members", "alarm get", "status", "snapshot",
}


def as_newer(status, headers, text):
    """An answer of etcd 3.4 as those of 3.7 are written: there errors have their text twice, and a wrong method is 501."""
    text = re.sub(r'^\{"error":"(?:[^"\\]|\\.)*","message":("(?:[^"\\]|\\.)*"),"code":([0-9]+)\}$', r'{"code":\2,"message":\1}', text)
    headers = {k: v for k, v in headers.items() if k == "grpc-metadata-content-type"}
    # What is not done now was 412.
    return (400 if status == 412 else status), headers, text


def is_same_in_all_releases(answer):
    """What etcd says itself; what its gateway says of JSON and paths differs between releases, and ours are those of 3.7."""
    status, _, text = answer
    return status == 200 and text.startswith("{") or '"message":"etcdserver:' in text


def b64(text):
    return base64.b64encode(text if isinstance(text, bytes) else text.encode()).decode()


def squeeze(body):
    """The body without spaces between tokens."""
    out, in_string, escaped = [], False, False
    for c in body.decode("utf-8", "backslashreplace").replace("\u00a0", " "):
        if in_string:
            out.append(c)
            if escaped:
                escaped = False
            elif c == "\\":
                escaped = True
            elif c == '"':
                in_string = False
            continue
        if c == '"':
            in_string = True
        if c not in " ":
            out.append(c)
    return "".join(out)


class Server:
    def __init__(self, words, directory):
        self.port, peer = free_port(), free_port()
        client, peer = f"http://127.0.0.1:{self.port}", f"http://127.0.0.1:{peer}"
        os.makedirs(directory)
        self.log = open(os.path.join(directory, "log"), "wb")
        self.process = subprocess.Popen(
            [*words, "--name=m", f"--data-dir={directory}/data", f"--listen-client-urls={client}",
             f"--advertise-client-urls={client}", f"--listen-peer-urls={peer}", f"--initial-advertise-peer-urls={peer}",
             f"--initial-cluster=m={peer}", "--bcrypt-cost=4"],
            stdout=self.log, stderr=self.log)
        until = time.time() + 30
        while True:
            try:
                if self.ask("GET", "/health", b"", {})[0] == 200:
                    return
            except OSError:
                pass
            if time.time() > until:
                raise SystemExit(f"{words} does not start; see {directory}/log")
            time.sleep(0.1)

    def ask(self, method, path, body, headers, lines=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        try:
            connection.request(method, path, body=body, headers=headers)
            response = connection.getresponse()
            if lines is None:
                text = response.read()
            else:
                text = b"".join(response.readline() for _ in range(lines))
            return response.status, {k.lower(): v for k, v in response.getheaders()}, text
        except (http.client.HTTPException, socket.timeout) as error:
            return 0, {}, type(error).__name__.encode()
        finally:
            connection.close()

    def stop(self):
        self.process.terminate()
        self.process.wait()


# etcd answers these by two tasks of its own, in any order.
UNORDERED = {"watch progress"}


class Run:
    def __init__(self, servers, verbose, older=False):
        self.servers, self.verbose, self.older = servers, verbose, older
        self.count, self.differences, self.unused = 0, [], set(() if older else EXPECTED)

    def ask(self, name, path, body="{}", method="POST", headers=None, lines=None, substitute=None):
        """One request to both; returns both bodies."""
        if self.older and (name in NOT_OLDER or name.startswith("header ")):
            return [b"", b""]
        bodies, shown = [], []
        for at, server in enumerate(self.servers):
            sent = body if isinstance(body, (bytes, str)) else json.dumps(body)
            if substitute:
                for mark, values in substitute.items():
                    sent = sent.replace(mark, values[at])
            given = dict(headers or {})
            for key in given:
                if isinstance(given[key], (list, tuple)):
                    given[key] = given[key][at]
            sent = sent.encode() if isinstance(sent, str) else sent
            status, got, text = server.ask(method, path, sent, given, lines)
            bodies.append(text)
            kept = {k: v for k, v in got.items() if k in HEADERS}
            if status == 307:
                text = b""
            text = IDS.sub(r'"\1":*', squeeze(text))
            if name in UNORDERED:
                text = "\n".join(sorted(text.splitlines()))
            if self.older:
                status, kept, text = as_newer(status, kept, text)
            # How many leases etcd lists has differed between two runs of etcd itself.
            shown.append((status, kept, re.sub(r'(\{"ID":\*\},?)+', '{leases}', text)))
        self.count += 1
        same = shown[0] == shown[1]
        if self.older and not same and not is_same_in_all_releases(shown[0]):
            return bodies
        if not same and name in EXPECTED:
            self.unused.discard(name)
        elif not same:
            self.differences.append(name)
            print(f"DIFFERS {name}: {method} {path} {str(body)[:300]}")
            for who, what in zip(("etcd    ", "mainstay"), shown):
                print(f"  {who} {what[0]} {what[1]} {what[2][:600]}")
        elif self.verbose:
            print(f"same    {name}: {shown[0][0]} {shown[0][2][:150]}")
        return bodies


def values(bodies, key):
    """The values of a key in both bodies."""
    found = []
    for body in bodies:
        match = re.search(r'"%s":\s*"([^"]*)"' % key, body.decode("utf-8", "replace"))
        found.append(match.group(1) if match else "")
    return found


def requests_of_all_kinds(run):
    ask = run.ask
    k = b64("foo")
    for i in range(3):
        ask(f"put {i}", "/v3/kv/put", {"key": k, "value": b64(f"v{i}"), "prev_kv": True})
    ask("put prevKv", "/v3/kv/put", {"key": k, "value": b64("w"), "prevKv": True})
    ask("put ignoreValue", "/v3/kv/put", {"key": k, "ignoreValue": True})
    ask("put ignore_value and value", "/v3/kv/put", {"key": k, "value": b64("x"), "ignore_value": True})
    ask("put no lease", "/v3/kv/put", {"key": k, "value": b64("x"), "lease": "12345"})
    ask("put empty key", "/v3/kv/put", {"value": b64("x")})
    ask("put large", "/v3/kv/put", {"key": k, "value": b64("x" * 100000)})
    ask("put too large", "/v3/kv/put", {"key": k, "value": b64("x" * 1600000)})
    ask("put over message", "/v3/kv/put", {"key": k, "value": b64("x" * 2200000)})
    for i in range(30):
        ask(f"put many {i}", "/v3/kv/put", {"key": b64(f"many{i:02}"), "value": b64(os.urandom(0) + bytes([i, 255 - i]))})
    for name, more in {
        "one": {}, "limit": {"limit": 3}, "limit text": {"limit": "3"}, "limit float": {"limit": 3.0}, "limit e": None,
        "keys only": {"keys_only": True}, "keysOnly": {"keysOnly": True}, "count": {"count_only": True},
        "descend": {"sort_order": "DESCEND"}, "descend 2": {"sortOrder": 2, "sortTarget": "KEY"},
        "sort version": {"sort_order": "ASCEND", "sort_target": "VERSION"}, "sort mod": {"sort_order": 2, "sort_target": 3},
        "sort unknown": {"sort_order": "SIDEWAYS"}, "sort number unknown": {"sort_order": 9}, "target 9": {"sort_target": 9},
        "revision": {"revision": "3"}, "revision future": {"revision": "100000"}, "revision negative": {"revision": -1},
        "serializable": {"serializable": True}, "min mod": {"min_mod_revision": "5"}, "max mod": {"maxModRevision": 9},
        "min create": {"min_create_revision": 10}, "max create": {"max_create_revision": "11"},
        "unknown field": {"unknown": {"a": [1, {"b": None}], "c": "\u00e9"}}, "null": {"limit": None},
    }.items():
        body = {"key": b64("many"), "range_end": b64("manz"), **(more or {})}
        text = json.dumps(body) if more is not None else '{"key":"bWFueQ==","range_end":"bWFueg==","limit":0.2e1}'
        ask(f"range {name}", "/v3/kv/range", text)
    ask("range all", "/v3/kv/range", {"key": "AA==", "range_end": "AA==", "keys_only": True})
    ask("range beta", "/v3beta/kv/range", {"key": k})
    ask("range alpha", "/v3alpha/kv/range", {"key": k})
    ask("deleterange none", "/v3/kv/deleterange", {"key": b64("none")})
    ask("deleterange prev", "/v3/kv/deleterange", {"key": b64("many0"), "range_end": b64("many1"), "prev_kv": True})
    ask("deleterange empty", "/v3/kv/deleterange", {})
    ask("txn empty", "/v3/kv/txn", {})
    put = {"request_put": {"key": b64("t"), "value": b64("1")}}
    get = {"requestRange": {"key": b64("t")}}
    for name, txn in {
        "create": {"compare": [{"key": b64("t"), "result": "EQUAL", "target": "CREATE", "create_revision": "0"}], "success": [put, get]},
        "version": {"compare": [{"key": b64("t"), "result": "GREATER", "target": "VERSION", "version": 0}], "success": [get], "failure": [put]},
        "mod": {"compare": [{"key": b64("t"), "result": "LESS", "target": "MOD", "modRevision": "1"}], "success": [get], "failure": [{"request_delete_range": {"key": b64("t"), "prev_kv": True}}]},
        "value": {"compare": [{"key": b64("foo"), "result": 3, "target": 3, "value": b64("x")}], "success": [get]},
        "lease": {"compare": [{"key": b64("foo"), "target": "LEASE", "lease": 0}], "success": [get], "failure": [put]},
        "range end": {"compare": [{"key": b64("m"), "range_end": b64("n"), "target": "VERSION", "result": "GREATER", "version": 0}], "success": [{"requestRange": {"key": b64("many"), "rangeEnd": b64("manz"), "limit": 2}}]},
        "nested": {"success": [{"request_txn": {"success": [put, get], "failure": [get]}}]},
        "empty op": {"success": [{}]},
        "duplicate key": {"success": [put, put]},
        "two members": '{"success":[{"request_put":{"key":"YQ=="},"request_range":{"key":"YQ=="}}]}',
        "member null": '{"success":[{"request_put":null,"request_range":{"key":"YQ=="}}]}',
        "list of null": '{"success":[null]}', "list of number": '{"success":[1]}', "object for list": '{"success":{}}',
        "unknown target": {"compare": [{"key": b64("t"), "target": "OTHER"}]},
        "200 ops": {"success": [{"request_range": {"key": b64(f"k{i}")}} for i in range(200)]},
        "two compare members": '{"compare":[{"key":"YQ==","version":1,"value":""}]}',
    }.items():
        ask(f"txn {name}", "/v3/kv/txn", txn)
    ask("compaction", "/v3/kv/compaction", {"revision": "5"})
    ask("compaction again", "/v3/kv/compaction", {"revision": "5", "physical": True})
    ask("compaction future", "/v3/kv/compaction", {"revision": "100000"})
    ask("range compacted", "/v3/kv/range", {"key": k, "revision": 2})

    ask("lease grant", "/v3/lease/grant", {"TTL": 100, "ID": "4711"})
    ask("lease grant random", "/v3/lease/grant", {"TTL": "60"})
    ask("lease grant again", "/v3/lease/grant", {"TTL": 100, "ID": 4711})
    ask("lease grant lower", "/v3/lease/grant", {"ttl": 100})
    ask("lease grant too long", "/v3/lease/grant", {"TTL": "9000000001"})
    ask("lease put", "/v3/kv/put", {"key": b64("leased"), "value": "", "lease": "4711"})
    for prefix in ("/v3/lease", "/v3/kv/lease"):
        ask(f"timetolive {prefix}", f"{prefix}/timetolive", {"ID": 4711, "keys": True})
        ask(f"timetolive none {prefix}", f"{prefix}/timetolive", {"ID": 1})
        ask(f"leases {prefix}", f"{prefix}/leases")
        ask(f"revoke none {prefix}", f"{prefix}/revoke", {"ID": 99})
    ask("keepalive", "/v3/lease/keepalive", {"ID": 4711})
    ask("keepalive none", "/v3/lease/keepalive", {"ID": 1})
    ask("keepalive two", "/v3/lease/keepalive", '{"ID":4711} {"ID":"4711"}')
    ask("keepalive wrong behind", "/v3/lease/keepalive", '{"ID":4711}{x')
    ask("keepalive wrong", "/v3/lease/keepalive", "x")
    ask("keepalive wrong type", "/v3/lease/keepalive", '{"ID":[]}')
    ask("keepalive empty", "/v3/lease/keepalive", "")
    ask("keepalive GET", "/v3/lease/keepalive", method="GET")
    ask("revoke", "/v3/lease/revoke", {"ID": "4711"})

    for name, body, lines in [
        ("create", {"create_request": {"key": b64("w"), "start_revision": "6"}}, 1),
        ("history", {"create_request": {"key": b64("foo"), "range_end": b64("fop"), "start_revision": 7, "prev_kv": True}}, 1),
        ("compacted", {"create_request": {"key": k, "start_revision": 1}}, 2),
        ("filters", {"createRequest": {"key": k, "filters": ["NOPUT", 1], "watch_id": 7}}, 1),
        ("cancel none", '{"cancel_request":{"watch_id":5}}{"create_request":{"key":"Zm9v"}}', 1),
        ("two", '{"create_request":{"key":"Zm9v"}}\n{"create_request":{"key":"YQ==","watch_id":"9"}}', 2),
        ("create and cancel", '{"create_request":{"key":"Zm9v","watch_id":3}}{"cancel_request":{"watch_id":3}}', 2),
        ("wrong behind", '{"create_request":{"key":"Zm9v"}}]', 1),
        ("progress", '{"create_request":{"key":"Zm9v"}}{"progress_request":{}}', 2),
        ("same id", '{"create_request":{"key":"Zm9v","watch_id":3}}{"create_request":{"key":"Zm9v","watch_id":3}}', 2),
    ]:
        ask(f"watch {name}", "/v3/watch", body, lines=lines)

    ask("member list", "/v3/cluster/member/list")
    ask("member list linearizable", "/v3/cluster/member/list", {"linearizable": True})
    ask("member remove none", "/v3/cluster/member/remove", {"ID": "1"})
    ask("member update none", "/v3/cluster/member/update", {"ID": "1", "peerURLs": ["http://127.0.0.1:1"]})
    ask("member promote none", "/v3/cluster/member/promote", {"ID": 18446744073709551615})
    ask("member add bad url", "/v3/cluster/member/add", {"peerURLs": ["x"]})
    ask("member id too large", "/v3/cluster/member/remove", '{"ID":18446744073709551616}')
    ask("member id negative", "/v3/cluster/member/remove", '{"ID":-1}')
    ask("alarm get", "/v3/maintenance/alarm", {"action": "GET", "alarm": "NONE"})
    ask("alarm lower", "/v3/maintenance/alarm", {"action": "get"})
    ask("status", "/v3/maintenance/status")
    ask("defragment", "/v3/maintenance/defragment")
    ask("hashkv", "/v3/maintenance/hashkv", {"revision": 8})
    ask("hashkv future", "/v3/maintenance/hashkv", {"revision": 100000})
    ask("transfer-leadership none", "/v3/maintenance/transfer-leadership", {"targetID": "1"})
    ask("snapshot", "/v3/maintenance/snapshot", lines=1)
    ask("snapshot wrong", "/v3/maintenance/snapshot", "{")

    for path in ("/v3/kv/put/", "/v3/kv", "/v3/", "/v3", "/v3?a=b", "/v3/kv/rangestream", "/v3/none", "/v3beta", "/v3beta/", "/v3alpha/",
                 "/v3/KV/put", "/v3//kv/put", "/v3/kv/%70ut", "/v3/kv/put:x", "/v3/./kv/put", "/v3/kv/../kv/put", "/v3/kv%2Fput"):
        for method in ("POST", "GET"):
            ask(f"path {method} {path}", path, {"key": k}, method=method)
    for method in ("GET", "PUT", "DELETE", "HEAD", "PATCH", "OPTIONS"):
        ask(f"method {method}", "/v3/kv/range", {"key": k}, method=method)
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    ask("form", "/v3/kv/range", {"key": k}, headers=form)
    ask("form override GET", "/v3/kv/range", {"key": k}, headers={**form, "X-HTTP-Method-Override": "GET"})
    ask("override without form", "/v3/kv/range", {"key": k}, headers={"X-HTTP-Method-Override": "GET"})
    ask("get override POST", "/v3/kv/range", {"key": k}, method="GET", headers={"X-HTTP-Method-Override": "POST"})
    for header in ({"Content-Type": "application/json"}, {"Content-Type": "text/plain"}, {"Content-Type": "x"}, {"Accept": "text/html"},
                   {"Accept": "application/json"}, {"Grpc-Timeout": "5S"}, {"Grpc-Timeout": "x"}, {"Grpc-Timeout": "-1S"},
                   {"Grpc-Timeout": "99999999999H"}, {"Grpc-Timeout": "0S"}, {"Grpc-Metadata-Hasleader": "true"}, {"Authorization": "none"},
                   {"Grpc-Metadata-Token": "none"}, {"Grpc-Metadata-X-Bin": "Y!"}, {"Grpc-Metadata-X-Bin": "YQ"}, {"Grpc-Metadata-a!b": "x"},
                   {"Grpc-Metadata-Token": b"\xff"}, {"Authorization": b"\xff"}, {"X-Forwarded-For": b"\xff"}, {"Grpc-Timeout": b"\xff"}, {"Origin": "http://a"}, {"X-Forwarded-For": "1.2.3.4"}, {"Grpc-Metadata-": "x"}):
        ask(f"header {header}", "/v3/kv/range", {"key": k}, headers=header)


def wrong_bodies(run):
    ask = run.ask
    bodies = [
        "", " ", "\n\t ", "null", "true", "false", "12", "-1.5e3", '"x"', "[]", "[{}]", "{", "}", "{}", "{}{}", "{} x", "{}}", "{]", "[}",
        "{a:1}", "{'a':1}", '{"a"}', '{"a":}', '{"a":1,}', '{,"a":1}', '{"a" 1}', '{"a":1 "b":2}', '{"a":1;}', '{"key":"Zm9v"', '{"key":"Zm9v',
        '{"key":"Zm9v"}garbage', '{"key":"Zm9v"} {"key":', "x", "nul", "nulll", "tru", "trux", "truee", "fals", "falsf", "-", "-a", "01", "1.", "1.a", "1e", "1ea",
        "1e+", ".5", "+1", "0x10", "NaN", "Infinity", '{"key":NaN}', "//c", "/*c*/{}", "\ufeff{}", "\\", '"\\x"', '"\\u12"', '"\\u12G4"', '"a\nb"', '"a\x00b"',
        '{"key":"\\u005am9v"}', '{"\\u006bey":"Zm9v"}', '{"key":"Zm9v","key":"YQ=="}', '{"key":"Zm9v","key":null}', '{"key":null,"key":"Zm9v"}',
        '{"range_end":"Zm9v","rangeEnd":"Zm9v"}', '{"Key":"Zm9v"}', '{"KEY":"Zm9v"}', '{"key":1}', '{"key":true}', '{"key":[]}', '{"key":{}}', '{"key":["Zm9v"]}',
        '{"key":"Zm9v","limit":"x"}', '{"key":"Zm9v","limit":""}', '{"key":"Zm9v","limit":" 1"}', '{"key":"Zm9v","limit":"1 "}', '{"key":"Zm9v","limit":"1 2"}',
        '{"key":"Zm9v","limit":"1,2"}', '{"key":"Zm9v","limit":"0x1"}', '{"key":"Zm9v","limit":"1e2"}', '{"key":"Zm9v","limit":"1e2x"}', '{"key":"Zm9v","limit":"\\u0031"}',
        '{"key":"Zm9v","limit":1.5}', '{"key":"Zm9v","limit":1.0}', '{"key":"Zm9v","limit":1e0}', '{"key":"Zm9v","limit":10e-1}', '{"key":"Zm9v","limit":15e-1}',
        '{"key":"Zm9v","limit":1e18}', '{"key":"Zm9v","limit":1e19}', '{"key":"Zm9v","limit":1e99999999999}', '{"key":"Zm9v","limit":0e99999999999}',
        '{"key":"Zm9v","limit":-0}', '{"key":"Zm9v","limit":-0.0}', '{"key":"Zm9v","limit":"-0"}', '{"key":"Zm9v","limit":9223372036854775807}', '{"key":"Zm9v","limit":9223372036854775808}',
        '{"key":"Zm9v","limit":-9223372036854775808}', '{"key":"Zm9v","limit":-9223372036854775809}', '{"key":"Zm9v","limit":99999999999999999999999999}',
        '{"key":"Zm9v","limit":true}', '{"key":"Zm9v","limit":[1]}', '{"key":"Zm9v","limit":{}}', '{"key":"Zm9v","limit":null}',
        '{"key":"Zm9v","limit":' + "9" * 2000 + "}", '{"key":"Zm9v","limit":1' + "0" * 17 + "e0}", '{"key":"Zm9v","limit":0.' + "0" * 50 + "1e51}",
        '{"key":"Zm9v","serializable":1}', '{"key":"Zm9v","serializable":"true"}', '{"key":"Zm9v","serializable":null}', '{"key":"Zm9v","serializable":TRUE}',
        '{"key":"Zm9v","sort_order":true}', '{"key":"Zm9v","sort_order":[]}', '{"key":"Zm9v","sort_order":1.5}', '{"key":"Zm9v","sort_order":"1"}', '{"key":"Zm9v","sort_order":2147483648}',
        '{"key":"Zm9v","sort_order":-1}', '{"key":"Zm9v","sort_order":"none"}', '{"key":"Zm9v","sort_order":1e0}',
        '{"key":"Zm9v","x":"\\ud800"}', '{"key":"Zm9v","x":"\\ud800\\u0041"}', '{"key":"Zm9v","x":"\\udc00\\ud800"}', '{"key":"Zm9v","x":"\\ud83d\\ude00"}', '{"key":"Zm9v","x":"\\ud800xxxxxx"}',
        '{"key":"Zm9v","x":"\\ud800\\n\\n\\n"}', '{"\\ud800\\ud800":1}', '{"key":"\\ud800aaaaaa"}', '{"[ext]":1,"key":"Zm9v"}', '{"@type":"x","key":"Zm9v"}', '{"":1,"key":"Zm9v"}',
        '\n\n {"key"\n:\n 5}', '{"\u00e9\u00e9":1,"key":5}', '{"key":\t5}', '{\r\n"key":5}', '  {"key":5}', '{"key":"Zm9v","x":{"y":[1,2,{"z":"\\ud800"}]}}',
        '{"key":"Zm9v","x":' + "[" * 500 + "]" * 500 + "}", "[" * 10001, '{"x":' * 10001, '{"x":' + "[" * 9000 + "]" * 9000 + ',"key":"Zm9v"}',
    ]
    for i, body in enumerate(bodies):
        ask(f"body {i} {body[:40]!r}", "/v3/kv/range", body)
    for text in ("YQ", "YQ=", "YQ==", "YQ===", "Y", "YR==", "YR", "+/+/", "-_-_", "+_+_", "=", "==", "====", "Zm9v=", "Zm 9v", "Zm\\n9v", "Zm9v\\r\\n", "Zm9v!", "\u00e9", "Zm9vYQ==YQ==",
                 "Z\\u006d9v", "YWI", "YWI=", "YW-_", "YW-", "YW+", "A" * 1001, "*"):
        ask(f"base64 {text[:30]!r}", "/v3/kv/range", '{"key":"' + text + '","limit":1}')
    for raw in (b'{"key":"\xff"}', b'{"x":"\xff","key":"Zm9v"}', b'{"\xff":1,"key":5}', b'{"x":"\xc3\xa9","key":"Zm9v"}', b"\xff", b'{"x":"\xed\xa0\x80"}', b'{"x":"a\xe2\x82"}', b"\x00", b'{"\x7f":1,"key":"Zm9v"}',
                b'{"x":"\xff\\u12"}', b'{"key":"Zm9v"}\xff', b"\x80", b"\xa0", b"\xad", b"{\x1f}", b'{"x":"\x1f"}', b'"\\\xff"', b"'", b'{"a":\x27'):
        ask(f"raw {raw!r}", "/v3/kv/range", raw)
    for text in ("a\\u0000b", "<&>\\u2028", "\\\\\\\"", "\u00e9\u4e2d\U0001f600", "\\t\\n\\r\\b\\f\\u0001\\u007f", "\\/"):
        ask(f"text {text!r}", "/v3/auth/role/get", '{"role":"' + text + '"}')
        ask(f"text kept {text!r}", "/v3/auth/role/add", '{"name":"' + text + '"}')
    ask("texts", "/v3/auth/role/list")
    for text in ("a\\u0000b", "<&>\\u2028", "\\\\\\\"", "\u00e9\u4e2d\U0001f600", "\\t\\n\\r\\b\\f\\u0001\\u007f", "\\/"):
        ask(f"text gone {text!r}", "/v3/auth/role/delete", '{"role":"' + text + '"}')
    every = [line.split('"')[1] for line in PATHS.splitlines() if '"' in line]
    for path in every:
        if path in ("auth/enable", "auth/disable", "maintenance/defragment"):
            continue
        for body in ("", "x", "[]", '{"ID":{}}', '{"key":7,"name":7,"role":7,"user":7}'):
            if body == "" and path in ("watch", "maintenance/snapshot", "maintenance/hash", "maintenance/downgrade", "lock/lock", "election/campaign", "election/observe"):
                continue
            if path in ("watch",):
                continue
            if path == "maintenance/snapshot" and body.startswith("{"):
                continue
            if path.startswith(("lock/", "election/")) and not body.startswith(("x", "[")):
                continue
            if path in ("maintenance/hash", "cluster/member/list", "maintenance/downgrade", "election/observe") and body.startswith("{"):
                continue
            ask(f"every {path} {body[:20]}", f"/v3/{path}", body)


def users(run):
    ask = run.ask
    ask("auth status", "/v3/auth/status")
    ask("user add root", "/v3/auth/user/add", {"name": "root", "password": "r"})
    ask("user add again", "/v3/auth/user/add", {"name": "root", "password": "r"})
    ask("user add empty", "/v3/auth/user/add", {})
    ask("user add no password", "/v3/auth/user/add", {"name": "n", "options": {"no_password": True}})
    ask("user add bob", "/v3/auth/user/add", {"name": "bob", "password": "b"})
    ask("enable too early", "/v3/auth/enable")
    ask("role add root", "/v3/auth/role/add", {"name": "root"})
    ask("role add", "/v3/auth/role/add", {"name": "r"})
    ask("role add again", "/v3/auth/role/add", {"name": "r"})
    ask("role grant", "/v3/auth/role/grant", {"name": "r", "perm": {"permType": "READWRITE", "key": b64("a"), "range_end": b64("c")}})
    ask("role grant 0", "/v3/auth/role/grant", {"name": "r", "perm": {"permType": 0, "key": b64("x")}})
    ask("role grant none", "/v3/auth/role/grant", {"name": "none", "perm": {"key": b64("x")}})
    ask("role grant no perm", "/v3/auth/role/grant", {"name": "r"})
    ask("role get", "/v3/auth/role/get", {"role": "r"})
    ask("role revoke", "/v3/auth/role/revoke", {"role": "r", "key": b64("x")})
    ask("user grant root", "/v3/auth/user/grant", {"user": "root", "role": "root"})
    ask("user grant", "/v3/auth/user/grant", {"user": "bob", "role": "r"})
    ask("user get", "/v3/auth/user/get", {"name": "bob"})
    ask("user list", "/v3/auth/user/list")
    ask("authenticate early", "/v3/auth/authenticate", {"name": "bob", "password": "b"})
    ask("enable", "/v3/auth/enable")
    ask("status on", "/v3/auth/status")
    root = values(ask("authenticate root", "/v3/auth/authenticate", {"name": "root", "password": "r"}), "token")
    bob = values(ask("authenticate bob", "/v3/auth/authenticate", {"name": "bob", "password": "b"}), "token")
    ask("authenticate wrong", "/v3/auth/authenticate", {"name": "bob", "password": "x"})
    ask("authenticate none", "/v3/auth/authenticate", {"name": "nobody", "password": "x"})
    ask("authenticate empty", "/v3/auth/authenticate", {})
    for name, header in (("nobody", {}), ("bob", {"Authorization": bob}), ("root", {"Authorization": root}), ("wrong", {"Authorization": "x.1"}),
                         ("bearer", {"Authorization": [f"Bearer {token}" for token in bob]}), ("metadata", {"Grpc-Metadata-Token": bob}),
                         ("metadata authorization", {"Grpc-Metadata-Authorization": bob}), ("accept", {"Authorization": bob, "Accept": "*/*"})):
        for path, body in (("kv/put", {"key": b64("ab"), "value": b64("1")}), ("kv/put", {"key": b64("zz")}), ("kv/range", {"key": b64("ab")}),
                           ("kv/range", {"key": b64("zz")}), ("kv/deleterange", {"key": b64("zz")}), ("kv/txn", {"success": [{"request_range": {"key": b64("zz")}}]}),
                           ("auth/user/list", {}), ("auth/user/get", {"name": "bob"}), ("auth/role/get", {"role": "r"}), ("cluster/member/list", {}),
                           ("maintenance/status", {}), ("maintenance/alarm", {}), ("lease/grant", {"TTL": 50}), ("lease/leases", {}), ("auth/status", {}), ("lease/keepalive", {"ID": 1}),
                           ("kv/compaction", {"revision": 6}), ("maintenance/hashkv", {})):
            ask(f"as {name} {path} {body}", f"/v3/{path}", body, headers=header)
        ask(f"as {name} watch", "/v3/watch", {"create_request": {"key": b64("ab")}}, headers=header, lines=1)
        ask(f"as {name} watch denied", "/v3/watch", {"create_request": {"key": b64("zz")}}, headers=header, lines=1)
    ask("disable bob", "/v3/auth/disable", headers={"Authorization": bob})
    ask("changepw", "/v3/auth/user/changepw", {"name": "bob", "password": "c"}, headers={"Authorization": root})
    ask("disable", "/v3/auth/disable", headers={"Authorization": root})
    ask("user revoke", "/v3/auth/user/revoke", {"name": "bob", "role": "r"})
    ask("user delete", "/v3/auth/user/delete", {"name": "bob"})
    ask("role delete", "/v3/auth/role/delete", {"role": "r"})


PATHS = open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../crates/gateway/src/routes.rs")).read()
PATHS = PATHS[PATHS.index("pub static PATHS"):PATHS.index("];")]
PATHS = "\n".join(line for line in PATHS.splitlines() if line.startswith('    ("'))


def main():
    words = [word for word in sys.argv[1:] if not word.startswith("--")]
    if len(words) != 2:
        raise SystemExit(__doc__)
    with tempfile.TemporaryDirectory(prefix="gateway-same-") as directory:
        servers = [Server([words[0]], f"{directory}/etcd")]
        try:
            servers.append(Server([words[1]], f"{directory}/mainstay"))
            run = Run(servers, "--verbose" in sys.argv, "--older" in sys.argv)
            requests_of_all_kinds(run)
            if not run.older:
                wrong_bodies(run)
                users(run)
        finally:
            for server in servers:
                server.stop()
    for name in sorted(run.unused):
        print(f"EXPECTED names a difference that is none: {name}")
    print(f"{run.count} requests, {len(run.differences)} differences, {len(EXPECTED)} expected")
    sys.exit(1 if run.differences or run.unused else 0)


main()
