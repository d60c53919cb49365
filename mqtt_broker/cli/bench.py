"""`fleetmq bench`: load any MQTT broker with connections, publishers or subscribers.

    fleetmq bench conn -c 10000 -R 500
    fleetmq bench sub  -c 100 -t 'bench/#' -q 1
    fleetmq bench pub  -c 1000 -I 1 -t bench/%i -q 1 -s 256

A row of figures each second, and a summary at the end. Durations count from the time at which a
message was due, also when the broker, or this program, was too slow to send it then. Exit code 1
when a client could not connect, was disconnected, or had a message or subscription refused.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from iot_sim.bench import run as bench
from iot_sim.bench.counts import Sample
from iot_sim.bench.load import STAMP_BYTES
from iot_sim.bench.plan import CONNECT, PUBLISH, SUBSCRIBE, Plan
from iot_sim.bench.table import CsvFile, Table, summary
from iot_sim.run import processes
from mqtt_broker.cli import client_options as options
from mqtt_broker.cli.errors import DONE, FAILED, Failure, UsageError
from mqtt_broker.cli.numbers import real, whole
from mqtt_broker.codec.constants import NEVER_EXPIRES, REMAINING_LENGTH_MAX
from mqtt_broker.topics.names import filter_problem

BROKER_DEFAULT: Final = "mqtt://127.0.0.1:1883"
WORKERS_MAX: Final = 64
CLIENTS_MAX: Final = 1_000_000
_SECONDS: Final = real(0.0001, 31 * 86_400, "a number of seconds above 0")
_RATE: Final = real(0.000_001, 10_000_000, "a rate a second above 0")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    for name, text in (
        (CONNECT, "connect clients, and keep them connected"),
        (PUBLISH, "connect publishers, which send at a rate"),
        (SUBSCRIBE, "connect subscribers, which count what arrives"),
    ):
        action = actions.add_parser(name, help=text)
        _add_connection(action)
        if name != CONNECT:
            _add_topic(action, name)
        if name == PUBLISH:
            _add_messages(action)


def _add_connection(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--broker", default=BROKER_DEFAULT, metavar="URL", help=f"URL ({BROKER_DEFAULT})")
    add("--cafile", default="", metavar="FILE", help="trust these certificates")
    add("--insecure", action="store_true", help="do not check the broker's certificate")
    add("--cert", default="", metavar="FILE", help="certificate of every client")
    add("--key", default="", metavar="FILE", help="private key of the certificate")
    add("-u", "--username", metavar="USER", help="user name; %%i is the number of the client")
    add("-P", "--pw", metavar="PASSWORD", help="password")
    add("-V", "--protocol-version", choices=options.VERSIONS, default="5", metavar="{5,311,31}",
        help="MQTT version (5)")  # fmt: skip
    add("-c", "--count", type=_count(1, CLIENTS_MAX), default=200, metavar="N",
        help="number of clients (200)")  # fmt: skip
    add("-n", "--startnumber", type=_count(0, 10**9), default=1, metavar="N",
        help="number of the first client, for several machines (1)")  # fmt: skip
    add("-R", "--connrate", type=_RATE, default=100.0, metavar="RATE",
        help="connections a second (100)")  # fmt: skip
    add("--prefix", default="bench", help="first part of the client ids (bench)")
    add("-k", "--keepalive", type=_count(0, 65_535), default=60, metavar="SECONDS",
        help="keep alive; 0: none (60)")  # fmt: skip
    add("-x", "--session-expiry", type=_count(0, NEVER_EXPIRES), default=0, metavar="SECONDS",
        help="keep the sessions so long, and resume those of an earlier run (0)")  # fmt: skip
    add("--reconnect", action="store_true", help="connect again after a second")
    add("-d", "--duration", type=_SECONDS, default=0.0, metavar="SECONDS",
        help="end after this time (when it is interrupted)")  # fmt: skip
    add("--workers", type=_count(1, WORKERS_MAX), default=1, metavar="N",
        help="number of processes (1)")  # fmt: skip
    add("--csv", metavar="FILE", help="write the figures of each second as CSV")


def _add_topic(parser: argparse.ArgumentParser, action: str) -> None:
    what = "Topic Filter" if action == SUBSCRIBE else "topic of the messages"
    places = "%%i is the client's number, %%c its client id, %%u its user name"
    parser.add_argument("-t", "--topic", required=True, help=f"{what}; {places}")
    parser.add_argument(
        "-q", "--qos", type=int, choices=(0, 1, 2), default=0, metavar="QOS", help="0, 1 or 2 (0)"
    )


def _add_messages(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    rate = parser.add_mutually_exclusive_group()
    rate.add_argument("-I", "--interval", type=_SECONDS, metavar="SECONDS",
                      help="between two messages of one publisher (1)")  # fmt: skip
    rate.add_argument("--rate", type=_RATE, help="messages a second of all publishers together")
    payload = parser.add_mutually_exclusive_group()
    payload.add_argument("-s", "--size", type=_count(STAMP_BYTES, REMAINING_LENGTH_MAX // 2),
                         default=256, metavar="BYTES",
                         help="bytes of a payload, with the time of sending (256)")  # fmt: skip
    payload.add_argument("-m", "--message", metavar="TEXT", help="the payload")
    add("-L", "--limit", type=_count(1, 10**9), default=0, metavar="N",
        help="end after N messages of each publisher")  # fmt: skip
    add("-F", "--inflight", type=_count(1, 65_535), default=100, metavar="N",
        help="messages of a publisher that may await an acknowledgement (100)")  # fmt: skip
    add("-r", "--retain", action="store_true", help="retain the messages")


def run(args: argparse.Namespace) -> int:
    plan = make_plan(args)
    try:
        broker = processes.parse_broker(
            args.broker,
            ca_file=args.cafile,
            is_insecure=args.insecure,
            cert_file=args.cert,
            key_file=args.key,
        )
        with contextlib.ExitStack() as stack:
            table = Table(plan.action, sys.stdout)
            csv_file = _csv_file(args.csv, stack)
            start = time.monotonic()

            def put(sample: Sample) -> None:
                table.put(sample)
                if csv_file is not None:
                    csv_file.put(sample)

            whole = bench.run(plan, broker, args.workers, put)
            seconds = max(0.001, time.monotonic() - start)
    except processes.SetupError as error:
        raise UsageError(str(error)) from None
    except processes.RunError as error:
        raise Failure(str(error)) from None
    for line in summary(plan.action, whole.total, seconds, whole.late_us_max):
        print(line)
    return FAILED if whole.total.errors or whole.total.lost else DONE


def make_plan(args: argparse.Namespace) -> Plan:
    """Return what the options ask for. Raises UsageError."""
    if args.workers > args.count:
        raise UsageError(f"--workers is {args.count} or less, the number of clients")
    publishes = args.action == PUBLISH
    interval_s = 1.0
    if publishes:
        interval_s = args.count / args.rate if args.rate else args.interval or 1.0
    plan = Plan(
        args.action,
        args.count,
        args.startnumber,
        args.connrate,
        args.duration,
        options.VERSIONS[args.protocol_version],
        args.prefix,
        args.username,
        None if args.pw is None else args.pw.encode(),
        args.keepalive,
        clean_start=not args.session_expiry,
        session_expiry_s=args.session_expiry,
        reconnects=args.reconnect,
        topic=getattr(args, "topic", ""),
        qos=getattr(args, "qos", 0),
        retain=publishes and args.retain,
        interval_s=interval_s,
        messages=args.limit if publishes else 0,
        payload=args.message.encode() if publishes and args.message is not None else None,
        payload_bytes=args.size if publishes else 0,
        inflight=args.inflight if publishes else 1,
    )
    if publishes:
        options.check_topic_name(plan.topic_of(plan.first), "-t")
    elif plan.topic and (problem := filter_problem(plan.topic_of(plan.first))):
        raise UsageError(f"-t {plan.topic!r}: {problem}")
    return plan


def _csv_file(path: str | None, stack: contextlib.ExitStack) -> CsvFile | None:
    if path is None:
        return None
    try:
        return CsvFile(stack.enter_context(Path(path).open("w", newline="")))
    except OSError as error:
        raise UsageError(f"--csv {path}: {error.strerror}") from None


def _count(low: int, high: int) -> Callable[[str], int]:
    return whole(low, high, f"a number from {low:,} to {high:,}")
