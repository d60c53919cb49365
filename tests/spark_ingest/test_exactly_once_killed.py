"""A short share of `make spark-kill`: real drivers, killed with SIGKILL."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from tests.spark_ingest import telemetry
from tests.spark_ingest.cluster import Cluster
from tests.spark_ingest.conftest import what_is_missing
from tests.spark_ingest.kept import BrokerLog
from tests.spark_ingest.killing import SHORT, library_log, prove

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(what_is_missing()), reason=what_is_missing() or "there is Spark"),
]


def test_killed_drivers_count_nothing_twice_and_forget_nothing(tmp_path: Path) -> None:
    kills = ["before", "after", "random"]
    told = telemetry.messages(9_000, seed=5, step_us=100_000, devices=10)
    assert prove(tmp_path, library_log(tmp_path, told, kills), kills) == (4, 9_000)


def test_a_lost_executor_changes_nothing(tmp_path: Path) -> None:
    kills = ["executor", "after"]
    told = telemetry.messages(9_000, seed=6, step_us=100_000, devices=10)
    log = library_log(tmp_path, told, kills)
    with Cluster(tmp_path / "cluster") as cluster:
        assert prove(tmp_path, log, kills, cluster=cluster) == (3, 9_000)


def test_what_devices_published_is_counted_once_though_broker_and_drivers_die(
    tmp_path: Path,
) -> None:
    broker = BrokerLog(tmp_path / "broker", seed=7, pauses_s=(3.0, 6.0))
    lives, messages = prove(tmp_path, broker, ["after", "before", "random"], rule=SHORT)
    assert lives == 4 and broker.kills > 1 and messages > 1_000


def test_a_cluster_reads_over_http_from_a_broker_that_dies(tmp_path: Path) -> None:
    broker = BrokerLog(tmp_path / "broker", seed=8, is_remote=True, pauses_s=(3.0, 6.0))
    with Cluster(tmp_path / "cluster") as cluster:
        lives, messages = prove(
            tmp_path, broker, ["executor", "after"], rule=SHORT, cluster=cluster
        )
    assert lives == 3 and broker.kills > 1 and messages > 1_000
