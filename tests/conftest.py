"""Rules for all tests: the longest come first, no required test is skipped, and none is random.

`TESTS_REQUIRE=PostgreSQL,Java` makes a run fail that skips a test for a reason with one of these
words in it. CI says so for what it has put there itself.
"""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import hypothesis
import pytest

from tests.fault.postgres import PostgreSQL, Unavailable
from tests.property_examples import examples

hypothesis.settings.register_profile("repeatable", examples())
hypothesis.settings.load_profile("repeatable")

# A shell lets its background jobs ignore SIGINT, and their children inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

_TESTS: Final = Path(__file__).parent
_REQUIRED: Final = [word for word in os.environ.get("TESTS_REQUIRE", "").split(",") if word]
_WORKERS: Final = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
_missed: list[str] = []


@pytest.hookimpl(hookwrapper=True)
def pytest_collection() -> Iterator[None]:
    """Look for no garbage while the tests are imported, nor later in what that has made.

    Eleven thousand tests and their modules are half a million objects, which all stay.
    """
    gc.disable()
    yield
    gc.enable()
    gc.freeze()


@pytest.hookimpl(trylast=True)  # those that are not run are out of it by now
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the longest, so that no worker is left alone with them at the end.

    Each worker of pytest-xdist begins with an even share, in this order, and takes from the ends of
    others' later. The first one has Spark's tests, and so one JVM serves all of them; the second
    begins with those that wait for brokers that die.
    """
    folders: dict[str, list[pytest.Item]] = {"spark_ingest": [], "fault": [], "": []}
    for item in items:
        folder = item.path.relative_to(_TESTS).parts[0]
        folders[folder if folder in folders else ""].append(item)
    spark, fault, others = folders.values()
    at = max(0, len(items) // _WORKERS - len(spark)) if _WORKERS > 1 else 0
    items[:] = [*spark, *others[:at], *fault, *others[at:]]


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.skipped and isinstance(report.longrepr, tuple):
        _note(report.longrepr[2])


def pytest_collectreport(report: pytest.CollectReport) -> None:
    if report.skipped and isinstance(report.longrepr, tuple):
        _note(report.longrepr[2])


def _note(reason: str) -> None:
    if any(word in reason for word in _REQUIRED):
        _missed.append(reason)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    if _missed:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for reason in sorted(set(_missed)):
        terminalreporter.write_line(f"TESTS_REQUIRE: skipped, and may not be: {reason}", red=True)


@pytest.fixture(scope="session")
def postgresql_server() -> Iterator[PostgreSQL | str]:
    """A server for each worker, or why there is none."""
    try:
        with PostgreSQL() as server:
            # No machine loses its power here, and the disk is not what is examined: SQLite's
            # files are in memory for the same reason, where that can be.
            # Nobody vacuums, either: it would come by once a second with so many databases.
            for setting in ("fsync", "autovacuum"):
                server.psql("postgres", f"ALTER SYSTEM SET {setting} = off")
            server.psql("postgres", "SELECT pg_reload_conf()")
            yield server
    except Unavailable as error:
        yield str(error)


@pytest.fixture
def postgresql(request: pytest.FixtureRequest) -> PostgreSQL:
    server = request.getfixturevalue("postgresql_server")
    if isinstance(server, str):
        pytest.skip(f"no PostgreSQL: {server}")
    assert isinstance(server, PostgreSQL)
    return server
