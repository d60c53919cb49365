"""When certificates end, read from their PEM files."""

from __future__ import annotations

from collections.abc import Iterator

from cryptography import x509


def ends_of(pem: bytes) -> Iterator[float]:
    """Yield the end of each certificate of a file, as Unix time; none of a file that is damaged."""
    try:
        found = x509.load_pem_x509_certificates(pem)
    except ValueError:
        return
    for certificate in found:
        yield certificate.not_valid_after_utc.timestamp()
