"""Hints between the hosts of numbers, and what follows from hearing none.

A hint says how new the filters of its sender are, how far its outbox for the receiver has come, and
which version of the receiver's filters it routes by. It is sent when one of the versions changes,
and every second otherwise. From a number that is heard, nothing has to be read unless a hint or a
frame says so; one that is silent may have sent what the bus lost.

Messages at QoS 0 are routed by what is known of filters, and nobody compares it with what is true.
So a SUBACK waits until all numbers that are heard know the filter, but not for long: a response
that is published as soon as its request arrives then finds its way back.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from mqtt_broker.cluster.frames.bodies import Hint
from mqtt_broker.cluster.frames.layout import HINT

HINT_S: Final = 1.0
SILENT_S: Final = 2.5  # two hints, and half of a third
SUBACK_WAIT_S: Final = 0.25

Send = Callable[[int, int, bytes], bool]  # the kind, the number it is for, the body of a frame


class Told:
    """A hint that was sent."""

    __slots__ = ("at", "filters", "known")

    def __init__(self, hint: Hint, at: float) -> None:
        self.filters = hint.filters
        self.known = hint.known
        self.at = at

    def is_news(self, hint: Hint, now: float) -> bool:
        """Tell whether a hint is to be sent after this one."""
        return hint.filters != self.filters or hint.known != self.known or now >= self.at + HINT_S


class _Heard:
    __slots__ = ("at", "epoch", "known")

    def __init__(self, epoch: str) -> None:
        self.epoch = epoch
        self.at = 0.0
        self.known = 0

    def on_hint(self, hint: Hint, now: float) -> None:
        """Note a hint; it may be older than the one before."""
        self.at = now
        self.known = max(self.known, hint.known)


class Waiting:
    """A reply that waits until a version is known."""

    __slots__ = ("reply", "until", "version")

    def __init__(self, version: int, reply: Callable[[], None]) -> None:
        self.version = version
        self.reply = reply
        self.until: float | None = None  # not asked yet

    def is_over(self, now: float) -> bool:
        """Tell whether it has waited long enough."""
        if self.until is None:
            self.until = now + SUBACK_WAIT_S
        return now >= self.until


class Peers:
    """The other numbers, as one number hears them."""

    __slots__ = ("_heard", "_send", "_told", "_waiting")

    def __init__(self, send: Send) -> None:
        self._send = send
        self._told: dict[int, Told] = {}
        self._heard: dict[int, _Heard] = {}
        self._waiting: list[Waiting] = []

    def tell(self, number: int, hint: Hint, now: float) -> None:
        """Send a hint, if it has news or is due."""
        told = self._told.get(number)
        if told is None or told.is_news(hint, now):
            if self._send(HINT, number, hint.encode()):
                self._told[number] = Told(hint, now)

    def on_hint(self, number: int, epoch: str, hint: Hint, now: float) -> None:
        """Note what another number says."""
        heard = self._heard.get(number)
        if heard is None or heard.epoch != epoch:
            heard = self._heard[number] = _Heard(epoch)
        heard.on_hint(hint, now)

    def is_heard(self, number: int, now: float) -> bool:
        """Tell whether hints come from a number."""
        heard = self._heard.get(number)
        return heard is not None and now < heard.at + SILENT_S

    # Filters that the others know.

    def when_known(self, version: int, reply: Callable[[], None]) -> None:
        """Reply when everybody who is heard knows the own filters of this version, or soon."""
        self._waiting.append(Waiting(version, reply))

    def answer(self, now: float) -> None:
        """Reply to those that need not wait any longer."""
        if not self._waiting:
            return
        heard = [one.known for number, one in self._heard.items() if self.is_heard(number, now)]
        known = min(heard, default=None)
        still: list[Waiting] = []
        for one in self._waiting:
            if known is None or one.version <= known or one.is_over(now):
                one.reply()
            else:
                still.append(one)
        self._waiting = still
