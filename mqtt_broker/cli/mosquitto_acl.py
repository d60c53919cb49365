"""Read an acl_file of mosquitto into rules of `[[acl]]`.

mosquitto checks the rules of the user first, then the patterns, and in both deny rules before allow
rules. FleetMQ uses the first rule that applies, so the rules are written in that order.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from mqtt_broker.security.rules.rule import RuleError
from mqtt_broker.security.rules.rule_parser import rule_of

_ACTIONS: Final = {"read": "subscribe", "write": "publish", "readwrite": "all", "deny": "all"}
NEEDS_AUTH: Final = "a rule by user name needs a password_file, which proves the name"


@dataclass(frozen=True, slots=True)
class AclRule:
    """A rule as a table of the file, with the line that it comes from."""

    place: str
    is_pattern: bool
    table: dict[str, Any]

    @property
    def order(self) -> tuple[bool, bool]:
        return self.is_pattern, self.table["permit"] == "allow"


def read_acl(
    lines: list[tuple[str, str]],
    *,
    has_users: bool,
    report: Callable[[str, str, str, str], None],
) -> list[AclRule]:
    """Return the rules of the lines, each given with its place, in the order of `[[acl]]`.

    Every line is reported with its place, its text, what it became, and why it became nothing.
    """
    found: list[AclRule] = []
    user: str | None = None
    for place, line in lines:
        word, _, rest = line.strip().partition(" ")
        rest = rest.strip()
        if word == "user" and rest:
            user = rest
            report(place, line, f"users = [{user!r}]", "")
            continue
        if word not in ("topic", "pattern") or not rest:
            report(place, line, "", "neither user, topic nor pattern: mosquitto refuses it too")
            continue
        rule = _rule(place, word == "pattern", rest, user)
        needs_user = "users" in rule.table or "%u" in rule.table["topics"][0]
        problem = NEEDS_AUTH if needs_user and not has_users else _problem(rule)
        if problem:
            report(place, line, "", problem)
            continue
        found.append(rule)
        words = f"{rule.table['permit']} {rule.table['action']} {rule.table['topics'][0]}"
        report(place, line, f"[[acl]] {words}", "")
    return sorted(found, key=lambda rule: rule.order)


def _rule(place: str, is_pattern: bool, rest: str, user: str | None) -> AclRule:
    access, _, topic = rest.partition(" ")
    if access not in _ACTIONS or not topic.strip():
        access, topic = "readwrite", rest
    table: dict[str, Any] = {
        "permit": "deny" if access == "deny" else "allow",
        "action": _ACTIONS[access],
        "topics": [topic.strip()],
    }
    if not is_pattern and user is None:
        table["anonymous"] = True
    elif not is_pattern:
        table["users"] = [user]
    return AclRule(place, is_pattern, table)


def _problem(rule: AclRule) -> str:
    table = rule.table
    topic = table["topics"][0]
    try:
        rule_of(0, permit=table["permit"], action=table["action"], topic=topic)
    except RuleError as error:
        return str(error)
    if not rule.is_pattern and ("%c" in topic or "%u" in topic):
        return "%c and %u stand for names here; in mosquitto only those of a pattern do"
    return ""
