"""Errors that end a subcommand, and its exit codes.

    UsageError   the command line or the configuration is wrong: exit code 2
    Failure      the command ran and failed: exit code 1, or the code it carries, as 3 when a
                 database cannot be reached

`main` catches both, and the MQTT client's `ClientError`, once and prints their text as one line.
"""

from __future__ import annotations

import errno
import os
import sys
from typing import Final

DONE: Final = 0
FAILED: Final = 1
WRONG_USAGE: Final = 2
NO_DATABASE: Final = 3  # a database that the configuration names cannot be reached
TIMED_OUT: Final = 27  # as mosquitto's clients, when -W has run out
INTERRUPTED: Final = 130  # 128 + SIGINT, as shells count

# What a write may fail with, to standard output or a file: the error names no file then.
OUTPUT_ERRORS: Final = frozenset((errno.EPIPE, errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO))


class UsageError(Exception):
    """The command line or the configuration is wrong."""


class Failure(Exception):
    """The command ran and failed."""

    def __init__(self, text: str, code: int = FAILED) -> None:
        super().__init__(text)
        self.code = code


def drop_output() -> None:
    """Let what is still to be printed go nowhere: Python would try to write it again at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def cannot_print(command: str, error: OSError) -> int:
    """Say that the output could not be written, and return the exit code.

    A reader that has closed the pipe, as `| head` does, has all that it wants.
    """
    drop_output()
    if error.errno == errno.EPIPE:
        return DONE
    print(f"{command}: {error.strerror}", file=sys.stderr)
    return FAILED
