"""`fleetmq sub`: subscribe and print messages.

A message is acknowledged after it is printed. Messages beyond -C are not acknowledged, so with -c
the next run gets them.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from dataclasses import dataclass
from typing import BinaryIO

from mqtt_broker.cli import client_options as options
from mqtt_broker.cli import sub_format
from mqtt_broker.cli.errors import DONE, FAILED, Failure, UsageError
from mqtt_broker.client.blocking import Client, Deadline, Interrupt
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
from mqtt_broker.codec import reasons
from mqtt_broker.codec.constants import CONNECT, DISCONNECT, SUBSCRIBE, UNSUBSCRIBE, V5, WILL
from mqtt_broker.codec.packets import Subscribe, SubscriptionRequest
from mqtt_broker.codec.properties import NO_PROPERTIES, Properties
from mqtt_broker.topics.names import filter_problem, matches, split_share

RETAIN_HANDLING_NEVER = 2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.add_connection_arguments(parser)
    subscription = parser.add_argument_group("subscription")
    subscription.add_argument(
        "-t",
        "--topic",
        action="append",
        default=[],
        metavar="FILTER",
        help="Topic Filter; may be repeated",
    )
    subscription.add_argument(
        "-q",
        "--qos",
        type=int,
        choices=(0, 1, 2),
        default=0,
        metavar="QOS",
        help="maximum QoS: 0, 1 or 2 (0)",
    )
    subscription.add_argument(
        "-U", "--unsubscribe", action="append", default=[], metavar="FILTER",
        help="unsubscribe, after subscribing; may be repeated",
    )  # fmt: skip
    subscription.add_argument(
        "--retain-as-published",
        action="store_true",
        help="print the retain flag as the publisher set it (MQTT 5)",
    )
    subscription.add_argument("-E", dest="exit_when_subscribed", action="store_true",
                      help="exit when the broker has acknowledged the subscription")  # fmt: skip
    subscription.add_argument(
        "-C", dest="count", type=int, metavar="N", help="exit after N messages"
    )
    selection = parser.add_argument_group("selection")
    selection.add_argument(
        "-T", "--filter-out", action="append", default=[], metavar="FILTER",
        help="do not print topics that match; may be repeated",
    )  # fmt: skip
    selection.add_argument(
        "-R", dest="no_retained", action="store_true", help="do not print retained messages"
    )
    selection.add_argument(
        "--retained-only",
        action="store_true",
        help="exit at the first message that is not retained",
    )
    selection.add_argument(
        "--remove-retained", action="store_true", help="clear retained messages when they arrive"
    )
    output = parser.add_argument_group("output").add_mutually_exclusive_group()
    output.add_argument("-v", "--verbose", action="store_true", help="print topic and payload")
    output.add_argument(
        "-F",
        dest="format",
        metavar="FORMAT",
        help="output format, as of mosquitto_sub: %%t %%p %%q %%r %%j ...",
    )
    output.add_argument("--json", action="store_true", help="print a JSON object for each message")
    parser.add_argument(
        "-N", dest="no_newline", action="store_true", help="no newline after a message"
    )


@dataclass(slots=True)
class Plan:
    """The command line, checked."""

    requests: list[SubscriptionRequest]
    unsubscribe: list[str]
    filter_out: list[str]
    count: int | None
    no_retained: bool
    retained_only: bool
    remove_retained: bool
    exit_when_subscribed: bool
    render: sub_format.Render
    end: bytes
    subscribe_properties: Properties
    unsubscribe_properties: Properties


def run(args: argparse.Namespace) -> int:
    version = options.VERSIONS[args.protocol_version]
    properties = options.parse_properties(
        args.properties, version, (CONNECT, SUBSCRIBE, UNSUBSCRIBE, DISCONNECT, WILL)
    )
    connect = options.connect_packet(args, properties)
    address = options.address(args)
    work = plan(args, version, properties)
    deadline = Deadline(args.timeout_s)
    with Interrupt() as interrupt, Client(address, connect, debug=args.debug) as client:
        client.disconnect_properties = properties.get(DISCONNECT, NO_PROPERTIES)
        client.watch(interrupt.fileno())
        subscription = _Subscription(client, work, sys.stdout.buffer)
        try:
            while not (interrupt.is_set or subscription.done):
                deadline.check()
                events, _ = client.step(deadline.left_s)
                subscription.on_events(events)
        except BrokenPipeError:
            # The reader has closed the pipe: Python must not write to it again at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED if subscription.refused else DONE


def plan(args: argparse.Namespace, version: int, properties: dict[int, Properties]) -> Plan:
    url_topic = options.url_topic(args)
    filters = args.topic + ([url_topic] if url_topic is not None else [])
    if not filters and not args.unsubscribe:
        raise UsageError("no Topic Filter: give -t, -U or -L mqtt://host/topic")
    for option, texts in (("-t", filters), ("-U", args.unsubscribe), ("-T", args.filter_out)):
        for text in texts:
            problem = filter_problem(text)
            if problem is not None:
                raise UsageError(f"{option} {text!r}: {problem}")
            options.check_text(text, option)
    if args.count is not None and args.count < 1:
        raise UsageError("-C is 1 or more")
    if args.retained_only and args.no_retained:
        raise UsageError("-R and --retained-only exclude each other")
    if args.retain_as_published and version < V5:
        raise UsageError("--retain-as-published needs MQTT 5")
    # Where the protocol allows it, the broker does not send what is not printed.
    unwanted = args.no_retained and not args.remove_retained and version == V5
    return Plan(
        [
            SubscriptionRequest(
                text,
                args.qos,
                # We do not need our own removals. [MQTT-3.8.3-4] forbids it for shared ones.
                no_local=args.remove_retained and version == V5 and not split_share(text),
                retain_as_published=args.retain_as_published,
                retain_handling=RETAIN_HANDLING_NEVER if unwanted else 0,
            )
            for text in filters
        ],
        args.unsubscribe,
        args.filter_out,
        args.count,
        args.no_retained,
        args.retained_only,
        args.remove_retained,
        args.exit_when_subscribed,
        _render(args),
        b"" if args.no_newline else b"\n",
        properties.get(SUBSCRIBE, NO_PROPERTIES),
        properties.get(UNSUBSCRIBE, NO_PROPERTIES),
    )


def _render(args: argparse.Namespace) -> sub_format.Render:
    if args.format is not None:
        return sub_format.compile_format(args.format)
    if args.json:
        return sub_format.as_json
    return sub_format.verbose if args.verbose else sub_format.plain


class _Subscription:
    """The subscription of one run, and its output."""

    def __init__(self, client: Client, work: Plan, output: BinaryIO) -> None:
        self.refused = 0
        self._client = client
        self._plan = work
        self._output = output
        self._unanswered = bool(work.requests) + bool(work.unsubscribe)
        self._left = work.count
        self._enough = False  # nothing that arrives from now on is printed

    @property
    def done(self) -> bool:
        """Tell whether all is printed and the broker has everything we sent."""
        return self._enough and not self._client.protocol.unfinished

    def on_events(self, events: list[Event]) -> None:
        for event in events:
            if isinstance(event, Message):
                if not self._enough:
                    self._on_message(event)
            elif isinstance(event, Connected):
                self._subscribe()
            elif isinstance(event, RequestAcknowledged):
                self._on_answered(event)
            elif isinstance(event, Published):
                self._on_published(event)
            else:
                assert isinstance(event, Closed)
                self._output.flush()
                raise Failure(event.text)
        self._output.flush()

    def _subscribe(self) -> None:
        protocol, work = self._client.protocol, self._plan
        if work.requests:
            protocol.subscribe(work.requests, work.subscribe_properties)
        if work.unsubscribe:
            protocol.unsubscribe(work.unsubscribe, work.unsubscribe_properties)

    def _on_answered(self, answer: RequestAcknowledged) -> None:
        request = answer.request
        if isinstance(request, Subscribe):
            verb, filters = "subscribed to", [one.filter for one in request.requests]
        else:
            verb, filters = "unsubscribed from", request.filters
        refused = 0
        for text, code in zip(filters, answer.reasons, strict=False):
            if code >= reasons.UNSPECIFIED_ERROR:
                refused += 1
                why = describe_reason(code, answer.reason_string)
                print(f"fleetmq sub: not {verb} {text}: {why}", file=sys.stderr)
        self.refused += refused
        self._unanswered -= 1
        if refused == len(filters):
            self._enough = True  # no message will come
        if not self._unanswered and self._plan.exit_when_subscribed:
            self._enough = True

    def _on_message(self, message: Message) -> None:
        work = self._plan
        if work.retained_only and not message.retain:
            self._enough = True
            return
        if not any(matches(text, message.topic) for text in work.filter_out):
            if work.remove_retained and message.retain:
                self._remove(message.topic)
            if not (message.retain and work.no_retained):
                self._print(message)
        self._client.protocol.acknowledge(message)

    def _print(self, message: Message) -> None:
        self._output.write(self._plan.render(message, time.time_ns()) + self._plan.end)
        if self._left is not None:
            self._left -= 1
            self._enough = not self._left

    def _remove(self, topic: str) -> None:
        try:
            self._client.protocol.publish(topic, b"", qos=1, retain=True)
        except Unsendable as error:
            raise Failure(f"retained message on {topic} not removed: {error}") from None

    def _on_published(self, event: Published) -> None:
        if event.reason >= reasons.UNSPECIFIED_ERROR:
            self.refused += 1
            why = describe_reason(event.reason, event.reason_string)
            text = f"fleetmq sub: retained message on {event.topic} not removed: {why}"
            print(text, file=sys.stderr)
