"""`fleetmq ctl top|trace`: output that goes on until q, Ctrl-C or the broker ends it."""

from __future__ import annotations

import argparse
import contextlib
import os
import select
import shutil
import sys
import time
from collections.abc import Iterator
from typing import Any, Final

from mqtt_broker.cli import api_client
from mqtt_broker.cli.api_client import Api, duration, escaped
from mqtt_broker.cli.ctl_lists import LISTS
from mqtt_broker.cli.ctl_output import (
    Column,
    cell,
    coloured,
    cut,
    has_colour,
    print_json_line,
    span,
    table,
)
from mqtt_broker.cli.errors import DONE, Failure, UsageError
from mqtt_broker.cli.stream_text import count_text, plain, size_text

_SUBJECTS: Final = ("client", "topic", "address")
_CLEAR: Final = "\x1b[H\x1b[2J"
_SORTS: Final = ("messages_in", "messages_out", "backlog", "drops", "unread", "idle")
_TITLES: Final = [
    column
    for column in LISTS["clients"].columns
    if column.key not in ("online", "version", "subscriptions")
]


def add_actions(actions: Any) -> None:
    """Add the actions."""
    top = actions.add_parser(
        "top",
        help="show rates, health and the busiest clients, live",
        description="Show rates, health and the busiest clients, live. q or Ctrl-C ends it; "
        "--json prints an object each time.",
    )
    api_client.add_options(top)
    top.add_argument("--interval", metavar="TIME", default="2s", help="time between two looks (2s)")
    top.add_argument("--count", type=int, default=0, metavar="N", help="end after so many looks")
    top.add_argument(
        "--sort",
        choices=_SORTS,
        default="messages_in",
        help="order of the clients, most first (messages_in)",
    )
    top.set_defaults(act=_top)
    trace = actions.add_parser(
        "trace",
        help="print the packets of a client, a topic or an address, live",
        description="Print packets as they come and go. It ends with Ctrl-C, or by itself.",
    )
    api_client.add_options(trace)
    trace.add_argument("subject", choices=(*_SUBJECTS, "stop"), help="what to trace, or stop")
    trace.add_argument("value", metavar="VALUE", help="a client id, a Topic Filter, an IP address; "
                       "for stop the number of a trace")  # fmt: skip
    trace.add_argument("--payloads", action="store_true", help="print payloads, too")
    trace.add_argument(
        "--for", dest="span", metavar="TIME", default="10m", help="end after this time (10m)"
    )
    trace.add_argument("--max", type=int, metavar="N", help="end after so many packets")
    trace.set_defaults(act=_trace)


# Traces.


def _trace(args: argparse.Namespace) -> int:
    api = api_client.connect(args)
    if args.subject == "stop":
        api.send("DELETE", f"/traces/{escaped(args.value)}")
        return DONE
    body: dict[str, Any] = {
        args.subject: args.value,
        "payloads": args.payloads,
        "for_s": duration("--for", args.span),
    }
    if args.max is not None:
        body["packets_max"] = args.max
    begun = api.send("POST", "/traces", body)
    path = f"/traces/{begun['n']}"
    try:
        for packet in api.lines(f"{path}/packets"):
            print_json_line(packet) if args.json else print(packet_line(packet), flush=True)
    finally:
        with contextlib.suppress(Failure, UsageError):  # it has ended by itself
            api.send("DELETE", path)
    return DONE


def packet_line(packet: dict[str, Any]) -> str:
    """Return a packet of a trace as one line."""
    at = packet.get("at")
    moment = ""
    if isinstance(at, int | float):
        moment = time.strftime("%H:%M:%S", time.gmtime(at)) + f".{int(at % 1 * 1000):03d}"
    if "lost" in packet:
        return f"{moment} {packet['lost']} packets were not shown: this reader is too slow".strip()
    parts = [moment, *(plain(str(packet[key])) for key in ("client", "direction", "packet")
                       if packet.get(key) is not None)]  # fmt: skip
    shown = ("at", "client", "direction", "packet")
    parts += [
        f"{plain(key)}={plain(str(value))}"
        for key, value in packet.items()
        if key not in shown and value not in (None, "", False)
    ]
    return " ".join(filter(None, parts))


# Top.


