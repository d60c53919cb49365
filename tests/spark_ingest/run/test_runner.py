"""Running: what is told when something is wrong, in one line."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from spark_ingest import register
from spark_ingest.contract.sink import Batch, SinkError
from spark_ingest.jobs import load
from spark_ingest.run import runner
from spark_ingest.run.runner import ReadError, RunError, explain
from tests.spark_ingest import results, telemetry

WRAPPED = """An exception: Traceback (most recent call last):
  File "a.py", line 1, in f
    raise OptionError(
spark_ingest.source.options.OptionError: stream: none
 SQLSTATE: 38000
\tat org.apache.X: y
=== Streaming Query ===
Identifier: windows
"""


def read(spark: SparkSession, **options: str) -> None:
    register(spark)
    job = load("windows")
    runner.log_rows(options, job, job.parse({}), is_stream=False)(spark)


def test_what_is_not_there_is_told_in_a_line(spark: SparkSession, tmp_path: Path) -> None:
    log = telemetry.write_log(tmp_path / "log", telemetry.messages(3))
    for options, said in (
        ({"stream": "nosuch"}, "stream: there is no stream 'nosuch'"),
        ({"stream": "telemetry", "startingOffsets": "soon"}, "startingOffsets: 'soon' is none of"),
    ):
        with pytest.raises(ReadError) as caught:
            read(spark, path=str(log), **options)
        assert str(caught.value).startswith(said) and "\n" not in str(caught.value)


class Broken:
    """A sink whose database went away."""

    def write(self, batch: Batch) -> None:
        raise SinkError("postgresql://db: the connection was closed")

    def close(self) -> None:
        pass


def test_a_sink_that_fails_is_told_by_its_own_line(spark: SparkSession, tmp_path: Path) -> None:
    log = telemetry.write_log(tmp_path / "log", telemetry.messages(3))
    with pytest.raises(RunError) as caught:
        results.run(spark, "windows", log, [Broken()], checkpoint=tmp_path / "c")
    assert str(caught.value) == "postgresql://db: the connection was closed"


def test_a_log_that_was_made_anew_ends_the_run(spark: SparkSession, tmp_path: Path) -> None:
    """Its offsets are those of another life: reading on would lose what is before them."""
    out, checkpoint = tmp_path / "out.db", tmp_path / "c"
    for name in ("first", "second"):
        telemetry.write_log(tmp_path / name, telemetry.messages(20))
    results.run(spark, "windows", tmp_path / "first", [results.url(out)], checkpoint=checkpoint)
    with pytest.raises(RunError, match="epoch") as caught:
        results.run(
            spark, "windows", tmp_path / "second", [results.url(out)], checkpoint=checkpoint
        )
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[X] it failed\nand so on", "[X] it failed"),
        (
            WRAPPED,
            "stream: none",
        ),
        (
            'Traceback (most recent call last):\n  File "a", line 1\nValueError: no: good\n',
            "ValueError: no: good",
        ),
        ("", "Exception"),
    ],
)
def test_the_line_that_matters_is_found(text: str, said: str) -> None:
    assert explain(Exception(text)) == said
