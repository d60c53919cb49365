"""The settings of a stream, as users write them and as `stream.json` stores them.

Name, number of partitions and epoch never change: offsets would lose their meaning. `partition_by`
may change, and order then holds from that point on. The schema is stored for readers; it is not
used here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Final, Self

from mqtt_broker.streams.format import file_names
from mqtt_broker.streams.format.errors import Invalid, UnknownStream, UnreadableFile
from mqtt_broker.streams.format.event_times import TimeRule
from mqtt_broker.streams.format.nesting import LEVELS_MAX, VALUES_MAX, json_problem
from mqtt_broker.streams.format.partitioning import check_partition_by
from mqtt_broker.topics.names import filter_problem

FORMAT: Final = 1
SCHEMA_BYTES_MAX: Final = 1 << 20
RETAIN_PARTS: Final = 8  # segments that the age or size of retention is divided into
SEGMENT_BYTES_MIN: Final = 4 << 10
_DAY_S: Final = 86_400
_NO_TOPICS: Final = ("$share", "$stream", "$SYS")


@dataclass(frozen=True, slots=True)
class StreamSettings:
    """Name, filter, partitions and retention of a stream, checked."""

    name: str
    filter: str = ""  # topics that a broker writes to it; empty: none
    partitions: int = 1
    partition_by: str = "client"  # see `partitioning`
    retain_s: int = 0  # older records are not read, and removed with their segment; 0: never
    max_bytes: int = 0  # of all partitions together; 0: no limit
    compact: bool = False  # keep only the last message of each topic
    tombstone_s: int = _DAY_S  # how long an empty payload is kept, which removes its topic
    segment_bytes: int = 128 << 20
    segment_s: int = _DAY_S  # a segment is sealed at this size, or this age, or earlier: `seal_s`
    event_time: str = ""  # where messages have their times; see `event_times`
    sent_time: str = ""
    schema: Mapping[str, Any] | None = None
    epoch: str = ""  # given at creation

    def checked(self) -> Self:
        file_names.check_stream(self.name)
        for key in ("filter", "partition_by", "event_time", "sent_time"):
            _check_text(key, getattr(self, key))
        if self.filter:
            self._check_filter()
        if not 1 <= self.partitions <= file_names.PARTITIONS_MAX:
            raise Invalid(
                "partitions",
                f"{self.partitions} is out of range: expected 1 to {file_names.PARTITIONS_MAX}",
            )
        check_partition_by(self.partition_by)
        for key in ("retain_s", "max_bytes", "tombstone_s"):
            if getattr(self, key) < 0:
                raise Invalid(key, f"{getattr(self, key)} is negative: expected 0 or more")
        if self.segment_bytes < SEGMENT_BYTES_MIN:
            raise Invalid(
                "segment_bytes",
                f"{self.segment_bytes} is too small: expected {SEGMENT_BYTES_MIN} or more",
            )
        if self.segment_s < 1:
            raise Invalid("segment_s", f"{self.segment_s} is too small: expected 1 or more")
        for key in ("event_time", "sent_time"):
            if getattr(self, key):
                TimeRule.parse(key, getattr(self, key))
        return self

    @property
    def seal_s(self) -> int:
        """The age at which a segment is sealed.

        It is at most a fraction of the retention, since only sealed segments are removed.
        """
        if not self.retain_s:
            return self.segment_s
        return min(self.segment_s, max(1, self.retain_s // RETAIN_PARTS))

    @property
    def seal_bytes(self) -> int:
        """The size at which a segment is sealed: at most a fraction of `max_bytes`."""
        if not self.max_bytes:
            return self.segment_bytes
        part = self.max_bytes // (RETAIN_PARTS * self.partitions)
        return min(self.segment_bytes, max(SEGMENT_BYTES_MIN, part))

    def check_schema(self) -> Self:
        """Raise Invalid for a schema that is too deep or too large.

        Only new schemas are checked; stored ones are read as they are.
        """
        if self.schema is not None:
            problem = json_problem(self.schema, LEVELS_MAX, VALUES_MAX)
            if problem:
                raise Invalid("schema", problem)
            try:
                size = len(json.dumps(self.schema, allow_nan=False))
            except (TypeError, ValueError) as error:
                raise Invalid("schema", f"not JSON: {error}") from None
            if size > SCHEMA_BYTES_MAX:
                raise Invalid("schema", f"{size} bytes are too many: up to {SCHEMA_BYTES_MAX}")
        return self

    def _check_filter(self) -> None:
        problem = filter_problem(self.filter)
        if problem:
            raise Invalid("filter", f"{self.filter!r}: {problem}")
        if self.filter.split("/", 1)[0] in _NO_TOPICS:
            raise Invalid("filter", f"{self.filter!r} matches no topic that clients may publish to")

    def changed(self, **changes: Any) -> StreamSettings:
        """Return the settings with changes; fixed ones may be given if they are equal."""
        known = {field.name for field in fields(self)}
        for key, value in changes.items():
            if key not in known:
                raise Invalid(key, "unknown setting")
            if key in ("name", "partitions", "epoch") and value != getattr(self, key):
                raise Invalid(key, f"it is {getattr(self, key)!r} and cannot be changed")
        found = replace(self, **changes).checked()
        return found.check_schema() if "schema" in changes else found

    def text(self) -> str:
        return json.dumps({"format": FORMAT, **asdict(self)}, indent=1, sort_keys=True) + "\n"

    @classmethod
    def parse(cls, text: str) -> Self:
        try:
            found = json.loads(text)
        except (ValueError, RecursionError):
            raise Invalid(file_names.METADATA, "not valid JSON") from None
        if not isinstance(found, dict):
            raise Invalid(file_names.METADATA, "not a JSON object")
        form = found.pop("format", None)
        if form != FORMAT:
            raise Invalid(file_names.METADATA, f"it has format {form}, this program reads {FORMAT}")
        kinds = {"str": str, "int": int, "bool": bool}
        known = {field.name: kinds.get(str(field.type)) for field in fields(cls)}
        for key, value in found.items():
            if key not in known:
                raise Invalid(file_names.METADATA, f"{key!r} is unknown to this program")
            kind = known[key]
            if kind is not None and type(value) is not kind:
                wrong = f"{key} is {value!r}, not of type {kind.__name__}"
                raise Invalid(file_names.METADATA, wrong)
        if not found.get("name") or not found.get("epoch"):
            raise Invalid(file_names.METADATA, "name or epoch is missing")
        return cls(**found).checked()

    @classmethod
    def read(cls, directory: Path) -> Self:
        path = directory / file_names.METADATA
        try:
            return cls.parse(path.read_text())
        except FileNotFoundError:
            raise UnknownStream(directory.name) from None
        except Invalid as error:
            key = "" if error.what == file_names.METADATA else f"{error.what}: "
            raise UnreadableFile(str(path), f"{key}{error.why}") from None
        except (OSError, UnicodeDecodeError) as error:
            raise UnreadableFile(str(path), str(error)) from None


def _check_text(key: str, text: str) -> None:
    """Refuse lone surrogates: JSON allows them, topics and databases do not."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise Invalid(key, f"{text!a} is not valid Unicode") from None


_DURATIONS: Final = {"": 1, "s": 1, "m": 60, "h": 3_600, "d": _DAY_S}
_SIZES: Final = {
    "": 1, "B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
    "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40,
}  # fmt: skip
_QUANTITY: Final = re.compile(r"(\d{1,15}) ?([A-Za-z]*)")


def parse_duration(key: str, text: str) -> int:
    """Parse `90`, `5m`, `2h` or `7d` into seconds."""
    return _parse_quantity(key, text, _DURATIONS, "a duration like 90s, 5m, 2h or 7d")


def parse_bytes(key: str, text: str) -> int:
    """Parse `512`, `10GB` or `64MiB` into bytes."""
    return _parse_quantity(key, text, _SIZES, "a size like 512, 10GB or 64MiB")


def _parse_quantity(key: str, text: str, units: Mapping[str, int], what: str) -> int:
    found = _QUANTITY.fullmatch(text)
    if found is None or found[2] not in units:
        raise Invalid(key, f"{text!r} is not {what}")
    return int(found[1]) * units[found[2]]
