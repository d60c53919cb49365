"""A telemetry log with everything in it that goes wrong, and its windows in plain Python."""

from __future__ import annotations

import json
import math
import random
import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from mqtt_broker.streams.format.stream_settings import StreamSettings
from mqtt_broker.streams.write.log import Log
from mqtt_broker.streams.write.writer import LogWriter

STREAM: Final = "telemetry"
START_US: Final = 1_767_225_600_000_000  # 2026-01-01
SECOND: Final = 1_000_000
SCHEMA: Final = {
    "type": "object",
    "properties": {
        "seq": {"type": "integer"},
        "ts": {"type": "integer"},
        "temperature": {"type": ["number", "null"]},
        "load": {"type": ["number", "null"]},
    },
    "required": ["seq", "ts"],
}


@dataclass(frozen=True)
class Message:
    device: str
    seq: int
    at_us: int
    received_us: int
    temperature: float | None
    load: float | None = None
    is_broken: bool = False

    @property
    def topic(self) -> str:
        return f"plant/{self.device}/telemetry"

    @property
    def payload(self) -> bytes:
        if self.is_broken:
            return b'{"seq": %d, "ts"' % self.seq
        said = {"seq": self.seq, "ts": self.at_us // 1_000, "temperature": self.temperature}
        if self.load is not None:
            said["load"] = self.load
        return json.dumps(said).encode()


def messages(
    count: int, *, seed: int = 1, devices: int = 5, step_us: int = SECOND
) -> list[Message]:
    """In the order in which they are received."""
    draw = random.Random(seed)
    found = []
    seqs: dict[str, int] = defaultdict(int)
    for number in range(count):
        device = f"d{number % devices}"
        seqs[device] += 1
        found.append(message(draw, device, seqs[device], START_US + number * step_us))
    return found


def message(draw: random.Random, device: str, seq: int, received_us: int) -> Message:
    """Some are broken, late, far too late or ahead."""
    kind = draw.random()
    behind_us = 5_000 * draw.randrange(1, 200)
    if kind < 0.03:
        behind_us = 40 * SECOND  # late, and taken
    elif kind < 0.05:
        behind_us = 3_600 * SECOND  # too late
    elif kind < 0.06:
        behind_us = -3_600 * SECOND  # from the future
    return Message(
        device,
        seq,
        (received_us - behind_us) // 1_000 * 1_000,
        received_us,
        round(draw.gauss(20, 3), 2) if draw.random() > 0.02 else None,
        round(draw.random() * 100, 1) if draw.random() > 0.5 else None,
        is_broken=draw.random() < 0.01,
    )


class Writing:
    """A log that can be written to bit by bit."""

    def __init__(self, root: Path, *, partitions: int = 2) -> None:
        root.mkdir(parents=True, exist_ok=True)
        self.root = root
        self._log = Log.open(root, None, report=print)
        self._stream = self._log.streams.get(STREAM) or self._log.create(
            StreamSettings(STREAM, partitions=partitions, event_time="json:$.ts ms", schema=SCHEMA)
        )
        self._writer = LogWriter(self._log)
        self._number = 0

    def add(self, told: Iterable[Message]) -> None:
        for one in told:
            self.put(one.topic, one.device, one.payload, one.received_us)
        self.commit()

    def put(
        self, topic: str, client: str, payload: bytes, received_us: int, properties: bytes = b""
    ) -> None:
        taken = self._writer.append(
            self._stream, topic, client, [payload], received_us, properties=properties
        )
        assert taken == 1

    def commit(self) -> None:
        self._number += 1
        self._writer.assign(self._number)
        self._writer.committed(self._writer.write(self._number))

    def close(self) -> None:
        self._log.close()


def write_log(root: Path, told: Sequence[Message], *, partitions: int = 2) -> Path:
    log = Writing(root, partitions=partitions)
    log.add(told)
    log.close()
    return root


# Windows, as the documents say they are.


@dataclass(frozen=True)
class Rule:
    size_us: int = 60 * SECOND
    slide_us: int = 60 * SECOND
    watermark_us: int = 10 * SECOND
    allowed_us: int = 600 * SECOND
    ahead_us: int = 300 * SECOND


Key = tuple[str, str, str, int, int]  # device, site, metric, start, end


def windows(told: Iterable[Message], rule: Rule) -> tuple[dict[Key, dict[str, Any]], int]:
    """Statistics by window, and how many rows were left out of one."""
    values: dict[Key, list[float]] = defaultdict(list)
    late: dict[Key, int] = defaultdict(int)
    counts: dict[Key, int] = defaultdict(int)
    left_out = 0
    for one in told:
        if one.is_broken:
            continue
        if one.at_us > one.received_us + rule.ahead_us:
            left_out += 1
            continue
        newest = one.at_us - one.at_us % rule.slide_us
        for start in range(newest, one.at_us - rule.size_us, -rule.slide_us):
            end = start + rule.size_us
            if one.received_us > end + rule.watermark_us + rule.allowed_us:
                left_out += 1
                continue
            for metric, value in (("", None), ("temperature", one.temperature), ("load", one.load)):
                if metric and value is None:
                    continue
                key = (one.device, "plant", metric, start, end)
                counts[key] += 1
                late[key] += one.received_us > end + rule.watermark_us
                if value is not None:
                    values[key].append(value)
    found = {}
    whole = {(*key[:2], "", *key[3:]): number for key, number in late.items() if not key[2]}
    for key, count in counts.items():
        about: dict[str, Any] = {"count": count, "late": whole[(*key[:2], "", *key[3:])]}
        found[key] = about | _statistics(values[key])
    return found, left_out


def _statistics(values: list[float]) -> dict[str, float | None]:
    names = ("mean", "min", "max", "stddev", "p50", "p95", "p99")
    if not values:
        return dict.fromkeys(names)
    ordered = sorted(values)
    return {
        "mean": statistics.fmean(values),
        "min": ordered[0],
        "max": ordered[-1],
        "stddev": statistics.stdev(values) if len(values) > 1 else None,
        **{f"p{part}": _percentile(ordered, part / 100) for part in (50, 95, 99)},
    }


def _percentile(ordered: list[float], part: float) -> float:
    place = part * (len(ordered) - 1)
    low = math.floor(place)
    high = math.ceil(place)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def assert_same(found: dict[Key, dict[str, Any]], wanted: dict[Key, dict[str, Any]]) -> None:
    assert found.keys() == wanted.keys()
    for key, row in wanted.items():
        for name, value in row.items():
            other = found[key][name]
            if isinstance(value, float) and other is not None:
                assert math.isclose(other, value, rel_tol=1e-9, abs_tol=1e-9), (key, name)
            else:
                assert other == value, (key, name, other, value)
