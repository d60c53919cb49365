"""The objects that all of the core shares: from its embedder, and its counters and outboxes.

Everything here is independent of MQTT: deadlines, random numbers, a log, counters, outboxes, the
work of a turn and the agenda of what goes on in the next.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Protocol

from mqtt_broker.core.interfaces.client_log import ClientLog, RefusalLog
from mqtt_broker.core.interfaces.tracing import MessageTracer
from mqtt_broker.core.runtime.agenda import Agenda
from mqtt_broker.core.runtime.dead_letter_buffer import DeadLetterBuffer
from mqtt_broker.core.runtime.notices import Notices
from mqtt_broker.core.runtime.timers import Timers
from sessions.messages.counters import Counters
from sessions.messages.outbox import Outboxes
from sessions.messages.work import Work


class FailedClient(Protocol):
    """The connection at which an internal error showed."""

    @property
    def name(self) -> str:
        """Client id and address, for the log."""

    @property
    def has_session(self) -> bool: ...

    @property
    def connected_at(self) -> float: ...


OnBug = Callable[[FailedClient | None, bytes, Exception], None]


class Metrics:
    """Values of other packages, read when `$SYS` or a scrape wants them."""

    __slots__ = ("_sources",)

    def __init__(self) -> None:
        self._sources: dict[str, tuple[str, Callable[[], Mapping[str, int | str]]]] = {}

    def add(
        self, source: str, read: Callable[[], Mapping[str, int | str]], prefix: str = ""
    ) -> None:
        """Read the values of `source` from this function, in place of one given before.

        `prefix` stands in front of their names under `$SYS/broker/`.
        """
        self._sources[source] = (prefix, read)

    def read(self, source: str) -> dict[str, int]:
        """The numbers of one source; none when nobody has added it."""
        found = self._sources.get(source)
        if found is None:
            return {}
        return {name: value for name, value in found[1]().items() if isinstance(value, int)}

    def values(self) -> dict[str, str]:
        """The values of every source under their names in `$SYS/broker/`."""
        return {
            prefix + name: str(value)
            for prefix, read in self._sources.values()
            for name, value in read().items()
        }


class Runtime:
    """The runtime of a broker."""

    __slots__ = (
        "agenda",
        "client_log",
        "counters",
        "dead_letters",
        "heap_bytes",
        "id_rng",
        "log",
        "message_tracer",
        "metrics",
        "notices",
        "on_bug",
        "outboxes",
        "repaired",
        "rng",
        "timers",
        "work",
    )

    def __init__(
        self,
        *,
        now: float,
        rng: random.Random,
        id_rng: random.Random,
        log: Callable[[str], None],
        on_bug: OnBug,
        heap_bytes: Callable[[], int],
        dead_letters: DeadLetterBuffer | None,
        outbox_bytes_max: int,
        outbox_total_bytes_max: int,
        work: Work,
        client_log: ClientLog | None = None,
        message_tracer: MessageTracer | None = None,
    ) -> None:
        self.rng = rng
        self.id_rng = id_rng  # of names that nobody may guess
        self.log = log
        self.message_tracer = message_tracer  # None: messages are not traced
        self.client_log: ClientLog = RefusalLog(log) if client_log is None else client_log
        self.on_bug = on_bug
        self.heap_bytes = heap_bytes
        self.dead_letters = dead_letters  # None: dead letters are not wanted
        self.work = work
        self.agenda = Agenda(work, lambda error: on_bug(None, b"", error))
        self.timers = Timers()
        self.counters = Counters(now)
        self.outboxes = Outboxes(
            self.counters,
            now,
            work,
            share_bytes_max=outbox_bytes_max,
            waiting_bytes_max=outbox_total_bytes_max,
        )
        self.notices = Notices(log)
        self.metrics = Metrics()
        self.repaired: dict[str, int] = {}  # impossible values of the store, by what they were
