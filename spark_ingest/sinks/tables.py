"""Results as SQL tables: types of columns, the statements that write rows, what cannot be written.

A row replaces the one with the same keys. Where an output says `newer_by`, it does so only if it
is not older. SQLite and PostgreSQL do that in one statement; any other database in two, which is
the same within a transaction.
"""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Connection,
    DateTime,
    Double,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    and_,
    bindparam,
    delete,
    insert,
    inspect,
    or_,
    select,
)
from sqlalchemy.dialects.postgresql import TIMESTAMP
from sqlalchemy.types import TypeEngine

from spark_ingest.contract.job import Output
from spark_ingest.contract.sink import SinkError
from spark_ingest.sinks.dead_letters import DeadLetter, dead_letter, rows_of, times_outside

# Keys are indexed, and some databases index no text without a length.
KEY_CHARS_MAX: Final = 255
_SHORT_KEYS: Final = ("mysql", "mariadb", "oracle", "mssql")
# Texts of a key, of the 2,704 bytes that PostgreSQL has for a row of an index.
INDEX_BYTES_MAX: Final = 2_560
ROWS_A_STATEMENT: Final = 10_000


def sql_type(kind: pa.DataType, *, is_key: bool) -> TypeEngine[Any]:
    if pa.types.is_boolean(kind):
        return Boolean()
    if pa.types.is_integer(kind):
        return BigInteger()
    if pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        return Double()
    if pa.types.is_timestamp(kind):
        return DateTime().with_variant(TIMESTAMP(timezone=True), "postgresql")
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return LargeBinary()
    if is_key:
        return Text().with_variant(String(KEY_CHARS_MAX), *_SHORT_KEYS)
    return Text()


def table_of(metadata: MetaData, name: str, schema: pa.Schema, output: Output) -> Table:
    return Table(
        name,
        metadata,
        *[
            Column(
                field.name,
                sql_type(field.type, is_key=field.name in output.keys),
                primary_key=field.name in output.keys,
                autoincrement=False,
                nullable=field.name not in output.keys,
            )
            for field in schema
        ],
    )


def prepare(connection: Connection, table: Table) -> None:
    """Make the table if there is none; if there is one, it must have the columns."""
    inspector = inspect(connection)
    if not inspector.has_table(table.name):
        table.create(connection)
        return
    found = {column["name"] for column in inspector.get_columns(table.name)}
    if missing := [column.name for column in table.columns if column.name not in found]:
        raise SinkError(
            f"table {table.name!r} has no column {', '.join(map(repr, missing))}:"
            " rename the table, or choose another with --table-prefix"
        )
    keys = set(inspector.get_pk_constraint(table.name)["constrained_columns"])
    if keys != {column.name for column in table.primary_key}:
        wanted = ", ".join(column.name for column in table.primary_key)
        raise SinkError(f"table {table.name!r} has another primary key than ({wanted})")


def columns_of(rows: pa.Table, dialect: str) -> list[list[Any]]:
    """Return the values of each column in the types that the driver takes."""
    found = []
    for column in rows.columns:
        kind = column.type
        if pa.types.is_timestamp(kind) and dialect == "sqlite":
            column = pc.strftime(column, "%Y-%m-%d %H:%M:%S")  # has the fraction in it
        elif pa.types.is_timestamp(kind) and dialect != "postgresql":
            column = column.cast(pa.timestamp("us"))
        elif pa.types.is_decimal(kind):
            column = column.cast(pa.float64())
        found.append(column.to_pylist())
    return found


def upsert_or_dead_letter(
    connection: Connection, table: Table, output: Output, rows: pa.Table
) -> list[DeadLetter]:
    """Upsert the rows that the database takes; return the others as dead letters with reasons."""
    dead_letters = []
    if found := troubles(rows, output, connection.dialect.name):
        bad = sorted(found)
        for at, row in zip(bad, rows_of(rows.take(bad)), strict=True):
            dead_letters.append(dead_letter(output, row, found[at]))
        rows = rows.filter(pa.array([at not in found for at in range(rows.num_rows)]))
    return dead_letters + _halved(connection, table, output, rows)


