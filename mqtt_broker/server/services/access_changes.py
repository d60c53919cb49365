"""Change users and rules where they are kept, and put them in force at once.

Users are kept in password files and SQL tables, rules in the configuration file and in a table.
Every method waits for a disk, a hash or a database: it is called in a thread, not on the loop.
`apply` then reloads what was changed.
"""

from __future__ import annotations

import itertools
import math
import secrets
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from mqtt_broker.security.authentication import password_edit
from mqtt_broker.security.authentication.password_file import (
    PasswordFile,
    read_entries,
    username_problem,
)
from mqtt_broker.security.authentication.password_hasher import PASSWORD_BYTES_MAX, hash_password
from mqtt_broker.security.authentication.scram import SALT_BYTES, is_stored_keys, make_keys
from mqtt_broker.security.files.atomic_files import locked, write_whole
from mqtt_broker.security.files.errors import FileError, Unavailable
from mqtt_broker.security.rules.rule import RuleError
from mqtt_broker.security.rules.rule_parser import rule_of
from mqtt_broker.server.config import acl_edit
from mqtt_broker.server.config.security import read_security
from mqtt_broker.server.config.tables import ConfigError, read_toml

if TYPE_CHECKING:
    from mqtt_broker.security.sql import SqlAccounts

FILE: Final = "file"
SQL: Final = "sql"
_LISTS: Final = ("users", "roles", "clients", "addresses")
_COLUMNS: Final = {
    "users": "username", "roles": "role", "clients": "client_id", "addresses": "address",
}  # fmt: skip
_FORBIDDEN: Final = frozenset(",:")
ROWS_MAX: Final = 1_000  # of one rule in SQL


class NotThere(Exception):
    """The user or rule does not exist; one line."""


@dataclass(frozen=True, slots=True)
class User:
    """An account, and where it is kept."""

    name: str
    source: str  # the name of its [[auth]] table
    kind: str  # password_file or sql
    roles: tuple[str, ...]
    has_password: bool
    has_scram: bool
    is_enabled: bool


@dataclass(frozen=True, slots=True)
class KeptRule:
    """A rule where it is kept.

    `id` is file:N for the N-th [[acl]] table, sql:N for the row at a position, and sql:N-M for a
    rule with lists, which has a row for each combination.
    """

    id: str
    place: str
    permit: str
    action: str
    topics: tuple[str, ...]
    users: tuple[str, ...]
    roles: tuple[str, ...]
    clients: tuple[str, ...]
    addresses: tuple[str, ...]
    anonymous: bool


@dataclass(frozen=True, slots=True)
class ConfiguredRole:
    """A role that a [[roles]] table gives to users; `place` is the table's file and line."""

    role: str
    users: tuple[str, ...]
    place: str


