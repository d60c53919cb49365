"""Write the kept inputs where fuzzers look for them: `python -m tests.fuzz.seeds build/fuzz`.

corpus.txt          target, hex, why
broker_scripts.txt  oracle, steps in hex with dots between, why: for `fuzz_broker`
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.fuzz.broker import decisions, replay

HERE = Path(__file__).parent


def lines(name: str) -> Iterator[tuple[str, str, str]]:
    for line in (HERE / name).read_text().splitlines():
        if line and not line.startswith("#"):
            first, data, why = line.split(" ", 2)
            yield first, data, why


def inputs() -> Iterator[tuple[str, bytes]]:
    """Each target's name and an input."""
    for target, data, _ in lines("corpus.txt"):
        yield target, bytes.fromhex(data)
    for _, text, _ in lines("broker_scripts.txt"):
        yield "broker", decisions.encode(replay.read(text))


def main() -> int:
    for target, data in inputs():
        folder = Path(sys.argv[1]) / f"fuzz_{target}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / hashlib.sha1(data, usedforsecurity=False).hexdigest()).write_bytes(data)
    return 0


if __name__ == "__main__":
    sys.exit(main())
