#!/usr/bin/env python3
"""Make a CA and certificates for trying TLS out.

    python deploy/certs.py DIR [--host NAME ...] [--client NAME ...] [--revoke NAME ...]

DIR gets `ca.pem` and `ca.key`, `server.pem` and `server.key` for the hosts (default localhost,
127.0.0.1 and ::1), `<client>.pem` and `<client>.key` for each client, and `crl.pem`, which lists
the clients that were revoked. What is there already stays: a second run adds clients, or revokes
some. The keys stand on the disk without a password, the CA's too: this is no CA for a fleet.

Needs the `cryptography` package. The broker takes the files like this:

    [[listeners]]
    tls = { cert = "DIR/server.pem", key = "DIR/server.key", ca = "DIR/ca.pem", crl = "DIR/crl.pem" }
"""  # noqa: E501

from __future__ import annotations

import argparse
import datetime
import ipaddress
import os
import pathlib
import re
import sys

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_HOSTS = ("localhost", "127.0.0.1", "::1")
_DAYS = 365
_PEM = serialization.Encoding.PEM


class Folder:
    """The authority and what it signed, in files."""

    def __init__(self, path: pathlib.Path) -> None:
        self.path = path
        path.mkdir(mode=0o755, parents=True, exist_ok=True)
        self.now = datetime.datetime.now(datetime.UTC)
        if (path / "ca.pem").exists():
            self.ca = x509.load_pem_x509_certificate((path / "ca.pem").read_bytes())
            self.key = read_key(path / "ca.key")
        else:
            self.key = ec.generate_private_key(ec.SECP256R1())
            self.ca = self._sign("FleetMQ trial CA", self.key, is_ca=True)
            self._write("ca", self.ca, self.key)

    def issue(self, name: str, common_name: str, hosts: list[str]) -> bool:
        """Issue a certificate for a server or a client; False if there was one."""
        if (self.path / f"{name}.pem").exists():
            return False
        key = ec.generate_private_key(ec.SECP256R1())
        self._write(name, self._sign(common_name, key, hosts=hosts), key)
        return True

    def write_crl(self, revoked: list[str]) -> None:
        path = self.path / "crl.pem"
        number, serials = 1, {}
        if path.exists():
            old = x509.load_pem_x509_crl(path.read_bytes())
            number = crl_number(old) + 1
            serials = {one.serial_number: one.revocation_date_utc for one in old}
        for name in revoked:
            found = x509.load_pem_x509_certificate((self.path / f"{name}.pem").read_bytes())
            serials.setdefault(found.serial_number, self.now)
        builder = (
            x509.CertificateRevocationListBuilder()
            .issuer_name(self.ca.subject)
            .last_update(self.now)
            .next_update(self.now + datetime.timedelta(days=_DAYS))
            .add_extension(x509.CRLNumber(number), critical=False)  # RFC 5280 asks for both
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key()),
                critical=False,
            )
        )
        for serial, date in serials.items():
            builder = builder.add_revoked_certificate(
                x509.RevokedCertificateBuilder().serial_number(serial).revocation_date(date).build()
            )
        replace(path, builder.sign(self.key, hashes.SHA256()).public_bytes(_PEM), 0o644)

    def _sign(
        self,
        common_name: str,
        key: ec.EllipticCurvePrivateKey,
        *,
        is_ca: bool = False,
        hosts: list[str] | None = None,
    ) -> x509.Certificate:
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(subject if is_ca else self.ca.subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(self.now - datetime.timedelta(minutes=5))
            .not_valid_after(self.now + datetime.timedelta(days=_DAYS * (10 if is_ca else 1)))
            .add_extension(
                x509.BasicConstraints(ca=is_ca, path_length=0 if is_ca else None), critical=True
            )
            .add_extension(
                x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False
            )
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key()),
                critical=False,
            )
            .add_extension(key_usage(is_ca), critical=True)
        )
        if not is_ca:
            usage = ExtendedKeyUsageOID.SERVER_AUTH if hosts else ExtendedKeyUsageOID.CLIENT_AUTH
            builder = builder.add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
        if hosts:
            names = x509.SubjectAlternativeName([general_name(host) for host in hosts])
            builder = builder.add_extension(names, critical=False)
        return builder.sign(self.key, hashes.SHA256())

    def _write(self, name: str, cert: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> None:
        pem = key.private_bytes(
            _PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        replace(self.path / f"{name}.key", pem, 0o600)
        replace(self.path / f"{name}.pem", cert.public_bytes(_PEM), 0o644)


def key_usage(is_ca: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not is_ca,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=is_ca,
        crl_sign=is_ca,
        encipher_only=False,
        decipher_only=False,
    )


def crl_number(crl: x509.CertificateRevocationList) -> int:
    """Return the number of a list; 0 if it has none."""
    try:
        return crl.extensions.get_extension_for_class(x509.CRLNumber).value.crl_number
    except x509.ExtensionNotFound:
        return 0


def general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def read_key(path: pathlib.Path) -> ec.EllipticCurvePrivateKey:
    key = serialization.load_pem_private_key(path.read_bytes(), None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise SystemExit(f"certs: {path} is no key of ours")
    return key


def replace(path: pathlib.Path, data: bytes, mode: int) -> None:
    """Whole or not at all, and readable by nobody else for a moment either."""
    new = path.with_name(f".{path.name}.new")
    new.unlink(missing_ok=True)
    with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(data)
    new.replace(path)


def main() -> int:
    parser = argparse.ArgumentParser(
        allow_abbrev=False, description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("folder", metavar="DIR", type=pathlib.Path)
    parser.add_argument("--host", action="append", help="name or address of the broker")
    parser.add_argument("--client", action="append", default=[], help="a client to sign")
    parser.add_argument("--revoke", action="append", default=[], help="a client to revoke")
    args = parser.parse_args()
    for name in (*args.client, *args.revoke):
        if not re.fullmatch(r"[\w-][\w.-]*", name) or name in ("ca", "server", "crl"):
            parser.error(f"a client is named by letters, digits, . _ and -, not {name!r}")
    folder = Folder(args.folder)
    hosts = args.host or list(_HOSTS)
    made = [name for name in args.client if folder.issue(name, name, [])]
    if folder.issue("server", hosts[0], hosts):
        made.insert(0, "server")
    missing = [name for name in args.revoke if not (args.folder / f"{name}.pem").exists()]
    if missing:
        parser.error(f"there is no {args.folder / missing[0]}.pem to revoke")
    folder.write_crl(args.revoke)
    print(f"{args.folder}: {', '.join(made) or 'nothing'} made; {len(args.revoke)} revoked")
    return 0


if __name__ == "__main__":
    sys.exit(main())
