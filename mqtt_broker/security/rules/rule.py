"""An authorization rule: the clients it is for, its actions and topic, and allow or deny.

A rule's topic is a Topic Filter in which `%c` stands for the client id and `%u` for the user
name. The client chooses these names, so they may never be more than part of one level:

    an allowing rule is ignored for a name with `+`, `#` or `/` in it, and for one that would make
    the topic begin with `$`
    a denying rule then denies everything from that level on

A rule with `%u` is ignored for clients without a user name, or with an empty one.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from typing import Final

from mqtt_broker.security.rules.identity import Identity
from mqtt_broker.topics.filter_sets import Levels, levels_of
from mqtt_broker.topics.names import filter_problem, split_share

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
_MARKS: Final = ("%c", "%u")
_STREAM: Final = "$stream"


class RuleError(ValueError):
    """A rule is invalid; the text says why in one line."""


@dataclass(frozen=True, slots=True)
class Rule:
    """An authorization rule of the configuration, a table or a token."""

    number: int  # its position: the lowest that applies decides
    is_allowed: bool
    publishes: bool
    subscribes: bool
    topic: str
    users: frozenset[str] = frozenset()  # empty: any
    roles: frozenset[str] = frozenset()
    clients: frozenset[str] = frozenset()
    networks: tuple[Network, ...] = ()
    is_anonymous: bool = False  # only clients without a user name
    where: str = ""  # for the audit log: the file and line, or the table and row

    @property
    def is_template(self) -> bool:
        """Tell whether the topic holds a client id or a user name."""
        return any(mark in self.topic for mark in _MARKS)

    def applies_to(self, identity: Identity) -> bool:
        """Tell whether the rule is for this client, whatever the topic."""
        if self.users and identity.username not in self.users:
            return False
        if self.is_anonymous and identity.username is not None:
            return False
        if self.clients and identity.client_id not in self.clients:
            return False
        if self.roles and not self.roles & identity.roles:
            return False
        if self.networks:
            address = identity.address
            return address is not None and any(address in network for network in self.networks)
        return True

    def levels_for(self, identity: Identity) -> Levels | None:
        """Return the rule's filter for this client; None when the rule is ignored for it."""
        if not self.is_template:
            return levels_of(self.topic)
        found: list[str] = []
        for level in levels_of(self.topic):
            filled = _filled(level, identity)
            if filled is None:
                return None
            if filled != level and not _is_plain_level(filled, is_first=not found):
                return None if self.is_allowed else (*found, "#")
            found.append(filled)
        return tuple(found)

    def describe(self) -> str:
        """Return the rule in words, for `fleetmq acl`."""
        who = [
            f"{name} {', '.join(sorted(map(str, some)))}"
            for name, some in (
                ("user", self.users),
                ("role", self.roles),
                ("client", self.clients),
                ("address", self.networks),
            )
            if some
        ]
        what = "all" if self.publishes and self.subscribes else (
            "publish" if self.publishes else "subscribe"
        )  # fmt: skip
        if self.is_anonymous:
            who.append("without a user name")
        about = f" for {' and '.join(who)}" if who else ""
        return f"{'allow' if self.is_allowed else 'deny'} {what} {self.topic}{about}"


def _filled(level: str, identity: Identity) -> str | None:
    """Put names in place of marks, in one pass, since a name may hold a mark itself."""
    if "%" not in level:
        return level
    out: list[str] = []
    at = 0
    while at < len(level):
        mark = level[at : at + 2]
        if mark in _MARKS:
            name = identity.client_id if mark == "%c" else identity.username
            if not name:
                return None
            out.append(name)
            at += 2
        else:
            out.append(level[at])
            at += 1
    return "".join(out)


def _is_plain_level(level: str, *, is_first: bool) -> bool:
    if any(character in level for character in "+#/\0"):
        return False
    return not (is_first and level.startswith("$"))


def check_topic(text: str) -> None:
    """Raise RuleError for a topic that is invalid in a rule."""
    if split_share(text) is not None:
        raise RuleError(f"invalid topic {text!r}: write the filter alone, without $share/<group>/")
    if problem := filter_problem(text):
        raise RuleError(f"{problem}: {text!r}")
    for level in levels_of(text):
        if any(mark in level for mark in _MARKS) and ("+" in level or "#" in level):
            raise RuleError(
                f"invalid topic {text!r}: %c and %u cannot share a level with a wildcard"
            )


def authorized_filter(text: str) -> Levels:
    """Return the filter that rules decide a subscription by: of `$share/<group>/<filter>` the inner
    filter, of `$stream/<name>/@<from>` the stream.
    """
    shared = split_share(text)
    if shared is not None:
        text = shared[1]
    levels = levels_of(text)
    if levels[0] == _STREAM and len(levels) > 2 and levels[2].startswith("@"):
        return levels[:2]  # the start position is not part of it
    return levels
