"""paho-mqtt against our broker."""

from __future__ import annotations

import contextlib
import queue
import socket
import time
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, Final, Self

import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion, MQTTErrorCode, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties as UntypedProperties

from mqtt_broker.testing import ThreadedBroker

Properties: Final[Any] = UntypedProperties
PATIENCE_S: Final = 120.0  # nothing here takes so long, unless it fails
V311: Final = MQTTProtocolVersion.MQTTv311
V5: Final = MQTTProtocolVersion.MQTTv5
any_version = pytest.mark.parametrize("version", [V311, V5], ids=["v311", "v5"])


@pytest.fixture(scope="module")
def shared_broker() -> Iterator[ThreadedBroker]:
    with ThreadedBroker() as broker:
        yield broker


@pytest.fixture
def broker(shared_broker: ThreadedBroker, request: pytest.FixtureRequest) -> Iterator[Broker]:
    with contextlib.ExitStack() as stack:
        yield Broker(shared_broker.port, request.node.name, stack)


class Peer:
    """A paho client in its thread, with what came to it in queues."""

    def __init__(
        self, port: int, client_id: str, version: MQTTProtocolVersion, lasting: bool
    ) -> None:
        self.messages: queue.Queue[paho.MQTTMessage] = queue.Queue()
        self.endings: queue.Queue[int] = queue.Queue()
        self.session_present = False
        self._port = port
        self._lasting = lasting
        self._connected: queue.Queue[bool] = queue.Queue()
        self._subscribed: queue.Queue[list[int]] = queue.Queue()
        clean = None if version == V5 else not lasting
        self.paho = paho.Client(
            CallbackAPIVersion.VERSION2,
            client_id,
            clean,
            protocol=version,
            reconnect_on_failure=False,
        )
        self.paho.on_connect = self._on_connect
        self.paho.on_subscribe = self._on_subscribe
        self.paho.on_disconnect = self._on_disconnect
        self.paho.on_message = self._on_message
        self._version = version

    def _on_connect(
        self, client: Any, data: Any, flags: paho.ConnectFlags, reason: Any, properties: Any
    ) -> None:
        assert not reason.is_failure
        self._connected.put(flags.session_present)

    def _on_subscribe(
        self, client: Any, data: Any, mid: int, reasons: list[Any], properties: Any
    ) -> None:
        self._subscribed.put([reason.value for reason in reasons])

    def _on_disconnect(
        self, client: Any, data: Any, flags: Any, reason: Any, properties: Any
    ) -> None:
        self.endings.put(reason.value)

    def _on_message(self, client: Any, data: Any, message: paho.MQTTMessage) -> None:
        self.messages.put(message)

    def start(self) -> Self:
        properties = None
        if self._version == V5 and self._lasting:
            properties = Properties(PacketTypes.CONNECT)
            properties.SessionExpiryInterval = 3600
        self.paho.connect(
            "127.0.0.1",
            self._port,
            clean_start=not self._lasting if self._version == V5 else 3,
            properties=properties,
        )
        self.paho.loop_start()
        self.session_present = self._connected.get(timeout=PATIENCE_S)
        return self

    def subscribe(self, topic: str, qos: int = 0) -> None:
        self.paho.subscribe(topic, qos)
        assert self._subscribed.get(timeout=PATIENCE_S) == [qos]

    def publish(self, topic: str, payload: str | bytes, qos: int = 1, **options: Any) -> None:
        """Publish, and wait until the whole exchange is over."""
        info = self.paho.publish(topic, payload, qos, **options)
        info.wait_for_publish(PATIENCE_S)
        assert info.is_published()

    def message(self) -> paho.MQTTMessage:
        return self.messages.get(timeout=PATIENCE_S)

    def stop(self) -> None:
        self.paho.disconnect()
        self.paho.loop_stop()

    def lose(self) -> None:
        """End the connection without a DISCONNECT."""
        sock = self.paho.socket()
        assert isinstance(sock, socket.socket)
        sock.shutdown(socket.SHUT_RDWR)
        assert self.endings.get(timeout=PATIENCE_S) != MQTTErrorCode.MQTT_ERR_SUCCESS
        self.paho.loop_stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()


class Broker:
    """Clients for one test, whose names and topics are its own."""

    def __init__(self, port: int, name: str, stack: contextlib.ExitStack) -> None:
        self.port = port
        self.topic = f"paho/{name}"
        self._stack = stack

    def peer(
        self,
        name: str,
        version: MQTTProtocolVersion,
        *,
        lasting: bool = False,
        prepare: Callable[[paho.Client], object] = lambda client: None,
    ) -> Peer:
        peer = Peer(self.port, f"{self.topic}/{name}", version, lasting)
        prepare(peer.paho)
        return self._stack.enter_context(peer.start())


@any_version
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_messages_go_round_in_order(broker: Broker, version: MQTTProtocolVersion, qos: int) -> None:
    one, other = broker.peer("s", version), broker.peer("p", version)
    one.subscribe(f"{broker.topic}/+", qos)
    for number in range(50):
        other.publish(f"{broker.topic}/x", str(number), qos)
    for number in range(50):
        message = one.message()
        assert (message.topic, message.payload) == (f"{broker.topic}/x", str(number).encode())
        assert (message.qos, message.retain, message.dup) == (qos, False, False)
    assert one.messages.empty()


