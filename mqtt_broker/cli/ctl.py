"""`fleetmq ctl`: see and change a running broker, and maintain the state of one that is stopped.

export, import                the state of a stopped broker as lines of JSON: `ctl_state`
restore                       a place for a broker, made of a backup: `ctl_restore`
acl, ban, unban, bans         access rules and bans, of a broker or of a configuration file
everything else               asks a running broker by its HTTP API: `ctl_lists`, `ctl_actions`,
                              `ctl_users`, `ctl_listeners`, `ctl_live`
"""

from __future__ import annotations

import argparse
import io
import sys
from typing import Any

from mqtt_broker.cli import (
    ctl_access,
    ctl_actions,
    ctl_listeners,
    ctl_lists,
    ctl_live,
    ctl_users,
)
from mqtt_broker.cli.commands import sentence


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    for name, summary, file, is_written in (
        (
            "export",
            "write the whole state of a stopped broker as lines of JSON",
            "file to write (default: stdout)",
            True,
        ),
        (
            "import",
            "read an exported state into an empty store",
            "file to read (default: stdin)",
            False,
        ),
    ):
        action = actions.add_parser(name, help=summary)
        action.add_argument("--data-dir", metavar="DIR", help="the store in this data directory")
        action.add_argument("--database-url", metavar="URL", help="the store in this database")
        action.add_argument("--quiet", action="store_true", help="print no progress and no counts")
        if is_written:
            action.add_argument("--force", action="store_true", help="overwrite FILE")
        action.add_argument("file", metavar="FILE", nargs="?", default="-", help=file)
    _add_restore(actions)
    for part in (ctl_lists, ctl_actions, ctl_users, ctl_listeners, ctl_live, ctl_access):
        part.add_actions(actions)


def _add_restore(actions: Any) -> None:
    summary = "restore a backup into an empty place"
    parser: argparse.ArgumentParser = actions.add_parser(
        "restore",
        help=summary,
        description=f"{sentence(summary)} Every file is compared with its checksum. The broker "
        "must not run on that place.",
    )
    parser.add_argument("backup", metavar="BACKUP", help="the directory of the backup")
    parser.add_argument(
        "--data-dir", metavar="DIR", help="the new data directory; streams are always in it"
    )
    parser.add_argument(
        "--database-url", metavar="URL", help="the empty database that gets the state"
    )
    parser.add_argument(
        "--check", action="store_true", help="compare the checksums, and restore nothing"
    )
    parser.add_argument("--quiet", action="store_true", help="print no progress and no summary")


def run(args: argparse.Namespace) -> int:
    if isinstance(sys.stdout, io.TextIOWrapper):  # so that every name can be printed
        sys.stdout.reconfigure(errors="backslashreplace")
    if hasattr(args, "act"):
        return args.act(args)  # type: ignore[no-any-return]
    # SQLAlchemy is four fifths of what these import; who asks a broker does not wait for it.
    if args.action == "restore":
        from mqtt_broker.cli import ctl_restore

        return ctl_restore.run(args)
    from mqtt_broker.cli import ctl_state

    return ctl_state.run(args)
