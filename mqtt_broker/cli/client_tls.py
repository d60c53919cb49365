"""Options of TLS that the commands of a client share, with the names of mosquitto's clients."""

from __future__ import annotations

import argparse
import ssl
from pathlib import Path
from typing import Final

from mqtt_broker.cli.errors import UsageError
from mqtt_broker.client.blocking import tls_context

_VERSIONS: Final = {"tlsv1.2": ssl.TLSVersion.TLSv1_2, "tlsv1.3": ssl.TLSVersion.TLSv1_3}


def add_tls_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("TLS (each option turns it on)")
    group.add_argument(
        "--cafile", metavar="PATH", help="certificates that are trusted (those of the system)"
    )
    group.add_argument("--capath", metavar="DIR", help="directory of trusted certificates")
    group.add_argument(
        "--tls-use-os-certs", action="store_true", help="trust the certificates of the system"
    )
    group.add_argument("--cert", metavar="PATH", help="certificate of this client")
    group.add_argument("--key", metavar="PATH", help="private key of the certificate")
    group.add_argument(
        "--insecure",
        action="store_true",
        help="accept a certificate that is for another host; who signed it is checked all the same",
    )
    group.add_argument(
        "--tls-alpn", metavar="PROTOCOL", help="protocol to ask for by ALPN, such as mqtt"
    )
    group.add_argument(
        "--tls-version",
        choices=_VERSIONS,
        metavar=f"{{{','.join(_VERSIONS)}}}",
        help="TLS version (the highest that both sides have)",
    )
    group.add_argument("--ciphers", help="ciphers of TLS 1.2, as OpenSSL names them")
    for option in ("--psk", "--psk-identity"):
        group.add_argument(option, help=argparse.SUPPRESS)


def is_tls_wanted(args: argparse.Namespace) -> bool:
    """Tell whether an option of TLS is given. Raises UsageError for a pre-shared key."""
    if args.psk is not None or args.psk_identity is not None:
        raise UsageError(
            "TLS with a pre-shared key is not supported: "
            "use --cert and --key, or a user name and a password over TLS"
        )
    return any(
        (
            *(args.cafile, args.capath, args.tls_use_os_certs, args.cert, args.key),
            *(args.insecure, args.tls_alpn is not None, args.tls_version, args.ciphers),
        )
    )


def context(args: argparse.Namespace) -> ssl.SSLContext:
    """Return the TLS context that the options describe. Raises UsageError."""
    if args.key is not None and args.cert is None:
        raise UsageError("--key needs --cert")
    if args.tls_use_os_certs and (args.cafile or args.capath):
        raise UsageError("--tls-use-os-certs and --cafile or --capath exclude each other")
    for option, path in (("--cafile", args.cafile), ("--cert", args.cert), ("--key", args.key)):
        if path is not None:
            _check_readable(option, path)
    if args.capath is not None and not Path(args.capath).is_dir():
        raise UsageError(f"--capath {args.capath}: there is no such directory")
    if args.tls_alpn is not None and not 0 < len(args.tls_alpn.encode()) < 256:
        raise UsageError("--tls-alpn has 1 to 255 bytes")
    try:
        made = tls_context(
            args.cafile,
            args.cert,
            args.key,
            ca_path=args.capath,
            checks_host=not args.insecure,
        )
    except OSError as error:
        named = ", ".join(
            f"{option} {path}"
            for option, path in (
                *(("--cafile", args.cafile), ("--capath", args.capath)),
                *(("--cert", args.cert), ("--key", args.key)),
            )
            if path is not None
        )
        raise UsageError(f"{named}: {_why(error)}") from None
    if args.tls_version is not None:
        made.minimum_version = made.maximum_version = _VERSIONS[args.tls_version]
    if args.tls_alpn is not None:
        made.set_alpn_protocols([args.tls_alpn])
    if args.ciphers is not None:
        try:
            made.set_ciphers(args.ciphers)
        except ssl.SSLError:
            raise UsageError(f"--ciphers {args.ciphers!r}: OpenSSL knows none of them") from None
    return made


def _check_readable(option: str, path: str) -> None:
    try:
        with Path(path).open("rb"):
            pass
    except OSError as error:
        raise UsageError(f"{option} {path}: {error.strerror}") from None


def _why(error: OSError) -> str:
    if isinstance(error, ssl.SSLError):
        found = (error.reason or "").replace("_", " ").lower()
        return found or "OpenSSL finds no certificate or key in it"
    return error.strerror or str(error)
