"""What `fleetmq sub` prints for a message."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import pytest

from mqtt_broker.cli import sub_format
from mqtt_broker.cli.errors import Failure, UsageError
from mqtt_broker.client.protocol import Message
from mqtt_broker.codec import properties as prop
from mqtt_broker.codec.properties import Properties

AT_NS = 1_600_000_000_123_456_789  # 2020-09-13T12:26:40.123456789Z
FULL = Message(
    "a/b",
    b'{"x":1}',
    qos=1,
    retain=True,
    packet_id=7,
    properties=Properties(
        {
            prop.USER_PROPERTY: [("k", "v"), ("k", "w")],
            prop.CONTENT_TYPE: "json",
            prop.CORRELATION_DATA: b"id",
            prop.MESSAGE_EXPIRY_INTERVAL: 60,
            prop.PAYLOAD_FORMAT_INDICATOR: 1,
            prop.RESPONSE_TOPIC: "r",
            prop.SUBSCRIPTION_IDENTIFIER: [3, 4],
        }
    ),
)


@pytest.fixture(autouse=True)
def one_hour_east(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "UTC-1")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize(
    ("text", "printed"),
    [
        ("%t %q %r %m %l", "a/b 1 1 7 7"),
        ("%p", '{"x":1}'),
        ("%x %X", "7b2278223a317d 7B2278223A317D"),
        ("%C %D %E %F %R %S %P", "json id 60 1 r 3 4 k:v k:w"),
        ("%%", "%"),
        ("%I", "2020-09-13T13:26:40+0100"),
        ("%U", "1600000000.123456789"),
        ("@H:@M @N @@", "13:26 123456789 @"),
        (r"\\ \0 \a \e \n", "\\ \0 \a \x1b \n"),
        ("[%10t]", "[       a/b]"),
        ("[%-10t]", "[a/b       ]"),
        ("[%.2t]", "[a/]"),
        ("[%5.2t]", "[   a/]"),
        ("[%05l]", "[00007]"),
        ("[%-05l]", "[7    ]"),
    ],
)
def test_a_format(text: str, printed: str) -> None:
    assert sub_format.compile_format(text)(FULL, AT_NS).decode() == printed


@pytest.mark.parametrize("letter", "ACDEFRSP")
def test_a_missing_property_is_empty(letter: str) -> None:
    assert sub_format.compile_format(f"[%{letter}]")(Message("a", b""), AT_NS) == b"[]"


def test_the_payload_keeps_its_bytes() -> None:
    message = Message("ä", b"\xff\x00")
    assert sub_format.plain(message, AT_NS) == b"\xff\x00"
    assert sub_format.verbose(message, AT_NS) == "ä ".encode() + b"\xff\x00"
    assert sub_format.compile_format("%t=%p")(message, AT_NS) == "ä=".encode() + b"\xff\x00"


@pytest.mark.parametrize("text", ["%y", "100%", "@", "\\", "\\q", "%5"])
def test_a_format_that_says_nothing_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="-F"):
        sub_format.compile_format(text)


def test_json() -> None:
    assert json.loads(sub_format.as_json(FULL, AT_NS)) == {
        "tst": "2020-09-13T13:26:40.123456+01:00",
        "topic": "a/b",
        "qos": 1,
        "retain": True,
        "mid": 7,
        "payload": '{"x":1}',
        "properties": {
            "user-properties": [["k", "v"], ["k", "w"]],
            "content-type": "json",
            "correlation-data": "id",
            "payload-format-indicator": 1,
            "message-expiry-interval": 60,
            "response-topic": "r",
            "subscription-identifier": [3, 4],
        },
    }


def test_json_of_a_binary_payload() -> None:
    found = json.loads(sub_format.as_json(Message("a", b"\xff\x00"), AT_NS))
    assert found["payload"] == "/wA="
    assert found["encoding"] == "base64"
    assert "mid" not in found
    assert "properties" not in found


def test_json_is_one_line() -> None:
    assert b"\n" not in sub_format.as_json(Message("a", b"1\n2"), AT_NS)


HOSTILE = Message(
    "a\u202eb\u2028c",
    b"\x1b]0;owned\x07\x1b[2J\xff\x9b31m caf\xc3\xa9\r\n\tnext",
    properties=Properties(
        {prop.CORRELATION_DATA: b"\x1b[H", prop.USER_PROPERTY: [("k", "\u2066v")]}
    ),
)
SHOWN = "\\x1b]0;owned\\x07\\x1b[2J\\xff\\x9b31m café\\r\n\tnext"


def test_at_a_terminal_nothing_is_shown_that_it_would_obey() -> None:
    """Anybody who may publish would otherwise type at the terminal of who subscribes."""
    assert sub_format.plain_for_terminal(HOSTILE, AT_NS).decode() == SHOWN
    topic = r"a\u202eb\u2028c"
    assert sub_format.verbose_for_terminal(HOSTILE, AT_NS).decode() == f"{topic} {SHOWN}"
    render = sub_format.compile_format(r"\e[1m%t\e[0m %p|%D|%P", is_terminal=True)
    shown = r"\x1b[H|k:\u2066v"
    assert render(HOSTILE, AT_NS).decode() == f"\x1b[1m{topic}\x1b[0m {SHOWN}|{shown}"
    assert sub_format.plain(HOSTILE, AT_NS) == HOSTILE.payload  # a program gets what was sent


@pytest.mark.parametrize("render", [sub_format.as_json, sub_format.compile_format("%j")])
def test_json_shows_nothing_that_a_terminal_would_obey(render: sub_format.Render) -> None:
    payload = "\x1b[2J\x9b31m\x7f\u202eabc\u2028é".encode()
    text = render(Message("a\u202eb", payload), AT_NS).decode()
    assert text.isprintable() and "é" in text
    found = json.loads(text)
    assert [found["topic"], found["payload"].encode()] == ["a\u202eb", payload]


def test_the_json_of_mosquitto_sub() -> None:
    quoted = json.loads(sub_format.compile_format("%j")(FULL, AT_NS))
    nested = json.loads(sub_format.compile_format("%J")(FULL, AT_NS))
    assert quoted["payload"] == '{"x":1}'
    assert nested["payload"] == {"x": 1}
    assert quoted["retain"] == 1
    assert quoted["payloadlen"] == 7


@pytest.mark.parametrize("payload", [b"{", b"[" * 9_000, b"[" * 9_000 + b"]" * 9_000])
def test_a_payload_that_is_not_json_is_said(payload: bytes) -> None:
    with pytest.raises(Failure, match="a is not JSON"):
        sub_format.compile_format("%J")(Message("a", payload), AT_NS)