@any_version
def test_a_large_payload(broker: Broker, version: MQTTProtocolVersion) -> None:
    payload = bytes(range(256)) * 4000
    one = broker.peer("s", version)
    one.subscribe(broker.topic, 2)
    one.publish(broker.topic, payload, 2)
    assert one.message().payload == payload


@any_version
def test_a_retained_message_and_its_end(broker: Broker, version: MQTTProtocolVersion) -> None:
    publisher = broker.peer("p", version)
    publisher.publish(broker.topic, "kept", retain=True)
    one = broker.peer("s", version)
    one.subscribe(broker.topic, 1)
    message = one.message()
    assert (message.payload, message.retain) == (b"kept", True)
    publisher.publish(broker.topic, "", retain=True)
    message = one.message()
    assert (message.payload, message.retain) == (b"", False)
    late = broker.peer("late", version)
    late.subscribe(broker.topic, 1)
    publisher.publish(broker.topic, "fresh")
    assert late.message().payload == b"fresh"


@any_version
def test_the_will_of_a_lost_connection(broker: Broker, version: MQTTProtocolVersion) -> None:
    watcher = broker.peer("s", version)
    watcher.subscribe(broker.topic, 2)

    def with_will(client: paho.Client) -> None:
        client.will_set(broker.topic, "gone", 2)

    broker.peer("lost", version, prepare=with_will).lose()
    message = watcher.message()
    assert (message.payload, message.qos) == (b"gone", 2)


@any_version
def test_no_will_after_a_disconnect(broker: Broker, version: MQTTProtocolVersion) -> None:
    watcher = broker.peer("s", version)
    watcher.subscribe(broker.topic)
    leaver = broker.peer("leaver", version, prepare=lambda c: c.will_set(broker.topic, "gone"))
    leaver.stop()
    watcher.publish(broker.topic, "marker")
    assert watcher.message().payload == b"marker"


@any_version
@pytest.mark.parametrize("loses", [False, True], ids=["disconnected", "lost"])
def test_a_session_is_resumed_with_what_waited(
    broker: Broker, version: MQTTProtocolVersion, loses: bool
) -> None:
    away = broker.peer("away", version, lasting=True)
    assert not away.session_present
    away.subscribe(broker.topic, 2)
    if loses:
        away.lose()
    else:
        away.stop()
    publisher = broker.peer("p", version)
    for number in range(100):
        publisher.publish(broker.topic, str(number), 1 + number % 2)
    back = broker.peer("away", version, lasting=True)
    assert back.session_present
    received = [back.message() for _ in range(100)]
    for qos in (1, 2):  # QoS 2 is shown at PUBREL, so only each by itself is in order
        found = [int(message.payload) for message in received if message.qos == qos]
        assert found == list(range(qos - 1, 100, 2))
    assert back.messages.empty()


# MQTT 5 alone.


def test_properties_of_a_request(broker: Broker) -> None:
    properties = Properties(PacketTypes.PUBLISH)
    properties.UserProperty = [("k", "v"), ("k", "w"), ("ä", "")]
    properties.ResponseTopic = f"{broker.topic}/answers"
    properties.CorrelationData = b"\x00\xff"
    properties.ContentType = "text/plain"
    properties.PayloadFormatIndicator = 1
    one = broker.peer("s", V5)
    one.subscribe(broker.topic, 1)
    one.publish(broker.topic, "question", properties=properties)
    found: Any = one.message().properties
    assert found.json() == properties.json()


def test_a_shared_subscription(broker: Broker) -> None:
    workers = [broker.peer(f"w{number}", V5) for number in range(2)]
    for worker in workers:
        worker.subscribe(f"$share/group/{broker.topic}", 1)
    publisher = broker.peer("p", V5)
    for number in range(20):
        publisher.publish(broker.topic, str(number))
    for worker in workers:  # a direct message behind them: nothing more can come
        worker.subscribe(f"{broker.topic}/end", 1)
    publisher.publish(f"{broker.topic}/end", "end")
    shares: list[list[int]] = []
    for worker in workers:
        shares.append([])
        while (message := worker.message()).payload != b"end":
            shares[-1].append(int(message.payload))
    assert all(shares)
    assert sorted(shares[0] + shares[1]) == list(range(20))


def test_what_expires_while_the_client_is_away(broker: Broker) -> None:
    away = broker.peer("away", V5, lasting=True)
    away.subscribe(broker.topic, 1)
    away.stop()
    publisher = broker.peer("p", V5)
    for payload, seconds in (("short", 1), ("long", 600)):
        properties = Properties(PacketTypes.PUBLISH)
        properties.MessageExpiryInterval = seconds
        publisher.publish(broker.topic, payload, properties=properties)
    time.sleep(1.2)  # the second has to pass, and a bit for the two clocks
    message = broker.peer("away", V5, lasting=True).message()
    assert message.payload == b"long"
    found: Any = message.properties
    assert 590 <= found.MessageExpiryInterval < 600


def test_a_takeover_is_told(broker: Broker) -> None:
    first = broker.peer("same", V5)
    broker.peer("same", V5)
    assert first.endings.get(timeout=PATIENCE_S) == 142
