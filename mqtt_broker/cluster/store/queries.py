"""Compile statements to SQL, once for each shape: the same columns of the same table.

Values travel in PostgreSQL's binary format, in both directions. So a text with U+0000, which no
MQTT string has, is an error of the server and not a shorter text. Where a digest stands in a key,
it is made of the text here.

A required update that finds no row has to fail on the server, before the statements that follow it
in the pipeline, and so has `Expect`: functions of the schema raise an error there.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from sqlalchemy import (
    ARRAY,
    BigInteger,
    BindParameter,
    Boolean,
    Column,
    ColumnElement,
    Table,
    and_,
    any_,
    bindparam,
    column,
    delete,
    func,
    literal_column,
    select,
    true,
    update,
)
from sqlalchemy.dialects import postgresql
from sqlalchemy.dialects.postgresql import aggregate_order_by
from sqlalchemy.sql import TableValuedAlias
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.expression import ClauseElement
from sqlalchemy.types import TypeEngine

from mqtt_broker.cluster.statements import (
    Clock,
    Commit,
    Delete,
    EndBackends,
    Expect,
    Insert,
    InsertNew,
    LockTimeout,
    Named,
    Put,
    PutAll,
    Row,
    Rows,
    Select,
    SelectNewer,
    Statement,
    Update,
)
from mqtt_broker.cluster.store.schema import (
    EXPECTED_FUNCTION,
    REQUIRED_FUNCTION,
    VERSION_TABLE,
    Digest,
    key_of,
    known,
    stored,
    text_of,
)
from sessions.store.schema import digest

BEGIN: Final = b"BEGIN ISOLATION LEVEL READ COMMITTED, READ WRITE"
COMMIT: Final = b"COMMIT"
ROLLBACK: Final = b"ROLLBACK"
# A row for each connection: the role that it belongs to, or '' if it was ended.
_END_BACKENDS: Final = b"""
SELECT CASE WHEN usename = current_user THEN '' ELSE usename::text END,
       CASE WHEN usename = current_user THEN pg_terminate_backend(pid) END
FROM pg_stat_activity
WHERE application_name = $1 AND datname = current_database() AND pid <> pg_backend_pid()
"""
_CLOCK: Final = b"SELECT extract(epoch FROM clock_timestamp())::float8"
_LOCK_TIMEOUT: Final = b"SELECT set_config('lock_timeout', $1, true)"
# A row for each right that this role lacks. What is not there yet is left out.
_RIGHTS: Final = f"""
SELECT needed || ' on ' || name
FROM unnest($1) WITH ORDINALITY AS tables (name, place),
     unnest('{{SELECT,INSERT,UPDATE,DELETE}}'::text[]) AS needed
