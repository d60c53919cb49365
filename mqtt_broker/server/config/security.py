"""The tables of the configuration file that say who may come in and what they may do.

    [[auth]]           a way in, in the order they are asked
    [[acl]]            a rule, in the order they count; or where more of them are
    [[roles]]          a role and its users
    [[client_limits]]  how much one client may do: everybody, a role, or a user
    [security]         bans, the audit log, connection rates, hashing

Plain data comes out; files and databases it names are opened in `server.security`.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from mqtt_broker.security.protection.bans import Flapping
from mqtt_broker.security.protection.throttle import ConnectLimits
from mqtt_broker.security.rules.client_limits import ClientLimitRule, ClientLimitRules
from mqtt_broker.security.rules.rule import Rule, RuleError
from mqtt_broker.security.rules.rule_parser import rule_of
from mqtt_broker.server.config.client_limits import KEYS as CLIENT_KEYS
from mqtt_broker.server.config.client_limits import read_limits
from mqtt_broker.server.config.tables import ConfigError, number, rows, typed, whole

TABLES: Final = ("auth", "acl", "roles", "client_limits", "security")
_TYPES: Final[dict[str, tuple[str, ...]]] = {
    "password_file": ("file",),
    "sql": ("database_url", "cache_s"),
    "jwt": (
        "key_file", "username_claim", "roles_claim", "acl_claim", "client_id_claim", "issuer",
        "audience", "leeway_s", "require_expiry",
    ),
    "certificate": ("username_from", "roles"),
    "scram": (),
    "anonymous": (),
}  # fmt: skip
_ACL_KEYS: Final = (
    "permit", "action", "topics", "users", "roles", "clients", "addresses", "anonymous",
)  # fmt: skip
_LIMIT_KEYS: Final = ("user", "role", *CLIENT_KEYS, "connections_max")
_OWN_KEYS: Final = (
    "bans_file", "audit_file", "audit_connects", "remember_passwords_s", "hash_threads",
    "waiting_max", "poll_s", "connections_per_address", "connects_per_s",
    "connects_per_s_per_address", "flapping_connects", "flapping_within_s", "flapping_ban_s",
)  # fmt: skip
SQL_RULES_FROM: Final = 1_000_000_000  # rules of tables come after those of the file
_SOURCES: Final = ("cn", "dns", "email", "uri")


@dataclass(frozen=True, slots=True)
class AuthTable:
    type: str
    name: str
    listeners: frozenset[str] = frozenset()
    values: dict[str, Any] = field(default_factory=dict, repr=False)  # a URL may hold a password


@dataclass(frozen=True, slots=True)
class SecurityConfig:
    """What the file says, all of it."""

    path: str = field(default="", compare=False)
    auth: tuple[AuthTable, ...] = ()
    rules: tuple[Rule, ...] = ()
    rules_url: str = field(default="", repr=False)
    roles: dict[str, frozenset[str]] = field(default_factory=dict)  # by user name
    tiers: ClientLimitRules = field(default_factory=ClientLimitRules)
    limits: ConnectLimits = field(default_factory=ConnectLimits)
    flapping: Flapping = field(default_factory=Flapping)
    bans_file: str = ""
    audit_file: str = ""
    audit_connects: bool = False
    remember_passwords_s: float = 300.0
    hash_threads: int = 0
    waiting_max: int = 20_000
    poll_s: float = 10.0

    @property
    def is_on(self) -> bool:
        return bool(
            self.auth
            or self.has_rules
            or self.bans_file
            or self.audit_file
            or self.audit_connects
            or self.flapping.connects
            or self.tiers != ClientLimitRules()
            or self.limits != ConnectLimits()
        )

    @property
    def has_rules(self) -> bool:
        return bool(self.rules or self.rules_url)

    @property
    def asks(self) -> bool:
        """Whether somebody is asked who they are."""
        return bool(self.auth)


def read_security(table: dict[str, Any], path: str) -> SecurityConfig:
    """From the tables of a file, by name; those that are not there say nothing."""
    auth = _read_auth(table.get("auth", []), path)
    rules, url = _read_rules(table.get("acl", []), path)
    if not auth:
        for rule in rules:
            if rule.users or "%u" in rule.topic:
                raise ConfigError(f"{rule.where}: without [[auth]] nobody proves a user name")
    found = SecurityConfig(
        path=path,
        auth=auth,
        rules=rules,
        rules_url=url,
        roles=_read_roles(table.get("roles", []), path),
        tiers=_read_tiers(table.get("client_limits", []), path),
    )
    return _read_own(found, table.get("security", {}), f"{path}: security")


def check_listeners(found: SecurityConfig, names: Iterable[str]) -> None:
    """A way in at a listener that is not there is a mistake, and may be one that lets people in."""
    known = set(names)
    for table in found.auth:
        if unknown := table.listeners - known:
            raise ConfigError(
                f"{found.path}: auth {table.name}: no listener is named {min(unknown)!r}; "
                f"there are {', '.join(sorted(known))}"
            )


# Ways in.


def _read_auth(found: Any, path: str) -> tuple[AuthTable, ...]:
    tables: list[AuthTable] = []
    for where, row in rows("auth", found, path):
        kind = typed(row, "type", str, "", where)
        if kind not in _TYPES:
            raise ConfigError(f"{where}: type is one of {', '.join(_TYPES)}, not {kind!r}")
        known = ("type", "name", "listeners", *_TYPES[kind])
        _check_keys(row, known, where)
        name = typed(row, "name", str, "", where) or _own_name(kind, tables)
        if any(table.name == name for table in tables):
            raise ConfigError(f"{where}: name {name} is another's")
        values = {key: row[key] for key in _TYPES[kind] if key in row}
        _check_values(kind, values, where)
        listeners = frozenset(texts(row, "listeners", where))
        tables.append(AuthTable(kind, name, listeners, values))
    kinds = {table.type for table in tables}
    if "scram" in kinds and not kinds & {"password_file", "sql"}:
        raise ConfigError(f"{path}: auth: scram needs a password_file or sql that has its keys")
    return tuple(tables)


def _own_name(kind: str, tables: list[AuthTable]) -> str:
    count = sum(table.type == kind for table in tables)
    return f"{kind} {count + 1}" if count else kind


def _check_values(kind: str, values: dict[str, Any], where: str) -> None:
    needed = {"password_file": "file", "sql": "database_url", "jwt": "key_file"}.get(kind)
    if needed is not None and not typed(values, needed, str, "", where):
        raise ConfigError(f"{where}: {kind} needs {needed}")
    for key, value in values.items():
        if key in ("cache_s", "leeway_s"):
            number(values, key, 0.0, where, 0.0, 86_400.0)
        elif key == "require_expiry":
            typed(values, key, bool, True, where)
        elif key == "roles":
            texts(values, key, where)
        elif key == "username_from" and value not in _SOURCES:
            raise ConfigError(f"{where}: username_from is one of {', '.join(_SOURCES)}")
        elif not isinstance(value, str):
            raise ConfigError(f"{where}: {key} is a text")


# Rules.


def _read_rules(found: Any, path: str) -> tuple[tuple[Rule, ...], str]:
    lines = _lines_of("acl", path)
    rules: list[Rule] = []
    url = ""
    tables = list(rows("acl", found, path))
    for place, (where, row) in enumerate(tables):
        if len(lines) == len(tables):
            where = f"{path}:{lines[place]}"
        if "database_url" in row:
            _check_keys(row, ("database_url",), where)
            if url:
                raise ConfigError(f"{where}: rules come from one database")
            url = typed(row, "database_url", str, "", where)
            continue
        if url:
            raise ConfigError(f"{where}: a rule after database_url; those of the file come first")
        _check_keys(row, _ACL_KEYS, where)
        topics = texts(row, "topics", where)
        if not topics:
            raise ConfigError(f"{where}: it needs topics")
        for topic in topics:
            try:
                rule = rule_of(
                    len(rules),
                    permit=typed(row, "permit", str, "", where),
                    action=typed(row, "action", str, "all", where),
                    topic=topic,
                    users=texts(row, "users", where),
                    roles=texts(row, "roles", where),
                    clients=texts(row, "clients", where),
                    addresses=texts(row, "addresses", where),
                    is_anonymous=typed(row, "anonymous", bool, False, where),
                    where=where,
                )
            except RuleError as error:
                raise ConfigError(f"{where}: {error}") from None
            rules.append(rule)
    return tuple(rules), url


def _lines_of(key: str, path: str) -> list[int]:
    """Where the tables begin. As many as there are tables, or the numbers say nothing."""
    if not path:
        return []
    try:
        text = Path(path).read_text()
    except (OSError, UnicodeDecodeError):
        return []
    header = re.compile(rf"\s*\[\[\s*{key}\s*\]\]")
    return [at for at, line in enumerate(text.splitlines(), 1) if header.match(line)]


def _read_roles(found: Any, path: str) -> dict[str, frozenset[str]]:
    by_user: dict[str, set[str]] = {}
    for where, row in rows("roles", found, path):
        _check_keys(row, ("role", "users"), where)
        role = typed(row, "role", str, "", where)
        users = texts(row, "users", where)
        if not role or not users:
            raise ConfigError(f"{where}: it needs role and users")
        for user in users:
            by_user.setdefault(user, set()).add(role)
    return {user: frozenset(roles) for user, roles in by_user.items()}


# Limits.


def _read_tiers(found: Any, path: str) -> ClientLimitRules:
    everybody = ClientLimitRule()
    by_role: dict[str, ClientLimitRule] = {}
    by_user: dict[str, ClientLimitRule] = {}
    is_said = False
    for where, row in rows("client_limits", found, path):
        _check_keys(row, _LIMIT_KEYS, where)
        user, role = typed(row, "user", str, "", where), typed(row, "role", str, "", where)
        limits = ClientLimitRule(
            read_limits(row, where), whole(row, "connections_max", 0, where, 0, 10_000_000)
        )
        if user and role:
            raise ConfigError(f"{where}: it is about a user or a role, not both")
        if user in by_user or role in by_role or (is_said and not user and not role):
            raise ConfigError(f"{where}: limits of {user or role or 'everybody'} stand there twice")
        if user:
            by_user[user] = limits
        elif role:
            by_role[role] = limits
        else:
            everybody, is_said = limits, True
    return ClientLimitRules(everybody, by_role, by_user)


def _read_own(found: SecurityConfig, row: Any, where: str) -> SecurityConfig:
    if not isinstance(row, dict):
        raise ConfigError(f"{where} is written [security], once")
    _check_keys(row, _OWN_KEYS, where)
    return SecurityConfig(
        found.path,
        found.auth,
        found.rules,
        found.rules_url,
        found.roles,
        found.tiers,
        ConnectLimits(
            whole(row, "connections_per_address", 0, where, 0, 10_000_000),
            number(row, "connects_per_s", 0.0, where, 0.0, 1e6),
            number(row, "connects_per_s_per_address", 0.0, where, 0.0, 1e6),
        ),
        Flapping(
            whole(row, "flapping_connects", 0, where, 0, 10_000),
            number(row, "flapping_within_s", 60.0, where, 1.0, 86_400.0),
            number(row, "flapping_ban_s", 300.0, where, 1.0, 31_536_000.0),
        ),
        typed(row, "bans_file", str, "", where),
        typed(row, "audit_file", str, "", where),
        typed(row, "audit_connects", bool, False, where),
        number(row, "remember_passwords_s", 300.0, where, 0.0, 86_400.0),
        whole(row, "hash_threads", 0, where, 0, 64),
        whole(row, "waiting_max", 20_000, where, 1, 1_000_000),
        number(row, "poll_s", 10.0, where, 0.1, 86_400.0),
    )


# Values.


def _check_keys(row: dict[str, Any], known: tuple[str, ...] | list[str], where: str) -> None:
    if unknown := set(row) - set(known):
        key = min(unknown)
        near = difflib.get_close_matches(key, known, 1)
        hint = f"did you mean {near[0]}?" if near else f"it has {', '.join(known)}"
        raise ConfigError(f"{where}: unknown key {key if key.isprintable() else repr(key)}; {hint}")


def texts(row: dict[str, Any], key: str, where: str) -> tuple[str, ...]:
    value = row.get(key, [])
    if not (isinstance(value, list) and all(isinstance(one, str) and one for one in value)):
        raise ConfigError(f"{where}: {key} is a list of texts")
    return tuple(value)
