"""Signals at chosen steps of a program, in a process of its own.

    python -c "from tests.cli.signalled import run; run()" FIRST NUMBER AFTER NUMBER fleetmq's words

FIRST counts what the main thread calls and returns from, since it handles signals; AFTER counts the
same since the command has taken notice of its first signal. 0 sends none. A command that does
nothing any more before FIRST gets its first signal then: it waits to be asked.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
import time
from types import FrameType
from typing import Any, Final, NoReturn

from mqtt_broker import interrupts
from mqtt_broker.cli.main import main

_LOOK_S: Final = 0.3
_FEW: Final = 200  # steps of one that waits
_SOON_S: Final = 0.0001


class Steps:
    def __init__(self, first: int, number: int, after: int, again: int) -> None:
        self.first, self.number, self.after, self.again = first, number, after, again
        self.count = self.since = 0
        self.is_sent = False

    def on_step(self, frame: FrameType, event: str, about: Any) -> None:
        self.count += 1
        if self.count == self.first:
            self.ask()
        elif interrupts.asked():
            self.since += 1
            if self.since == self.after:
                os.kill(os.getpid(), self.again)

    def ask(self) -> None:
        if not self.is_sent:
            self.is_sent = True
            os.kill(os.getpid(), self.number)

    def watch(self) -> None:
        """Ask a command that waits."""
        before = self.count
        time.sleep(_LOOK_S)
        while self.first and not self.is_sent:
            if self.count <= before + _FEW:
                self.ask()
            before = self.count
            time.sleep(_LOOK_S)

    def start(self, *_: object) -> None:
        sys.setprofile(self.on_step)


def go_on_counting(steps: Steps) -> None:
    """Count again after an exception from within a step, which ends the counting."""
    throw = interrupts.Handler.throw
    signal.signal(signal.SIGVTALRM, steps.start)
    atexit.register(signal.signal, signal.SIGVTALRM, signal.SIG_IGN)

    def thrown(self: interrupts.Handler) -> NoReturn:
        signal.setitimer(signal.ITIMER_VIRTUAL, _SOON_S, _SOON_S)
        throw(self)

    interrupts.Handler.throw = thrown  # type: ignore[method-assign]


def run() -> None:
    steps = Steps(*map(int, sys.argv[1:5]))
    del sys.argv[1:5]
    go_on_counting(steps)
    handle = interrupts.handle

    def handled(name: str) -> None:
        handle(name)
        steps.start()
        threading.Thread(target=steps.watch, daemon=True).start()

    interrupts.handle = handled
    sys.exit(main())
