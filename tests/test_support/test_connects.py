"""CONNECTs in a test: users with passwords, refusals and delays that come once."""

from __future__ import annotations

import time

import pytest

from mqtt_broker.codec.constants import V311
from mqtt_broker.core.interfaces.access import OpenAccess
from mqtt_broker.test_support.connects import ConnectFaults, UserAccess
from mqtt_broker.testing import Broker, ThreadedBroker
from tests.core.peers import connect
from tests.test_support.peers import connected, login, opened


def reason_of(broker: ThreadedBroker, packet: bytes) -> int:
    with opened(broker) as peer:
        peer.send(packet)
        return peer.packet()[3]


def test_users_have_passwords() -> None:
    with ThreadedBroker(users={"ada": "secret", "bob": "pässword"}) as broker:
        assert reason_of(broker, login("a", "ada", "secret")) == 0
        assert reason_of(broker, login("b", "bob", "pässword")) == 0
        assert reason_of(broker, login("c", "ada", "wrong")) == 0x86
        assert reason_of(broker, login("d", "eve", "secret")) == 0x86
        assert reason_of(broker, login("e", "ada", "")) == 0x86
        assert reason_of(broker, connect("f")) == 0x87
        assert reason_of(broker, connect("g", method="SCRAM-SHA-256")) == 0x8C
        assert reason_of(broker, login("h", "ada", "wrong", V311)) == 4
        broker.publish("t", qos=1)  # of this process, without a password


def test_nobody_is_let_in_without_users() -> None:
    with ThreadedBroker(users={}) as broker:
        assert reason_of(broker, connect("a")) == 0x87


def test_users_and_an_access_are_one_too_many() -> None:
    assert UserAccess({}).guards_topics is False
    with pytest.raises(ValueError, match="users cannot be used with access"):
        Broker(users={}, access=OpenAccess())


def test_the_next_connects_are_refused_with_a_reason() -> None:
    with ThreadedBroker() as broker, connected(broker, "before"):
        broker.refuse_connects(0x89, times=2)
        broker.refuse_connects()
        broker.publish("t", qos=1)  # a client of this process is not the next
        found = [reason_of(broker, connect(f"c{number}")) for number in range(4)]
        assert found == [0x89, 0x89, 0x88, 0]
        assert [one.client_id for one in broker.clients] == ["before"]


def test_a_client_of_3_1_1_gets_the_code_of_its_version() -> None:
    with ThreadedBroker() as broker:
        broker.refuse_connects(0x88)
        assert reason_of(broker, connect("c", V311)) == 3


def test_a_refusal_survives_a_restart() -> None:
    with ThreadedBroker() as broker:
        broker.refuse_connects(0x89)
        broker.restart()
        assert [reason_of(broker, connect("c")) for _ in range(2)] == [0x89, 0]


def test_an_answer_comes_later_and_once() -> None:
    with ThreadedBroker(users={"ada": "secret"}) as broker:
        broker.delay_connects(0.1, times=2)
        for password, reason in (("secret", 0), ("wrong", 0x86)):
            began = time.monotonic()
            assert reason_of(broker, login("a", "ada", password)) == reason
            assert time.monotonic() - began >= 0.1
        broker.refuse_connects(0x89)
        broker.delay_connects(0.01)
        assert reason_of(broker, login("a", "ada", "secret")) == 0x89


def test_a_client_that_gives_up_before_its_answer_costs_nothing() -> None:
    with ThreadedBroker() as broker:
        broker.delay_connects(0.01)
        with opened(broker) as peer:
            peer.send(connect("a"))
        assert reason_of(broker, connect("b")) == 0


@pytest.mark.parametrize("reason", [0, 0x18, 0x98, 0x8E, 0x100, -1])
def test_what_no_connack_refuses_with(reason: int) -> None:
    with pytest.raises(ValueError, match="no CONNACK refuses a client with it"):
        ConnectFaults().refuse(reason, 1)


@pytest.mark.parametrize("times", [0, -1])
def test_at_least_one(times: int) -> None:
    with pytest.raises(ValueError, match="expected 1 or more"):
        ConnectFaults().refuse(0x89, times)
    with pytest.raises(ValueError, match="expected 1 or more"):
        ConnectFaults().delay(1.0, times)
