"""The access door of a running broker: files and databases opened, slow work in threads.

What is slow waits in a fair queue for a few threads; verdicts come back to the loop in small
portions, so that those who are connected do not notice a storm. Files are taken up again when
they change or on SIGHUP, tables are read every few seconds, and the core then checks again what
clients have.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

from mqtt_broker.codec import reasons
from mqtt_broker.core.access import ConnectRequest, Refuse, Verdict
from mqtt_broker.security.audit import Audit, AuditFile, to_logger
from mqtt_broker.security.bans import Bans, read_bans
from mqtt_broker.security.certificates import CertificateWay
from mqtt_broker.security.chain import AnonymousWay, Chain, PasswordWay, ScramWay, Step
from mqtt_broker.security.door import Door
from mqtt_broker.security.errors import FileError, Unavailable
from mqtt_broker.security.identity import address_of
from mqtt_broker.security.password_file import PasswordFile, open_to_others
from mqtt_broker.security.queueing import FairQueue
from mqtt_broker.security.ruleset import RuleSet
from mqtt_broker.server.security_tables import SQL_RULES_FROM, AuthTable, Security
from mqtt_broker.server.tables import ConfigError

if TYPE_CHECKING:
    from mqtt_broker.security.passwords import Passwords
    from mqtt_broker.security.sql import SqlAccounts, SqlRules
    from mqtt_broker.security.tokens import TokenWay
    from mqtt_broker.server.app import Server

_VERDICTS_A_TURN: Final = 32
_STOP_S: Final = 2.0
_log = logging.getLogger("fleetmq")


class Threads:
    """Slow work of the access door. `Workers` for the chain."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, count: int, waiting_max: int, server: Server
    ) -> None:
        self._loop = loop
        self._server = server
        self._waiting: FairQueue[tuple[ConnectRequest, Callable[[], Verdict]]] = FairQueue(
            waiting_max
        )
        self._jobs: deque[Callable[[], None]] = deque()
        self._ready = threading.Condition()
        self._is_over = False
        self._done: deque[tuple[ConnectRequest, Verdict]] = deque()
        self._is_scheduled = False
        self._threads = [
            threading.Thread(target=self._run, name=f"fleetmq-access-{n}", daemon=True)
            for n in range(count)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def waiting(self) -> int:
        return self._waiting.count

    def submit(self, request: ConnectRequest, work: Callable[[], Verdict]) -> bool:
        address = address_of(request.peer)
        with self._ready:
            if not self._waiting.put(str(address), (request, work)):
                return False
            self._ready.notify()
        return True

    def job(self, work: Callable[[], None]) -> None:
        """Something else that is slow, before clients that wait."""
        with self._ready:
            self._jobs.append(work)
            self._ready.notify()

    def _run(self) -> None:
        while True:
            with self._ready:
                while not (self._is_over or self._jobs or self._waiting.count):
                    self._ready.wait()
                if self._is_over:
                    return
                job = self._jobs.popleft() if self._jobs else None
                found = None if job is not None else self._waiting.take()
            if job is not None:
                job()
            elif found is not None:
                self._decide(*found)

    def _decide(self, request: ConnectRequest, work: Callable[[], Verdict]) -> None:
        if not request.reply.is_wanted:
            return
        try:
            verdict = work()
        except Exception as error:  # ours: it may cost this client its way in, nobody else
            _log.error("internal error in the access door", exc_info=error)
            verdict = Refuse(reasons.UNSPECIFIED_ERROR)
        with self._ready:
            if self._is_over:
                return
            self._done.append((request, verdict))
            is_first, self._is_scheduled = not self._is_scheduled, True
        if is_first:
            self.to_loop(self._deliver)

    def to_loop(self, act: Callable[[], None]) -> None:
        try:
            self._loop.call_soon_threadsafe(act)
        except RuntimeError:  # the loop has ended, and with it whoever waits
            return

    def _deliver(self) -> None:
        """On the loop: some verdicts, then the sockets have their turn."""
        with self._ready:
            count = min(len(self._done), _VERDICTS_A_TURN)
            some = [self._done.popleft() for _ in range(count)]
            self._is_scheduled = bool(self._done)
            is_more = self._is_scheduled
        for request, verdict in some:
            request.reply(verdict, self._server.now())
        self._server.end_turn()
        if is_more:
            self._loop.call_soon(self._deliver)

    def stop(self) -> None:
        with self._ready:
            self._is_over = True
            self._ready.notify_all()
        for thread in self._threads:
            thread.join(_STOP_S)


class Guardian:
    """One broker's door, and everything that has to be read, watched and closed for it."""

    def __init__(self, server: Server, security: Security, clock: Callable[[], float]) -> None:
        self._server = server
        self._security = security
        self._clock = clock
        self._files: list[PasswordFile] = []
        self._tokens: list[TokenWay] = []
        self._sql_accounts: list[SqlAccounts] = []
        self._sql_rules: SqlRules | None = None
        self._engines: dict[str, Any] = {}
        self._passwords: Passwords | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._is_polling = self._is_over = False
        self._trouble = ""  # why nothing could be read the last time
        self._audit_file = AuditFile(security.audit_file) if security.audit_file else None
        self.audit = Audit(self._audit_file or to_logger, clock, connects=security.audit_connects)
        count = security.hash_threads or min(4, os.cpu_count() or 1)
        self.threads = Threads(server.loop, count, security.waiting_max, server)
        try:
            self.door = self._make_door()
        except BaseException:
            self.stop()
            raise

    def _make_door(self) -> Door:
        security = self._security
        chain = self._make_chain() if security.asks else None
        if security.rules_url:
            from mqtt_broker.security.sql import SqlRules

            self._sql_rules = SqlRules(self._engine(security.rules_url))
            self._sql_rules.load(SQL_RULES_FROM)
        bans = Bans(security.flapping)
        if security.bans_file:
            bans.replace(read_bans(security.bans_file))
        return Door(
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

    def _make_chain(self) -> Chain:
        from mqtt_broker.security.passwords import Passwords

        self._passwords = Passwords(self._security.remember_passwords_s)
        steps = [Step(self._way(table), table.listeners) for table in self._security.auth]
        open_to_all = frozenset(
            endpoint.name
            for endpoint in self._server.config.endpoints
            if endpoint.rules.allow_anonymous
        )
        if open_to_all:
            steps.append(Step(AnonymousWay(), open_to_all))
        self._learn_cost()
        return Chain(steps, self._passwords, self.threads, self._clock)

    def _way(self, table: AuthTable) -> Any:
        values = table.values
        if table.type == "password_file":
            file = PasswordFile(values["file"])
            if open_to_others(file.path):
                _log.warning("%s: every user of this machine may read or write it", file.path)
            self._files.append(file)
            return PasswordWay(table.name, file)
        if table.type == "sql":
            from mqtt_broker.security.sql import SqlAccounts

            engine = self._engine(values["database_url"])
            accounts = SqlAccounts(engine, self._clock, float(values.get("cache_s", 5.0)))
            self._sql_accounts.append(accounts)
            return PasswordWay(table.name, accounts)
        if table.type == "jwt":
            from mqtt_broker.security.tokens import Claims, TokenWay

            claims = Claims(
                values.get("username_claim", "sub"),
                values.get("roles_claim", "roles"),
                values.get("acl_claim", "acl"),
                values.get("client_id_claim", ""),
                values.get("issuer", ""),
                values.get("audience", ""),
                float(values.get("leeway_s", 0.0)),
                values.get("require_expiry", True),
            )
            way = TokenWay(values["key_file"], claims, name=table.name)
            self._tokens.append(way)
            return way
        if table.type == "certificate":
            roles = frozenset(values.get("roles", ()))
            return CertificateWay(values.get("username_from", "cn"), roles=roles, name=table.name)
        return ScramWay(table.name) if table.type == "scram" else AnonymousWay()

    def _engine(self, url: str) -> Any:
        from mqtt_broker.security.sql import open_engine

        if url not in self._engines:
            self._engines[url] = open_engine(url)
        return self._engines[url]

    def _learn_cost(self) -> None:
        if self._passwords is not None:
            self._passwords.learn_cost([h for file in self._files for h in file.hashes()])

    # What changes.

    def figures(self) -> dict[str, int]:
        """For `$SYS`: events by reason, and who waits."""
        found = {"waiting": self.threads.waiting}
        for name, count in self.audit.counts.copy().items():
            found[name.lower().replace(" ", "_")] = count
        if self._passwords is not None:
            found["hashes"] = self._passwords.hashes
        return found

    def start(self) -> None:
        self._server.broker.access_figures = self.figures
        reload = self._server.reload
        security = self._security
        for file in self._files:
            reload.add(f"password file {file.path}", [file.path], self._later(file.load))
        for way in self._tokens:
            reload.add(f"keys {way.path}", [way.path], self._later(way.load))
        if security.bans_file:
            reload.add(f"bans {security.bans_file}", [security.bans_file], self.load_bans)
        if security.path:
            reload.add(f"rules of {security.path}", [security.path], self._reload_rules)
        if self._audit_file is not None:
            reload.add("audit log", [], self._audit_file.reopen)
        if self._sql_accounts or self._sql_rules is not None:
            self._timer = self._server.loop.call_later(security.poll_s, self._poll)

    def _later(self, load: Callable[[], object]) -> Callable[[], None]:
        """Read in a thread: a file may be large, or its disk away."""

        def act() -> None:
            self._aside(lambda: load() is not False)

        return act

    def _aside(self, load: Callable[[], bool], apply: Callable[[], None] | None = None) -> None:
        """`load` in a thread; when it says that something changed, `apply` on the loop."""

        def work() -> None:
            try:
                is_changed = load()
            except (FileError, ConfigError, Unavailable, OSError) as error:
                self._tell_trouble(str(error))
                return
            except Exception as error:  # ours: the broker goes on with what it has
                _log.error("internal error while access rules were read", exc_info=error)
                return
            self._trouble = ""
            if is_changed:
                self._learn_cost()
                self.threads.to_loop(lambda: self._on_changed(apply))

        self.threads.job(work)

    def _tell_trouble(self, text: str) -> None:
        """Once, however often it is met: a database that is away is asked every few seconds."""
        if text != self._trouble:
            self._trouble = text
            self.audit.note("reload_failed", why=text)
            _log.error("access rules: not taken up, the old ones stay: %s", text)

    def _on_changed(self, apply: Callable[[], None] | None) -> None:
        if self._is_over:
            return
        if apply is not None:
            apply()
        self.audit.note("reloaded")
        self._server.broker.recheck(self._server.now())
        self._server.end_turn()

    def load_bans(self) -> None:
        found: list[Any] = []

        def load() -> bool:
            found[:] = read_bans(self._security.bans_file)
            return True

        self._aside(load, lambda: self.door.bans.replace(found))

    def _reload_rules(self) -> None:
        """Rules, roles and limits of clients; the rest of the file counts at the next start."""
        fresh: list[tuple[Security, RuleSet]] = []

        def load() -> bool:
            from mqtt_broker.server.config import read_security_of

            found = read_security_of(self._security.path)
            if found.rules_url != self._security.rules_url:
                raise ConfigError(f"{found.path}: another database_url of acl needs a new start")
            if found.auth != self._security.auth:
                _log.warning("%s: another [[auth]] counts at the next start", found.path)
            of_tables = self._sql_rules.rules if self._sql_rules is not None else []
            fresh.append((found, RuleSet([*found.rules, *of_tables], is_on=found.has_rules)))
            return True

        def apply() -> None:
            found, rules = fresh[0]
            self._security = found
            self.door.rules = rules
            self.door.roles = found.roles
            self.door.tiers = found.tiers
            self.door.bans.flapping = found.flapping
            self.door.throttle.limits = found.limits

        self._aside(load, apply)

    def _poll(self) -> None:
        self._timer = self._server.loop.call_later(self._security.poll_s, self._poll)
        if self._is_polling:
            return
        self._is_polling = True
        users = list(self._server.broker.users)
        fresh: list[RuleSet] = []

        def load() -> bool:
            try:
                is_changed = False
                for accounts in self._sql_accounts:
                    is_changed |= accounts.refresh(users)
                if self._sql_rules is not None and self._sql_rules.load(SQL_RULES_FROM):
                    fresh.append(self._rule_set())
                    is_changed = True
                return is_changed
            finally:
                self._is_polling = False

        def apply() -> None:
            if fresh:
                self.door.rules = fresh[0]

        self._aside(load, apply)

    def stop(self) -> None:
        self._is_over = True
        if self._timer is not None:
            self._timer.cancel()
        self.threads.stop()
        for engine in self._engines.values():
            engine.dispose()
        if self._audit_file is not None:
            self._audit_file.close()  # last: what the others said is in it


def open_guardian(server: Server, security: Security) -> Guardian:
    """ConfigError in one line when a file or a database it needs cannot be used."""
    with _as_config_errors():
        return Guardian(server, security, server.now)


def check_access(security: Security) -> None:
    """Read what `open_guardian` would, and change nothing. Databases are not asked."""
    with _as_config_errors():
        for table in security.auth:
            if table.type == "password_file":
                PasswordFile(table.values["file"])
            elif table.type == "jwt":
                from mqtt_broker.security.tokens import read_keys

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
