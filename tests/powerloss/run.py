"""Cut the power at any moment of a run, and see whether acknowledgements meant it.

    python -m tests.powerloss.run --seeds 5 --states 400

Each seed is a run of the broker under strace, in three lives; each state is what may be on the
disk at a moment of it.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.powerloss.disks import MODES, Disk
from tests.powerloss.promised import Promised
from tests.powerloss.reboot import ORACLES, Check, Lost
from tests.powerloss.recorded import Recorded, record
from tests.powerloss.traces import why_not

# Where syncs cost nothing, if there is such a place; what is left of power does not matter there.
MEMORY: Final = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
_NEAR: Final = frozenset({"fsync", "fdatasync", "sendto", "rename", "unlink", "mkdir"})


@dataclass(slots=True)
class Outcome:
    calls: int = 0
    states: int = 0
    acknowledged: int = 0
    lost: Counter[str] = field(default_factory=Counter)
    first: dict[str, str] = field(default_factory=dict)


def examine(
    recorded: Recorded,
    where: Path,
    rng: random.Random,
    states: int,
    *,
    without: Iterable[str] = (),
    stops: bool = True,
    since: int = 0,
) -> Outcome:
    """So many states of one run, of calls from `since` on; `stops` at the first broken promise."""
    outcome = Outcome(calls=len(recorded.calls))
    disk, promised = Disk(recorded.base), Promised()
    count = sum(call.name in _NEAR and call.start >= since for call in recorded.calls)
    chance = min(1.0, 1.3 * states / max(1, count))
    life = 0
    for call, is_end in disk.play(recorded.calls):
        if call.life != life:
            life = call.life
            promised.end_life()
        if not is_end:
            promised.on_call(call)
        is_near = call.name in _NEAR and (is_end or not call.name.endswith("sync"))
        is_wanted = is_near and call.start >= since
        if outcome.states >= states or not is_wanted or rng.random() > chance:
            continue
        outcome.states += 1
        mode = MODES[outcome.states % len(MODES)]
        image = where / f"state-{outcome.states}"
        disk.image(image, mode, rng)
        try:
            Check(promised, frozenset(without)).run(image)
        except Lost as lost:
            outcome.lost[lost.oracle] += 1
            text = f"{lost} ({mode}, after {call.name} in life {call.life})"
            outcome.first.setdefault(lost.oracle, text)
            if stops:
                break
        shutil.rmtree(image)
    outcome.acknowledged = promised.acknowledged
    return outcome


def search(
    seed: int,
    *,
    states: int,
    lives: int = 3,
    steps: int = 40,
    sabotage: str = "",
    without: Iterable[str] = (),
    stops: bool = True,
) -> Outcome:
    """Record a run, and examine it."""
    with tempfile.TemporaryDirectory(prefix="fmq-powerloss-", dir=MEMORY) as name:
        where = Path(name)
        recorded = record(where, seed, lives=lives, steps=steps, sabotage=sabotage)
        rng = random.Random(f"{seed}/states")
        return examine(recorded, where, rng, states, without=without, stops=stops)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        allow_abbrev=False, prog="python -m tests.powerloss.run", description=__doc__
    )
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--start", type=int, default=1)
    parser.add_argument("--states", type=int, default=400, help="of each run")
    parser.add_argument("--steps", type=int, default=40, help="of its clients, in each life")
    parser.add_argument("--without", default="", help=f"of {', '.join(ORACLES)}")
    parser.add_argument("--sabotage", default="", help="put a defect back: see tests/sabotage.py")
    parser.add_argument("--all", action="store_true", help="go on, and count what is found")
    args = parser.parse_args(arguments)
    if why_not():
        sys.stdout.write(f"powerloss: left out, {why_not()}\n")
        return 0
    without = [name for name in args.without.split(",") if name]
    total: Counter[str] = Counter()
    begun = time.monotonic()
    for seed in range(args.start, args.start + args.seeds):
        outcome = search(
            seed,
            states=args.states,
            steps=args.steps,
            sabotage=args.sabotage,
            without=without,
            stops=not args.all,
        )
        sys.stdout.write(
            f"seed {seed}: {outcome.calls:,} calls, {outcome.acknowledged} messages "
            f"acknowledged, {outcome.states} states, {sum(outcome.lost.values())} lost something "
            f"({time.monotonic() - begun:.0f} s)\n"
        )
        for text in outcome.first.values():
            sys.stdout.write(f"  {text}\n")
        sys.stdout.flush()
        total += outcome.lost
    return int(bool(total))


if __name__ == "__main__":
    sys.exit(main())
