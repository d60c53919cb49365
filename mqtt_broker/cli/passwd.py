"""`fleetmq passwd`: set users and passwords, in a password file or in SQL tables.

The password is asked for on the terminal, or read as one line from standard input; it is never
an argument, where every user of the machine could read it.
"""

from __future__ import annotations

import argparse
import getpass
import secrets
import sys
from pathlib import Path

from mqtt_broker.cli.errors import DONE, NO_DATABASE, Failure, UsageError
from mqtt_broker.security.authentication.password_file import (
    Entry,
    decode_line,
    is_comment,
    read_entries,
    username_problem,
)
from mqtt_broker.security.authentication.password_hasher import PASSWORD_BYTES_MAX, hash_password
from mqtt_broker.security.authentication.scram import SALT_BYTES, is_stored_keys, make_keys
from mqtt_broker.security.files.atomic_files import locked, write_whole
from mqtt_broker.security.files.errors import FileError, Unavailable


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", nargs="?", help="the password file")
    parser.add_argument("user", metavar="USER", nargs="?", help="the user name")
    parser.add_argument(
        "--database-url", metavar="URL", help="use the tables of this database instead of a file"
    )
    parser.add_argument(
        "--scram",
        action="store_true",
        help="store keys for SCRAM-SHA-256 instead of an argon2id hash; a user may have both",
    )
    parser.add_argument(
        "--role", action="append", metavar="ROLE", help="a role of the user; may be repeated"
    )
    parser.add_argument("--delete", action="store_true", help="remove the user")


def run(args: argparse.Namespace) -> int:
    if args.database_url and args.file and not args.user:
        args.file, args.user = None, args.file
    if not args.user or bool(args.file) is bool(args.database_url):
        raise UsageError("give FILE USER, or --database-url URL USER")
    if problem := username_problem(args.user):
        raise UsageError(problem)
    for role in args.role or ():
        if not role or not role.isprintable() or set(role) & {",", ":"}:
            raise UsageError(
                f"--role {role!r} is empty, or contains a comma, a colon or a control character"
            )
    if args.delete and (args.scram or args.role):
        raise UsageError("--delete removes the whole user: give it without --scram and --role")
    try:
        if args.database_url:
            _change_tables(args)
        else:
            _change_file(args)
    except FileError as error:
        raise Failure(str(error)) from None
    except Unavailable as error:
        raise Failure(str(error), NO_DATABASE) from None
    return DONE


def read_password() -> bytes:
    """Ask for a password, twice, or read the first line of stdin if that is no terminal."""
    if sys.stdin.isatty():
        password = getpass.getpass("Password: ")
        if getpass.getpass("Again: ") != password:
            raise Failure("the passwords do not match")
        data = password.encode()
    else:
        data = sys.stdin.buffer.readline().rstrip(b"\r\n")
    if not data:
        raise Failure("the password is empty")
    if len(data) > PASSWORD_BYTES_MAX:
        raise Failure(f"the password has {len(data)} bytes, the limit is {PASSWORD_BYTES_MAX}")
    return data


def _secret(args: argparse.Namespace) -> str:
    password = read_password()
    if args.scram:
        return make_keys(password, secrets.token_bytes(SALT_BYTES)).encode()
    return hash_password(password)


def _change_file(args: argparse.Namespace) -> None:
    path = Path(args.file)
    secret = "" if args.delete else _secret(args)
    try:
        with locked(args.file):
            lines: list[str] = []
            if path.exists():
                read_entries(args.file)  # refuses a file with mistakes
                lines = path.read_text().splitlines()
            text = "".join(line + "\n" for line in _changed_lines(lines, args, secret))
            write_whole(args.file, text, 0o600)
    except OSError as error:
        raise Failure(f"{path}: {error.strerror}") from None


def _changed_lines(lines: list[str], args: argparse.Namespace, secret: str) -> list[str]:
    """Return the lines with this user changed, and every other line as it was."""
    entries = [None if is_comment(line) else decode_line(line.rstrip()) for line in lines]
    mine = [entry for entry in entries if entry is not None and entry.username == args.user]
    if args.delete and not mine:
        raise Failure(f"{args.file}: no user {args.user}")
    known = {role: None for entry in mine for role in entry.roles}
    roles = tuple(known if args.role is None else dict.fromkeys(args.role))
    fresh = Entry(args.user, secret, roles)
    found: list[str] = []
    is_placed = args.delete
    for line, entry in zip(lines, entries, strict=True):
        if entry is None or entry.username != args.user:
            found.append(line)
        elif args.delete:
            continue
        elif is_stored_keys(entry.secret) is args.scram:
            found.append(fresh.encode())
            is_placed = True
        else:
            found.append(Entry(entry.username, entry.secret, roles).encode())
    return found if is_placed else [*found, fresh.encode()]


def _change_tables(args: argparse.Namespace) -> None:
    from mqtt_broker.security import sql

    engine = sql.open_engine(args.database_url)
    try:
        if args.delete:
            if not sql.remove_user(engine, args.user):
                raise Failure(f"no user {args.user}")
            return
        column = "scram" if args.scram else "password"
        sql.put_user(engine, args.user, column, _secret(args), args.role)
    finally:
        engine.dispose()
