"""`fleetmq migrate`: convert a mosquitto.conf to a FleetMQ configuration.

    fleetmq migrate /etc/mosquitto/mosquitto.conf --output fleet.toml

Users are copied to a file next to it; rules become `[[acl]]`. The result of each line is printed,
and added at the end of the file as comments.
"""

from __future__ import annotations

import argparse
from collections import Counter
from pathlib import Path
from typing import Any

from mqtt_broker.cli.errors import DONE, Failure, UsageError
from mqtt_broker.cli.mosquitto_config import UNKNOWN_KEY, Fate, Translation, read_lines
from mqtt_broker.security.authentication.password_file import Entry, username_problem
from mqtt_broker.security.authentication.password_hasher import hash_problem
from mqtt_broker.security.files.atomic_files import write_whole
from mqtt_broker.server.config.config import load
from mqtt_broker.server.config.tables import ConfigError
from mqtt_broker.server.config.template import toml_value
from mqtt_broker.server.net.listener import check_files


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="mosquitto.conf", help="the configuration of mosquitto")
    parser.add_argument(
        "--output",
        "-o",
        metavar="F.toml",
        default="fleet.toml",
        help="the configuration to write (fleet.toml); users go to F.users beside it",
    )
    parser.add_argument("--force", action="store_true", help="replace files that exist")


def run(args: argparse.Namespace) -> int:
    output = Path(args.output)
    if Path(args.file).is_dir():
        raise UsageError(f"{args.file} is a directory; name mosquitto's configuration in it")
    if not Path(args.file).is_file():
        raise UsageError(f"{args.file}: there is no such file; name mosquitto's configuration")
    found = Translation()
    found.read(args.file)
    if found.fates and all(fate.why == UNKNOWN_KEY for fate in found.fates):
        raise UsageError(f"{args.file}: it has no key of mosquitto; name mosquitto's configuration")
    found.finish()
    users = {path: _users_path(output, at) for at, path in enumerate(found.password_files)}
    for path in (output, *users.values()):
        if path.exists() and not args.force:
            raise UsageError(f"{path} exists: give --force to replace it, or another --output")
    copies = {str(path): _copy_users(found, source) for source, path in users.items()}
    text = _file(args.file, found, {source: str(path.resolve()) for source, path in users.items()})
    try:
        for name, lines in copies.items():
            write_whole(name, lines, 0o600)
        write_whole(str(output), text, 0o644)
    except OSError as error:
        raise Failure(f"{output}: {error.strerror}") from None
    for fate in found.fates:
        print(_told(fate))
    counts = Counter(bool(fate.became) for fate in found.fates)
    print(f"{output}: {counts[True]} lines taken over, {counts[False]} not")
    try:
        check_files(load(str(output), {}, {}).endpoints)
    except ConfigError as error:
        raise Failure(f"the file needs your hand: {error}") from None
    return DONE


def _users_path(output: Path, at: int) -> Path:
    return output.with_suffix(f".{at + 1}.users" if at else ".users")


def _copy_users(found: Translation, path: str) -> str:
    """Return the lines of a password file with what we can verify; report the others."""
    lines: dict[str, str] = {}
    for place, line in read_lines(path, f"{found.password_places[path]}: password_file "):
        username, _, secret = line.partition(":")
        why = username_problem(username) or hash_problem(secret)
        if username in lines:
            why = "listed twice; the first one counts"
        found.report(place, f"{username}:***", "" if why else "a user", why)
        if not why:
            lines[username] = Entry(username, secret).encode() + "\n"
    return "".join(lines.values())


def _told(fate: Fate) -> str:
    became = fate.became or "not taken over"
    return f"{fate.place}: {_plain(fate.line)} -> {became}{f': {fate.why}' if fate.why else ''}"


def _file(source: str, found: Translation, users: dict[str, str]) -> str:
    lines = [
        f"# Written by fleetmq migrate from {_plain(source)}.",
        "# The result of each of its lines is listed at the end.",
        "",
    ]
    for key, (value, place) in found.values.items():
        lines.append(f"{key} = {toml_value(value)}  # {_plain(place)}")
    for one in found.listeners:
        lines += _table("listeners", one.table, one.place)
    by_certificate = [one.name for one in found.listeners if one.is_named_by_certificate]
    if by_certificate:
        table: dict[str, Any] = {"type": "certificate", "listeners": by_certificate}
        lines += _table("auth", table, "use_identity_as_username")
    for path, names in found.password_files.items():
        table = {"type": "password_file", "file": users[path]}
        lines += _table("auth", {**table, "listeners": names} if names else table, path)
    for rule in found.rules:
        lines += _table("acl", rule.table, rule.place)
    if found.has_rules and not found.rules:
        denied = {"permit": "deny", "topics": ["#"]}
        lines += _table("acl", denied, "no rule of the acl_file could be taken over")
    lines += ["", "# The lines of the mosquitto configuration, and their results:", "#"]
    lines += [f"# {_plain(_told(fate))}" for fate in found.fates]
    return "\n".join(lines) + "\n"


def _table(name: str, table: dict[str, Any], place: str) -> list[str]:
    about = f"  # {_plain(place)}" if place else ""
    return ["", f"[[{name}]]{about}", *(f"{key} = {toml_value(table[key])}" for key in table)]


def _plain(text: str) -> str:
    """Keep a text of somebody else's file on one line of a comment."""
    return "".join(char if char.isprintable() else "?" for char in text)
