"""A Spark session for the jobs: what has to be there, and how it is set.

`check` reports a missing requirement in one line, before Spark is imported. `--conf` overrides the
settings made here, except those that results depend on: UTC, and micro-batches without data,
without which windows and sessions at the end of the log would never be written.
"""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JAVA_MIN: Final = 17
# What Spark needs beside itself for rows as Arrow, and for transformWithState.
NEEDED: Final = ("pyspark", "pyarrow", "pandas", "google.protobuf")

_PROVIDER: Final = "spark.sql.streaming.stateStore.providerClass"
_ROCKS: Final = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
_CHANGELOG: Final = "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing"
_LOGGING: Final = "log4j2.properties"
_FIXED: Final = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.streaming.noDataMicroBatches.enabled": "true",
}


class NotThere(Exception):
    """Spark cannot run on this machine: one line that says what is missing."""


def check(*, needs_java: bool = True) -> None:
    """Raise NotThere with all that is missing."""
    missing = []
    if package := next((name for name in NEEDED if not _is_there(name)), ""):
        missing.append(f"there is no Python package {package}: pip install 'fleetmq[spark]'")
    if needs_java and (version := java_version()) < JAVA_MIN:
        found = f"there is Java {version}" if version else "there is no java"
        missing.append(f"Spark needs Java {JAVA_MIN} or newer; {found} (JAVA_HOME, PATH)")
    if missing:
        raise NotThere("; ".join(missing))


def _is_there(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except ModuleNotFoundError:  # the package that it is in
        return False


def java_version() -> int:
    """Return the version of the Java that Spark would start; 0: there is none."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home, "bin", "java")) if home else "java"
    try:
        done = subprocess.run([java, "-version"], capture_output=True, text=True, check=False)
    except OSError:
        return 0
    found = re.search(r'version "(?:1\.)?(\d+)', done.stderr + done.stdout)
    return int(found[1]) if found and done.returncode == 0 else 0


def start(
    name: str, master: str, conf: Mapping[str, str], *, py_files: tuple[str, ...] = ()
) -> SparkSession:
    """Start a session, after `check`. Raises NotThere if the master cannot be reached."""
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    is_local = master.startswith("local")
    if is_local or "PYSPARK_PYTHON" not in os.environ:
        os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.appName(name).master(master)
    for key, value in {**_defaults(is_local=is_local), **conf, **_FIXED}.items():
        builder = builder.config(key, value)
    try:
        spark = builder.getOrCreate()
        for path in py_files:
            spark.sparkContext.addPyFile(path)
    except (PySparkException, RuntimeError, OSError) as error:
        raise NotThere(f"no Spark at {master}: {' '.join(str(error).split())[:300]}") from None
    return spark


def prepare(spark: SparkSession) -> None:
    """Set what streams need in a session that the caller may have made."""
    for key, value in _FIXED.items():
        spark.conf.set(key, value)
    # transformWithState requires it, and its state need not fit into memory.
    spark.conf.set(_PROVIDER, _ROCKS)
    # A batch writes what has changed, not its whole state.
    spark.conf.set(f"{_CHANGELOG}.enabled", "true")


def _defaults(*, is_local: bool) -> dict[str, str]:
    scratch = tempfile.gettempdir()
    found = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.warehouse.dir": f"{scratch}/fleetmq-spark-warehouse",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.sql.streaming.metricsEnabled": "false",
        # Results are collected on the driver, in batches that triggers bound.
        "spark.driver.maxResultSize": "0",
    }
    logging = resources.files("spark_ingest") / _LOGGING
    if isinstance(logging, Path) and logging.exists():
        found["spark.driver.extraJavaOptions"] = f"-Dlog4j2.configurationFile={logging.as_uri()}"
    if is_local:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 2
        found |= {
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.memory": "2g",
            # A task a core: each partition of a state costs a commit with every batch.
            "spark.sql.shuffle.partitions": str(cores),
        }
    return found
