"""Every job that keeps state, over random backlogs under random limits: as without any limit."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any, Final

import pytest
from pyspark.sql import SparkSession

from tests.spark_ingest import backlogs, results, telemetry
from tests.spark_ingest.backlogs import client
from tests.spark_ingest.jobs.test_jobs import correlation
from tests.spark_ingest.telemetry import SECOND, Message, Writing

REJECTS: Final = "SELECT stream_partition, stream_offset, reason FROM rejects ORDER BY 1, 2"
LEFT_OUT: Final = "SELECT device, reason, sum(count) FROM left_out GROUP BY 1, 2 ORDER BY 1, 2"
WINDOWS: Final = (
    "SELECT device, site, metric, window_start, window_end, count, round(mean, 6), min, max, late"
    " FROM windows ORDER BY 1, 2, 3, 4, 5"
)
TOTALS: Final = "messages, rejected, duplicates, missing, reordered, restarts, stuck"
# A job, its options, and what is asked of its results.
CASES: Final[dict[str, tuple[str, dict[str, str], list[str]]]] = {
    "windows": ("windows", {"percentiles": "none"}, [WINDOWS, LEFT_OUT, REJECTS]),
    "sessions": ("windows", {"gap_us": "5m", "percentiles": "none"}, [WINDOWS, LEFT_OUT, REJECTS]),
    "clock": (
        "clock", {},
        [("SELECT device, window_start, count, late, future, clock_ahead_s, last_event FROM clock"
         " ORDER BY 1, 2"), REJECTS],
    ),
    "quality": (
        "quality", {"stuck_us": "0", "stuck_count": "3"},
        [f"SELECT device, {TOTALS} FROM device_quality ORDER BY 1",
         ("SELECT * FROM findings WHERE kind != 'silent' OR ended_at IS NOT NULL"
         " ORDER BY device, kind, metric, began_at, number"), REJECTS],
    ),
    "anomalies": (
        "anomalies", {"warm_up": "5", "sigma": "2", "jump": "2"},
        [("SELECT * FROM alerts WHERE kind != 'silent' OR ended_at IS NOT NULL"
         " ORDER BY device, metric, kind, began_at"), REJECTS],
    ),
    "correlate": (
        "correlate", {"time": "event", "within_us": "1h"},
        ["SELECT key, outcome, request_at, answer_at, took_s FROM correlated ORDER BY 1, 2, 3, 4",
         REJECTS],
    ),
}  # fmt: skip


def write(root: Path, seed: int) -> Path:
    """Partitions at different rates, with messages that are late, broken or of the future, and a
    question and perhaps an answer beside each, from clients of different partitions."""
    draw = random.Random(seed)
    partitions = draw.choice([2, 3])
    backlog = backlogs.draw_backlog(draw, partitions=partitions, rows_max=60)
    names = [client(number, partitions) for number in range(partitions)]
    sent: list[tuple[int, str, str, bytes, bytes]] = []
    for number, times in enumerate(backlog.received):
        for seq, at_us in enumerate(sorted(times)):
            one: Message = telemetry.message(draw, names[number], seq, at_us)
            sent.append((at_us, one.topic, one.device, one.payload, b""))
            about = correlation(b"%d/%d" % (number, seq))
            question = b'{"seq":%d,"ts":%d}' % (seq, at_us // 1_000)
            sent.append((at_us, "p/x/cmd", names[number], question, about))
            if draw.random() < 0.7:
                later_us = at_us + draw.randrange(1, 4_000) * SECOND
                answer = b'{"seq":%d,"ts":%d}' % (seq, later_us // 1_000)
                sent.append((later_us, "p/x/response", draw.choice(names), answer, about))
    log = Writing(root, partitions=partitions)
    for at_us, topic, device, payload, about in sorted(sent):
        log.put(topic, device, payload, at_us, about)
        if draw.random() < 0.1:
            log.commit()
    log.commit()
    log.close()
    return root


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("case", CASES)
def test_limits_change_nothing(spark: SparkSession, tmp_path: Path, case: str, seed: int) -> None:
    job, options, asked = CASES[case]
    draw = random.Random(f"{case}/{seed}")
    log = write(tmp_path / "log", seed)
    whole, out = tmp_path / "whole.db", tmp_path / "out.db"
    drains = case in ("sessions", "correlate")
    about: dict[str, Any] = {**options}
    results.run(spark, job, log, [results.url(whole)], **about)
    results.run(
        spark, job, log, [results.url(out)],
        checkpoint=tmp_path / "c", max_rows=draw.choice([40, 90, 200]), drains=drains, **about,
    )  # fmt: skip
    for statement in asked:
        assert results.rows(out, statement) == results.rows(whole, statement), statement
