"""The `[[streams]]` of a configuration file: what the broker makes, or changes, at its start."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from mqtt_broker.server.config.tables import ConfigError, rows, typed
from mqtt_broker.streams.format.errors import Invalid
from mqtt_broker.streams.format.stream_settings import StreamSettings, parse_bytes, parse_duration

_TEXTS: Final = ("name", "filter", "partition_by", "event_time", "sent_time")
_DURATIONS: Final = {"retain": "retain_s", "tombstone": "tombstone_s", "segment": "segment_s"}
_SIZES: Final = ("max_bytes", "segment_bytes")
_KEYS: Final = {*_TEXTS, *_DURATIONS, *_SIZES, "partitions", "compact", "schema"}


def read_streams(found: Any, path: str) -> tuple[StreamSettings, ...]:
    streams: dict[str, StreamSettings] = {}
    for where, row in rows("streams", found, path):
        if unknown := set(row) - _KEYS:
            raise ConfigError(
                f"{where}: unknown key {min(unknown)}; it has {', '.join(sorted(_KEYS))}"
            )
        for key in ("name", "filter"):
            if not typed(row, key, str, "", where):
                raise ConfigError(f"{where}: {key} is missing")
        try:
            settings = StreamSettings(**_values(row, where, Path(path).parent)).checked()
        except Invalid as error:
            raise ConfigError(f"{where}: {error}") from None
        if settings.name in streams:
            raise ConfigError(f"{where}: name: {settings.name} is there twice")
        streams[settings.name] = settings
    return tuple(streams.values())


def _values(row: dict[str, Any], where: str, folder: Path) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for key in row:
        if key in _TEXTS:
            values[key] = typed(row, key, str, "", where)
        elif key in _DURATIONS:
            values[_DURATIONS[key]] = parse_duration(key, _quantity(row, key, where))
        elif key in _SIZES:
            values[key] = parse_bytes(key, _quantity(row, key, where))
        elif key == "schema":
            values[key] = read_schema(folder / typed(row, key, str, "", where), where)
        else:
            values[key] = typed(row, key, int if key == "partitions" else bool, 0, where)
    return values


def _quantity(row: dict[str, Any], key: str, where: str) -> str:
    """A number, or a text with a unit."""
    if type(row[key]) is int:
        return str(row[key])
    return str(typed(row, key, str, "", where))


def read_schema(path: Path, where: str) -> dict[str, Any]:
    """A JSON Schema in a file."""
    try:
        found = json.loads(path.read_text())
    except OSError as error:
        raise ConfigError(f"{where}: schema: {path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{where}: schema: {path}: not JSON: {error}") from None
    if not isinstance(found, dict):
        raise ConfigError(f"{where}: schema: {path}: not a JSON object")
    return found
