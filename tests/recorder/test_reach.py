"""How far back the recorder sees."""

from __future__ import annotations

from tests.bench.recorder import reach_s


def test_the_reach_depends_on_topics_and_not_on_messages() -> None:
    """A run of equal messages takes as much as one."""
    few = reach_s(1_000, 100, 1 << 20)
    assert 0.8 * few < reach_s(10_000, 100, 1 << 20) < 1.25 * few
    assert reach_s(10_000, 1_000, 1 << 20) < few / 5
