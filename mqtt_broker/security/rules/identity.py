"""The identity of a client: all that rules may ask about it. No secret is part of it."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field
from typing import Final

_NETWORK_BITS: Final = 64  # of IPv6: the least that a provider assigns to one subscriber
Address = ipaddress.IPv4Address | ipaddress.IPv6Address


@dataclass(frozen=True, slots=True)
class Identity:
    """A client as it has authenticated."""

    client_id: str
    username: str | None = None  # None: it has not proven one
    roles: frozenset[str] = frozenset()
    address: Address | None = None  # None: a unix socket, or a session from the store
    listener: str = ""
    # Of its token; None: the token has no rules; (): its rules allow nothing.
    token_rules: tuple[TokenRule, ...] | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class TokenRule:
    """A rule in the signed token of a client."""

    is_allowed: bool
    publishes: bool
    subscribes: bool
    topic: str


def address_of(peer: str) -> Address | None:
    """Return the address of `host:port` or `[host]:port`; None for a unix socket."""
    host = peer.rpartition(":")[0].removeprefix("[").removesuffix("]")
    try:
        found = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return None
    # An IPv4 client has one address, also at a socket for IPv6.
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return mapped or found


def network_of(address: Address | None) -> Address | None:
    """Return what limits by address count: of IPv6 the /64, which one subscriber may use freely."""
    if not isinstance(address, ipaddress.IPv6Address):
        return address
    host_bits = address.max_prefixlen - _NETWORK_BITS
    return ipaddress.IPv6Address(int(address) >> host_bits << host_bits)
