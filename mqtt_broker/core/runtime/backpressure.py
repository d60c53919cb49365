"""Stop reading from publishers while readers, the store or the telemetry log cannot keep up.

A publisher is paused by the PUBLISH that finds too much waiting, and goes on when enough of it
is gone. Nothing that waits is dropped for it: TCP tells the publisher to wait.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final, Protocol

from mqtt_broker.core.limits.settings import Settings
from mqtt_broker.core.runtime.runtime import Runtime
from sessions.journal.journal import Journal

# Reasons not to read from a client, as bits.
BEHIND: Final = 1  # readers or the store cannot keep up with publishers
LOG_BEHIND: Final = 2  # the telemetry log cannot keep up with QoS 0
ACKS_OWED: Final = 4  # too many of its acknowledgements wait for the store
THROTTLED: Final = 8  # it sent faster than it may
READS_SLOWLY: Final = 16  # too much waits for it
UNDECIDED: Final = 32  # its CONNECT waits for a verdict or for the store
_RESUME_BELOW: Final = 0.8  # of the limit


class PausableClient(Protocol):
    """A connection, as far as it is paused here."""

    def pause(self, reason: int) -> None: ...

    def resume(self, reason: int) -> None: ...

    def close_if_stalled(self, now: float) -> bool:
        """Close it if it has bytes to read and takes none of them."""


class Backpressure:
    __slots__ = (
        "_clients",
        "_journal",
        "_log_waiting",
        "_outboxes",
        "_stalled_reader_s",
        "_timers",
        "paused",
        "store_state",
        "waiting_bytes_max",
    )

    def __init__(
        self,
        settings: Settings,
        runtime: Runtime,
        journal: Journal | None,
        clients: Collection[PausableClient],
    ) -> None:
        self._outboxes = runtime.outboxes
        self._timers = runtime.timers
        self._journal = journal
        self._clients = clients  # every one that is connected
        self.waiting_bytes_max = settings.outbox_total_bytes_max
        self._stalled_reader_s = settings.stalled_reader_s
        self.store_state = ""  # what is wrong with the store; empty: nothing
        self.paused: set[PausableClient] = set()  # publishers that wait for readers or the store
        self._log_waiting: set[PausableClient] = set()  # of them, those that wait for the log

        if journal is not None:
            journal.limit(
                settings.journal_bytes_max,
                settings.queue_memory_bytes_max,
                settings.stream_bytes_max,
            )

    @property
    def is_log_behind(self) -> bool:
        """Tell whether QoS 0 waits for the log too. It does not wait for a store that fails."""
        journal = self._journal
        return journal is not None and journal.is_participant_behind and not self.store_state

    def pause(self, client: PausableClient, reason: int, now: float) -> None:
        """Stop reading from a publisher, for one of the first two reasons."""
        if not self.paused:
            self._watch_readers(now)
        client.pause(reason)
        self.paused.add(client)
        if reason == LOG_BEHIND:
            self._log_waiting.add(client)

    def forget(self, client: PausableClient) -> None:
        """Drop a connection that is closed."""
        self.paused.discard(client)
        self._log_waiting.discard(client)

    def resume(self) -> None:
        """Read from everybody again if enough of what waited is gone."""
        if (
            self.paused
            and self._outboxes.waiting_bytes < self.waiting_bytes_max * _RESUME_BELOW
            and not (self._journal is not None and self._journal.is_behind)
        ):
            for client in self.paused:
                client.resume(BEHIND | LOG_BEHIND)
            self.paused.clear()
            self._log_waiting.clear()

    def on_store_state(self, state: str) -> None:
        """Adapt to a store that fails, or works again. QoS 0 does not wait for one that fails."""
        self.store_state = state
        if state:
            for client in self._log_waiting:
                client.resume(BEHIND | LOG_BEHIND)
                self.paused.discard(client)
            self._log_waiting.clear()

    def _watch_readers(self, now: float) -> None:
        self._timers.at(now + self._stalled_reader_s, self._on_readers_check)

    def _on_readers_check(self, now: float) -> None:
        """Close readers that stand still: each below its own limit, they may not stop everybody."""
        try:
            if self.paused:
                for client in list(self._clients):
                    client.close_if_stalled(now)
        finally:
            if self.paused:
                self._watch_readers(now)
