"""`fleetmq spark bridge`: copy messages of any MQTT 5 broker into a local log.

    fleetmq spark bridge --broker mqtt://host:1883 --filter 'fleet/#' --log data --stream telemetry

So the same jobs work for a fleet on mosquitto or EMQX. The bridge is a client with a persistent
session, and acknowledges a message when it is on disk. A message that was published at QoS 1 and
acknowledged to its publisher therefore reaches the log after any crash, as long as the other broker
keeps the session. It may be stored twice (see `bridge.session`).

Exit codes: 0 stopped by a signal, 1 an error that it cannot survive, 2 a wrong command line.
"""

from __future__ import annotations

import argparse
import random
import re
import ssl
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from mqtt_broker import interrupts
from mqtt_broker.client.blocking import Address, tls_context
from mqtt_broker.client.errors import ClientError
from mqtt_broker.client.url import BrokerUrl, InvalidUrl, parse_url
from mqtt_broker.streams.format.errors import Invalid, StreamError
from mqtt_broker.streams.format.partitioning import names_function
from mqtt_broker.streams.format.stream_settings import StreamSettings, parse_bytes, parse_duration
from mqtt_broker.streams.remote.remote_source import stream_root
from mqtt_broker.streams.write.log import Log
from mqtt_broker.streams.write.partition_functions import load_partition_functions
from mqtt_broker.streams.write.stream import Stream
from mqtt_broker.streams.write.writer import LogWriter
from mqtt_broker.topics.names import filter_problem, text_problem
from spark_ingest.bridge.session import BridgeRefused, Broker, Device, Session
from spark_ingest.payloads.schemas import SchemaError, parse_schema, shape_of

DONE: Final = 0
FAILED: Final = 1
WRONG_USAGE: Final = 2
PAUSE_S_MIN: Final = 0.5
PAUSE_S_MAX: Final = 30.0
TELL_S: Final = 10.0
MAINTAIN_S: Final = 10.0
_LEVEL: Final = re.compile(r"level:([1-9]\d{0,3})")
Say = Callable[[str], None]


class BridgeError(Exception):
    """The command line is wrong; one line that names the option."""

    def __init__(self, option: str, why: str) -> None:
        super().__init__(f"{option}: {why}")


def add_bridge_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--broker", required=True, metavar="URL", help="broker: mqtt://, mqtts://, ws:// or wss://")
    add(
        "--filter",
        action="append",
        required=True,
        metavar="FILTER",
        help="Topic Filter; may be repeated",
    )
    add("--log", required=True, metavar="DIR", help="directory of the log; created if missing")
    add("--stream", required=True, metavar="NAME", help="stream of the log; created if missing")
    add("--partitions", metavar="N", help="partitions of a new stream (1)")
    add("--partition-by", metavar="RULE", help="partition key of a new stream (client)")
    add("--retain", metavar="TIME", help="how long messages are kept, such as 7d (for ever)")
    add("--max-bytes", metavar="SIZE", help="size limit of the stream, such as 10GB (none)")
    add("--event-time", metavar="RULE", help="where the event time is in a message: json:$.ts")
    add("--sent-time", metavar="RULE", help="where the time of sending is in a message")
    add("--schema", metavar="FILE", help="file with the JSON Schema of the payloads")
    add(
        "--device", default="topic", metavar="RULE",
        help="source of the client id: topic, level:N of it, or property:NAME (topic)",
    )  # fmt: skip
    add("--client-id", metavar="ID", help="client id of the session (fleetmq-bridge-STREAM)")
    add("--username", metavar="NAME", help="user name at the broker")
    add("--password-file", metavar="FILE", help="file with the password in its first line")
    add("--cafile", metavar="FILE", help="trust these certificates")
    add("--cert", metavar="FILE", help="client certificate")
    add("--key", metavar="FILE", help="key of the client certificate")
    add("--insecure", action="store_true", help="do not check the host name in the certificate")
    add("--inflight", default="2000", metavar="N", help="unacknowledged messages at most (2000)")
    add(
        "--session-expiry",
        default="7d",
        metavar="TIME",
        help="how long the broker keeps the session (7d)",
    )
    add("--keepalive", default="30", metavar="S", help="keep alive in seconds (30)")
    add("--quiet", action="store_true", help="print only warnings and errors")


