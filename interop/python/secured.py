"""python-etcd3 over TLS, as the user alice, who may use the keys below alice/.

secured_clients.py sets the variables ENDPOINT, CACERT, CERT, KEY, USER_NAME, PASSWORD and TOKEN_SECONDS.
"""

import os
import queue
import sys
import time

import etcd3
import etcd3.etcdrpc as rpc
import grpc

HOST, PORT = os.environ["ENDPOINT"].rsplit(":", 1)
USER = os.environ.get("USER_NAME")
TOKEN_SECONDS = int(os.environ.get("TOKEN_SECONDS", "0"))


def connect(user=USER, password=os.environ.get("PASSWORD")):
    return etcd3.client(host=HOST, port=int(PORT), ca_cert=os.environ["CACERT"], cert_cert=os.environ.get("CERT"),
                        cert_key=os.environ.get("KEY"), user=user, password=password, timeout=20)


def refusal(call):
    try:
        call()
    except grpc.RpcError as error:
        return error.code(), error.details()
    except Exception as error:  # the library's own; what it was is in its cause
        return type(error).__name__, str(error.__cause__ or error)
    return None


def keys(client):
    for n in range(100):
        client.put(f"alice/k{n:03}", f"v{n}")
    assert client.get("alice/k042")[0] == b"v42"
    assert [m.key for _, m in client.get_prefix("alice/k")] == [f"alice/k{n:03}".encode() for n in range(100)]
    assert client.delete("alice/k000") and not client.delete("alice/k000")
    assert client.delete_prefix("alice/k").deleted == 99


def large_value(client):
    client.put("alice/large", b"x" * 1_000_000)
    assert len(client.get("alice/large")[0]) == 1_000_000


def transactions(client):
    client.put("alice/t", "1")
    is_one = [client.transactions.value("alice/t") == "1"]
    two, read = [client.transactions.put("alice/t", "2")], [client.transactions.get("alice/t")]
    assert client.transaction(compare=is_one, success=two, failure=read)[0]
    done, answers = client.transaction(compare=is_one, success=two, failure=read)
    assert not done and answers[0][0][0] == b"2"
    assert client.replace("alice/t", "2", "3") and not client.replace("alice/t", "2", "3")


def not_granted(client):
    denied = (grpc.StatusCode.PERMISSION_DENIED, "etcdserver: permission denied")
    assert refusal(lambda: client.put("bob", "x")) == denied, refusal(lambda: client.put("bob", "x"))
    assert refusal(lambda: client.get_range_response("a", "z")) == denied
    assert refusal(lambda: client.transaction([], [client.transactions.put("bob", "x")], [])) == denied


def watches(client):
    events = queue.Queue()
    watch = client.add_watch_callback("alice/w", lambda answer: [events.put(event) for event in answer.events], range_end="alice/x")
    client.put("alice/w", "1")
    client.put("alice/w", "2")
    client.delete("alice/w")
    seen = [events.get(timeout=10) for _ in range(3)]
    assert [event.value for event in seen] == [b"1", b"2", b""], seen
    client.cancel_watch(watch)


def leases(client):
    client = connect()
    lease = client.lease(2)
    client.put("alice/leased", "x", lease)
    for _ in range(4):
        time.sleep(0.6)
        assert lease.refresh()[0].TTL == 2
    assert client.get("alice/leased")[0] == b"x" and lease.keys == [b"alice/leased"]
    lease.revoke()
    assert client.get("alice/leased")[0] is None


def stubs(client):
    """grpcio alone, with the token as metadata where there is one."""
    files = [os.environ.get(name) for name in ["CACERT", "KEY", "CERT"]]
    credentials = grpc.ssl_channel_credentials(*[open(name, "rb").read() if name else None for name in files])
    with grpc.secure_channel(os.environ["ENDPOINT"], credentials) as channel:
        metadata = []
        if USER:
            answer = rpc.AuthStub(channel).Authenticate(rpc.AuthenticateRequest(name=USER, password=os.environ["PASSWORD"]))
            metadata = [("token", answer.token)]
        kv = rpc.KVStub(channel)
        calls = [kv.Put.future(rpc.PutRequest(key=b"alice/s%d" % n, value=b"x"), metadata=metadata) for n in range(500)]
        assert len({call.result().header.revision for call in calls}) == 500
        answer = kv.Range(rpc.RangeRequest(key=b"alice/s", range_end=b"alice/t", count_only=True), metadata=metadata)
        assert answer.count == 500
        if USER:
            for token, code, text in [("nonsense", grpc.StatusCode.UNAUTHENTICATED, "etcdserver: invalid auth token"),
                                      (None, grpc.StatusCode.INVALID_ARGUMENT, "etcdserver: user name is empty")]:
                said = refusal(lambda token=token: kv.Range(rpc.RangeRequest(key=b"alice/s1"),
                                                            metadata=[("token", token)] if token else []))
                assert said == (code, text), said


def wrong_password(_):
    said = refusal(lambda: connect(password="wrong"))
    assert said == (grpc.StatusCode.INVALID_ARGUMENT,
                    "etcdserver: authentication failed, invalid user ID or password"), said


def ended_token(client):
    """This library logs in once: the caller has to do it again."""
    time.sleep(TOKEN_SECONDS)
    said = refusal(lambda: client.put("alice/again", "x"))
    assert said == (grpc.StatusCode.UNAUTHENTICATED, "etcdserver: invalid auth token"), said
    connect().put("alice/again", "x")


def main():
    cases = [keys, large_value, transactions, not_granted, watches, leases, stubs]
    if USER:
        cases += [wrong_password] + ([ended_token] if TOKEN_SECONDS else [])
    passed = failed = 0
    client = connect()
    for case in cases:
        try:
            case(client)
            passed += 1
            print(f"ok      python {case.__name__}")
        except Exception as error:  # a case may fail in any way
            failed += 1
            print(f"FAILED  python {case.__name__}: {error!r}")
    print(f"{passed} passed, {failed} failed")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
