"""Connect the store's threads to the event loop: pass changes to them, and act on their answers.

Changes wait for a moment before they are handed over, so that one commit serves many messages and
a message that all subscribers acknowledge at once is never written. The loop never waits for the
store.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from mqtt_broker.core import sys_topics
from mqtt_broker.core.broker import Broker
from mqtt_broker.core.restore import items_of, restore
from mqtt_broker.server.config.config import DatabaseUnreachable, StartError
from mqtt_broker.server.process.heartbeat import Heartbeat
from mqtt_broker.server.process.log_limiter import ErrorLog
from mqtt_broker.server.process.turn import Turn
from mqtt_broker.server.services.streams import StreamService
from sessions.journal.journal import MODES, Journal, StoredQueue
from sessions.journal.rows import DeliveryRow, MessageRow, SessionRow
from sessions.journal.snapshot import Snapshot
from sessions.store.database import parse_url
from sessions.store.store import Store, StoreError, Unreachable

if TYPE_CHECKING:
    from mqtt_broker.server.config.config import Config

_T = TypeVar("_T")
Page = list[tuple[DeliveryRow, MessageRow]]
LINGER_S: Final = 0.003  # how long changes wait, so that they share a commit
# Changes are handed over earlier once there are
_ENTRIES_MAX: Final = 2_000  # so many of them,
_CERTAIN_MAX: Final = 32  # so many that have to be written, while the store is idle,
_LOGGED_MIN: Final = 128  # or so many unacknowledged log records; see `_is_worth_it`.
_GROUPS_UNDER_WAY_MAX: Final = 2  # while the store has these, further changes gather in one group
RETRY_S: Final = 0.2  # before a failed hand-over is tried again
_SAY_EVERY: Final = 1_000  # sessions that are loaded at the start
_PAGE_MESSAGES: Final = 1_000
_PAGE_BYTES: Final = 4 << 20
_log = logging.getLogger("fleetmq")


def check_store(config: Config) -> None:
    """Check the place of the state without opening it. Raises ConfigError."""
    if not config.needs_store:
        return
    if config.database_url:
        try:
            parse_url(config.database_url)
        except StoreError as error:
            raise config.error("database_url", str(error)) from None
    path = Path(config.data_dir)
    while not path.exists() and path != path.parent:
        path = path.parent
    if not path.is_dir():
        raise config.error(
            "data_dir",
            f"{path} is a file; name a directory, which the broker creates if there is none",
        )


class StorageService:
    """The journal and the store of a broker."""

    def __init__(
        self,
        config: Config,
        loop: asyncio.AbstractEventLoop,
        turn: Turn,
        on_progress: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Open the store. Raises StartError if that fails, ConfigError if it cannot work."""
        check_store(config)
        self._loop = loop
        self._turn = turn
        self._started: Broker | None = None
        self._on_progress = on_progress
        on_progress("opening the store")
        try:
            self.store = Store.open(
                data_dir=config.data_dir,
                database_url=config.database_url,
                recover=config.recover,
                log=lambda line: _log.warning("%s", line),
            )
            on_progress("reading the state")
            snapshot = self.store.snapshot()
        except Unreachable as error:
            raise DatabaseUnreachable(str(error)) from None
        except StoreError as error:
            raise StartError(str(error)) from None
        self._heartbeat = Heartbeat(Path(config.data_dir), turn.now)
        snapshot.alive_at = max(snapshot.alive_at, self._heartbeat.last())
        self._snapshot: Snapshot | None = snapshot
        on_progress("opening the telemetry log")
        try:
            self.streams = StreamService(config, loop, turn, snapshot, self.store)
        except StartError:
            self.store.stop(1.0)
            raise
        modes = {MODES[config.durability], *(MODES[mode] for _, mode in config.durabilities)}
        self.journal = Journal(
            self._submit,
            mode=MODES[config.durability],
            awaits_commit=MODES["commit"] in modes,
            number=snapshot.last_number,
            last_message=snapshot.last_mid,
            last_session=snapshot.last_sid,
        )
        self._unfolded: deque[tuple[int, float]] = deque()  # of each second, the first group
        self._submitted: deque[tuple[int, float]] = deque()  # groups under way: number, when
        self._timer: asyncio.TimerHandle | None = None
        self._log_bytes_enough = config.settings.stream_bytes_max * 3 // 4
        self._logged_before = 0  # messages that the log had at the last flush,
        self._logged = 0  # and how many of them were new
        self._logged_enough = _LOGGED_MIN
        self._is_over = False
        self._errors = ErrorLog(_log)
        self._trouble = ""  # why the journal could not be packed or handed over,
        self._state = ""  # and what the store said last
        self._settled: asyncio.Event | None = None

    def start(self, broker: Broker) -> None:
        """Restore the broker's state, and store its changes from now on."""
        self._started = broker
        assert self._snapshot is not None
        snapshot = replace(self._snapshot, sessions=self._counted(self._snapshot.sessions))
        self.streams.start(broker, snapshot.cursors)
        restore(broker, snapshot, self._turn.now())
        self.streams.replay.on_restored()
        self._snapshot = None
        broker.runtime.metrics.add("store", self._figures, "store/journal/")
        self.store.start(
            self._from_thread(self._on_committed),
            self._from_thread(self._on_folded),
            self._from_thread(self._on_state),
        )
        self._heartbeat.start()
        self.after_turn()

    def _counted(self, sessions: Iterable[SessionRow]) -> Iterator[SessionRow]:
        """Pass sessions on, and tell from time to time how many there were."""
        for count, session in enumerate(sessions):
            if count % _SAY_EVERY == 0:
                self._on_progress(f"loading the state, {count:,} sessions so far")
            yield session
        self._on_progress("loading the state, now what belongs to the sessions")

    @property
    def _broker(self) -> Broker:
        assert self._started is not None, "the storage service is not started"
        return self._started

    def dead_threads(self) -> list[str]:
        """Return the names of the store's threads that have died. Any thread may call it."""
        return self.store.dead_threads()

    def abandon(self) -> None:
        """Close everything: the broker failed to start, or is stopped as by `kill -9`."""
        self._is_over = True
        if self._timer is not None:
            self._timer.cancel()
        self._heartbeat.stop()
        self.store.stop(1.0)
        self.streams.close()

    def _submit(self, number: int, blob: bytes) -> None:
        now = self._loop.time()
        self._submitted.append((number, now))
        if not self._unfolded or now - self._unfolded[-1][1] > 1.0:  # a second is exact enough
            self._unfolded.append((number, now))
        self.store.submit(number, blob, self._turn.now())

    def _from_thread(self, act: Callable[[_T], None]) -> Callable[[_T], None]:
        def act_in_time(value: _T) -> None:
            if not self._is_over:
                act(value)

        def call(value: _T) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: no one waits
                self._loop.call_soon_threadsafe(act_in_time, value)

        return call

    # The turn.

    def after_turn(self) -> None:
        """Hand changes over, or schedule that."""
        journal = self.journal
        waiting = len(journal)
        if self._trouble or journal.is_unfinished:
            self._linger(RETRY_S)
        elif waiting > _ENTRIES_MAX or self._is_worth_it():
            self._flush()
        elif waiting:
            self._linger(LINGER_S)
        elif self._timer is None and journal.participant_has_new:
            self._linger(max(LINGER_S, self._participant_delay_s(self._turn.now())))
        while journal.pages_wanted:
            self._request(journal.pages_wanted[-1])
            journal.pages_wanted.pop()  # last: requests that failed are repeated

    def _linger(self, seconds: float) -> None:
        """Call `_on_linger` after this delay, unless it is due earlier."""
        due_at = self._loop.time() + seconds
        if self._timer is not None:
            if self._timer.when() <= due_at:
                return
            self._timer.cancel()
        self._timer = self._loop.call_at(due_at, self._on_linger)

    def _on_linger(self) -> None:
        self._timer = None
        try:
            self._end_linger()
        except Exception as error:  # try again, or the changes would wait for ever
            self._errors.write(error, "journal: internal error")
            self._linger(RETRY_S)

    def _end_linger(self) -> None:
        now = self._turn.now()
        is_log_due = self.journal.participant_has_new and not self._participant_delay_s(now)
        if is_log_due or self._trouble or not self.journal.drop_settled(now - LINGER_S):
            self._flush()
        self._turn.end_now()  # which sets the timer again for the rest

    def _participant_delay_s(self, now: float) -> float:
        participant = self.journal.participant
        return 0.0 if participant is None else participant.delay_s(now)

    def _is_worth_it(self) -> bool:
        """Tell whether to hand over now: the store is idle, and enough changes wait.

        A group with records of the log costs more, and its publishers send in bursts: few entries,
        many messages. Such a group is worth it once it has nearly as many messages as the last
        group acknowledged.
        """
        journal = self.journal
        if journal.committed != journal.number:
            return False
        if not journal.pinned:
            participant = journal.participant
            return participant is not None and participant.waiting_bytes > self._log_bytes_enough
        if logged := self._logged_messages():
            return logged >= self._logged_enough
        return journal.pinned >= _CERTAIN_MAX

    def _logged_messages(self) -> int:
        """Count the log's messages since the last hand-over."""
        return self.streams.writer.messages - self._logged_before

    def _flush(self) -> None:
        journal = self.journal
        if journal.number - journal.committed < _GROUPS_UNDER_WAY_MAX or journal.is_unfinished:
            self._pack()

    def _pack(self) -> None:
        """Hand the changes over as a group. A failure is reported and tried again."""
        try:
            self.journal.flush(self._turn.now())
        except Exception as error:
            if not self._trouble:
                self._errors.write(error, "journal: internal error")
            self._on_trouble(f"journal: {_explain(error)}")
            return
        self._on_trouble("")
        self._logged = self._logged_messages()
        self._logged_before += self._logged

    def _request(self, owner: StoredQueue) -> None:
        def on_page(page: Page) -> None:
            broker = self._broker
            try:
                owner.on_page(items_of(broker, page), self._turn.now())
            except Exception as error:  # try again, or the queue would wait for ever
                self._errors.write(error, "store: internal error with a page")
                self._loop.call_later(RETRY_S, self._request, owner)
            self._turn.end_now()

        self.store.page(
            owner.session_number,
            owner.page_after,
            _PAGE_MESSAGES,
            _PAGE_BYTES,
            self._from_thread(on_page),
        )

    # From the store's threads, by way of the loop.

    def _on_committed(self, number: int) -> None:
        submitted, now = self._submitted, self._loop.time()
        while submitted and submitted[0][0] <= number:
            self._broker.state.timings.commit.add_seconds(now - submitted.popleft()[1])
        guard = self._turn.guard
        guard(lambda: self._broker.on_committed(number, self._turn.now()))
        if self.journal.participant is not None:
            guard(self.streams.on_committed)
        under_way = self._logged + self._logged_messages()
        self._logged_enough = max(_LOGGED_MIN, under_way * 7 // 8)
        if self._timer is None or self._is_worth_it():  # it was due while the store was busy
            self._flush()
        if self._settled is not None and self.journal.is_settled:
            self._settled.set()
        self._turn.end_now()

    def oldest_unfolded_s(self) -> float:
        """Return how long the oldest group has waited that the tables do not have, to a second."""
        return self._loop.time() - self._unfolded[0][1] if self._unfolded else 0.0

    def _on_folded(self, number: int) -> None:
        while self._unfolded and self._unfolded[0][0] <= number:
            self._unfolded.popleft()
        self._turn.guard(lambda: self._broker.on_folded(number, self._turn.now()))
        self._turn.end_now()

    def _on_state(self, state: str) -> None:
        self._state = state
        self._say_state()

    def _on_trouble(self, trouble: str) -> None:
        """Report a new problem with the journal; "" means that it is over."""
        if trouble != self._trouble:
            self._trouble = trouble
            self._loop.call_soon(self._say_state)  # not in the middle of the failed operation

    def _say_state(self) -> None:
        broker = self._broker
        state = "; ".join(filter(None, (self._trouble, self._state)))
        if state == broker.backpressure.store_state:
            return
        if state:
            _log.error("store: %s; trying again", state)
        elif broker.backpressure.store_state:
            _log.warning("store: works again")
        broker.on_store_state(state)
        self._turn.guard(lambda: sys_topics.publish_store_state(broker.state, self._turn.now()))
        self._turn.end_now()

    def _figures(self) -> dict[str, int]:
        store = self.store
        return {
            "records": self.journal.records,
            "commits": store.commits,
            "folded": store.folded,
            "cancelled": self.journal.cancelled + store.cancelled,
            "refused": self.journal.refused,
            "healed": sum(self._broker.runtime.repaired.values()) + sum(store.healed.values()),
            "lag": store.lag,
        }

    # The end.

    async def settle(self, timeout_s: float) -> bool:
        """Wait until every recorded change is on disk. Return False after the timeout."""
        self._settled = asyncio.Event()
        self._pack()
        try:
            if not self.journal.is_settled:
                await asyncio.wait_for(self._settled.wait(), timeout_s)
        except TimeoutError:
            return False
        return True

    async def stop(self, timeout_s: float) -> bool:
        """Hand over the last changes and close the store. Return False after the timeout."""
        if self._timer is not None:
            self._timer.cancel()
        self._heartbeat.stop()
        self._pack()
        is_stored = await self._loop.run_in_executor(None, self.store.stop, timeout_s)
        await self._loop.run_in_executor(None, self.streams.close)
        if is_stored:
            if self.store.lag:
                _log.info(
                    "store: the next start applies %d journal groups to the tables", self.store.lag
                )
            return True
        _log.error("store: stopped before all changes were stored; none of those was acknowledged")
        return False


def _explain(error: Exception) -> str:
    return "out of memory" if isinstance(error, MemoryError) else f"internal error: {error!r}"
