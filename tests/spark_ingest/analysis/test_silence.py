"""Silence against a list of all that was heard: when it begins, and that it is told once."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from spark_ingest.analysis.silence import Silence

LIMIT_US = 10


@given(st.lists(st.tuples(st.sampled_from(["hear", "tell"]), st.integers(0, 60)), max_size=40))
def test_a_silence_begins_with_the_last_that_was_heard_and_is_told_once(
    steps: list[tuple[str, int]],
) -> None:
    silence = Silence(LIMIT_US)
    heard: list[int] = []
    is_told = False
    for step, at_us in steps:
        due = max(heard) + LIMIT_US if heard else None
        if step == "tell":
            assert silence.due_us() == (None if is_told else due)
            assert silence.tell() == (None if is_told else due)
            is_told = is_told or due is not None
        else:
            ended = silence.hear(at_us)
            assert ended == (due if due is not None and at_us > due else None)
            heard.append(at_us)
            is_told = False
        assert silence.heard_us == max(heard, default=None)
        assert silence.is_told is is_told
    if heard:
        assert silence.hear(max(heard) + LIMIT_US) is None, "just in time"
        assert silence.hear(max(heard) + 2 * LIMIT_US + 1) == max(heard) + 2 * LIMIT_US


def test_without_a_limit_nobody_is_ever_silent() -> None:
    silence = Silence(0)
    assert silence.hear(1) is None and silence.hear(1 << 60) is None
    assert silence.due_us() is None and silence.tell() is None and not silence.is_told
