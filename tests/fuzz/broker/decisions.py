"""A stream of decisions: drawn from a seed, or read from bytes that a fuzzer made.

A script is a list of steps, and each step is the bytes its decisions were made of. So a step
means the same when others are taken away, and a script can be cut, changed and shrunk without
knowing what its steps do. Byte 0, and what is beyond the end, stands for the simplest choice.

    Decisions   one step's bytes: `below`, `pick`, `chance`
    encode      a script as one string of bytes, for a fuzzer
    mutate      a script changed in a few places
    shrink      the shortest script that still fails
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

T = TypeVar("T")
Script = list[bytes]
STEP_BYTES_MAX: Final = 255
STEPS_MAX: Final = 120


class Decisions:
    """Choices of one step. With `rng`, bytes are drawn as they are wanted, and kept in `data`."""

    __slots__ = ("_at", "_rng", "data")

    def __init__(self, data: bytes = b"", rng: random.Random | None = None) -> None:
        self.data = bytearray(data)
        self._rng = rng
        self._at = 0

    def byte(self) -> int:
        at = self._at
        if at >= STEP_BYTES_MAX:
            return 0
        self._at = at + 1
        if at < len(self.data):
            return self.data[at]
        if self._rng is None:
            return 0
        self.data.append(self._rng.randrange(256))
        return self.data[at]

    def below(self, count: int) -> int:
        if count <= 1:
            return 0
        return self.byte() % count if count <= 256 else self.number(count - 1)

    def number(self, top: int) -> int:
        """Any number up to `top`."""
        found = 0
        for _ in range((top.bit_length() + 7) // 8):
            found = found << 8 | self.byte()
        return found % (top + 1)

    def chance(self, part: float) -> bool:
        return self.byte() >= 256 - round(part * 256)

    def pick(self, choices: Sequence[T]) -> T:
        return choices[self.below(len(choices))]

    def weigh(self, choices: Sequence[tuple[T, int]]) -> T:
        place = self.below(sum(weight for _, weight in choices))
        for choice, weight in choices:
            place -= weight
            if place < 0:
                return choice
        raise AssertionError("the weights have a sum")


def encode(script: Script) -> bytes:
    return b"".join(bytes([len(step)]) + step for step in script)


def decode(data: bytes) -> Script:
    script: Script = []
    at = 0
    while at < len(data) and len(script) < STEPS_MAX:
        end = at + 1 + data[at]
        script.append(data[at + 1 : end])
        at = end
    return script


def draw(rng: random.Random, steps: int) -> Script:
    """A script of random bytes: a setting, and steps that are simple from some place on."""
    first = rng.randbytes(STEP_BYTES_MAX)
    return [first, *(draw_step(rng) for _ in range(steps))]


def draw_step(rng: random.Random) -> bytes:
    return rng.randbytes(rng.choice((8, 40, STEP_BYTES_MAX)))


def mutate(script: Script, rng: random.Random) -> Script:
    """A few steps doubled, dropped, moved, drawn anew, or changed inside."""
    out = list(script) or draw(rng, 5)
    for _ in range(rng.randint(1, 4)):
        place = rng.randrange(len(out))
        kind = rng.randrange(7)
        if kind == 0:
            out.insert(place, out[rng.randrange(len(out))])
        elif kind == 1 and len(out) > 1:
            del out[place]
        elif kind == 2:
            out.insert(place, draw_step(rng))
        elif kind == 3:
            other = rng.randrange(len(out))
            out[place], out[other] = out[other], out[place]
        elif kind == 4:
            out[place] = draw_step(rng)
        elif out[place]:
            step = bytearray(out[place])
            for _ in range(rng.randint(1, 3)):
                step[rng.randrange(len(step))] = rng.choice((0, 1, 255, rng.randrange(256)))
            out[place] = bytes(step)
    return out[:STEPS_MAX]


def shrink(script: Script, fails: Callable[[Script], bool], tries_max: int = 4_000) -> Script:
    """Leave out steps, then the ends of steps, then make bytes 0, while it still fails."""
    tries = tries_max

    def attempt(candidate: Script) -> bool:
        nonlocal script, tries
        tries -= 1
        if tries < 0 or not fails(candidate):
            return False
        script = candidate
        return True

    size = max(1, len(script) // 2)
    while size:
        at = len(script) - size
        while at >= 1:  # the first step is the setting
            attempt(script[:at] + script[at + size :])
            at -= size
        size //= 2
    before: Script = []
    while before != script and tries > 0:
        before = script
        for place in range(len(script) - 1, -1, -1):
            if place and attempt(script[:place] + script[place + 1 :]):
                continue
            step = script[place]
            cut = len(step)
            while cut:
                cut //= 2
                if attempt([*script[:place], step[:cut], *script[place + 1 :]]):
                    step = script[place]
            for at in range(len(step)):
                step = script[place]
                for value in (0, step[at] // 2, step[at] - 1):
                    if 0 <= value < step[at]:
                        changed = step[:at] + bytes([value]) + step[at + 1 :]
                        if attempt([*script[:place], changed, *script[place + 1 :]]):
                            break
    return script
