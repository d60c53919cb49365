"""What a broker costs a test: CPU time of the import, of the first start, and of further ones.

    python tests/bench/start.py [--starts N]

Wall-clock time stands beside it. Options that open files (`data_dir`, `streams`) and further
listeners (`tls`) are measured as well.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any


def measured(act: Callable[[], object]) -> tuple[float, float]:
    """CPU and wall-clock milliseconds."""
    cpu, wall = time.process_time(), time.perf_counter()
    act()
    return (time.process_time() - cpu) * 1e3, (time.perf_counter() - wall) * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--starts", type=int, default=30)
    starts = parser.parse_args().starts
    sys.path.insert(0, str(Path(__file__).parents[2]))

    def load() -> None:
        import mqtt_broker.testing  # noqa: F401

    print(f"{'':34}{'CPU ms':>9}{'wall ms':>9}")
    show("import", [measured(load)])
    from mqtt_broker.testing import ThreadedBroker

    def once(**options: Any) -> Callable[[], None]:
        def act() -> None:
            with ThreadedBroker(**options):
                pass

        return act

    show("first start and stop", [measured(once())])
    show("start and stop", [measured(once()) for _ in range(starts)])
    show("  sys_interval_s=0", [measured(once(sys_interval_s=0)) for _ in range(starts)])
    show("  tls=True, websocket=True", [measured(once(tls=True, websocket=True)) for _ in range(5)])
    with TemporaryDirectory() as folder:
        paths = [Path(folder) / str(number) for number in range(5)]
        show("  data_dir, the first", [measured(once(data_dir=paths[0]))])
        show("  data_dir", [measured(once(data_dir=path)) for path in paths[1:]])
    show("  streams", [measured(once(streams={"s": "#"})) for _ in range(5)])


def show(name: str, found: list[tuple[float, float]]) -> None:
    cpu, wall = (statistics.median(one[place] for one in found) for place in (0, 1))
    print(f"{name:34}{cpu:9.1f}{wall:9.1f}")


if __name__ == "__main__":
    main()
