"""Make a certificate for 127.0.0.1 and localhost, and the authority that signs it, for a test."""

from __future__ import annotations

import datetime
import ipaddress
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

_DAY: Final = datetime.timedelta(days=1)
_DAYS: Final = 30


class CertificateFiles(NamedTuple):
    ca: str  # what clients trust
    cert: str
    key: str


def write_certificate(folder: Path) -> CertificateFiles:
    """Write the three files. RuntimeError, in one line, without the package cryptography."""
    try:
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ec
    except ImportError:
        raise RuntimeError(
            "tls=True makes a certificate with the package cryptography, which is not installed: "
            "pip install cryptography, or listen with a certificate of your own (Server)"
        ) from None
    authority_key = ec.generate_private_key(ec.SECP256R1())
    key = ec.generate_private_key(ec.SECP256R1())
    authority = _authority(authority_key)
    pem = serialization.Encoding.PEM
    files = CertificateFiles(*(str(folder / name) for name in ("ca.pem", "cert.pem", "key.pem")))
    Path(files.ca).write_bytes(authority.public_bytes(pem))
    Path(files.cert).write_bytes(_issued(authority, authority_key, key).public_bytes(pem))
    Path(files.key).touch(0o600)
    Path(files.key).write_bytes(
        key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return files


def _authority(key: EllipticCurvePrivateKey) -> x509.Certificate:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes

    name = _name("FleetMQ test authority")
    usage = x509.KeyUsage(
        digital_signature=False, content_commitment=False, key_encipherment=False,
        data_encipherment=False, key_agreement=False, key_cert_sign=True, crl_sign=True,
        encipher_only=False, decipher_only=False,
    )  # fmt: skip
    return (
        _builder(name, name, key)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)  # asked for by VERIFY_X509_STRICT
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )


def _issued(
    authority: x509.Certificate,
    authority_key: EllipticCurvePrivateKey,
    key: EllipticCurvePrivateKey,
) -> x509.Certificate:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes

    names = [
        x509.DNSName("localhost"),
        x509.IPAddress(ipaddress.ip_address("127.0.0.1")),
        x509.IPAddress(ipaddress.ip_address("::1")),
    ]
    issuer_id = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key())
    return (
        _builder(_name("localhost"), authority.subject, key)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(issuer_id, critical=False)
        .sign(authority_key, hashes.SHA256())
    )


def _name(common_name: str) -> x509.Name:
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _builder(
    subject: x509.Name, issuer: x509.Name, key: EllipticCurvePrivateKey
) -> x509.CertificateBuilder:
    from cryptography import x509

    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _DAY)
        .not_valid_after(now + _DAYS * _DAY)
    )
