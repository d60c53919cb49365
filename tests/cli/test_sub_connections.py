"""`fleetmq sub` when its connection breaks: it comes back, with its session if it keeps one."""

from __future__ import annotations

import pytest

from mqtt_broker.cli import main as entry
from mqtt_broker.cli import sub
from mqtt_broker.codec import properties as prop
from mqtt_broker.codec import reasons
from mqtt_broker.codec.constants import PUBREC, PUBREL, V5
from mqtt_broker.codec.encode import (
    encode_ack,
    encode_connack,
    encode_disconnect,
    encode_publish,
    encode_suback,
)
from mqtt_broker.codec.packets import Ack, Connect, Disconnect, Subscribe
from tests.cli.scripted_broker import HOST, Link, ScriptedBroker


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sub, "RETRY_S_MIN", 0.01)


def run(broker: ScriptedBroker, *argv: str) -> int:
    return entry.main(["sub", "-h", HOST, "-p", str(broker.port), *argv])


def subscribed(link: Link, present: bool = False) -> None:
    link.send(encode_connack(V5, present, 0))
    request = link.read(Subscribe)
    link.send(encode_suback(V5, request.packet_id, [one.qos for one in request.requests]))


def message(payload: bytes, packet_id: int = 0, qos: int = 0, dup: bool = False) -> bytes:
    return encode_publish(V5, "a", payload, qos=qos, packet_id=packet_id, dup=dup)


def test_without_a_session_it_subscribes_again(capfd: pytest.CaptureFixture[str]) -> None:
    def breaks(link: Link, connect: Connect) -> None:
        assert connect.clean_start
        subscribed(link)
        link.send(message(b"one"))

    def goes_on(link: Link, connect: Connect) -> None:
        subscribed(link)
        link.send(message(b"two"))
        link.read(Disconnect)

    with ScriptedBroker(breaks, goes_on) as broker:
        assert run(broker, "-t", "a", "-C", "2") == 0
    said = capfd.readouterr()
    assert said.out == "one\ntwo\n"
    lines = said.err.splitlines()
    assert lines[0].endswith("connecting again in 0.01 s")
    assert lines[1:] == ["fleetmq sub: connected again, subscribing anew"]


def test_a_kept_session_goes_on_and_qos_2_is_printed_once(
    capfd: pytest.CaptureFixture[str],
) -> None:
    """The broker saw no PUBREC, so it sends the message again: it is the same message."""

    def breaks(link: Link, connect: Connect) -> None:
        assert not connect.clean_start
        assert connect.properties[prop.SESSION_EXPIRY_INTERVAL] == 0xFFFFFFFF
        subscribed(link)
        link.send(message(b"once", 7, qos=2))
        assert link.read(Ack).packet_type == PUBREC

    def goes_on(link: Link, connect: Connect) -> None:
        assert (connect.client_id, connect.clean_start) == ("me", False)
        link.send(encode_connack(V5, True, 0), message(b"once", 7, qos=2, dup=True))
        assert link.read(Ack).packet_type == PUBREC
        link.send(encode_ack(PUBREL, 7), message(b"then"))
        with pytest.raises(EOFError):
            link.read(Subscribe)

    with ScriptedBroker(breaks, goes_on) as broker:
        assert run(broker, "-i", "me", "-c", "-q", "2", "-t", "a", "-C", "2") == 0
    said = capfd.readouterr()
    assert said.out == "once\nthen\n"
    assert said.err.splitlines()[-1] == "fleetmq sub: connected again, the session goes on"


def test_a_session_that_the_broker_lost_is_subscribed_again(
    capfd: pytest.CaptureFixture[str],
) -> None:
    def breaks(link: Link, connect: Connect) -> None:
        subscribed(link)
        link.send(message(b"once", 7, qos=2))
        link.read(Ack)

    def anew(link: Link, connect: Connect) -> None:
        subscribed(link)
        link.send(message(b"another", 7, qos=2))
        link.read(Ack)

    with ScriptedBroker(breaks, anew) as broker:
        assert run(broker, "-i", "me", "-c", "-q", "2", "-t", "a", "-C", "2") == 0
    assert capfd.readouterr().out == "once\nanother\n"


def test_a_suback_that_never_came_is_asked_for_again() -> None:
    def breaks(link: Link, connect: Connect) -> None:
        link.send(encode_connack(V5, False, 0))
        link.read(Subscribe)

    def goes_on(link: Link, connect: Connect) -> None:
        subscribed(link, present=True)
        link.read(Disconnect)

    with ScriptedBroker(breaks, goes_on) as broker:
        assert run(broker, "-i", "me", "-c", "-t", "a", "-E", "--quiet") == 0


@pytest.mark.parametrize(
    "reason",
    [
        reasons.SESSION_TAKEN_OVER,
        reasons.ADMINISTRATIVE_ACTION,
        reasons.NOT_AUTHORIZED,
        reasons.MALFORMED_PACKET,
    ],
)
def test_who_is_not_wanted_stays_away(reason: int, capfd: pytest.CaptureFixture[str]) -> None:
    def sends_away(link: Link, connect: Connect) -> None:
        subscribed(link)
        link.send(encode_disconnect(V5, reason))

    with ScriptedBroker(sends_away) as broker:
        assert run(broker, "-t", "a") == 1
    assert capfd.readouterr().err == f"fleetmq sub: the broker disconnected: {text(reason)}\n"


def test_a_broker_that_stops_is_connected_to_again(capfd: pytest.CaptureFixture[str]) -> None:
    def stops(link: Link, connect: Connect) -> None:
        subscribed(link)
        link.send(encode_disconnect(V5, reasons.SERVER_SHUTTING_DOWN))

    def busy(link: Link, connect: Connect) -> None:
        link.send(encode_connack(V5, False, reasons.SERVER_BUSY))

    def is_back(link: Link, connect: Connect) -> None:
        subscribed(link)
        link.send(message(b"here"))
        link.read(Disconnect)

    with ScriptedBroker(stops, busy, is_back) as broker:
        assert run(broker, "-t", "a", "-C", "1") == 0
    said = capfd.readouterr()
    assert said.out == "here\n"
    assert [line.rpartition("; ")[2] for line in said.err.splitlines()[:2]] == [
        "connecting again in 0.01 s",
        "connecting again in 0.02 s",
    ]


def test_the_first_connection_is_not_tried_again(capfd: pytest.CaptureFixture[str]) -> None:
    def refuses(link: Link, connect: Connect) -> None:
        link.send(encode_connack(V5, False, reasons.SERVER_BUSY))

    with ScriptedBroker(refuses) as broker:
        assert run(broker, "-t", "a") == 1
    assert "Server busy" in capfd.readouterr().err


def test_quiet_says_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    def refuses(link: Link, connect: Connect) -> None:
        link.send(encode_connack(V5, False, reasons.NOT_AUTHORIZED))

    with ScriptedBroker(refuses) as broker:
        assert run(broker, "-t", "a", "--quiet") == 1
    assert capfd.readouterr().err == ""


def test_the_time_limit_counts_over_all_connections(capfd: pytest.CaptureFixture[str]) -> None:
    def breaks(link: Link, connect: Connect) -> None:
        subscribed(link)

    with ScriptedBroker(breaks) as broker:
        assert run(broker, "-t", "a", "-W", "0.3") == 27


def text(reason: int) -> str:
    return f"{reasons.name(reason)} (0x{reason:02X})"
