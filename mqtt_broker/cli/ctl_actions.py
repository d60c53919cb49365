"""`fleetmq ctl`: what changes a running broker, and questions to it.

publish, retained     messages
kick, expire, clear-queue          one client
why                   what was decided about a message or a client
backup, reload, log-level          the broker itself
"""

from __future__ import annotations

import argparse
import base64
import sys
import time
from typing import Any, Final

from mqtt_broker.cli import api_client
from mqtt_broker.cli.api_client import Api, ago, escaped
from mqtt_broker.cli.ctl_lists import LIMIT, LISTS, List, print_items, show_list, whole
from mqtt_broker.cli.ctl_output import (
    Column,
    moment,
    print_details,
    print_json,
)
from mqtt_broker.cli.errors import DONE, FAILED, Failure, UsageError
from mqtt_broker.cli.stream_text import count_text, payload_text, plain, size_text
from mqtt_broker.codec.reasons import ADMINISTRATIVE_ACTION

_FAILURE: Final = 0x80  # reason codes from here on are errors
LOOK_S: Final = 0.25
_RETAINED: Final = List(
    "/retained",
    "",
    [
        Column("TOPIC", "topic"),
        Column("QOS", "qos", "count"),
        Column("BYTES", "payload_bytes", "bytes"),
        Column("AT", "received_at", "time"),
        Column("PUBLISHER", "publisher"),
    ],
)
_LEVELS: Final = ("debug", "info", "warning", "error")


def add_actions(actions: Any) -> None:
    """Add the actions."""
    _add_publish(actions)
    _add_retained(actions)
    kick = _add(actions, "kick", "disconnect a client", _kick)
    kick.add_argument("client", metavar="CLIENT", help="the client id")
    kick.add_argument(
        "--reason-code",
        type=lambda text: int(text, 0),
        default=ADMINISTRATIVE_ACTION,
        metavar="N",
        help="reason code that it is sent (0x98, Administrative action)",
    )
    kick.add_argument("--remove-session", action="store_true", help="end its session, too")
    for name, summary, path in (
        ("clear-queue", "remove the messages that wait for a client", "clear-queue"),
        ("expire", "end the session of a client that is away", "expire"),
    ):
        action = _add(actions, name, summary, _act_on_client)
        action.add_argument("client", metavar="CLIENT", help="the client id")
        action.set_defaults(path=path)
    why = _add(actions, "why", "tell what became of messages, and why", _why)
    why.add_argument(
        "--client", metavar="ID", required=True, help="the client that got them, or did not"
    )
    why.add_argument("--topic", metavar="TOPIC", help="a topic or a Topic Filter (any)")
    why.add_argument(
        "--message",
        metavar="NAME",
        help="one message: PUBLISHER@TIME, the time as 12:00:01 or as --facts shows it (UTC)",
    )
    why.add_argument("--since", metavar="TIME", help="look back so far: 10m, 2h")
    why.add_argument("--facts", action="store_true", help="print what was recorded, too")
    backup = _add(actions, "backup", "take a backup while the broker runs", _backup)
    backup.add_argument(
        "directory",
        metavar="DIRECTORY",
        nargs="?",
        help="a name below backups/ in the data directory, or an absolute path on the broker's "
        "machine (default: the time)",
    )
    backup.add_argument("--no-wait", action="store_true", help="do not wait for its end")
    backup.add_argument("--quiet", action="store_true", help="print no progress")
    _add(actions, "reload", "read the configuration again, without a restart", _reload)
    level = _add(actions, "log-level", "show or change the level of the log", _log_level)
    level.add_argument(
        "level", metavar="LEVEL", nargs="?", choices=_LEVELS, help=", ".join(_LEVELS)
    )


def _add(actions: Any, name: str, summary: str, act: Any) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = actions.add_parser(name, help=summary)
    api_client.add_options(parser)
    parser.set_defaults(act=act)
    return parser


