"""A paho client whose callbacks fill queues, so that a test reads from top to bottom.

    with Paho(broker, "one") as one:
        one.subscribe("a/#", qos=1)
        one.publish("a/b", b"x", qos=1)
        assert one.receive().payload == b"x"

Every call waits until the broker has answered; nothing here waits longer than `PATIENCE_S`.
"""

from __future__ import annotations

import queue
import socket
from types import TracebackType
from typing import Any, Final, NamedTuple, Self

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode
from paho.mqtt.subscribeoptions import SubscribeOptions

from mqtt_broker.testing import ThreadedBroker

V31: Final = MQTTProtocolVersion.MQTTv31
V311: Final = MQTTProtocolVersion.MQTTv311
V5: Final = MQTTProtocolVersion.MQTTv5
PATIENCE_S: Final = 120.0
EVER: Final = 0xFFFFFFFF


class Will(NamedTuple):
    topic: str
    payload: bytes
    qos: int = 0
    retain: bool = False
    delay_s: int = 0


def _properties(packet_type: int) -> Any:
    return Properties(packet_type)  # type: ignore[no-untyped-call]


def properties(message: paho.MQTTMessage) -> Any:
    """With an attribute for each property the message has; paho's own type names none."""
    assert message.properties is not None
    return message.properties


class Paho:
    """One connection, from `__enter__` to the end of the block."""

    def __init__(
        self,
        broker: ThreadedBroker,
        client_id: str,
        version: MQTTProtocolVersion = V5,
        *,
        stays: bool = False,
        will: Will | None = None,
        keep_alive: int = 60,
        **properties: Any,
    ) -> None:
        """`stays`: resume the session, and keep it afterwards."""
        self.version = version
        self.messages: queue.Queue[paho.MQTTMessage] = queue.Queue()
        self.ended: queue.Queue[ReasonCode] = queue.Queue()
        self.connack: Any = None  # its properties
        self.session_present = False
        self._stays = stays
        self._address = broker.host, broker.port, keep_alive
        self._properties = properties
        self._answers: queue.Queue[Any] = queue.Queue()
        self.client = paho.Client(
            CallbackAPIVersion.VERSION2,
            client_id,
            clean_session=None if version == V5 else not stays,
            protocol=version,
            reconnect_on_failure=False,
        )
        self._set_callbacks()
        if will is not None:
            self._set_will(will)

    def _set_callbacks(self) -> None:
        client = self.client
        client.on_message = lambda client, data, message: self.messages.put(message)
        client.on_connect = lambda client, data, *answer: self._answers.put(answer)
        client.on_subscribe = lambda client, data, *answer: self._answers.put(answer)
        client.on_unsubscribe = lambda client, data, *answer: self._answers.put(answer)
        client.on_disconnect = lambda client, data, flags, reason, found: self.ended.put(reason)

    def _set_will(self, will: Will) -> None:
        found = None
        if self.version == V5:
            found = _properties(PacketTypes.WILLMESSAGE)
            found.WillDelayInterval = will.delay_s
        self.client.will_set(will.topic, will.payload, will.qos, will.retain, found)

    def __enter__(self) -> Self:
        host, port, keep_alive = self._address
        if self.version == V5:
            found = _properties(PacketTypes.CONNECT)
            if self._stays:
                found.SessionExpiryInterval = EVER
            for name, value in self._properties.items():
                setattr(found, name, value)
            self.client.connect(
                host, port, keep_alive, clean_start=not self._stays, properties=found
            )
        else:
            self.client.connect(host, port, keep_alive)
        self.client.loop_start()
        flags, reason, connack = self._answers.get(timeout=PATIENCE_S)
        assert not reason.is_failure, reason
        self.session_present = flags.session_present
        self.connack = connack
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.client.disconnect()
        self.client.loop_stop()

    def drop(self) -> None:
        """End the connection without DISCONNECT."""
        sock = self.client.socket()
        assert isinstance(sock, socket.socket)
        sock.shutdown(socket.SHUT_RDWR)
        self.ended.get(timeout=PATIENCE_S)

    def subscribe(self, *filters: str, qos: int = 0, identifier: int = 0, **options: Any) -> None:
        if self.version == V5:
            found = _properties(PacketTypes.SUBSCRIBE)
            if identifier:
                found.SubscriptionIdentifier = identifier
            chosen = SubscribeOptions(qos, **options)
            self.client.subscribe([(text, chosen) for text in filters], properties=found)
        else:
            self.client.subscribe([(text, qos) for text in filters])
        _, codes, _ = self._answers.get(timeout=PATIENCE_S)
        assert [code.value for code in codes] == [qos] * len(filters), codes

    def unsubscribe(self, *filters: str) -> None:
        self.client.unsubscribe(list(filters))
        self._answers.get(timeout=PATIENCE_S)

    def publish(
        self, topic: str, payload: bytes, qos: int = 0, *, retain: bool = False, **properties: Any
    ) -> None:
        found = None
        if properties:
            found = _properties(PacketTypes.PUBLISH)
            for name, value in properties.items():
                setattr(found, name, value)
        sent = self.client.publish(topic, payload, qos, retain, found)
        sent.wait_for_publish(PATIENCE_S)
        assert sent.is_published(), topic

    def receive(self) -> paho.MQTTMessage:
        return self.messages.get(timeout=PATIENCE_S)

    def payloads(self, count: int) -> list[bytes]:
        return [bytes(self.receive().payload) for _ in range(count)]

    def reason(self) -> int:
        """Why the broker ended the connection."""
        return self.ended.get(timeout=PATIENCE_S).value
