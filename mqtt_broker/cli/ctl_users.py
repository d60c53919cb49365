"""`fleetmq ctl user|role|rule`: change access control where the running broker keeps it.

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
    _add_role_actions(actions)
    _add_rule_actions(actions)


def _add_role_actions(actions: Any) -> None:
    role = _group(actions, "role", "give a role to users, or take it from them")
    for name, summary in (
        ("add", "give a role to users, beside those that have it"),
        ("change", "set the users that have a role; all others lose it"),
        ("remove", "take a role from all users"),
    ):
        action = _add(role, name, summary, _role)
        action.add_argument("role", metavar="ROLE", help="the role")
        if name != "remove":
            action.add_argument("users", metavar="USER", nargs="+", help="a user")


def _add_rule_actions(actions: Any) -> None:
    rule = _group(actions, "rule", "add, change or remove an access rule")
    add = _add(rule, "add", "add a rule behind the others", _rule_add)
    add.add_argument("permit", choices=("allow", "deny"), help="what the rule does")
    _add_rule_options(add)
    add.add_argument(
        "--source", choices=("file", "sql"), default="file", help="where it is kept (file)"
    )
    change = _add(rule, "change", "change a rule; what is not given stays", _rule_change)
    change.add_argument("id", metavar="RULE", help="its id, as fleetmq ctl rules shows it")
    change.add_argument("--permit", choices=("allow", "deny"), help="what it does")
    _add_rule_options(change)
    remove = _add(rule, "remove", "remove a rule", _rule_remove)
    remove.add_argument("id", metavar="RULE", help="its id, as fleetmq ctl rules shows it")


def _add_rule_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--action",
        dest="what",
        choices=("publish", "subscribe", "all"),
        help="what is allowed or denied (all, if it is new)",
    )
    for option, key, metavar, text in _LISTED:
        parser.add_argument(
            option, dest=key, action="append", metavar=metavar, default=[],
            help=f"{text}; may be repeated",
        )  # fmt: skip
    parser.add_argument("--anonymous", action="store_true", help="for clients without a user")


def _group(actions: Any, name: str, summary: str) -> Any:
    parser = actions.add_parser(name, help=summary)
    return parser.add_subparsers(dest="change", metavar="CHANGE", required=True)


def _add(actions: Any, name: str, summary: str, act: Any) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = actions.add_parser(name, help=summary)
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
    body = {**_rule_of(args), "source": args.source}
    found = api_client.connect(args).send("POST", "/rules", body)
    print_json(found) if args.json else print_details(found)
    return DONE


def _rule_of(args: argparse.Namespace) -> dict[str, Any]:
    """Return the members of a rule that are given."""
    found = {"permit": args.permit, "action": args.what, "anonymous": args.anonymous or None}
    found |= {key: getattr(args, key) or None for _, key, _, _ in _LISTED}
    return {key: value for key, value in found.items() if value is not None}


def _rule_change(args: argparse.Namespace) -> int:
    body = _rule_of(args)
    if not body:
        raise UsageError("nothing to change: give --permit, --action, --topic, --user or --role")
    found = api_client.connect(args).send("PATCH", f"/rules/{escaped(args.id)}", body)
    print_json(found) if args.json else print_details(found)
    return DONE


def _role(args: argparse.Namespace) -> int:
    api = api_client.connect(args)
    said = f"role '{plain(args.role)}'"
    if args.change == "remove":
        found = api.send("DELETE", f"/roles/{escaped(args.role)}")
        return _end(args, found, f"removed {said}")
    if args.change == "add":
        found = api.send("POST", "/roles", {"role": args.role, "users": args.users})
    else:
        found = api.send("PATCH", f"/roles/{escaped(args.role)}", {"users": args.users})
    return _end(args, found, f"{said}: {', '.join(plain(name) for name in found['users'])}")


def _rule_remove(args: argparse.Namespace) -> int:
    found = api_client.connect(args).send("DELETE", f"/rules/{escaped(args.id)}")
    return _end(args, found, f"removed rule {plain(args.id)}")


def _end(args: argparse.Namespace, found: Any, said: str) -> int:
    print_json(found) if args.json else print(said)
    return DONE
