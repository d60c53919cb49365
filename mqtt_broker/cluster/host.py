"""A number that a process hosts, with its connection: it runs what `Hosting` wants next.

One transaction is in flight at a time. A host that has nothing to do looks again after a while, so
that it shows a sign of life, and reads what others ask of it.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any, Final, Protocol

from mqtt_broker.cluster.hosting import Errands, Hosting, Journal
from mqtt_broker.cluster.link import Connect, DatabaseLink
from mqtt_broker.cluster.statements import TransactionError

LINGER_S: Final = 0.002  # in which what else comes shares a group
LOOK_S: Final = 0.25


class Content(Journal, Protocol):
    """The part of a broker that is hosted with a number."""

    @property
    def errands(self) -> Errands | None:
        """Return the transactions besides groups and folds, if it has any."""

    def on_stopped(self) -> None:
        """Serve nobody any more: the number is fenced, or handed over."""


class Host:
    """A hosted number, its content and its connection."""

    __slots__ = ("_looks_at", "_on_over", "content", "hosting", "link")

    def __init__(
        self,
        number: int,
        epoch: str,
        content: Content,
        connect: Connect,
        on_over: Callable[[Host], None],
        rng: Random,
    ) -> None:
        self.content = content
        self.hosting = Hosting(number, epoch, content, content.errands)
        self.link = DatabaseLink(epoch, connect, self._go_on, rng)
        self._on_over = on_over
        self._looks_at = 0.0

    @property
    def wakes_at(self) -> float:
        """Return when `tick` is to be called."""
        return min(self._next_look_at, self.link.wakes_at)

    @property
    def _next_look_at(self) -> float:
        return min(self._looks_at, self.hosting.beats_at) if self.link.is_idle else self._looks_at

    def tick(self, now: float) -> None:
        """Connect, or look for something to do, if it is time."""
        self.link.tick(now)
        if now >= self._next_look_at:
            self._looks_at = now + LOOK_S
            self._go_on(now)

    def wake(self, now: float) -> None:
        """Look in a moment: there is something to do."""
        self._looks_at = min(self._looks_at, now + LINGER_S)

    def hand_over(self, epoch: str, now: float) -> None:
        """Let the process that waits with this epoch host the number when all is folded."""
        self.hosting.hand_over(epoch)
        self.wake(now)

    def close(self) -> None:
        """Stop hosting the number, whatever is in flight."""
        self.link.close()
        self.content.on_stopped()

    def _go_on(self, now: float) -> None:
        if self.link.is_idle and (transaction := self.hosting.next(now)) is not None:
            self.link.run(transaction, self._on_done, self._on_failed)

    def _on_done(self, result: Any, now: float) -> None:
        self.hosting.on_done(result, now)
        self._after_each(now)

    def _on_failed(self, error: TransactionError, now: float) -> None:
        self.hosting.on_failed(error)
        self._after_each(now)

    def _after_each(self, now: float) -> None:
        if self.hosting.is_fenced:
            self._on_over(self)
        else:
            self._go_on(now)
