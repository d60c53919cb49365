"""The searches that look for a defect: each says what it found first, or nothing.

`put_in` puts the defect into this process. Those that play in other processes are given its name.
"""

from __future__ import annotations

import importlib
import io
import random
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

PutIn = Callable[[str], None]


def _search_crash(name: str, seed: int, seconds: float, put_in: PutIn) -> str:
    from tests.sim.crash import play

    put_in(name)
    deadline = time.monotonic() + seconds
    world = seed * 1_000_000
    while time.monotonic() < deadline:
        try:
            play(world)
        except Exception as error:
            return f"seed {world}: {error!r}"
        world += 1
    return ""


def _search_powerloss(name: str, seed: int, seconds: float, put_in: PutIn) -> str:
    from tests.powerloss.run import search

    deadline = time.monotonic() + seconds
    run = seed * 1_000
    while time.monotonic() < deadline:
        outcome = search(run, states=300, sabotage=name)
        if outcome.lost:
            return f"seed {run}: {next(iter(outcome.first.values()))}"
        run += 1
    return ""


def _search_restarts(name: str, seed: int, seconds: float, put_in: PutIn) -> str:
    from tests.powerloss.restarts import sweep

    outcome = sweep(seed, sabotage=name)  # it has an end of its own, half a minute away
    return f"seed {seed}: {next(iter(outcome.first.values()))}" if outcome.lost else ""


def _search_torture(name: str, seed: int, seconds: float, put_in: PutIn) -> str:
    from tests.fault.torture import Options, torture

    kills = max(5, int(seconds / 2))
    options = Options(kills=kills, rate=800.0, life_s=0.5, clients=3, seed=seed, sabotage=name)
    out = io.StringIO()
    with tempfile.TemporaryDirectory() as where:
        verdict = torture(options, out, Path(where))
    return "" if verdict.is_clean else ", ".join(verdict.counts)


def _search_fuzz(name: str, seed: int, seconds: float, put_in: PutIn) -> str:
    broker = importlib.import_module("tests.fuzz.broker")
    put_in(name)
    return str(broker.search(seed, seconds))


def _search_fairness(name: str, seed: int, seconds: float, put_in: PutIn) -> str:
    from tests.core.fairness import WAIT_CALLS_MAX, Stalled
    from tests.core.test_fairness import ATTACKS

    put_in(name)
    deadline = time.monotonic() + seconds
    for attack in random.Random(seed).sample(sorted(ATTACKS), len(ATTACKS)):
        if time.monotonic() > deadline:
            break
        arena = ATTACKS[attack]()
        try:
            arena.run(turns=10)
        except Stalled as stalled:
            return f"{attack}: {stalled}"
        if arena.worst >= WAIT_CALLS_MAX:
            return f"{attack}: an answer took {arena.worst} calls"
    return ""


def _search_many(
    name: str, seed: int, seconds: float, put_in: PutIn, play: Callable[[Path, int], None]
) -> str:
    """Play from one seed after the other, each in a directory of its own."""
    put_in(name)
    deadline = time.monotonic() + seconds
    run = seed * 1_000
    while time.monotonic() < deadline:
        with tempfile.TemporaryDirectory() as where:
            try:
                play(Path(where), run)
            except Exception as error:
                return f"seed {run}: {error!r}"
        run += 1
    return ""


def _search_backlogs(name: str, seed: int, seconds: float, put_in: PutIn) -> str:
    from tests.spark_ingest import backlogs

    def play(where: Path, run: int) -> None:
        backlogs.play(where / "log", run)

    return _search_many(name, seed, seconds, put_in, play)


def _search_refused(name: str, seed: int, seconds: float, put_in: PutIn) -> str:
    from tests.spark_ingest import refused

    return _search_many(name, seed, seconds, put_in, refused.play)


def _search_accounts(name: str, seed: int, seconds: float, put_in: PutIn) -> str:
    from tests.spark_ingest import accounts
    from tests.spark_ingest.conftest import local_session

    with local_session() as spark:
        return _search_many(
            name, seed, seconds, put_in, lambda where, run: accounts.play(spark, where, run)
        )


FINDERS: Final[dict[str, Callable[[str, int, float, PutIn], str]]] = {
    "crash": _search_crash,
    "powerloss": _search_powerloss,
    "restarts": _search_restarts,
    "torture": _search_torture,
    "fuzz": _search_fuzz,
    "fairness": _search_fairness,
    "backlogs": _search_backlogs,
    "refused": _search_refused,
    "accounts": _search_accounts,
}
