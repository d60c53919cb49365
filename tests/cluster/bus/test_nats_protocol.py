"""The parser says the same however the bytes come, and its buffer never grows."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqtt_broker.cluster.bus.nats_protocol import (
    LINE_BYTES_MAX,
    READ_BYTES,
    NatsParser,
    encode_connect,
    encode_publish,
    encode_subscribe,
    encode_unsubscribe,
)
from mqtt_broker.cluster.bus.problems import NatsProtocolError
from mqtt_broker.cluster.frames.layout import FRAME_BYTES_MAX
from tests.property_examples import examples


class Said:
    """What a parser said."""

    def __init__(self) -> None:
        self.events: list[object] = []
        self.parser = NatsParser(self)
        self.closes_at = -1

    def _add(self, event: object) -> None:
        self.events.append(event)
        if len(self.events) == self.closes_at:
            self.parser.close()

    def on_info(self, info: Mapping[str, Any]) -> None:
        self._add(info)

    def on_message(self, data: memoryview) -> None:
        self._add(bytes(data))

    def on_oversized(self) -> None:
        self._add("oversized")

    def on_ping(self) -> None:
        self._add("ping")

    def on_pong(self) -> None:
        self._add("pong")

    def on_error(self, text: str) -> None:
        self._add(("error", text))


def message(data: bytes, reply: bytes = b"") -> bytes:
    return b"MSG fleetmq.c.1 1 %b%d\r\n%b\r\n" % (reply, len(data), data)


def test_what_a_server_says() -> None:
    said = Said()
    said.parser.feed(
        b"INFO {\"max_payload\": 5}\r\n+OK\r\nPING\r\nPONG\r\n-ERR 'Stale Connection'\r\n"
        + message(b"a\r\nb")
        + message(b"", b"reply.to ")
    )
    error = ("error", "Stale Connection")
    assert said.events == [{"max_payload": 5}, "ping", "pong", error, b"a\r\nb", b""]


@examples(100)
@given(
    st.lists(st.one_of(st.just(None), st.binary(max_size=30), st.integers(0, 90_000)), max_size=30),
    st.integers(0, 2**32),
)
def test_pieces_say_the_same(sent: list[bytes | int | None], seed: int) -> None:
    rng = random.Random(seed)
    messages = [bytes(one) if isinstance(one, int) else one for one in sent]
    stream = b"".join(b"PING\r\n" if one is None else message(one) for one in messages)
    said = Said()
    while stream:
        size = rng.choice((1, 7, 1_000, 50_000, READ_BYTES, 400_000))
        said.parser.feed(stream[:size])
        stream = stream[size:]
    assert said.events == ["ping" if one is None else one for one in messages]


def test_a_message_that_is_too_large_is_skipped() -> None:
    said = Said()
    largest = bytes(FRAME_BYTES_MAX)
    stream = message(largest) + message(largest + b"x") + message(b"small") * 2
    for at in range(0, len(stream), 100_000):
        said.parser.feed(stream[at : at + 100_000])
    assert said.events == [largest, "oversized", b"small", b"small"]


def test_the_space_is_always_there() -> None:
    """With a line that never ends and with a message that never ends."""
    said = Said()
    said.parser.feed(b"MSG x 1 %d\r\n" % FRAME_BYTES_MAX)
    for _ in range(FRAME_BYTES_MAX // READ_BYTES):
        assert len(said.parser.space()) == READ_BYTES
        said.parser.take(READ_BYTES)
    said = Said()
    said.parser.feed(b"x" * LINE_BYTES_MAX)
    with pytest.raises(NatsProtocolError, match="a line has no end"):
        said.parser.feed(b"x")


@pytest.mark.parametrize(
    "data",
    [
        b"HTTP/1.1 400\r\n",
        b"\r\n",
        b"MSG a 1\r\n",
        b"MSG a 1 x\r\n",
        b"MSG a 1 -1\r\n",
        b"MSG \r\n",
        b"MSG a 1 " + b"9" * 5_000 + b"\r\n",
        b"INFO " + b"[" * 60_000 + b"\r\n",
        b"MSG a 1 2\r\nabc\r\n",
        b"INFO {\r\n",
        b"INFO []\r\n",
        b"INFO \xff\r\n",
    ],
)
def test_others_are_recognised(data: bytes) -> None:
    with pytest.raises(NatsProtocolError):
        Said().parser.feed(data)


@examples(300)
@given(st.lists(st.sampled_from([b"MSG ", b"a 1 ", b"3", b"\r\n", b"abc", b"PING", b"INFO {}"])))
def test_any_bytes(pieces: list[bytes]) -> None:
    """Whole and in pieces it fails at the same place, or does not."""
    outcomes = []
    for feed in (pieces, [b"".join(pieces)]):
        said = Said()
        try:
            for piece in feed:
                said.parser.feed(piece)
        except NatsProtocolError as error:
            said.events.append(str(error))
        outcomes.append(said.events)
    assert outcomes[0] == outcomes[1]


def test_a_closed_parser_says_nothing_more() -> None:
    said = Said()
    said.closes_at = 2
    said.parser.feed(message(b"x") * 5)
    said.parser.feed(message(b"x"))
    assert len(said.events) == 2


def test_commands() -> None:
    assert encode_subscribe("fleetmq.c.7", 7) == b"SUB fleetmq.c.7 7\r\n"
    assert encode_unsubscribe(7) == b"UNSUB 7\r\n"
    assert encode_publish(b"fleetmq.c.7", b"a\r\n") == b"PUB fleetmq.c.7 3\r\na\r\n\r\n"
    connect = encode_connect({"pass": "line\r\nbreak"})
    assert connect.endswith(b"}\r\n") and connect.count(b"\r\n") == 1
    assert json.loads(connect.removeprefix(b"CONNECT ")) == {"pass": "line\r\nbreak"}