def run_bridge(args: argparse.Namespace, say: Say | None = None) -> int:
    """Run the bridge until SIGINT or SIGTERM, or until an error that it cannot survive."""
    say = say or _to_stderr
    try:
        broker, device = _broker(args), device_rule(args.device)
        wanted = _wanted(args)
        named = [name for name in (args.partition_by,) if name and names_function(name)]
        functions = load_partition_functions(named)
        log = Log.open(stream_root(Path(args.log)), report=say, partition_functions=functions)
    except (BridgeError, Invalid) as error:
        say(f"fleetmq spark bridge: {error}")
        return WRONG_USAGE
    except (OSError, StreamError) as error:
        say(f"fleetmq spark bridge: --log: {error}")
        return FAILED
    try:
        stream = _stream(log, args.stream, wanted)
        with interrupts.flag() as stop:
            return _run(log, stream, broker, device, stop, say, is_quiet=args.quiet)
    except (BridgeError, Invalid) as error:
        say(f"fleetmq spark bridge: {error}")
        return WRONG_USAGE
    except (OSError, StreamError) as error:
        say(f"fleetmq spark bridge: {error}")
        return FAILED
    finally:
        log.close()


def _run(
    log: Log,
    stream: Stream,
    broker: Broker,
    device: Device,
    stop: interrupts.Flag,
    say: Say,
    *,
    is_quiet: bool,
) -> int:
    session = Session(broker, stream, LogWriter(log), device, say)
    watch = _Watch(log, session, say, is_quiet=is_quiet)
    pauses = _pauses()
    while not stop.is_set():
        try:
            session.connect(stop.is_set)
            if stop.is_set():
                break
            watch.say(f"connected to {broker} as {broker.client_id!r}, into {stream.name!r}")
            pauses = _pauses()
            session.serve(stop.is_set, watch.look)
        except BridgeRefused as refused:
            session.flush(is_last=True)
            say(f"fleetmq spark bridge: {refused}")
            return FAILED
        except ClientError as error:
            pause_s = next(pauses)
            say(f"{broker}: {error}; again in {pause_s:.1f} s")
            stop.wait(pause_s)
            watch.look()
    session.close()
    watch.tell()
    return DONE


