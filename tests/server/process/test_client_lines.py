"""Lines for clients that come and go: who, why, how long; so many a second, and cheap beyond."""

from __future__ import annotations

import logging

import pytest

from mqtt_broker.server.process.client_lines import ClientLines
from tests.counting import count_calls


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def lines(clock: Clock, caplog: pytest.LogCaptureFixture) -> ClientLines:
    caplog.set_level(logging.INFO, "fleetmq")
    return ClientLines(clock, lines_per_s=3)


def connect(lines: ClientLines, name: str = "pump-7") -> None:
    lines.connected(name, "ann", "192.0.2.7:1", "devices", 5, 60, is_resumed=True)


def test_each_line_says_who_and_why(lines: ClientLines, caplog: pytest.LogCaptureFixture) -> None:
    connect(lines)
    lines.disconnected("pump-7", "ann", "192.0.2.7:1", "Keep Alive timeout", 11_520.5)
    lines.refused("pump-8", None, "192.0.2.8:1", "", "Not authorized: no such user")
    lines.refused("", None, "192.0.2.8:1", "", "Malformed Packet")
    about = "resumed session, keep alive 60 s, listener devices"
    assert caplog.messages == [
        f"pump-7 (192.0.2.7:1), user ann: connected, MQTT 5, {about}",
        "pump-7 (192.0.2.7:1), user ann: disconnected after 3 h 12 min, Keep Alive timeout",
        "pump-8 (192.0.2.8:1): refused, Not authorized: no such user",
        "192.0.2.8:1: refused, Malformed Packet",
    ]
    assert vars(caplog.records[1])["fields"] == {
        "event": "disconnected",
        "client": "pump-7",
        "user": "ann",
        "address": "192.0.2.7:1",
        "reason": "Keep Alive timeout",
        "duration_s": 11520.5,
    }


def test_a_client_that_says_so_left_by_itself(
    lines: ClientLines, caplog: pytest.LogCaptureFixture
) -> None:
    lines.disconnected("a", None, "x", "disconnected", 1.0)
    assert caplog.messages == ["a (x): disconnected after 1.0 s, by the client"]


def test_a_kind_has_its_share_of_a_second(
    lines: ClientLines, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(5):
        connect(lines)
    lines.disconnected("a", None, "x", "gone", 1.0)  # another kind is not affected
    assert len([line for line in caplog.messages if ": connected" in line]) == 3
    clock.now += 1
    lines.disconnected("a", None, "x", "gone", 1.0)
    assert "clients left out of the log since the last line: 2 connected" in caplog.messages
    assert lines.left_out == {"connected": 2, "disconnected": 0, "refused": 0}
    clock.now += 1
    connect(lines)
    assert sum("left out" in line for line in caplog.messages) == 1


def test_what_is_left_out_costs_three_calls(lines: ClientLines) -> None:
    for _ in range(3):
        connect(lines)
    assert count_calls(lambda: connect(lines)) <= 4  # `connect` of this test among them


def test_connects_and_disconnects_can_be_off(
    lines: ClientLines, caplog: pytest.LogCaptureFixture
) -> None:
    lines.is_on = False
    connect(lines)
    lines.disconnected("a", None, "x", "gone", 1.0)
    lines.refused("a", None, "x", "", "Banned")
    assert caplog.messages == ["a (x): refused, Banned"]


def test_names_of_clients_break_no_line(
    lines: ClientLines, caplog: pytest.LogCaptureFixture
) -> None:
    connect(lines, "a\nERROR forged\x1b[2J" + "x" * 70_000)
    [line] = caplog.messages
    assert "\n" not in line and "\x1b" not in line and len(line) < 1_100
    assert len(vars(caplog.records[0])["fields"]["client"]) < 300


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0.04, "0.0 s"), (59.9, "59.9 s"), (61, "1 min 1 s"), (3_600, "1 h 0 min"),
     (90_000, "1 d 1 h")],
)  # fmt: skip
def test_spans_are_readable(
    lines: ClientLines, caplog: pytest.LogCaptureFixture, seconds: float, said: str
) -> None:
    lines.disconnected("a", None, "x", "gone", seconds)
    assert caplog.messages == [f"a (x): disconnected after {said}, gone"]
