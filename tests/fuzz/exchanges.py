"""AUTH fuzzed: SCRAM exchanges, honest and not, against a broker's whole access door.

scram_once   a script of messages; nobody comes in but by the one right proof
script       an input for it that means something
"""

from __future__ import annotations

import base64
import functools
import hashlib
import hmac
import random
from typing import Any, Final

from mqtt_broker.codec import properties as prop
from mqtt_broker.codec import reasons
from mqtt_broker.codec.encode import PINGREQ_BYTES
from mqtt_broker.codec.errors import Violation
from mqtt_broker.codec.packets import Auth, Connack, Disconnect, Pingresp
from mqtt_broker.core.clients.connection import ACTIVE
from mqtt_broker.security.authentication import scram
from mqtt_broker.security.authentication.accounts import Account
from mqtt_broker.security.authentication.chain import Chain, ChainEntry, PasswordMethod, ScramMethod
from mqtt_broker.security.authentication.password_hasher import Passwords
from mqtt_broker.security.authentication.scram import METHOD, ScramError
from mqtt_broker.security.authenticator import Authenticator, SecurityPolicy
from mqtt_broker.security.protection.audit_log import Audit
from mqtt_broker.security.rules.ruleset import RuleSet
from tests.core.peers import Peer, World
from tests.security.gate import Known, Later, auth, connect

PASSWORD: Final = b"pencil"
SALT: Final = bytes(range(16))
KEYS: Final = scram.make_keys(PASSWORD, SALT, scram.ITERATIONS_MIN)
STEPS_MAX: Final = 12
# What a step sends. [kind, size, bytes]: the bytes change an honest message, or are the message.
CONNECT_FIRST, CONNECT_RAW, FIRST_AGAIN, LAST, CONTINUE_RAW, AGAIN_RAW, LEAVE = KINDS = range(7)


@functools.cache
def passwords() -> Passwords:
    """It makes a hash when it is made, which takes 15 ms."""
    return Passwords(0.0)


class Place:
    """A world with a door that knows `ann`."""

    def __init__(self) -> None:
        entries = (
            ChainEntry(PasswordMethod("file", Known(Account("ann", scram=KEYS)))),
            ChainEntry(ScramMethod()),
        )
        chain = Chain(entries, passwords(), Later(), lambda: self.world.now)
        audit = Audit(lambda line: None, lambda: self.world.now)
        authenticator = Authenticator(
            SecurityPolicy(chain, RuleSet()), audit=audit, clock=lambda: self.world.now
        )
        self.world = World(access=authenticator)


@functools.cache
def salted(salt: bytes, rounds: int) -> bytes:
    return hashlib.pbkdf2_hmac("sha256", PASSWORD, salt, rounds)


class Honest:
    """A client that knows the password of `ann`, and says who else it might be."""

    def __init__(self, username: str) -> None:
        self.bare = f"n={username},r=clientnonce"
        self.first = f"n,,{self.bare}".encode()

    def last(self, server_first: bytes) -> bytes:
        fields = dict(part.split("=", 1) for part in server_first.decode().split(","))
        secret = salted(base64.b64decode(fields["s"]), int(fields["i"]))
        key = hmac.digest(secret, b"Client Key", "sha256")
        without = f"c=biws,r={fields['r']}"
        message = f"{self.bare},{server_first.decode()},{without}".encode()
        signature = hmac.digest(hashlib.sha256(key).digest(), message, "sha256")
        proof = bytes(a ^ b for a, b in zip(key, signature, strict=True))
        return without.encode() + b",p=" + base64.b64encode(proof)


def changed(message: bytes, how: bytes) -> bytes:
    """Nothing: as it is. Else pairs of a place and what is to stand there; an odd byte cuts."""
    out = bytearray(message)
    for place, value in zip(how[::2], how[1::2], strict=False):
        if out:
            out[place % len(out)] = value
    return bytes(out[: how[-1]]) if len(how) % 2 else bytes(out)


