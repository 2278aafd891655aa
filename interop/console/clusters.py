"""Members and the console's server, each a process of its own that is ended with the test."""

import base64
import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from ports import free_ports  # pylint: disable=wrong-import-position  # It is beside the folder.


def end_cleanly():
    """Lets SIGTERM end the program as an exception does, so that what it started is ended too."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))


def b64(data):
    return base64.b64encode(data if isinstance(data, bytes) else data.encode()).decode()


def wait_for(what, condition, timeout=30):
    deadline = time.monotonic() + timeout
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise RuntimeError(f"{what}: not within {timeout} s")
        time.sleep(0.05)


class Process:
    """A program with its output in a file."""

    def __init__(self, command, log):
        self.command, self.log = command, log
        self.process = None

    def start(self):
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(self.command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def kill(self):
        if self.process:
            self.process.kill()
            self.process.wait()
            self.process = None

    def stop(self):
        """Ends it, by force if it does not by itself."""
        if self.process:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(5)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
            self.process = None


class Member(Process):
    """A member; `call` asks it through its JSON gateway."""

    def __init__(self, program, name, client, peer, everyone, folder, flags, state="new", advertised=None):
        self.name, self.port, self.peer = name, client, peer
        super().__init__(
            [program, "--name", name, "--data-dir", os.path.join(folder, name),
             "--listen-client-urls", f"http://127.0.0.1:{client}", "--advertise-client-urls", f"http://127.0.0.1:{advertised or client}",
             "--listen-peer-urls", f"http://127.0.0.1:{peer}", "--initial-advertise-peer-urls", f"http://127.0.0.1:{peer}",
             "--initial-cluster", everyone, "--initial-cluster-state", state, "--log-level", "error", *flags],
            os.path.join(folder, f"{name}.log"))

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    def call(self, method, body=None, token=None, check=True):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        headers = {"Authorization": token} if token else {}
        try:
            connection.request("POST", f"/v3/{method}", json.dumps(body or {}), headers)
            response = connection.getresponse()
            answer = json.loads(response.read())
        finally:
            connection.close()
        if check and response.status != 200:
            raise RuntimeError(f"{method}: {answer}")
        return answer

    def put(self, key, value, **more):
        return self.call("kv/put", {"key": b64(key), "value": b64(value), **more})

    def get(self, key):
        """The value as bytes, or None."""
        kvs = self.call("kv/range", {"key": b64(key)}).get("kvs")
        return base64.b64decode(kvs[0].get("value", "")) if kvs else None

    def is_ready(self):
        try:
            return "leader" in self.call("maintenance/status")
        except (OSError, http.client.HTTPException, RuntimeError, ValueError):
            return False


class Cluster:
    """Members of one program. With `advertised_by` all of them advertise the client URL of that one."""

    def __init__(self, program, count=1, flags=(), names=None, advertised_by=None):
        self.program, self.flags = program, list(flags)
        self.folder = tempfile.mkdtemp(prefix="console-test-")
        ports = free_ports(2 * count)
        names = names or [f"m{at + 1}" for at in range(count)]
        pairs = [(names[at], ports[2 * at], ports[2 * at + 1]) for at in range(count)]
        advertised = None if advertised_by is None else pairs[advertised_by][1]
        self.everyone = ",".join(f"{name}=http://127.0.0.1:{peer}" for name, _, peer in pairs)
        self.members = [Member(program, name, client, peer, self.everyone, self.folder, self.flags, advertised=advertised) for name, client, peer in pairs]
        for member in self.members:
            member.start()
        for member in self.members:
            wait_for(f"{member.name} with a leader", member.is_ready)

    def __getitem__(self, at):
        return self.members[at]

    @property
    def endpoints(self):
        return ",".join(member.url for member in self.members)

    def leader(self):
        """The member that leads."""
        # While the leadership moves there is none.
        leader = wait_for("a leader", lambda: self.members[0].call("maintenance/status").get("leader"))
        listed = self.members[0].call("cluster/member/list")["members"]
        name = next(each["name"] for each in listed if each["ID"] == leader)
        return next(member for member in self.members if member.name == name)

    def close(self):
        for member in self.members:
            member.stop()
        shutil.rmtree(self.folder, ignore_errors=True)


class Console(Process):
    """The server of the console in front of a cluster."""

    def __init__(self, program, endpoints):
        self.folder = tempfile.mkdtemp(prefix="console-server-")
        [self.port] = free_ports(1)
        super().__init__([program, "console", "--listen", f"http://127.0.0.1:{self.port}", "--endpoints", endpoints],
                         os.path.join(self.folder, "log"))
        self.start()
        wait_for("the console's server", self.is_ready)

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}/"

    def is_ready(self):
        if self.process.poll() is not None:
            with open(self.log, encoding="utf-8") as log:
                raise RuntimeError(f"the console's server ended: {log.read()}")
        try:
            socket.create_connection(("127.0.0.1", self.port), 1).close()
        except OSError:
            return False
        return True

    def close(self):
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)
