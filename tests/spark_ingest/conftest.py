"""One Spark session for all tests of a worker: starting one takes six seconds, and 1 GB.

It listens on loopback alone, has no user interface, and two cores. Files of Spark's own go to a
directory that is removed at the end. Without pyspark or Java 17 these tests are skipped, and say
why.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from tests.spark_ingest.filled import SCHEMA
from tests.streams.logs import Writing

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT: Final = Path(__file__).parents[2]
JAVA_MIN: Final = 17
# It lives for a minute: what its second compiler and its threads for garbage cost never comes back,
# nor what it costs to verify the bytecode of Spark's classes, a sixth of a start.
BRIEF_JVM: Final = (
    "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC "
    "-XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
)
# The default starts a process, `readlink`, for every file of a checkpoint.
CHECKPOINT_FILES: Final = (
    "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
)
MEMORY: Final = Path("/dev/shm")


@functools.cache
def what_is_missing() -> str:
    """Why there can be no Spark here; nothing if there can."""
    try:
        import pyspark  # noqa: F401
    except ImportError:
        return "pyspark is not installed"
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home, "bin", "java")) if home else "java"
    try:
        said = subprocess.run([java, "-version"], capture_output=True, text=True, check=False)
    except OSError:
        return "there is no Java"
    found = re.search(r'version "(?:1\.)?(\d+)', said.stderr + said.stdout)
    if found is None or int(found[1]) < JAVA_MIN:
        return f"Java {JAVA_MIN} or later is needed"
    return ""


@contextlib.contextmanager
def local_session(*, compiles: bool = True) -> Iterator[SparkSession]:
    """A session on two local cores; `fleetmq` is not registered.

    Spark compiles each expression and plan to Java, or interprets them, which takes a quarter less
    time where each runs on a few rows.
    """
    from pyspark.sql import SparkSession

    with tempfile.TemporaryDirectory(prefix="fleetmq-spark-") as directory:
        os.environ["PYSPARK_PYTHON"] = sys.executable
        os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
        os.environ["SPARK_LAUNCHER_OPTS"] = BRIEF_JVM
        path = os.environ.get("PYTHONPATH")
        os.environ["PYTHONPATH"] = f"{ROOT}{os.pathsep}{path}" if path else str(ROOT)
        builder = (
            SparkSession.builder.master("local[2]")
            .appName("fleetmq-tests")
            .config("spark.ui.enabled", "false")
            .config("spark.driver.host", "127.0.0.1")
            .config("spark.driver.bindAddress", "127.0.0.1")
            .config("spark.driver.memory", "1g")
            .config("spark.driver.extraJavaOptions", f"{BRIEF_JVM} -Dderby.system.home={directory}")
            .config("spark.local.dir", directory)
            .config("spark.sql.warehouse.dir", f"{directory}/warehouse")
            .config("spark.sql.streaming.checkpointFileManagerClass", CHECKPOINT_FILES)
            .config("spark.sql.shuffle.partitions", "2")
            .config("spark.sql.codegen.wholeStage", str(compiles).lower())
            .config("spark.sql.codegen.factoryMode", "FALLBACK" if compiles else "NO_CODEGEN")
            .config("spark.sql.session.timeZone", "UTC")
            .config("spark.log.level", "ERROR")
        )
        session = builder.getOrCreate()
        try:
            yield session
        finally:
            session.stop()


@pytest.fixture(scope="session")
def spark(request: pytest.FixtureRequest) -> Iterator[SparkSession]:
    """The slow tests run as on a cluster, where Spark compiles."""
    if missing := what_is_missing():
        pytest.skip(missing)
    with local_session(compiles=request.config.option.markexpr == "slow") as session:
        yield session


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """In memory where that can be: checkpoints are many small files."""
    place = MEMORY if MEMORY.is_dir() else None
    with tempfile.TemporaryDirectory(prefix="fleetmq-spark-", dir=place) as directory:
        yield Path(directory)


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Writing]:
    """Three partitions, kept in segments of 4 KB."""
    with Writing(tmp_path / "log") as writing:
        writing.create(3, schema=SCHEMA, segment_bytes=4096, event_time="json:$.at")
        yield writing
