"""Reload files on SIGHUP, and when they have changed.

A part of the broker that reads files registers their paths and a function that reads them again.
Files are checked periodically. A change is acted on when two checks in a row find the same files,
since a certificate and its key are written one after the other. A failure is logged, and the old
content stays in force. Files that could not be read at all, for instance because there were no
descriptors left, are read again at every check.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

LOOK_S: Final = 2.0
LATER: Final = object()  # returned by a function that calls `on_reloaded` or `on_failed` later
_log = logging.getLogger("fleetmq")
_Seen = tuple[tuple[int, int, int] | None, ...]  # of each file, if it is there


class Change(Protocol):
    """A key of the configuration that has changed."""

    @property
    def key(self) -> str: ...

    @property
    def value(self) -> Any:
        """Its value in the file now."""

    @property
    def before(self) -> Any:
        """The value in force, or the one that was."""

    @property
    def origin(self) -> str:
        """The file and line, the variable or the option that the value comes from."""

    @property
    def holds(self) -> str:
        """From when on it holds; empty: after a restart."""

    def describe(self) -> str:
        """Return the change in words."""


@dataclass(frozen=True, slots=True)
class Changes:
    """The outcome of reading the configuration again: keys that changed, and what failed."""

    found: tuple[Change, ...] = ()
    failed: Mapping[str, str] = field(default_factory=dict)  # by part: why


@dataclass(slots=True)
class ReloadReport:
    """The outcome of a reload of everything; complete when nothing is `pending`."""

    pending: set[str] = field(default_factory=set)  # parts that are still being read
    reloaded: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)  # by part: why its old content stays
    changes: list[Change] = field(default_factory=list)


@dataclass(slots=True)
class _Watched:
    paths: tuple[str, ...]
    act: Callable[[], object]
    in_force: _Seen
    last: _Seen
    is_missed: bool = False  # it could not be read, which may end without a change of the file
    said: str = ""  # why the last reload failed

    def take(self, seen: _Seen) -> None:
        """Note that this content is in force, or was tried."""
        self.in_force = seen
        self.said = ""

    def succeed(self) -> None:
        self.is_missed = False
        self.said = ""

    def fail(self, why: str, *, may_pass: bool) -> bool:
        """Note a failure. Return False if this content failed the same way before."""
        self.is_missed = may_pass
        before, self.said = self.said, why
        return before != why


class Reload:
    """The files that are watched; one timer checks all of them."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.watched: dict[str, _Watched] = {}
        self.timer: asyncio.TimerHandle | None = None
        self.count = 0  # of reloads
        self.failures = 0
        self._reports: list[tuple[ReloadReport, Callable[[ReloadReport], None]]] = []

    def add(self, name: str, paths: Iterable[str], act: Callable[[], object]) -> None:
        """Call `act` when one of the files has changed, and on SIGHUP.

        If it fails, it raises an error of one line and has changed nothing.
        """
        paths = tuple(paths)
        seen = _look(paths)
        self.watched[name] = _Watched(paths, act, seen, seen)
        if self.timer is None:
            self.timer = self._loop.call_later(LOOK_S, self._on_timer)

    def remove(self, name: str) -> None:
        """Stop watching the files that were added under this name."""
        self.watched.pop(name, None)
        self._waiting_for(name)
        self._tell_complete()
        if not self.watched:
            self.close()

    def close(self) -> None:
        """Stop watching all files."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None

    def report(self, done: Callable[[ReloadReport], None]) -> ReloadReport:
        """Reload everything as `all` does, and call `done` when the last part has been read."""
        report = ReloadReport(set(self.watched))
        self._reports.append((report, done))
        self.all()
        self._tell_complete()
        return report

    def all(self) -> None:
        """Reload everything, changed or not: SIGHUP."""
        for name, watched in list(self.watched.items()):
            if self.watched.get(name) is not watched:
                continue  # a part before it is no longer in use, as the files of a listener
            watched.last = _look(watched.paths)
            watched.take(watched.last)
            self._reload(name, watched)

    def look(self) -> None:
        """Reload files that have changed since they were loaded, but not since the last check."""
        for name, watched in list(self.watched.items()):
            if self.watched.get(name) is not watched:
                continue
            seen = _look(watched.paths)
            is_settled, watched.last = seen == watched.last, seen
            if is_settled and seen != watched.in_force:
                watched.take(seen)
                self._reload(name, watched)
            elif watched.is_missed and seen == watched.in_force:
                self._reload(name, watched)

    def _reload(self, name: str, watched: _Watched) -> None:
        try:
            result = watched.act()
        except Exception as error:  # of any kind: the old content stays in force
            self.on_failed(name, str(error), may_pass=may_pass(error))
        else:
            if result is not LATER:
                self.on_reloaded(name, result if isinstance(result, Changes) else None)

    def on_reloaded(self, name: str, changes: Changes | None = None) -> None:
        """Report a success; of the configuration with what changed."""
        watched = self.watched.get(name)
        if watched is not None:
            watched.succeed()
        self.count += 1
        if changes is None:
            _log.info("%s: reloaded", name)
            changes = Changes()
        elif not changes.found and not changes.failed:
            _log.info("%s: read again, no key has changed", name)
        for change in changes.found:
            level = logging.INFO if change.holds else logging.WARNING
            _log.log(level, "%s: %s", name, change.describe())
        for part, why in changes.failed.items():
            self.failures += 1
            _log.error("%s: not taken up: %s", part, why)
        for report in self._waiting_for(name):
            report.reloaded.append(name)
            report.changes += changes.found
            report.failed |= changes.failed
        self._tell_complete()

    def on_failed(self, name: str, why: str, *, may_pass: bool = False) -> bool:
        """Report a failure; if it may be temporary, try again at the next check.

        Return False if the same failure was already reported for this content of the files.
        """
        for report in self._waiting_for(name):
            report.failed[name] = why
        self._tell_complete()
        watched = self.watched.get(name)
        if watched is not None and not watched.fail(why, may_pass=may_pass):
            return False
        self.failures += 1
        _log.error("%s: not reloaded, the old content stays in force: %s", name, why)
        return True

    def _waiting_for(self, name: str) -> list[ReloadReport]:
        """Return the reports that wait for this part, which then wait for it no more."""
        found = [report for report, _ in self._reports if name in report.pending]
        for report in found:
            report.pending.discard(name)
        return found

    def _tell_complete(self) -> None:
        complete = [pair for pair in self._reports if not pair[0].pending]
        if complete:
            self._reports = [pair for pair in self._reports if pair[0].pending]
        for report, done in complete:
            done(report)

    def _on_timer(self) -> None:
        self.timer = self._loop.call_later(LOOK_S, self._on_timer)
        self.look()


def may_pass(error: Exception) -> bool:
    """Tell whether a file could not be read, as opposed to having wrong content."""
    return isinstance(error, OSError) or isinstance(error.__context__, OSError)


def _look(paths: tuple[str, ...]) -> _Seen:
    return tuple(_stamp(path) for path in paths)


def _stamp(path: str) -> tuple[int, int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
