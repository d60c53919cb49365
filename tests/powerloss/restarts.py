"""End the broker before every sync of a directory, start it again, and then cut the power.

    python -m tests.powerloss.restarts --seeds 1

A name that a process made and did not sync is there for the next one, which has to sync it before
anything rests on it. One life is recorded; from each of these moments on another life goes on
with the files, and the power is cut at moments of that. Each directory has its turn, so that a
sweep of one seed finds what a search by chance would need many seeds for.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from tests.powerloss.recorded import Recorded, deaths, rebuild, trace_life, until
from tests.powerloss.run import MEMORY, Outcome, examine
from tests.powerloss.traces import why_not

_STEPS: Final = 20  # of the clients, in each life
_STATES: Final = 40  # of each second life, from its first answer on


def sweep(seed: int, *, sabotage: str = "") -> Outcome:
    """Try each moment once, and stop at the first broken promise."""
    rng = random.Random(f"{seed}/restarts")
    total = Outcome()
    with tempfile.TemporaryDirectory(prefix="fmq-restarts-", dir=MEMORY) as name:
        where = Path(name)
        first = Recorded(where / "base")
        first.base.mkdir()
        trace_life(where, first, seed, 0, steps=_STEPS, sabotage=sabotage)
        moments = deaths(first)["names"]
        rng.shuffle(moments)
        for moment in moments:
            again = Recorded(first.base, until(first.calls, moment))
            rebuild(again)
            for path in where.glob("trace-1.*"):
                path.unlink()
            trace_life(where, again, seed, 1, steps=_STEPS, sabotage=sabotage)
            answers = [call.start for call in again.calls if call.life and call.name == "sendto"]
            if not answers:
                continue
            found = examine(again, where, rng, _STATES, since=answers[0])
            total.calls += len(again.calls)
            total.states += found.states
            total.acknowledged += found.acknowledged
            total.lost += found.lost
            total.first |= found.first
            if found.lost:
                break
    return total


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        allow_abbrev=False, prog="python -m tests.powerloss.restarts", description=__doc__
    )
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--start", type=int, default=1)
    parser.add_argument("--sabotage", default="", help="put a defect back: see tests/sabotage.py")
    args = parser.parse_args(arguments)
    if why_not():
        sys.stdout.write(f"restarts: left out, {why_not()}\n")
        return 0
    has_lost = False
    for seed in range(args.start, args.start + args.seeds):
        begun = time.monotonic()
        outcome = sweep(seed, sabotage=args.sabotage)
        sys.stdout.write(
            f"seed {seed}: {outcome.calls:,} calls, {outcome.acknowledged} messages acknowledged, "
            f"{outcome.states} states, {sum(outcome.lost.values())} lost something "
            f"({time.monotonic() - begun:.0f} s)\n"
        )
        for text in outcome.first.values():
            sys.stdout.write(f"  {text}\n")
        sys.stdout.flush()
        has_lost = has_lost or bool(outcome.lost)
    return int(has_lost)


if __name__ == "__main__":
    sys.exit(main())
