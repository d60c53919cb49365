"""The whole broker with a store, fuzzed from seeds: see `python -m tests.fuzz.broker`."""

from __future__ import annotations

import random

import pytest

from mqtt_broker.core import restore
from tests.fuzz import seeds
from tests.fuzz.broker import decisions, replay, search, wire
from tests.fuzz.broker.decisions import Script
from tests.fuzz.broker.world import play


def kept() -> list[object]:
    """Scripts that reach far, or found something once: what found it, script, why."""
    found: list[object] = []
    for _, text, why in seeds.lines("broker_scripts.txt"):
        found.append(pytest.param(replay.read(text), id=why))
    return found


@pytest.mark.parametrize("script", kept())
def test_kept_scripts(script: Script) -> None:
    play(script)
    play(script, ignored=frozenset({"guests"}))  # they may be from before there were any


@pytest.mark.parametrize("start", range(0, 80, 20))
def test_seeds(start: int) -> None:
    for seed in range(start, start + 20):
        try:
            play(replay.script_of(seed))
        except Exception as error:
            raise AssertionError(f"python -m tests.fuzz.broker --start {seed} --seeds 1") from error


# Where copies look alike, or CONNACK waits in company: the model once read these wrongly. They
# were played without guests.
MISREAD = (
    26, 74, 92, 94, 181, 3_021, 3_739, 11_216, 64_236, 65_645, 65_999, 66_474, 1_000_542, 5_000_110,
    5_002_952, 5_030_401, 5_030_832, 5_030_966, 5_032_162, 5_033_955, 5_035_700,
    71_001_799,
)  # fmt: skip


@pytest.mark.parametrize("seed", MISREAD)
def test_seeds_that_were_misread(seed: int) -> None:
    play(replay.script_of(seed), ignored=frozenset({"guests"}))


def test_a_search_finds_what_was_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """A session that was connected at a crash counts from the last sign of life itself."""
    monkeypatch.setattr(restore, "SIGN_OF_LIFE_S", 0.0)
    assert "early-end" in search(3, 60.0)


def test_a_real_store() -> None:
    for seed in (3, 7):
        play(replay.script_of(seed), on_disk=True)


@pytest.mark.slow
def test_many_seeds() -> None:
    for seed in range(10_000, 13_000):
        play(replay.script_of(seed))


@pytest.mark.slow
def test_many_seeds_on_disk() -> None:
    for seed in range(20_000, 20_100):
        play(replay.script_of(seed), on_disk=True)


def test_a_script_is_the_same_again() -> None:
    """The same decisions are the same bytes on every connection."""
    script = replay.script_of(1)
    data = decisions.encode(script)
    assert decisions.decode(data) == script and replay.read(replay.shown(script)) == script
    assert play(script).trace == play(script).trace


def test_shrinking_keeps_what_fails() -> None:
    script = decisions.draw(random.Random(1), 30)
    wanted = script[17]

    def fails(candidate: Script) -> bool:
        return any(step[:1] == wanted[:1] for step in candidate[1:])

    small = decisions.shrink(script, fails)
    assert len(small) == 2 and small[1] == wanted[:1]


@pytest.mark.parametrize(
    ("text", "topic", "expected"),
    [
        (b"a/#", b"a", True),
        (b"a/#", b"a/b/c", True),
        (b"#", b"$x", False),
        (b"+/b", b"$x/b", False),
        (b"$x/#", b"$x/b", True),
        (b"a/+", b"a/", True),
        (b"a/+", b"a", False),
        (b"+", b"", True),
        (b"a.c", b"abc", False),
    ],
)
def test_the_judge_matches_topics(text: bytes, topic: bytes, expected: bool) -> None:
    assert wire.is_met(text, topic) == expected