def _halved(
    connection: Connection, table: Table, output: Output, rows: pa.Table
) -> list[DeadLetter]:
    """Find the rows that the database refuses by halving the batch until each stands alone.

    Each try is a savepoint, so what it refuses undoes nothing else.
    """
    if not rows.num_rows:
        return []
    try:
        with connection.begin_nested():
            upsert(connection, table, output, rows)
    except Exception as error:
        if not _is_of_a_row(error):
            raise
        if rows.num_rows == 1:
            reason = str(getattr(error, "orig", None) or error)
            return [dead_letter(output, rows_of(rows)[0], reason)]
        half = rows.num_rows // 2
        parts = (rows.slice(0, half), rows.slice(half))
        return [one for part in parts for one in _halved(connection, table, output, part)]
    return []


# Classes of SQLSTATE that are about a row: data exception, constraint, program limit exceeded.
_ROW_STATES: Final = ("22", "23", "54")


def _is_of_a_row(error: Exception) -> bool:
    """Tell whether a single row causes the error; otherwise the database has the problem."""
    cause = getattr(error, "orig", None) or error
    if isinstance(cause, OverflowError | ValueError):  # Unicode and Arrow errors among them
        return True
    state = getattr(cause, "sqlstate", None)
    if state:
        return str(state)[:2] in _ROW_STATES
    return type(cause).__name__ in ("DataError", "IntegrityError")


def troubles(rows: pa.Table, output: Output, dialect: str) -> dict[int, str]:
    """Return the rows that are known to be refused, so that a batch of them is not halved."""
    found: dict[int, str] = {}

    def note(mask: Any, reason: str) -> None:
        for at in pc.indices_nonzero(pc.fill_null(mask, False)).to_pylist():
            found.setdefault(at, reason)

    key_bytes = None
    for name, column in zip(rows.column_names, rows.columns, strict=True):
        if pa.types.is_timestamp(column.type):
            if (outside := times_outside(column)) is not None:
                note(outside, f"{name}: a time outside the years 1 to 9999")
        elif pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
            if dialect == "postgresql":
                note(pc.match_substring(column, "\0"), f"{name}: U+0000, which no text may have")
            if name in output.keys:
                if dialect in _SHORT_KEYS:
                    too_long = pc.greater(pc.utf8_length(column), KEY_CHARS_MAX)
                    note(too_long, f"{name}: a key of more than {KEY_CHARS_MAX} characters")
                size = pc.fill_null(pc.binary_length(column).cast(pa.int64()), 0)
                key_bytes = size if key_bytes is None else pc.add(key_bytes, size)
    if dialect == "postgresql" and key_bytes is not None:
        too_long = pc.greater(key_bytes, INDEX_BYTES_MAX)
        note(too_long, f"keys of more than {INDEX_BYTES_MAX:,} bytes")
    return found


def upsert(connection: Connection, table: Table, output: Output, rows: pa.Table) -> None:
    if not rows.num_rows:
        return
    dialect = connection.dialect.name
    if dialect == "sqlite":
        _upsert_sqlite(connection, table, output, rows)
    elif dialect == "postgresql" and connection.dialect.driver == "psycopg":
        _upsert_postgres(connection, table, output, rows)
    else:
        upsert_any(connection, table, output, rows)


def _on_conflict(connection: Connection, table: Table, output: Output) -> str:
    """Return the ON CONFLICT clause that SQLite and PostgreSQL share."""
    quote = connection.dialect.identifier_preparer.quote
    keys = ", ".join(map(quote, output.keys))
    rest = [column.name for column in table.columns if column.name not in output.keys]
    if not rest:
        return f"ON CONFLICT ({keys}) DO NOTHING"
    sets = ", ".join(f"{quote(name)} = excluded.{quote(name)}" for name in rest)
    said = f"ON CONFLICT ({keys}) DO UPDATE SET {sets}"
    if output.newer_by:
        new = ", ".join(f"excluded.{quote(name)}" for name in output.newer_by)
        old = ", ".join(f"{quote(table.name)}.{quote(name)}" for name in output.newer_by)
        said += f" WHERE ({new}) >= ({old})"
    return said


