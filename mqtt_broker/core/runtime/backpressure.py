"""Stop reading from publishers while the store, the telemetry log or the sockets cannot keep up.

A publisher is paused by the PUBLISH that finds too much waiting, and goes on when enough of it
is gone. Nothing that waits is dropped for it: TCP tells the publisher to wait. Readers that do not
keep up hold nobody back: see `slow_readers`.

Whoever is not read from, for whatever reason, is counted here, and a line of the log names one.
"""

from __future__ import annotations

from typing import Final, Protocol

from mqtt_broker.core.limits.settings import Settings
from mqtt_broker.core.runtime.runtime import Runtime
from sessions.journal.journal import Journal

# Reasons not to read from a client, as bits.
BEHIND: Final = 1  # the store cannot keep up with publishers
LOG_BEHIND: Final = 2  # the telemetry log cannot keep up with QoS 0
ACKS_OWED: Final = 4  # too many of its acknowledgements wait for the store
THROTTLED: Final = 8  # it sent faster than it may
READS_SLOWLY: Final = 16  # too much waits for it
UNDECIDED: Final = 32  # its CONNECT waits for a verdict or for the store
UNFINISHED: Final = 64  # what it sent before is still being worked on
STOPPING: Final = 128  # the broker stops
UNSENT: Final = 256  # much of what was published is not handed to the sockets of its receivers yet
NAMES: Final = {
    BEHIND: "store",
    LOG_BEHIND: "log",
    ACKS_OWED: "acknowledgements",
    THROTTLED: "rate",
    READS_SLOWLY: "unread",
    UNDECIDED: "connect",
    UNFINISHED: "work",
    STOPPING: "stop",
    UNSENT: "output",
}


class PausableClient(Protocol):
    """A connection, as far as it is paused here."""

    @property
    def name(self) -> str:
        """Client id and address, for the log."""

    def pause(self, reason: int) -> None: ...

    def resume(self, reason: int) -> None: ...


class Backpressure:
    __slots__ = (
        "_counts",
        "_journal",
        "_log_waiting",
        "_notices",
        "paused",
        "store_state",
        "unsent",
    )

    def __init__(self, settings: Settings, runtime: Runtime, journal: Journal | None) -> None:
        self._journal = journal
        self._notices = runtime.notices
        self._counts = dict.fromkeys(NAMES, 0)
        self.store_state = ""  # what is wrong with the store; empty: nothing
        self.paused: set[PausableClient] = set()  # publishers that wait for the store or the log
        self._log_waiting: set[PausableClient] = set()  # of them, those that wait for the log
        self.unsent: dict[PausableClient, None] = {}  # publishers that wait for the sockets

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
        client.pause(reason)
        self.paused.add(client)
        if reason == LOG_BEHIND:
            self._log_waiting.add(client)
        if self._journal is not None and self._notices.is_due("held", now):
            why = self._journal.behind
            self._notices.say("held", f"{client.name}: reading pauses: {why}")

    def forget(self, client: PausableClient) -> None:
        """Drop a connection that is closed."""
        self.paused.discard(client)
        self._log_waiting.discard(client)
        self.unsent.pop(client, None)

    def wait_for_output(self, client: PausableClient, now: float) -> None:
        """Stop reading from a publisher while much has yet to be handed to sockets."""
        client.pause(UNSENT)
        self.unsent[client] = None
        if self._notices.is_due("output", now):
            line = f"{client.name}: not read from, what it published is not written to all yet"
            self._notices.say("output", line)

    def on_written(self) -> None:
        """Read from publishers again: the sockets of all receivers have what was published."""
        for client in self.unsent:
            client.resume(UNSENT)
        self.unsent.clear()

    def note_work(self, client: PausableClient, seconds: int, now: float) -> None:
        """Say that a client is not read from, since what it sent is more than its share."""
        if self._notices.is_due("work", now):
            line = f"{client.name}: not read from, what it sent has been worked on for {seconds} s"
            self._notices.say("work", line)

    def resume(self) -> None:
        """Read from everybody again if enough of what waited is gone."""
        if self.paused and not (self._journal is not None and self._journal.is_behind):
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

    # Who is not read from.

    def count(self, reasons: int, change: int) -> None:
        """Count a client that is not read from any more for these reasons, or is again."""
        for reason in NAMES:
            if reasons & reason:
                self._counts[reason] += change

    def held(self) -> dict[str, int]:
        """The clients that are not read from now, by reason; one may have several."""
        return {NAMES[reason]: count for reason, count in self._counts.items()}
