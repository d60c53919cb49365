"""What happened, a line an event, in a file that only grows and that others read meanwhile.

<monotonic time> <kind> <fields...>        times are comparable between processes

of publishers     S stream seq             sent for the first time
                  A stream seq             acknowledged (PUBACK, PUBREC)
                  X stream seq reason      refused
                  N stream seq             given up, with the session it was sent in
of subscribers    G client stream seq qos  delivered: a new message for the application
                  Q client filter          SUBSCRIBE is on its way
                  K client filter          SUBACK came
                  U client filter          UNSUBSCRIBE is on its way
                  V client filter          UNSUBACK came
of the reader     R stream value           a retained message that a fresh client saw
                  F since                  it saw all there is; its SUBSCRIBE left at `since`
of the mourner    W episode                its connection is cut: the will is due after its delay
                  T episode                it tries to connect with the next will
                  P episode                the broker keeps that will: a PUBREC says so
of the watcher    D episode                a will arrived
of the beacon     B episode                the broker keeps its will: a PUBACK says so
                  O episode                it leaves in order, and its will with it
of the watcher    I episode                the beacon said that it is online
                  J episode                the beacon's will arrived
of any client     L client away            its session was lost; how long it had been away
                  E client text            the broker did what it may not
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, NamedTuple


class Ledger:
    def __init__(self, path: Path) -> None:
        self._file: IO[str] = path.open("w", buffering=1 << 20)

    def note(self, kind: str, *fields: object) -> None:
        self._file.write(f"{time.monotonic():.6f} {kind} {' '.join(map(str, fields))}\n")

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        self._file.close()


class Entry(NamedTuple):
    at: float
    kind: str
    fields: list[str]


def read(path: Path) -> Iterator[Entry]:
    """Every whole line; a last one without its end is not there yet."""
    with path.open() as file:
        for line in file:
            if line.endswith("\n"):
                at, kind, *fields = line.split(" ", 2)
                yield Entry(float(at), kind, fields[0].split() if fields else [])
