"""An MQTT 5 connection for Locust users: paho-mqtt, with each step reported as a request.

Names of the requests: `connect`, `session`, `subscribe`, `publish qos N` (to its acknowledgement;
at QoS 0 to the socket), `command` (to its response), `connection` (lost unexpectedly).
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable
from typing import Any, Final

import paho.mqtt.client as paho
from locust.env import Environment
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode
from paho.mqtt.subscribeoptions import SubscribeOptions

from iot_sim.devices.device import Publication
from iot_sim.judge import stamps
from mqtt_broker.client.url import BrokerUrl, InvalidUrl, parse_url

REQUEST_TYPE: Final = "MQTT"
TIMEOUT_S: Final = 10.0
WEBSOCKET_PATH: Final = "/mqtt"  # where a URL has none


class ConnectFailed(Exception):
    """The connection failed, and Locust has counted the failure."""


class Connection:
    """The MQTT connection of one Locust user."""

    def __init__(
        self,
        environment: Environment,
        url: str,
        client_id: str,
        *,
        will: Publication | None = None,
        session_expiry_s: int = 0,
        keep_alive_s: int = 60,
        is_clean: bool = True,
    ) -> None:
        self.on_message: Callable[[Publication], None] = lambda message: None
        self.on_stamped: Callable[[str, str, int, bool, int], None] | None = None
        self._fire = environment.events.request.fire
        self._broker: BrokerUrl | InvalidUrl
        try:
            self._broker = parse_url(url)
        except InvalidUrl as error:  # raised by `connect`, which reports it to Locust
            self._broker = error
        self._session_expiry_s = session_expiry_s
        self._keep_alive_s = keep_alive_s
        self._is_clean = is_clean
        self._sent: dict[int, tuple[float, str, int]] = {}  # packet id -> time, name, size
        self._pending_commands: dict[bytes, threading.Event] = {}
        self._answered = threading.Event()
        self._settled = threading.Event()
        self._session_present = False
        self._has_suback = False
        self._reason: ReasonCode | None = None
        self._is_ending = False
        is_websocket = isinstance(self._broker, BrokerUrl) and self._broker.is_websocket
        client = self._client = paho.Client(
            CallbackAPIVersion.VERSION2,
            client_id,
            protocol=paho.MQTTv5,
            transport="websockets" if is_websocket else "tcp",
        )
        client.on_connect = self._on_connect
        client.on_disconnect = self._on_disconnect
        client.on_subscribe = self._on_subscribe
        client.on_publish = self._on_publish
        client.on_message = self._on_message
        if will is not None:
            client.will_set(will.topic, will.payload, will.qos, will.retain)
        if isinstance(self._broker, BrokerUrl):
            if self._broker.username is not None:
                client.username_pw_set(self._broker.username, self._broker.password)
            if self._broker.is_tls:
                client.tls_set()
            if is_websocket:
                client.ws_set_options(path=self._broker.rest or WEBSOCKET_PATH)

    # Called by users.

    def connect(self) -> None:
        """CONNECT and wait for CONNACK. Raises ConnectFailed."""
        properties = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
        properties.SessionExpiryInterval = self._session_expiry_s
        begin = time.perf_counter()
        try:
            if isinstance(self._broker, InvalidUrl):
                raise self._broker
            self._client.connect(
                self._broker.host,
                self._broker.port,
                self._keep_alive_s,
                clean_start=self._is_clean,
                properties=properties,
            )
        except (OSError, ValueError) as error:
            self._report("connect", begin, 0, error)
            raise ConnectFailed from error
        self._client.loop_start()
        if not self._answered.wait(TIMEOUT_S):
            problem: Exception | None = TimeoutError("no CONNACK")
        elif self._reason is not None and self._reason.is_failure:
            problem = ConnectionError(str(self._reason))
        else:
            problem = None
        self._report("connect", begin, 0, problem)
        if problem is not None:
            self._end()
            raise ConnectFailed from problem

    def check_session(self, expected: bool) -> None:
        problem = None
        if self._session_present is not expected:
            problem = AssertionError(f"session present: {self._session_present}")
        self._report("session", time.perf_counter(), 0, problem)

    def subscribe(self, text: str, qos: int) -> None:
        begin = time.perf_counter()
        options = SubscribeOptions(qos=qos, retainHandling=SubscribeOptions.RETAIN_DO_NOT_SEND)
        _, packet_id = self._client.subscribe(text, options=options)
        if packet_id is not None:
            self._sent[packet_id] = (begin, "subscribe", 0)

    @property
    def is_subscribed(self) -> bool:
        """Tell whether there was a SUBACK, and no SUBSCRIBE waits for one."""
        return self._has_suback and all(
            name != "subscribe" for _, name, _ in list(self._sent.values())
        )

    def publish(self, publication: Publication, stamp: str) -> None:
        properties = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]
        if stamp:
            properties.UserProperty = (stamps.PROPERTY, stamp)
        if publication.content_type:
            properties.ContentType = publication.content_type
        if publication.response_topic:
            properties.ResponseTopic = publication.response_topic
        if publication.correlation:
            properties.CorrelationData = publication.correlation
        begin = time.perf_counter()
        size = len(publication.payload)
        info = self._client.publish(
            publication.topic,
            publication.payload,
            publication.qos,
            publication.retain,
            properties=properties,
        )
        name = f"publish qos {publication.qos}"
        if info.rc not in (paho.MQTT_ERR_SUCCESS, paho.MQTT_ERR_NO_CONN):
            self._report(name, begin, size, ConnectionError(paho.error_string(info.rc)))
        elif publication.qos and not info.is_published():
            self._settled.clear()
            self._sent[info.mid] = (begin, name, size)
        else:
            self._report(name, begin, size, None)

    def request(self, command: Publication, timeout_s: float) -> None:
        """Send a command, and wait for its response."""
        answered = self._pending_commands[command.correlation] = threading.Event()
        begin = time.perf_counter()
        self.publish(command, "")
        problem = None
        if not answered.wait(timeout_s):
            problem = TimeoutError(f"no response to {command.topic} in {timeout_s:g} s")
        del self._pending_commands[command.correlation]
        self._report("command", begin, len(command.payload), problem)

    def settle(self) -> None:
        """Wait until everything published is acknowledged."""
        if self._sent:
            self._settled.wait(TIMEOUT_S)

    def disconnect(self) -> None:
        self._is_ending = True
        self._client.disconnect()
        self._end()

    def drop(self) -> None:
        """Close the connection without DISCONNECT, like a lost link."""
        self._is_ending = True
        transport = self._client.socket()  # of the WebSocket, paho's own class
        if transport is not None:
            with socket.socket(fileno=os.dup(transport.fileno())) as link:
                link.shutdown(socket.SHUT_RDWR)
        self._client.disconnect()  # else paho would connect again
        self._end()

    def _end(self) -> None:
        self._is_ending = True
        self._client.loop_stop()

    # Callbacks of paho-mqtt.

    def _on_connect(
        self,
        client: paho.Client,
        userdata: Any,
        flags: paho.ConnectFlags,
        reason: ReasonCode,
        properties: Properties | None,
    ) -> None:
        self._reason = reason
        self._session_present = flags.session_present
        self._answered.set()

    def _on_disconnect(
        self,
        client: paho.Client,
        userdata: Any,
        flags: paho.DisconnectFlags,
        reason: ReasonCode,
        properties: Properties | None,
    ) -> None:
        if not self._is_ending:
            self._report("connection", time.perf_counter(), 0, ConnectionError(str(reason)))

    def _on_subscribe(
        self,
        client: paho.Client,
        userdata: Any,
        packet_id: int,
        reasons: list[ReasonCode],
        properties: Properties | None,
    ) -> None:
        begin, name, _ = self._sent.pop(packet_id, (time.perf_counter(), "subscribe", 0))
        self._has_suback = True
        failed = [str(reason) for reason in reasons if reason.is_failure]
        self._report(name, begin, 0, ConnectionError(", ".join(failed)) if failed else None)

    def _on_publish(
        self,
        client: paho.Client,
        userdata: Any,
        packet_id: int,
        reason: ReasonCode,
        properties: Properties | None,
    ) -> None:
        found = self._sent.pop(packet_id, None)
        if found is not None:
            begin, name, size = found
            failed = ConnectionError(str(reason)) if reason.is_failure else None
            self._report(name, begin, size, failed)
        if not self._sent:
            self._settled.set()

    def _on_message(self, client: paho.Client, userdata: Any, message: paho.MQTTMessage) -> None:
        told = message.properties
        correlation = getattr(told, "CorrelationData", b"")
        if correlation in self._pending_commands:
            self._pending_commands[correlation].set()
            return
        if self.on_stamped is not None:
            for name, text in getattr(told, "UserProperty", ()):
                if name == stamps.PROPERTY:
                    self.on_stamped(
                        text, message.topic, message.qos, message.dup, len(message.payload)
                    )
            return
        self.on_message(
            Publication(
                message.topic,
                bytes(message.payload),
                message.qos,
                message.retain,
                response_topic=getattr(told, "ResponseTopic", ""),
                correlation=correlation,
            )
        )

    def _report(self, name: str, begin: float, size: int, problem: Exception | None) -> None:
        self._fire(  # type: ignore[no-untyped-call]
            request_type=REQUEST_TYPE,
            name=name,
            response_time=(time.perf_counter() - begin) * 1000,
            response_length=size,
            exception=problem,
            context={},
        )
