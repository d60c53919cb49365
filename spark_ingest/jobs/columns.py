"""Who sent a row, from which site, when it was, what was measured: columns of the log's rows.

The rows of the log are those of `source`: partition, offset, received, event, sent, topic,
client_id, payload, properties; `value`, a struct by the stream's schema, and `reject_reason`,
which says why there is none.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    MapType,
    NumericType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from spark_ingest.jobs.job import OptionError, Output, names, option

REJECTED_PAYLOAD_BYTES_MAX: Final = 1_024  # how much of what could not be read is kept
# Numbers that are no measurement.
NO_METRICS: Final = "seq,ts"

_PLACE: Final = re.compile(r"client|none|received|event|sent|topic:[1-9]\d?|value:[^\s:]+")


def place(*words: str) -> Callable[[str], str]:
    """Where in a row something stands: `client`, `topic:2` (a level), `value:a.b` (a field)."""

    def parse(text: str) -> str:
        if not _PLACE.fullmatch(text) or text.partition(":")[0] not in words:
            known = [f"{word}:{'N' if word == 'topic' else 'FIELD'}"
                     if word in ("topic", "value") else word for word in words]  # fmt: skip
            raise ValueError(f"{text!r} is none of {', '.join(known)}")
        return text

    return parse


def topic_filter(text: str) -> str:
    """A filter as MQTT has it."""
    levels = text.split("/")
    for at, level in enumerate(levels):
        is_last = at == len(levels) - 1
        if ("#" in level and not (level == "#" and is_last)) or ("+" in level and level != "+"):
            raise ValueError(f"{text!r} is no topic filter")
    return text


@dataclass(frozen=True)
class Telemetry:
    """The options of every job that reads measurements."""

    topics: str = option("--topics", topic_filter, "#", "only topics that match this filter")
    device: str = option(
        "--device", place("client", "topic", "value"), "client",
        "who measured: client, topic:N or value:FIELD",
    )  # fmt: skip
    site: str = option(
        "--site", place("none", "topic", "value"), "topic:1",
        "where: topic:N, value:FIELD or none",
    )  # fmt: skip
    time: str = option(
        "--time", place("event", "received", "sent", "value"), "event",
        "when: event (received, where it is not known), received, sent or value:FIELD",
    )  # fmt: skip
    metrics: tuple[str, ...] = option(
        "--metrics", names, "", "fields to look at, a.b within structs (every number)"
    )
    without: tuple[str, ...] = option(
        "--without", names, NO_METRICS, "numbers that are no measurement"
    )


def matches(topic: Column, filter: str) -> Column | None:
    """Whether a topic matches; None: every topic does."""
    if filter == "#":
        return None
    parts = []
    for level in filter.split("/"):
        parts.append("[^/]*" if level == "+" else ".*" if level == "#" else re.escape(level))
    pattern = "/".join(parts)
    if filter.endswith("/#"):  # it matches the level above too
        pattern = pattern.removesuffix("/.*") + "(?:/.*)?"
    return topic.rlike(f"(?s)^{pattern}$")


def of_topics(rows: DataFrame, filter: str) -> DataFrame:
    found = matches(F.col("topic"), filter)
    return rows if found is None else rows.where(found)


def value_column(rows: DataFrame, path: str, flag: str) -> tuple[Column, DataType]:
    """A field of `value`, and its type."""
    kind = _schema(rows)
    column = F.col("value")
    for name in path.split("."):
        if not isinstance(kind, StructType) or name not in kind.names:
            raise OptionError(flag, f"the stream's schema has no field {path!r}")
        kind = kind[name].dataType
        column = column.getField(name)
    return column, kind


def text_of(rows: DataFrame, where: str, flag: str) -> Column:
    """What stands at a `place`, as a text; empty where there is nothing."""
    kind, _, rest = where.partition(":")
    if kind == "none":
        return F.lit("")
    if kind == "client":
        return F.col("client_id")
    if kind == "topic":
        if rest == "1":  # half of what splitting costs
            return F.substring_index(F.col("topic"), "/", 1)
        return F.coalesce(F.split_part(F.col("topic"), F.lit("/"), F.lit(int(rest))), F.lit(""))
    column, _ = value_column(rows, rest, flag)
    return F.coalesce(column.cast(StringType()), F.lit(""))


def time_of(rows: DataFrame, where: str, flag: str = "--time") -> Column:
    """When a row was; the broker's clock where nobody said."""
    kind, _, rest = where.partition(":")
    if kind == "received":
        return F.col("received")
    if kind != "value":
        return F.coalesce(F.col(kind), F.col("received"))
    column, found = value_column(rows, rest, flag)
    if isinstance(found, TimestampType):
        return F.coalesce(column, F.col("received"))
    if not isinstance(found, NumericType):
        raise OptionError(flag, f"{rest!r} is a {found.simpleString()}, neither time nor number")
    # Seconds, milliseconds, microseconds or nanoseconds: the size says which, from 1973 on.
    size = F.abs(column)
    seconds = (
        F.when(size < 1e11, column * 1_000_000)
        .when(size < 1e14, column * 1_000)
        .when(size < 1e17, column)
        .otherwise(column / 1_000)
    )
    return F.coalesce(F.timestamp_micros(seconds.cast("bigint")), F.col("received"))


