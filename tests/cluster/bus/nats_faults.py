"""Faults of whole messages of NATS, for `tests.cluster.proxy`: the connection itself stays right.

PUB and MSG are lost, doubled, delayed and exchanged with their neighbours. INFO, CONNECT, SUB and
PING pass as they are.
"""

from __future__ import annotations

import random
import re
from typing import Final

_OPERATION: Final = re.compile(rb"(?:PUB|MSG) [^\r\n]*?(\d+)\r\n|[^\r\n]*\r\n")
_END_BYTES: Final = 2


class NatsFaults:
    """What becomes of the messages of one direction; chances are between 0 and 1."""

    def __init__(
        self,
        rng: random.Random,
        *,
        lose: float = 0.0,
        double: float = 0.0,
        delay: float = 0.0,
        delay_s: float = 0.05,
        swap: float = 0.0,
    ) -> None:
        self._rng = rng
        self._lose = lose
        self._double = double
        self._delay = delay
        self._delay_s = delay_s
        self._swap = swap
        self._rest = b""

    def take(self, data: bytes) -> list[tuple[float, bytes]]:
        found: list[tuple[float, bytes]] = []
        data = self._rest + data
        at = 0
        while (operation := _OPERATION.match(data, at)) is not None:
            end = operation.end()
            if operation[1] is None:
                found.append((0.0, data[at:end]))
            else:
                end += int(operation[1]) + _END_BYTES
                if end > len(data):
                    break
                self._add(found, data[at:end])
            at = end
        self._rest = data[at:]
        return found

    def _add(self, found: list[tuple[float, bytes]], message: bytes) -> None:
        rng = self._rng
        if rng.random() < self._lose:
            return
        delay_s = rng.uniform(0, self._delay_s) if rng.random() < self._delay else 0.0
        if found and rng.random() < self._swap:
            found.insert(len(found) - 1, (delay_s, message))
        else:
            found.append((delay_s, message))
        if rng.random() < self._double:
            found.append((rng.choice((0.0, rng.uniform(0, self._delay_s))), message))
