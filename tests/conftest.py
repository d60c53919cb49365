"""What holds for all tests: on a machine that is meant to have everything, nothing is skipped.

`TESTS_REQUIRE=PostgreSQL,Java` makes a run fail that skips a test for a reason with one of these
words in it. CI says so for what it has put there itself.
"""

from __future__ import annotations

import os
from typing import Final

import pytest

_REQUIRED: Final = [word for word in os.environ.get("TESTS_REQUIRE", "").split(",") if word]
_missed: list[str] = []


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
