"""Make rules of the words of a configuration file or a table; RuleError says what is wrong."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from typing import Final

from mqtt_broker.security.rules.rule import Rule, RuleError, check_topic

PERMITS: Final = ("allow", "deny")
ACTIONS: Final = ("publish", "subscribe", "all")


def rule_of(
    number: int,
    *,
    permit: str,
    action: str,
    topic: str,
    users: Iterable[str] = (),
    roles: Iterable[str] = (),
    clients: Iterable[str] = (),
    addresses: Iterable[str] = (),
    is_anonymous: bool = False,
    where: str = "",
) -> Rule:
    """Return the checked rule."""
    if permit not in PERMITS:
        raise RuleError(f"invalid permit {permit!r}: expected {' or '.join(PERMITS)}")
    if action not in ACTIONS:
        raise RuleError(f"invalid action {action!r}: expected one of {', '.join(ACTIONS)}")
    check_topic(topic)
    found = {"users": frozenset(users), "roles": frozenset(roles), "clients": frozenset(clients)}
    for name, values in found.items():
        if "" in values:
            raise RuleError(f"{name} has an empty name")
    if is_anonymous and found["users"]:
        raise RuleError("anonymous excludes users: no client has a user name and none")
    networks = []
    for text in addresses:
        try:
            networks.append(ipaddress.ip_network(text))
        except ValueError as error:
            raise RuleError(f"address: {error}") from None
    return Rule(
        number,
        permit == "allow",
        action != "subscribe",
        action != "publish",
        topic,
        found["users"],
        found["roles"],
        found["clients"],
        tuple(networks),
        is_anonymous,
        where,
    )
