"""MQTT clients inside the broker's process: messages go through the core, not through a socket.

`mqtt_broker.testing.Broker` uses them for `publish` and `subscribe`. Each is a client like any
other to the core: it has a link, a client id and a session that ends with it, it is counted
and it is bounded by the same limits. Only `access` is not asked about it (`InProcessAccess`).

    Publisher      publishes, and waits for the acknowledgement
    Subscription   an asynchronous iterator over messages

All of it runs on the broker's event loop. The core writes to the link during a turn; what it
wrote is read in a callback of its own, so that a turn never begins inside another.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from hmac import compare_digest
from types import TracebackType
from typing import Final, Self

from mqtt_broker.client.errors import Unsendable
from mqtt_broker.client.protocol import (
    ClientProtocol,
    Closed,
    Connected,
    Event,
    Published,
    RequestAcknowledged,
)
from mqtt_broker.client.protocol import Message as ReceivedMessage
from mqtt_broker.codec import properties as prop
from mqtt_broker.codec import reasons
from mqtt_broker.codec.constants import V5
from mqtt_broker.codec.errors import Violation
from mqtt_broker.codec.packets import Connect, SubscriptionRequest
from mqtt_broker.codec.properties import NO_PROPERTIES, Properties
from mqtt_broker.codec.strings import decode_utf8
from mqtt_broker.codec.topic_names import decode_topic
from mqtt_broker.core.interfaces.access import Access, Allow, ConnectRequest, Verdict
from mqtt_broker.server.server import Server
from mqtt_broker.topics.names import filter_problem, split_share

PEER: Final = "in-process"  # the address of these clients, in logs and events
RECEIVE_MAXIMUM: Final = 100  # messages of QoS 1 and 2 that wait in a subscription
STRING_BYTES_MAX: Final = 65_535
_EXPIRY_S_MAX: Final = 0xFFFF_FFFF


class InProcessError(Exception):
    """Base class of the errors of `Broker.publish` and `Broker.subscribe`."""


class PublishRefused(InProcessError):
    """The broker refused a message; `reason` is the MQTT 5 reason code."""

    def __init__(self, topic: str, reason: int, why: str = "") -> None:
        super().__init__(f"not published to {topic!r}: {_named(reason, why)}")
        self.topic = topic
        self.reason = reason


class SubscribeRefused(InProcessError):
    """The broker refused a Topic Filter; `reason` is the MQTT 5 reason code."""

    def __init__(self, topic_filter: str, reason: int, why: str = "") -> None:
        super().__init__(f"not subscribed to {topic_filter!r}: {_named(reason, why)}")
        self.filter = topic_filter
        self.reason = reason


class Disconnected(InProcessError):
    """The broker closed the connection, or is not running."""


@dataclass(frozen=True, slots=True)
class Message:
    """A message from a subscription."""

    topic: str
    payload: bytes
    qos: int = 0
    retain: bool = False
    content_type: str | None = None
    response_topic: str | None = None
    correlation_data: bytes | None = None
    user_properties: tuple[tuple[str, str], ...] = ()


class InProcessAccess:
    """An embedder's `Access`, which is not asked about clients of this process.

    They prove themselves by a secret that is drawn anew for each broker, as their password.
    """

    def __init__(self, access: Access) -> None:
        self.secret = secrets.token_bytes(32)
        self._access = access

    @property
    def guards_topics(self) -> bool:
        return self._access.guards_topics

    def connect(self, request: ConnectRequest) -> Verdict:
        if request.peer == PEER and compare_digest(request.password or b"", self.secret):
            return Allow(guard=_OpenGuard())
        return self._access.connect(request)

    def may_publish(self, client_id: str, username: str | None, topic: str) -> bool:
        return self._access.may_publish(client_id, username, topic)

    def may_subscribe(self, client_id: str, username: str | None, text: str, qos: int) -> bool:
        return self._access.may_subscribe(client_id, username, text, qos)


class _OpenGuard:
    """Lets a client of this process publish and subscribe everywhere."""

    is_welcome = True

    def may_publish(self, topic: str) -> bool:
        return True

    def may_subscribe(self, text: str, qos: int) -> bool:
        return True


class _Link:
    """The link that the core writes to; what it wrote waits here until it is read.

    Bytes that wait count as bytes for a slow peer, so the core's limits for those hold.
    """

    def __init__(self, client: _Client) -> None:
        self.peer = PEER
        self.is_closed = False
        self.is_read = True  # the core takes bytes
        self.unread_bytes = 0
        self._client = client
        self._unread: deque[bytes] = deque()

    def write(self, data: bytes) -> int:
        if not self.is_closed:
            self._unread.append(data)
            self.unread_bytes += len(data)
            self._client.schedule()
        return self.unread_bytes

    def close(self) -> None:
        self.is_closed = True
        self._client.schedule()

    def abort(self) -> None:
        self._unread.clear()
        self.unread_bytes = 0
        self.close()

    def pause_reading(self) -> None:
        self.is_read = False

    def resume_reading(self) -> None:
        self.is_read = True
        self._client.schedule()

    def read(self) -> bytes:
        """Take the oldest piece that was written; empty: there is none."""
        if not self._unread:
            return b""
        data = self._unread.popleft()
        self.unread_bytes -= len(data)
        return data


class _Client:
    """A connection to the core. Subclasses act on its events in `_on_event`."""

    def __init__(
        self, server: Server, name: str, password: bytes | None, properties: Properties
    ) -> None:
        self._server = server
        self._protocol = ClientProtocol(
            Connect(
                V5,
                f"{PEER}-{name}-{secrets.token_hex(8)}",
                properties=properties,
                username=None if password is None else PEER,
                password=password,
            )
        )
        self._link = _Link(self)
        self._is_scheduled = False
        self._timer: asyncio.TimerHandle | None = None
        self._ready: asyncio.Future[None] = server.loop.create_future()
        self._error: Disconnected | None = None  # why the connection is over
        self._connection = server.broker.accept(self._link, server.now())
        self.schedule()

    def is_open(self) -> bool:
        """Tell whether the connection is not over. A method: what it calls may close it."""
        return self._error is None

    def schedule(self) -> None:
        """Exchange bytes with the core soon: not now, since it may be in the middle of a turn."""
        if not self._is_scheduled:
            self._is_scheduled = True
            self._server.loop.call_soon(self._exchange)

    async def connected(self) -> None:
        """Wait for CONNACK."""
        await asyncio.shield(self._ready)

    def disconnect(self) -> None:
        """Say DISCONNECT and close."""
        if self.is_open():
            is_left = not self._link.is_closed
            self._protocol.disconnect()
            self._write()
            self._close(Disconnected("this program closed the connection"))
            if is_left:
                self._server.turn.end_now()

    def _wants_more(self) -> bool:
        return self.is_open()

    def _on_event(self, event: Event) -> None:
        raise AssertionError("subclasses handle events")

    def _on_closed(self, error: Disconnected) -> None:
        """Tell everybody who waits that the connection is over."""

    def _exchange(self) -> None:
        """Read what the core wrote, and let the core read what that brought about."""
        self._is_scheduled = False
        if not self.is_open():
            return
        before = self._link.unread_bytes
        while self._wants_more() and (data := self._link.read()):
            for event in self._protocol.receive(data):
                self._take(event)
        if self._link.is_closed:
            if not self._link.unread_bytes:
                self._close(Disconnected("the broker closed the connection"))
            return
        now = self._server.now()
        if self._link.unread_bytes != before:
            self._connection.on_written(self._link.unread_bytes, now)
        self._write()
        self._watch_time(now)
        self._server.turn.end_now()

    def _write(self) -> None:
        if self._link.is_read and not self._link.is_closed:
            now = self._server.now()
            if data := self._protocol.take_output(now):
                self._server.broker.receive(self._connection, data, now)

    def _take(self, event: Event) -> None:
        if isinstance(event, Connected):
            self._ready.set_result(None)
        elif isinstance(event, Closed):
            self._write()
            self._close(Disconnected(event.text))
        else:
            self._on_event(event)

    def _close(self, error: Disconnected) -> None:
        if self.is_open():
            self._error = error
            if self._timer is not None:
                self._timer.cancel()
            if not self._ready.done():
                self._ready.set_exception(error)
                self._ready.exception()  # retrieved: nobody may be waiting for it
            self._on_closed(error)
            if not self._link.is_closed:
                self._connection.lost(self._server.now())

    def _watch_time(self, now: float) -> None:
        """Send PINGREQ in time where the broker asks every client for a keep alive."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        due = self._protocol.next_tick
        if due is not None and self.is_open():
            delay = max(0.0, due - now)
            self._timer = self._server.loop.call_later(delay, self._on_time)

    def _on_time(self) -> None:
        for event in self._protocol.tick(self._server.now()):
            self._take(event)
        self._exchange()


