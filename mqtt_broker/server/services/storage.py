"""The store wired to the event loop: groups go to its threads, their answers come back.

What a turn recorded lingers for a moment, so that one commit serves many messages and what
every subscriber takes at once is never written. The loop itself never waits for the store.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from mqtt_broker.core import sys_topics
from mqtt_broker.core.restore import items_of, restore
from mqtt_broker.server.config.config import StartError
from mqtt_broker.server.process.heartbeat import Heartbeat
from mqtt_broker.server.services.streams import StreamService
from sessions.journal.journal import MODES, Journal, StoredQueue
from sessions.journal.rows import DeliveryRow, MessageRow
from sessions.journal.snapshot import Snapshot
from sessions.store.store import Store, StoreError

if TYPE_CHECKING:
    from mqtt_broker.server.config.config import Config
    from mqtt_broker.server.server import Server

_T = TypeVar("_T")
Page = list[tuple[DeliveryRow, MessageRow]]
LINGER_S: Final = 0.003  # what is recorded waits so long for company
_ENTRIES_MAX: Final = 2_000  # or until there is so much of it,
_CERTAIN_MAX: Final = 32  # or so much that has to be written, and the store has nothing to do
_LOGGED_MIN: Final = (
    128  # messages in the log that somebody waits for, likewise; see `_is_worth_it`
)
_GROUPS_UNDER_WAY_MAX: Final = 2  # while the store has these, what follows gathers in one
_RETRY_S: Final = 0.2  # until what could not be packed or handed over is tried again
_PAGE_MESSAGES: Final = 1_000
_PAGE_BYTES: Final = 4 << 20
_log = logging.getLogger("fleetmq")


class StorageService:
    """One broker's journal and store."""

    def __init__(self, server: Server, config: Config) -> None:
        self._server = server
        self._loop = server.loop
        try:
            self._store = Store.open(
                data_dir=config.data_dir,
                database_url=config.database_url,
                recover=config.recover,
                log=lambda line: _log.warning("%s", line),
            )
            snapshot = self._store.snapshot()
        except StoreError as error:
            raise StartError(str(error)) from None
        self._heartbeat = Heartbeat(Path(config.data_dir), server.now)
        snapshot.alive_at = max(snapshot.alive_at, self._heartbeat.last())
        self._snapshot: Snapshot | None = snapshot
        try:
            self.telemetry = StreamService(server, config, snapshot, self._store)
        except StartError:
            self._store.stop(1.0)
            raise
        modes = {MODES[config.durability], *(MODES[mode] for _, mode in config.durabilities)}
        self.journal = Journal(
            self._submit,
            mode=MODES[config.durability],
            awaits_commit=MODES["commit"] in modes,
            number=snapshot.last_number,
            last_mid=snapshot.last_mid,
            last_sid=snapshot.last_sid,
        )
        self._timer: asyncio.TimerHandle | None = None
        self._log_bytes_enough = config.settings.stream_bytes_max * 3 // 4
        self._logged_before = 0  # messages that the log had at the last flush,
        self._logged = 0  # and how many of them were new
        self._logged_enough = _LOGGED_MIN
        self._is_over = False
        self._trouble = ""  # why the journal could not be packed or handed over,
        self._state = ""  # and what the store said last
        self._settled: asyncio.Event | None = None

    def start(self) -> None:
        """Give the broker its state back, and begin to store what happens to it."""
        broker = self._server.broker
        assert self._snapshot is not None
        self.telemetry.start(self._snapshot.cursors)
        restore(broker, self._snapshot, self._server.now())
        self.telemetry.replay.on_restored()
        self._snapshot = None
        broker.store_figures = self._figures
        self._store.start(
            self._from_thread(self._on_committed),
            self._from_thread(self._on_folded),
            self._from_thread(self._on_state),
        )
        self._heartbeat.start()
        self.after_turn()

    def dead_threads(self) -> list[str]:
        """The store's threads that have ended before their time. From any thread."""
        return self._store.dead_threads()

    def abandon(self) -> None:
        """The broker does not start after all."""
        self._is_over = True
        self._heartbeat.stop()
        self._store.stop(1.0)
        self.telemetry.close()

    def _submit(self, number: int, blob: bytes) -> None:
        self._store.submit(number, blob, self._server.now())

    def _from_thread(self, act: Callable[[_T], None]) -> Callable[[_T], None]:
        def call(value: _T) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any longer
                self._loop.call_soon_threadsafe(act, value)

        return call

    # The turn.

    def after_turn(self) -> None:
        journal = self.journal
        waiting = len(journal)
        if self._trouble or journal.is_unfinished:
            self._linger(_RETRY_S)
        elif waiting > _ENTRIES_MAX or self._is_worth_it():
            self._flush()
        elif waiting:
            self._linger(LINGER_S)
        elif self._timer is None and journal.participant_has_new:
            self._linger(max(LINGER_S, self._participant_delay_s(self._server.now())))
        while journal.wanted:
            self._request(journal.wanted[-1])
            journal.wanted.pop()  # at last: what could not be asked for is asked again

    def _linger(self, seconds: float) -> None:
        """Come back then, or when that was due anyway."""
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
        except Exception as error:  # nobody else would come back to what waits
            _log.error("journal: internal error", exc_info=error)
            self._linger(_RETRY_S)

    def _end_linger(self) -> None:
        now = self._server.now()
        is_log_due = self.journal.participant_has_new and not self._participant_delay_s(now)
        if is_log_due or self._trouble or not self.journal.may_wait(now - LINGER_S):
            self._flush()
        self._server.end_turn()  # which sets the timer again for what is left

    def _participant_delay_s(self, now: float) -> float:
        participant = self.journal.participant
        return 0.0 if participant is None else participant.delay_s(now)

    def _is_worth_it(self) -> bool:
        """Whether so much waits for the disk, and the disk for us, that company is not missed.

        What the log takes costs more a group, and its publishers send in bursts: few entries,
        many messages. They are worth it when nearly all are back that were answered last.
        """
        journal = self.journal
        if journal.committed != journal.number:
            return False
        if not journal.certain:
            participant = journal.participant
            return participant is not None and participant.waiting_bytes > self._log_bytes_enough
        if logged := self._logged_messages():
            return logged >= self._logged_enough
        return journal.certain >= _CERTAIN_MAX

    def _logged_messages(self) -> int:
        """Since the last flush."""
        return self.telemetry.writer.messages - self._logged_before

    def _flush(self) -> None:
        journal = self.journal
        if journal.number - journal.committed < _GROUPS_UNDER_WAY_MAX or journal.is_unfinished:
            self._pack()

    def _pack(self) -> None:
        """Pack and hand over. A failure is reported and tried again; nothing is lost by it."""
        try:
            self.journal.flush(self._server.now())
        except Exception as error:
            if not self._trouble:
                _log.error("journal: internal error", exc_info=error)
            self._on_trouble(f"journal: {_explain(error)}")
            return
        self._on_trouble("")
        self._logged = self._logged_messages()
        self._logged_before += self._logged

    def _request(self, owner: StoredQueue) -> None:
        def on_page(page: Page) -> None:
            broker = self._server.broker
            try:
                owner.on_page(items_of(broker, page), self._server.now())
            except Exception as error:  # nobody else would come back to what waits there
                _log.error("store: internal error with a page", exc_info=error)
                self._loop.call_later(_RETRY_S, self._request, owner)
            self._server.end_turn()

        self._store.page(
            owner.sid, owner.page_after, _PAGE_MESSAGES, _PAGE_BYTES, self._from_thread(on_page)
        )

    # From the store's threads, by way of the loop.

    def _on_committed(self, number: int) -> None:
        guard = self._server.guard
        guard(lambda: self._server.broker.on_committed(number, self._server.now()))
        if self.journal.participant is not None:
            guard(self.telemetry.on_committed)
        under_way = self._logged + self._logged_messages()
        self._logged_enough = max(_LOGGED_MIN, under_way * 7 // 8)
        if self._timer is None or self._is_worth_it():  # its moment passed while the store was busy
            self._flush()
        if self._settled is not None and self.journal.is_settled:
            self._settled.set()
        self._server.end_turn()

    def _on_folded(self, number: int) -> None:
        self._server.guard(lambda: self._server.broker.on_folded(number, self._server.now()))
        self._server.end_turn()

    def _on_state(self, state: str) -> None:
        self._state = state
        self._say_state()

    def _on_trouble(self, trouble: str) -> None:
        if trouble != self._trouble:
            self._trouble = trouble
            self._loop.call_soon(self._say_state)  # not in the middle of whatever failed

    def _say_state(self) -> None:
        broker = self._server.broker
        state = "; ".join(filter(None, (self._trouble, self._state)))
        if state == broker.store_state:
            return
        if state:
            _log.error("store: %s; it is tried again", state)
        elif broker.store_state:
            _log.warning("store: works again")
        broker.on_store_state(state)
        self._server.guard(lambda: sys_topics.publish_store_state(broker, self._server.now()))
        self._server.end_turn()

    def _figures(self) -> dict[str, int]:
        store = self._store
        return {
            "records": self.journal.records,
            "commits": store.commits,
            "folded": store.folded,
            "cancelled": self.journal.cancelled + store.cancelled,
            "refused": self.journal.refused,
            "healed": sum(self._server.broker.healed.values()) + sum(store.healed.values()),
            "lag": store.lag,
        }

    # The end.

    async def settle(self, timeout_s: float) -> bool:
        """Wait until everything that was recorded is on disk; False when time ran out."""
        self._settled = asyncio.Event()
        self._pack()
        try:
            if not self.journal.is_settled:
                await asyncio.wait_for(self._settled.wait(), timeout_s)
        except TimeoutError:
            return False
        return True

    async def stop(self, timeout_s: float) -> bool:
        """Hand over the rest and close the store; False when time ran out."""
        if self._timer is not None:
            self._timer.cancel()
        self._heartbeat.stop()
        self._pack()
        is_stored = await self._loop.run_in_executor(None, self._store.stop, timeout_s)
        await self._loop.run_in_executor(None, self.telemetry.close)
        if is_stored:
            return True
        _log.error("store: not all could be stored in time; none of that was promised")
        return False


def _explain(error: Exception) -> str:
    return "out of memory" if isinstance(error, MemoryError) else f"internal error: {error!r}"
