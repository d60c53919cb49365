"""`fleetmq passwd`: set users and passwords, in a password file or in SQL tables.

The password is asked for on the terminal, or read as one line from standard input; it is never
an argument, where every user of the machine could read it.
"""

from __future__ import annotations

import argparse
import getpass
import secrets
import sys

from mqtt_broker.cli.errors import DONE, NO_DATABASE, Failure, UsageError
from mqtt_broker.security.authentication.password_edit import put_user, remove_user
from mqtt_broker.security.authentication.password_file import username_problem
from mqtt_broker.security.authentication.password_hasher import PASSWORD_BYTES_MAX, hash_password
from mqtt_broker.security.authentication.scram import SALT_BYTES, make_keys
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
    if args.delete:
        if not remove_user(args.file, args.user):
            raise Failure(f"{args.file}: no user {args.user}")
        return
    roles = None if args.role is None else tuple(dict.fromkeys(args.role))
    put_user(args.file, args.user, _secret(args), roles)


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