def _upsert_sqlite(connection: Connection, table: Table, output: Output, rows: pa.Table) -> None:
    quote = connection.dialect.identifier_preparer.quote
    names = ", ".join(map(quote, rows.column_names))
    marks = ", ".join("?" * rows.num_columns)
    statement = (
        f"INSERT INTO {quote(table.name)} ({names}) VALUES ({marks})"
        f" {_on_conflict(connection, table, output)}"
    )
    for at in range(0, rows.num_rows, ROWS_A_STATEMENT):
        part = columns_of(rows.slice(at, ROWS_A_STATEMENT), "sqlite")
        connection.exec_driver_sql(statement, list(zip(*part, strict=True)))


def _upsert_postgres(connection: Connection, table: Table, output: Output, rows: pa.Table) -> None:
    """COPY into a table of this transaction, and one statement from there.

    Such a statement takes each key once, and a finding may begin and end in one batch.
    """
    rows = last_of_each(rows, output)
    quote = connection.dialect.identifier_preparer.quote
    staged, target = quote(f"staged_{table.name}"), quote(table.name)
    names = ", ".join(map(quote, rows.column_names))
    connection.exec_driver_sql(
        f"CREATE TEMPORARY TABLE {staged} ON COMMIT DROP AS"
        f" SELECT {names} FROM {target} WITH NO DATA"
    )
    driver: Any = connection.connection.driver_connection
    with driver.cursor() as cursor, cursor.copy(f"COPY {staged} ({names}) FROM STDIN") as copy:
        for at in range(0, rows.num_rows, ROWS_A_STATEMENT):
            part = columns_of(rows.slice(at, ROWS_A_STATEMENT), "postgresql")
            for row in zip(*part, strict=True):
                copy.write_row(row)
    connection.exec_driver_sql(
        f"INSERT INTO {target} ({names}) SELECT {names} FROM {staged}"
        f" {_on_conflict(connection, table, output)}"
    )
    connection.exec_driver_sql(f"DROP TABLE {staged}")


_ROW: Final = "\0row"


def last_of_each(rows: pa.Table, output: Output) -> pa.Table:
    """Keep the last row of each key, as writing them in their order would."""
    numbered = rows.append_column(_ROW, pa.array(range(rows.num_rows), pa.int64()))
    if output.newer_by:
        order = [*output.newer_by, _ROW]
        numbered = numbered.sort_by([(name, "ascending") for name in order])
        rows = numbered.drop_columns([_ROW])
        numbered = rows.append_column(_ROW, pa.array(range(rows.num_rows), pa.int64()))
    last = numbered.group_by(list(output.keys)).aggregate([(_ROW, "max")])
    if last.num_rows == rows.num_rows:
        return rows
    return rows.take(last.column(f"{_ROW}_max").combine_chunks().sort())


def upsert_any(connection: Connection, table: Table, output: Output, rows: pa.Table) -> None:
    """Upsert with a DELETE of the rows to be replaced and an INSERT, for any database."""
    keys = [table.c[name] for name in output.keys]
    same = and_(*[key == bindparam(f"key_{key.name}") for key in keys])
    for at in range(0, rows.num_rows, ROWS_A_STATEMENT):
        part = rows.slice(at, ROWS_A_STATEMENT)
        columns = dict(
            zip(part.column_names, columns_of(part, connection.dialect.name), strict=True)
        )
        records = [
            dict(zip(columns, values, strict=True))
            for values in zip(*columns.values(), strict=True)
        ]
        if output.newer_by:
            records = [
                record for record in records
                if not _is_older(connection, table, output, record)
            ]  # fmt: skip
        marked = [{f"key_{name}": one[name] for name in output.keys} for one in records]
        if records:
            connection.execute(delete(table).where(same), marked)
            connection.execute(insert(table), records)


def _is_older(connection: Connection, table: Table, output: Output, record: dict[str, Any]) -> bool:
    """Tell whether the table has a newer row of these keys."""
    is_newer = or_(
        *[
            and_(
                *[table.c[before] == record[before] for before in output.newer_by[:at]],
                table.c[name] > record[name],
            )
            for at, name in enumerate(output.newer_by)
        ]
    )
    same = and_(*[table.c[name] == record[name] for name in output.keys])
    return (
        connection.execute(select(table.c[output.keys[0]]).where(same, is_newer)).first()
        is not None
    )
