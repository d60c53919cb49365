"""The Python of docs/SPARK.md runs as it stands, in one session on one log."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.docs.blocks import ROOT, of
from tests.spark_ingest import telemetry


def test_the_examples_run(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    examples = [b for b in of("python") if b.path == ROOT / "docs" / "SPARK.md" and not b.key]
    assert len(examples) > 3
    telemetry.write_log(tmp_path / "fleetmq-data" / "streams", telemetry.messages(200))
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"spark": spark}
    for block in examples:
        text = block.text.replace("fleetmq-data/streams", f"{tmp_path}/fleetmq-data/streams")
        text = text.replace("2026-11-18T", "2026-01-01T")  # when this log begins
        exec(compile(text, block.where, "exec"), names)
    said = capsys.readouterr().out
    assert "client_id" in said and "window_start" in said
    assert {"good", "rejected", "table"} <= names.keys()