def _print(args: argparse.Namespace, found: Any, text: str) -> None:
    """Print an answer: as JSON, or as a line."""
    print_json(found) if args.json else print(text)


# Messages.


def _add_publish(actions: Any) -> None:
    publish = _add(actions, "publish", "publish a message", _publish)
    publish.add_argument("topic", metavar="TOPIC", help="the Topic Name")
    publish.add_argument(
        "payload", metavar="PAYLOAD", nargs="?", default="", help="the payload; -: from stdin"
    )
    publish.add_argument("--qos", type=int, choices=(0, 1, 2), default=0, help="0, 1 or 2 (0)")
    publish.add_argument("--retain", action="store_true", help="retain the message")
    publish.add_argument(
        "--expiry", metavar="TIME", help="it expires after this time: 90s, 15m, 2h, 7d"
    )
    publish.add_argument("--content-type", metavar="TEXT", help="such as application/json")
    publish.add_argument(
        "--user-property", metavar="NAME=VALUE", action="append", default=[], help="may be repeated"
    )


def _publish(args: argparse.Namespace) -> int:
    data = args.payload.encode("utf-8", "surrogateescape")
    if args.payload == "-":
        data = sys.stdin.buffer.read()
    body: dict[str, Any] = {"topic": args.topic, "qos": args.qos, "retain": args.retain}
    try:
        body["payload"] = data.decode()
    except UnicodeDecodeError:
        body["payload_base64"] = base64.b64encode(data).decode()
    if properties := _properties(args):
        body["properties"] = properties
    found = api_client.connect(args).send("POST", "/publish", body)
    [result] = found["results"]
    code, matches = int(result["reason_code"]), int(result["matches"])
    subscribers = "1 subscription" if matches == 1 else f"{count_text(matches)} subscriptions"
    if code >= _FAILURE:
        why = f": {plain(result['error'])}" if result.get("error") else ""
        _print(args, found, f"refused with reason code 0x{code:02X}{why}")
        return FAILED
    _print(args, found, f"published; {subscribers} matched")
    return DONE


def _properties(args: argparse.Namespace) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if args.expiry:
        found["message_expiry_interval"] = int(api_client.duration("--expiry", args.expiry))
    if args.content_type is not None:
        found["content_type"] = args.content_type
    pairs = []
    for text in args.user_property:
        name, is_pair, value = text.partition("=")
        if not is_pair:
            raise UsageError(f"--user-property {text!r}: expected NAME=VALUE")
        pairs.append([name, value])
    return found | {"user_properties": pairs} if pairs else found


def _add_retained(actions: Any) -> None:
    retained = _add(actions, "retained", "list, show or clear retained messages", _retained)
    retained.add_argument(
        "filter", metavar="FILTER", nargs="?", default="#", help="Topic Filter (#: all)"
    )
    how = retained.add_mutually_exclusive_group()
    how.add_argument("--tree", action="store_true", help="FILTER is a prefix; list its next levels")
    how.add_argument("--show", action="store_true", help="FILTER is a topic; print its payload")
    how.add_argument("--clear", action="store_true", help="remove the messages that match")
    retained.add_argument(
        "--limit", type=whole, default=LIMIT, metavar="N", help=f"at most so many ({LIMIT}; 0: all)"
    )


def _retained(args: argparse.Namespace) -> int:
    api = api_client.connect(args)
    if args.show:
        return _show_retained(api, args)
    if args.clear:
        found = api.send("DELETE", "/retained", query={"filter": args.filter})
        count = int(found.get("removed", 0))
        _print(args, found, f"cleared {count_text(count)} retained messages")
        return DONE
    if args.tree:
        prefix = "" if args.filter == "#" else args.filter
        return show_list(api, args, "/retained/tree", List("", "", []), {"prefix": prefix})
    query = {} if args.filter == "#" else {"filter": args.filter}
    return show_list(api, args, _RETAINED.path, _RETAINED, query)


