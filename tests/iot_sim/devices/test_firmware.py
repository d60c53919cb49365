"""A firmware update as a state machine: its stages, its percentages, and how long it takes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iot_sim.devices.firmware import (
    DONE,
    DOWNLOADING,
    FAILED,
    FIELDS,
    INSTALLING,
    REBOOTING,
    STAGES,
    VERIFYING,
    Update,
)

MOST_STEPS = 1_000


def walk(update: Update) -> list[tuple[str, int, float]]:
    """Every stage with its percentage, and how long it takes."""
    told = [(update.stage, update.percent, update.step_s)]
    while not update.over:
        update.step()
        told.append((update.stage, update.percent, update.step_s))
        assert len(told) <= MOST_STEPS + 10, "it does not end"
    return told


@given(steps=st.integers(1, MOST_STEPS), fails=st.booleans())
def test_every_part_is_downloaded_once_and_then_the_stages_follow(steps: int, fails: bool) -> None:
    told = walk(Update("2", "1", lasts_s=60.0, steps=steps, fails=fails))
    download = [percent for stage, percent, _ in told if stage == DOWNLOADING]
    assert download == [done * 100 // steps for done in range(steps)]
    assert [stage for stage, _, _ in told[steps:]] == (
        [VERIFYING, FAILED] if fails else [VERIFYING, INSTALLING, REBOOTING, DONE]
    )
    assert all(percent == 100 for _, percent, _ in told[steps:])


@given(steps=st.integers(1, MOST_STEPS), lasts_s=st.floats(0.1, 1e5))
def test_the_download_takes_its_time_and_what_follows_a_share_of_it(
    steps: int, lasts_s: float
) -> None:
    times: dict[str, float] = dict.fromkeys(STAGES, 0.0)
    for stage, _, step_s in walk(Update("2", "1", lasts_s=lasts_s, steps=steps, fails=False)):
        times[stage] += step_s
    assert times[DOWNLOADING] == pytest.approx(lasts_s)
    assert times[VERIFYING] == pytest.approx(lasts_s * 0.1)
    assert times[INSTALLING] == pytest.approx(lasts_s * 0.2)


def test_a_failed_one_says_why_and_stays_as_it_is() -> None:
    update = Update("2", "1", lasts_s=1.0, steps=1, fails=True)
    assert (update.version, update.was, update.error, update.over) == ("2", "1", None, False)
    walk(update)
    assert update.over and update.error == "the signature does not match"
    update.step()
    assert update.stage == FAILED
    good = Update("2", "1", lasts_s=1.0, steps=1, fails=False)
    walk(good)
    assert good.over and good.error is None


def test_every_stage_is_one_that_reports_may_name() -> None:
    [stage] = [field for field in FIELDS if field.name == "stage"]
    assert stage.choices == STAGES
