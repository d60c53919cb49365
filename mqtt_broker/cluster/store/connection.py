"""A connection to PostgreSQL, which executes a batch of statements in one round trip.

A batch is a pipeline of libpq: statements and one Sync are sent together, and what follows a
statement that fails is not executed. The first batch of a transaction begins with BEGIN. Statements
are prepared when they are first used.

psycopg makes the connection, and its binding of libpq sends the batches: psycopg's own pipelines
wait without end for a server that has stopped to answer, and cost more. Here every wait has an end:
after `ANSWER_S` without a byte from the server the connection is closed. Whatever ends a connection
is `ConnectionLost`, and unknown if COMMIT was sent without an answer.

COMMIT with a warning is unknown, too: the server gave up waiting for its standby, for instance
because somebody has cancelled the statement, and a fail-over may lose the commit.
"""

from __future__ import annotations

import contextlib
import select
import socket
import threading
import time
from collections.abc import Mapping
from typing import Any, Final

import psycopg
from psycopg import pq
from sqlalchemy import Table
from sqlalchemy.engine import URL

from mqtt_broker.cluster.statements import (
    Aborted,
    Commit,
    ConnectionLost,
    EndBackends,
    Refused,
    Row,
    Rows,
    Stale,
    Statement,
    TransactionError,
)
from mqtt_broker.cluster.store.queries import (
    BEGIN_QUERY,
    RIGHTS_QUERY,
    ROLLBACK_QUERY,
    SECRET_QUERY,
    STATE_QUERY,
    Queries,
    Query,
)
from mqtt_broker.cluster.store.schema import REFUSED_SQLSTATE, STALE_SQLSTATE, check
from mqtt_broker.cluster.store.state_queries import QUERIES
from sessions.store import schema as state_schema
from sessions.store.database import (
    DETECT_DEAD_CLIENT,
    DETECT_DEAD_SERVER,
    StoreError,
    explain_connect,
)

ANSWER_S: Final = 10.0
LABEL_BYTES_MAX: Final = 63  # PostgreSQL cuts a longer name
_UNIQUE_VIOLATION: Final = "23505"
_READ_ONLY: Final = "25006"
# All statements find their rows by an index. The planner would not see that where it has old
# statistics, or guesses how much of a table has changed.
_SETTINGS: Final = b"""
SELECT set_config('idle_in_transaction_session_timeout', '5s', false),
       set_config('synchronous_commit', CASE current_setting('synchronous_commit')
                  WHEN 'remote_apply' THEN 'remote_apply' ELSE 'on' END, false),
       set_config('enable_seqscan', 'off', false), set_config('enable_hashjoin', 'off', false),
       set_config('enable_mergejoin', 'off', false), set_config('jit', 'off', false),
       set_config('max_parallel_workers_per_gather', '0', false)
"""
_BINARY: Final = 1


class Connector:
    """Connects to the database of one cluster."""

    def __init__(
        self, url: URL, cluster: str, tables: Mapping[str, Table], *, answer_s: float = ANSWER_S
    ) -> None:
        if not psycopg.Pipeline.is_supported():
            raise StoreError("libpq is too old for a cluster: it needs version 14 or newer")
        self.cluster = cluster
        self.answer_s = answer_s
        self.name = url.set(query={}).render_as_string(hide_password=True)
        _, options = url.get_dialect()().create_connect_args(url)
        self._options: dict[str, Any] = {
            **DETECT_DEAD_SERVER,
            "target_session_attrs": "read-write",
            **options,
            "client_encoding": "UTF8",
        }
        self._queries = Queries(tables, QUERIES)
        self._tables = [*(table.name for table in tables.values()), *state_schema.tables.tables]
        self.secret = b""  # of the cluster's frames, as the last connection has read it

    def connect(self, label: str) -> StoreConnection:
        """Connect under a label. Raises StoreError, in one line for the operator."""
        assert label.isascii() and 0 < len(label) <= LABEL_BYTES_MAX, label
        try:
            driver = psycopg.connect(
                **{**self._options, "application_name": label}, autocommit=True
            )
        except psycopg.Error as error:
            said = explain_connect(error)
            raise StoreError(f"the database {self.name} cannot be reached: {said}") from None
        connection = StoreConnection(driver, self._queries, self.answer_s)
        try:
            self._examine(connection)
        except TransactionError as error:
            connection.close()
            raise StoreError(f"the database {self.name} cannot be used: {error}") from None
        except StoreError:
            connection.close()
            raise
        return connection

    def _examine(self, connection: StoreConnection) -> None:
        """Refuse a role that may not do all that is needed, and tables that are not ours."""
        missing = connection.set_up(self._tables)
        if missing:
            others = f" and {len(missing) - 1} other rights" if len(missing) > 1 else ""
            raise StoreError(
                f"the role {connection.role!r} lacks {missing[0]}{others} in the database "
                f"{self.name}: nodes need SELECT, INSERT, UPDATE and DELETE on the tables of "
                "sessions and messages and on all whose names begin with cluster_, and may have "
                "no function taken from them"
            )
        check(*connection.state(), self.name, self.cluster)
        self.secret = connection.secret()