WHERE NOT has_table_privilege(to_regclass(name), needed)
UNION ALL
SELECT 'SELECT on ' || name FROM unnest('{{{VERSION_TABLE},cluster_state}}'::text[]) AS name
WHERE NOT has_table_privilege(to_regclass(name), 'SELECT')
UNION ALL
SELECT 'EXECUTE on ' || name
FROM unnest('{{{REQUIRED_FUNCTION},{EXPECTED_FUNCTION},pg_terminate_backend}}'::text[]) AS name
WHERE NOT has_function_privilege(to_regproc(name), 'EXECUTE')
"""
_STATE: Final = f"SELECT (SELECT version_num FROM {VERSION_TABLE}), name FROM cluster_state"

_DIALECT: Final = postgresql.dialect(paramstyle="numeric_dollar")  # type: ignore[no-untyped-call]


class Codec:
    """A type of PostgreSQL in its binary format."""

    __slots__ = ("decode", "encode", "oid")

    def __init__(
        self, oid: int, encode: Callable[[Any], bytes], decode: Callable[[bytes], Any]
    ) -> None:
        self.oid = oid
        self.encode = encode
        self.decode = decode


_INT4: Final = struct.Struct("!i")
_INT8: Final = struct.Struct("!q")
_FLOAT8: Final = struct.Struct("!d")
NUMBER: Final = Codec(20, _INT8.pack, lambda found: _INT8.unpack(found)[0])
TEXT: Final = Codec(25, str.encode, bytes.decode)
BYTES: Final = Codec(17, bytes, bytes)
TRUTH: Final = Codec(16, lambda value: b"\1" if value else b"\0", lambda found: found == b"\1")
FLOAT: Final = Codec(701, _FLOAT8.pack, lambda found: _FLOAT8.unpack(found)[0])
_DIGEST: Final = Codec(17, digest, bytes)  # of a text
_CODECS: Final[dict[type, Codec]] = {
    int: NUMBER, str: TEXT, bytes: BYTES, bool: TRUTH, float: FLOAT
}  # fmt: skip


_NULL: Final = _INT4.pack(-1)


def _array(of: Codec, oid: int) -> Codec:
    def encode(values: list[Any]) -> bytes:
        parts = [struct.pack("!iiI", 1 if values else 0, None in values, of.oid)]
        if values:
            parts.append(struct.pack("!ii", len(values), 1))
        for value in values:
            if value is None:
                parts.append(_NULL)
            else:
                encoded = of.encode(value)
                parts += _INT4.pack(len(encoded)), encoded
        return b"".join(parts)

    def decode(found: bytes) -> list[Any]:
        raise AssertionError("no column is an array")

    return Codec(oid, encode, decode)


ARRAYS: Final = {
    int: _array(NUMBER, 1016),
    str: _array(TEXT, 1009),
    bytes: _array(BYTES, 1001),
    bool: _array(TRUTH, 1000),
    float: _array(FLOAT, 1022),
}
DIGESTS: Final = _array(_DIGEST, 1001)
_HASHED: Final = "hashed_"  # before the name of a parameter whose digest is sent


class Query:
    """The SQL of all statements of one shape."""

    __slots__ = ("_columns", "_parameters", "oids", "sql")

    def __init__(
        self,
        sql: bytes,
        parameters: list[tuple[str, Codec]],
        columns: list[tuple[str, Codec]],
    ) -> None:
        self.sql = sql
        self.oids = [codec.oid for _, codec in parameters]
        self._parameters = parameters
        self._columns = columns

    @property
    def has_rows(self) -> bool:
        """Tell whether it returns rows."""
        return len(self._columns) > 0

    def encode(self, values: Row) -> list[bytes]:
        """Encode the values of a statement in the order of the parameters."""
        return [codec.encode(values[name]) for name, codec in self._parameters]

    def decode(self, count: int, value: Callable[[int, int], bytes | None]) -> Rows:
        """Decode the rows of a result, of which `value` returns one column of one row."""
        return [
            {
                name: None if (found := value(row, at)) is None else codec.decode(found)
                for at, (name, codec) in enumerate(self._columns)
            }
            for row in range(count)
        ]


_PLAIN: Final = {sql: Query(sql, [], []) for sql in (BEGIN, COMMIT, ROLLBACK)}
BEGIN_QUERY: Final = _PLAIN[BEGIN]
COMMIT_QUERY: Final = _PLAIN[COMMIT]
ROLLBACK_QUERY: Final = _PLAIN[ROLLBACK]
_END_QUERY: Final = Query(_END_BACKENDS, [("label", TEXT)], [("role", TEXT)])
_CLOCK_QUERY: Final = Query(_CLOCK, [], [("now", FLOAT)])
_LOCK_TIMEOUT_QUERY: Final = Query(_LOCK_TIMEOUT, [("seconds", TEXT)], [])
RIGHTS_QUERY: Final = Query(_RIGHTS.encode(), [("tables", ARRAYS[str])], [("missing", TEXT)])
STATE_QUERY: Final = Query(_STATE.encode(), [], [("version", TEXT), ("name", TEXT)])
SECRET_QUERY: Final = Query(b"SELECT secret FROM cluster_state", [], [("secret", BYTES)])


NO_QUERIES: Final[Mapping[str, Query]] = {}


class Queries:
    """The queries for some tables, by the names that the rules know."""

    def __init__(
        self, tables: Mapping[str, Table], named: Mapping[str, Query] = NO_QUERIES
    ) -> None:
        self._tables = tables
        self._named = named
        self._known: dict[tuple[Any, ...], Query] = {}

    def find(self, statement: Statement) -> tuple[Query, Row]:
        """Return the query of a statement, and the values of its parameters."""
        if isinstance(statement, Commit):
            return COMMIT_QUERY, {}
        if isinstance(statement, LockTimeout):
            return _LOCK_TIMEOUT_QUERY, {"seconds": f"{max(1, round(statement.seconds * 1000))}ms"}
        if isinstance(statement, Clock):
            return _CLOCK_QUERY, {}
        if isinstance(statement, Named):
            return self._named[statement.name], statement.values
        if isinstance(statement, EndBackends):
            return _END_QUERY, {"label": statement.label}
        if isinstance(statement, InsertNew | PutAll):
            shape, values = self._shape_of_rows(statement)
        else:
            shape, values = _shape(statement)
        query = self._known.get(shape)
        if query is None:
            query = self._known[shape] = self._compile(statement)
        return query, values

    def _shape_of_rows(self, statement: InsertNew | PutAll) -> tuple[tuple[Any, ...], Row]:
        names = [column.name for column in known(self._tables[statement.table])]
        lists = {f"all_{name}": [row[name] for row in statement.rows] for name in names}
        return (type(statement), statement.table), lists

    def sort(self, statement: Statement, rows: Rows) -> Rows:
        """Return the rows of a statement in the order of their keys."""
        if len(rows) > 1 and isinstance(statement, Update):
            key = [column.name for column in key_of(self._tables[statement.table])]
            rows.sort(key=lambda row: [row[name] for name in key])
        return rows

    def _compile(self, statement: Statement) -> Query:
        if isinstance(statement, Select):
            return self._select(statement)
        if isinstance(statement, Update):
            return self._update(statement)
        if isinstance(statement, Delete):
            return self._delete(statement)
        if isinstance(statement, SelectNewer):
            return self._select_newer(statement)
        if isinstance(statement, Expect):
            return self._expect(statement)
        if isinstance(statement, InsertNew | PutAll):
            return self._insert_rows(statement)
        assert isinstance(statement, Insert | Put)
        return self._insert(statement)

    def _select(self, statement: Select) -> Query:
        table = self._tables[statement.table]
        columns = [table.c[name] for name in statement.columns] or known(table)
        found = select(*columns).where(_equal(table, statement.where))
        if statement.above is not None:
            found = found.where(table.c[statement.above[0]] > _bound(table, statement.above))
        found = found.order_by(*key_of(table))
        if statement.limit is not None:
            found = found.limit(bindparam("limit", type_=BigInteger))
        if statement.for_update:
            found = found.with_for_update()
        return _query(found, table, has_rows=True, columns=columns)

    def _select_newer(self, statement: SelectNewer) -> Query:
        table = self._tables[statement.table]
        numbers = bindparam("numbers", type_=ARRAY(BigInteger))
        values = bindparam("values", type_=ARRAY(BigInteger))
        than = (
            func.unnest(numbers, values)
            .table_valued(column("number", BigInteger), column("value", BigInteger), name="than")
            .render_derived()
        )
        if statement.limit is not None:
            return self._select_newer_page(table, statement.column, than)
        is_newer = and_(table.c.number == than.c.number, table.c[statement.column] > than.c.value)
        found = select(*known(table)).join_from(table, than, is_newer)
        return _query(found.order_by(*key_of(table)), table, has_rows=True)

    def _select_newer_page(self, table: Table, name: str, than: TableValuedAlias) -> Query:
        """Read number after number, each in the order of an index, until there are enough."""
        limit = bindparam("limit", type_=BigInteger)
        numbers = select(than.c.number, than.c.value).order_by(than.c.number).subquery("numbers")
        is_newer = and_(table.c.number == numbers.c.number, table.c[name] > numbers.c.value)
        key = [column.name for column in key_of(table)]
        page = (
            select(*known(table))
            .where(is_newer)
            .order_by(table.c[name], *key_of(table))
            .limit(limit)
            .lateral("page")
        )
        found = select(*(page.c[column.name] for column in known(table))).join_from(
            numbers, page, true()
        )
        order = [numbers.c.number, page.c[name], *(page.c[one] for one in key)]
        return _query(found.order_by(*order).limit(limit), table, has_rows=True)

    def _expect(self, statement: Expect) -> Query:
        table = self._tables[statement.table]
        pairs = []
        for name in statement.columns:
            kind = ARRAY(table.c[name].type)
            found = aggregate_order_by(table.c[name], *key_of(table))
            there = func.coalesce(func.array_agg(found, type_=kind), literal_column("'{}'"))
            matching = select(there).where(_equal(table, statement.where))
            pairs.append(matching.scalar_subquery() == bindparam(f"expected_{name}", type_=kind))
        return _query(select(getattr(func, EXPECTED_FUNCTION)(and_(*pairs))), table, has_rows=False)

    def _update(self, statement: Update) -> Query:
        table = self._tables[statement.table]
        key = {column.name for column in key_of(table)}
        assert not set(statement.change) & key, "a key is changed"
        matches = _equal(table, statement.where)
        if any(isinstance(value, list) for value in statement.where.values()):
            matches = _locked_in_order(table, matches)
        changed = (
            update(table)
            .where(matches)
            .values({name: _parameter("new_", table.c[name]) for name in statement.change})
            .returning(*known(table))
        )
        if not statement.required:
            return _query(changed, table, has_rows=True)
        rows = changed.cte("changed")
        count = select(func.count()).select_from(rows).scalar_subquery()
        is_there = getattr(func, REQUIRED_FUNCTION)(count, type_=Boolean)
        return _query(select(*rows.c).where(is_there), table, has_rows=True)

    def _delete(self, statement: Delete) -> Query:
        table = self._tables[statement.table]
        gone = delete(table).where(_equal(table, statement.where))
        if statement.up_to is not None:
            gone = gone.where(table.c[statement.up_to[0]] <= _bound(table, statement.up_to))
        return _query(gone, table, has_rows=False)

    def _insert(self, statement: Insert | Put) -> Query:
        table = self._tables[statement.table]
        names = {column.name for column in known(table)}
        assert set(statement.row) == names, f"not the columns of {table}: {statement.row}"
        new = postgresql.insert(table).values({c.name: _parameter("new_", c) for c in table.c})
        if isinstance(statement, Put):
            new = _or_replace(new, table)
        return _query(new, table, has_rows=False)

    def _insert_rows(self, statement: InsertNew | PutAll) -> Query:
        table = self._tables[statement.table]
        lists = [_parameter("all_", c, is_list=True) for c in table.c]
        columns = [column(c.name, c.type) for c in table.c]
        rows = func.unnest(*lists).table_valued(*columns, with_ordinality="place", name="rows")
        rows = rows.render_derived()
        found = select(*(rows.c[c.name] for c in table.c)).order_by(rows.c.place)
        new = postgresql.insert(table).from_select(table.c.keys(), found)
        if isinstance(statement, PutAll):
            return _query(_or_replace(new, table), table, has_rows=False)
        returned = new.on_conflict_do_nothing().returning(*known(table))
        return _query(returned, table, has_rows=True)


def _locked_in_order(table: Table, matches: ColumnElement[bool]) -> ColumnElement[bool]:
    """Lock the rows that match in the order of their keys, before the first is changed."""
    key = list(table.primary_key)
    locked = select(*key).where(matches).order_by(*key_of(table)).with_for_update().cte("locked")
    return and_(*(column == locked.c[column.name] for column in key))


def _or_replace(new: postgresql.Insert, table: Table) -> postgresql.Insert:
    """Have an INSERT replace the rows that have its keys."""
    key = [column.name for column in key_of(table)]
    # A row that has nothing but its key is locked all the same.
    changed = [column.name for column in known(table) if column.name not in key] or key[:1]
    return new.on_conflict_do_update(
        index_elements=list(table.primary_key),
        set_={name: new.excluded[name] for name in changed},
    )


def _shape(statement: Statement) -> tuple[tuple[Any, ...], Row]:
    """Return what decides about the SQL of a statement, and the values that do not."""
    if isinstance(statement, Insert | Put):
        values = {f"new_{name}": value for name, value in statement.row.items()}
        return (type(statement), statement.table, *statement.row), values
    if isinstance(statement, SelectNewer):
        found: Row = {"numbers": list(statement.than), "values": list(statement.than.values())}
        if statement.limit is not None:
            found["limit"] = statement.limit
        return (SelectNewer, statement.table, statement.column, statement.limit is None), found
    if isinstance(statement, Expect):
        lists = (
            zip(*statement.rows, strict=True) if statement.rows else [()] * len(statement.columns)
        )
        values = {_old(name, value): value for name, value in statement.where.items()}
        expected_shape = (Expect, statement.table, *values, None, *statement.columns)
        for name, some in zip(statement.columns, lists, strict=True):
            values[f"expected_{name}"] = list(some)
        return expected_shape, values
    assert isinstance(statement, Select | Update | Delete)
    values = {_old(name, value): value for name, value in statement.where.items()}
    shape: tuple[Any, ...] = (type(statement), statement.table, *values)
    if isinstance(statement, Update):
        values.update({f"new_{name}": value for name, value in statement.change.items()})
        return (*shape, None, *statement.change, statement.required), values
    bound = statement.above if isinstance(statement, Select) else statement.up_to
    if bound is not None:
        values["bound"] = bound[1]
    shape = (*shape, None, bound[0] if bound is not None else None)
    if isinstance(statement, Select):
        if statement.limit is not None:
            values["limit"] = statement.limit
        shape = (*shape, statement.limit is not None, statement.for_update, *statement.columns)
    return shape, values


def _old(name: str, value: object) -> str:
    """Name the parameter of a condition; a list stands for any of its values."""
    return f"any_{name}" if isinstance(value, list) else f"old_{name}"


def _equal(table: Table, where: Row) -> ColumnElement[bool]:
    conditions = []
    for name, value in where.items():
        column = stored(table, name)
        if isinstance(value, list):
            conditions.append(column == any_(_parameter("any_", column, is_list=True)))
        else:
            conditions.append(column == _parameter("old_", column))
    return and_(True, *conditions)


def _parameter(prefix: str, column: Column[Any], *, is_list: bool = False) -> BindParameter[Any]:
    """Make the parameter for a value of a column, or for the digest of it."""
    name = prefix + text_of(column)
    if isinstance(column.type, Digest):
        name = _HASHED + name
    return bindparam(name, type_=ARRAY(column.type) if is_list else column.type)


def _bound(table: Table, bound: tuple[str, int]) -> BindParameter[Any]:
    return bindparam("bound", type_=table.c[bound[0]].type)


def _query(
    clause: ClauseElement,
    table: Table,
    *,
    has_rows: bool,
    columns: Sequence[Column[Any]] | None = None,
) -> Query:
    compiled = clause.compile(dialect=_DIALECT)
    assert isinstance(compiled, SQLCompiler)
    parameters = [
        (name.removeprefix(_HASHED), _codec(compiled.binds[name].type))
        for name in compiled.positiontup or []
    ]
    returned = [(column.name, _codec(column.type)) for column in columns or known(table)]
    return Query(str(compiled).encode(), parameters, returned if has_rows else [])


def _codec(kind: TypeEngine[Any]) -> Codec:
    if isinstance(kind, ARRAY):
        item = kind.item_type
        return DIGESTS if isinstance(item, Digest) else ARRAYS[item.python_type]
    return _DIGEST if isinstance(kind, Digest) else _CODECS[kind.python_type]
