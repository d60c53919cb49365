"""Devices that measure: a process of QoS 2 publishers whose ledger is the ground truth.

    python -m tests.spark_ingest.devices PORT LEDGER SEED DEVICES RATE

They publish JSON until the standard input ends, come back whatever happens to their connections
or to the broker, and end by themselves when every message was acknowledged. The clients are
those of `tests.fault`; what is in a message, and what is wrong with some, is `telemetry`'s.

In the ledger an `S` has a third field: event time, values, and whether the payload is broken.
"""

from __future__ import annotations

import json
import os
import random
import selectors
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tests.fault import ledger
from tests.fault.client import Loop
from tests.fault.ledger import Ledger
from tests.fault.plan import Stream
from tests.fault.publisher import Sending, Sent
from tests.spark_ingest import telemetry
from tests.spark_ingest.telemetry import Message

_TICK_S: Final = 0.01
_CUT_EVERY_S: Final = (1.0, 10.0)


class Device(Sending):
    """Measures at its share of the rate; what waits for a connection is not made up later."""

    def __init__(self, loop: Loop, number: int, seed: int, rate: float) -> None:
        super().__init__(loop, f"d{number}", random.Random(f"{seed}/d{number}"))
        self._begin()
        self._draw = random.Random(f"{seed}/d{number}/values")
        self._stream = Stream(number, number, f"plant/{self.name}/telemetry", qos=2)
        self._rate = rate
        self._credit = self._draw.random()
        self.is_finishing = False
        loop.after(_TICK_S, self._tick)
        loop.after(self.rng.uniform(*_CUT_EVERY_S), self._cut_now_and_then)

    def _tick(self) -> None:
        if self.is_finishing:
            return
        self._credit = min(self._credit + self._rate * _TICK_S, max(1.0, self._rate))
        while self._credit >= 1 and self.room > 0:
            self._credit -= 1
            self._measure()
        self.loop.after(_TICK_S, self._tick)

    def _measure(self) -> None:
        seq = self.sent + 1
        packet_id = self._last_id % 65_535 + 1
        while packet_id in self.unacked or packet_id in self.released:
            packet_id = packet_id % 65_535 + 1
        self._last_id = packet_id
        told = telemetry.message(self._draw, self.name, seq, time.time_ns() // 1_000)
        sent = Sent(self._stream, seq, told.payload)
        self.unacked[packet_id] = sent
        self.note("S", self._stream.index, seq, _text(told))
        self.sent += 1
        self._write(packet_id, sent, dup=False)

    def _cut_now_and_then(self) -> None:
        if not self.is_finishing:
            self.cut()
            self.loop.after(self.rng.uniform(*_CUT_EVERY_S), self._cut_now_and_then)


def _text(told: Message) -> str:
    values = [told.at_us, told.temperature, told.load, told.is_broken]
    return json.dumps(values, separators=(",", ":"))


class Site:
    """All devices of this process."""

    def __init__(self, loop: Loop, seed: int, devices: int, rate: float) -> None:
        self._loop = loop
        self._devices = [Device(loop, number, seed, rate / devices) for number in range(devices)]
        for device in self._devices:
            device.come()
        loop.selector.register(sys.stdin, selectors.EVENT_READ, self._on_input)

    def _on_input(self, events: int) -> None:
        if os.read(sys.stdin.fileno(), 4096):
            return
        self._loop.selector.unregister(sys.stdin)
        for device in self._devices:
            device.is_finishing = True
        self._look()

    def _look(self) -> None:
        self._loop.is_over = not any(device.is_busy for device in self._devices)
        self._loop.after(_TICK_S, self._look)


# What the ledger says.


def read(path: Path) -> list[Message]:
    """What was sent, in its order; AssertionError when any of it was not acknowledged once, or
    when the broker did what it may not. When it was received is the log's to say: 0 here."""
    told: dict[tuple[int, int], Message] = {}
    acknowledged: set[tuple[int, int]] = set()
    for kind, fields in _entries(path):
        if kind not in "SA":
            raise AssertionError(f"{path.name}: {kind} {' '.join(fields)}")
        key = int(fields[0]), int(fields[1])
        if kind == "A":
            assert key in told and key not in acknowledged, f"acknowledged: {key}"
            acknowledged.add(key)
            continue
        at_us, temperature, load, is_broken = json.loads(fields[2])
        told[key] = Message(f"d{key[0]}", key[1], at_us, 0, temperature, load, is_broken)
    assert told.keys() == acknowledged, f"{len(told) - len(acknowledged)} not acknowledged"
    return list(told.values())


def _entries(path: Path) -> Iterator[tuple[str, list[str]]]:
    for entry in ledger.read(path):
        yield entry.kind, entry.fields


def main(arguments: list[str]) -> None:
    port, path, seed, devices, rate = arguments
    loop = Loop(Ledger(Path(path)), int(port))
    Site(loop, int(seed), int(devices), float(rate))
    loop.run()
    loop.ledger.close()


if __name__ == "__main__":
    main(sys.argv[1:])
