"""The contract of a sink, and the batch that it is given.

    sqlite:///out.db, postgresql://...     any SQLAlchemy URL
    parquet:DIR or parquet:hdfs://...      directories of Parquet files
    mqtt://host:1883?topic=alerts/{device} messages
    console:                               rows as text
    python:package.module:Class?key=value  your own: Class(rest of the URL), with the methods below

After a crash a batch is written again with the same query, number and rows, even if all or half of
it had been written before. `write` must store it once.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any, Final, Protocol

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from spark_ingest.contract.job import Output


class SinkError(Exception):
    """A sink cannot take what it is given: one line for the operator."""


class Batch:
    """The results of one micro-batch, or of a whole range of the log."""

    def __init__(
        self,
        query: str,
        number: int,
        job: str,
        frame: DataFrame,
        outputs: tuple[Output, ...],
        check: Callable[[], None] = lambda: None,
    ) -> None:
        self.query = query  # the checkpoint's id: another checkpoint counts batches from 0 again
        self.number = number
        self.job = job
        self.frame = frame
        self.outputs = outputs
        self._check = check  # raises if the results must not be written
        self.dead_letters = 0  # rows that sinks refused, written as dead letters

    @cached_property
    def tables(self) -> Mapping[str, pa.Table]:
        """The rows of each output, collected on the driver. Computed once for all sinks."""
        columns = []
        for output in self.outputs:
            columns.append(F.col(output.name).isNotNull().alias(output.name))
            columns += [
                F.col(output.name).getField(name).alias(f"{output.name} {name}")
                for name in self.fields(output)
            ]
        everything = self.frame.select(*columns).toArrow()
        self._check()
        found = {}
        for output in self.outputs:
            names = self.fields(output)
            rows = everything.filter(everything.column(output.name))
            rows = rows.select([f"{output.name} {name}" for name in names])
            found[output.name] = rows.rename_columns(names).combine_chunks()
        return found

    @property
    def is_collected(self) -> bool:
        """Tell whether `tables` has been computed."""
        return "tables" in self.__dict__

    def fields(self, output: Output) -> list[str]:
        return list(self.frame.schema[output.name].dataType.names)  # type: ignore[attr-defined]

    def rows_of(self, output: Output) -> DataFrame:
        """Return the rows as a DataFrame, for sinks that write from the executors."""
        return self.frame.where(F.col(output.name).isNotNull()).select(f"{output.name}.*")


class Sink(Protocol):
    """Takes the results of a job, batch by batch."""

    def write(self, batch: Batch) -> None:
        """Write a batch, once however often it comes; raise unless it is safe."""

    def close(self) -> None: ...


# The scheme of a URL, and the module with its `open_sink(url)`. Everything else is SQLAlchemy's.
_MODULES: Final = {
    "console": "spark_ingest.sinks.console",
    "mqtt": "spark_ingest.sinks.mqtt",
    "mqtts": "spark_ingest.sinks.mqtt",
    "parquet": "spark_ingest.sinks.parquet",
}
OWN: Final = "python"
SQL: Final = "spark_ingest.sinks.sql"


def scheme_of(url: str) -> str:
    return url.partition(":")[0].lower()


def is_sql(url: str) -> bool:
    return scheme_of(url) not in (*_MODULES, OWN)


def open_sink(url: str, *, prefix: str = "") -> Sink:
    """Open the sink of a URL; `prefix` goes in front of table names. Raises SinkError."""
    scheme, colon, rest = url.partition(":")
    if not colon:
        raise SinkError(f"{url!r} is no URL: say sqlite:///FILE, parquet:DIR, mqtt://HOST, ...")
    if scheme == OWN:
        return _own(rest)
    module = importlib.import_module(_MODULES.get(scheme.lower(), SQL))
    sink: Sink = module.open_sink(url, prefix)
    return sink


def _own(text: str) -> Sink:
    place, _, query = text.partition("?")
    module, _, name = place.partition(":")
    try:
        kind: Any = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise SinkError(f"python:{place}: {error}") from None
    sink: Sink = kind(query)
    return sink
