"""Accounts and rules in SQL tables, in any database that SQLAlchemy supports.

    fleetmq_users       username, password (argon2id), scram (SCRAM-SHA-256 keys), is_enabled
    fleetmq_user_roles  username, role
    fleetmq_acl         position, permit, action, topic, username, role, client_id, address

The broker only reads them: a database user that may SELECT is enough. Accounts are cached for a
few seconds; rules are read whole. Every call may wait for the database, so it is made in a thread.
No error's text holds the URL, a statement or a value.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from sqlalchemy import (
    Boolean,
    Column,
    Delete,
    Engine,
    Integer,
    MetaData,
    String,
    Table,
    create_engine,
    delete,
    insert,
    make_url,
    select,
    true,
    update,
)
from sqlalchemy.exc import ArgumentError, NoSuchModuleError, SQLAlchemyError

from mqtt_broker.security.authentication.accounts import USERNAME_CHARS_MAX, Account
from mqtt_broker.security.authentication.password_hasher import hash_problem
from mqtt_broker.security.authentication.scram import ITERATIONS, ScramError, decode_stored_keys
from mqtt_broker.security.files.errors import FileError, Unavailable
from mqtt_broker.security.rules.rule import Rule, RuleError
from mqtt_broker.security.rules.rule_parser import rule_of

METADATA: Final = MetaData()
USERS: Final = Table(
    "fleetmq_users",
    METADATA,
    Column("username", String(USERNAME_CHARS_MAX), primary_key=True),
    Column("password", String(512)),
    Column("scram", String(512)),
    Column("is_enabled", Boolean, nullable=False, server_default=true()),
)
USER_ROLES: Final = Table(
    "fleetmq_user_roles",
    METADATA,
    Column("username", String(USERNAME_CHARS_MAX), primary_key=True),
    Column("role", String(255), primary_key=True),
)
ACL: Final = Table(
    "fleetmq_acl",
    METADATA,
    Column("position", Integer, primary_key=True),
    Column("permit", String(8), nullable=False),
    Column("action", String(16), nullable=False),
    Column("topic", String(8192), nullable=False),
    Column("username", String(USERNAME_CHARS_MAX)),
    Column("role", String(255)),
    Column("client_id", String(1024)),
    Column("address", String(64)),
)
_REMEMBERED_MAX: Final = 10_000
_WAIT_S: Final = 5
_NAMES_AT_ONCE: Final = 500
POSITION_STEP: Final = 10  # between a new rule and the last one: there is room to put one between
POSITION_MAX: Final = 999_999_999


def open_engine(text: str) -> Engine:
    """Return an engine that has not connected yet; FileError when the URL is invalid."""
    try:
        url = make_url(text)
        arguments: dict[str, Any] = {}
        if url.get_backend_name() == "postgresql":
            arguments["connect_timeout"] = _WAIT_S
            arguments["options"] = f"-c statement_timeout={_WAIT_S * 1000}"
        elif url.get_backend_name() == "sqlite":
            arguments["timeout"] = _WAIT_S
        return create_engine(url, connect_args=arguments, pool_pre_ping=True, hide_parameters=True)
    except ModuleNotFoundError as error:
        extra = ": pip install 'fleetmq[postgres]'" if error.name == "psycopg" else ""
        raise FileError(f"the database URL needs the Python package {error.name}{extra}") from None
    except (ArgumentError, NoSuchModuleError, ValueError):
        raise FileError("invalid database URL: expected dialect+driver://user@host/name") from None


def _explain(error: SQLAlchemyError) -> str:
    """Name the kind of failure and the driver's own class; never its text, which holds values."""
    origin = getattr(error, "orig", None)
    inner = f" ({type(origin).__name__})" if origin is not None else ""
    return f"the accounts database: {type(error).__name__}{inner}"


