"""The slow parser finds what the fast one finds, and refuses what it refuses."""

from __future__ import annotations

import zlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqtt_broker.server.config.endpoints import WebSocketRules
from mqtt_broker.server.net import websocket_aiohttp, websocket_fallback, websocket_library
from mqtt_broker.server.net.websocket import WebSocketLayer
from tests.server.transports import masked

REQUEST = (
    b"GET /mqtt HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Protocol: mqtt\r\n\r\n"
)
FRAMES: list[tuple[int, bytes, bool]] = [
    (2, b"whole", True),
    (2, b"", True),
    (2, b"begin", False),
    (0, b"more", False),
    (0, b"end", True),
    (9, b"ping", True),
    (10, b"pong", True),
    (2, bytes(300), True),
    (1, b"text", True),
    (2, bytes(2000), True),
    (8, b"\x03\xe8", True),
    (8, b"", True),
    (8, b"\x03\xee", True),
    (3, b"unknown", True),
    (9, bytes(126), True),
]


def outcome(
    parsing: Any,
    pieces: list[bytes],
    monkeypatch: pytest.MonkeyPatch,
    request: bytes = REQUEST,
    *,
    compression: bool = False,
) -> tuple[bytes, bytes, bool]:
    """What a layer with this parser makes of the pieces: data, answers, whether it ended."""
    with monkeypatch.context() as patched:
        patched.setattr(websocket_library, "parsing", parsing)
        patched.setattr("mqtt_broker.server.net.websocket.parsing", parsing)
        rules = WebSocketRules("/mqtt", (), compression, message_bytes_max=1000)
        layer = WebSocketLayer(rules, 1000)
        layer.receive(request)
        layer.pending_output(may_wait=False)
        data = b"".join(layer.receive(piece) for piece in pieces)
    answers = layer.pending_output(may_wait=False)
    return data, answers, bool(layer.ended)


@given(
    chosen=st.lists(st.sampled_from(FRAMES), max_size=8), step=st.sampled_from([1, 7, 100, 5000])
)
def test_both_parsers_do_the_same(chosen: list[tuple[int, bytes, bool]], step: int) -> None:
    sent = b"".join(masked(opcode, data, fin=fin) for opcode, data, fin in chosen)
    pieces = [sent[at : at + step] for at in range(0, len(sent), step)]
    monkeypatch = pytest.MonkeyPatch()
    fast = outcome(websocket_aiohttp, pieces, monkeypatch)
    slow = outcome(websocket_fallback, pieces, monkeypatch)
    assert slow[0] == fast[0]
    assert slow[2] == fast[2]
    # Of two things wrong, such as a close in the middle of a message, each may name another.
    assert slow[1][: -2 if slow[2] else None] == fast[1][: -2 if fast[2] else None]


def test_a_frame_without_a_mask_is_refused() -> None:
    monkeypatch = pytest.MonkeyPatch()
    for parsing in (websocket_aiohttp, websocket_fallback):
        data, answers, has_ended = outcome(parsing, [b"\x82\x02ab"], monkeypatch)
        assert (data, answers, has_ended) == (b"", b"\x88\x02\x03\xea", True)


@pytest.mark.parametrize("takeover", [True, False])
def test_compressed_messages_are_read(takeover: bool) -> None:
    deflate = zlib.compressobj(wbits=-15)
    sent = []
    for number in range(20):
        if not takeover:
            deflate = zlib.compressobj(wbits=-15)
        text = b"the same words again and again %d" % number
        packed = deflate.compress(text) + deflate.flush(zlib.Z_SYNC_FLUSH)
        frame = bytearray(masked(2, packed.removesuffix(b"\x00\x00\xff\xff")))
        frame[0] |= 0x40
        sent.append(bytes(frame))
    request = REQUEST[:-2] + b"Sec-WebSocket-Extensions: permessage-deflate\r\n\r\n"
    monkeypatch = pytest.MonkeyPatch()
    fast, slow = (
        outcome(parsing, sent, monkeypatch, request, compression=True)
        for parsing in (websocket_aiohttp, websocket_fallback)
    )
    assert slow == fast
    assert slow[0].count(b"the same words") == 20
