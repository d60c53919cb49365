"""Who a client proved to be: all that rules may ask about it. No secret is part of it."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field
from typing import Final

_LINE_BITS: Final = 64  # of IPv6: what one subscriber has at least, and may come from any part of
Address = ipaddress.IPv4Address | ipaddress.IPv6Address


@dataclass(frozen=True, slots=True)
class Identity:
    client_id: str
    username: str | None = None  # None: it proved nothing
    roles: frozenset[str] = frozenset()
    address: Address | None = None  # None: a unix socket, or a session from the store
    listener: str = ""
    # What its own token says of topics; None: nothing, () for: no topic at all.
    grants: tuple[TokenRule, ...] | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class TokenRule:
    """A rule that a client brought along, in a token that somebody we trust signed."""

    is_allowed: bool
    publishes: bool
    subscribes: bool
    topic: str


def address_of(peer: str) -> Address | None:
    """The address of `host:port` or `[host]:port`; None for what is not on a network."""
    host = peer.rpartition(":")[0].removeprefix("[").removesuffix("]")
    try:
        found = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return None
    # One machine has one address, whichever kind of socket it came to.
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return mapped or found


def line_of(address: Address | None) -> Address | None:
    """What limits of an address count by: of IPv6 its /64, or one line had 2^64 of them."""
    if not isinstance(address, ipaddress.IPv6Address):
        return address
    host_bits = address.max_prefixlen - _LINE_BITS
    return ipaddress.IPv6Address(int(address) >> host_bits << host_bits)
