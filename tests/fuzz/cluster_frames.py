"""What is fuzzed of the frames between nodes: headers, and bodies behind a right code.

A fuzzer cannot guess the code, so `frame_once` writes it: what is behind it comes from a node that
is out of its mind, and neither raises nor is taken for something else.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, Final

from mqtt_broker.cluster.frames import bodies, layout
from mqtt_broker.cluster.frames.layout import CODE_BYTES, HEADER, Drop, FrameKey, tag
from mqtt_broker.cluster.frames.reader import Frame, FrameReader

_KEY: Final = FrameKey("fleet", bytes(range(16)))
_HOSTED: Final = {2: "b", 3: "c"}
_SENDERS: Final = {1: "a", 4: "d"}
_KINDS: Final = tuple(sorted(layout.KINDS[1]))


def frame_once(data: bytes) -> None:
    """Read frames: with a first byte below 128 the code of each is made right before."""
    if not data:
        return
    is_signed, data = data[0] < 128, data[1:]
    reader = FrameReader(_KEY)
    reader.set_hosted(_HOSTED)
    reader.set_senders(_SENDERS)
    frames = data.split(b"FQ\x01")  # each behind the start of one
    for piece in frames:
        frame = layout.MAGIC + b"\x01" + piece
        if is_signed:
            frame += _KEY.code(frame)
        found = reader.read(frame)
        if isinstance(found, Frame):
            assert is_signed and found.to in (layout.ALL, *_HOSTED) and found.sender in _SENDERS
            assert encoded(found.kind, found.body) == frame[HEADER.size : -CODE_BYTES]
            assert reader.read(frame) is Drop.REPEATED
    assert reader.taken + sum(reader.dropped.values()) >= len(frames)


def frame_body_once(data: bytes) -> None:
    """Decode a body, and encode what it says: the same bytes again."""
    if not data:
        return
    kind, body = _KINDS[data[0] % len(_KINDS)], data[1:]
    try:
        found = bodies.decode(kind, memoryview(body))
    except bodies.MalformedBody:
        return
    assert encoded(kind, found) == body


def encoded(kind: int, body: Any) -> bytes:
    """A body as bytes."""
    if isinstance(body, bodies.Hint | bodies.Outbox):
        return body.encode()
    if kind == layout.MESSAGES:
        return bodies.encode_entries(body)
    if kind == layout.RELEASE:
        return bodies.encode_releases(body)
    if kind == layout.RELEASED:
        return bodies.encode_released(body)
    return bodies.encode_ping(body)


def frame_input(rng: random.Random) -> bytes:
    """An input for `frame_once`: some good frames, without their codes, a few of them changed."""
    found = bytearray((rng.choice((0, 0, 0, 128)),))
    for _ in range(rng.randint(1, 4)):
        frame = bytearray(_frame(rng))
        if rng.random() < 0.5:
            at = rng.randrange(3, len(frame))
            frame[at : at + rng.randrange(3)] = rng.randbytes(rng.randrange(3))
        found += frame if len(found) > 1 else frame[3:]
    return bytes(found)


def _frame(rng: random.Random) -> bytes:
    kind, body = rng.choice(_BODIES)
    to = layout.ALL if kind in layout.FOR_ALL and rng.random() < 0.5 else rng.choice((2, 3))
    sender = rng.choice((1, 4))
    header = HEADER.pack(
        layout.MAGIC, 1, kind, _KEY.cluster, sender, to, rng.choice((1, 2, 3, 2**63)),
        tag(_SENDERS[sender]), tag(_HOSTED[to]) if to else layout.NO_TAG, len(body),
    )  # fmt: skip
    return header + body


_ENTRIES: Final[Sequence[bytes]] = (b"", b"one", b"\0\0\0\x01", bytes(40))
_BODIES: Final = (
    (layout.HINT, bodies.Hint(1, 2, 3).encode()),
    (layout.MESSAGES, bodies.encode_entries(_ENTRIES)),
    (layout.OUTBOX, bodies.Outbox(1, 2, 3, _ENTRIES).encode()),
    (layout.RELEASE, bodies.encode_releases([bodies.Release(1, "c"), bodies.Release(2, "ä")])),
    (layout.RELEASED, bodies.encode_released([bodies.Released(1, bodies.OFFERED, "c")])),
    (layout.PING, bodies.encode_ping(1)),
)