class Publisher(_Client):
    """Publishes the messages of `Broker.publish`, and waits for their acknowledgements."""

    def __init__(self, server: Server, password: bytes | None) -> None:
        super().__init__(server, "publisher", password, NO_PROPERTIES)
        self._handed_over: list[asyncio.Future[None]] = []  # of QoS 0
        self._unacknowledged: set[asyncio.Future[None]] = set()

    async def publish(
        self, topic: str, payload: bytes, qos: int, retain: bool, properties: Properties
    ) -> None:
        """Return when the core has the message (QoS 0), or has acknowledged it."""
        if self._error is not None:  # since `connected` returned
            raise self._error
        done: asyncio.Future[None] = self._server.loop.create_future()
        try:
            self._protocol.publish(topic, payload, qos, retain, properties, done)
        except Unsendable as error:
            raise PublishRefused(topic, error.reason, str(error)) from None
        if qos:
            self._unacknowledged.add(done)
        else:
            self._handed_over.append(done)
        self.schedule()
        await done

    def _write(self) -> None:
        super()._write()
        if not self._protocol.output_bytes and not self._protocol.has_backlog:
            for done in self._handed_over:
                if not done.done():
                    done.set_result(None)
            self._handed_over.clear()

    def _on_event(self, event: Event) -> None:
        assert isinstance(event, Published), "a publisher subscribes to nothing"
        done = event.tag
        assert isinstance(done, asyncio.Future)
        self._unacknowledged.discard(done)
        if done.done():  # its caller was cancelled
            return
        if event.reason >= reasons.UNSPECIFIED_ERROR:
            done.set_exception(PublishRefused(event.topic, event.reason, event.reason_string))
        else:
            done.set_result(None)

    def _on_closed(self, error: Disconnected) -> None:
        for done in (*self._handed_over, *self._unacknowledged):
            if not done.done():
                done.set_exception(error)
        self._handed_over.clear()
        self._unacknowledged.clear()


