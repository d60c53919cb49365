"""TLS without sockets: certificates and rules as a context, and one connection's records.

`TlsContext` holds the certificate files as they were last read; `TlsLayer` decrypts the bytes from
a socket and encrypts those for it. `process.reload` watches the files; sockets and timing are in
`layered_link`.

The layers work on memory instead of transports: a turn decrypts all input of a socket at once,
encrypts all output for a peer at once, and sends it with one call.
"""

from __future__ import annotations

import contextlib
import ssl
from typing import Any, Final

from mqtt_broker.core.interfaces.access import PeerCertificate
from mqtt_broker.server.config.endpoints import TlsRules
from mqtt_broker.server.config.tables import ConfigError

_VERSIONS: Final = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}
VERSIONS: Final = tuple(_VERSIONS)
_VERIFY: Final = {
    "none": ssl.CERT_NONE,
    "optional": ssl.CERT_OPTIONAL,
    "required": ssl.CERT_REQUIRED,
}
VERIFY: Final = tuple(_VERIFY)
_KINDS: Final = {"IP Address": "IP"}  # of Subject Alternative Names, where the word differs
_SHORT: Final = {  # of a distinguished name. [RFC 4514, 3]
    "commonName": "CN",
    "countryName": "C",
    "localityName": "L",
    "organizationName": "O",
    "organizationalUnitName": "OU",
    "stateOrProvinceName": "ST",
}
_RECORD_BYTES: Final = 16_384
# A memory buffer of OpenSSL never shrinks, so it is fed in portions.
PORTION_BYTES: Final = 65_536


class TlsContext:
    """The current certificates of one listener."""

    def __init__(self, rules: TlsRules, protocol: str, where: str) -> None:
        self.rules = rules
        self._protocol = protocol
        self._where = where
        self.pem: dict[str, bytes] = {}  # the files of `cert` and `ca` as they were read
        self.context = self._read()

    def reload(self) -> None:
        """Read the files again. Open connections stay; if a file is invalid, nothing changes."""
        self.context = self._read()

    def layer(self) -> TlsLayer:
        """Return the layer of one new connection."""
        return TlsLayer(self.context)

    def _read(self) -> ssl.SSLContext:
        rules = self.rules
        pem: dict[str, bytes] = {}
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = _VERSIONS[rules.min_version]
        # Renegotiation would let a client make the server repeat the expensive half of the work.
        context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
        context.options |= ssl.OP_CIPHER_SERVER_PREFERENCE
        if rules.ciphers:
            try:
                context.set_ciphers(rules.ciphers)
            except ssl.SSLError:
                raise self._wrong("ciphers", rules.ciphers, "no cipher of that name") from None
        context.set_alpn_protocols([self._protocol])
        pem["cert"] = self._load_key(context)
        context.verify_mode = _VERIFY[rules.verify]
        if rules.ca:
            self._load_authority(context, "ca", rules.ca)
            with contextlib.suppress(OSError), open(rules.ca, "rb") as file:
                pem["ca"] = file.read()
        if rules.crl:
            self._load_authority(context, "crl", rules.crl)
            if not context.cert_store_stats()["crl"]:
                raise self._wrong("crl", rules.crl, "it has no CRL")
            context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF
        # One ticket to resume with. None where clients have certificates: these are verified at
        # each connect, so that a ticket does not outlive a revoked certificate.
        context.num_tickets = 1 if rules.verify == "none" else 0
        self.pem = pem
        return context

    def _load_key(self, context: ssl.SSLContext) -> bytes:
        """Load certificate and key; return the file of the certificate."""
        cert, key = self.rules.cert, self.rules.key
        found = b""
        for name, path in (("cert", cert), ("key", key)):
            try:
                with open(path, "rb") as file:
                    found = found or file.read()
            except OSError as error:
                raise self._wrong(name, path, error.strerror or str(error)) from None
        asked: list[bool] = []

        def password() -> str:  # otherwise OpenSSL asks at the terminal
            asked.append(True)
            return ""

        try:
            context.load_cert_chain(cert, key, password)
        except (ssl.SSLError, ValueError) as error:
            if asked:
                raise self._wrong("key", key, "the key is encrypted; remove its password") from None
            if getattr(error, "reason", None) == "KEY_VALUES_MISMATCH":
                raise self._wrong("key", key, f"it is not the key of {cert}") from None
            raise self._wrong(
                "cert", cert, f"it or {key} is not a certificate or key in PEM"
            ) from None
        return found

    def _load_authority(self, context: ssl.SSLContext, name: str, path: str) -> None:
        try:
            context.load_verify_locations(path)
        except ssl.SSLError:
            raise self._wrong(name, path, "it is not PEM") from None
        except OSError as error:
            raise self._wrong(name, path, error.strerror or str(error)) from None

    def _wrong(self, key: str, value: str, why: str) -> ConfigError:
        return ConfigError(f"{self._where}: tls.{key}: {value}: {why}")