class Caller:
    """One client, and what the broker last asked of it."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.peer: Peer | None = None
        self.honest = Honest("ann")
        self.server_first = b""
        self.is_proved = False  # the last message was the one right one
        self.was_in = False

    def step(self, kind: int, data: bytes) -> None:
        peer = self.peer
        if kind in (CONNECT_FIRST, CONNECT_RAW):
            if peer is not None and not peer.is_closed:
                return
            self.honest = Honest("nobody" if data[:1] == b"?" else "ann")
            first = changed(self.honest.first, data) if kind == CONNECT_FIRST else data
            peer = self.peer = self.world.peer()
            self.server_first, self.was_in = b"", False
            self._say(connect("c", method=METHOD, data=first))
        elif peer is None or peer.is_closed:
            return
        elif kind == FIRST_AGAIN:
            self._say(auth(reasons.REAUTHENTICATE, METHOD, changed(self.honest.first, data)))
        elif kind == LAST and self.server_first:
            right = self.honest.last(self.server_first)
            message = changed(right, data)
            self._say(auth(reasons.CONTINUE_AUTHENTICATION, METHOD, message), message == right)
        elif kind == CONTINUE_RAW:
            self._say(auth(reasons.CONTINUE_AUTHENTICATION, METHOD, data))
        elif kind == AGAIN_RAW:
            self._say(auth(reasons.REAUTHENTICATE, METHOD, data))
        elif kind == LEAVE:
            peer.drop()

    def _say(self, packet: bytes, is_right: bool = False) -> None:
        peer = self.peer
        assert peer is not None
        self.is_proved = is_right
        peer.send(packet)
        for answer in peer.take():
            self._hear(answer)
        assert self.was_in or peer.connection.state != ACTIVE

    def _hear(self, answer: Any) -> None:
        assert not isinstance(answer, Violation), answer
        if isinstance(answer, Auth) and answer.reason == reasons.CONTINUE_AUTHENTICATION:
            self.server_first = answer.properties.binary(prop.AUTHENTICATION_DATA) or b""
        elif isinstance(answer, Auth) or (isinstance(answer, Connack) and not answer.reason):
            assert self.is_proved, "nobody comes in without the proof"
            assert answer.properties.binary(prop.AUTHENTICATION_DATA), "the broker proves itself"
            assert self.world.broker.connections["c"].username == "ann"
            self.server_first, self.was_in = b"", True
        else:
            assert isinstance(answer, Connack | Disconnect)
            assert answer.reason >= 0x80 and self.peer is not None and self.peer.is_closed


def scram_once(data: bytes) -> None:
    _check_stored_keys(data)
    world = Place().world
    witness = world.peer()
    witness.send(connect("witness", method=METHOD, data=Honest("ann").first))
    caller = Caller(world)
    at = steps = 0
    while at + 2 <= len(data) and steps < STEPS_MAX:
        kind, size = data[at] % len(KINDS), data[at + 1]
        caller.step(kind, data[at + 2 : at + 2 + size])
        at += 2 + size
        steps += 1
    # Who was half-way through an exchange of its own all the while comes in.
    server_first = witness.take()[0].properties.binary(prop.AUTHENTICATION_DATA)
    last = Honest("ann").last(server_first)
    witness.send(auth(reasons.CONTINUE_AUTHENTICATION, METHOD, last), PINGREQ_BYTES)
    connack, pong = witness.take()
    assert connack.reason == 0 and isinstance(pong, Pingresp)


def _check_stored_keys(data: bytes) -> None:
    """What stands in a password file or a table."""
    try:
        found = scram.decode_stored_keys(data.decode("utf-8", "replace"))
    except ScramError:
        return
    assert scram.decode_stored_keys(found.encode()) == found


def script(rng: random.Random) -> bytes:
    out = bytearray()
    for _ in range(rng.randint(1, 3)):
        out += _step(rng, CONNECT_FIRST)
        for _ in range(rng.randint(0, 2)):
            out += _step(rng, LAST)
            out += _step(rng, rng.choice((FIRST_AGAIN, FIRST_AGAIN, AGAIN_RAW, CONTINUE_RAW)))
        out += _step(rng, rng.choice(KINDS))
    return bytes(out)


def _step(rng: random.Random, kind: int) -> bytes:
    data = b""
    if kind in (CONNECT_RAW, CONTINUE_RAW, AGAIN_RAW):
        data = changed(rng.choice(MESSAGES), _change(rng))
    elif rng.random() < 0.4:
        data = _change(rng)
    return bytes((kind, len(data))) + data


def _change(rng: random.Random) -> bytes:
    found = bytearray()
    for _ in range(rng.randint(0, 3)):
        found += bytes((rng.randrange(256), rng.choice((*b",=nrcpv\0", rng.randrange(256)))))
    return bytes(found) + (bytes((rng.randrange(100),)) if rng.random() < 0.2 else b"")


MESSAGES: Final = (
    b"n,,n=ann,r=clientnonce",
    b"y,a=ann,n=ann,r=clientnonce",
    b"p=tls-unique,,n=ann,r=clientnonce",
    b"n,,n=a=2Cb=3Dc,r=clientnonce,x=y",
    b"n,,m=ext,n=ann,r=clientnonce",
    b"c=biws,r=clientnonce,p=AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=",
    b"c=biws,r=clientnonce,p=",
    KEYS.encode().encode(),
    b"",
)
