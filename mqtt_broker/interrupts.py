"""SIGINT and SIGTERM of a command: the first asks it to stop, the second insists.

    interrupts.handle("fleetmq")           once, as early as possible
    with interrupts.raising():             the first signal raises `Interrupted` where it comes
    with interrupts.asking(act):           the first signal calls `act`
    with interrupts.flag() as stop:        the first signal sets `stop`, which can be waited for

Before and outside of these the first signal ends the process at once, as there is nothing to be put
in order yet. Each signal is answered with one line on standard error, and the second always ends
the process, after what `before_exit` registered.

Handlers run in the main thread between two steps of Python, wherever that is: they take no lock and
do not use `print`. In a program that has not called `handle`, `asking` and `flag` set the handlers
for their own time and say nothing, and the second signal raises `Interrupted`.
"""

from __future__ import annotations

import atexit
import contextlib
import itertools
import os
import select
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, Final, NoReturn, TypeVar

SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
_LOST_S: Final = 0.05  # until an exception that got lost is raised again
_T = TypeVar("_T")
Act = Callable[[], None]


class Interrupted(KeyboardInterrupt):
    """A signal has asked the command to stop."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


def exit_code(number: int) -> int:
    """Return the exit code for a signal, as shells count."""
    return 128 + number


class Handler:
    """The state of a process that handles the signals of a command."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.numbers: tuple[int, ...] = SIGNALS
        self.asked = 0  # the number of the signal that asked
        self._arrivals = itertools.count()  # one step, which no other signal can divide
        self._has_said = False  # the line of the first
        self._insisted = 0  # the number of a second that came before that line
        self.act: Act = self.leave
        self.has_raised = False
        self.is_over = False  # the command has ended: nothing is to be asked any more
        self.before_exit: list[Act] = []

    def on_signal(self, number: int, frame: FrameType | None) -> None:
        if next(self._arrivals):
            self._insist(number)
            return
        self._ask(number)
        if not self.is_over:
            self.act()

    def notice(self, number: int) -> None:
        """Say the line of a first signal that another handler has taken."""
        if not next(self._arrivals):
            self._ask(number)

    def _ask(self, number: int) -> None:
        self.asked = number
        self.say(f"{_name(number)}, stopping")
        self._has_said = True
        if self._insisted:
            self._insist(self._insisted)

    def _insist(self, number: int) -> None:
        """End the process, unless the first signal's handler is still at its line: it will."""
        if not self._has_said:
            self._insisted = number
            return
        self.say(f"{_name(number)} again, stopped at once")
        self._end(number)

    def rename(self, name: str) -> None:
        self.name = name

    def include(self, number: int) -> None:
        self.numbers += (number,)

    def finish(self) -> None:
        self.is_over = True

    def replace(self, act: Act) -> Act:
        """Let the first signal call `act`; return what it called before."""
        before, self.act = self.act, act
        return before

    def leave(self) -> None:
        self._end(self.asked)

    def throw(self) -> NoReturn:
        self.has_raised = True
        raise Interrupted(self.asked)

    def _end(self, number: int) -> None:
        for act in self.before_exit:
            with contextlib.suppress(Exception):
                act()
        os._exit(exit_code(number))

    def say(self, text: str) -> None:
        with contextlib.suppress(OSError):  # nobody reads it
            os.write(2, f"{self.name}: {text}\n".encode())

    def on_lost(self, lost: Any) -> None:
        """Raise an `Interrupted` again that was lost where exceptions cannot be raised, as in a
        destructor; report other exceptions.
        """
        if isinstance(lost.exc_value, Interrupted):
            signal.signal(signal.SIGALRM, self._on_alarm)
            signal.setitimer(signal.ITIMER_REAL, _LOST_S)
        elif not self.has_raised:
            sys.__unraisablehook__(lost)

    def _on_alarm(self, number: int, frame: FrameType | None) -> None:
        if not self.is_over and self.act == self.throw:
            self.throw()


class _Embedded(Handler):
    """The same for the time of one call in somebody else's process."""

    def on_signal(self, number: int, frame: FrameType | None) -> None:
        self.asked = number
        if next(self._arrivals):
            raise Interrupted(number)
        self.act()


_current: Handler | None = None


def handle(name: str) -> None:
    """Handle the signals of this process from now on, as the command of this name."""
    global _current
    _current = Handler(name)
    # Called last: when Python takes its handlers away, the exit code is what the command returned.
    atexit.register(_ignore)
    _install(_current)
    sys.unraisablehook = _current.on_lost


def rename(name: str) -> None:
    """Say this name from now on."""
    if _current is not None:
        _current.rename(name)