class _Subscriber(_Client):
    """The connection of one subscription; messages wait in `messages` until they are taken."""

    def __init__(
        self, server: Server, password: bytes | None, filters: tuple[str, ...], qos: int
    ) -> None:
        self.messages: deque[ReceivedMessage] = deque()
        self.arrived = asyncio.Event()
        self._filters = filters
        self._suback: asyncio.Future[None] = server.loop.create_future()
        super().__init__(
            server, "subscriber", password, Properties({prop.RECEIVE_MAXIMUM: RECEIVE_MAXIMUM})
        )
        self._qos = qos

    async def subscribe(self) -> None:
        """Return when every filter is subscribed to."""
        await self.connected()
        if self._error is not None:
            raise self._error
        self._protocol.subscribe([SubscriptionRequest(text, self._qos) for text in self._filters])
        self.schedule()
        await self._suback

    def accept(self, message: ReceivedMessage) -> None:
        """Acknowledge the message."""
        self._protocol.acknowledge(message)
        self.schedule()

    @property
    def error(self) -> Disconnected | None:
        return self._error

    def _wants_more(self) -> bool:
        # Messages may come before SUBACK; then they are all read, to find it.
        return super()._wants_more() and not (self.messages and self._suback.done())

    def _on_event(self, event: Event) -> None:
        if isinstance(event, ReceivedMessage):
            self.messages.append(event)
            self.arrived.set()
        elif isinstance(event, RequestAcknowledged) and not self._suback.done():
            for text, reason in zip(self._filters, event.reasons, strict=True):
                if reason >= reasons.UNSPECIFIED_ERROR:
                    self._suback.set_exception(SubscribeRefused(text, reason, event.reason_string))
                    return
            self._suback.set_result(None)

    def _on_closed(self, error: Disconnected) -> None:
        if not self._suback.done():
            self._suback.set_exception(error)
            self._suback.exception()  # retrieved: nobody may be waiting for it
        self.arrived.set()


