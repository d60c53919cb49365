"""Results in any SQL database, exactly once.

A batch is one transaction: its rows, upserted, and a row of the ledger. After a crash Spark runs
the batch again, and the ledger shows that it was written. The checkpoint's id identifies the query:
a new checkpoint is a new query, whose batches count from 0 again.

    fleetmq_spark_ledger
        query         the checkpoint's id
        batch         its number
        job           which job it was
        rows          of all its outputs
        committed_at  UTC

A row that the database refuses is written to `dead_letters` in the same transaction, with the
reason, and the rest of the batch is written.

    dead_letters  of each query and batch
        output, number  which result, and a number within the batch
        keys, row       JSON in ASCII, cut short
        reason          one line

Missing tables are created in the same transaction. In a database without transactional DDL (MySQL)
a crash may leave an empty table, and nothing else.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    DateTime,
    Engine,
    MetaData,
    String,
    Table,
    Text,
    create_engine,
    delete,
    event,
    func,
    insert,
    make_url,
    select,
)
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError, SQLAlchemyError
from sqlalchemy.pool import NullPool

from spark_ingest.contract.sink import Batch, SinkError
from spark_ingest.sinks import tables
from spark_ingest.sinks.dead_letters import DeadLetter

LEDGER: Final = "fleetmq_spark_ledger"
DEAD_LETTERS: Final = "dead_letters"
# How many batches of a query the ledger remembers. Spark repeats only the last one.
REMEMBERED: Final = 1_000
LOCK_WAIT_S: Final = 30


class SqlSink:
    def __init__(self, engine: Engine, prefix: str = "") -> None:
        self.engine = engine
        self._prefix = prefix
        self._metadata = MetaData()
        self._tables: dict[str, Table] = {}
        self._ledger = Table(
            LEDGER,
            self._metadata,
            Column("query", String(64), primary_key=True),
            Column("batch", BigInteger(), primary_key=True, autoincrement=False),
            Column("job", String(64), nullable=False),
            Column("rows", BigInteger(), nullable=False),
            Column("committed_at", DateTime(), nullable=False),
        )
        self._dead_letters = Table(
            prefix + DEAD_LETTERS,
            self._metadata,
            Column("query", String(64), primary_key=True),
            Column("batch", BigInteger(), primary_key=True, autoincrement=False),
            Column("number", BigInteger(), primary_key=True, autoincrement=False),
            Column("output", String(64), nullable=False),
            Column("keys", Text(), nullable=False),
            Column("reason", Text(), nullable=False),
            Column("row", Text(), nullable=False),
        )

    def write(self, batch: Batch) -> None:
        try:
            if not self.has(batch):
                found = batch.tables  # computed before the transaction begins
                with self.engine.begin() as connection:
                    self._write(connection, batch, found)
        except DBAPIError as error:
            raise SinkError(f"{self.name}: {explain(error)}") from error

    @property
    def name(self) -> str:
        return self.engine.url.render_as_string(hide_password=True)

    def has(self, batch: Batch) -> bool:
        """Tell whether this batch was committed."""
        with self.engine.connect() as connection:
            if not self.engine.dialect.has_table(connection, LEDGER):
                return False
            return self._last(connection, batch.query) >= batch.number

    def _write(self, connection: Connection, batch: Batch, found: Any) -> None:
        self._ledger.create(connection, checkfirst=True)
        rows = sum(table.num_rows for table in found.values())
        # First: a second driver on the same checkpoint fails here and writes nothing.
        connection.execute(
            insert(self._ledger).values(
                query=batch.query,
                batch=batch.number,
                job=batch.job,
                rows=rows,
                committed_at=datetime.now(UTC).replace(tzinfo=None),
            )
        )
        dead_letters: list[DeadLetter] = []
        for output in batch.outputs:
            table = self._table(connection, batch, output.name, found[output.name])
            dead_letters += tables.upsert_or_dead_letter(
                connection, table, output, found[output.name]
            )
        if dead_letters:
            self._write_dead_letters(connection, batch, dead_letters)
        old = (self._ledger.c.query == batch.query) & (
            self._ledger.c.batch <= batch.number - REMEMBERED
        )
        connection.execute(delete(self._ledger).where(old))

    def _write_dead_letters(
        self, connection: Connection, batch: Batch, dead_letters: list[DeadLetter]
    ) -> None:
        self._dead_letters.create(connection, checkfirst=True)
        about = {"query": batch.query, "batch": batch.number}
        rows = [{**about, "number": at, **one._asdict()} for at, one in enumerate(dead_letters)]
        connection.execute(insert(self._dead_letters), rows)
        batch.dead_letters += len(dead_letters)

    def _table(self, connection: Connection, batch: Batch, name: str, rows: Any) -> Table:
        table = self._tables.get(name)
        if table is None:
            output = next(one for one in batch.outputs if one.name == name)
            metadata = MetaData()
            table = tables.table_of(metadata, self._prefix + name, rows.schema, output)
            tables.prepare(connection, table)
            # Only committed batches are known to be written.
            event.listen(
                connection, "commit", lambda _: self._tables.update({name: table}), once=True
            )
        return table

    def _last(self, connection: Connection, query: str) -> int:
        found = connection.execute(
            select(func.max(self._ledger.c.batch)).where(self._ledger.c.query == query)
        ).scalar()
        return -1 if found is None else int(found)

    def close(self) -> None:
        self.engine.dispose()


def open_engine(url: str) -> Engine:
    """Return an engine whose transactions are atomic on every database. Raises SinkError."""
    try:
        parsed = make_url(url)
        if parsed.drivername == "postgresql":
            parsed = parsed.set(drivername="postgresql+psycopg")
        is_sqlite = parsed.get_backend_name() == "sqlite"
        options = {"timeout": LOCK_WAIT_S} if is_sqlite else {}
        engine = create_engine(parsed, poolclass=NullPool, connect_args=options)
    except (ArgumentError, NoSuchModuleError) as error:
        raise SinkError(f"{url.partition('@')[2] or url!r}: {explain(error)}") from None
    except ModuleNotFoundError as error:
        raise SinkError(f"the sink needs the Python package {error.name}") from None
    if is_sqlite:
        _make_strict(engine)
    return engine


def _make_strict(engine: Engine) -> None:
    """Begin each SQLite transaction at once, tables included: the driver begins later."""

    @event.listens_for(engine, "connect")
    def on_connect(connection: Any, _: object) -> None:
        connection.isolation_level = None
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")

    @event.listens_for(engine, "begin")
    def on_begin(connection: Connection) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")


def open_sink(url: str, prefix: str) -> SqlSink:
    sink = SqlSink(open_engine(url), prefix)
    try:
        with sink.engine.connect():
            pass
    except SQLAlchemyError as error:
        raise SinkError(f"{sink.name}: {explain(error)}") from None
    return sink


def explain(error: Exception) -> str:
    """Shorten a driver's error of several lines to one."""
    said = str(getattr(error, "orig", None) or error).strip()
    return " ".join(said.split()) or type(error).__name__
