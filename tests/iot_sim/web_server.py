"""A server that answers whatever comes in HTTP, as the HTTP port of a broker does."""

from __future__ import annotations

import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class _Refusal(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        self.request.recv(1000)
        self.request.sendall(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n")


@contextmanager
def web_server() -> Iterator[int]:
    """Serve until the block ends; give the port."""
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), _Refusal) as server:
        serving = threading.Thread(target=server.serve_forever, args=(0.01,))
        serving.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            serving.join()
