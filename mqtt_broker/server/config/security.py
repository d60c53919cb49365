"""The tables of the configuration file that authenticate and authorize clients.

    [[auth]]           a method of authentication; methods are tried in order
    [[acl]]            a rule, of which the first that applies decides; or a database of more rules
    [[roles]]          a role and its users
    [[client_limits]]  limits of one client: for everybody, a role, or a user
    [security]         bans, the audit log, connection rates, hashing

The result is plain data; `services.security` opens the files and databases that it names.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Final

from mqtt_broker.security.files.errors import FileError
from mqtt_broker.security.protection.bans import Flapping
from mqtt_broker.security.protection.throttle import ConnectLimits
from mqtt_broker.security.rules.client_limits import ClientLimitRule, ClientLimitRules
from mqtt_broker.security.rules.rule import Rule, RuleError
from mqtt_broker.security.rules.rule_parser import rule_of
from mqtt_broker.server.config.client_limits import KEYS as CLIENT_KEYS
from mqtt_broker.server.config.client_limits import read_limits
from mqtt_broker.server.config.located import LocatedTable, place_of
from mqtt_broker.server.config.tables import ConfigError, Table, rows, tables

TABLES: Final = ("auth", "acl", "roles", "client_limits", "security")
TYPES: Final[dict[str, tuple[str, ...]]] = {
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
ACL_KEYS: Final = (
    "permit", "action", "topics", "users", "roles", "clients", "addresses", "anonymous",
)  # fmt: skip
_LIMIT_KEYS: Final = ("user", "role", *CLIENT_KEYS, "connections_max")
OWN_KEYS: Final = (
    "bans_file", "audit_file", "audit_connects", "remember_passwords_s", "hash_threads",
    "waiting_max", "poll_s", "connections_per_address", "connects_per_s",
    "connects_per_s_per_address", "flapping_connects", "flapping_within_s", "flapping_ban_s",
)  # fmt: skip
_OPEN_WITHOUT: Final = {
    "auth": "nobody has to log in",
    "acl": "everybody may publish and subscribe everything",
}
SQL_RULES_FROM: Final = 1_000_000_000  # rules of tables come after those of the file
_SOURCES: Final = ("cn", "dns", "email", "uri")


@dataclass(frozen=True, slots=True)
class AuthTable:
    """An `[[auth]]` table."""

    type: str
    name: str
    listeners: frozenset[str] = frozenset()
    values: dict[str, Any] = field(default_factory=dict, repr=False)  # a URL may hold a password
    places: dict[str, str] = field(default_factory=dict, compare=False, repr=False)

    @contextmanager
    def place_errors(self, key: str) -> Iterator[None]:
        """Prefix an error with the key that names the file or database, and its line."""
        where = f"{self.places.get(key, f'auth {self.name}')}: {key}"
        try:
            yield
        except FileError as error:
            raise ConfigError(f"{where}: {error}") from None
        except OSError as error:
            raise ConfigError(f"{where}: {error.filename}: {error.strerror}") from None


@dataclass(frozen=True, slots=True)
class SecurityConfig:
    """All security tables of a file."""

    path: str = field(default="", compare=False)
    auth: tuple[AuthTable, ...] = ()
    rules: tuple[Rule, ...] = ()
    rules_url: str = field(default="", repr=False)
    rules_url_place: str = field(default="", compare=False)
    roles: dict[str, frozenset[str]] = field(default_factory=dict)  # by user name
    client_limits: ClientLimitRules = field(default_factory=ClientLimitRules)
    connect_limits: ConnectLimits = field(default_factory=ConnectLimits)
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
        """Tell whether the broker needs a security service."""
        return bool(
            self.auth
            or self.has_rules
            or self.bans_file
            or self.audit_file
            or self.audit_connects
            or self.flapping.connects
            or self.client_limits != ClientLimitRules()
            or self.connect_limits != ConnectLimits()
        )

    @property
    def has_rules(self) -> bool:
        """Tell whether topics need a rule that allows them."""
        return bool(self.rules or self.rules_url)

    @property
    def has_auth(self) -> bool:
        """Tell whether clients have to authenticate."""
        return bool(self.auth)


def read_security(table: dict[str, Any], path: str) -> SecurityConfig:
    """Read the security tables of a file; any may be missing."""
    for key, meaning in _OPEN_WITHOUT.items():
        if table.get(key) == []:
            place = _prefix(place_of(table, key, path))
            raise ConfigError(
                f"{place}{key} is an empty list, and without [[{key}]] {meaning}; "
                "write at least one, or leave the key out"
            )
    auth = _read_auth(table.get("auth", []), path)
    rules, url, url_place = _read_rules(table.get("acl", []), path)
    if not auth:
        for rule in rules:
            if rule.users or "%u" in rule.topic:
                raise ConfigError(
                    f"{rule.where}: a rule by user name needs [[auth]], which proves it"
                )
    found = SecurityConfig(
        path=path,
        auth=auth,
        rules=rules,
        rules_url=url,
        rules_url_place=url_place,
        roles=_read_roles(table.get("roles", []), path),
        client_limits=_read_client_limits(table.get("client_limits", []), path),
    )
    return _read_own(found, table.get("security", {}), f"{_prefix(path)}security")


def _prefix(path: str) -> str:
    return f"{path}: " if path else ""  # a program's configuration has no path


def check_listeners(found: SecurityConfig, names: Iterable[str]) -> None:
    """Raise ConfigError for a method at a listener that does not exist."""
    known = set(names)
    for table in found.auth:
        if unknown := table.listeners - known:
            raise ConfigError(
                f"{_prefix(found.path)}auth {table.name}: no listener is named {min(unknown)!r}; "
                f"there are {', '.join(sorted(known))}"
            )


# Methods of authentication.


def _read_auth(found: Any, path: str) -> tuple[AuthTable, ...]:
    methods: list[AuthTable] = []
    for where, row in rows("auth", found, path):
        kind = Table(row, where, row).choice("type", TYPES)  # it decides which keys are allowed
        table = Table(row, where, ("type", "name", "listeners", *TYPES[kind]))
        name = table.text("name", "") or _own_name(kind, methods)
        if any(method.name == name for method in methods):
            raise table.error(f"name {name} is used twice")
        _check_values(kind, table)
        values = {key: row[key] for key in TYPES[kind] if key in row}
        places = {key: table.place(key) for key in values}
        listeners = frozenset(table.texts("listeners"))
        methods.append(AuthTable(kind, name, listeners, values, places))
    kinds = {method.type for method in methods}
    if "scram" in kinds and not kinds & {"password_file", "sql"}:
        raise ConfigError(
            f"{_prefix(path)}auth: scram needs a password_file or sql that has its keys"
        )
    return tuple(methods)


def _own_name(kind: str, methods: list[AuthTable]) -> str:
    count = sum(method.type == kind for method in methods)
    return f"{kind} {count + 1}" if count else kind


def _check_values(kind: str, table: Table) -> None:
    needed = {"password_file": "file", "sql": "database_url", "jwt": "key_file"}.get(kind)
    if needed is not None and not table.text(needed, ""):
        raise table.error(f"{kind} needs {needed}")
    for key in TYPES[kind]:
        if key in ("cache_s", "leeway_s"):
            table.number(key, 0.0, 0.0, 86_400.0)
        elif key == "require_expiry":
            table.flag(key, True)
        elif key == "roles":
            table.texts(key)
        elif key == "username_from":
            table.choice(key, _SOURCES, "cn")
        else:
            table.text(key, "")


# Rules.


def _read_rules(found: Any, path: str) -> tuple[tuple[Rule, ...], str, str]:
    """Return the rules, the URL of the database with more rules, and the URL's line."""
    rules: list[Rule] = []
    url = url_place = ""
    for where, row in rows("acl", found, path):
        if "database_url" in row:
            table = Table(row, where, ("database_url",))
            if url:
                raise table.error("database_url is given twice; rules come from one database")
            url, url_place = table.text("database_url"), table.place("database_url")
            continue
        if url:
            raise Table(row, where, row).error(
                "a rule after database_url; move it before that table"
            )
        rules += _rules_of(Table(row, where, ACL_KEYS), len(rules))
    return tuple(rules), url, url_place


