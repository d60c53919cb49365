"""Authenticate a client by a chain of methods, in the order of the configuration.

The first method that knows the client decides; a later one cannot allow what it denied. Work that
may wait (hashing, SQL) is done by the workers, and the verdict comes by the request's reply.

Nothing that a client can measure tells whether a user exists: a wrong password costs one look-up
in every table and one hash, and so does an unknown name; both are answered with 0x86.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Protocol

from mqtt_broker.codec import reasons
from mqtt_broker.core.interfaces.access import PENDING, Challenge, ConnectRequest, Verdict
from mqtt_broker.security.authentication import scram
from mqtt_broker.security.authentication.accounts import (
    Account,
    Accounts,
    RenewableAccounts,
)
from mqtt_broker.security.authentication.password_hasher import PASSWORD_BYTES_MAX, Passwords
from mqtt_broker.security.authentication.scram import ScramError
from mqtt_broker.security.files.errors import Unavailable
from mqtt_broker.security.rules.identity import TokenRule


@dataclass(frozen=True, slots=True)
class Proof:
    """A client has proven its user name, or is allowed without one."""

    username: str | None
    roles: frozenset[str] = frozenset()
    token_rules: tuple[TokenRule, ...] | None = None
    expires_at: float = 0.0
    method: str = ""
    auth_data: bytes | None = None
    accounts: Accounts | None = field(default=None, repr=False, compare=False)  # with its user


@dataclass(frozen=True, slots=True)
class Denied:
    """A method knows the client and refuses it."""

    reason: int
    why: str  # for the audit log, not for the client


Outcome = Proof | Denied | None  # None: the method does not know the client
BAD_PASSWORD: Final = Denied(reasons.BAD_USER_NAME_OR_PASSWORD, "wrong user name or password")
NO_CREDENTIALS: Final = Denied(reasons.NOT_AUTHORIZED, "no credentials")
BUSY: Final = Denied(reasons.SERVER_BUSY, "too many clients wait for authentication")
UNAVAILABLE: Final = Denied(reasons.SERVER_UNAVAILABLE, "accounts cannot be looked up")


class Workers(Protocol):
    """Does slow work in threads, in an order that is fair to all addresses."""

    def submit(self, request: ConnectRequest, work: Callable[[], Verdict]) -> bool:
        """Do the work and answer the request; False when too many wait."""


class Judge(Protocol):
    """Makes a verdict of an outcome."""

    def __call__(self, request: ConnectRequest, outcome: Proof | Denied) -> Verdict: ...


class AuthMethod(Protocol):
    """A method that authenticates a client without a stored password and without waiting."""

    name: str

    def prove(self, request: ConnectRequest, now: float) -> Outcome:
        """Return a proof or a denial; None when the request is not for this method."""
        ...


@dataclass(frozen=True, slots=True)
class PasswordMethod:
    """User name and password, compared with a stored account."""

    name: str
    accounts: Accounts


@dataclass(frozen=True, slots=True)
class ScramMethod:
    """SCRAM-SHA-256, with the keys of all password methods' accounts."""

    name: str = "scram"


class AnonymousMethod:
    """Allows clients that send neither user name nor password."""

    name = "anonymous"

    def prove(self, request: ConnectRequest, now: float) -> Outcome:
        if request.username is None and request.password is None:
            return Proof(None, method=self.name)
        return None


@dataclass(frozen=True, slots=True)
class ChainEntry:
    """A method, and the listeners whose clients it is for."""

    method: AuthMethod | PasswordMethod | ScramMethod
    listeners: frozenset[str] = frozenset()  # names; empty: all

    def applies_to(self, listener: str) -> bool:
        """Tell whether clients of this listener may use the method."""
        return not self.listeners or listener in self.listeners


