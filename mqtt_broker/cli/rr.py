"""`fleetmq rr`: publish a request and print the response.

The response topic is subscribed before the request leaves, so that no response is missed. With
MQTT 5 the request carries the response topic and correlation data, and a message with other
correlation data is no response to it.
"""

from __future__ import annotations

import argparse
import secrets
import sys
import time
from functools import partial
from typing import Final

from mqtt_broker import interrupts
from mqtt_broker.cli import client_options as options
from mqtt_broker.cli import sub_format
from mqtt_broker.cli.errors import DONE, Failure, UsageError
from mqtt_broker.cli.pub import add_message_arguments, read_payload
from mqtt_broker.client.blocking import Client, Deadline
from mqtt_broker.client.errors import Unsendable
from mqtt_broker.client.protocol import (
    Closed,
    Connected,
    Event,
    Message,
    Published,
    RequestAcknowledged,
    describe_reason,
)
from mqtt_broker.codec import properties as prop
from mqtt_broker.codec import reasons
from mqtt_broker.codec.constants import CONNECT, DISCONNECT, PUBLISH, SUBSCRIBE, V5, WILL
from mqtt_broker.codec.packets import SubscriptionRequest
from mqtt_broker.codec.properties import NO_PROPERTIES, Properties

TIMEOUT_S: Final = 30.0
_NO_RETAINED: Final = 2  # Retain Handling: a retained message is no response


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.add_connection_arguments(parser, timeout_s=TIMEOUT_S)
    add_message_arguments(parser, by_line=False)
    parser.add_argument(
        "-e", "--response-topic", metavar="TOPIC", help="topic of the response (a new one)"
    )
    sub_format.add_output_arguments(parser)


def run(args: argparse.Namespace) -> int:
    topic = args.topic if args.topic is not None else options.url_topic(args)
    if topic is None:
        raise UsageError("no topic: give -t or -L mqtt://host/topic")
    options.check_topic_name(topic, "-t")
    if args.response_topic is not None:
        options.check_topic_name(args.response_topic, "-e")
    version = options.VERSIONS[args.protocol_version]
    properties = options.parse_properties(
        args.properties, version, (CONNECT, PUBLISH, SUBSCRIBE, DISCONNECT, WILL)
    )
    request = properties.get(PUBLISH, Properties())
    if prop.RESPONSE_TOPIC in request:
        raise UsageError("-D publish response-topic: give -e")
    connect = options.connect_packet(args, properties)
    address = options.address(args)
    payload = read_payload(args)
    exchange = _Exchange(
        topic,
        args.response_topic or f"rr/{secrets.token_hex(8)}",
        args.qos,
        args.retain,
        payload,
        request if version == V5 else None,
        properties.get(SUBSCRIBE, NO_PROPERTIES),
    )
    deadline = Deadline(args.timeout_s)
    at_end = properties.get(DISCONNECT, NO_PROPERTIES)
    open_client = partial(Client, address, connect, debug=args.debug, disconnect_properties=at_end)
    with interrupts.flag() as stop, interrupts.raised_by(open_client) as client:
        client.watch(stop.fileno())
        while exchange.response is None or client.protocol.unfinished:
            deadline.check()
            for event in client.step(deadline.left_s)[0]:
                exchange.on_event(client, event)
            stop.check()  # between packets, so that none is cut in two
        render = sub_format.renderer(args)
        sys.stdout.buffer.write(render(exchange.response, time.time_ns()))
        sys.stdout.buffer.flush()
    return DONE


class _Exchange:
    """A request and its response."""

    def __init__(
        self,
        topic: str,
        response_topic: str,
        qos: int,
        retain: bool,
        payload: bytes,
        properties: Properties | None,  # None: not MQTT 5
        subscribe_properties: Properties,
    ) -> None:
        self.response: Message | None = None
        self._topic = topic
        self._response_topic = response_topic
        self._qos = qos
        self._retain = retain
        self._payload = payload
        self._properties = properties
        self._subscribe_properties = subscribe_properties
        self._correlation: object = None
        if properties is not None:
            properties[prop.RESPONSE_TOPIC] = response_topic
            self._correlation = properties.setdefault(
                prop.CORRELATION_DATA, secrets.token_hex(8).encode()
            )

    def on_event(self, client: Client, event: Event) -> None:
        if isinstance(event, Connected):
            wanted = SubscriptionRequest(
                self._response_topic,
                self._qos,
                retain_handling=0 if self._properties is None else _NO_RETAINED,
            )
            client.protocol.subscribe([wanted], self._subscribe_properties)
        elif isinstance(event, RequestAcknowledged):
            self._on_subscribed(client, event)
        elif isinstance(event, Published):
            self._on_published(event)
        elif isinstance(event, Message):
            client.protocol.acknowledge(event)
            if self.response is None and self._is_response(event):
                self.response = event
        else:
            assert isinstance(event, Closed)
            raise Failure(event.text)

    def _on_subscribed(self, client: Client, answer: RequestAcknowledged) -> None:
        [code] = answer.reasons
        if code >= reasons.UNSPECIFIED_ERROR:
            why = describe_reason(code, answer.reason_string)
            raise Failure(f"not subscribed to {self._response_topic}: {why}")
        try:
            client.protocol.publish(
                self._topic,
                self._payload,
                self._qos,
                self._retain,
                self._properties or NO_PROPERTIES,
            )
        except Unsendable as error:
            raise Failure(f"not published to {self._topic}: {error}") from None

    def _on_published(self, event: Published) -> None:
        if event.reason == reasons.NO_MATCHING_SUBSCRIBERS:
            raise Failure(f"nobody has subscribed to {self._topic}")
        if event.reason >= reasons.UNSPECIFIED_ERROR:
            why = describe_reason(event.reason, event.reason_string)
            raise Failure(f"not published to {self._topic}: {why}")

    def _is_response(self, message: Message) -> bool:
        if message.topic != self._response_topic or message.retain:
            return False
        data = message.properties.get(prop.CORRELATION_DATA)
        return self._properties is None or data == self._correlation
