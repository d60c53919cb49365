"""`fleetmq ctl listener`: open, change and close listeners of the running broker.

`fleetmq ctl listeners` lists them. What is changed here holds until the broker stops; the
configuration file is not written.
"""

from __future__ import annotations

import argparse
import re
import tomllib
from typing import Any, Final

from mqtt_broker.cli import api_client
from mqtt_broker.cli.api_client import escaped
from mqtt_broker.cli.ctl_output import print_json
from mqtt_broker.cli.errors import DONE, UsageError
from mqtt_broker.cli.stream_text import plain

_KEY: Final = re.compile(r"[a-z_]+(\.[a-z_]+)?")
_AFTER_RESTART: Final = {
    "gone": "until the broker stops: add it to the configuration file to keep it",
    "changed": "until the broker stops: change the configuration file, too, to keep it so",
    "open": "until the broker stops: the configuration file has it still",
}


def add_actions(actions: Any) -> None:
    """Add the actions."""
    parser = actions.add_parser(
        "listener",
        help="open, change or close a listener",
        description="Open, change or close a listener, until the broker stops.",
    )
    asked = parser.add_subparsers(dest="change", metavar="CHANGE", required=True)
    add = _add(asked, "add", "listen on another address", _open)
    change = _add(asked, "change", "change keys of a listener; connections stay", _change)
    change.add_argument("name", metavar="LISTENER", help="its name, or its address")
    for action in (add, change):
        action.add_argument(
            "keys",
            metavar="KEY=VALUE",
            nargs="+",
            help="a key of [[listeners]], such as name=spare, port=1884, tls.cert=server.pem"
            + ("; an empty value is the default again" if action is change else ""),
        )
    close = _add(asked, "close", "close a listener; its connections stay", _close)
    close.add_argument("name", metavar="LISTENER", help="its name, or its address")
    close.add_argument("--disconnect", action="store_true", help="disconnect its clients, too")


def _add(asked: Any, name: str, summary: str, act: Any) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = asked.add_parser(name, help=summary)
    api_client.add_options(parser)
    parser.set_defaults(act=act)
    return parser


def _open(args: argparse.Namespace) -> int:
    keys = settings_of(args.keys)
    if None in keys.values():
        raise UsageError("a key has no value: only a change can set one to its default")
    found = api_client.connect(args).send("POST", "/listeners", keys)
    return _end(args, found, f"listens on {_url(found)}")


def _change(args: argparse.Namespace) -> int:
    path = f"/listeners/{escaped(args.name)}"
    found = api_client.connect(args).send("PATCH", path, settings_of(args.keys))
    return _end(args, found, f"changed listener '{plain(args.name)}', {_url(found)}")


def _close(args: argparse.Namespace) -> int:
    path = f"/listeners/{escaped(args.name)}"
    query = {"disconnect": "true"} if args.disconnect else None
    found = api_client.connect(args).send("DELETE", path, query=query)
    count = found.get("connections", 0) if isinstance(found, dict) else 0
    what = "were disconnected" if args.disconnect else "stay"
    said = f"closed listener '{plain(args.name)}'"
    return _end(args, found, f"{said}; {count} connections {what}" if count else said)


def _url(found: Any) -> str:
    return plain(str(found.get("url", ""))) if isinstance(found, dict) else ""


def _end(args: argparse.Namespace, found: Any, said: str) -> int:
    if args.json:
        print_json(found)
        return DONE
    after = found.get("after_restart", "") if isinstance(found, dict) else ""
    more = _AFTER_RESTART.get(after, "") if args.change != "close" or after == "open" else ""
    print(f"{said} ({more})" if more else said)
    return DONE


def settings_of(words: list[str]) -> dict[str, Any]:
    """Return the settings that `KEY=VALUE` say; None for a key without a value."""
    found: dict[str, Any] = {}
    for word in words:
        key, sign, text = word.partition("=")
        if not sign or not _KEY.fullmatch(key):
            raise UsageError(f"{word!r} is not KEY=VALUE, such as port=1884 or tls.cert=server.pem")
        table, _, name = key.rpartition(".")
        place = found.setdefault(table, {}) if table else found
        if not isinstance(place, dict):
            raise UsageError(f"{table} has a value of its own, and so has {key}")
        if name in place:
            raise UsageError(f"{key} is given twice")
        place[name] = _value(text) if text else None
    return found


def _value(text: str) -> Any:
    """Return a value as in TOML; what is none is a text."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (tomllib.TOMLDecodeError, RecursionError):
        return text
