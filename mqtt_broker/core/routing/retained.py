"""Retained messages: the newest of each topic, within the limits of the settings."""

from __future__ import annotations

from collections.abc import Iterable

from mqtt_broker.core.limits.settings import UNLIMITED, Settings
from mqtt_broker.core.runtime.timers import Timers
from mqtt_broker.topics.retained import RetainedTree
from sessions.journal.journal import Journal
from sessions.journal.transaction import PublishTransaction
from sessions.messages.message import Message


class RetainedMessages:
    __slots__ = (
        "_bytes_max",
        "_journal",
        "_messages_max",
        "_sweep_s",
        "_timers",
        "_tree",
        "bytes",
        "published_by",
    )

    def __init__(
        self, settings: Settings, timers: Timers, journal: Journal | None, now: float
    ) -> None:
        self._tree: RetainedTree[Message] = RetainedTree()
        self._messages_max = settings.retained_messages_max
        self._bytes_max = settings.retained_bytes_max
        self._sweep_s = settings.retained_sweep_s
        self._timers = timers
        self._journal = journal
        self.bytes = 0
        self.published_by: dict[str, int] = {}  # client id: how many of them it published
        timers.at(now + self._sweep_s, self._sweep)

    def __len__(self) -> int:
        return len(self._tree)

    def get(self, topic: str) -> Message | None:
        return self._tree.get(topic)

    def match(self, text: str) -> Iterable[Message]:
        """Find the messages that a Topic Filter matches."""
        return self._tree.match(text)

    def values(self) -> Iterable[Message]:
        return self._tree.values()

    def put(
        self, message: Message, txn: PublishTransaction | None, own_max: int = UNLIMITED
    ) -> bool:
        """Keep, replace or (empty payload) remove; False when a limit forbids it.

        `own_max`: how many its publisher may have.
        """
        topic = message.envelope.topic
        if not message.payload:  # [MQTT-3.3.1-6], [MQTT-3.3.1-7]
            self.remove(topic, txn)
            return True
        before = self._tree.get(topic)
        if before is None and len(self._tree) >= self._messages_max:
            return False
        publisher = message.envelope.publisher
        is_one_more = before is None or before.envelope.publisher != publisher
        if is_one_more and self.published_by.get(publisher, 0) >= own_max:
            return False
        grown = self.bytes + message.envelope.size - (before.envelope.size if before else 0)
        if grown > self._bytes_max:
            return False
        self._set(message, before)
        self._record(message, before, txn)
        return True

    def remove(self, topic: str, txn: PublishTransaction | None = None) -> None:
        before = self._tree.remove(topic)
        if before is not None:
            self.bytes -= before.envelope.size
            self._count(before.envelope.publisher, -1)
            self._record(None, before, txn)

    def restore(self, message: Message) -> Message | None:
        """Take a message that the store has; returns the one of its topic that it replaces."""
        before = self._tree.get(message.envelope.topic)
        self._set(message, before)
        return before

    def _set(self, message: Message, before: Message | None) -> None:
        self._tree.put(message.envelope.topic, message)  # [MQTT-3.3.1-5]
        self.bytes += message.envelope.size
        self._count(message.envelope.publisher, 1)
        if before is not None:
            self.bytes -= before.envelope.size
            self._count(before.envelope.publisher, -1)

    def _count(self, publisher: str, change: int) -> None:
        count = self.published_by.get(publisher, 0) + change
        if count:
            self.published_by[publisher] = count
        else:
            del self.published_by[publisher]

    def _record(
        self, message: Message | None, before: Message | None, txn: PublishTransaction | None
    ) -> None:
        journal = self._journal
        if journal is None:
            return
        before_mid = 0 if before is None else before.message_number
        if txn is not None and (message is not None or before_mid):
            txn.retain(message, before_mid)
        elif before_mid:
            journal.on_retained_gone(before_mid)

    def _sweep(self, now: float) -> None:
        """Remove expired messages even when nobody asks for them."""
        self._timers.at(now + self._sweep_s, self._sweep)
        expired = [m.envelope.topic for m in self._tree.values() if m.envelope.is_expired(now)]
        for topic in expired:
            self.remove(topic)
