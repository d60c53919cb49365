"""Many seeds: `python -m tests.sim.run --seeds 1000 --start 0`.

A seed that fails is printed with what went wrong; `--start SEED --seeds 1` plays it again.
"""

from __future__ import annotations

import argparse
import sys
import traceback

from tests.sim.world import World


def main() -> int:
    parser = argparse.ArgumentParser(allow_abbrev=False, description=__doc__)
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--start", type=int, default=0)
    parser.add_argument("--actions", type=int, default=150)
    parser.add_argument("--all", action="store_true", help="go on after a failure")
    args = parser.parse_args()
    failed = 0
    for seed in range(args.start, args.start + args.seeds):
        try:
            World(seed).play(args.actions)
        except Exception as error:
            failed += 1
            if not args.all:
                traceback.print_exc()
            sys.stderr.write(f"seed {seed}: {type(error).__name__}: {error}\n")
            if not args.all:
                return 1
    sys.stdout.write(f"{args.seeds} seeds, {failed} failed\n")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
