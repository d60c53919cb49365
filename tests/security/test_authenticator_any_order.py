"""Clients that come, go and come again while verdicts arrive in any order; an oracle watches.

who is in gave the right password of a user that was there when it was looked up
a session belongs to one user from its first connection to its last
nobody holds a client id twice, and what a client may do follows its own name
"""

from __future__ import annotations

import random

import pytest

from mqtt_broker.codec import reasons
from mqtt_broker.codec.packets import Connack, Publish
from mqtt_broker.core.clients import connection as states
from tests.core.peers import Peer, publish
from tests.security.gate import PASSWORDS, Gate, connect, rule_set

RULES = [("allow", "all", "u/%u/#"), ("allow", "all", "c/%c")]
CLIENTS = ("c1", "c2", "c3")
USERS = ("ann", "bob", "nobody")


class Attempt:
    def __init__(self, peer: Peer, client_id: str, username: str, *, is_right: bool) -> None:
        self.peer = peer
        self.client_id = client_id
        self.username = username
        self.is_right = is_right


def run(seed: int) -> int:
    rng = random.Random(seed)
    gate = Gate(rules=RULES, remember_s=1000.0)
    world, broker = gate.world, gate.world.broker
    attempts: list[Attempt] = []
    owners: dict[str, str] = {}
    for _ in range(60):
        action = rng.randrange(6)
        if action <= 1:
            client_id, username = rng.choice(CLIENTS), rng.choice(USERS)
            is_right = rng.random() < 0.7
            password = PASSWORDS.get(username, b"x") if is_right else b"wrong"
            peer = gate.peer()
            peer.send(
                connect(
                    client_id, username, password=password, clean=rng.random() < 0.3, expiry=50
                ),
                publish(f"u/{username}/x"),  # kept, until it is decided
            )
            is_right = is_right and username in PASSWORDS
            attempts.append(Attempt(peer, client_id, username, is_right=is_right))
        elif action == 2 and gate.workers.waiting:
            gate.workers.do(world, rng.randrange(len(gate.workers.waiting)))
        elif action == 3 and attempts:
            rng.choice(attempts).peer.drop()
        elif action == 4:
            world.wait(rng.choice([0.1, 5.0, 60.0]))
        elif attempts:
            one = rng.choice(attempts)
            if not one.peer.is_closed and one.peer.connection.state == states.ACTIVE:
                other = rng.choice(USERS)
                one.peer.send(publish(f"u/{other}/y", b"!", qos=1, packet_id=7))
                answer = one.peer.take()[-1]
                is_denied = answer.reason == reasons.NOT_AUTHORIZED
                assert is_denied is (other != one.username)
        check(gate, attempts, owners)
    gate.workers.do_all(world)
    check(gate, attempts, owners)
    gate.change(rules=rule_set([]))
    broker.reauthorize(world.now)
    world.wait(200)
    return sum(isinstance(p, Connack) for a in attempts for p in a.peer.received)


def check(gate: Gate, attempts: list[Attempt], owners: dict[str, str]) -> None:
    broker = gate.world.broker
    active = [a for a in attempts if a.peer.connection.state == states.ACTIVE]
    assert len(active) == len(broker.connections)
    for one in active:
        assert one.is_right and not one.peer.is_closed
        assert broker.connections[one.client_id] is one.peer.connection
        assert one.peer.connection.username == one.username
    for one in attempts:
        assert not any(isinstance(packet, Publish) for packet in one.peer.received)
    for client_id in CLIENTS:
        session = broker.sessions.get(client_id)
        if session is None:
            owners.pop(client_id, None)
            assert client_id not in broker.state.authorizer.guards
        else:
            assert session.username is not None
            assert owners.setdefault(client_id, session.username) == session.username
    assert sum(broker.clients.users.values()) == len(active)


@pytest.mark.parametrize("seed", range(60))
def test_any_order(seed: int) -> None:
    run(seed)


def test_the_runs_let_somebody_in() -> None:
    assert sum(run(seed) for seed in range(5)) > 5
