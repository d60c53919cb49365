"""Sessions of a random log, run once and then drained: every message is accounted for.

    play(spark, directory, seed)

What was rejected is told by the first run already; what waits is counted in its last line.
"""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

from pyspark.sql import SparkSession

from tests.spark_ingest import results, telemetry
from tests.spark_ingest.telemetry import SECOND


def play(spark: SparkSession, directory: Path, seed: int) -> None:
    draw = random.Random(f"{seed}/accounts")
    step_us = draw.choice((1, 30, 120)) * SECOND
    told = [
        replace(one, is_broken=draw.random() < 0.1)
        for one in telemetry.messages(draw.randrange(20, 200), seed=seed, step_us=step_us)
    ]
    broken = sum(one.is_broken for one in told)
    log = telemetry.write_log(directory / "log", told)
    out = directory / "out.db"
    gap, max_rows = draw.choice(("10s", "5m")), draw.choice((0, 70))
    for drains in (False, True):
        progress = results.run(
            spark, "windows", log, [results.url(out)], checkpoint=directory / "c",
            gap_us=gap, percentiles="none", max_rows=max_rows, drains=drains,
        )  # fmt: skip
        rejects = results.rows(out, "SELECT count(*) FROM rejects")[0][0]
        assert rejects == broken, f"{rejects} of {broken} rejects are told"
        waiting = int(progress.waiting.partition(" ")[0].replace(",", "") or 0)
        assert not drains or not waiting, progress.waiting
        written = "SELECT coalesce(sum(count), 0) FROM "
        inside = results.rows(out, f"{written} windows WHERE metric = ''")[0][0]
        outside = results.rows(out, f"{written} left_out")[0][0]
        assert inside + outside + rejects + waiting == len(told)
