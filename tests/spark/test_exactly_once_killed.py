"""A short share of `make spark-kill`: real drivers, killed with SIGKILL."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.spark import telemetry
from tests.spark.conftest import what_is_missing
from tests.spark.killing import prove

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(what_is_missing()), reason=what_is_missing() or "there is Spark"),
]


def test_killed_drivers_count_nothing_twice_and_forget_nothing(tmp_path: Path) -> None:
    told = telemetry.messages(9_000, seed=5, step_us=100_000, devices=10)
    assert prove(tmp_path, told, ["before", "after", "random"]) == 4


def test_a_lost_executor_changes_nothing(tmp_path: Path) -> None:
    from tests.spark.cluster import Cluster

    told = telemetry.messages(9_000, seed=6, step_us=100_000, devices=10)
    with Cluster(tmp_path / "cluster") as cluster:
        assert prove(tmp_path, told, ["executor", "after"], cluster=cluster) == 3
