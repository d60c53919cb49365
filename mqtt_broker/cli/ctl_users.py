"""`fleetmq ctl user|rule`: change users and access rules where the running broker keeps them.

A change is in force when the command has ended. `fleetmq passwd` changes the files of a broker that
does not run.
"""

from __future__ import annotations

import argparse
from typing import Any, Final

from mqtt_broker.cli import api_client
from mqtt_broker.cli.api_client import escaped
from mqtt_broker.cli.ctl_output import print_details, print_json
from mqtt_broker.cli.errors import DONE, UsageError
from mqtt_broker.cli.passwd import read_password
from mqtt_broker.cli.stream_text import plain

_LISTED: Final = (
    ("--topic", "topics", "FILTER", "a Topic Filter; %%u and %%c stand for user and client id"),
    ("--user", "users", "NAME", "for this user"),
    ("--role", "roles", "ROLE", "for users with this role"),
    ("--client", "clients", "ID", "for this client id"),
    ("--address", "addresses", "NETWORK", "for clients of this address or network"),
)


def add_actions(actions: Any) -> None:
    """Add the actions."""
    user = _group(actions, "user", "add, change or remove a user")
    for name, summary in (
        ("add", "create a user; the password is asked for, or read from stdin"),
        ("change", "change the password, the roles or the state of a user"),
        ("remove", "remove a user, whose clients are disconnected"),
    ):
        action = _add(user, name, summary, _user)
        action.add_argument("name", metavar="NAME", help="the user name")
        if name == "remove":
            continue
        action.add_argument(
            "--role", action="append", metavar="ROLE", help="a role; may be repeated"
        )
        action.add_argument(
            "--scram", action="store_true", help="keys for SCRAM-SHA-256 instead of a hash"
        )
    change = user.choices["change"]
    change.add_argument("--no-roles", action="store_true", help="take all roles away")
    change.add_argument("--password", action="store_true", help="ask for a new password")
    change.add_argument(
        "--enable",
        dest="is_enabled",
        action=argparse.BooleanOptionalAction,
        help="whether it may log in; of users in SQL",
    )
    user.choices["add"].add_argument(
        "--source", metavar="NAME", help="the [[auth]] table that keeps it (the first one)"
    )
    rule = _group(actions, "rule", "add or remove an access rule")
    add = _add(rule, "add", "add a rule behind the others", _rule_add)
    add.add_argument("permit", choices=("allow", "deny"))
    add.add_argument("--action", dest="what", choices=("publish", "subscribe", "all"),
                     default="all", help="what it is about (all)")  # fmt: skip
    for option, key, metavar, text in _LISTED:
        add.add_argument(option, dest=key, action="append", metavar=metavar, default=[], help=text)
    add.add_argument("--anonymous", action="store_true", help="for clients without a user")
    add.add_argument("--source", choices=("file", "sql"), default="file", help="where (file)")
    remove = _add(rule, "remove", "remove a rule", _rule_remove)
    remove.add_argument("id", metavar="RULE", help="its id, as fleetmq ctl rules shows it")


def _group(actions: Any, name: str, summary: str) -> Any:
    parser = actions.add_parser(
        name, help=summary, description=f"{summary[0].upper()}{summary[1:]}."
    )
    return parser.add_subparsers(dest="change", metavar="CHANGE", required=True)


def _add(actions: Any, name: str, summary: str, act: Any) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = actions.add_parser(
        name, help=summary, description=f"{summary[0].upper()}{summary[1:]}."
    )
    api_client.add_options(parser)
    parser.set_defaults(act=act)
    return parser


def _user(args: argparse.Namespace) -> int:
    path = f"/users/{escaped(args.name)}"
    api = api_client.connect(args)
    if args.change == "remove":
        found = api.send("DELETE", path)
        return _end(args, found, f"removed user '{plain(args.name)}'")
    body: dict[str, Any] = {"scram": True} if args.scram else {}
    if args.role:
        body["roles"] = args.role
    if args.change == "add":
        if args.source:
            body["source"] = args.source
        body |= {"name": args.name, "password": _password()}
        return _end(args, api.send("POST", "/users", body), f"added user '{plain(args.name)}'")
    if args.no_roles:
        if args.role:
            raise UsageError("--role and --no-roles contradict each other")
        body["roles"] = []
    if args.is_enabled is not None:
        body["is_enabled"] = args.is_enabled
    if args.password or args.scram:
        body["password"] = _password()
    if not body:
        raise UsageError("nothing to change: give --password, --role, --no-roles or --no-enable")
    return _end(args, api.send("PATCH", path, body), f"changed user '{plain(args.name)}'")


def _password() -> str:
    try:
        return read_password().decode()
    except UnicodeDecodeError:
        raise UsageError("the password is not UTF-8") from None


def _rule_add(args: argparse.Namespace) -> int:
    if not args.topics:
        raise UsageError("a rule needs --topic FILTER, which may be repeated")
    body = {"permit": args.permit, "action": args.what, "source": args.source}
    lists = {key: getattr(args, key) for _, key, _, _ in _LISTED if getattr(args, key)}
    flags = {"anonymous": True} if args.anonymous else {}
    found = api_client.connect(args).send("POST", "/rules", {**body, **lists, **flags})
    print_json(found) if args.json else print_details(found)
    return DONE


def _rule_remove(args: argparse.Namespace) -> int:
    found = api_client.connect(args).send("DELETE", f"/rules/{escaped(args.id)}")
    return _end(args, found, f"removed rule {plain(args.id)}")


def _end(args: argparse.Namespace, found: Any, said: str) -> int:
    print_json(found) if args.json else print(said)
    return DONE
