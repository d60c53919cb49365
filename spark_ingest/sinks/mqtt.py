"""Results as MQTT messages: alerts that come back to the broker.

    mqtt://[user:password@]host[:1883]?topic=alerts/{device}&output=alerts&expiry=1h&qos=1

A row is a message: its topic is made of its columns, its payload is the row as JSON. Messages are
retained (`retain=false`: they are not) and expire, so later subscribers see what is
current and nothing stale. Each has the user property `id`, made of the row's keys alone: a batch
that is repeated after a crash publishes the same messages with the same ids and payloads, which
replace themselves where they are retained, and can be told apart where they are not.

A message that cannot be sent (its topic, or all of it, is too long for MQTT or for the broker) is
a dead letter: a message with the reason to `dead_letters=TOPIC` (`dead_letters/<output>`), which is
not retained.

A batch is done when every message is acknowledged. While the broker is away the sink waits and
tries again for `timeout` (1m); then the batch fails, and Spark repeats it at the next start.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final
from urllib.parse import parse_qsl

import pyarrow as pa

from mqtt_broker.client.blocking import Address, Client, tls_context
from mqtt_broker.client.errors import ClientError, Unsendable
from mqtt_broker.client.protocol import Closed, Event, Published, describe_reason
from mqtt_broker.client.url import InvalidUrl, parse_url
from mqtt_broker.codec import properties as prop
from mqtt_broker.codec import reasons
from mqtt_broker.codec.constants import V5
from mqtt_broker.codec.packets import Connect
from mqtt_broker.codec.properties import Properties
from mqtt_broker.topics.names import name_problem
from spark_ingest.contract.job import Output, duration
from spark_ingest.contract.sink import Batch, SinkError
from spark_ingest.sinks.dead_letters import dead_letter, rows_of

ID: Final = "id"
TOPIC_DEFAULT: Final = "alerts/{device}"
OUTPUT_DEFAULT: Final = "alerts"
_FIELD: Final = re.compile(r"\{(\w+)\}")
_KEYS: Final = (
    "topic", "output", "qos", "retain", "expiry", "timeout", "client_id", "cafile", "dead_letters",
)  # fmt: skip
# Not allowed in a level: wildcards, slashes, control characters, non-characters [MQTT-1.5.4-2].
_NO_LEVEL: Final = re.compile(
    "[+#/\x00-\x1f\x7f-\x9f\ud800-\udfff\ufdd0-\ufdef"
    + "".join(f"{chr(plane << 16 | 0xFFFE)}{chr(plane << 16 | 0xFFFF)}" for plane in range(17))
    + "]"
)
_BACKOFF_S: Final = 0.2
_CONNECT_S: Final = 5.0
KEEP_ALIVE_S: Final = 30
_CHUNK: Final = 500  # messages under way at a time


@dataclass(frozen=True, slots=True)
class Target:
    host: str
    port: int
    is_tls: bool = False
    username: str | None = None
    password: str | None = None
    cafile: str | None = None
    client_id: str = ""
    topic: str = TOPIC_DEFAULT
    output: str = OUTPUT_DEFAULT
    qos: int = 1
    retain: bool = True
    expiry_s: int = 3_600
    timeout_s: float = 60.0
    dead_letters: str = ""


def parse(url: str) -> Target:
    """Read the sink's URL. Raises SinkError."""
    try:
        broker = parse_url(url, ("mqtt", "mqtts"), "?topic=...")
    except InvalidUrl as error:
        raise SinkError(f"mqtt sink: {error}") from None
    given = dict(parse_qsl(broker.rest.partition("?")[2], keep_blank_values=True))
    for key in given:
        if key not in _KEYS:
            raise SinkError(f"mqtt sink: unknown option {key!r}; there are {', '.join(_KEYS)}")
    qos, retain = given.get("qos", "1"), given.get("retain", "true")
    if qos not in ("1", "2"):
        raise SinkError(f"mqtt sink: qos is 1 or 2, which are acknowledged, not {qos!r}")
    if retain not in ("true", "false"):
        raise SinkError(f"mqtt sink: retain is true or false, not {retain!r}")
    topic = given.get("topic", TOPIC_DEFAULT)
    output = given.get("output", OUTPUT_DEFAULT)
    dead_letters = given.get("dead_letters", f"dead_letters/{output}")
    for one in (topic, dead_letters):
        if problem := name_problem(one):
            raise SinkError(f"mqtt sink: topic {one!r}: {problem}")
    try:
        expiry_s = duration(given.get("expiry", "1h")) // 1_000_000
        timeout_s = duration(given.get("timeout", "1m")) / 1e6
    except ValueError as error:
        raise SinkError(f"mqtt sink: {error}") from None
    return Target(
        broker.host,
        broker.port,
        is_tls=broker.is_tls,
        username=broker.username,
        password=broker.password,
        cafile=given.get("cafile"),
        client_id=given.get("client_id", ""),
        topic=topic,
        output=output,
        qos=int(qos),
        retain=retain == "true",
        expiry_s=expiry_s,
        timeout_s=timeout_s,
        dead_letters=dead_letters,
    )


