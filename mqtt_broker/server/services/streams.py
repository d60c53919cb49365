"""The telemetry log of a running broker: configure, write, maintain and replay its streams.

The store's thread writes accepted messages, before the journal group that they belong to
(`streams.write.writer`). Work that may wait long for the disk has threads of its own: creating and
deleting streams, sealing, retention, compaction, and replay reads.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from mqtt_broker.core.broker import Broker
from mqtt_broker.core.interfaces.message_log import TopicWriter
from mqtt_broker.server.config.config import StartError
from mqtt_broker.server.process.turn import Turn
from mqtt_broker.server.services.extensions import partition_functions
from mqtt_broker.streams.format.errors import Invalid, JournalBehind, LostTail, StreamError
from mqtt_broker.streams.format.offsets import Offsets
from mqtt_broker.streams.format.stream_settings import StreamSettings
from mqtt_broker.streams.replay.context import ReplayHost, ReplayLimits
from mqtt_broker.streams.replay.service import ReplayService
from mqtt_broker.streams.write.log import Log
from mqtt_broker.streams.write.stream import Stream
from mqtt_broker.streams.write.topic_writer import TopicWriters
from mqtt_broker.streams.write.writer import LogWriter
from sessions.journal.journal import Journal
from sessions.journal.rows import CursorRow, StreamRow
from sessions.journal.transaction import PendingCall
from sessions.journal.value_ranges import count

if TYPE_CHECKING:
    from mqtt_broker.core.broker import Broker
    from mqtt_broker.server.config.config import Config
    from sessions.journal.snapshot import Snapshot
    from sessions.store.store import Store

DIRECTORY: Final = "streams"  # in the data directory
MAINTAIN_S: Final = 5.0
COMPACT_S: Final = 60.0
FLUSH_S: Final = 5.0  # how long removing waits for the store
READERS: Final = 2  # threads that read for clients
_FIXED: Final = ("name", "partitions", "epoch")
_T = TypeVar("_T")
_log = logging.getLogger("fleetmq")


class StreamService:
    """The streams of one broker, from its start to its end."""

    def __init__(
        self,
        config: Config,
        loop: asyncio.AbstractEventLoop,
        turn: Turn,
        snapshot: Snapshot,
        store: Store,
    ) -> None:
        self._loop = loop
        self._turn = turn
        self._started: Broker | None = None
        self._store = store
        self._recorded = {row.name: row for row in snapshot.streams}
        root = Path(config.data_dir) / DIRECTORY
        try:
            self.log = Log.open(
                root,
                _ends(snapshot),
                report=_report,
                salvage=config.recover,
                cache_bytes=config.settings.stream_cache_bytes,
                partition_functions=partition_functions(config),
            )
        except (LostTail, JournalBehind) as error:
            raise StartError(
                f"telemetry log: {error}; restore {root} and the store from one backup, or start "
                "once with --recover to go on with what is there"
            ) from None
        except (StreamError, OSError) as error:
            raise StartError(f"telemetry log: {error}") from None
        self._changed: deque[str] = deque()  # streams that grew since readers were last told
        self.writer = LogWriter(
            self.log, 2 * config.settings.stream_bytes_max, on_committed=self._changed.extend
        )
        self._replay: ReplayService | None = None
        self._changing = ThreadPoolExecutor(1, "fleetmq-streams")
        self._reading = ThreadPoolExecutor(READERS, "fleetmq-replay")
        self._is_over = threading.Event()
        self._maintenance = threading.Thread(
            target=self._maintain, name="fleetmq-maintenance", daemon=True
        )
        try:
            for settings in config.streams:
                self._configure(settings)
        except (StreamError, OSError) as error:
            self.close()
            raise StartError(f"streams: {error}") from None

    def _configure(self, wanted: StreamSettings) -> None:
        """Create a stream of the configuration, or change an existing one to match."""
        stream = self.log.streams.get(wanted.name)
        if stream is None:
            self.log.create(wanted)
            return
        if wanted.partitions != stream.settings.partitions:
            raise Invalid(
                f"{wanted.name}.partitions",
                f"it has {stream.settings.partitions}, which cannot be changed to "
                f"{wanted.partitions}: offsets would lose their meaning",
            )
        changes = {
            key: value
            for key, value in asdict(wanted).items()
            if key not in _FIXED and value != getattr(stream.settings, key)
        }
        if changes:
            self.log.change(wanted.name, **changes)

    def start(self, broker: Broker, cursors: Iterable[CursorRow]) -> None:
        """Start writing published messages. `cursors`: the stored positions of consumer groups."""
        self._started = broker
        self._topic_writers = TopicWriters(self.writer, broker.backlog.drop)
        for stream in self.log.streams.values():
            self._adopt(stream)
        for name in self._recorded.keys() - self.log.streams.keys():
            _log.error("stream %r is deleted: its files are missing", name)
            self._journal.on_stream_gone(name)
            self._store.forget_ends(name)
            del self._recorded[name]
        self._replay = ReplayService(
            self.log,
            replay_host(broker),
            self.read,
            self._turn.now,
            cursors=cursors,
            limits=ReplayLimits(redeliveries_max=broker.redeliveries_max),
            skips_damage=lambda stream: broker.settings.replay_skips_damage,
            dead_letters=broker.runtime.dead_letters,
        )
        broker.attach_log(self)
        broker.runtime.metrics.add("log", self._figures)
        self._maintenance.start()

    @property
    def replay(self) -> ReplayService:
        assert self._replay is not None, "the stream service is not started"
        return self._replay

    @property
    def _broker(self) -> Broker:
        assert self._started is not None, "the stream service is not started"
        return self._started

    def close(self) -> None:
        """Stop all threads and close the files."""
        self._is_over.set()
        self._changing.shutdown()
        self._reading.shutdown(cancel_futures=True)
        if self._replay is not None:
            self._replay.close()
        if self._maintenance.ident is not None:
            self._maintenance.join()
        self.log.close()

    @property
    def _journal(self) -> Journal:
        journal = self._broker.journal
        assert journal is not None
        return journal

    # On the loop: the broker's message log.

    @property
    def subscriptions(self) -> ReplayService:
        return self.replay

    def find(self, topic: str) -> TopicWriter | None:
        return self._topic_writers.find(topic)

    def on_committed(self) -> None:
        """Wake readers that wait at the end of a stream that has grown."""
        changed = {self._changed.popleft() for _ in range(len(self._changed))}
        replay = self._replay
        if replay is not None and not changed.isdisjoint(replay.by_stream):
            replay.on_committed(changed, self._turn.now())

    def read(self, work: Callable[[], _T], done: Callable[[_T], None]) -> None:
        """Call `work`, which waits for the disk, in a thread, then `done(result)` on the loop."""

        def act() -> None:
            found = work()
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(finish, found)

        def finish(found: _T) -> None:
            if not self._is_over.is_set():
                done(found)
                self._turn.end_now()

        self._reading.submit(act)

    def _adopt(self, stream: Stream) -> None:
        """Apply a new or changed stream: its filter for topics, its row for SQL."""
        before = self._recorded.get(stream.name)
        row = StreamRow(
            stream.name,
            stream.epoch,
            stream.settings.filter,
            stream.settings.text(),
            before.created_at if before is not None else self._turn.now(),
        )
        if row != before:
            self._recorded[stream.name] = row
            self._journal.on_stream(row)
        self._set_streams(stream.settings.filter, "" if before is None else before.filter)

    def _set_streams(self, *filters: str) -> None:
        if self._journal.participant is None and self.log.streams:
            self._store.enlist(self.writer)
            self._journal.enlist(self.writer)
        self._topic_writers.set_streams(self.log.streams.values())
        for text in filters:
            if text:
                self._broker.routes.cache.drop(text)

    # Requests of operators; each future is done when the store has recorded the change.

    def create(self, settings: StreamSettings) -> Future[None]:
        return self._change(lambda: self.log.create(settings), self._adopt)

    def change(self, name: str, changes: Mapping[str, Any]) -> Future[None]:
        def act() -> Stream:
            if "name" in changes:
                raise Invalid("name", "it cannot be changed")
            self.log.change(name, **changes)
            return self.log.stream(name)

        return self._change(act, self._adopt)

    def delete(self, name: str) -> Future[None]:
        def gone(settings: StreamSettings) -> None:
            self._recorded.pop(name, None)
            self._journal.on_stream_gone(name)
            self._store.forget_ends(name)
            self._set_streams(settings.filter)
            self.replay.on_deleted(name, self._turn.now())

        def act() -> StreamSettings:
            settings = self.log.stream(name).settings
            self.log.delete(name)
            return settings

        return self._change(act, gone)

    def trim(self, name: str, before: Offsets | None) -> Future[int]:
        def act() -> int:
            self._store.flush(FLUSH_S)  # a segment may go when the journal knows all of it
            return self.log.trim(name, before)

        return self._changing.submit(act)

    def _change(self, act: Callable[[], _T], then: Callable[[_T], None]) -> Future[None]:
        """Change files in a thread, then the broker on the loop, then wait for the journal."""
        done: Future[None] = Future()

        def run() -> None:
            try:
                found = act()
            except Exception as error:  # for the caller
                done.set_exception(error)
            else:
                self._loop.call_soon_threadsafe(finish, found)

        def finish(found: _T) -> None:
            try:
                then(found)
                self._journal.wait(PendingCall(lambda now: done.set_result(None)))
            except Exception as error:  # a bug: the caller gets it at once, not a timeout
                done.set_exception(error)
            self._turn.end_now()

        self._changing.submit(run)
        return done

    def _figures(self) -> dict[str, int]:
        """Return the numbers that `$SYS` shows."""
        found = {"streams/count": len(self.log.streams)}
        for name, stream in self.log.streams.items():
            found[f"streams/{name}/messages/stored"] = sum(stream.committed().ends)
            found[f"streams/{name}/messages/taken"] = stream.appended
            found[f"streams/{name}/messages/refused"] = stream.refused
            found[f"streams/{name}/partition_failures"] = stream.partitioner.failures
        replay = self.replay.figures()
        found["replay/readers"] = replay.readers
        found["replay/groups"] = replay.groups
        found["replay/messages/sent"] = replay.messages
        found["replay/messages/gaps"] = replay.gaps
        found["replay/messages/redelivered"] = replay.redelivered
        found["replay/messages/dead"] = replay.dead
        return found

    # In the maintenance thread.

    def _maintain(self) -> None:
        compact_at = time.monotonic() + COMPACT_S
        while not self._is_over.wait(MAINTAIN_S):
            now_us = time.time_ns() // 1_000
            self.log.maintain(now_us)
            if time.monotonic() >= compact_at:
                self.log.compact(now_us, self._is_over.is_set)
                compact_at = time.monotonic() + COMPACT_S


def replay_host(broker: Broker) -> ReplayHost:
    """Return the parts of the broker that a replay uses."""
    return ReplayHost(
        timers=broker.timers,
        journal=broker.journal,
        log=broker.runtime.log,
        on_bug=lambda error: broker.runtime.on_bug(None, b"", error),
        write_out=broker.outboxes.write,
        is_pressed=lambda: broker.outboxes.is_pressed,
        outbox_bytes_max=broker.settings.outbox_bytes_max,
    )


def _ends(snapshot: Snapshot) -> dict[str, Offsets] | None:
    """Return the ends of the log's partitions as the journal has them.

    None: the journal has lost them, and the log's own files decide.
    """
    if snapshot.has_lost_ends:
        return None
    try:
        return {name: Offsets.decode(text) for name, text in snapshot.stream_ends.items()}
    except Invalid:
        count(snapshot.healed, "unreadable end of a stream: the files of the log are used")
        return None


def _report(line: str) -> None:
    _log.warning("telemetry log: %s", line)
