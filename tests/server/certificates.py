"""Certificates made for a test: an authority, whom it signs, whom it no longer trusts.

    authority = Authority()
    server = authority.issue("localhost", ip="127.0.0.1")
    server.write(folder, "server")          # server.pem, server.key

Keys are ECDSA on P-256: made in a fraction of a millisecond.
"""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

_SIGNS = x509.KeyUsage(
    digital_signature=True, content_commitment=False, key_encipherment=False,
    data_encipherment=False, key_agreement=False, key_cert_sign=True, crl_sign=True,
    encipher_only=False, decipher_only=False,
)  # fmt: skip
_DAY: Final = datetime.timedelta(days=1)
_PEM: Final = serialization.Encoding.PEM


@dataclass(frozen=True)
class Issued:
    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @property
    def pem(self) -> bytes:
        return self.certificate.public_bytes(_PEM)

    @property
    def key_pem(self) -> bytes:
        return self.key.private_bytes(
            _PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )

    def write(self, folder: Path, name: str) -> tuple[str, str]:
        """Both files; their paths."""
        cert, key = folder / f"{name}.pem", folder / f"{name}.key"
        cert.write_bytes(self.pem)
        key.write_bytes(self.key_pem)
        return str(cert), str(key)


def _name(common_name: str) -> x509.Name:
    return x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, "FleetMQ tests"),
            x509.NameAttribute(NameOID.COMMON_NAME, common_name),
        ]
    )


class Authority:
    """Who signs. `of`: somebody with a certificate that does not allow it."""

    def __init__(self, common_name: str = "Test CA", of: Issued | None = None) -> None:
        if of is not None:
            self.key, self._name, self.certificate = of.key, of.certificate.subject, of.certificate
            return
        self.key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name(common_name)
        now = datetime.datetime.now(datetime.UTC)
        self.certificate = (
            x509.CertificateBuilder()
            .subject_name(self._name)
            .issuer_name(self._name)
            .public_key(self.key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - _DAY)
            .not_valid_after(now + 10 * _DAY)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .add_extension(
                x509.SubjectKeyIdentifier.from_public_key(self.key.public_key()), critical=False
            )
            .add_extension(_SIGNS, critical=True)
            .sign(self.key, hashes.SHA256())
        )

    def write(self, folder: Path, name: str = "ca") -> str:
        path = folder / f"{name}.pem"
        path.write_bytes(self.certificate.public_bytes(_PEM))
        return str(path)

    def issue(
        self,
        common_name: str,
        *,
        ip: str = "",
        dns: Sequence[str] = (),
        days: int = 5,
        in_days: int = 0,
        subject: x509.Name | None = None,
        extensions: Sequence[x509.ExtensionType] = (),
    ) -> Issued:
        """Valid for so many days, from the last one or from one to come; one of less than none has
        expired.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        now = datetime.datetime.now(datetime.UTC)
        names: list[x509.GeneralName] = [x509.DNSName(one) for one in dns]
        if ip:
            names.append(x509.IPAddress(ipaddress.ip_address(ip)))
        builder = (
            x509.CertificateBuilder()
            .subject_name(_name(common_name) if subject is None else subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now + (min(0, days) + in_days) * _DAY - _DAY)
            .not_valid_after(now + days * _DAY)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(  # Python 3.13 insists
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key()),
                critical=False,
            )
        )
        if names:
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        for extension in extensions:
            builder = builder.add_extension(extension, critical=False)
        return Issued(builder.sign(self.key, hashes.SHA256()), key)

    def write_crl(self, folder: Path, *revoked: Issued, name: str = "crl", days: int = 5) -> str:
        now = datetime.datetime.now(datetime.UTC)
        builder = (
            x509.CertificateRevocationListBuilder()
            .issuer_name(self._name)
            .last_update(now - 9 * _DAY)
            .next_update(now + days * _DAY)
            .add_extension(x509.CRLNumber(1), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key()),
                critical=False,
            )
        )
        for one in revoked:
            builder = builder.add_revoked_certificate(
                x509.RevokedCertificateBuilder()
                .serial_number(one.certificate.serial_number)
                .revocation_date(now - _DAY)
                .build()
            )
        path = folder / f"{name}.pem"
        path.write_bytes(builder.sign(self.key, hashes.SHA256()).public_bytes(_PEM))
        return str(path)
