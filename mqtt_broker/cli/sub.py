"""`fleetmq sub`: subscribe and print messages.

A message is acknowledged after it is printed. Messages beyond -C are not acknowledged, so with -c
the next run gets them. After a lost connection it connects again, at growing intervals: with -c it
resumes the session, without -c it starts a new one.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import dataclass
from typing import BinaryIO, Final

from mqtt_broker import interrupts
from mqtt_broker.cli import client_options as options
from mqtt_broker.cli import sub_format
from mqtt_broker.cli.errors import DONE, FAILED, Failure, UsageError, drop_output
from mqtt_broker.client.blocking import Address, Client, Deadline
from mqtt_broker.client.errors import ClientError, TimedOut, Unsendable
from mqtt_broker.client.protocol import (
    ClientProtocol,
    ClientSession,
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
from mqtt_broker.codec.packets import Connect, Subscribe, SubscriptionRequest
from mqtt_broker.codec.properties import NO_PROPERTIES, Properties
from mqtt_broker.topics.names import filter_problem, matches, split_share

RETAIN_HANDLING_NEVER: Final = 2
RETRY_S_MIN: Final = 1.0
RETRY_S_MAX: Final = 30.0
# A client that was disconnected for another reason would be disconnected again.
_COMES_BACK: Final = frozenset(
    (
        0,  # no reason: the network broke
        3,  # "server unavailable" of 3.1.1
        reasons.UNSPECIFIED_ERROR,
        reasons.IMPLEMENTATION_SPECIFIC_ERROR,
        reasons.SERVER_UNAVAILABLE,
        reasons.SERVER_BUSY,
        reasons.SERVER_SHUTTING_DOWN,
        reasons.KEEP_ALIVE_TIMEOUT,
        reasons.MESSAGE_RATE_TOO_HIGH,
        reasons.QUOTA_EXCEEDED,
        reasons.CONNECTION_RATE_EXCEEDED,
        reasons.MAXIMUM_CONNECT_TIME,
    )
)


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
    sub_format.add_output_arguments(parser)


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
    subscription = _Subscription(work, sys.stdout.buffer, quiet=args.quiet)
    connections = _Connections(
        address, connect, properties.get(DISCONNECT, NO_PROPERTIES), args.debug, args.timeout_s
    )
    try:
        connections.serve(subscription)
    except BrokenPipeError:  # the reader has closed the pipe
        drop_output()
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
                # No Local: own removals. [MQTT-3.8.3-4] forbids No Local for shared ones.
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
        sub_format.renderer(args),
        properties.get(SUBSCRIBE, NO_PROPERTIES),
        properties.get(UNSUBSCRIBE, NO_PROPERTIES),
    )


class _Connections:
    """The connections of one run, one after the other."""

    def __init__(
        self,
        address: Address,
        connect: Connect,
        disconnect_properties: Properties,
        debug: bool,
        timeout_s: float | None,
    ) -> None:
        self._address = address
        self._connect = connect
        self._disconnect_properties = disconnect_properties
        self._debug = debug
        self._deadline = Deadline(timeout_s)
        self._session: ClientSession | None = None

    def serve(self, subscription: _Subscription) -> None:
        """Serve the subscription until it is done or a signal comes.

        Raises ClientError and Failure for errors that another attempt would not cure.
        """
        pause_s = RETRY_S_MIN
        with interrupts.flag() as stop:
            while True:
                before = subscription.connections
                why = self._serve_once(subscription, stop)
                if why is None:
                    return
                if subscription.connections > before:
                    pause_s = RETRY_S_MIN
                subscription.say(f"{why}; connecting again in {pause_s:g} s")
                left_s = self._deadline.left_s
                stop.wait(pause_s if left_s is None else min(pause_s, left_s))
                if stop.is_set():
                    return
                self._deadline.check()
                pause_s = min(2 * pause_s, RETRY_S_MAX)

    def _serve_once(self, subscription: _Subscription, stop: interrupts.Flag) -> str | None:
        """Return why the connection broke, or None when the run is over."""
        try:
            with interrupts.raised_by(self._open) as client:
                client.watch(stop.fileno())
                self._session = client.protocol.session
                subscription.use(client)
                while not (stop.is_set() or subscription.done):
                    self._deadline.check()
                    events, _ = client.step(self._deadline.left_s)
                    if closed := subscription.on_events(events):
                        if not subscription.connections or closed.reason not in _COMES_BACK:
                            raise Failure(closed.text)
                        return closed.text
        except ClientError as error:
            if not subscription.connections or isinstance(error, TimedOut):
                raise
            return str(error)
        except interrupts.Interrupted:
            if not subscription.connections:
                raise
        return None

    def _open(self) -> Client:
        return Client(
            self._address,
            self._connect,
            debug=self._debug,
            session=self._session,
            disconnect_properties=self._disconnect_properties,
        )


class _Subscription:
    """The subscription of one run, and its output."""

    def __init__(self, work: Plan, output: BinaryIO, *, quiet: bool) -> None:
        self.refused = 0
        self.connections = 0  # accepted by the broker
        self._client: Client | None = None
        self._plan = work
        self._output = output
        self._quiet = quiet
        self._unanswered = 0
        self._left = work.count
        self._enough = False  # nothing that arrives from now on is printed

    def use(self, client: Client) -> None:
        """Go on with this connection."""
        self._client = client

    @property
    def done(self) -> bool:
        """Tell whether all is printed and the broker has everything we sent."""
        return self._enough and not self._protocol.unfinished

    @property
    def _protocol(self) -> ClientProtocol:
        assert self._client is not None
        return self._client.protocol

    def say(self, text: str) -> None:
        if not self._quiet:
            print(f"fleetmq sub: {text}", file=sys.stderr)

    def on_events(self, events: list[Event]) -> Closed | None:
        """Act on what happened; return the end of the connection, if it is one."""
        closed = None
        for event in events:
            if isinstance(event, Message):
                if not self._enough:
                    self._on_message(event)
            elif isinstance(event, Connected):
                self._on_connected(event)
            elif isinstance(event, RequestAcknowledged):
                self._on_answered(event)
            elif isinstance(event, Published):
                self._on_published(event)
            else:
                assert isinstance(event, Closed)
                closed = event
        self._output.flush()
        return closed

    def _on_connected(self, event: Connected) -> None:
        self.connections += 1
        if self.connections == 1:
            self._subscribe()
        elif event.session_present and not self._unanswered:
            self.say("connected again, the session goes on")
        else:
            self.say("connected again, subscribing anew")
            self._subscribe()

    def _subscribe(self) -> None:
        protocol, work = self._protocol, self._plan
        self._unanswered = bool(work.requests) + bool(work.unsubscribe)
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
                self.say(f"not {verb} {text}: {why}")
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
        self._protocol.acknowledge(message)

    def _print(self, message: Message) -> None:
        self._output.write(self._plan.render(message, time.time_ns()))
        if self._left is not None:
            self._left -= 1
            self._enough = not self._left

    def _remove(self, topic: str) -> None:
        try:
            self._protocol.publish(topic, b"", qos=1, retain=True)
        except Unsendable as error:
            raise Failure(f"retained message on {topic} not removed: {error}") from None

    def _on_published(self, event: Published) -> None:
        if event.reason >= reasons.UNSPECIFIED_ERROR:
            self.refused += 1
            why = describe_reason(event.reason, event.reason_string)
            self.say(f"retained message on {event.topic} not removed: {why}")