class Subscription:
    """Messages of some Topic Filters, from entering its block to leaving it.

        async with broker.subscribe("plant/+/temperature", qos=1) as messages:
            async for message in messages:
                ...

    A message is acknowledged when the next one is asked for, and when the block ends without an
    error: of a shared subscription, what the block did not finish goes to another member. The
    iteration ends when the broker stops. `Disconnected` is raised when the broker disconnects
    this client for another reason, such as taking too little for too long.
    """

    def __init__(
        self, server: Server, password: bytes | None, filters: tuple[str, ...], qos: int
    ) -> None:
        self._server = server
        self._password = password
        self._filters = filters
        self._qos = qos
        self._subscriber: _Subscriber | None = None
        self._current: ReceivedMessage | None = None

    async def __aenter__(self) -> Self:
        if self._subscriber is not None:
            raise RuntimeError("this subscription was entered before: call subscribe() again")
        self._subscriber = _Subscriber(self._server, self._password, self._filters, self._qos)
        try:
            await self._subscriber.subscribe()
        except BaseException:
            self._subscriber.disconnect()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._subscriber is not None
        if error is None:
            self._accept()
        self._subscriber.disconnect()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Message:
        subscriber = self._subscriber
        if subscriber is None:
            raise RuntimeError("enter the subscription first: async with broker.subscribe(...)")
        self._accept()
        while not subscriber.messages:
            if subscriber.error is not None:
                if self._server.broker.clients.is_shutting_down:
                    raise StopAsyncIteration
                raise subscriber.error
            subscriber.arrived.clear()
            subscriber.schedule()
            await subscriber.arrived.wait()
        self._current = found = subscriber.messages.popleft()
        about = found.properties
        return Message(
            found.topic,
            found.payload,
            found.qos,
            found.retain,
            about.text(prop.CONTENT_TYPE),
            about.text(prop.RESPONSE_TOPIC),
            about.binary(prop.CORRELATION_DATA),
            tuple(about.user),
        )

    def _accept(self) -> None:
        if self._current is not None and self._subscriber is not None:
            self._subscriber.accept(self._current)
        self._current = None


def check_qos(qos: int) -> None:
    """Raise ValueError unless this is a QoS."""
    if qos not in (0, 1, 2):
        raise ValueError(f"invalid qos {qos!r}: expected 0, 1 or 2")


def check_topic(topic: str) -> None:
    """Raise ValueError unless messages can be published to this topic."""
    try:
        if not topic:
            raise ValueError("invalid topic '': expected a Topic Name, such as plant/7")
        if len(topic.encode()) > STRING_BYTES_MAX:
            raise ValueError(f"invalid topic: longer than {STRING_BYTES_MAX:,} bytes")
        decode_topic(topic.encode())
    except (Violation, UnicodeEncodeError) as problem:
        raise ValueError(f"invalid topic {topic!r}: {problem}") from None


def check_filters(filters: Iterable[str]) -> None:
    """Raise ValueError unless these are Topic Filters, at least one."""
    found = list(filters)
    if not found:
        raise ValueError("nothing to subscribe to: expected one or more Topic Filters")
    for text in found:
        share = split_share(text)
        problem = filter_problem(text if share is None else share[1])
        try:
            if len(text.encode()) > STRING_BYTES_MAX:
                problem = f"longer than {STRING_BYTES_MAX:,} bytes"
            decode_utf8(text.encode())
        except (Violation, UnicodeEncodeError) as error:
            problem = str(error)
        if problem:
            raise ValueError(f"invalid Topic Filter {text!r}: {problem}")


def message_properties(
    expiry_s: int | None,
    content_type: str | None,
    response_topic: str | None,
    correlation_data: bytes | None,
    user_properties: Iterable[tuple[str, str]],
) -> Properties:
    """The PUBLISH properties of these; ValueError if one is out of range."""
    if expiry_s is not None and not 0 <= expiry_s <= _EXPIRY_S_MAX:
        raise ValueError(f"invalid expiry_s {expiry_s}: expected 0 to {_EXPIRY_S_MAX:,}")
    if response_topic is not None:
        check_topic(response_topic)
    if correlation_data is not None and len(correlation_data) > STRING_BYTES_MAX:
        raise ValueError(f"invalid correlation_data: longer than {STRING_BYTES_MAX:,} bytes")
    pairs = [(str(name), str(value)) for name, value in user_properties]
    for text in (content_type or "", *(text for pair in pairs for text in pair)):
        try:
            decode_utf8(text.encode())
        except (Violation, UnicodeEncodeError) as problem:
            raise ValueError(f"invalid property {text!r}: {problem}") from None
        if len(text.encode()) > STRING_BYTES_MAX:
            raise ValueError(f"invalid property: longer than {STRING_BYTES_MAX:,} bytes")
    values = {
        prop.MESSAGE_EXPIRY_INTERVAL: expiry_s,
        prop.CONTENT_TYPE: content_type,
        prop.RESPONSE_TOPIC: response_topic,
        prop.CORRELATION_DATA: correlation_data,
        prop.USER_PROPERTY: pairs or None,
    }
    found = {key: value for key, value in values.items() if value is not None}
    return Properties(found) if found else NO_PROPERTIES


def _named(reason: int, why: str) -> str:
    text = f"{reasons.name(reason)} (0x{reason:02X})"
    return f"{text}: {why}" if why else text