@dataclass(frozen=True, slots=True)
class Message:
    topic: str
    payload: bytes
    id: str
    row: Mapping[str, Any]


def messages(rows: pa.Table, output: Output, topic: str) -> list[Message]:
    """Return a message for each row. The same row always gives the same topic, id and payload."""
    wanted = _FIELD.findall(topic)
    if missing := [name for name in wanted if name not in rows.column_names]:
        raise SinkError(f"mqtt sink: output {output.name!r} has no {missing[0]!r} for the topic")
    found = []
    for row in rows_of(rows):
        keys = json.dumps([_plain(row[name]) for name in output.keys])
        plain = {name: _plain(value) for name, value in row.items()}
        said = {name: value for name, value in plain.items() if value is not None}
        found.append(
            Message(
                _filled(topic, row),
                json.dumps(said, ensure_ascii=False, separators=(",", ":")).encode(),
                hashlib.sha256(f"{output.name}{keys}".encode()).hexdigest()[:32],
                row,
            )
        )
    return found


def _filled(topic: str, row: Mapping[str, Any]) -> str:
    return _FIELD.sub(lambda match: _level(row[match[1]]), topic)


def _level(value: object) -> str:
    """Make a value one level of a topic.

    Wildcards, slashes and characters that brokers may close a connection for are replaced.
    """
    return _NO_LEVEL.sub("_", str(_plain(value)))


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat().replace("+00:00", "Z")
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, float) and not math.isfinite(value):
        return None  # JSON has none
    return value


class MqttSink:
    """Publishes one output of each batch; its connection stays open between batches."""

    def __init__(self, target: Target) -> None:
        self._target = target
        tls = None
        if target.is_tls:
            try:
                tls = tls_context(target.cafile)
            except OSError as error:
                raise SinkError(f"mqtt sink: cafile {target.cafile}: {error}") from None
        self._address = Address(target.host, target.port, tls=tls)
        self.client: Client | None = None
        self._lock = threading.Lock()  # of the client, between batches and pings
        self._closing = threading.Event()
        self._pinging: threading.Thread | None = None

    def write(self, batch: Batch) -> None:
        target = self._target
        output = next((one for one in batch.outputs if one.name == target.output), None)
        if output is None:
            known = ", ".join(one.name for one in batch.outputs)
            raise SinkError(
                f"mqtt sink: {batch.job} has no output {target.output!r} (output=...): {known}"
            )
        told = messages(batch.tables[output.name], output, target.topic)
        with self._lock:
            for at in range(0, len(told), _CHUNK):
                if dead := self._publish(told[at : at + _CHUNK], output):
                    batch.dead_letters += dead

    def close(self) -> None:
        self._closing.set()
        if self._pinging is not None:
            self._pinging.join()
        with self._lock:
            self._disconnect()

    def _publish(self, told: list[Message], output: Output) -> int:
        """Publish messages until all are acknowledged; return how many became dead letters.

        Those that a lost connection left open are sent again.
        """
        chunk = _Chunk(self._target, output, dict(enumerate(told)))
        until = time.monotonic() + self._target.timeout_s
        try:
            while chunk.waiting:
                client = self._connect(until)
                chunk.send(client)
                self._wait(client, chunk, until)
        except BaseException:
            self._disconnect()  # with what is still under way
            raise
        return len(chunk.dead_letters)

    def _wait(self, client: Client, chunk: _Chunk, until: float) -> None:
        """Wait until every message is acknowledged, or the connection is lost."""
        while chunk.waiting:
            left_s = until - time.monotonic()
            if left_s <= 0:
                raise SinkError(
                    f"mqtt sink: {self._address} did not acknowledge {len(chunk.waiting)} messages"
                    f" within {self._target.timeout_s:g} s"
                )
            for event in client.step(left_s)[0]:
                if isinstance(event, Published):
                    chunk.on_published(client, event)
                elif isinstance(event, Closed):
                    self._disconnect()
                    time.sleep(_BACKOFF_S)
                    return

    # The connection.

    def _connect(self, until: float) -> Client:
        """Return a client that is connected, and try again until then. Raises SinkError."""
        while self.client is None:
            left_s = max(_BACKOFF_S, until - time.monotonic())
            try:
                self.client = self._open(min(_CONNECT_S, left_s))
            except ClientError as error:
                if time.monotonic() >= until:
                    raise SinkError(f"mqtt sink: {self._address}: {error}") from None
                time.sleep(_BACKOFF_S)
        if self._pinging is None:
            self._pinging = threading.Thread(target=self._ping, name="mqtt sink", daemon=True)
            self._pinging.start()
        return self.client

    def _open(self, timeout_s: float) -> Client:
        target = self._target
        connect = Connect(
            V5,
            target.client_id,
            keep_alive=KEEP_ALIVE_S,
            username=target.username,
            password=None if target.password is None else target.password.encode(),
        )
        client = Client(self._address, connect, connect_timeout_s=timeout_s)
        try:
            while not client.protocol.connected:
                _raise_closed(client.step()[0], self._address)
        except BaseException:
            client.close()
            raise
        return client

    def _ping(self) -> None:
        """Keep the connection alive while no batch is written, and notice that it is lost."""
        while not self._closing.wait(KEEP_ALIVE_S / 3):
            with self._lock:
                if self.client is not None:
                    events, _ = self.client.step(0.0)
                    self.client.flush()
                    if any(isinstance(event, Closed) for event in events):
                        self._disconnect()

    def _disconnect(self) -> None:
        client, self.client = self.client, None
        if client is not None:
            client.close()


