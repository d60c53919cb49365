"""Security of a running broker: build the authenticator, and reload what it is built from.

Files are read again when they change and on SIGHUP, database tables every few seconds. After a
change the core checks the rights of connected clients again. Disk access and hashing happen in the
threads of `auth_workers`; `auth_methods` opens the methods of the `[[auth]]` tables.
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
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from mqtt_broker.security.authentication.accounts import Account, Accounts
from mqtt_broker.security.authentication.chain import AnonymousMethod, Chain, ChainEntry
from mqtt_broker.security.authentication.password_file import PasswordFile
from mqtt_broker.security.authenticator import Authenticator, SecurityPolicy
from mqtt_broker.security.files.errors import FileError, Unavailable
from mqtt_broker.security.protection.audit_log import Audit, AuditFile, to_logger
from mqtt_broker.security.protection.bans import Ban, Bans, add_ban, lift_ban, read_bans
from mqtt_broker.security.rules.identity import Identity, address_of
from mqtt_broker.security.rules.ruleset import Decision, RuleSet
from mqtt_broker.server.config.config import Config, DatabaseUnreachable
from mqtt_broker.server.config.endpoints import Endpoint
from mqtt_broker.server.config.security import SQL_RULES_FROM, SecurityConfig, check_listeners
from mqtt_broker.server.config.tables import ConfigError
from mqtt_broker.server.process.log_limiter import ErrorLog
from mqtt_broker.server.process.reload import LATER, Reload, may_pass
from mqtt_broker.server.process.turn import Turn
from mqtt_broker.server.services.access_changes import AccessChanges
from mqtt_broker.server.services.auth_methods import AuthMethods
from mqtt_broker.server.services.auth_workers import AuthWorkers

if TYPE_CHECKING:
    from mqtt_broker.core.broker import Broker
    from mqtt_broker.security.authentication.password_hasher import Passwords
    from mqtt_broker.security.sql import SqlRules

_TABLES: Final = "access tables"
_log = logging.getLogger("fleetmq")
T = TypeVar("T")


class SecurityService:
    """The authenticator of a broker, with the files, tables and threads that it needs."""

    def __init__(
        self, config: Config, loop: asyncio.AbstractEventLoop, turn: Turn, reload: Reload
    ) -> None:
        security = config.security
        self._config = config
        self._security = security
        self._loop = loop
        self._turn = turn
        self._reload = reload
        self._clock = turn.now
        self._started: Broker | None = None
        self._sql_rules: SqlRules | None = None
        self.engines: dict[str, Any] = {}
        self._passwords: Passwords | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._is_polling = self._is_over = False
        self._ban_lock = threading.Lock()  # held while the file of bans is changed
        self._trouble = ""  # why tables could not be read the last time
        self._unwritable: set[str] = set()  # files with hashes that cannot be replaced
        self._watched: set[str] = set()  # names under which methods' files are watched
        self._salts = b""
        self._errors = ErrorLog(_log)
        self._audit_file = AuditFile(security.audit_file) if security.audit_file else None
        self.audit = Audit(
            self._audit_file or to_logger,
            turn.now,
            connects=security.audit_connects,
            refusals=self._audit_file is not None,  # the log of clients has each of them once
        )
        count = security.hash_threads or min(4, os.cpu_count() or 1)
        self.workers = AuthWorkers(loop, turn, count, security.waiting_max)
        self._methods = AuthMethods((), self._engine, self._clock)
        try:
            self.authenticator = self._make_authenticator()
        except BaseException:
            self.stop()
            raise

    def _make_authenticator(self) -> Authenticator:
        security = self._security
        chain = None
        self._methods = AuthMethods(security.auth, self._engine, self._clock)
        if security.has_auth:
            data_dir = self._config.data_dir if self._config.needs_store else ""
            self._salts = self._methods.salt_secret(data_dir)
            chain = self._make_chain(self._methods)
            self._learn_cost(self._methods)
        if security.rules_url:
            from mqtt_broker.security.sql import SqlRules

            with _placed(security):
                self._sql_rules = SqlRules(self._engine(security.rules_url))
                self._sql_rules.load(SQL_RULES_FROM)
        bans = Bans()
        if security.bans_file:
            bans.replace(read_bans(security.bans_file))
        return Authenticator(
            self._make_policy(security, chain, self._rule_set(security)),
            audit=self.audit,
            clock=self._clock,
            bans=bans,
        )

    @staticmethod
    def _make_policy(
        security: SecurityConfig, chain: Chain | None, rules: RuleSet
    ) -> SecurityPolicy:
        return SecurityPolicy(
            chain,
            rules,
            security.roles,
            security.client_limits,
            security.flapping,
            security.connect_limits,
        )

    def _rule_set(self, security: SecurityConfig) -> RuleSet:
        """Combine the rules of file and table. An empty table of rules denies everything."""
        of_tables = self._sql_rules.rules if self._sql_rules is not None else []
        return RuleSet([*security.rules, *of_tables], is_on=security.has_rules)

    def _make_chain(self, methods: AuthMethods) -> Chain:
        from mqtt_broker.security.authentication.password_hasher import Passwords

        if self._passwords is None:
            self._passwords = Passwords(self._security.remember_passwords_s)
        endpoints = self._config.endpoints
        open_to_all = frozenset(e.name for e in endpoints if e.rules.allow_anonymous)
        entries = methods.entries
        if open_to_all:
            entries = [*entries, ChainEntry(AnonymousMethod(), open_to_all)]
        return Chain(entries, self._passwords, self.workers, self._clock, self._salts)

    def _engine(self, url: str) -> Any:
        from mqtt_broker.security.sql import open_engine

        if url not in self.engines:
            self.engines[url] = open_engine(url)
        return self.engines[url]

    def _close_unused(self, security: SecurityConfig) -> None:
        """Close databases of methods that were removed. Their users' accounts stay cached."""
        used = {table.values.get("database_url") for table in security.auth}
        for url in self.engines.keys() - used - {security.rules_url}:
            self.workers.job(self.engines.pop(url).dispose)

    def _learn_cost(self, methods: AuthMethods) -> None:
        if self._passwords is not None:
            hashes = [h for file in methods.files.values() for h in file.hashes()]
            self._passwords.learn_cost(hashes)

    # Reloading.

    def figures(self) -> dict[str, int]:
        """Return the numbers that `$SYS` and metrics show; the core counts refusals."""
        counts = self.audit.counts
        return {
            "waiting": self.workers.waiting,
            "hashes": self._passwords.hashes if self._passwords is not None else 0,
            "reloads": counts.get("reloaded", 0),
            "reload_failures": counts.get("reload_failed", 0),
            "audit_lines_lost": self._audit_file.lost if self._audit_file is not None else 0,
            "bans": self.authenticator.bans.count(self._clock()),
        }

    def start(self, broker: Broker) -> None:
        """Reload files and tables when they change; `broker` checks its clients then."""
        self._started = broker
        broker.runtime.metrics.add("access", self.figures, "access/")
        reload = self._reload
        security = self._security
        self._watch_methods()
        if security.bans_file:
            reload.add(f"bans {security.bans_file}", [security.bans_file], self.load_bans)
        if security.path:
            reload.add(f"rules of {security.path}", [security.path], self._reload_rules)
        if self._audit_file is not None:
            reload.add("audit log", [], self._audit_file.reopen)
        self._timer = self._loop.call_later(security.poll_s, self._poll)

    @property
    def _broker(self) -> Broker:
        assert self._started is not None, "the security service is not started"
        return self._started

    def _watch_methods(self) -> None:
        """Reload the files of the methods in force, and no others."""
        reload = self._reload
        methods = self._methods
        found: dict[str, tuple[str, Callable[[], None]]] = {}
        for name, file in methods.files.items():
            found[f"password file of {name}, {file.path}"] = file.path, file.load
        for name, method in methods.tokens.items():
            found[f"keys of {name}, {method.path}"] = method.path, method.load
        for name in self._watched:
            reload.remove(name)
        for name, (path, load) in found.items():
            reload.add(name, [path], self._later(name, load))
        self._watched = set(found)

    def _later(self, name: str, load: Callable[[], None]) -> Callable[[], object]:
        """Read in a thread: a file may be large, or its disk slow."""

        def work() -> bool:
            load()
            self._learn_cost(self._methods)
            return True

        return lambda: self._in_thread(name, work)

    def _in_thread(
        self, name: str, load: Callable[[], bool], apply: Callable[[], None] | None = None
    ) -> object:
        """Call `load` in a thread; when it returns True, call `apply` on the loop."""

        def work() -> None:
            try:
                is_changed = load()
            except (FileError, ConfigError, Unavailable, OSError) as error:
                # Python deletes the error before the loop uses it.
                text, passes = str(error), may_pass(error)
                self.workers.to_loop(lambda: self._on_trouble(name, text, may_pass=passes))
                return
            except Exception as error:  # a bug: the broker keeps the old rules
                self._errors.write(error, "internal error while access rules were read")
                return
            if is_changed:
                self.workers.to_loop(lambda: self._on_changed(name, apply))

        self.workers.job(work)
        return LATER

    def _on_trouble(self, name: str, text: str, *, may_pass: bool = False) -> None:
        """Report a failure; one of the tables only once, as they are read every few seconds."""
        if name == _TABLES:
            if text == self._trouble:
                return
            self._trouble = text
        if self._reload.on_failed(name, text, may_pass=may_pass):
            self.audit.note("reload_failed", what=name, why=text)

    def _on_changed(self, name: str, apply: Callable[[], None] | None) -> None:
        if self._is_over:
            return
        if apply is not None:
            apply()
        self.audit.note("reloaded", what=name)
        self._reload.on_reloaded(name)
        self._broker.reauthorize(self._turn.now())
        self._turn.end_now()

    def use_endpoints(self, endpoints: tuple[Endpoint, ...]) -> None:
        """Go by other listeners from now on: some let anonymous clients in."""
        self._config = replace(self._config, endpoints=endpoints)
        if self._security.has_auth:
            policy = self.authenticator.policy
            self.authenticator.apply(replace(policy, chain=self._make_chain(self._methods)))

    def explain(
        self,
        client_id: str,
        username: str | None,
        address: str,
        action: str,
        topic: str,
        roles: frozenset[str],
    ) -> tuple[Decision, frozenset[str]]:
        """Decide as for a client with these names now; return the roles that counted, too.

        Roles are those given, those of its accounts, and those of `[[roles]]`. A database of
        accounts is asked in the calling thread.
        """
        policy = self.authenticator.policy
        found = set(roles)
        if username is not None:
            found |= policy.roles.get(username, frozenset())
            found |= self._account_roles(username)
        identity = Identity(client_id, username, frozenset(found), address_of(address))
        ask = policy.rules.may_publish if action == "publish" else policy.rules.may_subscribe
        return ask(identity, topic), identity.roles

    def _account_roles(self, username: str) -> frozenset[str]:
        """Return the roles of the first account of this name, as logins look for it."""
        known: list[Accounts] = [*self._methods.files.values(), *self._methods.tables]
        for accounts in known:
            account: Account | None = accounts.find(username)
            if account is not None:
                return account.roles
        return frozenset()

    def changes(self) -> AccessChanges:
        """Return what changes users and rules where they are kept; for a thread."""
        rules_engine = self._engine(self._security.rules_url) if self._security.rules_url else None
        methods = self._methods
        return AccessChanges(self._security.path, methods.files, methods.tables, rules_engine)

    def refresh(self) -> Future[None]:
        """Read tables of users and rules again; done when clients were checked again."""
        done: Future[None] = Future()
        users = list(self._broker.clients.users)

        def work() -> None:
            try:
                for accounts in self._methods.tables:
                    accounts.refresh(users)
                if self._sql_rules is not None:
                    self._sql_rules.load(SQL_RULES_FROM)
                rules = self._rule_set(self._security)
                self.workers.to_loop(lambda: apply(rules))
            except Exception as error:  # for the caller
                done.set_exception(error)

        def apply(rules: RuleSet) -> None:
            authenticator = self.authenticator
            fresh = replace(authenticator.policy, rules=rules)
            self._on_changed(_TABLES, lambda: authenticator.apply(fresh))
            done.set_result(None)

        self.workers.job(work)
        return done

    @property
    def keeps_bans(self) -> bool:
        return bool(self._security.bans_file)

    def add_ban(self, ban: Ban) -> Future[None]:
        """Write the ban to the file, then put it in force."""

        def work() -> None:
            add_ban(self._security.bans_file, ban, self._clock())
            until = ban.until or None
            self.audit.note("ban", by=ban.kind, value=ban.value, until=until, why=ban.why)

        return self._change_bans(work)

    def lift_ban(self, kind: str, value: str) -> Future[bool]:
        """Remove a ban of the file or one for flapping. Return False when there is none."""

        def work() -> bool:
            now = self._clock()
            is_lifted = kind == "client" and self.authenticator.bans.forgive(value, now)
            path = self._security.bans_file
            if path and lift_ban(path, kind, value, now):
                is_lifted = True
            if is_lifted:
                self.audit.note("unban", by=kind, value=value)
            return is_lifted

        return self._change_bans(work)

    def _change_bans(self, change: Callable[[], T]) -> Future[T]:
        """Change the file in a thread; the future is done when the bans are in force."""
        if self._is_over:
            raise RuntimeError("the broker is stopping")
        done: Future[T] = Future()

        def work() -> None:
            try:
                with self._ban_lock:  # changes take effect in the order in which they are written
                    result = change()
                    path = self._security.bans_file
                    found = read_bans(path) if path else []
                    self.workers.to_loop(lambda: apply(result, found))
            except Exception as error:  # for the caller
                done.set_exception(error)

        def apply(result: T, found: list[Ban]) -> None:
            if result is not False:
                self._on_changed("bans", lambda: self.authenticator.bans.replace(found))
            done.set_result(result)

        self.workers.job(work)
        return done

    def load_bans(self) -> object:
        """Read the file of bans again."""
        found: list[Any] = []

        def load() -> bool:
            found[:] = read_bans(self._security.bans_file)
            return True

        name = f"bans {self._security.bans_file}"
        return self._in_thread(name, load, lambda: self.authenticator.bans.replace(found))

    def _reload_rules(self) -> object:
        """Reload methods, rules, roles and limits; other changes in the file need a restart."""
        fresh: list[tuple[SecurityConfig, RuleSet, AuthMethods]] = []

        def load() -> bool:
            from mqtt_broker.server.config.config import read_security_of

            found = read_security_of(self._security.path)
            if found.rules_url != self._security.rules_url:
                raise ConfigError(
                    f"{found.path}: database_url of [acl] has changed; restart the broker"
                )
            if found.has_auth is not self._security.has_auth:
                raise ConfigError(
                    f"{found.path}: the first [[auth]] was added or the last removed; restart the "
                    "broker"
                )
            check_listeners(found, (e.name for e in self._config.endpoints))
            methods = AuthMethods(found.auth, self._engine, self._clock, self._methods)
            if self._security.has_rules and not found.has_rules:
                raise ConfigError(  # a truncated file would allow everything to everybody
                    f"{found.path}: the last [[acl]] was removed; restart the broker to do without "
                    "rules"
                )
            self._learn_cost(methods)
            fresh.append((found, self._rule_set(found), methods))
            return True

        def apply() -> None:
            found, rules, methods = fresh[0]
            chain = self.authenticator.policy.chain
            if found.auth != self._security.auth:  # connected clients stay
                self._methods = methods
                chain = self._make_chain(methods)
                self._watch_methods()
                self._close_unused(found)
            # The path of the file of bans does not change until a restart.
            self._security = replace(found, bans_file=self._security.bans_file)
            self.authenticator.apply(self._make_policy(found, chain, rules))

        return self._in_thread(f"rules of {self._security.path}", load, apply)

    def _poll(self) -> None:
        self._timer = self._loop.call_later(self._security.poll_s, self._poll)
        self._write_renewed()
        tables = self._methods.tables
        if self._is_polling or not (tables or self._sql_rules is not None):
            return
        self._is_polling = True
        users = list(self._broker.clients.users)
        fresh: list[RuleSet] = []

        def load() -> bool:
            try:
                is_changed = False
                for accounts in tables:
                    is_changed |= accounts.refresh(users)
                if self._sql_rules is not None and self._sql_rules.load(SQL_RULES_FROM):
                    fresh.append(self._rule_set(self._security))
                    is_changed = True
                self._trouble = ""
                return is_changed
            finally:
                self._is_polling = False

        def apply() -> None:
            if fresh:
                authenticator = self.authenticator
                authenticator.apply(replace(authenticator.policy, rules=fresh[0]))

        self._in_thread(_TABLES, load, apply)

    def _write_renewed(self) -> None:
        """Write the new hashes of accounts that had mosquitto's, many at a time."""
        for file in self._methods.files.values():
            if file.has_renewed:
                self.workers.job(partial(self._write_file, file))

    def _write_file(self, file: PasswordFile) -> None:
        try:
            count = file.write_renewed()
        except FileError as error:
            if file.path not in self._unwritable:
                self._unwritable.add(file.path)
                _log.warning(
                    "%s; mosquitto's password hashes in it cannot be replaced by argon2id", error
                )
        else:
            self._unwritable.discard(file.path)
            _log.info("%s: %d hashes of mosquitto replaced by argon2id", file.path, count)

    def stop(self) -> None:
        self._is_over = True
        for file in self._methods.files.values():
            if file.has_renewed:
                self._write_file(file)
        if self._timer is not None:
            self._timer.cancel()
        self.workers.stop()
        for engine in self.engines.values():
            engine.dispose()
        if self._audit_file is not None:
            self._audit_file.close()  # last: the steps above still log events


