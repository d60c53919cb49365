"""Columns of the log's rows: device, site, time, measurements.

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
    IntegralType,
    MapType,
    NumericType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from mqtt_broker.topics.names import filter_problem
from spark_ingest.contract.job import OptionError, Output, names, option
from spark_ingest.payloads.columns import END

REJECTED_PAYLOAD_BYTES_MAX: Final = 1_024  # how much of a rejected payload is kept
# Of a string in a key of results. Two of them, and the rest of a key, fit into a row of a
# PostgreSQL index (2,704 bytes).
KEY_BYTES_MAX: Final = 1_000
TIME_US_MAX: Final = 253_402_300_800_000_000  # the year 10000
_NUL: Final = "\0"
_NUL_SHOWN: Final = "\\x00"
# Numbers that are no measurement.
NO_METRICS: Final = "seq,ts"

_PLACE: Final = re.compile(r"client|none|received|event|sent|topic:[1-9]\d?|value:[^\s:]+")


def place(*words: str) -> Callable[[str], str]:
    """Parse a place in a row: `client`, `topic:2` (a level), `value:a.b` (a field)."""

    def parse(text: str) -> str:
        if not _PLACE.fullmatch(text) or text.partition(":")[0] not in words:
            known = [f"{word}:{'N' if word == 'topic' else 'FIELD'}"
                     if word in ("topic", "value") else word for word in words]  # fmt: skip
            raise ValueError(f"{text!r} is none of {', '.join(known)}")
        return text

    return parse


def topic_filter(text: str) -> str:
    """Parse a Topic Filter."""
    if problem := filter_problem(text):
        raise ValueError(f"{text!r}: {problem}")
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
    """Return the condition that a topic matches; None for `#`, which here is every topic.

    Other filters that begin with a wildcard match no topic that begins with `$` [MQTT-4.7.2-1].
    """
    if filter == "#":
        return None
    start = r"(?!\$)" if filter[0] == "+" else ""
    parts = []
    for level in filter.split("/"):
        parts.append("[^/]*" if level == "+" else ".*" if level == "#" else re.escape(level))
    pattern = "/".join(parts)
    if filter.endswith("/#"):  # it matches the level above too
        pattern = pattern.removesuffix("/.*") + "(?:/.*)?"
    return topic.rlike(f"(?s)^{start}{pattern}$")


def of_topics(rows: DataFrame, filter: str) -> DataFrame:
    found = matches(F.col("topic"), filter)
    return rows if found is None else rows.where(found | is_end())


# The row behind all others, where a query is drained.

END_OF_TIME: Final = "9999-12-31 00:00:00"


def is_end() -> Column:
    return F.col("partition") == END


def at_the_end(time: Column) -> Column:
    """Return the time; for the end marker the greatest time, which closes all windows."""
    return F.when(is_end(), F.lit(END_OF_TIME).cast(TimestampType())).otherwise(time)


def before_the_end(rows: DataFrame, time: str) -> DataFrame:
    """Remove the end marker after the watermark has seen it.

    `time` is the watermark's column, so that Spark does not move the filter in front of it.
    """
    return rows.where(F.col(time) < F.lit(END_OF_TIME).cast(TimestampType()))


def value_column(rows: DataFrame, path: str, flag: str) -> tuple[Column, DataType]:
    """Return a field of `value` and its type."""
    kind = _schema(rows)
    column = F.col("value")
    for name in path.split("."):
        if not isinstance(kind, StructType) or name not in kind.names:
            raise OptionError(flag, f"the stream's schema has no field {path!r}")
        kind = kind[name].dataType
        column = column.getField(name)
    return column, kind


def text_of(rows: DataFrame, where: str, flag: str) -> Column:
    """Return the value at a `place` as text; empty where there is none."""
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
    """Return the event time of a row; the broker's time where the row has none."""
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
    return F.coalesce(F.timestamp_micros(_micros(column, found)), F.col("received"))


def _micros(column: Column, kind: DataType) -> Column:
    """Convert a number to microseconds since 1970; null if that is after the year 9999.

    Seconds, milliseconds, microseconds or nanoseconds: the size says which, from 1973 on.
    """
    number = column.cast("bigint" if isinstance(kind, IntegralType) else "double")
    size = column.cast("double")
    micros = (
        F.when(size < 1e11, F.try_multiply(number, F.lit(1_000_000)))
        .when(size < 1e14, F.try_multiply(number, F.lit(1_000)))
        .when(size < 1e17, number)
        .otherwise(number / 1_000)
        .try_cast("bigint")
    )
    return F.when((micros >= 0) & (micros < TIME_US_MAX), micros)