class _Chunk:
    """Messages under way together, by their place; the dead letters in place of some."""

    def __init__(self, target: Target, output: Output, waiting: dict[int, Message]) -> None:
        self.waiting = waiting
        self.dead_letters: dict[int, Message] = {}
        self._target = target
        self._output = output

    def send(self, client: Client) -> None:
        """Send what is not acknowledged."""
        for place in self.waiting:
            self._send(client, place)

    def on_published(self, client: Client, event: Published) -> None:
        """Take an acknowledgement; a message that the broker refuses becomes a dead letter."""
        place = event.tag
        assert isinstance(place, int)
        if event.reason >= reasons.UNSPECIFIED_ERROR:
            self._dead_letter(place, describe_reason(event.reason, event.reason_string))
            self._send(client, place)
        else:
            del self.waiting[place]

    def _send(self, client: Client, place: int) -> None:
        if problem := self._publish(client, place):
            self._dead_letter(place, problem)
            self._send(client, place)

    def _publish(self, client: Client, place: int) -> str:
        """Queue a message, or its dead letter; return why it cannot be sent."""
        target = self._target
        one = self.dead_letters.get(place) or self.waiting[place]
        if problem := name_problem(one.topic):
            return problem
        properties = Properties({prop.CONTENT_TYPE: "application/json"})
        properties[prop.USER_PROPERTY] = [(ID, one.id)]
        if target.expiry_s:
            properties[prop.MESSAGE_EXPIRY_INTERVAL] = target.expiry_s
        is_retained = target.retain and one.topic != target.dead_letters
        try:
            client.protocol.publish(
                one.topic, one.payload, target.qos, is_retained, properties, place
            )
        except Unsendable as error:
            return str(error)
        return ""

    def _dead_letter(self, place: int, reason: str) -> None:
        """Put a dead letter in a message's place. Raises SinkError if it was one."""
        topic = self._target.dead_letters
        if place in self.dead_letters:
            raise SinkError(f"mqtt sink: dead letter to {topic!r} cannot be published: {reason}")
        one = self.waiting[place]
        letter = dead_letter(self._output, one.row, reason)._asdict()
        self.dead_letters[place] = Message(topic, json.dumps(letter).encode(), one.id, {})


def _raise_closed(events: list[Event], address: Address) -> None:
    """Raise SinkError if the broker refused the connection, ClientError if it was lost."""
    for event in events:
        if isinstance(event, Closed):
            if event.by_broker:
                raise SinkError(f"mqtt sink: {address}: {event.text}")
            raise ClientError(event.text)


def open_sink(url: str, prefix: str) -> MqttSink:
    return MqttSink(parse(url))
