"""A broker of a few lines, as a number hosts it: sessions, stored or not, and publishers."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from mqtt_broker.cluster.digest import FLEETING, NOBODY, STORED
from mqtt_broker.cluster.exchange import Batch, Exchange, Limits
from mqtt_broker.cluster.frames.reader import Frame
from mqtt_broker.cluster.node_row import NodeRow
from mqtt_broker.cluster.node_transactions import Writes
from mqtt_broker.cluster.outbox import Parcel
from mqtt_broker.cluster.statements import Delete, Put, Select, Statement, Transaction
from mqtt_broker.cluster.tables import GROUPS
from mqtt_broker.topics.names import matches

QUEUES: Final = "queues"  # messages of stored sessions, which take none
SUBSCRIPTIONS: Final = "subscriptions"
SEEN: Final = "seen"  # the last QoS 2 message of each publisher
KEYS: Final[dict[str, tuple[str, ...]]] = {
    QUEUES: ("number", "session", "place"),
    SUBSCRIPTIONS: ("number", "session", "filter"),
    SEEN: ("number", "publisher"),
}

REMOVED_MAX: Final = 2  # rows of filters that are gone: a world has few filters

Reply = Callable[[], None]
SendFrame = Callable[[str, int, int, bytes], bool]  # from an epoch: the kind, to whom, the body
Subscriptions = dict[tuple[str, str], int]  # (session, filter): QoS


class Message:
    """A PUBLISH. What a publisher sends are 1, 2, 3 and so on, on a topic each."""

    __slots__ = ("publisher", "qos", "topic", "value")

    def __init__(self, publisher: str, value: int, topic: str, qos: int) -> None:
        self.publisher = publisher
        self.value = value
        self.topic = topic
        self.qos = qos

    @property
    def key(self) -> tuple[str, int]:
        return self.publisher, self.value

    def fields(self) -> list[Any]:
        return [self.publisher, self.value, self.topic, self.qos]

    def encode(self) -> bytes:
        return json.dumps(self.fields()).encode()


class State:
    """The state of a number, as its records make it."""

    def __init__(self) -> None:
        self.subscriptions: Subscriptions = {}
        self.queues: dict[str, list[Message]] = {}
        self.seen: dict[str, int] = {}

    def apply(self, record: list[Any]) -> None:
        kind, *fields = record
        if kind == "subscribe":
            session, text, qos = fields
            self.subscriptions[session, text] = qos
        elif kind == "unsubscribe":
            session, text = fields
            self.subscriptions.pop((session, text), None)
        else:
            message = Message(*fields)
            if kind == "publish" and message.qos == 2:
                self.seen[message.publisher] = message.value
            self._queue(message)

    def _queue(self, message: Message) -> None:
        found = {session for session, text in self.subscriptions if matches(text, message.topic)}
        for session in sorted(found):
            self.queues.setdefault(session, []).append(message)


class Core:
    """The content of a number: it gathers what clients ask, and replies when it is committed."""

    errands = None
    exchange: Exchange  # under the epoch that it is loaded with

    def __init__(self, number: int, send: SendFrame) -> None:
        self.number = number
        self._send = send
        self.is_served = False
        self.state = State()
        self._subscriptions: Subscriptions = {}  # with those of the batch
        self.filters: set[str] = set()  # that the others are to know
        self.visits = Visits()
        self._arrived: list[tuple[list[Any], Reply]] = []  # records, as they came
        self._batch: Batch | None = None
        self._records: list[list[Any]] = []  # of the batch; what it received comes first
        self._received = 0  # records of the batch, and messages that it passes on
        self._passed: list[Message] = []  # of the batch: for whom it may concern
        self._replies: list[Reply] = []  # of the batch
        self._subacks: list[Reply] = []  # of the batch
        self._pending: dict[tuple[str, int], list[Reply]] = {}  # QoS 2 that came twice
        self._folded = State()
        self._folding = State()

    def make_exchange(self, epoch: str) -> Exchange:
        return Exchange(self.number, epoch, partial(self._send, epoch), Limits(REMOVED_MAX))

    # What a host asks of it.

    def fold_earlier(self, writes: Writes, row: NodeRow) -> Transaction[None] | None:
        return None

    def load(self, row: NodeRow) -> Transaction[None]:
        self.exchange = self.make_exchange(row.epoch)
        where = {"number": self.number}
        found = yield [
            Select(SUBSCRIPTIONS, where),
            Select(QUEUES, where),
            Select(SEEN, where),
            Select(GROUPS, where, above=("group", row.folded)),
        ]
        for state in (self.state, self._folded):
            state.__init__()  # type: ignore[misc]
            for one in found[0]:
                state.subscriptions[one["session"], one["filter"]] = one["qos"]
            for one in found[1]:
                queue = state.queues.setdefault(one["session"], [])
                queue += (Message(*fields) for fields in one["messages"])
            for one in found[2]:
                state.seen[one["publisher"]] = one["value"]
        for group in found[3]:
            for record in json.loads(group["blob"] or b"[]"):
                self.state.apply(record)
        yield from self.exchange.load()

    def on_loaded(self) -> None:
        self._subscriptions = dict(self.state.subscriptions)
        for text in {text for _, text in self._subscriptions}:
            self._set_filter(text)
        self.is_served = True

    def on_stopped(self) -> None:
        self.is_served = False
        self.visits = Visits()
        self._replies.clear()
        self._subacks.clear()
        self._pending.clear()

    def pack(self, group: int) -> bytes | None:
        if self._batch is None:
            self._make_batch()
        batch = self._batch
        if batch is None:
            return None
        self.exchange.route(batch)
        if self.exchange.is_group(batch):
            return batch.blob
        if batch.has_read:
            self._finish()
        return None

    def _make_batch(self) -> None:
        arrived, self._arrived = self._arrived, []
        received = self.exchange.inbox.take()
        records: list[list[Any]] = []
        for parcel in received:
            self.examine_parcel(parcel)
            fields = [json.loads(message) for message in parcel.messages]
            self._passed += (Message(*one) for one in fields)
            records += (["receive", *one] for one in fields)
        self._received = len(records)
        messages: list[tuple[str, bytes]] = []
        for record, reply in arrived:
            has_suback = record[0] in ("subscribe", "visit")
            (self._subacks if has_suback else self._replies).append(reply)
            if record[0] == "publish":
                message = Message(*record[1:])
                self._passed.append(message)
                messages.append((message.topic, message.encode()))
            if self._is_recorded(record):
                records.append(record)
        if arrived or received or self.exchange.filters.has_changed:
            self._records = records
            self._batch = Batch(self._blob(), messages, received)

    def _blob(self) -> bytes:
        return json.dumps(self._records).encode() if self._records else b""

    def examine_parcel(self, parcel: Parcel) -> None:
        """Let an oracle see what is received."""

    def _is_recorded(self, record: list[Any]) -> bool:
        if record[0] == "subscribe":
            self._subscriptions[record[1], record[2]] = record[3]
            self._set_filter(record[2])
        elif record[0] == "unsubscribe":
            self._subscriptions.pop((record[1], record[2]), None)
            self._set_filter(record[2])
        elif record[0] in ("visit", "leave"):
            self._set_filter(record[2])
            return False
        else:
            message = Message(*record[1:])
            is_here = any(matches(text, message.topic) for _, text in self._subscriptions)
            return message.qos == 2 or is_here
        return True

    def _set_filter(self, text: str) -> None:
        is_stored = any(text == one for _, one in self._subscriptions)
        reach = STORED * is_stored | FLEETING * (text in self.visits.filters) | NOBODY
        (self.filters.discard if reach == NOBODY else self.filters.add)(text)
        self.exchange.filters.set(text, reach)

    def commit(self, writes: Writes, group: int, blob: bytes) -> Transaction[object]:
        assert self._batch is not None
        if self._batch.is_stale:
            del self._records[: self._received], self._passed[: self._received]
            self._batch.set_blob(self._blob())
        return self.exchange.commit(writes, group, self._batch)

    def read(self, now: float) -> Transaction[object] | None:
        self.exchange.tell(now)
        return self.exchange.read(self._batch, now)

    def on_committed(self, group: int) -> None:
        assert self._batch is not None
        self.exchange.on_committed(group, self._batch)
        for record in self._records:
            self.state.apply(record)
        self._finish()

    def _finish(self) -> None:
        """Pass on the messages of the batch, and reply to everybody."""
        passed, self._passed = self._passed, []
        for message in passed:
            self.visits.deliver(message)
        subacks, self._subacks = self._subacks, []
        for reply in subacks:
            self.exchange.peers.when_known(self.exchange.filters.version, reply)
        replies, self._replies = self._replies, []
        for record in self._records:
            if record[0] == "publish" and record[4] == 2:
                replies += self._pending.pop((record[1], record[2]))
        self._batch = None
        self._records = []
        for reply in replies:
            reply()

    def on_frame(self, frame: Frame, now: float) -> None:
        """Take a frame; messages at QoS 0 go to those who are connected."""
        for entry in self.exchange.on_frame(frame, now):
            self.visits.deliver(Message(*json.loads(entry)))
        self.exchange.peers.answer(now)

    def fold(self, group: int) -> list[Statement]:
        changes: list[Statement] = []
        was, now = self._folded, self.state
        for session, text in sorted(was.subscriptions.keys() | now.subscriptions.keys()):
            row = {"number": self.number, "session": session, "filter": text}
            if (session, text) not in now.subscriptions:
                changes.append(Delete(SUBSCRIPTIONS, row))
            elif (session, text) not in was.subscriptions:
                changes.append(Put(SUBSCRIPTIONS, {**row, "qos": now.subscriptions[session, text]}))
        for session, queue in sorted(now.queues.items()):
            place = len(was.queues.get(session, ()))
            if place < len(queue):
                row = {"number": self.number, "session": session, "place": place}
                fields = [message.fields() for message in queue[place:]]
                changes.append(Put(QUEUES, {**row, "messages": fields}))
        for publisher, value in sorted(now.seen.items()):
            if was.seen.get(publisher) != value:
                row = {"number": self.number, "publisher": publisher}
                changes.append(Put(SEEN, {**row, "value": value}))
        self._folding = State()
        self._folding.subscriptions = dict(now.subscriptions)
        self._folding.queues = {name: list(queue) for name, queue in now.queues.items()}
        self._folding.seen = dict(now.seen)
        return changes

    def on_folded(self, group: int) -> None:
        self._folded = self._folding

    # What clients ask.

    def subscribe(self, session: str, text: str, reply: Reply) -> None:
        self._arrived.append((["subscribe", session, text, 2], reply))

    def unsubscribe(self, session: str, text: str, reply: Reply) -> None:
        self._arrived.append((["unsubscribe", session, text], reply))

    def visit(
        self, client: str, text: str, receive: Callable[[Message], None], reply: Reply
    ) -> None:
        """Subscribe without a stored session."""
        self.visits.add(text, client, receive)
        self._arrived.append((["visit", client, text], reply))

    def leave(self, client: str, text: str, reply: Reply) -> None:
        """End a subscription of a client without a stored session."""
        self.visits.remove(text, client)
        self._arrived.append((["leave", client, text], reply))

    def publish(self, message: Message, reply: Reply) -> None:
        """Take a PUBLISH; one of QoS 2 that was here before is only acknowledged."""
        if message.qos == 0:
            self.visits.deliver(message)
            self.exchange.publish(message.topic, message.encode())
            self.exchange.flush()
            reply()
            return
        if message.qos == 2:
            if message.value <= self.state.seen.get(message.publisher, 0):
                reply()
                return
            replies = self._pending.setdefault((message.publisher, message.value), [])
            replies.append(reply)
            if len(replies) > 1:
                return
            reply = _nothing
        self._arrived.append((["publish", *message.fields()], reply))


class Visits:
    """Clients whose sessions are not stored, by what they subscribe to."""

    def __init__(self) -> None:
        self._clients: dict[str, dict[str, Callable[[Message], None]]] = {}  # by filter, by client

    def add(self, text: str, client: str, receive: Callable[[Message], None]) -> None:
        self._clients.setdefault(text, {})[client] = receive

    def remove(self, text: str, client: str) -> None:
        found = self._clients.get(text, {})
        found.pop(client, None)
        if not found:
            self._clients.pop(text, None)

    @property
    def filters(self) -> set[str]:
        return set(self._clients)

    def of(self, client: str) -> list[str]:
        return [text for text, found in self._clients.items() if client in found]

    def deliver(self, message: Message) -> None:
        """Give a message to everybody who subscribes to its topic, once."""
        receivers: dict[str, Callable[[Message], None]] = {}
        for text, found in self._clients.items():
            if matches(text, message.topic):
                receivers.update(found)
        for client in sorted(receivers):
            receivers[client](message)


def _nothing() -> None:
    """Leave it to the replies of all that sent it."""