# What a job cannot take.


def screened(rows: DataFrame, options: Telemetry) -> DataFrame:
    """Add reject reasons to rows that the job or a sink could not take.

    The rule depends on each row alone, not on the sinks: the same log gives the same results.
    """
    checks = [F.col("reject_reason")]
    for flag, where in (("--device", options.device), ("--site", getattr(options, "site", "none"))):
        if where != "none":
            checks.append(_key_trouble(text_of(rows, where, flag), flag.removeprefix("--")))
    checks.append(time_trouble(rows, options.time))
    return rows.withColumn("reject_reason", F.coalesce(*checks))


def _key_trouble(text: Column, name: str) -> Column:
    return F.when(
        F.octet_length(text) > KEY_BYTES_MAX, F.lit(f"{name}: longer than {KEY_BYTES_MAX:,} bytes")
    ).when(F.contains(text, F.lit(_NUL)), F.lit(f"{name}: has U+0000"))


def time_trouble(rows: DataFrame, where: str, flag: str = "--time") -> Column:
    """Return why the field with a row's time is not a time; null if it is one, or is missing."""
    kind, _, rest = where.partition(":")
    if kind == "value":
        column, found = value_column(rows, rest, flag)
        if isinstance(found, NumericType):
            is_none = column.isNotNull() & _micros(column, found).isNull()
            return F.when(is_none, F.lit(f"{rest}: no time from 1970 to 9999"))
    return F.lit(None).cast("string")


def known_by(device: Column) -> Column:
    """Return the device's name for results, shortened if it is too long or has U+0000 in it."""
    shown = F.substring(_printable(device), 1, 100)
    short = F.concat(shown, F.lit("#"), F.substring(F.sha2(device, 256), 1, 16))
    is_good = _key_trouble(device, "device").isNull()
    # Never null, and said so: it is the key of states, whose type may not change.
    return F.coalesce(F.when(is_good, device).otherwise(short), F.lit(""))


def _printable(text: Column) -> Column:
    """Replace U+0000, which not every database stores."""
    return F.replace(text, F.lit(_NUL), F.lit(_NUL_SHOWN))


def metric_columns(rows: DataFrame, options: Telemetry) -> dict[str, Column]:
    """Return the measurements by name, as doubles; NaN becomes null."""
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
    """Return the type of payloads: a struct or a single number; None when not parsed."""
    return rows.schema["value"].dataType if "value" in rows.columns else StructType()


def _numbers(schema: DataType, above: str = "") -> Iterator[str]:
    for one in schema if isinstance(schema, StructType) else ():
        if isinstance(one.dataType, StructType):
            yield from _numbers(one.dataType, f"{above}{one.name}.")
        elif isinstance(one.dataType, NumericType):
            yield above + one.name


def flat_columns(rows: DataFrame) -> list[Column]:
    """Return the fields of `value` as columns of SQL types: structs and arrays become JSON."""
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
    """Return the row for `rejects`; null if it was not rejected."""
    return F.when(
        F.col("reject_reason").isNotNull(),
        F.struct(
            F.col("partition").alias("stream_partition"),
            F.col("offset").alias("stream_offset"),
            F.col("received"),
            _printable(F.col("client_id")).alias("client_id"),
            _printable(F.col("topic")).alias("topic"),
            _printable(F.col("reject_reason")).alias("reason"),
            F.substring(_said(rows), 1, REJECTED_PAYLOAD_BYTES_MAX).alias("payload"),
        ),
    )


def _said(rows: DataFrame) -> Column:
    """Return the payload; if it was parsed and not kept, its fields as JSON."""
    payload = F.col("payload") if "payload" in rows.columns else F.lit(None).cast(BinaryType())
    if "value" not in rows.columns:
        return payload
    value = F.col("value")
    is_whole = isinstance(_schema(rows), StructType | ArrayType)
    text = F.to_json(value) if is_whole else value.cast(StringType())
    return F.coalesce(payload, text.cast(BinaryType()))
