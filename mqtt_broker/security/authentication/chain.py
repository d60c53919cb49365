"""Who comes in: ways to prove it, asked in the order configured.

The first way that knows the client decides, and what it refuses no later one lets in. What may
wait (hashing, SQL) is done by the workers, and the verdict comes by the request's reply.

Nothing a stranger can measure tells a user who exists from one who does not: a wrong password is
one look-up everywhere and one hash, and so is an unknown name; both are answered with 0x86.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Protocol

from mqtt_broker.codec import reasons
from mqtt_broker.core.interfaces.access import PENDING, Challenge, ConnectRequest, Verdict
from mqtt_broker.security.authentication import scram
from mqtt_broker.security.authentication.accounts import Account, Accounts
from mqtt_broker.security.authentication.password_hasher import PASSWORD_BYTES_MAX, Passwords
from mqtt_broker.security.authentication.scram import ScramError
from mqtt_broker.security.files.errors import Unavailable
from mqtt_broker.security.rules.identity import TokenRule


@dataclass(frozen=True, slots=True)
class Proof:
    """A client is who it says."""

    username: str | None
    roles: frozenset[str] = frozenset()
    grants: tuple[TokenRule, ...] | None = None
    expires_at: float = 0.0
    way: str = ""
    auth_data: bytes | None = None
    accounts: Accounts | None = field(default=None, repr=False, compare=False)  # it is one of


@dataclass(frozen=True, slots=True)
class Denied:
    reason: int
    why: str  # for the audit log, not for the client


Outcome = Proof | Denied | None  # None: not known here
BAD_PASSWORD: Final = Denied(reasons.BAD_USER_NAME_OR_PASSWORD, "wrong user name or password")
NOBODY: Final = Denied(reasons.NOT_AUTHORIZED, "no credentials")
UNAVAILABLE: Final = Denied(reasons.SERVER_UNAVAILABLE, "accounts cannot be looked up")


class Workers(Protocol):
    """Does slow work elsewhere, those who wait in a fair order."""

    def submit(self, request: ConnectRequest, work: Callable[[], Verdict]) -> bool:
        """False: too many wait already."""


class Judge(Protocol):
    """What the door makes of an outcome."""

    def __call__(self, request: ConnectRequest, outcome: Proof | Denied) -> Verdict: ...


class AuthMethod(Protocol):
    """One way to prove who one is, without a password of ours."""

    name: str

    def prove(self, request: ConnectRequest, now: float) -> Outcome: ...


@dataclass(frozen=True, slots=True)
class PasswordMethod:
    """User name and password, compared with an account."""

    name: str
    accounts: Accounts


@dataclass(frozen=True, slots=True)
class ScramMethod:
    """SCRAM-SHA-256 with the keys of every password way's accounts."""

    name: str = "scram"


class AnonymousMethod:
    """Whoever brings nothing to be checked."""

    name = "anonymous"

    def prove(self, request: ConnectRequest, now: float) -> Outcome:
        if request.username is None and request.password is None:
            return Proof(None, way=self.name)
        return None


@dataclass(frozen=True, slots=True)
class ChainEntry:
    way: AuthMethod | PasswordMethod | ScramMethod
    listeners: frozenset[str] = frozenset()  # names; empty: all

    def counts_at(self, listener: str) -> bool:
        return not self.listeners or listener in self.listeners