def _show_retained(api: Api, args: argparse.Namespace) -> int:
    found = api.get("/retained/message", {"topic": args.filter})
    if args.json:
        print_json(found)
    else:
        print(payload_text(base64.b64decode(found["payload_base64"])))
    return DONE


# One client.


def _kick(args: argparse.Namespace) -> int:
    if not 0 <= args.reason_code <= 0xFF:
        raise UsageError(f"--reason-code {args.reason_code} is not a byte: expected 0 to 255")
    body = {"reason_code": args.reason_code, "remove_session": args.remove_session}
    path = f"/clients/{escaped(args.client)}/kick"
    found = api_client.connect(args).send("POST", path, body)
    end = " and its session ended" if args.remove_session else ""
    _print(args, found, f"client '{plain(args.client)}' is disconnected{end}")
    return DONE


def _act_on_client(args: argparse.Namespace) -> int:
    path = f"/clients/{escaped(args.client)}/{args.path}"
    found = api_client.connect(args).send("POST", path)
    if args.json or (isinstance(found, dict) and found):
        print_json(found) if args.json else print_details(found)
    return DONE


# Questions.


def _why(args: argparse.Namespace) -> int:
    query = {
        "client": args.client,
        "topic": args.topic,
        "message": args.message,
        "since": ago("--since", args.since),
    }
    found = api_client.connect(args).get("/why", query)
    if args.json:
        print_json(found)
        return DONE
    print(plain(found["sentence"]))
    if found["advice"]:
        print(plain(found["advice"]))
    others = [sentence for sentence in found["sentences"] if sentence != found["sentence"]]
    if others:
        print("\nAlso, the latest first:")
        for sentence in reversed(others):
            print(f"  {plain(sentence)}")
    print()
    if args.facts:
        print_items(found["facts"], [*LISTS["events"].columns, Column("MESSAGE", "message")])
        print()
    if found["is_cut"]:
        print("There is more: ask for one --topic, or with a later --since.")
    print(f"The recorder sees back to {moment(found['sees_back_to'])}.")
    return DONE


# The broker.


def _backup(args: argparse.Namespace) -> int:
    api = api_client.connect(args)
    body = {} if args.directory is None else {"directory": args.directory}
    found = api.send("POST", "/backups", body)
    if not args.no_wait:
        found = _wait(api, args, found)
    if args.json:
        print_json(found)
    elif found["state"] == "done":
        print(f"{plain(found['directory'])}: {size_text(found['bytes'])}, the state of "
              f"{moment(found['created_at'])}")  # fmt: skip
    elif found["state"] == "running":
        print(f"{plain(found['directory'])}: running; see fleetmq ctl backups")
    if found["state"] == "failed":
        raise Failure(plain(found["error"]))
    return DONE


def _wait(api: Api, args: argparse.Namespace, found: dict[str, Any]) -> dict[str, Any]:
    """Wait for the end of a backup, and show its progress on a terminal."""
    is_shown = sys.stderr.isatty() and not args.quiet
    while found["state"] == "running":
        if is_shown:
            done, total = size_text(found["bytes_done"]), size_text(found["bytes_total"])
            print(f"\r\x1b[K{found['phase']}: {done} of {total}", end="", file=sys.stderr)
        time.sleep(LOOK_S)
        found = api.get(f"/backups/{escaped(found['id'])}")
    if is_shown:
        print("\r\x1b[K", end="", file=sys.stderr)
    return found


def _reload(args: argparse.Namespace) -> int:
    found = api_client.connect(args).send("POST", "/reload")
    print_json(found) if args.json else print_details(found)
    return FAILED if isinstance(found, dict) and found.get("failed") else DONE


def _log_level(args: argparse.Namespace) -> int:
    api = api_client.connect(args)
    if args.level is None:
        found = api.get("/log-level")
    else:
        found = api.send("PUT", "/log-level", {"level": args.level})
    _print(args, found, str(found.get("level", args.level)) if isinstance(found, dict) else "")
    return DONE
