"""What tests of authentication share: workers that wait until they are told, clients, a broker."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any
from unittest import mock

from mqtt_broker.codec import properties as prop
from mqtt_broker.codec.constants import V5
from mqtt_broker.codec.encode import encode_auth, encode_from_client
from mqtt_broker.codec.packets import Connect, Will
from mqtt_broker.codec.properties import Properties
from mqtt_broker.core.interfaces.access import ConnectRequest, PeerCertificate, Verdict
from mqtt_broker.security.authentication import password_hasher
from mqtt_broker.security.authentication.accounts import Account
from mqtt_broker.security.authentication.chain import Chain, ChainEntry, PasswordMethod
from mqtt_broker.security.authentication.password_hasher import Passwords, hash_password
from mqtt_broker.security.authenticator import Authenticator, SecurityPolicy
from mqtt_broker.security.protection.audit_log import Audit
from mqtt_broker.security.protection.bans import Bans, Flapping
from mqtt_broker.security.rules.client_limits import ClientLimitRules
from mqtt_broker.security.rules.rule_parser import rule_of
from mqtt_broker.security.rules.ruleset import RuleSet
from tests.core.peers import Peer, World

PASSWORDS = {"ann": b"ann's", "bob": b"bob's"}


def _cheaply() -> AbstractContextManager[object]:
    """Hash at the least cost that argon2 has: what a right cost is, is examined elsewhere."""
    return mock.patch.multiple(password_hasher, MEMORY_KIB=8, PASSES=1)


def cheap_passwords(remember_s: float = 0.0) -> Passwords:
    """Passwords whose hash for unknown users is cheap, too."""
    with _cheaply():
        return Passwords(remember_s)


def _hashed(password: bytes) -> str:
    with _cheaply():
        return hash_password(password)


HASHES = {name: _hashed(password) for name, password in PASSWORDS.items()}


class Later:
    """Workers whose work is done when, and in the order, the test says."""

    def __init__(self, room: int = 100) -> None:
        self.room = room
        self.waiting: list[tuple[ConnectRequest, Callable[[], Verdict]]] = []

    def submit(self, request: ConnectRequest, work: Callable[[], Verdict]) -> bool:
        if len(self.waiting) >= self.room:
            return False
        self.waiting.append((request, work))
        return True

    def do(self, world: World, place: int = 0) -> None:
        request, work = self.waiting.pop(place)
        request.reply(work(), world.now)
        world.settle()

    def do_all(self, world: World) -> None:
        while self.waiting:
            self.do(world)


class Known:
    """Accounts in memory; counts the look-ups."""

    def __init__(self, *accounts: Account, is_slow: bool = False) -> None:
        self.by_name = {account.username: account for account in accounts}
        self.is_slow = is_slow
        self.scram_iterations = 4096
        self.asked: list[str] = []
        self.error: Exception | None = None

    def find(self, username: str) -> Account | None:
        self.asked.append(username)
        if self.error is not None:
            raise self.error
        return self.by_name.get(username)

    def has(self, username: str) -> bool:
        return username in self.by_name

    def roles(self, username: str) -> frozenset[str] | None:
        account = self.by_name.get(username)
        return account.roles if account is not None else None


def accounts() -> Known:
    return Known(*(Account(name, hashed) for name, hashed in HASHES.items()))


class Gate:
    """A world whose broker has an authenticator, and all that is made of."""

    def __init__(
        self,
        *entries: ChainEntry,
        rules: Sequence[tuple[str, str, str] | dict[str, Any]] | None = None,
        asks: bool = True,
        bans: Bans | None = None,
        client_limits: ClientLimitRules | None = None,
        flapping: Flapping | None = None,
        roles: dict[str, frozenset[str]] | None = None,
        remember_s: float = 0.0,
        room: int = 100,
        **settings: Any,
    ) -> None:
        self.workers = Later(room)
        self.passwords = cheap_passwords(remember_s)
        self.known = accounts()
        self.lines: list[str] = []
        self.audit = Audit(self.lines.append, lambda: self.world.now)
        found = entries or (ChainEntry(PasswordMethod("file", self.known)),)
        chain = Chain(found, self.passwords, self.workers, lambda: self.world.now)
        self.authenticator = Authenticator(
            SecurityPolicy(
                chain if asks else None,
                rule_set(rules),
                roles or {},
                client_limits or ClientLimitRules(),
                flapping or Flapping(),
            ),
            audit=self.audit,
            clock=lambda: self.world.now,
            bans=bans,
        )
        self.world = World(access=self.authenticator, **settings)

    def use(self, *entries: ChainEntry) -> None:
        """Put a chain of these entries in force."""
        clock = lambda: self.world.now  # noqa: E731
        self.change(chain=Chain(entries, self.passwords, self.workers, clock))

    def change(self, **parts: Any) -> None:
        """Put a policy with these parts in force, as a reload does."""
        self.authenticator.apply(replace(self.authenticator.policy, **parts))

    def peer(self, version: int = V5, address: str = "192.0.2.1:1") -> Peer:
        peer = self.world.peer(version)
        peer.peer = address
        return peer

    def come(self, client_id: str, username: str | None = None, **fields: Any) -> Peer:
        """A peer whose CONNECT was sent, and settled."""
        peer = self.peer(fields.get("version", V5), fields.pop("address", "192.0.2.1:1"))
        certificate = fields.pop("certificate", None)
        if certificate is not None:
            assert isinstance(certificate, PeerCertificate)
            peer.certificate = certificate  # type: ignore[attr-defined]
        peer.send(connect(client_id, username, **fields))
        self.workers.do_all(self.world)
        return peer

    def enter(self, client_id: str, username: str | None = None, **fields: Any) -> Peer:
        """A peer that came in."""
        peer = self.come(client_id, username, **fields)
        assert reason_of(peer) == 0
        peer.take()
        return peer


def rule_set(rows: Sequence[tuple[str, str, str] | dict[str, Any]] | None) -> RuleSet:
    if rows is None:
        return RuleSet()
    found = []
    for number, row in enumerate(rows):
        if isinstance(row, tuple):
            row = {"permit": row[0], "action": row[1], "topic": row[2]}
        found.append(rule_of(number, where=f"row {number}", **row))
    return RuleSet(found, is_on=True)


def connect(
    client_id: str,
    username: str | None = None,
    *,
    password: bytes | None = None,
    version: int = V5,
    clean: bool = True,
    expiry: int = 0,
    method: str | None = None,
    data: bytes | None = None,
    will: Will | None = None,
) -> bytes:
    if password is None and username in PASSWORDS:
        password = PASSWORDS[username]
    found = Properties()
    if version == V5:
        if expiry:
            found[prop.SESSION_EXPIRY_INTERVAL] = expiry
        if method is not None:
            found[prop.AUTHENTICATION_METHOD] = method
        if data is not None:
            found[prop.AUTHENTICATION_DATA] = data
    packet = Connect(version, client_id, clean, 0, found, will, username, password)
    return encode_from_client(version, packet)


def auth(reason: int, method: str, data: bytes | None) -> bytes:
    found = Properties({prop.AUTHENTICATION_METHOD: method})
    if data is not None:
        found[prop.AUTHENTICATION_DATA] = data
    return encode_auth(reason, found)


def reason_of(peer: Peer) -> int:
    """Of the first packet received."""
    assert peer.received, "nothing came"
    reason: int = peer.received[0].reason  # type: ignore[union-attr]
    return reason


def paused(peer: Peer) -> bool:
    """Asked anew each time."""
    return peer.is_paused


def wanted(request: ConnectRequest) -> bool:
    return request.reply.is_wanted
