"""A problem is one line, and another one when it lasts."""

from __future__ import annotations

import pytest

from mqtt_broker.cluster.bus.notices import REPEAT_S, Notices


def test_a_problem_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    notices = Notices()
    assert notices.warn("a", "a is away", 100.0)
    assert not notices.warn("a", "a is away", 100.0 + REPEAT_S - 1)
    assert notices.warn("b", "b is away", 101.0)
    assert notices.warn("a", "a is away", 100.0 + REPEAT_S)
    assert caplog.messages == ["bus: a is away", "bus: b is away", "bus: a is away"]


def test_the_memory_of_problems_is_bounded() -> None:
    notices = Notices()
    assert sum(notices.warn(str(number), "x", 1.0) for number in range(1_000)) == 1_000
    assert notices.warn("0", "x", 1.0)


def test_news_are_always_said(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    Notices().inform("connected")
    assert caplog.messages == ["bus: connected"]