class SqlAccounts:
    """The accounts of the tables, looked up when a client connects."""

    is_slow = True

    def __init__(self, engine: Engine, clock: Callable[[], float], cache_s: float = 5.0) -> None:
        self._engine = engine
        self._clock = clock
        self._cache_s = cache_s
        self.found: dict[str, tuple[float, Account | None]] = {}
        self._gone: frozenset[str] = frozenset()
        self._roles: dict[
            str, frozenset[str]
        ] = {}  # of users that have authenticated, as of the last look-up
        self._is_changed = False  # roles, since the last refresh
        self._lock = threading.Lock()
        self.queries = 0
        self.scram_iterations = ITERATIONS  # of the user that was looked up last

    def find(self, username: str) -> Account | None:
        if len(username) > USERNAME_CHARS_MAX:
            return None  # not cached either: any client may send it
        now = self._clock()
        with self._lock:
            known = self.found.get(username)
        if known is not None and known[0] > now:
            return known[1]
        account = self._look_up(username)
        with self._lock:
            if account is not None:
                before = self._roles.setdefault(username, account.roles)
                self._is_changed |= before != account.roles
                self._roles[username] = account.roles
            if self._cache_s:
                if len(self.found) >= _REMEMBERED_MAX:
                    self.found.clear()
                self.found[username] = (now + self._cache_s, account)
        return account

    def _look_up(self, username: str) -> Account | None:
        if "\0" in username or any("\ud800" <= c <= "\udfff" for c in username):
            return None  # no database can hold it
        self.queries += 1
        wanted = select(USERS.c.username, USERS.c.password, USERS.c.scram).where(
            USERS.c.username == username, USERS.c.is_enabled.is_(True)
        )
        of_user = select(USER_ROLES.c.role).where(USER_ROLES.c.username == username)
        try:
            with self._engine.connect() as connection:
                row = connection.execute(wanted).first()
                # Also for an unknown user, so that both take as long.
                roles = frozenset(connection.execute(of_user).scalars())
        except SQLAlchemyError as error:
            raise Unavailable(_explain(error)) from None
        # Some databases find `Ann` for `ann`; rules and bans compare exactly.
        if row is None or row.username != username:
            return None
        hashed = row.password if row.password and not hash_problem(row.password) else None
        try:
            keys = decode_stored_keys(row.scram) if row.scram else None
        except ScramError:
            keys = None
        if keys is not None:
            self.scram_iterations = keys.iterations
        return Account(username, hashed, keys, roles)

    def has(self, username: str) -> bool:
        return username not in self._gone

    def roles(self, username: str) -> frozenset[str] | None:
        return self._roles.get(username)

    @property
    def engine(self) -> Engine:
        """The database of the tables."""
        return self._engine

    def forget(self, username: str) -> None:
        """Look this user up again at the next login."""
        with self._lock:
            self.found.pop(username, None)

    def refresh(self, usernames: Iterable[str]) -> bool:
        """Read again which of these users exist and their roles; True when that has changed."""
        wanted = list(usernames)
        found: set[str] = set()
        roles: dict[str, set[str]] = {}
        try:
            with self._engine.connect() as connection:
                for at in range(0, len(wanted), _NAMES_AT_ONCE):
                    some = wanted[at : at + _NAMES_AT_ONCE]
                    query = select(USERS.c.username).where(
                        USERS.c.username.in_(some), USERS.c.is_enabled.is_(True)
                    )
                    found.update(connection.execute(query).scalars())
                    of_users = select(USER_ROLES).where(USER_ROLES.c.username.in_(some))
                    for username, role in connection.execute(of_users):
                        roles.setdefault(username, set()).add(role)
        except SQLAlchemyError as error:
            raise Unavailable(_explain(error)) from None
        gone = frozenset(wanted) - found
        with self._lock:
            is_changed = gone != self._gone or self._is_changed
            self._gone, self._is_changed = gone, False
            fresh = {username: frozenset(roles.get(username, ())) for username in found}
            is_changed |= any(self._roles.get(name) != now for name, now in fresh.items())
            self._roles = fresh  # clients that connected meanwhile are refreshed the next time
        return is_changed