def include(number: int) -> None:
    """Handle this signal, too."""
    if _current is not None:
        _current.include(number)
        _install(_current)


def finish() -> None:
    """End the command: the first signal changes nothing any more, the second ends the process."""
    if _current is not None:
        _current.finish()


def asked() -> int:
    """Return the number of the signal that has asked; 0: none has."""
    return _current.asked if _current is not None else 0


def notice(number: int) -> None:
    """Take notice of a first signal that a library's handler has taken."""
    if _current is not None:
        _current.notice(number)


def has_raised() -> bool:
    """Tell whether `Interrupted` was raised, so that other exceptions are consequences of it."""
    return _current is not None and _current.has_raised


def reclaim() -> None:
    """Handle the signals again after a library has set handlers of its own."""
    if _current is not None:
        _install(_current)


def before_exit(act: Act) -> None:
    """Call this before the process is ended at once, for instance to end others that it started."""
    if _current is not None:
        _current.before_exit.append(act)


@contextlib.contextmanager
def asking(act: Act) -> Iterator[None]:
    """Let the first signal call `act`, in the main thread; at once if it has come already.

    In other threads nothing is changed.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    if _current is not None:
        with _acting(_current, act):
            yield
        return
    handlers = _install(embedded := _Embedded(""))
    try:
        with _acting(embedded, act):
            yield
    finally:
        for number, before in handlers:
            signal.signal(number, before)


@contextlib.contextmanager
def raising() -> Iterator[None]:
    """Let the first signal raise `Interrupted`; at once if it has come already."""
    if _current is None:
        yield
        return
    with _acting(_current, _current.throw):
        yield


def raised_by(make: Callable[[], _T]) -> _T:
    """Return what `make` makes; meanwhile the first signal raises `Interrupted`."""
    with raising():
        return make()


@contextlib.contextmanager
def leaving() -> Iterator[None]:
    """Let the first signal end the process, where that is the same as a crash, and as harmless."""
    if _current is None:
        yield
        return
    with _acting(_current, _current.leave):
        yield


@contextlib.contextmanager
def deferred() -> Iterator[None]:
    """Let a signal that asks do so behind this block, and not in it."""
    handler = _current
    if handler is None:
        yield
        return
    before = handler.asked
    with _acting(handler, _nothing):
        yield
    if handler.asked != before:
        handler.act()


@contextlib.contextmanager
def _acting(handler: Handler, act: Act) -> Iterator[None]:
    before = handler.replace(act)
    try:
        if handler.asked and not handler.has_raised:
            act()
        yield
    finally:
        handler.replace(before)


class Flag:
    """A flag that a signal sets, and that can be waited for, alone or with sockets.

    `threading.Event` is not for handlers: its lock may be held by the step that they interrupt.
    """

    def __init__(self) -> None:
        self._is_set = False
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._writer, False)

    def set(self) -> None:
        self._is_set = True
        with contextlib.suppress(OSError):
            os.write(self._writer, b"\0")

    def is_set(self) -> bool:
        return self._is_set

    def check(self) -> None:
        """Raise `Interrupted` if it is set: where the program can be left in order."""
        if not self._is_set:
            return
        if _current is not None and _current.asked:
            _current.throw()
        raise Interrupted(signal.SIGINT)

    def fileno(self) -> int:
        """Return a descriptor that is readable when it is set."""
        return self._reader

    def wait(self, seconds: float) -> bool:
        """Wait so long, or until it is set."""
        if not self._is_set:
            select.select([self._reader], [], [], seconds)
        return self._is_set

    @contextlib.contextmanager
    def woken(self) -> Iterator[None]:
        """End waits by signals that come between the last look at the flag and the wait."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        try:
            yield
        finally:
            signal.set_wakeup_fd(before)

    def close(self) -> None:
        os.close(self._reader)
        os.close(self._writer)


@contextlib.contextmanager
def flag() -> Iterator[Flag]:
    """Yield a flag that the first signal sets."""
    one = Flag()
    try:
        with one.woken(), asking(one.set):
            yield one
    finally:
        one.close()


def _install(handler: Handler) -> list[tuple[int, Any]]:
    """Set the handlers; return those of before. Ignored signals stay so, as in background jobs."""
    return [
        (number, signal.signal(number, handler.on_signal))
        for number in handler.numbers
        if signal.getsignal(number) is not signal.SIG_IGN
    ]


def _ignore() -> None:
    numbers = _current.numbers if _current is not None else SIGNALS
    for number in (*numbers, signal.SIGALRM):
        signal.signal(number, signal.SIG_IGN)


def _nothing() -> None:
    """Wait for the end of the block."""


def _name(number: int) -> str:
    return signal.Signals(number).name