class _Watch:
    """Periodic work of the bridge: progress on the terminal, and maintenance of the log."""

    def __init__(self, log: Log, session: Session, say: Say, *, is_quiet: bool) -> None:
        self._log = log
        self._session = session
        self._say = say
        self._is_quiet = is_quiet
        now = time.monotonic()
        self._told_at = self._maintained_at = now
        self._told = 0

    def say(self, line: str) -> None:
        if not self._is_quiet:
            self._say(line)

    def look(self) -> None:
        now = time.monotonic()
        if now - self._maintained_at >= MAINTAIN_S:
            self._maintained_at = now
            self._log.maintain(time.time_ns() // 1_000)
        if now - self._told_at >= TELL_S:
            self.tell()

    def tell(self) -> None:
        now = time.monotonic()
        figures = self._session.figures
        rate = (figures.messages - self._told) / max(1e-3, now - self._told_at)
        line = (
            f"{figures.messages:,} messages, {figures.acknowledged:,} acknowledged, {rate:,.0f}/s"
        )
        if figures.repeats:
            line += f", {figures.repeats:,} sent again"
        if figures.lost_qos0:
            line += f", {figures.lost_qos0:,} of QoS 0 lost"
        self.say(line)
        self._told_at, self._told = now, figures.messages


def _pauses() -> Iterator[float]:
    pause_s = PAUSE_S_MIN
    while True:
        yield pause_s * random.uniform(0.7, 1.0)
        pause_s = min(PAUSE_S_MAX, 2 * pause_s)


def _to_stderr(line: str) -> None:
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


# The command line.


def device_rule(text: str) -> Device:
    """Return the device that a message is about; its topic where no rule matches."""
    level = _LEVEL.fullmatch(text)
    if text == "topic":
        return lambda topic, user: topic
    if level is not None:
        number = int(level[1]) - 1

        def of_level(topic: str, user: list[tuple[str, str]]) -> str:
            levels = topic.split("/")
            return levels[number] if number < len(levels) else topic

        return of_level
    kind, _, name = text.partition(":")
    if kind == "property" and name:
        return lambda topic, user: next((value for key, value in user if key == name), topic)
    raise BridgeError("--device", f"{text!r} is not topic, level:N or property:NAME")


def _broker(args: argparse.Namespace) -> Broker:
    try:
        url = parse_url(args.broker)
    except InvalidUrl as error:
        raise BridgeError("--broker", str(error)) from None
    for text in args.filter:
        if problem := filter_problem(text) or text_problem(text):
            raise BridgeError("--filter", f"{text!r}: {problem}")
    password = url.password or None
    if args.password_file:
        password = _first_line("--password-file", args.password_file)
    username = args.username or url.username or None
    if password is not None and username is None:
        raise BridgeError("--username", "it is missing, and there is a password")
    return Broker(
        Address(
            url.host,
            url.port,
            tls=_tls(args, url),
            websocket_path=(url.rest or "/mqtt") if url.is_websocket else None,
        ),
        args.client_id or f"fleetmq-bridge-{args.stream}",
        tuple(args.filter),
        username=username,
        password=password,
        keepalive_s=_whole("--keepalive", args.keepalive, 65_535),
        inflight_max=_whole("--inflight", args.inflight, 65_535),
        session_expiry_s=min(0xFFFFFFFE, parse_duration("--session-expiry", args.session_expiry)),
    )


def _tls(args: argparse.Namespace, url: BrokerUrl) -> ssl.SSLContext | None:
    for option in ("cafile", "cert", "key"):
        path = getattr(args, option)
        if path and not url.is_tls:
            raise BridgeError(f"--{option}", f"needs a broker at mqtts:// or wss://, not {url}")
        if path and not Path(path).is_file():
            raise BridgeError(f"--{option}", f"there is no file {path}")
    if bool(args.cert) != bool(args.key):
        raise BridgeError("--cert", "a certificate and its key belong together")
    if not url.is_tls:
        return None
    try:
        return tls_context(args.cafile, args.cert, args.key, checks_host=not args.insecure)
    except OSError as error:
        raise BridgeError("--cafile", f"or --cert, --key: {error}") from None


def _first_line(option: str, path: str) -> str:
    try:
        return Path(path).read_text().partition("\n")[0]
    except (OSError, UnicodeDecodeError) as error:
        why = (error.strerror or str(error)) if isinstance(error, OSError) else "it is not text"
        raise BridgeError(option, f"{path}: {why}") from None


def _whole(option: str, text: str, most: int) -> int:
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= most:
        raise BridgeError(option, f"{text!r} is not a whole number from 1 to {most}")
    return int(text)


def _wanted(args: argparse.Namespace) -> dict[str, Any]:
    """Return the settings of the stream that were given."""
    found: dict[str, Any] = {}
    if args.partitions is not None:
        found["partitions"] = _whole("--partitions", args.partitions, 256)
    if args.retain is not None:
        found["retain_s"] = parse_duration("--retain", args.retain)
    if args.max_bytes is not None:
        found["max_bytes"] = parse_bytes("--max-bytes", args.max_bytes)
    for option in ("partition_by", "event_time", "sent_time"):
        if getattr(args, option) is not None:
            found[option] = getattr(args, option)
    if args.schema is not None:
        try:
            found["schema"] = parse_schema(Path(args.schema).read_text())
            shape_of(found["schema"])
        except (OSError, UnicodeDecodeError, SchemaError) as error:
            why = error.strerror if isinstance(error, OSError) else error
            raise BridgeError("--schema", f"{args.schema}: {why}") from None
    StreamSettings(args.stream, **found).checked().check_schema()
    return found


def _stream(log: Log, name: str, wanted: dict[str, Any]) -> Stream:
    if name not in log.streams:
        return log.create(StreamSettings(name, **wanted))
    partitions = log.streams[name].settings.partitions
    if wanted.get("partitions", partitions) != partitions:
        raise BridgeError("--partitions", f"stream {name!r} has {partitions}, which cannot change")
    if wanted:
        log.change(name, **wanted)
    return log.streams[name]