class SqlRules:
    """The rules of the table, in the order of their positions."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._rows: Sequence[Any] | None = None
        self.rules: list[Rule] = []

    def load(self, first_number: int) -> bool:
        """Read them; True when they changed. FileError when a row is wrong: all stay as before."""
        try:
            with self._engine.connect() as connection:
                rows = connection.execute(select(ACL).order_by(ACL.c.position)).all()
        except SQLAlchemyError as error:
            raise Unavailable(_explain(error)) from None
        if rows == self._rows:
            return False
        found: list[Rule] = []
        for row in rows:
            where = f"fleetmq_acl position {row.position}"
            try:
                found.append(
                    rule_of(
                        first_number + len(found),
                        permit=row.permit,
                        action=row.action,
                        topic=row.topic,
                        users=[row.username] if row.username is not None else [],
                        roles=[row.role] if row.role is not None else [],
                        clients=[row.client_id] if row.client_id is not None else [],
                        addresses=[row.address] if row.address is not None else [],
                        where=where,
                    )
                )
            except RuleError as error:
                raise FileError(f"{where}: {error}") from None
        self.rules, self._rows = found, rows
        return True


# For `fleetmq passwd`.


def create_tables(engine: Engine) -> None:
    """Create the tables that are missing."""
    METADATA.create_all(engine)


def put_user(
    engine: Engine, username: str, column: str, secret: str, roles: Sequence[str] | None
) -> bool:
    """Add the user or change one secret; True when the user is new."""
    try:
        create_tables(engine)
        with engine.begin() as connection:
            changed = connection.execute(
                update(USERS).where(USERS.c.username == username).values({column: secret})
            ).rowcount
            if not changed:
                connection.execute(insert(USERS).values(username=username, **{column: secret}))
            if roles is not None:
                connection.execute(delete(USER_ROLES).where(USER_ROLES.c.username == username))
                for role in roles:
                    connection.execute(insert(USER_ROLES).values(username=username, role=role))
    except SQLAlchemyError as error:
        raise Unavailable(_explain(error)) from None
    return not changed


def list_users(engine: Engine) -> list[tuple[str, bool, bool, bool, frozenset[str]]]:
    """Return name, has a password, has keys for SCRAM, is enabled, and roles of every user."""
    try:
        with engine.connect() as connection:
            roles: dict[str, set[str]] = {}
            for username, role in connection.execute(select(USER_ROLES)):
                roles.setdefault(username, set()).add(role)
            rows = connection.execute(select(USERS).order_by(USERS.c.username)).all()
    except SQLAlchemyError as error:
        raise Unavailable(_explain(error)) from None
    return [
        (
            row.username,
            bool(row.password),
            bool(row.scram),
            bool(row.is_enabled),
            frozenset(roles.get(row.username, ())),
        )
        for row in rows
    ]


def change_user(
    engine: Engine, username: str, *, is_enabled: bool | None, roles: Sequence[str] | None
) -> bool:
    """Change a user without a secret; False when there is none."""
    try:
        with engine.begin() as connection:
            found = connection.execute(select(USERS).where(USERS.c.username == username)).first()
            if found is None:
                return False
            if is_enabled is not None:
                changed = update(USERS).where(USERS.c.username == username)
                connection.execute(changed.values(is_enabled=is_enabled))
            if roles is not None:
                connection.execute(delete(USER_ROLES).where(USER_ROLES.c.username == username))
                for role in dict.fromkeys(roles):
                    connection.execute(insert(USER_ROLES).values(username=username, role=role))
    except SQLAlchemyError as error:
        raise Unavailable(_explain(error)) from None
    return True


_RULE_COLUMNS: Final = ("permit", "action", "topic", "username", "role", "client_id", "address")


def list_rules(engine: Engine) -> list[dict[str, Any]]:
    """Return the rows of the rules, by position."""
    try:
        with engine.connect() as connection:
            rows = connection.execute(select(ACL).order_by(ACL.c.position)).mappings().all()
    except SQLAlchemyError as error:
        raise Unavailable(_explain(error)) from None
    return [dict(row) for row in rows]


def put_rules(
    engine: Engine,
    rows: Sequence[dict[str, Any]],
    position: int | None = None,
    replaced: range | None = None,
) -> range:
    """Write rows at consecutive positions, in place of those of `replaced`; return the positions.

    They begin at `position`, where the replaced ones began, or behind all others. FileError when a
    position is taken, or when one to replace has no row: then nothing is changed.
    """
    try:
        with engine.begin() as connection:
            taken = set(connection.execute(select(ACL.c.position)).scalars())
            if replaced is not None:
                _check_rows(taken, replaced)
                connection.execute(_deleted(replaced))
                taken.difference_update(replaced)
                position = replaced.start
            if position is None:
                position = max(taken, default=0) + POSITION_STEP
            positions = range(position, position + len(rows))
            for number in positions:
                if number in taken or number > POSITION_MAX:
                    raise FileError(_no_place(number, len(rows), position))
            values = [
                {"position": number, **{column: row.get(column) for column in _RULE_COLUMNS}}
                for number, row in zip(positions, rows, strict=True)
            ]
            connection.execute(insert(ACL), values)
    except SQLAlchemyError as error:
        raise Unavailable(_explain(error)) from None
    return positions


def _no_place(number: int, count: int, position: int) -> str:
    why = f"position {number} is taken" if number <= POSITION_MAX else "there is no room behind"
    if count > 1:
        why += (
            f"; the rule needs {count} rows from position {position} on, one for each combination"
        )
    return why


def _check_rows(taken: set[int], wanted: range) -> None:
    for number in wanted:
        if number not in taken:
            raise FileError(f"there is no rule at position {number}")


def _deleted(positions: range) -> Delete:
    return delete(ACL).where(ACL.c.position.between(positions.start, positions.stop - 1))


def remove_rules(engine: Engine, positions: range) -> None:
    """Remove the rows at these positions; FileError when one is not there."""
    try:
        with engine.begin() as connection:
            _check_rows(set(connection.execute(select(ACL.c.position)).scalars()), positions)
            connection.execute(_deleted(positions))
    except SQLAlchemyError as error:
        raise Unavailable(_explain(error)) from None


def remove_user(engine: Engine, username: str) -> bool:
    """Remove the user; False when there is none."""
    try:
        create_tables(engine)
        with engine.begin() as connection:
            connection.execute(delete(USER_ROLES).where(USER_ROLES.c.username == username))
            gone = connection.execute(delete(USERS).where(USERS.c.username == username)).rowcount
    except SQLAlchemyError as error:
        raise Unavailable(_explain(error)) from None
    return bool(gone)