class AccessChanges:
    """Users and rules of a broker."""

    def __init__(
        self,
        path: str,
        files: Mapping[str, PasswordFile],
        tables: Sequence[SqlAccounts],
        rules_engine: Any,
    ) -> None:
        """`path`: the configuration file; `rules_engine`: the database of rules, or None."""
        self._path = path
        self._files = files
        self._tables = tables
        self._rules_engine = rules_engine

    # Users.

    def users(self) -> list[User]:
        """Return every account."""
        found: list[User] = []
        for name, file in self._files.items():
            found += _of_file(name, file.path)
        for number, table in enumerate(self._tables, 1):
            from mqtt_broker.security.sql import list_users

            name = SQL if number == 1 else f"{SQL} {number}"
            found += [
                User(user, name, SQL, tuple(sorted(roles)), password, scram, enabled)
                for user, password, scram, enabled, roles in list_users(table.engine)
            ]
        return found

    def put_user(
        self,
        name: str,
        *,
        password: str | None,
        scram: bool,
        roles: Sequence[str] | None,
        is_enabled: bool | None,
        source: str,
        is_new: bool,
    ) -> User:
        """Create a user, or change one. FileError: it cannot be; NotThere: there is none."""
        if problem := username_problem(name):
            raise FileError(problem)
        for role in roles or ():
            if not role or not role.isprintable() or set(role) & _FORBIDDEN:
                raise FileError(
                    f"role {role!r} is empty, or holds a comma, a colon or a control character"
                )
        known = {user.name: user for user in self.users()}
        if is_new and name in known:
            raise FileError(f"there is a user {name} already")
        if not is_new and name not in known:
            raise NotThere(f"there is no user {name!r}")
        where = self._source(known[name].source if not is_new else source)
        secret = "" if password is None else _secret(password, scram=scram)
        if is_new and not secret:
            raise FileError("a new user needs a password")
        if isinstance(where, PasswordFile):
            if is_enabled is False:
                raise FileError("a password file has no disabled users; delete the user, or ban it")
            password_edit.put_user(
                where.path, name, secret, None if roles is None else tuple(roles)
            )
        else:
            self._put_in_table(where, name, secret, roles, is_enabled)
        return next(user for user in self.users() if user.name == name)

    def _put_in_table(
        self,
        table: SqlAccounts,
        name: str,
        secret: str,
        roles: Sequence[str] | None,
        is_enabled: bool | None,
    ) -> None:
        from mqtt_broker.security import sql

        if secret:
            column = "scram" if is_stored_keys(secret) else "password"
            sql.put_user(table.engine, name, column, secret, roles)
        sql.change_user(table.engine, name, is_enabled=is_enabled, roles=roles)
        table.forget(name)

    def remove_user(self, name: str) -> None:
        """Remove a user everywhere; NotThere."""
        is_found = False
        for file in self._files.values():
            is_found |= password_edit.remove_user(file.path, name)
        for table in self._tables:
            from mqtt_broker.security import sql

            is_found |= sql.remove_user(table.engine, name)
            table.forget(name)
        if not is_found:
            raise NotThere(f"there is no user {name!r}")

    def _source(self, name: str) -> PasswordFile | SqlAccounts:
        """Return the file or the tables of this name; without one the first there is."""
        known: dict[str, PasswordFile | SqlAccounts] = dict(self._files)
        for number, table in enumerate(self._tables, 1):
            known[SQL if number == 1 else f"{SQL} {number}"] = table
        if not known:
            raise FileError("this broker keeps no users: [[auth]] has no password_file and no sql")
        if not name:
            return next(iter(known.values()))
        if name not in known:
            raise FileError(f"no source of users is named {name!r}; there are {', '.join(known)}")
        return known[name]

    def configured_roles(self) -> list[ConfiguredRole]:
        """Return the roles of the configuration file, which only an edit of the file changes."""
        if not self._path:
            return []
        return [
            ConfiguredRole(row["role"], tuple(row["users"]), _place(row, self._path))
            for row in self._read("roles")
        ]

    def _read(self, name: str) -> list[Any]:
        """Read the tables of this name from the configuration file, as it is now."""
        try:
            found = read_toml(self._path)
            read_security(found, self._path)
        except ConfigError as error:
            raise Unavailable(str(error)) from None
        rows: list[Any] = found.get(name, [])
        return rows

    # Rules.

    def rule(self, where: str) -> KeptRule:
        """Return the rule with this id; NotThere."""
        source, _, number = where.partition(":")
        if source == SQL and "-" in number:
            return self._rule_of_rows(where, _positions(number))
        for rule in self.rules():
            if rule.id == where:
                return rule
        raise NotThere(f"there is no rule {where!r}")

    def _rule_of_rows(self, where: str, positions: range) -> KeptRule:
        if self._rules_engine is None:
            raise NotThere(f"there is no rule {where!r}")
        from mqtt_broker.security.sql import list_rules

        rows = [row for row in list_rules(self._rules_engine) if row["position"] in positions]
        if len(rows) != len(positions):
            raise NotThere(f"there is no rule {where!r}: some of its rows are missing")
        return _of_rows(where, rows)

    def rules(self) -> list[KeptRule]:
        """Return every rule, in the order in which they are asked."""
        found: list[KeptRule] = []
        if self._path:
            for number, row in enumerate(self._read("acl"), 1):
                if "database_url" not in row:
                    found.append(_of_row(number, row, self._path))
        if self._rules_engine is not None:
            from mqtt_broker.security.sql import list_rules

            found += [_of_table(row) for row in list_rules(self._rules_engine)]
        return found

    def put_rule(self, where: str, rule: Mapping[str, Any]) -> str:
        """Write a rule and return its id. `where` is file or sql for a new one, or its id."""
        _check(rule)
        source, _, number = where.partition(":")
        if source == SQL:
            return self._put_in_rules_table(number, rule)
        if source != FILE:
            raise FileError(f"invalid source {where!r}: expected file or sql")
        if number:
            self._edit(lambda text: acl_edit.change_rule(text, _whole(number), rule))
            return where
        before = {one.id for one in self.rules()}
        self._edit(lambda text: acl_edit.add_rule(text, rule))
        ids = [one.id for one in self.rules() if one.id.startswith(FILE)]
        return next((one for one in ids if one not in before), ids[-1])

    def _put_in_rules_table(self, number: str, rule: Mapping[str, Any]) -> str:
        if self._rules_engine is None:
            raise FileError("this broker keeps no rules in SQL: [[acl]] has no database_url")
        from mqtt_broker.security.sql import put_rules

        if rule.get("anonymous"):
            raise FileError("a rule in SQL cannot be for anonymous clients; keep it in the file")
        rows = _rows_of(rule)
        if number:
            written = put_rules(self._rules_engine, rows, replaced=_positions(number))
        else:
            written = put_rules(self._rules_engine, rows, rule.get("position"))
        return _id_of(written)

    def remove_rule(self, where: str) -> None:
        """Remove a rule; NotThere."""
        self.rule(where)
        source, _, number = where.partition(":")
        if source == FILE:
            self._edit(lambda text: acl_edit.remove_rule(text, _whole(number)))
            return
        from mqtt_broker.security.sql import remove_rules

        remove_rules(self._rules_engine, _positions(number))

    def _edit(self, change: Any) -> None:
        """Rewrite the configuration file, if the result is valid."""
        if not self._path:
            raise FileError("this broker has no configuration file; keep rules in SQL")
        try:
            with locked(self._path):
                before = Path(self._path).read_text()
                after = change(before)
                if not read_security(tomllib.loads(after), self._path).has_rules:
                    raise FileError("the last rule stays: without rules all is allowed")
                write_whole(self._path, after, 0o600)
        except (ConfigError, tomllib.TOMLDecodeError) as error:
            raise FileError(str(error)) from None
        except RecursionError:
            raise FileError(f"{self._path}: nested too deeply") from None
        except OSError as error:
            raise FileError(f"{self._path}: {error.strerror}") from None


