"""When QoS 0 goes to the telemetry log."""

from __future__ import annotations

import pytest

from mqtt_broker.server.services.log_linger import LOG_LINGER_S, LogLinger

MAX = 8_000
WHOLE = pytest.approx(LOG_LINGER_S)


def test_it_waits_once() -> None:
    linger = LogLinger(MAX)
    assert linger.left_s(10.0) == WHOLE
    assert not linger.is_over(10.0, 100)
    assert linger.left_s(10.0 + LOG_LINGER_S / 2) < LOG_LINGER_S
    assert linger.is_over(10.001 + LOG_LINGER_S, 100)


def test_a_burst_goes_when_it_is_over() -> None:
    linger = LogLinger(MAX)
    now = 10.0
    linger.left_s(now)
    for waiting in (1_000, 2_000, 3_500):
        now += LOG_LINGER_S + 0.001
        assert not linger.is_over(now, waiting)
        assert linger.left_s(now) == WHOLE
    now += LOG_LINGER_S + 0.001
    assert linger.is_over(now, 4_499)


def test_what_went_counts_no_longer() -> None:
    linger = LogLinger(MAX)
    linger.left_s(10.0)
    assert not linger.is_over(11.0, 5_000)
    linger.end()
    assert linger.left_s(12.0) == WHOLE
    assert not linger.is_over(13.0, 1_000)
    assert linger.is_over(14.0, 1_999)


def test_a_burst_does_not_wait_for_more_than_enough() -> None:
    assert MAX // 8 < LogLinger(MAX).bytes_enough < MAX