def _rules_of(table: Table, first: int) -> list[Rule]:
    """Return a rule for each topic of a table; `first` is the position of the first."""
    topics = table.texts("topics")
    if not topics:
        raise table.error("it needs topics")
    found = []
    row = table.data
    where = f"{row.file}:{row.line}" if isinstance(row, LocatedTable) else table.where
    for place, topic in enumerate(topics, first):
        try:
            rule = rule_of(
                place,
                permit=table.text("permit", ""),
                action=table.text("action", "all"),
                topic=topic,
                users=table.texts("users"),
                roles=table.texts("roles"),
                clients=table.texts("clients"),
                addresses=table.texts("addresses"),
                is_anonymous=table.flag("anonymous", False),
                where=where,
            )
        except RuleError as error:
            raise table.error(str(error)) from None
        found.append(rule)
    return found


def _read_roles(found: Any, path: str) -> dict[str, frozenset[str]]:
    by_user: dict[str, set[str]] = {}
    for table in tables("roles", found, path, ("role", "users")):
        role = table.text("role", "")
        users = table.texts("users")
        if not role or not users:
            raise table.error("it needs role and users")
        for user in users:
            by_user.setdefault(user, set()).add(role)
    return {user: frozenset(roles) for user, roles in by_user.items()}


# Limits.