def metric_columns(rows: DataFrame, options: Telemetry) -> dict[str, Column]:
    """Measurements by name, as doubles; what is no number (NaN) is nothing."""
    schema = _schema(rows)
    if isinstance(schema, NumericType) and not options.metrics:
        return {"value": _measured(F.col("value"))}
    found = options.metrics or [name for name in _numbers(schema) if name not in options.without]
    columns = {}
    for name in found:
        column, kind = value_column(rows, name, "--metrics")
        if not isinstance(kind, NumericType):
            raise OptionError("--metrics", f"{name!r} is a {kind.simpleString()}, not a number")
        columns[name] = _measured(column)
    return columns


def _measured(column: Column) -> Column:
    return F.nanvl(column.cast("double"), F.lit(None).cast("double"))


def _schema(rows: DataFrame) -> DataType:
    """What payloads are: a struct as a rule, a number alone perhaps; nothing when not parsed."""
    return rows.schema["value"].dataType if "value" in rows.columns else StructType()


def _numbers(schema: DataType, above: str = "") -> Iterator[str]:
    for one in schema if isinstance(schema, StructType) else ():
        if isinstance(one.dataType, StructType):
            yield from _numbers(one.dataType, f"{above}{one.name}.")
        elif isinstance(one.dataType, NumericType):
            yield above + one.name


def flat_columns(rows: DataFrame) -> list[Column]:
    """The fields of `value` as columns that SQL knows: what has parts becomes JSON."""
    schema = _schema(rows)
    if not isinstance(schema, StructType):
        schema = StructType([StructField("value", schema)])
    found = []
    for one in schema:
        is_whole = not isinstance(_schema(rows), StructType)
        column = F.col("value") if is_whole else F.col("value").getField(one.name)
        if isinstance(one.dataType, StructType | ArrayType | MapType):
            column = F.to_json(column)
        elif isinstance(one.dataType, BinaryType):
            column = F.base64(column)
        found.append(column.alias(one.name))
    return found


# What cannot be read.

REJECTS: Final = Output("rejects", ("stream_partition", "stream_offset"))


def reject(rows: DataFrame) -> Column:
    """The row as it stands in `rejects`; null where all is well."""
    return F.when(
        F.col("reject_reason").isNotNull(),
        F.struct(
            F.col("partition").alias("stream_partition"),
            F.col("offset").alias("stream_offset"),
            F.col("received"),
            F.col("client_id"),
            F.col("topic"),
            F.col("reject_reason").alias("reason"),
            F.substring(F.col("payload"), 1, REJECTED_PAYLOAD_BYTES_MAX).alias("payload"),
        ),
    )
