"""The device registry: a table of SQL that says what a device was, and from when to when.

    device        who, as the job's --device has it
    valid_from    UTC; null: since ever
    valid_to      UTC, no longer valid at that time; null: still
    ...           anything else: site, model, firmware, owner

Only `device` has to be there. Versions of a device may have gaps between them, and may not
overlap, or a message would have two. The table is read again for each batch, so a change applies
from the next batch; it is meant for up to some hundred thousand rows.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from sqlalchemy import MetaData, Table, inspect, select
from sqlalchemy.exc import DBAPIError, NoSuchTableError

from spark_ingest.contract.sink import SinkError
from spark_ingest.sinks.sql import explain, open_engine

DEVICE: Final = "device"
VALID_FROM: Final = "valid_from"
VALID_TO: Final = "valid_to"
ABOUT: Final = "registry_"  # in front of its columns in results
_TIME: Final = pa.timestamp("us", tz="UTC")


class Registry:
    """Called, it is the registry as a frame."""

    def __init__(self, url: str, table: str) -> None:
        self._engine = open_engine(url)
        self._name = table
        try:
            with self._engine.connect() as connection:
                found = Table(table, MetaData(), autoload_with=connection)
        except NoSuchTableError:
            raise SinkError(f"--registry-table: there is no table {table!r}") from None
        except DBAPIError as error:
            raise SinkError(f"--registry: {explain(error)}") from None
        if DEVICE not in found.columns:
            raise SinkError(f"--registry-table: {table!r} has no column {DEVICE!r}")
        self._table = found

    @staticmethod
    def is_there(url: str, table: str) -> bool:
        engine = open_engine(url)
        try:
            return inspect(engine).has_table(table)
        except DBAPIError as error:
            raise SinkError(f"--registry: {explain(error)}") from None
        finally:
            engine.dispose()

    def __call__(self, spark: SparkSession) -> DataFrame:
        return spark.createDataFrame(self.read())

    def read(self) -> pa.Table:
        """Read all versions: device, valid_from, valid_to, and `registry_...` for the rest."""
        with self._engine.connect() as connection:
            rows = [tuple(row) for row in connection.execute(select(self._table))]
        names = [column.name for column in self._table.columns]
        values = {name: [row[at] for row in rows] for at, name in enumerate(names)}
        columns: dict[str, Any] = {DEVICE: pa.array(map(str, values.pop(DEVICE)), pa.string())}
        for name in (VALID_FROM, VALID_TO):
            times = values.pop(name, [None] * len(rows))
            columns[name] = pa.array(map(_time, times), pa.timestamp("us")).cast(_TIME)
        for name, column in values.items():
            columns[ABOUT + name] = _column(column)
        found = pa.table(columns)
        _check_versions(found, self._name)
        return found


def _time(value: object) -> datetime | None:
    if value is None:
        return None
    found = value if isinstance(value, datetime) else datetime.fromisoformat(str(value))
    if found.tzinfo is not None:
        offset = found.utcoffset()
        assert offset is not None
        found = found.replace(tzinfo=None) - offset
    return found


def _column(values: list[Any]) -> Any:
    """Convert a SQL column; a type that Spark does not have becomes text."""
    if all(value is None for value in values):
        return pa.array(values, pa.string())
    try:
        found = pa.array(values)
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        found = None
    plain = (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean, pa.types.is_string)
    if found is None or not any(is_kind(found.type) for is_kind in plain):
        return pa.array([None if value is None else str(value) for value in values], pa.string())
    return found


def _check_versions(versions: pa.Table, name: str) -> None:
    """Check that no two versions of one device are valid at the same time."""
    ordered = versions.select([DEVICE, VALID_FROM, VALID_TO]).sort_by(
        [(DEVICE, "ascending"), (VALID_FROM, "ascending")]
    )
    nulls_first = sorted(
        ordered.to_pylist(), key=lambda one: (one[DEVICE], one[VALID_FROM] is not None)
    )
    last: dict[str, Any] | None = None
    for one in nulls_first:
        if last is not None and last[DEVICE] == one[DEVICE]:
            if (
                last[VALID_TO] is None
                or one[VALID_FROM] is None
                or last[VALID_TO] > one[VALID_FROM]
            ):
                raise SinkError(
                    f"table {name!r}: two versions of device {one[DEVICE]!r} are valid at a time"
                )
        last = one


def is_valid_at(at: Column, versions: str) -> Column:
    """Return the condition that a version was valid at a time."""
    begins, ends = F.col(f"{versions}.{VALID_FROM}"), F.col(f"{versions}.{VALID_TO}")
    return (begins.isNull() | (begins <= at)) & (ends.isNull() | (at < ends))
