"""Authenticate clients by their certificate: one of its names is the user name.

The listener has verified the certificate against its CA; here only its names are read.
"""

from __future__ import annotations

from typing import Final

from mqtt_broker.codec import reasons
from mqtt_broker.core.interfaces.access import ConnectRequest, PeerCertificate
from mqtt_broker.security.authentication.chain import Denied, Outcome, Proof

SOURCES: Final = ("cn", "dns", "email", "uri")


class CertificateMethod:
    """Takes the user name from a verified client certificate."""

    def __init__(
        self, source: str = "cn", *, roles: frozenset[str] = frozenset(), name: str = "certificate"
    ) -> None:
        self.name = name
        self._source = source
        self._roles = roles

    def prove(self, request: ConnectRequest, now: float) -> Outcome:
        certificate = request.certificate
        if certificate is None:
            return None
        username = self._username(certificate)
        if not username:
            return Denied(
                reasons.NOT_AUTHORIZED, f"the certificate needs exactly one {self._source}"
            )
        return Proof(username, self._roles, method=self.name)

    def _username(self, certificate: PeerCertificate) -> str:
        """Return the certificate's name of this kind; empty when it has none or several."""
        if self._source == "cn":
            return certificate.common_name
        kind = {"dns": "DNS:", "email": "email:", "uri": "URI:"}[self._source]
        found = [name.removeprefix(kind) for name in certificate.names if name.startswith(kind)]
        return found[0] if len(found) == 1 else ""
