"""What a tap admits it takes, into every stream: it is acknowledged."""

from __future__ import annotations

from pathlib import Path

import pytest

from mqtt_broker.codec.properties import NO_PROPERTIES
from mqtt_broker.streams.log import Log
from mqtt_broker.streams.settings import Settings
from mqtt_broker.streams.tap import StreamTaps
from mqtt_broker.streams.writer import LogWriter
from sessions.message import Envelope


@pytest.mark.parametrize(("streams", "payloads"), [(1, 200), (200, 1), (20, 20)])
def test_what_is_admitted_is_taken_by_every_stream(
    tmp_path: Path, streams: int, payloads: int
) -> None:
    log = Log.open(tmp_path / "s", report=print)
    for number in range(streams):
        log.create(Settings(f"s{number}", "t/#"))
    writer = LogWriter(log, 100_000)
    dropped: list[tuple[str, int]] = []
    taps = StreamTaps(writer, lambda reason, count: dropped.append((reason, count)))
    taps.set(log.streams.values())
    tap = taps.find("t/1")
    assert tap is not None
    run = [bytes(1_000)] * payloads
    envelope = Envelope("t/1", 1, False, NO_PROPERTIES, b"", 1_000, "c", 0.0)
    assert tap.admits(envelope, run)  # nothing waits, so it has to go through some time
    tap.take(envelope, run, 0.0)
    assert dropped == []
    assert [stream.appended for stream in log.streams.values()] == [payloads] * streams
    assert not tap.admits(envelope, run)
    log.close()
