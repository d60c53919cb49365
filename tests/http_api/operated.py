"""A broker with sockets, and an HTTP server in front of it, for tests of what operators do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from mqtt_broker.http_api.server_interface import ServerInterface
from tests.http_api.brokers import Serving
from tests.server.running import Running


class Operated:
    """The broker, its HTTP server, and short ways to ask it."""

    def __init__(self, broker: Running, http: Serving) -> None:
        self.broker = broker
        self.http = http

    def get(self, path: str, status: int = 200) -> Any:
        found = self.http.get(f"/api/v1{path}")
        assert found.status == status, found
        return found.json()

    def ask(self, method: str, path: str, body: object = None, status: int = 200) -> Any:
        found = self.http.ask(method, f"/api/v1{path}", body)
        assert found.status == status, found
        return found.json()


@contextmanager
def operated(**settings: Any) -> Iterator[Operated]:
    with Running(**settings) as broker, Serving(ServerInterface(broker.server), None) as http:
        yield Operated(broker, http)
    assert http.lines == []
