"""The access door of a running broker: what it is made of, and how that changes while it runs.

Files are taken up again when they change or on SIGHUP, tables are read every few seconds, and the
core then checks again what clients have. What waits for disks and hashes does so in
`server.security_threads`; `server.security_ways` opens the ways in.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, TypeVar

from mqtt_broker.security.authentication.chain import AnonymousMethod, Chain, ChainEntry
from mqtt_broker.security.authentication.password_file import PasswordFile
from mqtt_broker.security.authenticator import Authenticator
from mqtt_broker.security.files.errors import FileError, Unavailable
from mqtt_broker.security.protection.audit_log import Audit, AuditFile, to_logger
from mqtt_broker.security.protection.bans import Ban, Bans, add_ban, lift_ban, read_bans
from mqtt_broker.security.rules.ruleset import RuleSet
from mqtt_broker.server.config.security import SQL_RULES_FROM, SecurityConfig, check_listeners
from mqtt_broker.server.config.tables import ConfigError
from mqtt_broker.server.process.reload import LATER
from mqtt_broker.server.services.auth_methods import AuthMethods
from mqtt_broker.server.services.auth_workers import AuthWorkers

if TYPE_CHECKING:
    from mqtt_broker.security.authentication.password_hasher import Passwords
    from mqtt_broker.security.sql import SqlRules
    from mqtt_broker.server.server import Server

_TABLES: Final = "access tables"
_log = logging.getLogger("fleetmq")
T = TypeVar("T")


class SecurityService:
    """One broker's door, and everything that has to be read, watched and closed for it."""

    def __init__(
        self, server: Server, security: SecurityConfig, clock: Callable[[], float]
    ) -> None:
        self._server = server
        self._security = security
        self._clock = clock
        self._sql_rules: SqlRules | None = None
        self._engines: dict[str, Any] = {}
        self._passwords: Passwords | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._is_polling = self._is_over = False
        self._one_change = threading.Lock()  # of bans
        self._trouble = ""  # why tables could not be read the last time
        self._watched: set[str] = set()  # the names under which files of ways are looked at
        self._salts = b""
        self._audit_file = AuditFile(security.audit_file) if security.audit_file else None
        self.audit = Audit(self._audit_file or to_logger, clock, connects=security.audit_connects)
        count = security.hash_threads or min(4, os.cpu_count() or 1)
        self.threads = AuthWorkers(server.loop, count, security.waiting_max, server)
        try:
            self.door = self._make_door()
        except BaseException:
            self.stop()
            raise

    def _make_door(self) -> Authenticator:
        security = self._security
        chain = None
        self._ways = AuthMethods(security.auth, self._engine, self._clock)
        if security.asks:
            config = self._server.config
            self._salts = self._ways.salt_secret(config.data_dir if config.needs_store else "")
            chain = self._make_chain(self._ways)
            self._learn_cost(self._ways)
        if security.rules_url:
            from mqtt_broker.security.sql import SqlRules

            self._sql_rules = SqlRules(self._engine(security.rules_url))
            self._sql_rules.load(SQL_RULES_FROM)
        bans = Bans(security.flapping)
        if security.bans_file:
            bans.replace(read_bans(security.bans_file))
        return Authenticator(
            chain,
            self._rule_set(),
            audit=self.audit,
            clock=self._clock,
            bans=bans,
            roles=security.roles,
            tiers=security.tiers,
            limits=security.limits,
        )

    def _rule_set(self) -> RuleSet:
        """With a table of rules that is empty everything is denied: it is on all the same."""
        of_tables = self._sql_rules.rules if self._sql_rules is not None else []
        return RuleSet([*self._security.rules, *of_tables], is_on=self._security.has_rules)

    def _make_chain(self, ways: AuthMethods) -> Chain:
        from mqtt_broker.security.authentication.password_hasher import Passwords

        if self._passwords is None:
            self._passwords = Passwords(self._security.remember_passwords_s)
        endpoints = self._server.config.endpoints
        open_to_all = frozenset(e.name for e in endpoints if e.rules.allow_anonymous)
        steps = (
            [*ways.steps, ChainEntry(AnonymousMethod(), open_to_all)] if open_to_all else ways.steps
        )
        return Chain(steps, self._passwords, self.threads, self._clock, self._salts)

    def _engine(self, url: str) -> Any:
        from mqtt_broker.security.sql import open_engine

        if url not in self._engines:
            self._engines[url] = open_engine(url)
        return self._engines[url]

    def _close_unused(self, security: SecurityConfig) -> None:
        """Databases of ways that are gone. Who came in by one is known from memory."""
        used = {table.values.get("database_url") for table in security.auth}
        for url in self._engines.keys() - used - {security.rules_url}:
            self.threads.job(self._engines.pop(url).dispose)

    def _learn_cost(self, ways: AuthMethods) -> None:
        if self._passwords is not None:
            self._passwords.learn_cost([h for file in ways.files.values() for h in file.hashes()])

    # What changes.

    def figures(self) -> dict[str, int]:
        """For `$SYS` and metrics. What is refused the core counts, by reason."""
        counts = self.audit.counts
        return {
            "waiting": self.threads.waiting,
            "hashes": self._passwords.hashes if self._passwords is not None else 0,
            "reloads": counts.get("reloaded", 0),
            "reload_failures": counts.get("reload_failed", 0),
            "audit_lines_lost": self._audit_file.lost if self._audit_file is not None else 0,
            "bans": self.door.bans.count(self._clock()),
        }

    def start(self) -> None:
        self._server.broker.access_figures = self.figures
        reload = self._server.reload
        security = self._security
        self._watch_ways()
        if security.bans_file:
            reload.add(f"bans {security.bans_file}", [security.bans_file], self.load_bans)
        if security.path:
            reload.add(f"rules of {security.path}", [security.path], self._reload_rules)
        if self._audit_file is not None:
            reload.add("audit log", [], self._audit_file.reopen)
        self._timer = self._server.loop.call_later(security.poll_s, self._poll)

    def _watch_ways(self) -> None:
        """The files of the ways in force, and no others."""
        reload = self._server.reload
        ways = self._ways
        found: dict[str, tuple[str, Callable[[], None]]] = {}
        for name, file in ways.files.items():
            found[f"password file of {name}, {file.path}"] = file.path, file.load
        for name, way in ways.tokens.items():
            found[f"keys of {name}, {way.path}"] = way.path, way.load
        for name in self._watched:
            reload.remove(name)
        for name, (path, load) in found.items():
            reload.add(name, [path], self._later(name, load))
        self._watched = set(found)

    def _later(self, name: str, load: Callable[[], None]) -> Callable[[], object]:
        """Read in a thread: a file may be large, or its disk away."""

        def work() -> bool:
            load()
            self._learn_cost(self._ways)
            return True

        return lambda: self._aside(name, work)

    def _aside(
        self, name: str, load: Callable[[], bool], apply: Callable[[], None] | None = None
    ) -> object:
        """`load` in a thread; when it says that something changed, `apply` on the loop."""

        def work() -> None:
            try:
                is_changed = load()
            except (FileError, ConfigError, Unavailable, OSError) as error:
                text = str(error)  # the error itself is gone when the loop comes to it
                self.threads.to_loop(lambda: self._on_trouble(name, text))
                return
            except Exception as error:  # ours: the broker goes on with what it has
                _log.error("internal error while access rules were read", exc_info=error)
                return
            if is_changed:
                self.threads.to_loop(lambda: self._on_changed(name, apply))

        self.threads.job(work)
        return LATER

    def _on_trouble(self, name: str, text: str) -> None:
        """Of tables once, however often it is met: they are asked every few seconds."""
        if name == _TABLES:
            if text == self._trouble:
                return
            self._trouble = text
        self.audit.note("reload_failed", what=name, why=text)
        self._server.reload.on_failed(name, text)

    def _on_changed(self, name: str, apply: Callable[[], None] | None) -> None:
        if self._is_over:
            return
        if apply is not None:
            apply()
        self.audit.note("reloaded", what=name)
        self._server.reload.on_taken_up(name)
        self._server.broker.recheck(self._server.now())
        self._server.end_turn()

    @property
    def keeps_bans(self) -> bool:
        return bool(self._security.bans_file)

    def add_ban(self, ban: Ban) -> Future[None]:
        """In the file, then in force."""

        def work() -> None:
            add_ban(self._security.bans_file, ban, self._clock())
            until = ban.until or None
            self.audit.note("ban", by=ban.kind, value=ban.value, until=until, why=ban.why)

        return self._change_bans(work)

    def lift_ban(self, kind: str, value: str) -> Future[bool]:
        """Of the file, or one for flapping; False when there is none."""

        def work() -> bool:
            now = self._clock()
            is_lifted = kind == "client" and self.door.bans.forgive(value, now)
            path = self._security.bans_file
            if path and lift_ban(path, kind, value, now):
                is_lifted = True
            if is_lifted:
                self.audit.note("unban", by=kind, value=value)
            return is_lifted

        return self._change_bans(work)

    def _change_bans(self, change: Callable[[], T]) -> Future[T]:
        """In a thread, since it waits for the disk; done when the broker goes by it."""
        if self._is_over:
            raise RuntimeError("the broker stops")
        done: Future[T] = Future()

        def work() -> None:
            try:
                with self._one_change:  # the last that was written is the last to be taken up
                    result = change()
                    path = self._security.bans_file
                    found = read_bans(path) if path else []
                    self.threads.to_loop(lambda: take_up(result, found))
            except Exception as error:  # whoever asked is told
                done.set_exception(error)

        def take_up(result: T, found: list[Ban]) -> None:
            if result is not False:
                self._on_changed("bans", lambda: self.door.bans.replace(found))
            done.set_result(result)

        self.threads.job(work)
        return done

    def load_bans(self) -> object:
        found: list[Any] = []

        def load() -> bool:
            found[:] = read_bans(self._security.bans_file)
            return True

        name = f"bans {self._security.bans_file}"
        return self._aside(name, load, lambda: self.door.bans.replace(found))

    def _reload_rules(self) -> object:
        """Ways in, rules, roles and limits; the rest of the file counts at the next start."""
        fresh: list[tuple[SecurityConfig, RuleSet, AuthMethods]] = []

        def load() -> bool:
            from mqtt_broker.server.config.config import read_security_of

            found = read_security_of(self._security.path)
            if found.rules_url != self._security.rules_url:
                raise ConfigError(f"{found.path}: another database_url of acl needs a new start")
            if found.asks is not self._security.asks:
                raise ConfigError(f"{found.path}: the first [[auth]], or none, needs a new start")
            check_listeners(found, (e.name for e in self._server.config.endpoints))
            ways = AuthMethods(found.auth, self._engine, self._clock, self._ways)
            of_tables = self._sql_rules.rules if self._sql_rules is not None else []
            rules = RuleSet([*found.rules, *of_tables], is_on=found.has_rules)
            self._learn_cost(ways)
            fresh.append((found, rules, ways))
            return True

        def apply() -> None:
            found, rules, ways = fresh[0]
            if found.auth != self._security.auth:  # who is connected came in as it was, and stays
                self._ways = ways
                self.door.chain = self._make_chain(ways)
                self._watch_ways()
                self._close_unused(found)
            # It is read again, and looked at, where it was at the start.
            self._security = replace(found, bans_file=self._security.bans_file)
            self.door.rules = rules
            self.door.roles = found.roles
            self.door.tiers = found.tiers
            self.door.bans.flapping = found.flapping
            self.door.throttle.limits = found.limits

        return self._aside(f"rules of {self._security.path}", load, apply)

    def _poll(self) -> None:
        self._timer = self._server.loop.call_later(self._security.poll_s, self._poll)
        tables = self._ways.tables
        if self._is_polling or not (tables or self._sql_rules is not None):
            return
        self._is_polling = True
        users = list(self._server.broker.users)
        fresh: list[RuleSet] = []

        def load() -> bool:
            try:
                is_changed = False
                for accounts in tables:
                    is_changed |= accounts.refresh(users)
                if self._sql_rules is not None and self._sql_rules.load(SQL_RULES_FROM):
                    fresh.append(self._rule_set())
                    is_changed = True
                self._trouble = ""
                return is_changed
            finally:
                self._is_polling = False

        def apply() -> None:
            if fresh:
                self.door.rules = fresh[0]

        self._aside(_TABLES, load, apply)

    def stop(self) -> None:
        self._is_over = True
        if self._timer is not None:
            self._timer.cancel()
        self.threads.stop()
        for engine in self._engines.values():
            engine.dispose()
        if self._audit_file is not None:
            self._audit_file.close()  # last: what the others said is in it


def open_security_service(server: Server, security: SecurityConfig) -> SecurityService:
    """ConfigError in one line when a file or a database it needs cannot be used."""
    with _as_config_errors():
        return SecurityService(server, security, server.now)


def check_access(security: SecurityConfig) -> None:
    """Read what `open_security_service` would, and change nothing. Databases are not asked."""
    with _as_config_errors():
        for table in security.auth:
            if table.type == "password_file":
                PasswordFile(table.values["file"])
            elif table.type == "jwt":
                from mqtt_broker.security.authentication.jwt import read_keys

                read_keys(table.values["key_file"])
        urls = [t.values["database_url"] for t in security.auth if t.type == "sql"]
        for url in (*urls, *filter(None, [security.rules_url])):
            from mqtt_broker.security.sql import open_engine

            open_engine(url).dispose()
        if security.bans_file:
            read_bans(security.bans_file)


@contextlib.contextmanager
def _as_config_errors() -> Iterator[None]:
    try:
        yield
    except (FileError, Unavailable) as error:
        raise ConfigError(str(error)) from None
    except OSError as error:
        raise ConfigError(f"{error.filename}: {error.strerror}") from None
