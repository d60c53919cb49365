"""A broker core with a store that a test drives: when groups are packed, committed and folded.

world = StoredWorld()
...
world.pack()      # the linger is over
world.commit()    # the disk has it
world.restart()   # the process died; whatever was not committed is gone
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from mqtt_broker.core.broker import Broker
from mqtt_broker.core.limits.settings import Settings
from mqtt_broker.core.restore import items_of, restore
from sessions.journal.journal import COMMIT, Journal, StoredQueue
from sessions.messages.work import Work
from tests.core.peers import START, World
from tests.sessions.store.memory_store import MemoryStore, Page


class StoredWorld(World):
    def __init__(
        self,
        *,
        mode: int = COMMIT,
        durabilities: Sequence[tuple[str, int]] = (),
        work: Work | None = None,
        **settings: Any,
    ) -> None:
        self.work = work
        self.now = START
        self.peers = []
        self.store = MemoryStore()
        self.mode = mode
        self.durabilities = durabilities
        self.settings = Settings(**{"sys_interval_s": 0, "recorder_bytes_max": 1 << 20, **settings})
        self.sign_of_life = 0.0  # beside the store's own
        self._live()

    def _live(self) -> None:
        found = self.store.snapshot()
        found.alive_at = max(found.alive_at, self.sign_of_life)
        self.journal = Journal(
            self._submit,
            mode=self.mode,
            awaits_commit=COMMIT in (self.mode, *(mode for _, mode in self.durabilities)),
            number=found.last_number,
            last_message=found.last_mid,
            last_session=found.last_sid,
        )
        self.broker = Broker(
            self.settings,
            now=self.now,
            rng=random.Random(1),
            journal=self.journal,
            durabilities=self.durabilities,
            work=self.work,
        )
        self.store.start(
            lambda number: self.broker.on_committed(number, self.now),
            lambda number: self.broker.on_folded(number, self.now),
            lambda state: None,
        )
        restore(self.broker, found, self.now)

    def _submit(self, number: int, blob: bytes) -> None:
        self.store.submit(number, blob, self.now)

    # What happens to the store.

    def admit(self) -> None:
        self.commit()

    def pack(self) -> None:
        self.journal.flush(self.now)
        self.settle()

    def commit(self) -> None:
        """Everything until now is on disk."""
        self.pack()
        self.store.commit()
        self.settle()

    def fold(self) -> None:
        self.commit()
        self.store.fold()
        self.settle()

    def page(self) -> None:
        """Answer what queues asked the store for, and what they ask for then."""
        while self.journal.pages_wanted:
            self.ask_page(self.journal.pages_wanted.pop())
            self.store.answer()
            self.settle()

    def ask_page(self, owner: StoredQueue) -> None:
        def on_page(page: Page) -> None:
            owner.on_page(items_of(self.broker, page), self.now)

        self.store.page(owner.session_number, owner.page_after, 100, 1 << 20, on_page)

    def restart(self, downtime_s: float = 0.0) -> None:
        """kill -9, and a new process on what the store has."""
        self.peers.clear()
        self.now += downtime_s
        self.store = self.store.crash()
        self._live()
        self.commit()
