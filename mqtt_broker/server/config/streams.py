"""The `[[streams]]` of a configuration file, which the broker creates or changes at its start."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from mqtt_broker.server.config.tables import Table, tables
from mqtt_broker.streams.format.errors import Invalid
from mqtt_broker.streams.format.stream_settings import StreamSettings, parse_bytes, parse_duration

_TEXTS: Final = ("name", "filter", "partition_by", "event_time", "sent_time")
_DURATIONS: Final = {"retain": "retain_s", "tombstone": "tombstone_s", "segment": "segment_s"}
_SIZES: Final = ("max_bytes", "segment_bytes")
KEYS: Final = (*_TEXTS, *_DURATIONS, *_SIZES, "partitions", "compact", "schema")


def read_streams(found: Any, path: str) -> tuple[StreamSettings, ...]:
    streams: dict[str, StreamSettings] = {}
    for table in tables("streams", found, path, KEYS):
        for key in ("name", "filter"):
            table.text(key)
        try:
            settings = StreamSettings(**_values(table, Path(path).parent)).checked().check_schema()
        except Invalid as error:
            raise table.error(str(error)) from None
        if settings.name in streams:
            raise table.error(f"name {settings.name} is used twice")
        streams[settings.name] = settings
    return tuple(streams.values())


def _values(table: Table, folder: Path) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for key in table.data:
        if key in _TEXTS:
            values[key] = table.text(key, "")
        elif key in _DURATIONS:
            values[_DURATIONS[key]] = parse_duration(key, _quantity(table, key))
        elif key in _SIZES:
            values[key] = parse_bytes(key, _quantity(table, key))
        elif key == "schema":
            values[key] = read_schema(folder / table.text(key), table)
        elif key == "partitions":
            values[key] = table.whole(key, 1, 1)
        else:
            values[key] = table.flag(key, False)
    return values


def _quantity(table: Table, key: str) -> str:
    """Return a number, or a string with a unit, as text."""
    value = table.data[key]
    return str(value) if type(value) is int else table.text(key)


def read_schema(path: Path, table: Table) -> dict[str, Any]:
    """Read the file with a JSON Schema that a table names."""
    try:
        found = json.loads(path.read_text())
    except OSError as error:
        raise table.error(f"schema: {path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise table.error(f"schema: {path}: not JSON: {error}") from None
    if not isinstance(found, dict):
        raise table.error(f"schema: {path}: not a JSON object")
    return found
