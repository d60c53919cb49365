"""Random results: no row that a database refuses keeps others from being written."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.spark_ingest import accounts, refused


@pytest.mark.parametrize("seed", range(8))
def test_what_is_refused_is_a_dead_letter_and_the_rest_is_written(
    tmp_path: Path, seed: int
) -> None:
    refused.play(tmp_path, seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_every_message_is_accounted_for(spark: SparkSession, tmp_path: Path, seed: int) -> None:
    accounts.play(spark, tmp_path, seed)
