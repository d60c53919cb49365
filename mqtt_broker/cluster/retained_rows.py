"""Retained messages as rows, and the rows that one number has written.

There is one row for each topic, with the number and the group that wrote it last. A group writes
its rows in its own transaction, in the order of the topics: the row's lock decides which of two
groups comes later, and nobody waits in a ring. A message that is removed leaves a tombstone, since
others read changes alone. The number that wrote it deletes it much later; it states up to which of
its groups that may have happened, and whoever has read less than that reads all. A message that has
expired needs no tombstone, but its row is deleted in the same way: who has not read it may still
have the one before.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from mqtt_broker.cluster.node_transactions import own_row
from mqtt_broker.cluster.statements import (
    Commit,
    Delete,
    LockTimeout,
    Put,
    Row,
    Select,
    Statement,
    Transaction,
)
from mqtt_broker.cluster.tables import RETAINED, SWEEPS

NEVER: Final = 0  # the time at which a message without expiry expires
# A row may be locked by a host that is gone, until the server ends its connection. Who waits for it
# gives up, and shows a sign of life before it tries again.
ROW_WAIT_S: Final = 1.0
_STEP_S: Final = 10  # expired rows are deleted so much later, at most twice that


class RetainedLimits(NamedTuple):
    """The bounds of what is written, read and kept at once."""

    group_rows: int = 250  # that a group writes
    read_rows: int = 1_000  # that are read in one transaction; more than a group writes
    sweep_rows: int = 1_000  # that are deleted in one transaction
    tombstones: int = 10_000  # of a generation, unless more come in its time
    generation_s: float = 10.0


class RetainedMessage:
    """The retained message of a topic, or its removal: one without bytes."""

    __slots__ = ("blob", "expires_at", "topic")

    def __init__(self, topic: str, blob: bytes, expires_at: int = NEVER) -> None:
        self.topic = topic
        self.blob = blob
        self.expires_at = expires_at if blob else NEVER  # seconds of the database's clock

    @property
    def is_tombstone(self) -> bool:
        """Tell whether the topic has no message."""
        return not self.blob


def message_of(row: Row) -> RetainedMessage:
    """Make the message that a row holds."""
    return RetainedMessage(row["topic"], row["blob"], row["expires_at"])


def write_retained(messages: Iterable[RetainedMessage], number: int, group: int) -> list[Statement]:
    """Return what a group writes, one message a topic. Locks are taken in the order of topics."""
    puts: list[Statement] = [
        Put(
            RETAINED,
            {
                "topic": one.topic,
                "number": number,
                "group": group,
                "blob": one.blob,
                "expires_at": one.expires_at,
            },
        )
        for one in sorted(messages, key=lambda one: one.topic)
    ]
    return [LockTimeout(ROW_WAIT_S), *puts] if puts else []


class Sweep:
    """Rows of one number that are to be deleted."""

    __slots__ = ("group", "topics")

    def __init__(self, topics: list[str], group: int) -> None:
        self.topics = topics
        self.group = group  # up to which rows may be gone


def delete_rows(number: int, epoch: str, turn: int, sweep: Sweep) -> Transaction[None]:
    """Delete rows that this number wrote last. What others have written since then stays."""
    rows: Row = {"topic": sweep.topics}
    yield [
        own_row(number, epoch, turn),
        Put(SWEEPS, {"number": number, "group": sweep.group}),
        LockTimeout(ROW_WAIT_S),
        Select(RETAINED, rows, for_update=True),
        Delete(RETAINED, {**rows, "number": number}),
        Commit(),
    ]


class OwnRows:
    """Which rows of one number will have to be deleted: tombstones, and messages that expire."""

    __slots__ = (
        "_expiring",
        "_limits",
        "_old",
        "_old_group",
        "_rotated_at",
        "_steps",
        "_sweep_group",
        "_swept",
        "_told",
        "_young",
        "_young_group",
    )

    def __init__(self, limits: RetainedLimits) -> None:
        self._limits = limits
        self._young: dict[str, None] = {}  # topics with a tombstone of this generation,
        self._old: dict[str, None] = {}  # of the one before,
        self._swept: dict[str, None] = {}  # and those before, which are being deleted
        self._young_group = self._old_group = self._sweep_group = 0  # the last of each
        self._rotated_at = 0.0
        self._told = 0  # the group up to which others know that rows may be gone
        self._expiring: dict[str, tuple[int, int]] = {}  # by topic, the step of its end, its group
        self._steps: dict[int, dict[str, None]] = {}  # and the other way round

    @property
    def tombstones(self) -> int:
        """The number of topics with a tombstone of this number."""
        return len(self._young) + len(self._old) + len(self._swept)

    def on_written(self, message: RetainedMessage, group: int) -> None:
        """Note what this number has written last of a topic."""
        self.forget(message.topic)
        if message.is_tombstone:
            self._young[message.topic] = None
            self._young_group = max(self._young_group, group)
        elif message.expires_at != NEVER:
            step = message.expires_at // _STEP_S
            self._expiring[message.topic] = (step, group)
            self._steps.setdefault(step, {})[message.topic] = None

    def forget(self, topic: str) -> None:
        """Note that the row of a topic is gone, or another number's."""
        for generation in (self._young, self._old, self._swept):
            generation.pop(topic, None)
        found = self._expiring.pop(topic, None)
        if found is not None:
            topics = self._steps[found[0]]
            del topics[topic]
            if not topics:
                del self._steps[found[0]]

    def on_told(self, group: int) -> None:
        """Note up to which group others know that rows may be gone: it never goes back."""
        self._told = max(self._told, group)

    def sweep(self, now: float, server_now: float) -> Sweep | None:
        """Return rows that are to be deleted; `server_now` is the database's time."""
        if not self._swept and self._is_generation_over(now):
            self._swept, self._old, self._young = self._old, self._young, {}
            self._sweep_group, self._old_group = self._old_group, self._young_group
            self._rotated_at = now
        if self._swept:
            topics = sorted(self._swept)[: self._limits.sweep_rows]
            return Sweep(topics, max(self._told, self._sweep_group))
        over = [topic for step in self._steps_over(server_now) for topic in self._steps[step]]
        topics = sorted(over)[: self._limits.sweep_rows]
        groups = [self._expiring[topic][1] for topic in topics]
        return Sweep(topics, max(self._told, *groups)) if topics else None

    def on_swept(self, sweep: Sweep) -> None:
        """Note that these rows are deleted."""
        self.on_told(sweep.group)
        for topic in sweep.topics:
            self.forget(topic)

    def _is_generation_over(self, now: float) -> bool:
        is_full = len(self._young) > self._limits.tombstones or bool(self._old)
        return is_full and now >= self._rotated_at + self._limits.generation_s

    def _steps_over(self, server_now: float) -> list[int]:
        return [step for step in self._steps if (step + 2) * _STEP_S <= server_now]
