"""Read headers of the PROXY protocol, versions 1 and 2: a load balancer names the client.

Pure: `read_header` gets all input so far. It is as strict as the specification allows, since its
result is trusted; the listener's rules decide which peers may send a header.
"""

from __future__ import annotations

import ipaddress
from typing import Final, NamedTuple

SIGNATURE: Final = b"\r\n\r\n\x00\r\nQUIT\n"
_V1: Final = b"PROXY "
_V1_UNKNOWN: Final = b"PROXY UNKNOWN "
_V1_BYTES_MAX: Final = 107  # with CR LF. [2.1]
_V2_HEAD_BYTES: Final = 16
# More than any address with TLVs that balancers send needs; the length field would allow 65,535.
V2_BYTES_MAX: Final = 4_096
_LOCAL: Final = 0x20
_PROXY: Final = 0x21
_TCP4: Final = 0x11
_TCP6: Final = 0x21
# The size of a family's addresses; a header must hold them. [2.2]
_ADDRESS_BYTES: Final = {0x0: 0, 0x1: 12, 0x2: 36, 0x3: 216}
_WORDS: Final[dict[bytes, type[ipaddress.IPv4Address | ipaddress.IPv6Address]]] = {
    b"TCP4": ipaddress.IPv4Address,
    b"TCP6": ipaddress.IPv6Address,
}


class ProxyError(Exception):
    """The header is missing or wrong; the text is one line."""


class Header(NamedTuple):
    """A header: its size, and the client's address and port, or None for a health check."""

    size: int
    source: tuple[str, int] | None


def read_header(data: bytes) -> Header | None:
    """Return the header at the start, or None while it is incomplete."""
    if data[: len(SIGNATURE)] == SIGNATURE[: len(data)] and data:
        return _read_v2(data)
    if data[: len(_V1)] == _V1[: len(data)]:
        return _read_v1(data)
    raise ProxyError("no PROXY header")


def _read_v1(data: bytes) -> Header | None:
    end = data.find(b"\r\n", 0, _V1_BYTES_MAX)
    if end < 0:
        is_broken = b"\n" in data or b"\r" in data[:-1]
        if len(data) >= _V1_BYTES_MAX or (is_broken and not data.startswith(_V1_UNKNOWN)):
            raise ProxyError("a PROXY v1 line without its end")
        return None
    words = data[:end].split(b" ")
    if words[1] == b"UNKNOWN":  # what follows is to be ignored. [2.1]
        return Header(end + 2, None)
    if len(words) != 6 or words[1] not in _WORDS:
        raise ProxyError("a wrong PROXY v1 line")
    family = _WORDS[words[1]]
    source = _address(words[2], family)
    _address(words[3], family)
    port = _port(words[4])
    _port(words[5])
    return Header(end + 2, (source, port))


def _address(word: bytes, family: type[ipaddress.IPv4Address | ipaddress.IPv6Address]) -> str:
    try:
        text = word.decode("ascii")
        if "%" in text:  # a zone has no meaning on another machine
            raise ValueError(text)
        return str(family(text))
    except ValueError:
        raise ProxyError("a wrong address in a PROXY v1 line") from None


def _port(word: bytes) -> int:
    """Read digits without a leading zero, up to 65535. [2.1]"""
    is_plain = word.isdigit() and len(word) <= 5 and (word == b"0" or word[0] != ord("0"))
    if not is_plain or int(word) > 65_535:
        raise ProxyError("a wrong port in a PROXY v1 line")
    return int(word)


def _read_v2(data: bytes) -> Header | None:
    if len(data) > 12 and data[12] not in (_LOCAL, _PROXY):
        raise ProxyError("a wrong version or command of PROXY v2")
    if len(data) < _V2_HEAD_BYTES:
        return None
    command, kind = data[12], data[13]
    size = int.from_bytes(data[14:16], "big")
    family = kind >> 4
    if family not in _ADDRESS_BYTES or kind & 0x0F > 2:
        raise ProxyError("a wrong family of PROXY v2")
    if size > V2_BYTES_MAX:
        raise ProxyError(f"a PROXY v2 header of {size} bytes")
    if command == _PROXY and size < _ADDRESS_BYTES[family]:
        raise ProxyError("a PROXY v2 header too short for its addresses")
    end = _V2_HEAD_BYTES + size
    if len(data) < end:
        return None
    if command == _LOCAL or kind not in (_TCP4, _TCP6):  # its own health check, or not TCP
        return Header(end, None)
    if kind == _TCP4:
        source = str(ipaddress.IPv4Address(data[16:20]))
        return Header(end, (source, int.from_bytes(data[24:26], "big")))
    source = str(ipaddress.IPv6Address(data[16:32]))
    return Header(end, (source, int.from_bytes(data[48:50], "big")))
