"""Files that are taken up again: on SIGHUP, and when they have changed.

Whoever reads files says which, and what is to be done when they are new. A change counts when
it is over: two looks in a row have to find the same, since a certificate and its key are
written one after the other. What fails is logged, and what was in force stays.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

LOOK_S: Final = 2.0
LATER: Final = object()  # what `act` returns when `on_taken_up` or `on_failed` will say how it went
_log = logging.getLogger("fleetmq")
_Seen = tuple[tuple[int, int, int] | None, ...]  # of each file, if it is there


@dataclass(slots=True)
class _Watched:
    paths: tuple[str, ...]
    act: Callable[[], object]
    in_force: _Seen
    last: _Seen


class Reload:
    """What is read again; one timer looks at all the files."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._watched: dict[str, _Watched] = {}
        self._timer: asyncio.TimerHandle | None = None
        self.count = 0  # times that something was taken up
        self.failures = 0

    def add(self, name: str, paths: Iterable[str], act: Callable[[], object]) -> None:
        """`act` raises what `describe` can say in a line: then nothing has changed."""
        paths = tuple(paths)
        seen = _look(paths)
        self._watched[name] = _Watched(paths, act, seen, seen)
        if self._timer is None:
            self._timer = self._loop.call_later(LOOK_S, self._on_timer)

    def remove(self, name: str) -> None:
        self._watched.pop(name, None)
        if not self._watched:
            self.close()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def all(self) -> None:
        """Take everything up again, changed or not: SIGHUP."""
        for name, watched in list(self._watched.items()):
            watched.in_force = watched.last = _look(watched.paths)
            self._take_up(name, watched)

    def look(self) -> None:
        """Take up what has changed, once it changes no more."""
        for name, watched in list(self._watched.items()):
            seen = _look(watched.paths)
            is_settled, watched.last = seen == watched.last, seen
            if is_settled and seen != watched.in_force:
                watched.in_force = seen
                self._take_up(name, watched)

    def _take_up(self, name: str, watched: _Watched) -> None:
        try:
            said = watched.act()
        except Exception as error:  # whatever it is: the broker goes on with what it has
            self.on_failed(name, str(error))
        else:
            if said is not LATER:
                self.on_taken_up(name)

    def on_taken_up(self, name: str) -> None:
        self.count += 1
        _log.info("%s: taken up again", name)

    def on_failed(self, name: str, why: str) -> None:
        self.failures += 1
        _log.error("%s: not taken up, the old one stays: %s", name, why)

    def _on_timer(self) -> None:
        self._timer = self._loop.call_later(LOOK_S, self._on_timer)
        self.look()


def _look(paths: tuple[str, ...]) -> _Seen:
    return tuple(_stamp(path) for path in paths)


def _stamp(path: str) -> tuple[int, int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