class TlsLayer:
    """The TLS layer of a connection: converts between records and plain data."""

    __slots__ = ("_incoming", "_outgoing", "_tls", "ended", "is_open")
    held_bytes = 0  # never more than a record

    def __init__(self, context: ssl.SSLContext) -> None:
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self.is_open = False
        self.ended = ""  # why no more comes in

    def receive(self, data: bytes) -> bytes:
        """Return the plain data of all records so far, including those before an invalid one."""
        if self.ended:
            return b""
        incoming = self._incoming
        incoming.write(data)
        found: list[bytes] = []
        read = self._tls.read
        try:
            if not self.is_open:
                self._tls.do_handshake()
                self.is_open = True
            while True:
                piece = read(_RECORD_BYTES)
                if not piece:
                    self.ended = "closed"
                    break
                found.append(piece)
                # Between two records there is nothing to read; the exception that says so would
                # cost 2 us a read.
                if not incoming.pending and not self._tls.pending():
                    break
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:
            self.ended = "closed"
        except (ssl.SSLError, ValueError) as error:
            self.ended = _reason(error)
        return found[0] if len(found) == 1 else b"".join(found)

    def send(self, data: bytes) -> bytes:
        """Return TLS's own output, then the records of this data."""
        if not data:
            return b""
        size = len(data)
        try:
            if size <= _RECORD_BYTES:
                self._tls.write(data)
                return self._outgoing.read()
            return self._send_long(data)
        except ssl.SSLError:  # it failed before; the reading side says so and closes
            return self._outgoing.read()

    def _send_long(self, data: bytes) -> bytes:
        found: list[bytes] = []
        view = memoryview(data)
        at, size = 0, len(data)
        while at < size:
            at += self._tls.write(view[at : at + _RECORD_BYTES])
            if self._outgoing.pending >= PORTION_BYTES:
                found.append(self._outgoing.read())
        found.append(self._outgoing.read())
        return b"".join(found)

    def pending_output(self, *, may_wait: bool) -> bytes:
        """Return TLS's own output: its part of a handshake, a new key, an alert."""
        return self._outgoing.read() if self._outgoing.pending else b""

    def close(self) -> bytes:
        """Return close_notify, without waiting for the peer's."""
        if self.is_open:
            # It waits for the peer's answer, or is broken already.
            with contextlib.suppress(ssl.SSLError, ValueError):
                self._tls.unwrap()
        return self._outgoing.read()

    def certificate(self) -> PeerCertificate | None:
        found: Any = self._tls.getpeercert()
        return read_certificate(found) if found else None

    @property
    def version(self) -> str:
        return self._tls.version() or ""


def read_certificate(found: Any) -> PeerCertificate:
    """Convert Python's form of a certificate that OpenSSL has verified."""
    subject = [pair for pairs in found.get("subject", ()) for pair in pairs]
    issuer = [pair for pairs in found.get("issuer", ()) for pair in pairs]
    common_names = [value for key, value in subject if key == "commonName"]
    return PeerCertificate(
        common_name=common_names[0] if len(common_names) == 1 else "",
        names=tuple(
            f"{_KINDS.get(kind, kind)}:{value}" for kind, value in found.get("subjectAltName", ())
        ),
        serial=found.get("serialNumber", ""),
        issuer=",".join(f"{_SHORT.get(key, key)}={value}" for key, value in issuer),
    )


def _reason(error: Exception) -> str:
    """Return OpenSSL's own words without its file and line."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"certificate: {error.verify_message}"
    reason = getattr(error, "reason", None)
    return f"TLS: {reason or error}".replace("_", " ")
