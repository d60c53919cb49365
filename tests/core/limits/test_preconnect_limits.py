"""Connections that have not completed CONNECT share a limit, which small ones never exceed."""

from __future__ import annotations

from mqtt_broker.core.limits.preconnect_limits import SMALL_BYTES, PreconnectLimits

LARGE = SMALL_BYTES + 1


def test_the_connection_that_exceeds_the_limit_is_closed_if_it_is_large() -> None:
    limits = PreconnectLimits(2 * LARGE)
    assert limits.add(LARGE, LARGE)
    assert limits.add(LARGE, LARGE)  # exactly at the limit
    assert limits.add(SMALL_BYTES, SMALL_BYTES), "a small one is left alone"
    assert not limits.add(1, LARGE), "it has grown too large"
    assert limits.add(1, 1)


def test_small_pieces_count_with_what_the_connection_holds_already() -> None:
    limits = PreconnectLimits(LARGE)
    assert limits.add(1, LARGE + 9)
    assert limits.add(SMALL_BYTES, LARGE + 9)
    assert not limits.add(1, LARGE + 9)


def test_a_connection_that_is_gone_makes_room() -> None:
    limits = PreconnectLimits(LARGE)
    assert limits.add(LARGE, LARGE)
    assert not limits.add(LARGE, LARGE)
    limits.remove(LARGE)
    assert not limits.add(1, LARGE), "the other still holds its bytes"
    limits.remove(LARGE + 1)
    assert limits.add(LARGE, LARGE)
