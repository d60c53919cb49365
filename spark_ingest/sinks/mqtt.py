"""Results as MQTT messages: alerts that come back to the broker.

    mqtt://[user:password@]host[:1883]?topic=alerts/{device}&output=alerts&expiry=1h&qos=1

A row is a message: its topic is made of its columns, its payload is the row as JSON. Messages are
retained (`retain=false`: they are not) and expire, so whoever subscribes later sees what is
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
import ssl
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final
from urllib.parse import parse_qsl, unquote, urlsplit

import pyarrow as pa
from paho.mqtt.client import Client, MQTTMessageInfo
from paho.mqtt.enums import CallbackAPIVersion, MQTTErrorCode, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode

from spark_ingest.contract.job import Output, duration
from spark_ingest.contract.sink import Batch, SinkError
from spark_ingest.sinks.dead_letters import dead_letter, rows_of

ID: Final = "id"
TOPIC_DEFAULT: Final = "alerts/{device}"
OUTPUT_DEFAULT: Final = "alerts"
_PORTS: Final = {"mqtt": 1883, "mqtts": 8883}
_FIELD: Final = re.compile(r"\{(\w+)\}")
_KEYS: Final = (
    "topic", "output", "qos", "retain", "expiry", "timeout", "client_id", "cafile", "dead_letters",
)  # fmt: skip
# What a PUBLISH has beside topic and payload, with room to spare.
_OVERHEAD_BYTES: Final = 128
_TOPIC_BYTES_MAX: Final = 65_535
_PACKET_BYTES_MAX: Final = 268_435_455
# Wildcards and levels; control characters and those that are none [MQTT-1.5.4-2].
_NO_LEVEL: Final = re.compile(
    "[+#/\x00-\x1f\x7f-\x9f\ud800-\udfff\ufdd0-\ufdef"
    + "".join(f"{chr(plane << 16 | 0xFFFE)}{chr(plane << 16 | 0xFFFF)}" for plane in range(17))
    + "]"
)
_BACKOFF_S: Final = 0.2
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
    parts = urlsplit(url)
    given = dict(parse_qsl(parts.query, keep_blank_values=True))
    for key in given:
        if key not in _KEYS:
            raise SinkError(f"mqtt sink: {key!r} is none of {', '.join(_KEYS)}")
    try:
        port = parts.port
    except ValueError:
        raise SinkError(f"mqtt sink: {parts.netloc.rpartition('@')[2]!r} has no port") from None
    if not parts.hostname:
        raise SinkError("mqtt sink: the URL has no host")
    qos, retain = given.get("qos", "1"), given.get("retain", "true")
    if qos not in ("1", "2"):
        raise SinkError(f"mqtt sink: qos {qos!r} is neither 1 nor 2, which are acknowledged")
    if retain not in ("true", "false"):
        raise SinkError(f"mqtt sink: retain {retain!r} is neither true nor false")
    topic = given.get("topic", TOPIC_DEFAULT)
    output = given.get("output", OUTPUT_DEFAULT)
    dead_letters = given.get("dead_letters", f"dead_letters/{output}")
    for one in (topic, dead_letters):
        if not one or "+" in one or "#" in one:
            raise SinkError(f"mqtt sink: topic {one!r} cannot be published to")
    try:
        expiry_s = duration(given.get("expiry", "1h")) // 1_000_000
        timeout_s = duration(given.get("timeout", "1m")) / 1e6
    except ValueError as error:
        raise SinkError(f"mqtt sink: {error}") from None
    return Target(
        parts.hostname,
        port or _PORTS[parts.scheme],
        is_tls=parts.scheme == "mqtts",
        username=None if parts.username is None else unquote(parts.username),
        password=None if parts.password is None else unquote(parts.password),
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

    @property
    def size(self) -> int:
        return len(self.topic.encode()) + len(self.payload) + _OVERHEAD_BYTES


def messages(rows: pa.Table, output: Output, topic: str) -> list[Message]:
    """Of rows: what they are called and what they say depends on nothing else."""
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
    """A value as a level of a topic: what would be a wildcard, another level, or a letter that
    brokers may close a connection for, is not."""
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
    def __init__(self, target: Target) -> None:
        self._target = target
        self._client: Client | None = None
        self._connected = threading.Event()
        self._refused = ""
        self._packet_bytes_max = _PACKET_BYTES_MAX  # of the broker

    def write(self, batch: Batch) -> None:
        target = self._target
        output = next((one for one in batch.outputs if one.name == target.output), None)
        if output is None:
            known = ", ".join(one.name for one in batch.outputs)
            raise SinkError(
                f"mqtt sink: {batch.job} has no output {target.output!r} (output=...): {known}"
            )
        told = messages(batch.tables[output.name], output, target.topic)
        for at in range(0, len(told), _CHUNK):
            if dead := self._publish(told[at : at + _CHUNK], output):
                batch.dead_letters += dead

    def _publish(self, told: list[Message], output: Output) -> int:
        """All of them acknowledged; how many as dead letters.

        Those that a lost connection left open are sent again.
        """
        until = time.monotonic() + self._target.timeout_s
        waiting = told
        dead: dict[str, Message] = {}
        while waiting:
            client = self._connect(until)
            for one in waiting:
                if one.id not in dead and (reason := self._trouble(one)):
                    dead[one.id] = self._buried(one, output, reason)
            under_way = [(one, self._send(client, dead.get(one.id, one))) for one in waiting]
            waiting = []
            for one, info in under_way:
                if info.rc != MQTTErrorCode.MQTT_ERR_SUCCESS or not self._is_done(info, until):
                    waiting.append(one)
            if waiting:
                self._disconnect()
                if time.monotonic() >= until:
                    raise SinkError(
                        f"mqtt sink: {self._where} did not acknowledge {len(waiting)} messages"
                        f" within {self._target.timeout_s:g} s"
                    )
        return len(dead)

    def _trouble(self, one: Message) -> str:
        """Why this message cannot be sent; nothing, if it can."""
        if len(one.topic.encode()) > _TOPIC_BYTES_MAX:
            return f"a topic of more than {_TOPIC_BYTES_MAX:,} bytes"
        if not one.topic:
            return "no topic"
        if one.size > self._packet_bytes_max:
            return f"more than the {self._packet_bytes_max:,} bytes that the broker takes"
        return ""

    def _buried(self, one: Message, output: Output, reason: str) -> Message:
        letter = dead_letter(output, one.row, reason)._asdict()
        return Message(self._target.dead_letters, json.dumps(letter).encode(), one.id, {})

    def _is_done(self, info: MQTTMessageInfo, until: float) -> bool:
        while not info.is_published():
            left = until - time.monotonic()
            if left <= 0 or not self._connected.is_set():
                return False
            info.wait_for_publish(min(left, _BACKOFF_S))
        return True

    def _send(self, client: Client, one: Message) -> MQTTMessageInfo:
        target = self._target
        properties = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]
        properties.ContentType = "application/json"
        properties.UserProperty = [(ID, one.id)]
        if target.expiry_s:
            properties.MessageExpiryInterval = target.expiry_s
        is_retained = target.retain and one.topic != target.dead_letters
        return client.publish(one.topic, one.payload, target.qos, is_retained, properties)

    @property
    def _where(self) -> str:
        return f"{self._target.host}:{self._target.port}"

    def _connect(self, until: float) -> Client:
        """A client that is connected. Tries again until then."""
        why = ""
        while True:
            if self._client is not None and self._connected.is_set():
                return self._client
            self._disconnect()
            try:
                self._client = client = self._make_client()
                client.connect(self._target.host, self._target.port, keepalive=30)
                client.loop_start()
                if self._connected.wait(min(5.0, max(0.0, until - time.monotonic()))):
                    return client
                why = self._refused or "no CONNACK"
            except OSError as error:
                why = str(error)
            if self._refused or time.monotonic() >= until:
                raise SinkError(f"mqtt sink: {self._where}: {why}")
            time.sleep(_BACKOFF_S)

    def _make_client(self) -> Client:
        target = self._target
        client = Client(
            CallbackAPIVersion.VERSION2, target.client_id, protocol=MQTTProtocolVersion.MQTTv5
        )
        client.max_inflight_messages_set(_CHUNK)
        if target.username is not None:
            client.username_pw_set(target.username, target.password)
        if target.is_tls:
            client.tls_set_context(ssl.create_default_context(cafile=target.cafile))
        client.on_connect = self._on_connect
        client.on_disconnect = self._on_disconnect
        return client

    def _on_connect(
        self, client: Client, data: Any, flags: Any, reason: ReasonCode, properties: Any
    ) -> None:
        if reason.is_failure:
            self._refused = str(reason)
        else:
            self._refused = ""
            said = getattr(properties, "MaximumPacketSize", _PACKET_BYTES_MAX)
            self._packet_bytes_max = min(said, _PACKET_BYTES_MAX)
            self._connected.set()

    def _on_disconnect(self, client: Client, *_: Any) -> None:
        if client is self._client:
            self._connected.clear()

    def _disconnect(self) -> None:
        client, self._client = self._client, None
        self._connected.clear()
        if client is not None:
            client.disconnect()
            client.loop_stop()

    def close(self) -> None:
        self._disconnect()


def open_sink(url: str, prefix: str) -> MqttSink:
    return MqttSink(parse(url))
