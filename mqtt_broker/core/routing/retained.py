"""Retained messages: the newest of each topic, within the limits of the settings."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from mqtt_broker.core.limits.settings import UNLIMITED, Settings
from mqtt_broker.core.runtime.runtime import Runtime
from mqtt_broker.topics.chains import ENTRY_BYTES
from mqtt_broker.topics.names import text_bytes
from mqtt_broker.topics.retained import RetainedScan, RetainedTree
from sessions.journal.journal import Journal
from sessions.journal.transaction import PublishTransaction
from sessions.messages.message import Message
from sessions.messages.work import DONE, MORE, VISITED

_STEPS: Final = 64  # of a sweep, until it is asked whether its share is over


class RetainedMessages:
    """Counts every byte that they keep: topics, the nodes of their tree, messages, publishers."""

    __slots__ = (
        "_bytes_max",
        "_expiring",
        "_journal",
        "_message_bytes",
        "_messages_max",
        "_newest",
        "_runtime",
        "_sweep_s",
        "_tree",
        "published_by",
    )

    def __init__(
        self, settings: Settings, runtime: Runtime, journal: Journal | None, now: float
    ) -> None:
        self._tree: RetainedTree[Message] = RetainedTree()
        self._messages_max = settings.retained_messages_max
        self._bytes_max = settings.retained_bytes_max
        self._sweep_s = settings.retained_sweep_s
        self._runtime = runtime
        self._journal = journal
        self._message_bytes = 0
        self._expiring = 0  # how many of them expire
        self._newest: Message | None = None  # which may not be delivered yet, so it is not settled
        self.published_by: dict[str, int] = {}  # client id: how many of them it published
        self.sweep_later(now)

    def __len__(self) -> int:
        return len(self._tree)

    @property
    def bytes(self) -> int:
        """About the bytes of memory that retained messages keep, with all that finds them."""
        return self._message_bytes + self._tree.bytes

    def get(self, topic: str) -> Message | None:
        return self._tree.get(topic)

    def scan(self, text: str) -> RetainedScan[Message]:
        """Begin to search the messages that a Topic Filter matches."""
        return RetainedScan(self._tree, text)

    def scan_all(self) -> RetainedScan[Message]:
        """Begin to search all messages, those of topics with $ in front too."""
        return RetainedScan(self._tree, "#", with_hidden=True)

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
        if not self._admits(message, before, own_max):
            return False
        if self._newest is not None:  # its receivers have it
            self._newest.envelope.settle()
        self._newest = message
        self._set(message, before)
        self._record(message, before, txn)
        return True

    def _admits(self, message: Message, before: Message | None, own_max: int) -> bool:
        """Tell whether no limit forbids a message, which may replace one."""
        if before is None and len(self._tree) >= self._messages_max:
            return False
        publisher = message.envelope.publisher
        if not self.allows(publisher, message.envelope.topic, own_max):
            return False
        grown = message.settled_bytes
        if before is None:
            grown += self._tree.cost(message.envelope.topic)
        else:
            grown -= before.settled_bytes
        if publisher not in self.published_by:
            grown += _publisher_bytes(publisher)
        return grown <= 0 or self.bytes + grown <= self._bytes_max

    def allows(self, publisher: str, topic: str, own_max: int) -> bool:
        """Tell whether this publisher may have a message of the topic, and `own_max` in all."""
        before = self._tree.get(topic)
        is_its_own = before is not None and before.envelope.publisher == publisher
        return is_its_own or self.published_by.get(publisher, 0) < own_max

    def remove(self, topic: str, txn: PublishTransaction | None = None) -> None:
        before = self._tree.remove(topic)
        if before is not None:
            self._note(before, -1)
            self._record(None, before, txn)

    def restore(self, message: Message) -> Message | None:
        """Take a message that the store has; returns the one of its topic that it replaces."""
        before = self._tree.get(message.envelope.topic)
        self._set(message, before)
        message.envelope.settle()
        return before

    def _set(self, message: Message, before: Message | None) -> None:
        if before is not None:
            message.envelope.share_topic(before.envelope.topic)
        self._tree.put(message.envelope.topic, message)  # [MQTT-3.3.1-5]
        self._note(message, 1)
        if before is not None:
            self._note(before, -1)

    def _note(self, message: Message, change: int) -> None:
        """Count a message that came (1), or went (-1)."""
        self._message_bytes += change * message.settled_bytes
        if message.envelope.expires_at:
            self._expiring += change
        self._count(message.envelope.publisher, change)

    def _count(self, publisher: str, change: int) -> None:
        before = self.published_by.get(publisher, 0)
        if before + change:
            self.published_by[publisher] = before + change
            if not before:
                self._message_bytes += _publisher_bytes(publisher)
        else:
            del self.published_by[publisher]
            self._message_bytes -= _publisher_bytes(publisher)

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

    def sweep_later(self, now: float) -> None:
        """Look for expired messages when it is time: nobody else may ask for them."""
        self._runtime.timers.at(now + self._sweep_s, self._sweep)

    def _sweep(self, now: float) -> None:
        if self._expiring:
            self._runtime.agenda.add(_Sweep(self, self._runtime))
        else:
            self.sweep_later(now)


class _Sweep:
    """Removes the retained messages that have expired, looking at a share of them in a turn."""

    __slots__ = ("_retained", "_scan", "_work")

    def __init__(self, retained: RetainedMessages, runtime: Runtime) -> None:
        self._retained = retained
        self._scan = retained.scan_all()
        self._work = runtime.work

    def go_on(self, now: float) -> int:
        """Look at some more; see `WorkItem`."""
        scan, work = self._scan, self._work
        outcome = DONE
        try:
            while not scan.is_done and outcome == DONE:
                before = scan.steps
                for message in scan.take(_STEPS):
                    if message.envelope.is_expired(now):
                        self._retained.remove(message.envelope.topic)
                        work.spent += VISITED
                work.spent += VISITED * (scan.steps - before)
                if work.is_over and not scan.is_done:
                    outcome = MORE
        finally:
            if outcome == DONE:
                self._retained.sweep_later(now)
        return outcome


def _publisher_bytes(publisher: str) -> int:
    return ENTRY_BYTES + text_bytes(publisher)
