"""Worker processes: new Python processes, not forks, that get their task over a socket."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from multiprocessing.connection import Connection

from mqtt_broker import interrupts


def start_worker(program: str) -> tuple[Connection, subprocess.Popen[bytes]]:
    """Start Python on `program`, in which {fd} is the descriptor of the worker's end."""
    ours, theirs = socket.socketpair()
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-c", program.format(fd=theirs.fileno())],
            pass_fds=[theirs.fileno()],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path or "." for path in sys.path)},
            # A group of its own: Ctrl-C in the terminal reaches the parent only.
            process_group=0,
        )
    return Connection(ours.detach()), process


def ignore_signals() -> None:
    """Leave it to the parent what a signal means, which a whole group may be sent."""
    for number in interrupts.SIGNALS:
        signal.signal(number, signal.SIG_IGN)
