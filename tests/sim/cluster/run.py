"""Many seeds of the cluster: `python -m tests.sim.cluster.run --seeds 1000 --start 0`.

A seed that fails is printed with what went wrong; `--start SEED --seeds 1` plays it again.
"""

from __future__ import annotations

import argparse
import sys
import traceback
from collections import Counter
from collections.abc import Callable
from typing import Final

from tests.sim.cluster import hosts, messages, owners, retained

WORLDS: Final[dict[str, Callable[[int], object]]] = {
    "hosts": hosts.play,
    "messages": messages.play,
    "owners": owners.play,
    "retained": retained.play,
}


def main() -> int:
    parser = argparse.ArgumentParser(allow_abbrev=False, description=__doc__)
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--start", type=int, default=0)
    parser.add_argument("--world", choices=list(WORLDS), default="", help="default: all of them")
    parser.add_argument("--all", action="store_true", help="go on after a failure")
    args = parser.parse_args()
    failed: Counter[str] = Counter()
    for world in [args.world] if args.world else WORLDS:
        for seed in range(args.start, args.start + args.seeds):
            try:
                WORLDS[world](seed)
            except Exception as error:
                failed[world] += 1
                if not args.all:
                    traceback.print_exc()
                sys.stderr.write(f"{world}, seed {seed}: {type(error).__name__}: {error}\n")
                if not args.all:
                    return 1
        sys.stdout.write(f"{world}: {args.seeds} seeds, {failed[world]} failed\n")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
