"""`fleetmq ctl`: lists and details of a running broker, such as clients, sessions and events.

Each list is declared once, in `LISTS`: its path in the API, its columns, and the options that
filter it. Columns that a broker does not give stay empty; `--json` prints what it answers.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from mqtt_broker.cli import api_client
from mqtt_broker.cli.api_client import Api, ago, duration, escaped
from mqtt_broker.cli.ctl_output import (
    Column,
    columns_of,
    print_details,
    print_json,
    print_table,
)
from mqtt_broker.cli.errors import DONE, FAILED, UsageError
from mqtt_broker.cli.stream_text import count_text

LIMIT: Final = 50


class Filter(NamedTuple):
    """An option that becomes a parameter of the list."""

    option: str
    metavar: str
    help: str
    kind: str = "text"  # text, whole, duration, since, flag


class List(NamedTuple):
    """A list of the API."""

    path: str
    summary: str
    columns: Sequence[Column]
    filters: Sequence[Filter] = ()
    argument: Filter | None = None  # given without an option's name
    sorts: str = ""  # what it may be sorted by
    key: str = "items"
    is_paged: bool = True


_CLIENT: Final = Filter("client", "ID", "only of this client")
_SINCE: Final = Filter("since", "TIME", "only of the last 10m, 2h, 1d", "since")
_EVENT_KINDS: Final = (
    "connected, disconnected, dropped, events_lost, not_connected, refused, session_ended, "
    "taken_over"
)

LISTS: Final[dict[str, List]] = {
    "clients": List(
        "/clients",
        "list clients, those that are away with a session among them",
        [
            Column("CLIENT", "id"),
            Column("ONLINE", "online", "state"),
            Column("USER", "user"),
            Column("ADDRESS", "address"),
            Column("VERSION", "version"),
            Column("SUBS", "subscriptions", "count"),
            Column("INFLIGHT", "inflight", "count"),
            Column("QUEUED", "queued", "count"),
            Column("DROPPED", "dropped", "bad"),
            Column("UNREAD", "unread_bytes", "bytes"),
            Column("IN", "messages_in", "count"),
            Column("OUT", "messages_out", "count"),
            Column("IDLE", "idle_s", "seconds"),
        ],
        [
            Filter("id", "ID", "only this client id"),
            Filter("user", "NAME", "only this user"),
            Filter("address", "ADDRESS", "only this IP address"),
            Filter("version", "N", "only this MQTT version: 3, 4 or 5", "whole"),
            Filter("listener", "NAME", "only of this listener"),
            Filter("online", "", "only connected clients", "flag"),
            Filter("backlog-min", "N", "only with so many messages waiting", "whole"),
            Filter("drops-min", "N", "only with so many messages dropped", "whole"),
            Filter("idle-min", "TIME", "only idle for 10m, 2h, 1d or more", "duration"),
            Filter("connected-since", "TIME", "only connected in the last 10m, 2h, 1d", "since"),
        ],
        Filter("q", "TEXT", "only with this text in id, user or address"),
        "id backlog drops idle connected_at messages_in messages_out unread",
    ),
    "sessions": List(
        "/sessions",
        "list sessions with their queues",
        [
            Column("CLIENT", "id"),
            Column("ONLINE", "online", "state"),
            Column("SUBS", "subscriptions", "count"),
            Column("INFLIGHT", "inflight", "count"),
            Column("QUEUED", "queued", "count"),
            Column("BYTES", "queued_bytes", "bytes"),
            Column("DROPPED", "dropped", "bad"),
            Column("STORED", "stored", "state"),
            Column("DISCONNECTED", "disconnected_at", "time"),
            Column("EXPIRES", "expires_at", "time"),
        ],
        [
            Filter("online", "", "only of connected clients", "flag"),
            Filter("stored", "", "only those in the store", "flag"),
        ],
        Filter("q", "TEXT", "only with this text in the client id or the user"),
        "id backlog created_at expires_at",
    ),
    "subs": List(
        "/subscriptions",
        "list subscriptions, or who would get a topic",
        [
            Column("CLIENT", "client"),
            Column("FILTER", "filter"),
            Column("QOS", "qos", "count"),
            Column("GROUP", "group"),
            Column("ONLINE", "online", "state"),
            Column("PERMITTED", "permitted", "state"),
        ],
        [
            _CLIENT,
            Filter("filter", "FILTER", "only this Topic Filter"),
            Filter("q", "TEXT", "only with this text in the filter or the client id"),
            Filter("shared", "", "only shared subscriptions", "flag"),
        ],
    ),
    "topics": List(
        "/topics",
        "list the busiest topics",
        [
            Column("TOPIC", "topic"),
            Column("MESSAGES", "messages_in", "count"),
            Column("RATE/S", "rate_in", "rate"),
            Column("BYTES", "bytes_in", "bytes"),
            Column("LAST", "last_at", "time"),
        ],
    ),
    "events": List(
        "/events",
        "list events of clients, latest first",
        [
            Column("AT", "at", "time"),
            Column("KIND", "kind"),
            Column("CLIENT", "client"),
            Column("TIMES", "count", "count"),
            Column("TOPIC", "topic"),
            Column("REASON", "reason"),
            Column("ADDRESS", "address"),
        ],
        [_CLIENT, Filter("kind", "KIND", f"only of this kind: {_EVENT_KINDS}"), _SINCE],
    ),
    "slow": List(
        "/slow",
        "rank subscribers by the time they take to acknowledge",
        [
            Column("CLIENT", "client"),
            Column("TOPIC", "topic"),
            Column("SLOWEST", "slowest_s", "seconds"),
            Column("P50", "p50_s", "seconds"),
            Column("P99", "p99_s", "seconds"),
            Column("AVERAGE", "average_s", "seconds"),
            Column("TIMES", "count", "count"),
            Column("LAST", "last_at", "time"),
        ],
        [Filter("limit", "N", "at most so many (50)", "whole")],
        is_paged=False,
    ),
    "streams": List(
        "/streams",
        "list streams",
        [
            Column("STREAM", "name"),
            Column("FILTER", "settings.filter"),
            Column("PARTITIONS", "settings.partitions", "count"),
            Column("SEGMENTS", "segments", "count"),
            Column("BYTES", "bytes", "bytes"),
            Column("ENDS", "ends"),
            Column("GROUPS", "groups"),
        ],
        key="streams",
        is_paged=False,
    ),
    "groups": List(
        "/streams/{}/groups",
        "list consumer groups of a stream",
        [
            Column("GROUP", "name"),
            Column("LAG", "lag"),
            Column("COMMITTED", "committed"),
            Column("MEMBERS", "members"),
        ],
        argument=Filter("stream", "STREAM", "the stream"),
        key="groups",
        is_paged=False,
    ),
    "bans": List(
        "/bans",
        "list the bans in force",
        [
            Column("KIND", "kind"),
            Column("VALUE", "value"),
            Column("UNTIL", "until", "time"),
            Column("BY", "made_by"),
            Column("WHY", "why"),
        ],
        key="bans",
        is_paged=False,
    ),
    "traces": List(
        "/traces",
        "list traces, the newest first",
        [
            Column("TRACE", "n", "count"),
            Column("CLIENT", "client"),
            Column("TOPIC", "topic"),
            Column("ADDRESS", "address"),
            Column("PACKETS", "packets", "count"),
            Column("AT MOST", "packets_max", "count"),
            Column("ENDS", "ends_at", "time"),
            Column("OVER", "is_over"),
        ],
    ),
    "users": List(
        "/users",
        "list users",
        [
            Column("USER", "name"),
            Column("ROLES", "roles"),
            Column("SOURCE", "source"),
            Column("KIND", "kind"),
            Column("ENABLED", "is_enabled", "state"),
        ],
        [Filter("role", "ROLE", "only with this role")],
        Filter("q", "TEXT", "only with this text in the name"),
    ),
    "roles": List(
        "/roles",
        "list roles and their users",
        [Column("ROLE", "role"), Column("USERS", "users"), Column("PLACE", "place")],
        is_paged=False,
    ),
    "rules": List(
        "/rules",
        "list access rules in the order in which they are asked",
        [
            Column("RULE", "id"),
            Column("PERMIT", "permit"),
            Column("ACTION", "action"),
            Column("TOPICS", "topics"),
            Column("USERS", "users"),
            Column("ROLES", "roles"),
            Column("CLIENTS", "clients"),
            Column("ADDRESSES", "addresses"),
            Column("PLACE", "place"),
        ],
        is_paged=False,
    ),
    "listeners": List(
        "/listeners",
        "list listeners",
        [
            Column("LISTENER", "name"),
            Column("URL", "url"),
            Column("CLIENTS", "connections", "count"),
            Column("AT MOST", "max_connections", "count"),
            Column("AFTER A RESTART", "after_restart"),
        ],
        is_paged=False,
    ),
    "certificates": List(
        "/certificates",
        "list certificates, those that end first at the top",
        [
            Column("ENDS", "ends_at", "time"),
            Column("LISTENER", "listener"),
            Column("KEY", "key"),
            Column("NAMES", "names"),
            Column("FILE", "file"),
        ],
        is_paged=False,
    ),
    "logs": List(
        "/logs",
        "show the last lines of the broker's log",
        [Column("AT", "at", "time"), Column("LEVEL", "level"), Column("TEXT", "text")],
        [
            Filter("level", "LEVEL", "only this level and above"),
            Filter("limit", "N", "the newest so many (200)", "whole"),
        ],
        Filter("q", "TEXT", "only lines with this text"),
        is_paged=False,
    ),
    "backups": List(
        "/backups",
        "list backups",
        [
            Column("BACKUP", "id"),
            Column("STATE", "state", "state"),
            Column("CREATED", "created_at", "time"),
            Column("SIZE", "bytes", "bytes"),
            Column("DIRECTORY", "directory"),
            Column("ERROR", "error"),
        ],
    ),
}


class Detail(NamedTuple):
    """An answer of the API that is one object."""

    path: str
    summary: str


DETAILS: Final[dict[str, Detail]] = {
    "config": Detail("/config", "show the configuration in force, and where it comes from"),
    "health": Detail("/health", "show the health of the broker's parts"),
    "overview": Detail("/overview", "show rates, counts and health"),
}
_MESSAGE: Final = [
    Column("PLACE", "place", "count"),
    Column("TOPIC", "topic"),
    Column("QOS", "qos", "count"),
    Column("RETAIN", "retain"),
    Column("BYTES", "payload_bytes", "bytes"),
    Column("PUBLISHER", "publisher"),
    Column("RECEIVED", "received_at", "time"),
    Column("EXPIRES", "expires_at", "time"),
]
_PARTS: Final[dict[str, Sequence[Column]]] = {
    "subscriptions": [one for one in LISTS["subs"].columns if one.key != "client"],
    "inflight": _MESSAGE,
    "queue": _MESSAGE,
    "events": [one for one in LISTS["events"].columns if one.key != "client"],
}
_PART_NAMES: Final = {"inflight": "messages in flight", "queue": "queued messages"}


def add_actions(actions: Any) -> None:
    """Add an action for each list and each detail."""
    for name, one in LISTS.items():
        if name == "bans":  # also without a broker: see `ctl_access`
            continue
        parser = _add(actions, name, one.summary)
        _add_filters(parser, one)
        parser.set_defaults(act=_list)
    _add_match(actions.choices["subs"])
    for name, detail in DETAILS.items():
        parser = _add(actions, name, detail.summary)
        parser.set_defaults(act=_detail)
    client = _add(actions, "client", "show one client")
    client.add_argument("client", metavar="CLIENT", help="the client id")
    part = client.add_mutually_exclusive_group()
    for name in _PARTS:
        text = f"list its {_PART_NAMES.get(name, name)}"
        part.add_argument(f"--{name}", action="store_true", help=text)
    client.add_argument("--limit", type=whole, default=LIMIT, metavar="N", help=_LIMIT_HELP)
    client.set_defaults(act=_client)


_LIMIT_HELP: Final = f"at most so many ({LIMIT}; 0: all)"


def _add(actions: Any, name: str, summary: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = actions.add_parser(name, help=summary)
    api_client.add_options(parser)
    return parser


def _add_filters(parser: argparse.ArgumentParser, one: List) -> None:
    if one.argument is not None:
        is_needed = "{}" in one.path
        parser.add_argument(
            one.argument.option,
            metavar=one.argument.metavar,
            nargs=None if is_needed else "?",
            help=one.argument.help,
        )
    for wanted in one.filters:
        if wanted.kind == "flag":
            parser.add_argument(
                f"--{wanted.option}", action=argparse.BooleanOptionalAction, help=wanted.help
            )
        else:
            parser.add_argument(
                f"--{wanted.option}",
                metavar=wanted.metavar,
                type=whole if wanted.kind == "whole" else str,
                help=wanted.help,
            )
    if one.sorts:
        parser.add_argument("--sort", metavar="KEY", help=f"by {', '.join(one.sorts.split())}")
        parser.add_argument("--desc", action="store_true", help="with --sort: the largest first")
    if one.is_paged:
        parser.add_argument("--limit", type=whole, default=LIMIT, metavar="N", help=_LIMIT_HELP)


def _add_match(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--match", metavar="TOPIC", help="who would get a message to this topic")


def whole(text: str) -> int:
    """Parse an option that is a whole number of 0 or more."""
    if not text.isascii() or not text.isdigit() or len(text) > 9:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of 0 or more")
    return int(text)


def query_of(args: argparse.Namespace, one: List) -> dict[str, object]:
    """Return the parameters of a list that the options give."""
    found: dict[str, object] = {}
    for wanted in one.filters:
        value = getattr(args, wanted.option.replace("-", "_"))
        if value is None:
            continue
        key = wanted.option.replace("-", "_")
        option = f"--{wanted.option}"
        if wanted.kind == "duration":
            found[f"{key}_s"] = duration(option, value)
        elif wanted.kind == "since":
            found[key] = ago(option, value)
        else:
            found[key] = value
    if one.argument is not None and "{}" not in one.path:
        if value := getattr(args, one.argument.option):
            found[one.argument.option] = value
    if one.sorts and args.sort:
        if args.sort not in one.sorts.split():
            raise UsageError(
                f"--sort {args.sort!r}: expected one of {', '.join(one.sorts.split())}"
            )
        found["sort"] = f"-{args.sort}" if args.desc else args.sort
    return found


def _list(args: argparse.Namespace) -> int:
    one = LISTS[args.action]
    api = api_client.connect(args)
    if getattr(args, "match", None) is not None:
        return _show_match(api, args)
    path = one.path
    if "{}" in path and one.argument is not None:
        path = path.format(escaped(getattr(args, one.argument.option)))
    return show_list(api, args, path, one, query_of(args, one))


def _show_match(api: Api, args: argparse.Namespace) -> int:
    return show_list(api, args, "/subscriptions/match", LISTS["subs"], {"topic": args.match})


def show_list(
    api: Api, args: argparse.Namespace, path: str, one: List, query: Mapping[str, object]
) -> int:
    """Print a list, as a table or as JSON."""
    if one.is_paged:
        items, total = api.pages(path, query, args.limit)
        document: object = {"items": items, "total": total}
    else:
        document = api.get(path, query)
        items = document[one.key] if isinstance(document, dict) else []
        total = len(items)
    if args.json:
        print_json(document)
        return DONE
    print_items(items, one.columns)
    if total > len(items):
        print(f"{count_text(len(items))} of {count_text(total)}; --limit 0 shows all")
    return DONE


def print_items(items: Sequence[Mapping[str, Any]], columns: Sequence[Column]) -> None:
    """Print a table of objects: with these columns, as far as there are values, or with all."""
    keys = {key for item in items for key in item}
    known = [column for column in columns if column.key.partition(".")[0] in keys]
    shown = (known or columns_of(items)) if items else columns
    if shown:
        print_table(items, shown)


def _detail(args: argparse.Namespace) -> int:
    found = api_client.connect(args).get(DETAILS[args.action].path)
    print_json(found) if args.json else print_details(found)
    is_failing = args.action == "health" and found.get("status") == "failing"
    return FAILED if is_failing else DONE


def _client(args: argparse.Namespace) -> int:
    api = api_client.connect(args)
    path = f"/clients/{escaped(args.client)}"
    part = next((name for name in _PARTS if getattr(args, name)), None)
    if part is not None:
        return show_list(api, args, f"{path}/{part}", List("", "", _PARTS[part]), {})
    found = api.get(path)
    print_json(found) if args.json else print_details(found)
    return DONE
