"""Who reads the telemetry log while its broker is killed, and what the log says at the end.

LogWitness    reads on from the start, through every life: what a reader was shown once
              stays where it was, and no offset is passed over
judge_log     every acknowledged message is in the log, at QoS 2 once, in order
"""

from __future__ import annotations

import math
import threading
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from mqtt_broker.streams.format.errors import StreamError, UnknownStream
from mqtt_broker.streams.format.records import Record, records
from mqtt_broker.streams.read.reader import Reader
from mqtt_broker.streams.read.source import Source
from tests.fault import plan
from tests.fault.verdict import Flow, Verdict

NAME: Final = "torture"
CONFIG: Final = f"""
[[streams]]
name = "{NAME}"
filter = "#"
partitions = 3
partition_by = "topic"
segment_bytes = "1MiB"

[[streams]]
name = "load"
filter = "load/#"
partitions = 4
partition_by = "topic"
segment_bytes = "256KiB"
"""
_PAUSE_S: Final = 0.01


@dataclass(slots=True)
class LogRow:
    """What the table says of the log."""

    records: int = 0
    seen: int = 0  # by the witness
    due: int = 0
    missing: int = 0
    repeated: int = 0  # at QoS 1, which is allowed

    def __str__(self) -> str:
        return (
            f"log: {self.records:,} records, {self.seen:,} read while it was killed; "
            f"{self.due:,} acknowledged, {self.missing:,} missing, {self.repeated:,} again at QoS 1"
        )


class LogWitness:
    """A reader of its own pace, in a thread."""

    def __init__(self, data: Path) -> None:
        self._root = data / "streams"
        self.seen: dict[int, list[int]] = defaultdict(list)  # by partition: what each offset was
        self.troubles: list[str] = []
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._follow, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._is_over.set()
        self._thread.join()

    def _follow(self) -> None:
        source: Source | None = None
        while not self._is_over.wait(_PAUSE_S):
            try:
                source = source or Source.open(self._root, NAME)
                self._read(source)
            except UnknownStream:
                continue  # not made yet
            except StreamError as error:
                self.troubles.append(f"a reader of the log: {error}")
                break
        if source is not None:
            source.close()

    def _read(self, source: Source) -> None:
        for number in range(len(source.partitions)):
            seen = self.seen[number]
            with Reader(source, number, len(seen)) as reader:
                for batch in reader.read():
                    for record in records(batch):
                        if record.offset != len(seen):
                            text = f"p{number} offset {record.offset}, expected {len(seen)}"
                            raise StreamError(text)
                        seen.append(fingerprint(record))


def fingerprint(record: Record) -> int:
    return hash((record.topic, record.client_id, record.qos, record.payload))


def everything(root: Path) -> Iterator[tuple[int, Record]]:
    with Source.open(root, NAME) as source:
        for number, start in enumerate(source.starts().ends):
            with Reader(source, number, start) as reader:
                while batches := reader.read():
                    for batch in batches:
                        for record in records(batch):
                            yield number, record


def judge_log(data: Path, witness: LogWitness, flows: list[Flow], verdict: Verdict) -> LogRow:
    row = LogRow(seen=sum(map(len, witness.seen.values())))
    counts: dict[tuple[int, int], int] = defaultdict(int)
    newest: dict[int, int] = defaultdict(int)
    for trouble in witness.troubles:
        verdict.find("wrong in the log", trouble)
    for number, record in everything(data / "streams"):
        row.records += 1
        seen = witness.seen[number]
        if record.offset < len(seen) and fingerprint(record) != seen[record.offset]:
            verdict.find("wrong in the log", f"p{number} {record.offset} was another record once")
        if record.topic in (plan.WILL_TOPIC, plan.STATUS_TOPIC):
            continue
        try:
            stream, seq = plan.read(record.payload)
        except ValueError as error:
            verdict.find("wrong in the log", f"p{number} {record.offset}: {error}")
            continue
        counts[stream, seq] += 1
        if counts[stream, seq] == 1:
            if seq < newest[stream]:
                verdict.find("wrong in the log", f"{_named(flows[stream])} out of order", 0.0, seq)
            newest[stream] = max(newest[stream], seq)
    for flow in flows:
        _judge_flow(flow, counts, row, verdict)
    return row


def _judge_flow(
    flow: Flow, counts: dict[tuple[int, int], int], row: LogRow, verdict: Verdict
) -> None:
    index, qos = flow.stream.index, flow.stream.qos
    for seq in range(1, flow.count + 1):
        count = counts.pop((index, seq), 0)
        if flow.acknowledged[seq] < math.inf:
            row.due += 1
            if not count:
                row.missing += 1
                verdict.find("missing in the log", _named(flow), flow.sent[seq], seq)
        if count > 1:
            if qos == 2:
                verdict.find("repeated in the log", _named(flow), flow.sent[seq], seq)
            else:
                row.repeated += count - 1
    for stream, seq in [key for key in counts if key[0] == index]:
        verdict.find("wrong in the log", f"{_named(flow)}, never sent", 0.0, seq)
        del counts[stream, seq]


def _named(flow: Flow) -> str:
    return f"{flow.stream.topic} QoS {flow.stream.qos}"
