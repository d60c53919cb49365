"""Enhanced authentication and late answers, through the core's access door."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from mqtt_broker.core import dispatch
from mqtt_broker.core.broker import Broker
from mqtt_broker.core.clients.connection import Connection
from mqtt_broker.core.interfaces.access import (
    PENDING,
    Allow,
    Challenge,
    ConnectRequest,
    OpenAccess,
    Refuse,
    Verdict,
)
from mqtt_broker.core.limits.settings import Settings
from tests.spec import harness

PLAIN_CONNACK = bytes.fromhex("20 0E 00 00 0B 22000A 27001E8480 210014")


class Door(OpenAccess):
    """Answers with what the test says."""

    def __init__(self, answer: Callable[[ConnectRequest], Verdict]) -> None:
        self.answer = answer

    def connect(self, request: ConnectRequest) -> Verdict:
        return self.answer(request)


class Client:
    def __init__(self, answer: Callable[[ConnectRequest], Verdict]) -> None:
        settings = Settings(sys_interval_s=0)
        self.broker = Broker(settings, now=0.0, rng=random.Random(1), access=Door(answer))
        self.link = harness.FakeLink("peer")
        self.connection: Connection = self.broker.accept(self.link, 0.0)

    def send(self, data: bytes | str, now: float = 0.0) -> bytes:
        dispatch.receive(
            self.connection, bytes.fromhex(data) if isinstance(data, str) else data, now
        )
        return self.read(now)

    def read(self, now: float = 0.0) -> bytes:
        self.broker.flush(now)
        out = bytes(self.link.unread)
        self.link.unread.clear()
        return out

    def resume(self, verdict: Verdict) -> bytes:
        self.broker.resume(self.connection, verdict, 0.0)
        return self.read()


def connect(properties: str = "") -> bytes:
    props = bytes.fromhex(properties)
    body = b"\x00\x04MQTT\x05\x02\x00\x00" + bytes([len(props)]) + props + b"\x00\x01p"
    return bytes([0x10, len(body)]) + body


METHOD = "15 0002 6D31"  # "m1"


def two_steps(request: ConnectRequest) -> Verdict:
    assert request.auth_method == "m1"
    if request.auth_data == b"bad":
        return Refuse(0x87)

    def proceed(data: bytes | None) -> Verdict:
        return Allow("user") if data == b"two" else Refuse(0x87)

    return Challenge(b"one", proceed)


@pytest.mark.rule("MQTT-4.12.0-2", "MQTT-4.12.0-5", "MQTT-3.15.2-1", "MQTT-3.15.1-1")
def test_exchange() -> None:
    client = Client(two_steps)
    assert (
        client.send(connect(METHOD)).hex()
        == "f00d180b150002" + b"m1".hex() + "160003" + b"one".hex()
    )
    out = client.send("F0 0D 18 0B 15 0002 6D31 16 0003 74776F")
    assert out[:4] == bytes([0x20, len(out) - 2, 0, 0])
    assert bytes.fromhex(METHOD) in out
    assert client.send("C000") == b"\xd0\x00"


@pytest.mark.rule("MQTT-4.12.0-4", "MQTT-4.13.2-1", "MQTT-3.2.2-6")
def test_exchange_that_fails() -> None:
    client = Client(two_steps)
    client.send(connect(METHOD))
    assert client.send("F0 0D 18 0B 15 0002 6D31 16 0003 6E6F6F").hex() == "2003008700"
    assert client.link.closed


@pytest.mark.rule("MQTT-4.12.0-4")
def test_refused_at_once() -> None:
    client = Client(two_steps)
    assert client.send(connect(METHOD + "16 0003 626164")).hex() == "2003008700"
    assert client.link.closed


@pytest.mark.rule("MQTT-4.12.0-5")
def test_another_method_in_auth() -> None:
    client = Client(two_steps)
    client.send(connect(METHOD))
    out = client.send("F0 0D 18 0B 15 0002 6D32 16 0003 74776F")
    assert out[:1] == b"\x20"
    assert out[3] in (0x82, 0x8C)
    assert client.link.closed


@pytest.mark.parametrize("data", ["C000", "300400017400", "820700010000017400", "4002 0001"])
def test_nothing_but_auth_before_connack(data: str) -> None:
    client = Client(two_steps)
    client.send(connect(METHOD))
    out = client.send(data)
    assert out.hex() == "2003008200"
    assert client.link.closed


def test_disconnect_during_the_exchange() -> None:
    client = Client(two_steps)
    client.send(connect(METHOD))
    assert client.send("E000") == b""
    assert client.link.closed


@pytest.mark.rule("MQTT-4.12.1-2", "MQTT-4.12.0-5")
@pytest.mark.parametrize(("word", "good"), [("74776F", True), ("6E6F6F", False)])
def test_again(word: str, good: bool) -> None:
    client = Client(two_steps)
    client.send(connect(METHOD))
    client.send("F0 0D 18 0B 15 0002 6D31 16 0003 74776F")
    out = client.send("F0 07 19 05 15 0002 6D31")
    assert out.hex() == "f00d180b150002" + b"m1".hex() + "160003" + b"one".hex()
    assert client.send("C000") == b"\xd0\x00"  # the connection goes on meanwhile
    out = client.send("F0 0D 18 0B 15 0002 6D31 16 0003" + word)
    if good:
        assert out[:1] == b"\xf0"
        assert out[2:3] == b"\x00"
        assert bytes.fromhex(METHOD) in out
        assert not client.link.closed
    else:
        assert out.hex() == "e00187"
        assert client.link.closed


@pytest.mark.rule("MQTT-4.12.0-6")
def test_no_method_no_auth() -> None:
    client = Client(lambda request: Allow())
    assert client.send(connect()) == PLAIN_CONNACK
    assert client.send("F0 07 19 05 15 0002 6D31").hex() == "e00182"


@pytest.mark.rule("MQTT-3.1.4-2", "MQTT-3.2.2-7", "MQTT-3.2.2-8")
@pytest.mark.parametrize("code", [0x86, 0x87, 0x88, 0x89, 0x8A, 0x97, 0x9F])
def test_refusals(code: int) -> None:
    client = Client(lambda request: Refuse(code))
    assert client.send(connect()) == bytes([0x20, 3, 0, code, 0])
    assert client.link.closed


@pytest.mark.rule("MQTT3-3.2.2-6", "MQTT-3.1.4-2")
@pytest.mark.parametrize(
    ("code", "answer"),
    [
        (0x86, "20020004"),
        (0x87, "20020005"),
        (0x88, "20020003"),
        (0x89, "20020003"),
        (0x8A, "20020005"),
    ],
)
def test_refusals_311(code: int, answer: str) -> None:
    client = Client(lambda request: Refuse(code))
    assert client.send("100D 00044D515454 04 02 0000 0001 70").hex() == answer
    assert client.link.closed


@pytest.mark.rule("MQTT-3.1.4-6", "MQTT-3.2.0-1")
def test_a_late_yes() -> None:
    """What came while the answer was being looked up is acted on after CONNACK, in order."""
    client = Client(lambda request: PENDING)
    assert client.send(connect()) == b""
    assert client.send("8207 0001 00 0001 74 00") == b""
    assert client.send("3005 0001 74 00 78 C000") == b""
    out = client.resume(Allow())
    assert out.startswith(PLAIN_CONNACK)
    rest = out[len(PLAIN_CONNACK) :].hex()
    assert rest == "9004000100" + "00" + "30050001740078" + "d000"


@pytest.mark.rule("MQTT-3.1.4-6")
def test_a_late_no() -> None:
    client = Client(lambda request: PENDING)
    client.send(connect() + bytes.fromhex("3105 0001 74 00 78"))
    assert client.resume(Refuse(0x87)).hex() == "2003008700"
    assert client.link.closed
    assert len(client.broker.retained) == 0


def test_an_answer_that_comes_twice_or_too_late() -> None:
    client = Client(lambda request: PENDING)
    client.send(connect())
    assert client.resume(Allow()) == PLAIN_CONNACK
    assert client.resume(Refuse(0x87)) == b""
    assert not client.link.closed
    gone = Client(lambda request: PENDING)
    gone.send(connect())
    gone.connection.lost(0.0)
    assert gone.resume(Allow()) == b""


def test_a_violation_while_the_answer_is_looked_up() -> None:
    client = Client(lambda request: PENDING)
    client.send(connect())
    client.send("36050001740078")
    out = client.resume(Allow())
    assert out == PLAIN_CONNACK + b"\xe0\x01\x81"
    assert client.link.closed


class Guard(OpenAccess):
    """Nobody may use `secret`."""

    guards_topics = True

    def may_publish(self, client_id: str, username: str | None, topic: str) -> bool:
        return topic != "secret"

    def may_subscribe(self, client_id: str, username: str | None, text: str, qos: int) -> bool:
        return text != "secret"


def guarded(connect: str) -> Client:
    client = Client(lambda request: Allow())
    client.broker = Broker(
        Settings(sys_interval_s=0), now=0.0, rng=random.Random(1), access=Guard()
    )
    client.connection = client.broker.accept(client.link, 0.0)
    client.send(connect)
    return client


CONNECT_311 = "100D 00044D515454 04 02 0000 0001 70"
CONNECT_5 = "100E 00044D515454 05 02 0000 00 0001 70"
SECRET = "0006 736563726574"


@pytest.mark.rule("MQTT-3.9.3-1", "MQTT-3.9.3-2", "MQTT-3.8.4-7", "MQTT3-3.9.3-2")
def test_a_filter_that_is_denied() -> None:
    client = guarded(CONNECT_311)
    assert client.send(f"820F 0001 {SECRET} 01 0001 74 01").hex() == "900400018001"
    client = guarded(CONNECT_5)
    assert client.send(f"8210 0001 00 {SECRET} 01 0001 74 01").hex() == "90050001008701"


@pytest.mark.rule("MQTT-3.4.2-1", "MQTT-3.5.2-1")
def test_a_topic_that_is_denied() -> None:
    client = guarded(CONNECT_311)
    assert client.send(f"330B {SECRET} 0001 78").hex() == "40020001"
    assert client.send(f"340B {SECRET} 0002 78").hex() == "50020002"
    assert client.send("62020002").hex() == "70020002"
    assert client.send(f"3009 {SECRET} 78") == b""
    assert len(client.broker.retained) == 0
    client = guarded(CONNECT_5)
    assert client.send(f"330C {SECRET} 0001 00 78").hex() == "4003000187"
    assert client.send(f"340C {SECRET} 0002 00 78").hex() == "5003000287"
    assert client.send(f"300A {SECRET} 00 78") == b""
    assert client.send("C000") == b"\xd0\x00"
    assert len(client.broker.retained) == 0
