"""Rows whose payload could not be read: apart from the others, and never away.

    good, rejected = split(rows)

Both come from one read. In a stream, write both in one query (`foreachBatch`), or the log is
read twice.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from spark_ingest.payloads.columns import REASON

COLUMNS: Final = (
    "partition", "offset", "received", "topic", "client_id", "payload", REASON,
)  # fmt: skip


def split(rows: DataFrame) -> tuple[DataFrame, DataFrame]:
    """Split rows into those with a value, and those without, with their place and reason."""
    if REASON not in rows.columns:
        raise ValueError(f"there is no column {REASON!r}: payloads were not parsed")
    good = rows.where(F.col(REASON).isNull()).drop(REASON)
    kept = [name for name in COLUMNS if name in rows.columns]
    return good, rows.where(F.col(REASON).isNotNull()).select(*kept)
