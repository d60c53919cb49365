"""Play scripts from seeds against a whole broker with a store, and shrink what fails.

    python -m tests.fuzz.broker --seeds 1000 --start 0
    python -m tests.fuzz.broker --script 00.0412 --trace    # play one again
    python -m tests.fuzz.broker --seeds 100 --ignore '' --disk

--ignore leaves oracles out, to look past one fault to the next.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter

from tests.fuzz.broker import decisions
from tests.fuzz.broker.decisions import Script
from tests.fuzz.broker.facts import ORACLES, Broken
from tests.fuzz.broker.replay import read, script_of
from tests.fuzz.broker.replay import shown as encoded
from tests.fuzz.broker.world import play


def kind_of(error: Exception) -> str:
    if isinstance(error, Broken):
        return error.oracle
    return type(error).__name__


def attempt(script: Script, ignored: frozenset[str], *, on_disk: bool) -> Exception | None:
    try:
        play(script, ignored=ignored, on_disk=on_disk)
    except Exception as error:
        return error
    return None


def shown(error: Exception, *, trace: bool) -> str:
    text = f"{type(error).__name__}: {error}"
    return "\n".join([text, *(getattr(error, "__notes__", []) if trace else [])])


def main() -> int:
    parser = argparse.ArgumentParser(allow_abbrev=False, description=__doc__)
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--start", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=0.0, help="stop after so long")
    parser.add_argument(
        "--ignore", default="",
        help=f"oracles to leave out, of: {', '.join(ORACLES)} (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument("--disk", action="store_true", help="the real store, in a directory")
    parser.add_argument("--all", action="store_true", help="go on, and count what fails")
    parser.add_argument("--minimize", action="store_true", help="shrink what fails")
    parser.add_argument("--trace", action="store_true", help="show what was done")
    parser.add_argument("--script", help="play this one")
    args = parser.parse_args()
    ignored = frozenset(filter(None, args.ignore.split(",")))
    if unknown := ignored - set(ORACLES):
        parser.error(f"no oracle {', '.join(sorted(unknown))}")
    begun = time.monotonic()
    counts: Counter[str] = Counter()
    found: dict[str, list[int]] = {}
    seeds = [0] if args.script else range(args.start, args.start + args.seeds)
    for seed in seeds:
        if args.seconds and time.monotonic() - begun > args.seconds:
            break
        script = read(args.script) if args.script else script_of(seed)
        counts["played"] += 1
        error = attempt(script, ignored, on_disk=args.disk)
        if error is None:
            continue
        kind = kind_of(error)
        counts[kind] += 1
        found.setdefault(kind, []).append(seed)
        if args.all and len(found[kind]) > 1:
            continue
        if args.minimize:

            def fails(candidate: Script, kind: str = kind) -> bool:
                other = attempt(candidate, ignored, on_disk=args.disk)
                return other is not None and kind_of(other) == kind

            script = decisions.shrink(script, fails)
            error = attempt(script, ignored, on_disk=args.disk) or error
        sys.stderr.write(f"seed {seed}: {shown(error, trace=args.trace or args.minimize)}\n")
        if args.minimize:
            sys.stderr.write(f"--script {encoded(script)}\n")
        if not args.all:
            if not args.minimize:
                raise error
            return 1
    seconds = time.monotonic() - begun
    rate = counts["played"] / seconds
    sys.stdout.write(f"{counts['played']} scripts in {seconds:.1f} s ({rate:.0f} a second)\n")
    for kind, failed in found.items():
        sys.stdout.write(f"  {kind}: {counts[kind]}, the first by seed {failed[:12]}\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
