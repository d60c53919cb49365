"""The options of `format("fleetmq")`, checked, each error with the name of its option.

Spark passes options as strings, and their names in any case. Unknown options are refused: ignoring
a misspelt one would read the wrong data.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self

from mqtt_broker.streams.format.errors import Invalid
from mqtt_broker.streams.format.offsets import EARLIEST, LATEST, parse_time
from mqtt_broker.streams.format.stream_settings import parse_bytes
from spark_ingest.payloads.decoder import AUTO, CBOR, JSON, NONE
from spark_ingest.payloads.schemas import SchemaError, parse_schema

PARSE: Final = (NONE, JSON, CBOR, AUTO)
ALL: Final = "all"
REJECTED: Final = "rejected"
KEEP_PAYLOAD: Final = (ALL, REJECTED)
RECORDS_PER_TASK: Final = 250_000
_SCHEMA_BYTES_MAX: Final = 1 << 20


class OptionError(ValueError):
    def __init__(self, option: str, why: str) -> None:
        super().__init__(f"{option}: {why}")
        self.option = option
        self.why = why

    def __reduce__(self) -> tuple[Any, ...]:
        return OptionError, (self.option, self.why)


@dataclass(frozen=True, slots=True)
class Options:
    where: str  # a directory, or the URL of a broker's HTTP server
    stream: str
    token: str = field(default="", repr=False)
    starting: str = ""  # empty: latest of a stream, earliest of a batch
    ending: str = ""
    rows_max: int = 0  # a trigger; 0: no limit
    bytes_max: int = 0
    fail_on_data_loss: bool = True
    parse: str = ""  # empty: auto where there is a schema, else none
    schema: Mapping[str, Any] | None = None
    columns: tuple[str, ...] = ()  # empty: all
    keep_payload: str = ALL
    tasks_min: int = 0  # 0: the cores of the driver
    task_rows_max: int = RECORDS_PER_TASK
    drains: bool = False  # send an end marker after the last row of a run

    @classmethod
    def of(cls, given: Mapping[str, str]) -> Self:
        texts = {name.lower(): value for name, value in given.items()}
        found: dict[str, Any] = {"where": _where(texts)}
        for name, value in given.items():
            entry = _READ.get(name.lower())
            if entry is not None:
                attribute, option, read = entry
                found[attribute] = read(option, value)
            elif name.lower() not in _PLACES:
                known = ", ".join(sorted(_NAMES, key=str.lower))
                raise OptionError(name, f"there is no such option: there are {known}")
        if "stream" not in found:
            raise OptionError("stream", "it is missing: which stream?")
        return cls(**found)


def _where(texts: Mapping[str, str]) -> str:
    places = [name for name in _PLACES if texts.get(name)]
    if not places:
        raise OptionError("path", "it is missing: the directory of the log, or url")
    if len(places) > 1:
        raise OptionError("url", "path is given too: one of them")
    place = texts[places[0]]
    is_url = place.startswith(("http://", "https://"))
    if places[0] == "url" and not is_url:
        raise OptionError("url", f"{place!r} begins with neither http:// nor https://")
    return place.removeprefix("file://") if not is_url else place


def _text(option: str, value: str) -> str:
    if not value:
        raise OptionError(option, "it is empty")
    return value


def _token(option: str, value: str) -> str:
    return value


def _offsets(option: str, value: str) -> str:
    if value in (EARLIEST, LATEST) or value.lstrip().startswith("{"):
        return value
    if parse_time(value) is None:
        raise OptionError(
            option, f"{value[:80]!r} is none of earliest, latest, offsets as JSON and ISO 8601 time"
        )
    return value


def _starting(option: str, value: str) -> str:
    return _offsets(option, value)


def _ending(option: str, value: str) -> str:
    if value == EARLIEST:
        raise OptionError(option, "earliest is no end")
    return _offsets(option, value)


def _whole(option: str, value: str) -> int:
    if not value.isascii() or not value.isdigit() or len(value) > 18 or int(value) < 1:
        raise OptionError(option, f"{value[:80]!r} is no whole number above 0")
    return int(value)


def _bytes(option: str, value: str) -> int:
    try:
        found = parse_bytes(option, value)
    except Invalid as error:
        raise OptionError(option, error.why) from None
    if not found:
        raise OptionError(option, "it is 0")
    return found


def _boolean(option: str, value: str) -> bool:
    if value.lower() not in ("true", "false"):
        raise OptionError(option, f"{value[:80]!r} is neither true nor false")
    return value.lower() == "true"


def _one_of(*words: str) -> Callable[[str, str], str]:
    def read(option: str, value: str) -> str:
        if value.lower() not in words:
            raise OptionError(option, f"{value[:80]!r} is none of {', '.join(words)}")
        return value.lower()

    return read


def _schema(option: str, value: str) -> Mapping[str, Any]:
    try:
        text = Path(value).read_bytes()[: _SCHEMA_BYTES_MAX + 1].decode()
        if len(text) > _SCHEMA_BYTES_MAX:
            raise SchemaError(f"it is longer than {_SCHEMA_BYTES_MAX} bytes")
        return parse_schema(text)
    except (OSError, UnicodeDecodeError) as error:
        why = (error.strerror or str(error)) if isinstance(error, OSError) else "it is no UTF-8"
        raise OptionError(option, f"{value}: {why}") from None
    except SchemaError as error:
        raise OptionError(option, f"{value}: {error}") from None


def _columns(option: str, value: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in value.split(","))
    if not all(names) or len(set(names)) < len(names):
        raise OptionError(option, f"{value[:80]!r} is no list of different names")
    return names


_PLACES: Final = ("path", "url")
_OPTIONS: Final[Mapping[str, tuple[str, Callable[[str, str], Any]]]] = {
    "stream": ("stream", _text),
    "token": ("token", _token),
    "startingOffsets": ("starting", _starting),
    "endingOffsets": ("ending", _ending),
    "maxRowsPerTrigger": ("rows_max", _whole),
    "maxBytesPerTrigger": ("bytes_max", _bytes),
    "failOnDataLoss": ("fail_on_data_loss", _boolean),
    "parse": ("parse", _one_of(*PARSE)),
    "schemaFile": ("schema", _schema),
    "columns": ("columns", _columns),
    "keepPayload": ("keep_payload", _one_of(*KEEP_PAYLOAD)),
    "minPartitions": ("tasks_min", _whole),
    "maxRecordsPerPartition": ("task_rows_max", _whole),
    "drain": ("drains", _boolean),
}
_READ: Final = {name.lower(): (entry[0], name, entry[1]) for name, entry in _OPTIONS.items()}
_NAMES: Final = (*_PLACES, *_OPTIONS)
