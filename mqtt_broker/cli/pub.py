"""`fleetmq pub`: publish messages, and exit when the broker has accepted them.

At QoS 0 that means written to the socket, at QoS 1 acknowledged, at QoS 2 completed. A message
that the broker refuses is reported on stderr, the others are still sent, and the exit code is 1.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Final

from mqtt_broker import interrupts
from mqtt_broker.cli import client_options as options
from mqtt_broker.cli.errors import DONE, FAILED, Failure, UsageError
from mqtt_broker.client.blocking import Client, Deadline
from mqtt_broker.client.errors import Unsendable
from mqtt_broker.client.protocol import Closed, Event, Published, describe_reason
from mqtt_broker.codec import reasons
from mqtt_broker.codec.constants import CONNECT, DISCONNECT, PUBLISH, WILL
from mqtt_broker.codec.properties import NO_PROPERTIES, Properties

# Limits of reading ahead of the broker.
UNFINISHED_MAX: Final = 1_000
UNSENT_BYTES_MAX: Final = 1_048_576
READ_BYTES: Final = 65_536


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.add_connection_arguments(parser)
    add_message_arguments(parser, by_line=True)
    repetition = parser.add_argument_group("repetition")
    repetition.add_argument(
        "--repeat", type=int, default=1, metavar="N", help="send the message N times (1)"
    )
    repetition.add_argument(
        "--repeat-delay",
        type=float,
        default=0.0,
        metavar="SECONDS",
        help="pause between repetitions (0)",
    )


def add_message_arguments(parser: argparse.ArgumentParser, *, by_line: bool) -> None:
    """Add topic, payload, QoS and retain; `by_line`: each line of stdin can be a message."""
    message = parser.add_argument_group("message")
    message.add_argument("-t", "--topic", help="topic to publish to")
    payload = message.add_mutually_exclusive_group(required=True)
    payload.add_argument(
        "-m", "--message", metavar="TEXT", help="text to send (-m=TEXT when it begins with -)"
    )
    payload.add_argument("-f", "--file", metavar="PATH", help="send a file as one message")
    if by_line:
        payload.add_argument(
            "-l", "--stdin-line", action="store_true", help="send each line of stdin"
        )
    payload.add_argument(
        "-s", "--stdin-file", action="store_true", help="send stdin as one message"
    )
    payload.add_argument("-n", "--null-message", action="store_true", help="send an empty message")
    message.add_argument(
        "-q", "--qos", type=int, choices=(0, 1, 2), default=0, metavar="QOS", help="0, 1 or 2 (0)"
    )
    message.add_argument("-r", "--retain", action="store_true", help="retain the message")


def run(args: argparse.Namespace) -> int:
    topic = args.topic if args.topic is not None else options.url_topic(args)
    if topic is None:
        raise UsageError("no topic: give -t or -L mqtt://host/topic")
    options.check_topic_name(topic, "-t")
    if args.repeat < 1 or args.repeat_delay < 0:
        raise UsageError("--repeat is 1 or more and --repeat-delay 0 or more")
    if args.stdin_line and args.repeat != 1:
        raise UsageError("--repeat repeats one message: give it without -l")
    properties = options.parse_properties(
        args.properties,
        options.VERSIONS[args.protocol_version],
        (CONNECT, PUBLISH, DISCONNECT, WILL),
    )
    connect = options.connect_packet(args, properties)
    address = options.address(args)
    payload = b"" if args.stdin_line else read_payload(args)
    deadline = Deadline(args.timeout_s)
    at_end = properties.get(DISCONNECT, NO_PROPERTIES)
    open_client = partial(Client, address, connect, debug=args.debug, disconnect_properties=at_end)
    with interrupts.flag() as stop, interrupts.raised_by(open_client) as client:
        client.watch(stop.fileno())
        publication = _Publication(
            client,
            stop,
            deadline,
            topic,
            args.qos,
            args.retain,
            properties.get(PUBLISH, NO_PROPERTIES),
            quiet=args.quiet,
        )
        publication.wait(lambda: client.protocol.connected)
        if args.stdin_line:
            publication.send_lines(sys.stdin.fileno())
        else:
            publication.send_repeatedly(payload, args.repeat, args.repeat_delay)
        publication.wait(lambda: not client.protocol.unfinished and not client.unsent_bytes)
    return FAILED if publication.refused else DONE


class _Publication:
    """The messages of one run, until they are acknowledged."""

    def __init__(
        self,
        client: Client,
        stop: interrupts.Flag,
        deadline: Deadline,
        topic: str,
        qos: int,
        retain: bool,
        properties: Properties,
        *,
        quiet: bool,
    ) -> None:
        self.refused = 0
        self._quiet = quiet
        self._client = client
        self._stop = stop
        self._deadline = deadline
        self._topic = topic
        self._qos = qos
        self._retain = retain
        self._properties = properties

    def wait(self, done: Callable[[], bool]) -> None:
        self._client.flush()
        while not done():
            self._step(None)
            self._client.flush()

    def send_repeatedly(self, payload: bytes, count: int, delay_s: float) -> None:
        for number in range(count):
            if number and delay_s:
                self._pause(delay_s)
            self._send(payload)
            self._wait_for_room()

    def send_lines(self, descriptor: int) -> None:
        """Send each line as a message when it arrives; keep the connection alive meanwhile."""
        for lines in self._chunks_of_lines(descriptor):
            for line in lines:
                self._send(line)
                self._wait_for_room()

    def _chunks_of_lines(self, source: int) -> Iterator[list[bytes]]:
        rest = b""
        self._client.watch(source)
        while True:
            if not self._step(None):
                continue
            data = os.read(source, READ_BYTES)
            if not data:
                break
            *lines, rest = (rest + data).split(b"\n")
            # While lines wait for space, more input must not keep `step` from waiting.
            self._client.unwatch(source)
            yield lines
            self._client.watch(source)
        self._client.unwatch(source)
        if rest:
            yield [rest]

    def _send(self, payload: bytes) -> None:
        try:
            self._client.protocol.publish(
                self._topic, payload, self._qos, self._retain, self._properties
            )
        except Unsendable as error:
            self._on_refused(str(error))

    def _wait_for_room(self) -> None:
        if not self._has_room():  # small messages are sent together, up to the limit
            self.wait(self._has_room)

    def _has_room(self) -> bool:
        client = self._client
        return (
            client.protocol.unfinished < UNFINISHED_MAX and client.unsent_bytes < UNSENT_BYTES_MAX
        )

    def _pause(self, delay_s: float) -> None:
        until = time.monotonic() + delay_s
        while (left := until - time.monotonic()) > 0:
            self._step(left)

    def _step(self, timeout_s: float | None) -> bool:
        """Do one step of the client; tell whether standard input is readable."""
        self._deadline.check()
        waits = [wait for wait in (timeout_s, self._deadline.left_s) if wait is not None]
        events, readable = self._client.step(min(waits, default=None))
        for event in events:
            self._on_event(event)
        self._stop.check()  # between packets, so that none is cut in two
        return readable

    def _on_event(self, event: Event) -> None:
        if isinstance(event, Closed):
            raise Failure(event.text)
        # A resumed session may bring messages, too. They stay unacknowledged, and so with the
        # broker, for a subscriber with this client id.
        if isinstance(event, Published) and event.reason >= reasons.UNSPECIFIED_ERROR:
            self._on_refused(describe_reason(event.reason, event.reason_string))

    def _on_refused(self, why: str) -> None:
        self.refused += 1
        if not self._quiet:
            print(f"fleetmq pub: not published to {self._topic}: {why}", file=sys.stderr)


def read_payload(args: argparse.Namespace) -> bytes:
    """Return the payload that the options give, whole."""
    if args.message is not None:
        return os.fsencode(args.message)  # the bytes the shell gave, UTF-8 or not
    if args.file is not None:
        try:
            return Path(args.file).read_bytes()
        except OSError as error:
            raise UsageError(f"-f {args.file}: {error.strerror}") from None
    return sys.stdin.buffer.read() if args.stdin_file else b""