class StoreConnection:
    """A connection that is used by one thread; `interrupt` is for any other."""

    def __init__(self, driver: psycopg.Connection[Any], queries: Queries, answer_s: float) -> None:
        self._driver = driver
        self.pgconn = driver.pgconn
        self._queries = queries
        self._answer_s = answer_s
        self._prepared: dict[bytes, bytes] = {}
        self._names = 0
        self._expected: list[tuple[Query | None, bytes]] = []  # and the name that it prepares
        self._warning = ""
        self._closing = threading.Lock()
        self.is_closed = False
        self.is_in_transaction = False
        self.pid = self.pgconn.backend_pid
        driver.add_notice_handler(self._on_notice)
        assert self.pgconn.nonblocking, "psycopg connects without blocking"
        self.pgconn.enter_pipeline_mode()

    @property
    def role(self) -> str:
        """The role that it has logged in as."""
        return self._driver.info.user

    def set_up(self, tables: list[str]) -> list[str]:
        """Make the settings of a session; return the rights that its role lacks."""
        for sql in (DETECT_DEAD_CLIENT.encode(), _SETTINGS):
            self.pgconn.send_query_params(sql, None, result_format=_BINARY)
            self._expected.append((None, b""))
        return [row["missing"] for row in self._ask(RIGHTS_QUERY, {"tables": tables})]

    def state(self) -> tuple[str, str]:
        """Read the tables' version, and whose they are."""
        rows = self._ask(STATE_QUERY)
        if not rows:
            raise Aborted("the row of the cluster's name is missing")
        return rows[0]["version"], rows[0]["name"]

    def secret(self) -> bytes:
        """Read the secret of the cluster."""
        found: bytes = self._ask(SECRET_QUERY)[0]["secret"]
        return found

    def _ask(self, query: Query, values: Row | None = None) -> Rows:
        """Execute a query that is in no transaction."""
        try:
            result = self._run([(query, values or {})])[-1]
        except _ServerError as error:
            raise Aborted(error.said) from None
        return query.decode(result.ntuples, result.get_value)

    # Transactions.

    def execute(self, batch: list[Statement]) -> list[Rows]:
        """Execute a batch; return the rows of each statement. Raises TransactionError."""
        found = [self._queries.find(statement) for statement in batch]
        if not self.is_in_transaction:
            found.insert(0, (BEGIN_QUERY, {}))
        is_committing = isinstance(batch[-1], Commit)
        self._warning = ""
        try:
            results = self._run(found)
        except _ServerError as error:
            self.rollback()
            raise _failure(error) from None
        except ConnectionLost:
            raise ConnectionLost(is_unknown=is_committing) from None
        self.is_in_transaction = not is_committing
        if is_committing:
            self._check_committed(results[-1])
        return self._rows(batch, found[-len(batch) :], results[-len(batch) :])

    def _run(self, found: list[tuple[Query, Row]]) -> list[pq.abc.PGresult]:
        """Send some queries together; return their results."""
        try:
            encoded = [query.encode(values) for query, values in found]
        except (ValueError, OverflowError):
            self.close()
            raise
        for (query, _), values in zip(found, encoded, strict=True):
            self._send(query, values)
        return self._exchange()

    def _check_committed(self, result: pq.abc.PGresult) -> None:
        if result.command_status != b"COMMIT":
            self.close()
            raise Aborted(f"COMMIT was answered with {(result.command_status or b'').decode()}")
        if self._warning:
            self.close()
            raise ConnectionLost(is_unknown=True)

    def _rows(
        self,
        batch: list[Statement],
        found: list[tuple[Query, Row]],
        results: list[pq.abc.PGresult],
    ) -> list[Rows]:
        rows: list[Rows] = []
        for statement, (query, _), result in zip(batch, found, results, strict=True):
            if isinstance(statement, EndBackends):
                self._check_ended(statement, query.decode(result.ntuples, result.get_value))
                rows.append([])
            elif query.has_rows:
                some = query.decode(result.ntuples, result.get_value)
                rows.append(self._queries.sort(statement, some))
            else:
                rows.append([])
        return rows

    def _check_ended(self, statement: EndBackends, rows: Rows) -> None:
        """Refuse to go on beside connections that cannot be ended."""
        others = {row["role"] for row in rows} - {""}
        if others:
            self.rollback()
            raise Aborted(
                f"connections of {statement.label} belong to the role {min(others)!r}, and "
                f"{self.role!r} may not end them: nodes of a cluster share one role"
            )

    def rollback(self) -> None:
        """Undo a transaction that has failed, or is given up."""
        if self.is_closed:
            return
        self.is_in_transaction = False
        try:
            self._run([(ROLLBACK_QUERY, {})])
        except (TransactionError, _ServerError):
            self.close()

    def close(self) -> None:
        """End the connection."""
        with self._closing:
            if not self.is_closed:
                self.is_closed = True
                self.is_in_transaction = False
                self._driver.close()

    def interrupt(self) -> None:
        """End it from another thread, which wakes the one that waits for an answer."""
        with self._closing:
            if not self.is_closed:
                with contextlib.suppress(OSError), socket.socket(fileno=_copy(self.pgconn)) as end:
                    end.shutdown(socket.SHUT_RDWR)

    # The protocol.

    def _send(self, query: Query, values: list[bytes]) -> None:
        name = self._prepared.get(query.sql)
        try:
            if name is None:
                self._names += 1
                name = b"s%d" % self._names
                self.pgconn.send_prepare(name, query.sql, query.oids)
                self._expected.append((query, name))
            formats = [_BINARY] * len(values)
            self.pgconn.send_query_prepared(name, values, formats, _BINARY)
            self._expected.append((None, b""))
        except psycopg.Error:
            raise self._lost() from None

    def _exchange(self) -> list[pq.abc.PGresult]:
        """Send what was queued, and read all answers: those of preparations are left out."""
        expected, self._expected = self._expected, []
        results: list[pq.abc.PGresult] = []
        failed: _ServerError | None = None
        try:
            self.pgconn.pipeline_sync()
            self._flush()
            for query, name in expected:
                result = self._next_result()
                if result.status == pq.ExecStatus.FATAL_ERROR:
                    failed = failed or _ServerError(result)
                elif result.status != pq.ExecStatus.PIPELINE_ABORTED:
                    if query is not None:
                        self._prepared[query.sql] = name
                    else:
                        results.append(result)
            self._wait_for_result()
            self.pgconn.get_result()  # of Sync
        except psycopg.Error:
            error = self._lost()
            if failed is None:
                raise error from None
        if failed is not None:
            if failed.is_fatal:
                raise self._lost()
            raise failed
        return results

    def _lost(self) -> ConnectionLost:
        self.close()
        return ConnectionLost(is_unknown=False)

    def _next_result(self) -> pq.abc.PGresult:
        self._wait_for_result()
        result = self.pgconn.get_result()
        if result is None:
            raise psycopg.OperationalError("no result")
        if result.status != pq.ExecStatus.FATAL_ERROR or not _ServerError(result).is_fatal:
            self._wait_for_result()
            self.pgconn.get_result()  # the end of this query
        return result

    def _flush(self) -> None:
        while self.pgconn.flush():
            if self._poll(select.POLLIN | select.POLLOUT) & select.POLLIN:
                self.pgconn.consume_input()

    def _wait_for_result(self) -> None:
        while self.pgconn.is_busy():
            self._poll(select.POLLIN)
            self.pgconn.consume_input()

    def _poll(self, events: int) -> int:
        poller = select.poll()
        poller.register(self.pgconn.socket, events)
        deadline = time.monotonic() + self._answer_s
        found = poller.poll(self._answer_s * 1000)
        if not found and time.monotonic() >= deadline - 0.001:
            raise psycopg.OperationalError("the server does not answer")
        return found[0][1] if found else 0

    def _on_notice(self, notice: psycopg.errors.Diagnostic) -> None:
        if notice.severity_nonlocalized == "WARNING":
            self._warning = notice.message_primary or ""