class Chain:
    """All methods of a broker, asked in order."""

    def __init__(
        self,
        entries: Sequence[ChainEntry],
        passwords: Passwords,
        workers: Workers,
        clock: Callable[[], float],
        salt_secret: bytes = b"",
    ) -> None:
        self.entries = entries
        self.passwords = passwords
        self._workers = workers
        self._clock = clock
        # Salts for unknown users are made from it, so that they stay the same like real ones.
        self._salt_secret = salt_secret or secrets.token_bytes(32)

    def connect(self, request: ConnectRequest, judge: Judge) -> Verdict:
        """Authenticate the client, at once or later; `judge` makes the verdict."""
        entries = [one for one in self.entries if one.applies_to(request.listener)]
        if request.auth_method is not None:
            is_known = any(isinstance(one.method, ScramMethod) for one in entries)
            if request.auth_method != scram.METHOD or not is_known:  # [MQTT-4.12.0-1]
                denied = Denied(reasons.BAD_AUTHENTICATION_METHOD, "unknown method")
                return judge(request, denied)
            return self._begin_scram(request, entries, judge)
        accounts = _accounts_of(entries)
        if not accounts or request.username is None or request.password is None:
            return judge(request, self._prove(request, entries))
        early = self._prove_early(request, entries)
        if early is not None:
            return judge(request, early)

        def work() -> Verdict:
            return judge(request, self._prove(request, entries))

        if not self._workers.submit(request, work):
            return judge(request, BUSY)
        return PENDING

    def _prove_early(self, request: ConnectRequest, entries: Sequence[ChainEntry]) -> Outcome:
        """Ask the methods in front of the first one that may have to wait."""
        now = self._clock()
        for entry in entries:
            method = entry.method
            if isinstance(method, PasswordMethod):
                return None
            outcome = None if isinstance(method, ScramMethod) else method.prove(request, now)
            if outcome is not None:
                return outcome
        return None

    def _prove(self, request: ConnectRequest, entries: Sequence[ChainEntry]) -> Proof | Denied:
        now = self._clock()
        outcome: Outcome = None
        is_hashed = is_asked = False
        try:
            for entry in entries:
                method = entry.method
                if isinstance(method, PasswordMethod):
                    if request.username is None or request.password is None:
                        continue
                    is_asked = True
                    # Looked up even after a denial, so that all answers take as long.
                    account = method.accounts.find(request.username)
                    if outcome is None and account is not None and account.password_hash:
                        is_hashed = True
                        outcome = self._compare(request, account, method, now)
                elif outcome is None and not isinstance(method, ScramMethod):
                    outcome = method.prove(request, now)
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
        return BAD_PASSWORD if request.password is not None else NO_CREDENTIALS

    def _compare(
        self, request: ConnectRequest, account: Account, method: PasswordMethod, now: float
    ) -> Proof | Denied:
        assert request.password is not None
        password = request.password[:PASSWORD_BYTES_MAX]
        is_right = self.passwords.verify(account.password_hash, account.username, password, now)
        if is_right and len(request.password) <= PASSWORD_BYTES_MAX:
            self._renew(account, method.accounts, password)
            return Proof(
                account.username, account.roles, method=method.name, accounts=method.accounts
            )
        return BAD_PASSWORD

    def _renew(self, account: Account, accounts: Accounts, password: bytes) -> None:
        """Replace a hash that mosquitto made by one of ours, now that the password is known."""
        stored = account.password_hash
        if isinstance(accounts, RenewableAccounts) and stored is not None:
            if fresh := self.passwords.renewed(stored, password):
                accounts.renew(account.username, stored, fresh)

    # SCRAM.

    def _begin_scram(
        self, request: ConnectRequest, entries: Sequence[ChainEntry], judge: Judge
    ) -> Verdict:
        def on_first(data: bytes | None) -> Verdict:
            try:
                if not data:
                    raise ScramError("empty first message")
                first = scram.decode_client_first(data)
            except ScramError as error:
                return judge(request, Denied(reasons.NOT_AUTHORIZED, f"SCRAM: {error}"))
            # For rules and the audit log, in place of a user name in CONNECT.
            named = replace(request, username=first.username)

            def look_up() -> Verdict:
                return self._challenge(named, first, entries, judge)

            if not any(accounts.is_slow for accounts in _accounts_of(entries)):
                return look_up()
            if not self._workers.submit(named, look_up):
                return judge(named, BUSY)
            return PENDING

        if request.auth_data is None:
            return Challenge(None, on_first)  # the client waits for an empty challenge
        return on_first(request.auth_data)

    def _challenge(
        self,
        request: ConnectRequest,
        first: scram.ClientFirst,
        entries: Sequence[ChainEntry],
        judge: Judge,
    ) -> Verdict:
        found: Account | None = None
        accounts: Accounts | None = None
        try:
            for one in _accounts_of(entries):
                account = one.find(first.username)
                if found is None and account is not None and account.scram is not None:
                    found, accounts = account, one
        except Unavailable:
            return judge(request, UNAVAILABLE)
        keys = found.scram if found is not None else None
        if keys is None:
            costs = [one.scram_iterations for one in _accounts_of(entries)] or [scram.ITERATIONS]
            keys = scram.dummy_keys(self._salt_secret, first.username, costs[0])
        exchange = scram.Exchange(first, keys, secrets.token_urlsafe(18))

        def finish(data: bytes | None) -> Verdict:
            try:
                last = exchange.finish(data or b"")
                if found is None:
                    raise ScramError("wrong proof")
            except ScramError as error:
                return judge(request, Denied(reasons.NOT_AUTHORIZED, f"SCRAM: {error}"))
            proof = Proof(
                found.username, found.roles, method="scram", auth_data=last, accounts=accounts
            )
            return judge(request, proof)

        return Challenge(exchange.server_first, finish)


def _accounts_of(entries: Sequence[ChainEntry]) -> list[Accounts]:
    """Return the accounts of all password methods, in order."""
    return [one.method.accounts for one in entries if isinstance(one.method, PasswordMethod)]
