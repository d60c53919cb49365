"""A process that ends with the one that started it, whatever ends that one.

As a program it ties itself to its parent and then becomes the command:

    python tether.py PARENT SIGNAL USER COMMAND ...     (USER: a number, or -1 for the same)

Where the system knows no such tie (it is Linux's), the command runs without it.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from typing import Final

_PR_SET_PDEATHSIG: Final = 1


def tie(parent: int, number: int = signal.SIGKILL) -> None:
    """From now on the end of `parent` sends us the signal."""
    if not sys.platform.startswith("linux"):
        return
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(number)):
        raise OSError(ctypes.get_errno(), "prctl")
    if os.getppid() != parent:  # it ended before we asked
        os.kill(os.getpid(), number)


def tied(command: list[str], number: int = signal.SIGKILL, user: int = -1) -> list[str]:
    """The command that runs `command` tied to this process, as `user`."""
    head = [sys.executable, "-S", "-E", __file__]
    return [*head, str(os.getpid()), str(int(number)), str(user), *command]


def _become(parent: int, number: int, user: int, command: list[str]) -> None:
    if user != -1:  # first: another user id unties
        os.setgroups([])
        os.setuid(user)
    tie(parent, number)
    os.execvp(command[0], command)


if __name__ == "__main__":
    _become(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:])
