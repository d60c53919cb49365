"""Starts what is left of a broker's files, and checks every promise it had made."""

from __future__ import annotations

import random
import time
from collections import Counter
from pathlib import Path
from typing import Final

from mqtt_broker.core.broker import Broker
from mqtt_broker.core.limits.settings import Settings
from mqtt_broker.core.restore import restore
from mqtt_broker.streams.format.errors import StreamError
from mqtt_broker.streams.format.offsets import Offsets
from mqtt_broker.streams.format.records import records
from mqtt_broker.streams.read.reader import Reader
from mqtt_broker.streams.read.source import Source
from mqtt_broker.streams.write.log import Log
from sessions.journal.journal import Journal
from sessions.journal.snapshot import Snapshot
from sessions.session import Session
from sessions.store.state_loader import read_page
from sessions.store.store import Store, StoreError
from tests.powerloss.promised import Promise, Promised

NAME: Final = "load"
_ALL: Final = 1 << 30
ORACLES: Final = {
    "directory": "the data directory itself is there",
    "start": "the broker starts",
    "session": "sessions with what was acknowledged in them",
    "session-gone": "nothing of a session that was said to have ended",
    "message": "acknowledged messages wait for everybody they were for",
    "once": "what a client has taken does not wait for it any longer",
    "packet-ids": "packet ids of QoS 2, in both directions",
    "retained": "the retained message that was acknowledged last, or a newer one",
    "log": "acknowledged messages are in the log, at QoS 2 once",
}


class Lost(AssertionError):
    """A promise that does not hold after the loss of power."""

    def __init__(self, oracle: str, text: str) -> None:
        super().__init__(f"[{oracle}] {text}")
        self.oracle = oracle


class Found:
    """What a broker starts with: the store, the log, the core."""

    def __init__(self, data: Path) -> None:
        self.store = Store.open(data_dir=str(data))
        self.log: Log | None = None
        try:
            self.snapshot: Snapshot = self.store.snapshot()
            ends = {name: Offsets.decode(text) for name, text in self.snapshot.stream_ends.items()}
            self.log = Log.open(data / "streams", ends, report=lambda line: None)
            journal = Journal(
                lambda number, blob: None,
                number=self.snapshot.last_number,
                last_message=self.snapshot.last_mid,
                last_session=self.snapshot.last_sid,
            )
            now = time.time()
            self.broker = Broker(Settings(), now=now, rng=random.Random(1), journal=journal)
            restore(self.broker, self.snapshot, now)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        if self.log is not None:
            self.log.close()
        self.store.abandon()

    def waiting(self, session: Session) -> set[bytes]:
        """The payloads of what waits for it, under way or not."""
        found = {entry[0].payload for entry in session.outbound.window.unacked.values()}
        with self.store.database.tables.connect() as connection:
            rows = read_page(connection, session.session_number, 0, _ALL, _ALL)
        return found | {message.payload for _, message in rows}

    def logged(self, data: Path) -> Counter[bytes]:
        found: Counter[bytes] = Counter()
        assert self.log is not None
        if NAME not in self.log.streams:
            return found
        with Source.open(data / "streams", NAME) as source:
            for number, start in enumerate(source.starts().ends):
                with Reader(source, number, start) as reader:
                    while batches := reader.read():
                        for batch in batches:
                            found.update(record.payload for record in records(batch))
        return found


class Check:
    """One state against the promises; a rule that is left out is not looked at."""

    def __init__(self, promised: Promised, without: frozenset[str]) -> None:
        self.promised = promised
        self.without = without

    def _must(self, oracle: str, holds: bool, text: str) -> None:
        if not holds and oracle not in self.without:
            raise Lost(oracle, text)

    def run(self, base: Path) -> None:
        data = base / "new" / "data"
        clients = self.promised.clients.values()
        if any(client.has_session for client in clients) and not data.exists():
            self._must("directory", False, f"{data.name} is not in its directory any longer")
            return
        try:
            found = Found(data)
        except (StoreError, StreamError, OSError) as error:
            self._must("start", False, str(error))
            return
        try:
            for client in clients:
                if not client.is_unsure and client.expiry:
                    self._check_client(found, client)
            self._check_retained(found)
            self._check_log(found.logged(data))
        finally:
            found.close()

    def _check_client(self, found: Found, client: Promise) -> None:
        name = client.name
        session = found.broker.sessions.get(name)
        if session is None:
            self._must("session", not client.has_session, f"{name} has no session")
            return
        filters = set(session.subscriptions)
        lost = client.filters.keys() - filters - client.unsure
        self._must("session", not lost, f"{name} is not subscribed to {sorted(lost)}")
        old = filters - client.filters.keys() - client.unsure
        self._must("session-gone", not old, f"{name} is subscribed to {sorted(old)}")
        if "session-gone" in self.without and old:
            return
        waiting = found.waiting(session)
        for message in self.promised.messages.values():
            is_due = name in message.due and name in message.waits and message.is_acknowledged
            self._must(
                "message",
                not is_due or message.payload in waiting,
                f"{name} does not get {message.payload[:12]!r} ({message.topic})",
            )
        again = client.taken & waiting
        self._must("once", not again, f"{name} gets {[one[:12] for one in again]} again")
        ids = set(session.inbound.ids)
        lost_ids = client.open_ids - ids
        self._must("packet-ids", not lost_ids, f"{name}: {lost_ids} are not known any longer")
        old_ids = client.free_ids & ids
        self._must("packet-ids", not old_ids, f"{name}: {old_ids} are known again")
        for packet_id, message in client.sent.items():
            if message.qos != 2 or name not in message.waits or not self._is_exact(client, message):
                continue
            entry = session.outbound.window.unacked.get(packet_id)
            text = f"{name}: {packet_id} is not {message.payload[:12]!r} any longer"
            is_it = entry is not None and entry[0].payload == message.payload
            self._must("packet-ids", is_it, text)
        lost_ids = client.released - set(session.outbound.window.releasing)
        self._must("packet-ids", not lost_ids, f"{name}: {lost_ids} are not released")

    def _is_exact(self, client: Promise, message: object) -> bool:
        """Whether all it is subscribed to is at QoS 2."""
        return set(client.filters.values()) == {2} and not client.unsure

    def _check_retained(self, found: Found) -> None:
        retained = {m.envelope.topic: m.payload for m in found.broker.retained.values()}
        for topic, messages in self.promised.retained.items():
            known = [at for at, message in enumerate(messages) if message.is_acknowledged]
            if known:
                newer = {message.payload for message in messages[known[-1] :]}
                self._must(
                    "retained",
                    retained.get(topic) in newer,
                    f"{topic} is {retained.get(topic, b'')[:12]!r}",
                )

    def _check_log(self, logged: Counter[bytes]) -> None:
        for message in self.promised.messages.values():
            if not message.topic.startswith("load/"):
                continue
            count = logged[message.payload]
            text = f"{message.payload[:12]!r} (QoS {message.qos}) is in the log {count} times"
            self._must("log", count > 0 or not message.is_acknowledged, text)
            self._must("log", count < 2 or message.qos == 1, text)
