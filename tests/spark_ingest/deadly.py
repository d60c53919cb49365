"""A SQL sink that dies at a chosen moment: what crashes at the worst time look like.

As `--sink python:tests.spark_ingest.deadly:DeadlySink?url=...&moments=before:1,after:2` the whole
driver is killed with SIGKILL before its first commit and after its second (between the sink's
commit and Spark's own). Moments count from when the process began.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from urllib.parse import parse_qs

from spark_ingest.contract.sink import Batch
from spark_ingest.sinks.sql import SqlSink, open_engine

BEFORE = "before"
AFTER = "after"


class Died(Exception):
    """Instead of SIGKILL, where the process has to go on."""


class DeadlySink(SqlSink):
    def __init__(self, query: str, die: Callable[[], None] | None = None) -> None:
        given = {key: values[0] for key, values in parse_qs(query).items()}
        super().__init__(open_engine(given["url"]))
        self._moments = set(filter(None, given.get("moments", "").split(",")))
        self._die = die or self._kill
        self._seen = 0

    def write(self, batch: Batch) -> None:
        self._seen += 1
        # Computed first: what dies is the commit, not the job.
        assert batch.tables is not None
        if f"{BEFORE}:{self._seen}" in self._moments:
            self._die()
        super().write(batch)
        if f"{AFTER}:{self._seen}" in self._moments:
            self._die()

    @staticmethod
    def _kill() -> None:
        os.kill(os.getpid(), signal.SIGKILL)


def die_softly() -> None:
    raise Died
