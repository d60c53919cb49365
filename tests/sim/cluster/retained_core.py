"""A number with retained messages: the broker of `core`, with copies of them in memory."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Final, Protocol

from mqtt_broker.cluster.exchange import Exchange, Limits
from mqtt_broker.cluster.retained import Retained, RetainedBudget
from mqtt_broker.cluster.retained_rows import NEVER, RetainedLimits, RetainedMessage
from mqtt_broker.cluster.statements import Transaction
from mqtt_broker.topics.names import matches
from tests.sim.cluster.core import REMOVED_MAX, Core, Message, Reply, SendFrame

LIMITS: Final = RetainedLimits(
    group_rows=3, read_rows=6, sweep_rows=2, tombstones=2, generation_s=1.0
)


class Facts(Protocol):
    """What a message is, besides its number: its bytes would say it."""

    is_retained: bool
    is_removal: bool
    expiry_s: int


class Watcher(Protocol):
    """A subscriber, as the number sees it."""

    name: str

    def on_live(self, core: RetainedCore, message: Message) -> None: ...

    def on_retained(self, core: RetainedCore, asked: int, message: Message) -> None: ...

    def on_begun(self, core: RetainedCore, asked: int, without: set[str]) -> None: ...


class Memory:
    """The retained messages that SUBSCRIBE finds."""

    def __init__(self) -> None:
        self.messages: dict[str, RetainedMessage] = {}

    def put(self, message: RetainedMessage) -> None:
        self.messages[message.topic] = message

    def remove(self, topic: str) -> None:
        self.messages.pop(topic, None)

    def topics(self) -> Iterable[str]:
        return list(self.messages)

    def live(self, server_now: float) -> dict[str, RetainedMessage]:
        """Return those that have not expired."""
        return {
            topic: one
            for topic, one in sorted(self.messages.items())
            if one.expires_at == NEVER or one.expires_at > server_now
        }


class WatchRequest:
    """A SUBSCRIBE whose subscriber is given retained messages."""

    def __init__(self, core: RetainedCore, watcher: Watcher, text: str, asked: int) -> None:
        self._core = core
        self._watcher = watcher
        self._text = text
        self._asked = asked

    def begin(self, without: set[str]) -> None:
        found = self._core.memory.messages
        self.go_on([found[topic] for topic in sorted(found) if topic not in without])
        self._watcher.on_begun(self._core, self._asked, without)

    def go_on(self, messages: list[RetainedMessage]) -> None:
        now = self._core.server_now()
        for one in messages:
            is_live = one.blob and (one.expires_at == NEVER or one.expires_at > now)
            if is_live and matches(self._text, one.topic):
                message = Message(*json.loads(one.blob))
                self._watcher.on_retained(self._core, self._asked, message)


class RetainedCore(Core):
    """Publishes, retains, and delivers to those that are connected."""

    retained: Retained
    wants_fold = False

    def __init__(
        self,
        number: int,
        send: SendFrame,
        facts: Callable[[Message], Facts],
        clock: Callable[[], float],
    ) -> None:
        super().__init__(number, send)
        self._facts_of = facts
        self._clock = clock
        self.memory = Memory()
        self.watchers: dict[str, Watcher] = {}
        self._requests: list[tuple[Reply, WatchRequest]] = []  # by the reply to SUBSCRIBE

    @property
    def errands(self) -> RetainedCore:  # type: ignore[override]
        return self

    def make_exchange(self, epoch: str) -> Exchange:
        limits = Limits(REMOVED_MAX, LIMITS)
        exchange = Exchange(self.number, epoch, partial(self._send, epoch), limits, self.memory)
        assert exchange.retained is not None
        self.retained = exchange.retained
        return exchange

    def server_now(self) -> float:
        return self.retained.server_now(self._clock())

    def on_stopped(self) -> None:
        super().on_stopped()
        self.watchers.clear()

    def on_loaded(self) -> None:
        super().on_loaded()
        self.is_served = False  # until the time is known

    # Batches.

    def _make_batch(self) -> None:
        budget = RetainedBudget(LIMITS)
        arrived, self._arrived = self._arrived, []
        held: list[tuple[list[Any], Reply]] = []
        for record, reply in arrived:
            is_now = record[0] != "publish" or budget.admits(
                record[1], is_retained=self._facts(record).is_retained
            )
            (self._arrived if is_now else held).append((record, reply))
        taken, retained = self._arrived, self._retained_of(self._arrived)
        super()._make_batch()
        self._arrived = held
        if self._batch is not None:
            self._batch.retained = retained
            self._batch.cut = self.retained.take()
            for reply, request in self._requests:
                if any(reply is one for _, one in taken):
                    self.retained.want(request)
            self._requests = [
                one for one in self._requests if all(one[0] is not reply for _, reply in taken)
            ]

    def _facts(self, record: list[Any]) -> Facts:
        return self._facts_of(Message(*record[1:]))

    def on_retaining(self, message: Message, expires_at: int) -> None:
        """Let an oracle see when a message expires."""

    def _retained_of(self, arrived: list[tuple[list[Any], Reply]]) -> dict[str, RetainedMessage]:
        found: dict[str, RetainedMessage] = {}
        for record, _ in arrived:
            if record[0] == "publish" and self._facts(record).is_retained:
                message, facts = Message(*record[1:]), self._facts(record)
                expires_at = int(self.server_now()) + facts.expiry_s if facts.expiry_s else NEVER
                self.on_retaining(message, expires_at)
                blob = b"" if facts.is_removal else message.encode()
                found[message.topic] = RetainedMessage(message.topic, blob, expires_at)
        return found

    def on_committed(self, group: int) -> None:
        batch = self._batch
        assert batch is not None
        self.exchange.on_committed(group, batch)
        before = [batch.is_before_cut(one) for one in batch.received for _ in one.messages]
        before += [False] * (len(self._records) - len(before))
        for record, is_first in zip(self._records, before, strict=True):
            if is_first:
                self._apply(record)
        self.exchange.apply_cut(batch)
        for record, is_first in zip(self._records, before, strict=True):
            if not is_first:
                self._apply(record)
        self._finish()

    def _finish(self) -> None:
        batch = self._batch
        super()._finish()
        self.exchange.apply_cut(batch)
        self.exchange.apply_cut()

    def _apply(self, record: list[Any]) -> None:
        self.state.apply(record)
        if record[0] in ("publish", "receive"):
            message = Message(*record[1:])
            for name, watcher in sorted(self.watchers.items()):
                held = [text for session, text in self.state.subscriptions if session == name]
                if any(matches(text, message.topic) for text in held):
                    watcher.on_live(self, message)

    # Errands: see `hosting.Errands`.

    def next(self, number: int, epoch: str, turn: int, now: float) -> Transaction[Any] | None:
        return None if self._batch is not None else self.retained.next(number, epoch, turn, now)

    def on_done(self, result: Any, now: float) -> None:
        self.retained.on_done(result, now)
        self.is_served = self.retained.has_time
        self.exchange.apply_cut()

    # What clients ask.

    def watch(self, watcher: Watcher, text: str, asked: int, reply: Reply) -> None:
        """Take a SUBSCRIBE that brings retained messages."""
        self.watchers[watcher.name] = watcher
        self.subscribe(watcher.name, text, reply)
        self._requests.append((reply, WatchRequest(self, watcher, text, asked)))
