"""Data that the tests and the pictures show: keys as programs make them, and keys and values that mean harm."""

import json

from clusters import b64


def varint(number):
    out = b""
    while number >= 0x80:
        out += bytes([number & 0x7F | 0x80])
        number >>= 7
    return out + bytes([number])


def field(number, value):
    """A field of a protobuf message: bytes, text or a number."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    data = value if isinstance(value, bytes) else value.encode()
    return varint(number << 3 | 2) + varint(len(data)) + data


def kubernetes(version, kind, name, namespace, body=b""):
    """An object as Kubernetes stores it."""
    metadata = (field(1, name) + field(3, namespace) + field(5, "8d5a7f3e-5a43-4a0e-9a6a-0f6d7e3f0c11") + field(7, 3)
                + field(8, field(1, 1767225600)) + field(11, field(1, "app") + field(2, name)))
    raw = field(1, metadata) + body
    return b"k8s\0" + field(1, field(1, version) + field(2, kind)) + field(2, raw)


POD = kubernetes("v1", "Pod", "web-0", "shop", field(2, field(2, field(1, "web") + field(2, "registry.example/web:1.8"))))

# Sets a global if any of it is executed.
MARKUP = '<img src=x onerror="window.harmed=1">'
SCRIPT = '</script><script>window.harmed=2</script>'
LINK = "javascript:window.harmed=3"
RIGHT_TO_LEFT = "a\u202egpj.exe"

HOSTILE_KEYS = [
    f"/hostile/{MARKUP}", f"/hostile/{SCRIPT}", f"/hostile/{LINK}", f"/hostile/{RIGHT_TO_LEFT}", b"/hostile/\xff\xfe\x00binary", "/hostile/back\\slash",
    "/hostile/ spaces ", "/hostile/new\nline", "/hostile/\u200bzero", "/hostile/שלום עולם", "/hostile/{0}${1}`'\"", "/hostile/" + "long" * 400,
]


def fill_small(member):
    """Some hundreds of keys."""
    for space in ("shop", "kube-system"):
        for number in range(12):
            name = f"web-{number}"
            member.put(f"/registry/pods/{space}/{name}", kubernetes("v1", "Pod", name, space, POD[60:]))
    member.put("/registry/pods/shop/web-0", POD)
    for name in ("default", "kube-system", "shop"):
        member.put(f"/registry/namespaces/{name}", kubernetes("v1", "Namespace", name, ""))
    for number in range(3):
        member.put("/config/app", json.dumps({"replicas": number + 1, "image": "web:1.8", "limits": {"cpu": "500m", "memory": f"{64 << number}Mi"}}))
    member.put("/config/motd", "Maintenance on Sunday.\nNothing to do.\n")
    member.put("/config/flag", "on")
    for number in range(160):
        member.put(f"/service/web/{number:03d}", f"10.0.{number // 100}.{number % 100}:8080")


def fill_hostile(member):
    for key in HOSTILE_KEYS:
        member.put(key, MARKUP + SCRIPT)
    member.put("/hostile/large", "0123456789abcdef" * 65536)
    member.put("/hostile/nul", b"a\0b\r\nc\xff\\x41")
    member.put("/hostile/rtl", RIGHT_TO_LEFT)


def fill_many(member, count, prefix="/many", per_folder=1000, per_transaction=128):
    """`count` keys in folders of `per_folder`, many in a transaction."""
    for start in range(0, count, per_transaction):
        numbers = range(start, min(count, start + per_transaction))
        member.call("kv/txn", {"success": [
            {"request_put": {"key": b64(f"{prefix}/{number // per_folder:05d}/{number % per_folder:04d}"), "value": b64("x" * 32)}} for number in numbers]})