def _of_file(source: str, path: str) -> list[User]:
    entries: dict[str, list[Any]] = {}
    for entry in read_entries(path):
        entries.setdefault(entry.username, []).append(entry)
    return [
        User(
            name,
            source,
            "password_file",
            tuple(sorted({role for one in mine for role in one.roles})),
            any(not is_stored_keys(one.secret) for one in mine),
            any(is_stored_keys(one.secret) for one in mine),
            True,
        )
        for name, mine in entries.items()
    ]


def _secret(password: str, *, scram: bool) -> str:
    data = password.encode()
    if not data:
        raise FileError("the password is empty")
    if len(data) > PASSWORD_BYTES_MAX:
        raise FileError(f"the password has {len(data)} bytes, the limit is {PASSWORD_BYTES_MAX}")
    if scram:
        return make_keys(data, secrets.token_bytes(SALT_BYTES)).encode()
    return hash_password(data)


def _whole(text: str) -> int:
    if not text.isdecimal() or len(text) > 9:
        raise NotThere(f"there is no rule {text!r}")
    return int(text)


def _positions(text: str) -> range:
    """Return the positions of N or N-M."""
    first, dash, last = text.partition("-")
    found = range(_whole(first), _whole(last if dash else first) + 1)
    if not 0 < len(found) <= ROWS_MAX:
        raise NotThere(f"there is no rule {text!r}")
    return found


