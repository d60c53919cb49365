"""Names of the files of a log.

    <root>/lock                                 held by the process that writes
    <root>/<stream>/stream.json                 the settings: see `stream_settings`
    <root>/<stream>/committed                   the ends that readers may read to: see `committed`
    <root>/<stream>/p<k>/catalog                the sealed segments: see `segment_catalog`
    <root>/<stream>/p<k>/<base:020d>.seg        batches from offset `base` on
    <root>/<stream>/p<k>/<base:020d>.<n>.seg    the same, compacted for the n-th time
    <root>/<stream>/p<k>/<segment>.idx          places in it: see `segment_index`

Names that end in `.new` were being made when a process died, and are removed at the next start.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from mqtt_broker.streams.format.errors import Invalid

LOCK: Final = "lock"
METADATA: Final = "stream.json"
COMMITTED: Final = "committed"
CATALOG: Final = "catalog"
UNFINISHED: Final = ".new"
PARTITIONS_MAX: Final = 256
_STREAM: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")
_SEGMENT: Final = re.compile(r"([0-9]{20})(?:\.([0-9]+))?\.seg")


def check_stream(name: str) -> str:
    if not _STREAM.fullmatch(name) or name.endswith(UNFINISHED):
        raise Invalid(
            "name",
            f"{name!r} is invalid: expected up to 100 letters, digits, '_', '-' and '.', "
            "not beginning with '-' or '.', and not ending with '.new'",
        )
    return name


def partition(number: int) -> str:
    return f"p{number}"


def segment(base: int, generation: int = 0) -> str:
    return f"{base:020d}.{generation}.seg" if generation else f"{base:020d}.seg"


def index(segment_path: Path) -> Path:
    return segment_path.with_suffix(".idx")


def parse_segment(name: str) -> tuple[int, int] | None:
    """Return (base, generation) of a segment's name; None: it is another file."""
    found = _SEGMENT.fullmatch(name)
    return (int(found[1]), int(found[2] or 0)) if found else None
