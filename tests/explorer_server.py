"""The explorer's server at work in a thread, and the plainest client there is."""

import http.client
import socket
import threading
from contextlib import closing

from anchorwatch.explorer.server import Server
from waiting import GUARD, listens, wait_until


class Held:
    """A server at work, and the plainest client there is."""

    def __init__(self, runs, layer=None, patience=None):
        self.server = Server(runs, layer=layer, patience=patience)
        self.thread = threading.Thread(target=self.server.serve, daemon=True)
        self.thread.start()
        wait_until(lambda: listens(self.server.port), "the start of the server")

    def raw(self, text: bytes) -> tuple[int, bytes]:
        with socket.create_connection(("127.0.0.1", self.server.port), timeout=GUARD) as wire:
            wire.sendall(text)
            held = b""
            while block := wire.recv(1 << 16):
                held += block
        status = int(held.split(b" ", 2)[1]) if held.startswith(b"HTTP") else 0
        return status, held

    def get(self, path, method="GET", **headers):
        with closing(
            http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=GUARD)
        ) as wire:
            wire.request(method, path, headers=headers)
            answer = wire.getresponse()
            return answer.status, answer.read(), dict(answer.getheaders())

    def __call__(self, path="", **more):
        return self.get(f"/{self.server.token}/{path}", **more)
