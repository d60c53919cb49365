"""`fleetmq ctl acl|ban|unban|bans`: explain access decisions and edit the list of bans.

They ask a running broker, which knows the roles of its users, unless `--config` names the file of a
broker that is stopped: then `ctl_files` reads its rules, and edits the list of bans.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from mqtt_broker.cli import api_client
from mqtt_broker.cli.api_client import duration
from mqtt_broker.cli.ctl_lists import LISTS, show_list
from mqtt_broker.cli.ctl_output import print_json
from mqtt_broker.cli.errors import DONE, FAILED, UsageError
from mqtt_broker.cli.stream_text import plain
from mqtt_broker.codec.errors import Violation
from mqtt_broker.codec.strings import decode_utf8
from mqtt_broker.security.protection.bans import KINDS
from mqtt_broker.topics.names import filter_problem, is_wildcard, split_share


def add_actions(actions: Any) -> None:
    acl = actions.add_parser("acl", help="query the access rules")
    asked = acl.add_subparsers(dest="question", metavar="QUESTION", required=True)
    explain = asked.add_parser("explain", help="tell which rule decides, and how")
    explain.add_argument("client", metavar="CLIENT", help="a client id")
    explain.add_argument("topic", metavar="TOPIC", help="a Topic Name, or a filter to subscribe")
    explain.add_argument(
        "--action",
        dest="what",
        choices=("publish", "subscribe"),
        default="publish",
        help="what the client would do (publish)",
    )
    explain.add_argument("--user", help="the authenticated user name")
    explain.add_argument(
        "--role",
        action="append",
        default=[],
        help="a role of the client beside those of its user; may be repeated",
    )
    explain.add_argument("--address", help="the client's IP address")
    _add_place(explain, run)
    for name, summary in (("ban", "ban a client, user or network"), ("unban", "lift a ban")):
        action = actions.add_parser(name, help=summary)
        action.add_argument("kind", metavar="KIND", choices=KINDS, help=", ".join(KINDS))
        action.add_argument("value", metavar="VALUE", help="the client id, user name or network")
        if name == "ban":
            action.add_argument(
                "--for",
                dest="span",
                metavar="TIME",
                help="duration, such as 90s, 15m, 2h, 7d (default: for ever)",
            )
            action.add_argument("--why", default="", help="reason, for the list and the audit log")
        _add_place(action, run)
    listed = actions.add_parser("bans", help="list the bans in force")
    _add_place(listed, run)


def _add_place(parser: argparse.ArgumentParser, act: Callable[[argparse.Namespace], int]) -> None:
    parser.add_argument(
        "--config",
        metavar="F.toml",
        help="read this configuration file instead of asking a broker",
    )
    api_client.add_options(parser)
    parser.set_defaults(act=act)


def run(args: argparse.Namespace) -> int:
    """Ask the broker, or read the files of a configuration."""
    if args.action == "acl":
        _check_topic(args.topic, is_publish=args.what == "publish")
    if args.config is None:
        return _ask(args)
    if args.api or args.data_dir or args.token_file or args.json:
        raise UsageError(
            "--config asks no broker: leave out --api, --data-dir, --token-file, --json"
        )
    from mqtt_broker.cli import ctl_files  # imports most of the server's configuration

    return ctl_files.run(args)


def _ask(args: argparse.Namespace) -> int:
    if args.action == "acl":
        return _ask_rules(args)
    if args.action == "bans":
        api = api_client.connect(args)
        return show_list(api, args, LISTS["bans"].path, LISTS["bans"], {})
    body: dict[str, Any] = {"kind": args.kind, "value": args.value}
    if args.action == "unban":
        found = api_client.connect(args).send("DELETE", "/bans", query=body)
        said = f"lifted the ban of {args.kind} '{plain(args.value)}'"
    else:
        body["for_s"] = duration("--for", args.span) if args.span else 0
        found = api_client.connect(args).send("POST", "/bans", body | {"why": args.why})
        said = f"banned {args.kind} '{plain(args.value)}'"
    print_json(found) if args.json else print(said)
    return DONE


def _ask_rules(args: argparse.Namespace) -> int:
    """Print the decision of the running broker; return 0 if allowed, 1 if denied."""
    asked = {
        "client": args.client, "user": args.user, "address": args.address, "action": args.what,
        "topic": args.topic, "roles": args.role,
    }  # fmt: skip
    body = {key: value for key, value in asked.items() if value}
    found = api_client.connect(args).send("POST", "/rules/explain", body)
    is_allowed = bool(found["is_allowed"])
    if args.json:
        print_json(found)
        return DONE if is_allowed else FAILED
    print("allowed" if is_allowed else "denied")
    if found["rule"]:
        print(plain(f"by {found['rule']}: {found['text']}"))
    if not found["rule"] or not is_allowed:
        print(plain(found["why"]))
    return DONE if is_allowed else FAILED


def _check_topic(text: str, *, is_publish: bool) -> None:
    try:
        decode_utf8(text.encode("utf-8", "surrogateescape"))
    except Violation as violation:
        raise UsageError(f"topic {text!r}: {violation.text}") from None
    shared = split_share(text)
    inner = text if shared is None else shared[1]
    if is_publish and (not text or is_wildcard(text) or "#" in text or shared is not None):
        raise UsageError(
            f"{text!r} is not a Topic Name to publish to; for a filter use --action subscribe"
        )
    if problem := filter_problem(inner):
        raise UsageError(f"{text!r}: {problem}")
