"""Record accepted messages, and wait until there are enough of them.

The recorder is the broker's message log: it gets every message once, whoever subscribes. A log that
is there already, of streams or of the embedder, gets them behind it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final

from mqtt_broker.codec import properties as prop
from mqtt_broker.codec.packets import Publish
from mqtt_broker.codec.reasons import TOPIC_FILTER_INVALID
from mqtt_broker.core.interfaces.message_log import (
    MessageLog,
    Refusal,
    StreamSubscriptions,
    TopicWriter,
)
from mqtt_broker.topics.names import filter_problem, matches
from sessions.messages.message import Envelope
from sessions.session import Session, Subscription

_SHOWN_MAX: Final = 10  # messages in an error
_PAYLOAD_SHOWN_MAX: Final = 60  # bytes of each


@dataclass(frozen=True, slots=True)
class PublishedMessage:
    """A message that the broker accepted, as it was published."""

    topic: str
    payload: bytes
    qos: int
    retain: bool
    client_id: str  # of the publisher
    expiry_s: int | None = None
    content_type: str | None = None
    response_topic: str | None = None
    correlation_data: bytes | None = None
    user_properties: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        payload = repr(self.payload[:_PAYLOAD_SHOWN_MAX])
        if len(self.payload) > _PAYLOAD_SHOWN_MAX:
            payload += f"... ({len(self.payload):,} bytes)"
        retained = ", retain" if self.retain else ""
        return f"{self.topic} {payload} (QoS {self.qos}{retained}, from {self.client_id!r})"


class NotPublished(AssertionError):
    """Fewer messages than expected were published in time; the text has those that were."""


class Recorder:
    """Keeps the last messages, and wakes who waits for them."""

    def __init__(self, messages_max: int) -> None:
        self._messages: deque[PublishedMessage] = deque(maxlen=messages_max)
        self._recorded = 0  # those that are no longer kept included
        self._clears = 0
        self._behind: MessageLog | None = None
        self._arrived = asyncio.Event()
        self._no_streams = _NoStreams()

    def write_behind(self, log: MessageLog | None) -> None:
        """Let this log have the messages, too."""
        self._behind = log

    def clear(self) -> None:
        """Forget the messages so far."""
        self._messages.clear()
        self._clears += 1

    def published(self, topic_filter: str) -> list[PublishedMessage]:
        """Return the messages that match the Topic Filter, the oldest first."""
        if problem := filter_problem(topic_filter):
            raise ValueError(f"invalid Topic Filter {topic_filter!r}: {problem}")
        return [one for one in self._messages if matches(topic_filter, one.topic)]

    async def wait(self, count: int, topic_filter: str, timeout_s: float) -> list[PublishedMessage]:
        """Return the messages that match when there are `count`; NotPublished if time runs out."""
        most = self._messages.maxlen or 0
        if not 0 < count <= most:
            raise ValueError(f"invalid count {count}: expected 1 to {most:,}, which are recorded")
        try:
            async with asyncio.timeout(timeout_s):
                found, seen, clears = self.published(topic_filter), self._recorded, self._clears
                while len(found) < count:
                    self._arrived.clear()
                    await self._arrived.wait()
                    if clears != self._clears:
                        found, clears = self.published(topic_filter), self._clears
                    else:
                        found += self._latest(self._recorded - seen, topic_filter)
                    seen = self._recorded
        except TimeoutError:
            raise NotPublished(self._shortfall(count, topic_filter, timeout_s)) from None
        return found

    def _latest(self, count: int, topic_filter: str) -> list[PublishedMessage]:
        """Return those that match of the latest `count` messages."""
        latest = list(islice(reversed(self._messages), count))
        return [one for one in reversed(latest) if matches(topic_filter, one.topic)]

    def _shortfall(self, count: int, topic_filter: str, timeout_s: float) -> str:
        found = self.published(topic_filter)
        others = [one for one in self._messages if one not in found]
        wanted = f"{count} message{'s' if count > 1 else ''} to {topic_filter!r}"
        lines = [f"expected {wanted} within {timeout_s:g} s, got {len(found)}", *_shown(found)]
        if others:
            lines += [f"other messages: {len(others)}", *_shown(others)]
        else:
            lines.append("no other messages")
        return "\n".join(lines)

    # The broker's message log.

    @property
    def subscriptions(self) -> StreamSubscriptions:
        return self._no_streams if self._behind is None else self._behind.subscriptions

    def find(self, topic: str) -> TopicWriter | None:
        behind = None if self._behind is None else self._behind.find(topic)
        return behind if topic.startswith("$SYS/") else _Writer(self, behind)

    def record(self, envelope: Envelope, payloads: Sequence[bytes]) -> None:
        about = envelope.decoded()
        self._messages.extend(
            PublishedMessage(
                envelope.topic,
                payload,
                envelope.qos,
                envelope.retain,
                envelope.publisher,
                envelope.expiry_interval if envelope.expiry_interval >= 0 else None,
                about.text(prop.CONTENT_TYPE),
                about.text(prop.RESPONSE_TOPIC),
                about.binary(prop.CORRELATION_DATA),
                tuple(about.user),
            )
            for payload in payloads
        )
        self._recorded += len(payloads)
        self._arrived.set()


def _shown(messages: Sequence[PublishedMessage]) -> list[str]:
    lines = [f"  {one}" for one in messages[-_SHOWN_MAX:]]
    left = len(messages) - len(lines)
    return [f"  ({left} before)", *lines] if left else lines


class _Writer:
    """Records the messages of a topic, and hands them on."""

    def __init__(self, recorder: Recorder, behind: TopicWriter | None) -> None:
        self._recorder = recorder
        self._behind = behind

    def admits(self, envelope: Envelope, payloads: list[bytes]) -> bool:
        return self._behind is None or self._behind.admits(envelope, payloads)

    def append(self, envelope: Envelope, payloads: list[bytes], now: float) -> None:
        self._recorder.record(envelope, payloads)
        if self._behind is not None:
            self._behind.append(envelope, payloads, now)

    def append_run(self, envelope: Envelope, run: Publish, now: float) -> None:
        self._recorder.record(envelope, run.payloads())
        if self._behind is not None:
            self._behind.append_run(envelope, run, now)


class _NoStreams:
    """Refuses every subscription to a stream: this broker has none."""

    def refusal(
        self, session: Session, text: str, start: str | None, *, goes_on: bool
    ) -> Refusal | None:
        return Refusal(TOPIC_FILTER_INVALID, "this broker has no streams")

    def join(
        self, subscription: Subscription, start: str | None, now: float, *, goes_on: bool
    ) -> None: ...

    def begin(self, subscription: Subscription, now: float) -> None: ...

    def leave(self, subscription: Subscription, now: float) -> None: ...

    def on_session(self, session: Session, change: int, now: float) -> None: ...