def _top(args: argparse.Namespace) -> int:
    interval_s = duration("--interval", args.interval)
    api = api_client.connect(args)
    is_live = sys.stdout.isatty() and not args.json
    looks = 0
    with _keys(is_on=is_live) as wait_for_key:
        while True:
            found = _look(api, args.sort)
            looks += 1
            if args.json:
                print_json_line(found)
            else:
                size = shutil.get_terminal_size((100, 24))
                lines = screen(found, size.columns, size.lines - 1, has_colours=has_colour())
                print((_CLEAR if is_live else "") + "\n".join(lines), flush=True)
            is_last = looks == args.count or (not is_live and not args.json and not args.count)
            if is_last or wait_for_key(interval_s) in ("q", "Q", "\x03"):
                return DONE


def _look(api: Api, sort: str) -> dict[str, Any]:
    overview = api.get("/overview")
    clients, _ = api.pages("/clients", {"sort": f"-{sort}"}, 50)
    return {"overview": overview, "clients": clients}


def screen(found: dict[str, Any], width: int, lines: int, *, has_colours: bool) -> list[str]:
    """Return what `top` shows: a few lines of figures, and as many clients as there is space."""
    head = [cut(line, width) for line in _figures(found["overview"])]
    if health := str(found["overview"].get("health", "")):
        shown = cell(health, "state")
        head[0] = head[0].replace(
            f"health {health}", f"health {coloured(health, shown.colour, is_on=has_colours)}"
        )
    columns = [one for one in _TITLES if any(one.key in item for item in found["clients"])]
    rows = table(
        found["clients"][: max(1, lines - len(head) - 2)],
        columns or [Column("CLIENT", "id")],
        width=width,
        has_colours=has_colours,
    )
    return [*head, "", *rows]


def _figures(one: dict[str, Any]) -> list[str]:
    rates = one.get("rates", {})
    latency = one.get("ack_latency_ms") or {}
    store = one.get("store") or {}
    why = "; ".join(map(plain, one.get("why", [])))
    return [
        (
            f"FleetMQ {plain(str(one.get('version', '')))} up {span(one.get('uptime_s'))}, "
            f"health {plain(str(one.get('health', '')))}{f': {why}' if why else ''}"
        ),
        (
            f"messages  in {_rate(rates, 'messages_in')}/s  out {_rate(rates, 'messages_out')}/s  "
            f"dropped {_rate(rates, 'drops')}/s"
        ),
        f"bytes     in {_size(rates, 'bytes_in')}/s  out {_size(rates, 'bytes_out')}/s",
        (
            f"clients   online {_number(one, 'clients_online')}, "
            f"sessions {_number(one, 'sessions')}, "
            f"subscriptions {_number(one, 'subscriptions')}, retained {_number(one, 'retained')}, "
            f"queued {_number(one, 'queued_messages')}"
        ),
        (
            f"acks      p50 {_ms(latency.get('p50'))}  p99 {_ms(latency.get('p99'))}  "
            f"loop late {_ms(one.get('loop_late_ms'))}  store lag {store.get('lag', 0)}"
        ),
        f"process   cpu {_share(one.get('cpu'))}  memory {_size(one, 'memory_bytes')}",
    ]


def _rate(found: dict[str, Any], key: str) -> str:
    return cell(found.get(key, 0), "rate").text


def _size(found: dict[str, Any], key: str) -> str:
    value = found.get(key) or 0
    return size_text(round(value)) if isinstance(value, int | float) else "-"


def _number(found: dict[str, Any], key: str) -> str:
    value = found.get(key) or 0
    return count_text(value) if isinstance(value, int) else "-"


def _ms(value: Any) -> str:
    return f"{value:.1f} ms" if isinstance(value, int | float) else "-"


def _share(value: Any) -> str:
    return f"{100 * value:.0f} %" if isinstance(value, int | float) else "-"


@contextlib.contextmanager
def _keys(*, is_on: bool) -> Iterator[Any]:
    """Yield a function that waits for a key or so many seconds, and returns the key or ''."""
    if not is_on or not sys.stdin.isatty():
        yield _sleep
        return
    import termios
    import tty

    file = sys.stdin.fileno()
    before = termios.tcgetattr(file)

    def wait(seconds: float) -> str:
        ready, _, _ = select.select([file], [], [], seconds)
        return os.read(file, 1).decode(errors="replace") if ready else ""

    try:
        tty.setcbreak(file)
        yield wait
    finally:
        termios.tcsetattr(file, termios.TCSADRAIN, before)


def _sleep(seconds: float) -> str:
    time.sleep(seconds)
    return ""
