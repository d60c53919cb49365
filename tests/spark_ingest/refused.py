"""Random results to a database that refuses some of their rows: the rest is written all the same.

    play(directory, seed)        AssertionError, or what the sink raised

What is refused is known before (a time that Python does not have), or to the database alone (a
CHECK that its operator has put on a table). A row is in the table or a dead letter, and nothing
that the database would take is a dead letter.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from sqlalchemy import text

from spark_ingest.contract.job import Output
from spark_ingest.sinks.dead_letters import TIME_US_MAX, TIME_US_MIN
from spark_ingest.sinks.sql import SqlSink, open_engine
from tests.spark_ingest import extremes

THINGS: Final = Output("things", ("name",))
_TIMES_US: Final = (
    -(2**63), TIME_US_MIN - 1, TIME_US_MIN, -1, 0, TIME_US_MAX - 1, TIME_US_MAX, 2**63 - 1,
)  # fmt: skip
_SCHEMA: Final = pa.schema(
    [("name", pa.string()), ("at", pa.timestamp("us", "UTC")), ("n", pa.int64()),
     ("x", pa.float64()), ("s", pa.string())]
)  # fmt: skip
_LONG: Final = tuple(number for number in extremes.INTEGERS if -(2**63) <= number < 2**63)
Row = tuple[str, int, int, float, str]


class Batch:
    """As far as sinks look at it."""

    job, query, outputs = "test", "q", (THINGS,)

    def __init__(self, number: int, rows: list[Row]) -> None:
        self.number = number
        columns = zip(*rows, strict=True) if rows else [()] * len(_SCHEMA)
        arrays = [pa.array(one, kind) for one, kind in zip(columns, _SCHEMA.types, strict=True)]
        self.tables = {THINGS.name: pa.Table.from_arrays(arrays, schema=_SCHEMA)}
        self.dead_letters = 0


def play(directory: Path, seed: int) -> None:
    draw = random.Random(seed)
    n_max = draw.choice((0, 2**31, 2**63 - 1))
    sink = SqlSink(open_engine(f"sqlite:///{directory / 'out.db'}"))
    with sink.engine.begin() as connection:
        connection.execute(
            text(
                "CREATE TABLE things (name VARCHAR(512) PRIMARY KEY, at DATETIME,"
                f" n BIGINT CHECK (n <= {n_max}), x DOUBLE, s TEXT)"
            )
        )
    written: set[str] = set()
    refused: set[str] = set()
    try:
        for number in range(draw.randint(1, 4)):
            rows = _rows(draw, number)
            batch: Any = Batch(number, rows)
            sink.write(batch)
            if draw.random() < 0.3:  # Spark was killed, and repeats it
                sink.write(Batch(number, rows))  # type: ignore[arg-type]
            bad = {
                name for name, at, n, _, _ in rows
                if n > n_max or not TIME_US_MIN <= at < TIME_US_MAX
            }  # fmt: skip
            assert batch.dead_letters == len(bad), f"{batch.dead_letters} of {len(bad)}"
            refused |= bad
            written |= {row[0] for row in rows} - bad
            assert _names(sink, "SELECT name FROM things") == written
        found = _names(sink, "SELECT keys FROM dead_letters") if refused else set()
        assert {json.loads(keys)["name"] for keys in found} == refused
    finally:
        sink.close()


def _rows(draw: random.Random, number: int) -> list[Row]:
    """Most are as any other; of some, one value or all are extremes."""
    found: list[Row] = []
    for at in range(draw.choice((0, 1, 5, 60))):
        kind = draw.choice((0, 0, 0, 1, 2, 3, 4, 5))  # the extreme one; 5: all
        row: Row = (
            f"{number}/{at}",
            draw.choice(_TIMES_US) if kind in (1, 5) else at,
            draw.choice(_LONG) if kind in (2, 5) else -at,
            draw.choice(extremes.NUMBERS) if kind in (3, 5) else 1.5,
            draw.choice(extremes.TEXTS) if kind in (4, 5) else "s",
        )
        found.append(row)
    return found


def _names(sink: SqlSink, statement: str) -> set[str]:
    with sink.engine.connect() as connection:
        rows = [str(row[0]) for row in connection.execute(text(statement))]
    assert len(rows) == len(set(rows))
    return set(rows)