def _read_client_limits(found: Any, path: str) -> ClientLimitRules:
    everybody: ClientLimitRule | None = None
    by_role: dict[str, ClientLimitRule] = {}
    by_user: dict[str, ClientLimitRule] = {}
    for table in tables("client_limits", found, path, _LIMIT_KEYS):
        user, role = table.text("user", ""), table.text("role", "")
        rule = ClientLimitRule(read_limits(table), table.whole("connections_max", 0, 0, 10_000_000))
        if user and role:
            raise table.error("it has user or role, not both")
        is_repeated = everybody is not None and not user and not role
        if user in by_user or role in by_role or is_repeated:
            raise table.error(f"limits of {user or role or 'everybody'} are given twice")
        if user:
            by_user[user] = rule
        elif role:
            by_role[role] = rule
        else:
            everybody = rule
    return ClientLimitRules(everybody or ClientLimitRule(), by_role, by_user)


def _read_own(found: SecurityConfig, row: Any, where: str) -> SecurityConfig:
    if not isinstance(row, dict):
        raise ConfigError(f"{where} must be written [security], and only once")
    table = Table(row, where, OWN_KEYS)
    return replace(
        found,
        connect_limits=ConnectLimits(
            table.whole("connections_per_address", 0, 0, 10_000_000),
            table.number("connects_per_s", 0.0, 0.0, 1e6),
            table.number("connects_per_s_per_address", 0.0, 0.0, 1e6),
        ),
        flapping=Flapping(
            table.whole("flapping_connects", 0, 0, 10_000),
            table.number("flapping_within_s", 60.0, 1.0, 86_400.0),
            table.number("flapping_ban_s", 300.0, 1.0, 31_536_000.0),
        ),
        bans_file=table.text("bans_file", ""),
        audit_file=table.text("audit_file", ""),
        audit_connects=table.flag("audit_connects", False),
        remember_passwords_s=table.number("remember_passwords_s", 300.0, 0.0, 86_400.0),
        hash_threads=table.whole("hash_threads", 0, 0, 64),
        waiting_max=table.whole("waiting_max", 20_000, 1, 1_000_000),
        poll_s=table.number("poll_s", 10.0, 0.1, 86_400.0),
    )
