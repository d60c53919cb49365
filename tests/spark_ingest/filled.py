"""Logs with messages of which each says its number, for the tests of the source."""

from __future__ import annotations

from typing import Final

from mqtt_broker.streams.read.source import Source
from tests.streams.logs import NAME, Sent, Writing

SCHEMA: Final = {
    "type": "object",
    "properties": {
        "n": {"type": "integer"},
        "t": {"type": "number"},
        "at": {"type": "string", "format": "date-time"},
        "mode": {"enum": ["on", "off"]},
        "pos": {"type": "object", "properties": {"x": {"type": "number"}}, "required": ["x"]},
        "l": {"type": "array", "items": {"type": "integer"}},
    },
    "required": ["n"],
}


def put(log: Writing, start: int, count: int) -> None:
    """Numbers in their payloads, of ten devices; every seventh is no JSON."""
    log.append(
        [
            Sent(f"fleet/d{n % 10}/t", f"d{n % 10}", b'{"n":%d}' % n if n % 7 else b"%d!" % n)
            for n in range(start, start + count)
        ]
    )
    log.commit()


def numbers(count: int) -> list[int]:
    return [n for n in range(count) if n % 7]


def options(log: Writing, **more: str) -> dict[str, str]:
    return {"path": str(log.root), "stream": NAME, **more}


def everything(log: Writing) -> list[tuple[int, int]]:
    with Source.open(log.root, NAME) as source:
        ends = source.ends().ends
    return [(number, offset) for number, end in enumerate(ends) for offset in range(end)]
