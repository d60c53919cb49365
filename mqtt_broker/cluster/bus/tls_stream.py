"""TLS over memory, for a client: bytes of the socket in, plain bytes out, and the other way."""

from __future__ import annotations

import ssl
from typing import Final

_READ_BYTES: Final = 65_536


class TlsStream:
    """The TLS of a connection. It raises `ssl.SSLError` when the peer cannot be trusted."""

    __slots__ = ("_incoming", "_outgoing", "_tls", "is_open")

    def __init__(self, context: ssl.SSLContext, host: str) -> None:
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname=host)
        self.is_open = False  # the handshake is done

    def receive(self, data: bytes) -> bytes:
        """Return what the bytes from the socket say."""
        self._incoming.write(data)
        if not self.is_open:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                return b""
            self.is_open = True
        found = []
        try:
            while data := self._tls.read(_READ_BYTES):
                found.append(data)
        except (ssl.SSLWantReadError, ssl.SSLZeroReturnError):
            pass
        return b"".join(found)

    def encrypt(self, data: bytes) -> bytes:
        """Return the bytes for the socket that say this."""
        self._tls.write(data)
        return self._outgoing.read()

    def pending(self) -> bytes:
        """Return bytes for the socket that TLS itself has to send."""
        return self._outgoing.read()
