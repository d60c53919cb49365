"""Torture processes of a cluster: `python -m tests.cluster.torture --faults 50 --seed 1`.

Three processes on real connections to a PostgreSQL of its own are killed, stopped, ended, cut off,
and the database with them. It ends with 0 if nothing acknowledged was lost and all else that
`tests.sim.cluster.oracles` says holds; with 1 otherwise.
"""

from __future__ import annotations

import argparse
import sys
import time

from tests.cluster.torture import faults
from tests.cluster.torture.harness import LOADS, Options, Verdict, torture
from tests.fault.postgres import Unavailable


def percentile(values: list[float], part: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))]


def lines(options: Options, verdict: Verdict) -> list[str]:
    """Say what was done and found."""
    said = [f"{kind:24}{count:6}" for kind, count in sorted(verdict.faults.items())]
    for measure, values in sorted(verdict.times_s.items()):
        p50, p99 = percentile(values, 0.5), percentile(values, 0.99)
        said.append(f"{measure:28}{len(values):4} times, p50 {p50:.2f} s, p99 {p99:.2f} s")
    said.append(f"{verdict.acknowledged} acknowledgements, {verdict.taken} numbers taken")
    said += verdict.findings or ["nothing acknowledged was lost, and all else holds"]
    said.append(f"again: {options.again()}")
    return said


def main() -> int:
    kinds = [*faults.OF_MEMBERS, *faults.OF_DATABASE]
    default = Options()
    parser = argparse.ArgumentParser(allow_abbrev=False, description=__doc__)
    parser.add_argument("--faults", type=int, default=default.faults)
    parser.add_argument("--seed", type=int, default=default.seed)
    parser.add_argument("--nodes", type=int, default=default.nodes)
    parser.add_argument("--world", choices=list(LOADS), default=default.world)
    parser.add_argument("--clients", type=int, default=default.clients)
    parser.add_argument("--only", choices=kinds, default="", help="one kind, one after the other")
    parser.add_argument("--without", default="", help="a rule, to see that its want is noticed")
    options = Options(**vars(parser.parse_args()))
    began_at = time.monotonic()

    def say(line: str) -> None:
        sys.stdout.write(f"{time.monotonic() - began_at:7.1f} s  {line}\n")
        sys.stdout.flush()

    try:
        verdict = torture(options, say)
    except Unavailable as error:
        sys.stderr.write(f"torture: {error}\n")
        return 2
    for line in lines(options, verdict):
        say(line)
    return 0 if verdict.is_clean else 1


if __name__ == "__main__":
    sys.exit(main())