def _copy(pgconn: pq.abc.PGconn) -> int:
    """Return a file descriptor of our own for the connection's socket."""
    with socket.socket(fileno=pgconn.socket) as found:
        copy = found.dup().detach()
        found.detach()
    return copy


class _ServerError(Exception):
    """The server has refused a statement."""

    def __init__(self, result: pq.abc.PGresult) -> None:
        def field(which: pq.DiagnosticField) -> str:
            return (result.error_field(which) or b"").decode(errors="replace")

        super().__init__()
        self.sqlstate = field(pq.DiagnosticField.SQLSTATE)
        self.message = field(pq.DiagnosticField.MESSAGE_PRIMARY)
        severity = field(pq.DiagnosticField.SEVERITY_NONLOCALIZED)
        # Without SQLSTATE it is libpq that speaks: the connection is gone.
        is_ended = severity in ("FATAL", "PANIC") or not self.sqlstate
        self.is_fatal = is_ended or self.sqlstate == _READ_ONLY

    @property
    def said(self) -> str:
        return f"{self.message} ({self.sqlstate})"


def _failure(error: _ServerError) -> TransactionError:
    if error.sqlstate in (REFUSED_SQLSTATE, _UNIQUE_VIOLATION):
        return Refused(error.message)
    if error.sqlstate == STALE_SQLSTATE:
        return Stale(error.message)
    return Aborted(error.said)
