"""Choose the partition of a message. Order holds within a partition.

    client          by client id: crc32 of it, modulo the number of partitions
    topic           by topic
    level:N         by the N-th level of the topic, counted from 1
    property:NAME   by the first user property of that name
    round-robin     the partitions in turn: even, and without any order
    a.b.function    by the user's function: it gets topic, client id, payload and the user
                    properties, and returns the number of a partition, or a string or bytes to hash

A message without such a level or property is assigned by its client id. So is a message for which
the function fails or returns something else; the failure is counted, and no message is lost. The
function is called for each message, on the broker's thread.

This module imports no user code. The caller that opens the log passes the functions that may be
called: a setting of a stream may come from a client of the HTTP API, and only selects one of them.
If it names another function, messages are assigned by client id and each counts as a failure.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from mqtt_broker.streams.format.errors import Invalid

User = Sequence[tuple[str, str]]
PartitionFunction = Callable[[str, str, bytes, User], "int | str | bytes"]
PartitionFunctions = Mapping[str, PartitionFunction]  # by dotted name

_DOTTED: Final = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+")
_CACHED_MAX: Final = 65_536
_CHARS_CACHED_MAX: Final = 256  # a key of 64 KB is not worth keeping


def check_partition_by(text: str) -> None:
    kind, _, what = text.partition(":")
    if kind in ("client", "topic", "round-robin") and text == kind:
        return
    if kind == "level" and re.fullmatch(r"[1-9]\d{0,3}", what):
        return
    if kind == "property" and what:
        return
    if not names_function(text):
        raise Invalid(
            "partition_by",
            f"{text!r} is invalid: expected client, topic, level:N, property:NAME, round-robin "
            "or the dotted name of a function",
        )


def names_function(text: str) -> bool:
    """Tell whether this is the dotted name of a function."""
    return _DOTTED.fullmatch(text) is not None


class Partitioner:
    """Distributes the messages of one stream over its partitions."""

    __slots__ = ("_function", "_kind", "_next", "_what", "cached", "failures", "partitions")

    def __init__(
        self,
        partition_by: str,
        partitions: int,
        functions: PartitionFunctions | None = None,
        failures: int = 0,
    ) -> None:
        check_partition_by(partition_by)
        self.partitions = partitions
        self.failures = failures  # messages that the user's function did not assign
        kind, _, what = partition_by.partition(":")
        self._kind = kind if "." not in kind else "function"
        self._what = what
        self._function = functions.get(partition_by) if functions else None
        self._next = 0
        self.cached: dict[str, int] = {}

    @property
    def splits_runs(self) -> bool:
        """Tell whether messages of one run may go to several partitions."""
        return self.partitions > 1 and self._kind in ("round-robin", "function")

    def deal(
        self, topic: str, client_id: str, payloads: Sequence[bytes], user: User
    ) -> list[tuple[int, Sequence[bytes]]]:
        """Yield partitions, each with its part of the run, in order."""
        n = self.partitions
        if n == 1:
            return [(0, payloads)]
        kind = self._kind
        if kind == "client":
            return [(self._by(client_id), payloads)]
        if kind == "topic":
            return [(self._by(topic), payloads)]
        if kind == "level":
            levels = topic.split("/", int(self._what))
            at = int(self._what) - 1
            return [(self._by(levels[at] if at < len(levels) else client_id), payloads)]
        if kind == "property":
            for name, value in user:
                if name == self._what:
                    return [(self._by(value), payloads)]
            return [(self._by(client_id), payloads)]
        if kind == "round-robin":
            first = self._next
            self._next = (first + len(payloads)) % n
            turns = min(n, len(payloads))
            return [((first + turn) % n, payloads[turn::n]) for turn in range(turns)]
        return self._by_function(topic, client_id, payloads, user)

    def _by(self, key: str) -> int:
        found = self.cached.get(key)
        if found is None:
            found = zlib.crc32(key.encode()) % self.partitions
            if len(key) <= _CHARS_CACHED_MAX:
                if len(self.cached) >= _CACHED_MAX:
                    self.cached.clear()
                self.cached[key] = found
        return found

    def _by_function(
        self, topic: str, client_id: str, payloads: Sequence[bytes], user: User
    ) -> list[tuple[int, Sequence[bytes]]]:
        if self._function is None:
            self.failures += len(payloads)
            return [(self._by(client_id), payloads)]
        dealt: dict[int, list[bytes]] = {}
        for payload in payloads:
            try:
                number = self._number(self._function(topic, client_id, payload, user))
            except (Exception, SystemExit):  # the user's code may raise anything
                self.failures += 1
                number = self._by(client_id)
            dealt.setdefault(number, []).append(payload)
        return list(dealt.items())

    def _number(self, key: object) -> int:
        """Return the partition for a function's result. Raises TypeError if it is invalid."""
        if isinstance(key, int):
            return int(key) % self.partitions
        if isinstance(key, str):
            key = str.encode(key, errors="replace")
        if isinstance(key, bytes):
            return zlib.crc32(key) % self.partitions
        raise TypeError(type(key).__name__)
