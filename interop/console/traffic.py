"""Clients of a member, each from an address of its own: the whole of 127.0.0.0/8 leads to this machine."""

import http.client
import json
import socket
import threading
import time


class Client:
    """A connection from an address, over which calls go one after the other."""

    def __init__(self, member, address="127.0.0.1", token=None):
        self.headers = {"Authorization": token} if token else {}
        self.connection = http.client.HTTPConnection("127.0.0.1", member.port, timeout=20, source_address=(address, 0))

    def call(self, method, body):
        self.connection.request("POST", f"/v3/{method}", json.dumps(body), self.headers)
        response = self.connection.getresponse()
        answer = json.loads(response.read())
        if response.status != 200:
            raise RuntimeError(f"{method}: {answer}")
        return answer

    def close(self):
        self.connection.close()


class Traffic(threading.Thread):
    """
    Calls over and over, at most so many a second, until it is closed. `bodies(turn)` is the method and the body of a call. It ends with the
    first call that fails, unless it is `stubborn`.
    """

    def __init__(self, member, address, bodies, rate=100000, token=None, stubborn=False):
        super().__init__(daemon=True)
        self.client = Client(member, address, token)
        self.bodies, self.rate, self.stubborn = bodies, rate, stubborn
        self.done = 0
        self.failure = None
        self.is_over = threading.Event()
        self.start()

    def run(self):
        began = time.monotonic()
        while not self.is_over.is_set():
            try:
                self.client.call(*self.bodies(self.done))
            except (OSError, RuntimeError, http.client.HTTPException) as failure:
                self.failure = failure
                if not (self.stubborn and isinstance(failure, RuntimeError)):
                    return
            self.done += 1
            self.is_over.wait(max(0, began + self.done / self.rate - time.monotonic()))

    def close(self):
        self.is_over.set()
        self.join(10)
        self.client.close()


class DeafWatchers:
    """Watches of an address whose answers are never read, as by a client that hangs."""

    def __init__(self, member, address, create, count=1):
        self.sockets = []
        for _ in range(count):
            connection = socket.socket()
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.bind((address, 0))
            connection.connect(("127.0.0.1", member.port))
            body = json.dumps({"create_request": create}).encode()
            connection.sendall(b"POST /v3/watch HTTP/1.1\r\nHost: member\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
            self.sockets.append(connection)

    def close(self):
        for each in self.sockets:
            each.close()
