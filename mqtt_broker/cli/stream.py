"""`fleetmq stream`: show and change the streams of the telemetry log.

    list describe tail export verify           read the files, or a broker by its URL: --log
    create change truncate delete groups reset ask a running broker: --api

Exit codes: 0 done, 1 it failed (or `verify` found something), 2 the command line is wrong.
"""

from __future__ import annotations

import argparse
import io
import os
import sys
from typing import Final

from mqtt_broker.cli import stream_change, stream_export, stream_read
from mqtt_broker.cli.errors import Failure, UsageError
from mqtt_broker.streams.format.errors import Invalid, StreamError, UnreadableFile
from mqtt_broker.streams.remote.http_client import NotAllowed

DATA_DIR: Final = "fleetmq-data"
_PARTS: Final = (stream_read, stream_export, stream_change)
_ACTIONS: Final = {**stream_read.ACTIONS, **stream_export.ACTIONS, **stream_change.ACTIONS}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    data_dir = os.environ.get("FLEETMQ_DATA_DIR") or DATA_DIR
    for part in _PARTS:
        part.add_actions(actions, data_dir)


def run(args: argparse.Namespace) -> int:
    if args.token is None:
        args.token = os.environ.get("FLEETMQ_HTTP_TOKEN", "")
    if isinstance(sys.stdout, io.TextIOWrapper):  # so that every topic can be printed
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        return _ACTIONS[args.action](args)
    except NotAllowed as error:
        raise Failure(f"{error}: give --token or FLEETMQ_HTTP_TOKEN") from None
    except StreamError as error:
        if isinstance(error, Invalid) and not isinstance(error, UnreadableFile):
            raise UsageError(str(error)) from None
        raise Failure(str(error)) from None
    except BrokenPipeError:
        raise  # the reader has closed the pipe
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        raise Failure(f"{where}{error.strerror or error}") from None