def open_security_service(
    config: Config, loop: asyncio.AbstractEventLoop, turn: Turn, reload: Reload
) -> SecurityService:
    """Return the service. Raises ConfigError when a file or database that it needs is unusable."""
    with _as_config_errors():
        return SecurityService(config, loop, turn, reload)


def check_access(security: SecurityConfig) -> None:
    """Read all files as `open_security_service` does, but no database. Raises ConfigError."""
    with _as_config_errors():
        for table in security.auth:
            if table.type == "password_file":
                with table.place_errors("file"):
                    PasswordFile(table.values["file"])
            elif table.type == "jwt":
                from mqtt_broker.security.authentication.jwt import read_keys

                with table.place_errors("key_file"):
                    read_keys(table.values["key_file"])
            elif table.type == "sql":
                from mqtt_broker.security.sql import open_engine

                with table.place_errors("database_url"):
                    open_engine(table.values["database_url"]).dispose()
        if security.rules_url:
            from mqtt_broker.security.sql import open_engine

            with _placed(security):
                open_engine(security.rules_url).dispose()
        if security.bans_file:
            read_bans(security.bans_file)


@contextlib.contextmanager
def _placed(security: SecurityConfig) -> Iterator[None]:
    """Prefix an error of the database of rules with the key that names it."""
    where = f"{security.rules_url_place or 'acl'}: database_url"
    try:
        yield
    except FileError as error:
        raise ConfigError(f"{where}: {error}") from None
    except Unavailable as error:
        raise DatabaseUnreachable(
            f"{where}: the database of rules cannot be read: {error}"
        ) from None


@contextlib.contextmanager
def _as_config_errors() -> Iterator[None]:
    try:
        yield
    except (FileError, Unavailable) as error:
        raise ConfigError(str(error)) from None
    except OSError as error:
        raise ConfigError(f"{error.filename}: {error.strerror}") from None
