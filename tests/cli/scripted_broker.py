"""A broker whose every answer is written down: a thread that serves one connection at a time."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any, Final, Self

from mqtt_broker.codec.decode import Decoder
from mqtt_broker.codec.errors import Violation
from mqtt_broker.codec.packets import Connect, Packet
from tests.server.running import PATIENCE_S

HOST: Final = "127.0.0.1"


class Link:
    """The broker's end of a connection."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._decoder = Decoder()
        self._packets: list[Packet] = []

    def read(self, kind: type[Any]) -> Any:
        """Return the next packet of this kind; others are skipped."""
        while True:
            while self._packets:
                packet = self._packets.pop(0)
                if isinstance(packet, kind):
                    return packet
            data = self._socket.recv(65_536)
            if not data:
                raise EOFError
            for found in self._decoder.feed(data):
                assert not isinstance(found, Violation), found
                self._packets.append(found)

    def send(self, *packets: bytes) -> None:
        self._socket.sendall(b"".join(packets))


class ScriptedBroker:
    """`with ScriptedBroker(first, second) as broker:` plays one script for each connection."""

    def __init__(self, *scripts: Callable[[Link, Connect], None]) -> None:
        self._scripts = scripts
        self._listener = socket.create_server((HOST, 0))
        self._listener.settimeout(PATIENCE_S)
        self.port: int = self._listener.getsockname()[1]
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._thread.join(PATIENCE_S)
        if self._error is not None and error is None:
            raise self._error

    def _run(self) -> None:
        try:
            for number, script in enumerate(self._scripts, 1):
                sock, _ = self._listener.accept()
                with sock:
                    sock.settimeout(PATIENCE_S)
                    link = Link(sock)
                    if number == len(self._scripts):
                        self._listener.close()  # nobody comes after the last
                    script(link, link.read(Connect))
        except BaseException as error:
            self._error = error
