"""Two nodes that exchange frames without a bus: what the tests of frames begin with."""

from __future__ import annotations

from typing import Final

from mqtt_broker.cluster.frames import layout
from mqtt_broker.cluster.frames.layout import HEADER, MAGIC, NO_TAG, FrameKey, tag
from mqtt_broker.cluster.frames.reader import FrameReader
from mqtt_broker.cluster.frames.writer import FrameWriter

SECRET: Final = bytes(range(16))
KEY: Final = FrameKey("fleet", SECRET)
EPOCHS: Final = {1: "epoch-of-one", 2: "epoch-of-two"}


def writer(number: int = 1, key: FrameKey = KEY) -> FrameWriter:
    """A writer of one of the two numbers that knows the other."""
    found = FrameWriter(key, number, EPOCHS[number])
    found.set_receivers({3 - number: EPOCHS[3 - number]})
    return found


def reader(number: int = 2, key: FrameKey = KEY) -> FrameReader:
    """A reader of one of the two numbers that knows the other."""
    found = FrameReader(key)
    found.set_hosted({number: EPOCHS[number]})
    found.set_senders({3 - number: EPOCHS[3 - number]})
    return found


def sealed(
    body: bytes,
    *,
    kind: int = layout.MESSAGES,
    version: int = 1,
    to: int = 2,
    sequence: int = 1,
    size: int | None = None,
) -> bytes:
    """A frame from 1 with a right code, whatever else is wrong with it."""
    to_tag = NO_TAG if to == layout.ALL else tag(EPOCHS[2])
    size = len(body) if size is None else size
    header = HEADER.pack(
        MAGIC, version, kind, KEY.cluster, 1, to, sequence, tag(EPOCHS[1]), to_tag, size
    )
    return header + body + KEY.code(header + body)
