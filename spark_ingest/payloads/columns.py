"""The columns of a row: what the log has of a message, and what its payload says.

    partition, offset          where it stands
    received, event, sent      the broker's clock; the device's, where the stream knows it
    topic, client_id           who and about what
    payload                    the bytes
    qos, retain                as it was published
    properties                 MQTT 5: a struct, null where there are none
    value                      the payload by the schema
    reject_reason              why there is no value; null where there is one

`value` and `reject_reason` are there when payloads are parsed. The schema travels in the
metadata of `value`, so that a query goes by the one that it was planned with.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types as t
from pyspark.sql.pandas.types import to_arrow_schema

from mqtt_broker.codec import properties as prop
from mqtt_broker.codec.errors import Violation
from mqtt_broker.streams.format.records import Record
from spark_ingest.payloads.schemas import (
    ARRAY,
    BINARY,
    BOOLEAN,
    INTEGER,
    NUMBER,
    OBJECT,
    STRING,
    TIME,
    SchemaError,
    Shape,
    parse_schema,
    shape_of,
)

PAYLOAD: Final = "payload"
PROPERTIES: Final = "properties"
VALUE: Final = "value"
REASON: Final = "reject_reason"
END: Final = -1  # the partition of the row behind all others, where a query is drained
SCHEMA_KEY: Final = "jsonSchema"  # in the metadata of `value`
Array = Any

_USER: Final = t.ArrayType(
    t.StructType(
        [t.StructField("name", t.StringType()), t.StructField("value", t.StringType())],
    )
)
_PROPERTIES: Final = t.StructType(
    [
        t.StructField("payload_format", t.ByteType()),
        t.StructField("content_type", t.StringType()),
        t.StructField("response_topic", t.StringType()),
        t.StructField("correlation_data", t.BinaryType()),
        t.StructField("user", _USER),
    ]
)
RAW: Final = t.StructType(
    [
        t.StructField("partition", t.IntegerType(), nullable=False),
        t.StructField("offset", t.LongType(), nullable=False),
        t.StructField("received", t.TimestampType(), nullable=False),
        t.StructField("event", t.TimestampType()),
        t.StructField("sent", t.TimestampType()),
        t.StructField("topic", t.StringType(), nullable=False),
        t.StructField("client_id", t.StringType(), nullable=False),
        t.StructField(PAYLOAD, t.BinaryType()),
        t.StructField("qos", t.ByteType(), nullable=False),
        t.StructField("retain", t.BooleanType(), nullable=False),
        t.StructField(PROPERTIES, _PROPERTIES),
    ]
)
_PARSED: Final = (VALUE, REASON)
_INTEGERS: Final[Mapping[int, t.DataType]] = {
    8: t.ByteType(),
    16: t.ShortType(),
    32: t.IntegerType(),
    64: t.LongType(),
}
_SCALARS: Final[Mapping[str, t.DataType]] = {
    STRING: t.StringType(),
    BOOLEAN: t.BooleanType(),
    TIME: t.TimestampType(),
    BINARY: t.BinaryType(),
}


def spark_schema(schema: Mapping[str, Any] | None, names: Sequence[str]) -> t.StructType:
    """Return the columns of a read: all, or the named ones. Raises SchemaError, ValueError."""
    fields = list(RAW.fields)
    if schema is not None:
        shape, _ = shape_of(schema)
        metadata = {SCHEMA_KEY: _text(schema)}
        fields.append(t.StructField(VALUE, spark_type(shape), metadata=metadata))
        fields.append(t.StructField(REASON, t.StringType()))
    by_name = {field.name: field for field in fields}
    for name in names:
        if name not in by_name:
            known = ", ".join(by_name)
            why = " when payloads are not parsed" if name in _PARSED else ""
            raise ValueError(f"there is no column {name!r}{why}: there are {known}")
    return t.StructType([by_name[name] for name in names] if names else fields)


def value_shape(schema: t.StructType) -> Shape | None:
    """Return the shape of the column `value`. Raise SchemaError or ValueError."""
    found: Shape | None = None
    known = {field.name: field for field in RAW.fields}
    for column in schema.fields:
        if column.name == VALUE:
            found = _shape_of_value(column)
        elif column.name == REASON:
            _check_type(column, t.StringType())
        elif column.name in known:
            _check_type(column, known[column.name].dataType)
        else:
            raise ValueError(
                f"there is no column {column.name!r}: what payloads have is in `value`, "
                "as in value STRUCT<temperature: DOUBLE>"
            )
    if found is None and REASON in schema.names:
        raise ValueError(f"there is a column {REASON!r} only beside `value`")
    return found


def _check_type(column: t.StructField, wanted: t.DataType) -> None:
    if _comparable(column.dataType) != _comparable(wanted):
        raise ValueError(
            f"column {column.name!r} is {wanted.simpleString()}, "
            f"not {column.dataType.simpleString()}"
        )


def _comparable(kind: t.DataType) -> str:
    return kind.simpleString()  # which leaves out what may be null


def _shape_of_value(column: t.StructField) -> Shape:
    text = (column.metadata or {}).get(SCHEMA_KEY)
    if text is not None:
        shape, _ = shape_of(parse_schema(text))
        if _comparable(spark_type(shape)) == _comparable(column.dataType):
            return shape
    return _shape_of_type(column.dataType, VALUE)


def spark_type(shape: Shape) -> t.DataType:
    if shape.kind == OBJECT:
        return t.StructType([t.StructField(name, spark_type(part)) for name, part in shape.fields])
    if shape.element is not None:
        return t.ArrayType(spark_type(shape.element))
    if shape.kind == INTEGER:
        return _INTEGERS[shape.bits]
    if shape.kind == NUMBER:
        return t.FloatType() if shape.bits == 32 else t.DoubleType()
    return _SCALARS[shape.kind]


def _shape_of_type(kind: t.DataType, place: str) -> Shape:
    if isinstance(kind, t.StructType):
        if not kind.fields:
            raise SchemaError(f"{place}: it has no fields")
        fields = []
        for column in kind.fields:
            part = _shape_of_type(column.dataType, f"{place}.{column.name}")
            fields.append((column.name, _required(part, is_required=not column.nullable)))
        return Shape(OBJECT, fields=tuple(fields))
    if isinstance(kind, t.ArrayType):
        element = _shape_of_type(kind.elementType, f"{place}[]")
        return Shape(ARRAY, element=_required(element, is_required=not kind.containsNull))
    for bits, integer in _INTEGERS.items():
        if kind == integer:
            return Shape(INTEGER, bits=bits)
    if isinstance(kind, t.FloatType | t.DoubleType):
        return Shape(NUMBER, bits=32 if isinstance(kind, t.FloatType) else 64)
    for name, scalar in _SCALARS.items():
        if kind == scalar:
            return Shape(name)
    raise SchemaError(f"{place}: payloads are not read as {kind.simpleString()}")


def _required(shape: Shape, *, is_required: bool) -> Shape:
    return Shape(shape.kind, is_required, shape.bits, shape.enum, shape.fields, shape.element)


def _text(schema: Mapping[str, Any]) -> str:
    return json.dumps(schema, separators=(",", ":"))  # in its own order: that of the columns


# The columns themselves, of a RecordBatch of the log.


class Rows:
    """Makes the RecordBatches that Spark takes. It is pickled to wherever it is to work."""

    def __init__(self, schema: t.StructType) -> None:
        self._names = list(schema.names)
        self.arrow = to_arrow_schema(schema, timezone="UTC")

    @property
    def has_reason(self) -> bool:
        return REASON in self._names

    def end(self, newest_us: int) -> pa.RecordBatch:
        """Make the row that marks the end of the log; its time is that of the last message."""
        told = {"partition": END, "offset": END, "topic": "", "client_id": "", "qos": 0}
        said = {**told, "received": newest_us, "retain": False}
        columns = [
            pa.array([said.get(name)], kind)
            for name, kind in zip(self._names, self.arrow.types, strict=True)
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self.arrow)

    def make(
        self, found: pa.RecordBatch, values: Array | None, reasons: Array | None, *, is_all: bool
    ) -> pa.RecordBatch:
        """Make the columns. `is_all`: keep payloads of all rows, not of rejects only."""
        columns = []
        column: Any
        for name, kind in zip(self._names, self.arrow.types, strict=True):
            if name == VALUE:
                column = values
            elif name == REASON:
                column = reasons
            elif name == PROPERTIES:
                column = properties_column(found.column(PROPERTIES), kind)
            else:
                column = found.column(name)
                if name == PAYLOAD and not is_all and reasons is not None:
                    column = _where(reasons.is_valid(), column)
            columns.append(column if column.type.equals(kind) else column.cast(kind))
        return pa.RecordBatch.from_arrays(columns, schema=self.arrow)


def _where(mask: Array, column: Array) -> Array:
    if pc.any(mask, min_count=0).as_py() is not True:
        return pa.nulls(len(column), column.type)
    return pc.if_else(mask, column, pa.scalar(None, column.type))


def properties_column(sections: Array, kind: Any) -> Array:
    """Decode the properties; each different section once, since a device repeats its own."""
    if not pc.sum(pc.binary_length(sections), min_count=0).as_py():
        return pa.nulls(len(sections), kind)
    encoded = sections.dictionary_encode()
    texts = [_properties(section) for section in encoded.dictionary.to_pylist()]
    return pa.array(texts, kind).take(encoded.indices)


def _properties(section: bytes) -> dict[str, Any] | None:
    if not section:
        return None
    try:
        found = Record(0, 0, 0, 0, "", "", b"", 0, False, section).properties()
    except Violation:
        return None
    return {
        "payload_format": found.get(prop.PAYLOAD_FORMAT_INDICATOR),
        "content_type": found.text(prop.CONTENT_TYPE),
        "response_topic": found.text(prop.RESPONSE_TOPIC),
        "correlation_data": found.binary(prop.CORRELATION_DATA),
        "user": [{"name": name, "value": value} for name, value in found.user],
    }