class Chain:
    def __init__(
        self,
        steps: Sequence[ChainEntry],
        passwords: Passwords,
        workers: Workers,
        clock: Callable[[], float],
        salt_secret: bytes = b"",
    ) -> None:
        self.steps = steps
        self.passwords = passwords
        self._workers = workers
        self._clock = clock
        # What salts for unknown users are made from: those of known ones do not change either.
        self._salt_secret = salt_secret or secrets.token_bytes(32)

    def connect(self, request: ConnectRequest, judge: Judge) -> Verdict:
        steps = [step for step in self.steps if step.counts_at(request.listener)]
        if request.auth_method is not None:
            is_known = any(isinstance(step.way, ScramMethod) for step in steps)
            if request.auth_method != scram.METHOD or not is_known:  # [MQTT-4.12.0-1]
                denied = Denied(reasons.BAD_AUTHENTICATION_METHOD, "unknown method")
                return judge(request, denied)
            return self._begin(request, steps, judge)
        accounts = [s.way.accounts for s in steps if isinstance(s.way, PasswordMethod)]
        if not accounts or request.username is None or request.password is None:
            return judge(request, self._prove(request, steps))
        early = self._settled_early(request, steps)
        if early is not None:
            return judge(request, early)

        def work() -> Verdict:
            return judge(request, self._prove(request, steps))

        if not self._workers.submit(request, work):
            return judge(request, Denied(reasons.SERVER_BUSY, "too many wait to be let in"))
        return PENDING

    def _settled_early(self, request: ConnectRequest, steps: Sequence[ChainEntry]) -> Outcome:
        """What a way that does not wait says, when it is asked before any that does."""
        now = self._clock()
        for step in steps:
            way = step.way
            if isinstance(way, PasswordMethod):
                return None
            outcome = None if isinstance(way, ScramMethod) else way.prove(request, now)
            if outcome is not None:
                return outcome
        return None

    def _prove(self, request: ConnectRequest, steps: Sequence[ChainEntry]) -> Proof | Denied:
        now = self._clock()
        outcome: Outcome = None
        is_hashed = is_asked = False
        try:
            for step in steps:
                way = step.way
                if isinstance(way, PasswordMethod):
                    if request.username is None or request.password is None:
                        continue
                    is_asked = True
                    account = way.accounts.find(request.username)  # also of one who is denied
                    if outcome is None and account is not None and account.password_hash:
                        is_hashed = True
                        outcome = self._compare(request, account, way, now)
                elif outcome is None and not isinstance(way, ScramMethod):
                    outcome = way.prove(request, now)
                if isinstance(outcome, Proof):
                    return outcome
        except Unavailable:
            return UNAVAILABLE
        if outcome is None and is_asked and not is_hashed:
            assert request.username is not None and request.password is not None
            password = request.password[:PASSWORD_BYTES_MAX]
            self.passwords.verify(None, request.username, password, now)
        if outcome is not None:
            return outcome
        return BAD_PASSWORD if request.password is not None else NOBODY

    def _compare(
        self, request: ConnectRequest, account: Account, way: PasswordMethod, now: float
    ) -> Proof | Denied:
        assert request.password is not None
        password = request.password[:PASSWORD_BYTES_MAX]
        is_right = self.passwords.verify(account.password_hash, account.username, password, now)
        if is_right and len(request.password) <= PASSWORD_BYTES_MAX:
            return Proof(account.username, account.roles, way=way.name, accounts=way.accounts)
        return BAD_PASSWORD

    # SCRAM.

    def _begin(self, request: ConnectRequest, steps: Sequence[ChainEntry], judge: Judge) -> Verdict:
        def first(data: bytes | None) -> Verdict:
            try:
                if not data:
                    raise ScramError("an empty first message")
                said = scram.decode_client_first(data)
            except ScramError as error:
                return judge(request, Denied(reasons.NOT_AUTHORIZED, f"SCRAM: {error}"))
            # Rules and the audit log are about who tries, not about what CONNECT says beside it.
            named = replace(request, username=said.username)

            def look_up() -> Verdict:
                return self._challenge(named, said, steps, judge)

            if not any(
                isinstance(step.way, PasswordMethod) and step.way.accounts.is_slow for step in steps
            ):
                return look_up()
            if not self._workers.submit(named, look_up):
                return judge(named, Denied(reasons.SERVER_BUSY, "too many wait to be let in"))
            return PENDING

        if request.auth_data is None:
            return Challenge(None, first)  # it asks to be asked
        return first(request.auth_data)

    def _challenge(
        self,
        request: ConnectRequest,
        said: scram.ClientFirst,
        steps: Sequence[ChainEntry],
        judge: Judge,
    ) -> Verdict:
        found: Account | None = None
        accounts: Accounts | None = None
        try:
            for step in steps:
                if isinstance(step.way, PasswordMethod):
                    account = step.way.accounts.find(said.username)
                    if found is None and account is not None and account.scram is not None:
                        found, accounts = account, step.way.accounts
        except Unavailable:
            return judge(request, UNAVAILABLE)
        keys = found.scram if found is not None else None
        if keys is None:
            of_steps = [s.way.accounts for s in steps if isinstance(s.way, PasswordMethod)]
            costs = [of_step.scram_iterations for of_step in of_steps] or [scram.ITERATIONS]
            keys = scram.invented_keys(self._salt_secret, said.username, costs[0])
        exchange = scram.Exchange(said, keys, secrets.token_urlsafe(18))

        def finish(data: bytes | None) -> Verdict:
            try:
                last = exchange.finish(data or b"")
                if found is None:
                    raise ScramError("a wrong proof")
            except ScramError as error:
                return judge(request, Denied(reasons.NOT_AUTHORIZED, f"SCRAM: {error}"))
            proof = Proof(
                found.username, found.roles, way="scram", auth_data=last, accounts=accounts
            )
            return judge(request, proof)

        return Challenge(exchange.server_first, finish)
