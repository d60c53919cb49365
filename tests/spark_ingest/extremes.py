"""The extremes of every type a message may have, and a log with all of them.

What is in the log comes from the types, not from a list of what once did harm: integers at both
ends of every width, numbers at the ends of a double, times at the ends of Python's, of the log's
and of 64 bits, texts that are empty, long, and of every kind of character.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from mqtt_broker.streams.format.stream_settings import StreamSettings
from mqtt_broker.streams.write.log import Log
from mqtt_broker.streams.write.writer import LogWriter
from tests.spark_ingest.telemetry import SECOND, START_US, STREAM

SCHEMA: Final = {
    "type": "object",
    "properties": {
        "seq": {"type": "integer"},
        "ts": {"type": "number"},
        "n": {"type": "integer"},
        "x": {"type": "number"},
        "s": {"type": "string"},
        "at": {"type": "string", "format": "date-time"},
        "l": {"type": "array", "items": {"type": "number"}},
        "o": {"type": "object", "properties": {"s": {"type": "string"}}},
    },
}
INTEGERS: Final = sorted(
    {sign * (1 << bits) + by for bits in (0, 7, 15, 31, 53, 62, 63, 64, 70)
     for sign in (1, -1) for by in (-1, 0, 1)}
)  # fmt: skip
NUMBERS: Final = (
    *(0.0, -0.0, 5e-324, -5e-324, 2.2250738585072014e-308, 1e300, -1e300),
    *(1.7976931348623157e308, -1.7976931348623157e308, 1e11, 1e14, 1e17, 1e19, 9.2e18, -9.3e18),
)
NO_NUMBERS: Final = ("NaN", "Infinity", "-Infinity", "1e400", "-1e400", "1" * 400, "1" * 5000)
TEXTS: Final = (
    "", " ", "a\0b", "\0", "\x01\x1f\x7f", "\ud7ff\ue000\uffff", "\U0010ffff", "e\u0301\u202e",
    "'\"\\%_;--", "a/b", "+", "#", "$SYS", "\n\r\t", "x" * 1_001, "\u00fc" * 1_400, "y" * 65_535,
)  # fmt: skip
MOMENTS: Final = (
    "0000-01-01T00:00:00Z", "0001-01-01T00:00:00Z", "0001-01-01T00:00:00+23:59",
    "1582-10-14T00:00:00Z", "1969-12-31T23:59:59.999999Z", "1970-01-01T00:00:00Z",
    "9999-12-31T23:59:59.999999Z", "9999-12-31T23:59:59.999999-23:59", "10000-01-01T00:00:00Z",
)  # fmt: skip
PAYLOADS: Final = (
    b"", b"null", b"{", b"\xff\xfe", b"[" * 9_000, b'{"o":' * 300 + b"1" + b"}" * 300,
    b'{"s":"\\ud800"}', b'{"s":"\xed\xa0\x80"}', b'{"z":' + b"[" * 200 + b"]" * 200 + b"}",
    b'{"s":"' + b"z" * 2_000_000 + b'"}', b'{"l":[' + b"1," * 50_000 + b"1]}",
)  # fmt: skip


class Sent(NamedTuple):
    topic: str
    client: str
    payload: bytes


def _payloads() -> Iterator[bytes]:
    """One extreme each, in every field that has its type."""
    numbers: list[Any] = [*INTEGERS, *NUMBERS]
    for name in ("seq", "ts", "n", "x"):
        for number in numbers:
            yield json.dumps({"seq": 1, name: number}).encode()
        for text in NO_NUMBERS:
            yield f'{{"{name}":{text}}}'.encode()
    for text in TEXTS:
        yield json.dumps({"s": text, "o": {"s": text}}).encode()
        yield json.dumps({"s": text}, ensure_ascii=False).encode("utf-8", "surrogatepass")
    for text in MOMENTS:
        yield json.dumps({"at": text}).encode()
    yield json.dumps({"l": list(NUMBERS)}).encode()
    yield from PAYLOADS


def messages() -> list[Sent]:
    """A plain device, one with every payload, and as many devices and topics as there are texts."""
    plain = b'{"seq":%d,"ts":%d,"x":1.5}'
    found = [
        Sent("plant/d0/telemetry", "d0", plain % (n, (START_US + n * SECOND) // 1_000))
        for n in range(1, 6)
    ]
    found += [Sent("plant/odd/telemetry", "odd", payload) for payload in _payloads()]
    # One after the other: gaps from one end of 64 bits to the other, means of ends of a double.
    ends = ((0, 1.7e308), (2**63 - 1, -1.7e308), (-(2**63), 1e300), (2**63 - 1, 5e-324), (0, 0.0))
    for (seq, x), _ in itertools.product(ends, range(2)):
        found.append(
            Sent("plant/ends/telemetry", "ends", json.dumps({"seq": seq, "x": x}).encode())
        )
    for text in TEXTS:
        found.append(Sent("plant/d/telemetry", text, plain % (1, START_US // 1_000)))
        found.append(Sent(f"{text[:65_000]}/d/telemetry", "d", plain % (1, START_US // 1_000)))
    return found


def write_log(root: Path) -> tuple[Path, int]:
    """Where it is, and how many messages are in it. Each has its event time from its payload."""
    root.mkdir(parents=True, exist_ok=True)
    log = Log.open(root, None, report=print)
    stream = log.create(
        StreamSettings(
            STREAM, partitions=2, event_time="json:$.at", sent_time="json:$.ts", schema=SCHEMA
        )
    )
    writer = LogWriter(log)
    told = messages()
    for number, one in enumerate(told):
        received_us = START_US + number * SECOND
        properties = b"\x09\x00\x01" + bytes([number % 256])
        taken = writer.append(
            stream, one.topic, one.client, [one.payload], received_us, properties=properties
        )
        assert taken == 1
        writer.assign(number)
        writer.committed(writer.write(number))
    log.close()
    return root, len(told)