def _id_of(positions: range) -> str:
    first, last = positions.start, positions.stop - 1
    return f"{SQL}:{first}" if first == last else f"{SQL}:{first}-{last}"


def _rows_of(rule: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return a row for each combination of topic, user, role, client and address."""
    keys = ["topics", *_LISTS]
    lists = [list(dict.fromkeys(rule.get(key) or [None])) for key in keys]
    count = math.prod(len(values) for values in lists)
    if count > ROWS_MAX:
        raise FileError(
            f"the rule needs {count} rows in SQL, one for each combination; the limit is {ROWS_MAX}"
        )
    columns = ["topic", *(_COLUMNS[key] for key in _LISTS)]
    fixed = {"permit": rule["permit"], "action": rule["action"]}
    return [
        {**fixed, **dict(zip(columns, values, strict=True))} for values in itertools.product(*lists)
    ]


def _of_rows(where: str, rows: Sequence[Mapping[str, Any]]) -> KeptRule:
    """Return the rule that was written as these rows; NotThere if they are not one any more."""
    columns = {"topics": "topic", **_COLUMNS}
    lists = {
        key: [value for value in dict.fromkeys(row[column] for row in rows) if value is not None]
        for key, column in columns.items()
    }
    first = rows[0]
    rule = {"permit": first["permit"], "action": first["action"], **lists}
    wanted = {tuple(row.values()) for row in _rows_of(rule)}
    order = ["permit", "action", *columns.values()]
    if wanted != {tuple(row[column] for column in order) for row in rows}:
        raise NotThere(f"there is no rule {where!r}: its rows have been changed one by one")
    return KeptRule(
        where,
        f"fleetmq_acl positions {first['position']} to {rows[-1]['position']}",
        first["permit"],
        first["action"],
        anonymous=False,
        **{key: tuple(values) for key, values in lists.items()},
    )


def _place(row: Any, path: str) -> str:
    line = getattr(row, "line", 0)
    return f"{path}:{line}" if line else path


def _check(rule: Mapping[str, Any]) -> None:
    """Raise FileError for a rule that would be invalid."""
    if not rule["topics"]:
        raise FileError("a rule needs topics")
    for topic in rule["topics"]:
        try:
            rule_of(
                0,
                permit=rule["permit"],
                action=rule["action"],
                topic=topic,
                **{key: rule.get(key) or [] for key in _LISTS},
                is_anonymous=bool(rule.get("anonymous")),
                where="rule",
            )
        except RuleError as error:
            raise FileError(str(error)) from None


def _of_row(number: int, row: Any, path: str) -> KeptRule:
    lists = {key: tuple(row.get(key, ())) for key in _LISTS}
    return KeptRule(
        f"{FILE}:{number}",
        _place(row, path),
        row.get("permit", ""),
        row.get("action", "all"),
        tuple(row.get("topics", ())),
        anonymous=bool(row.get("anonymous", False)),
        **lists,
    )


def _of_table(row: Mapping[str, Any]) -> KeptRule:
    lists = {
        key: (row[column],) if row[column] is not None else () for key, column in _COLUMNS.items()
    }
    return KeptRule(
        f"{SQL}:{row['position']}",
        f"fleetmq_acl position {row['position']}",
        row["permit"],
        row["action"],
        (row["topic"],),
        anonymous=False,
        **lists,
    )
