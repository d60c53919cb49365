"""Defects put back, each by name, and whether the general tests find them.

    python -m tests.sabotage --seeds 10                    # every defect, by every finder it has
    python -m tests.sabotage --only synchronous-off --seconds 60

An entry is a function that changes the program in this process (`put_in`), and the finders that
have to notice: `crash` (tests.sim.crash), `powerloss` (tests.powerloss.run), `restarts`
(tests.powerloss.restarts), `torture` (tests.fault.torture), `fuzz` (tests.fuzz.broker), `fairness`
(tests.core.test_fairness), and `backlogs`, `refused`, `accounts` (of tests.spark_ingest). Each
search begins at a seed of its own and ends at the first finding; a defect that one of them does not
find is a hole in the tests.
"""

from __future__ import annotations

import argparse
import random
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.finders import FINDERS

Change = Callable[[], None]
ROOT: Final = Path(__file__).parents[1]
FOUND: Final = 3  # the exit code of a search that found something


@dataclass(frozen=True, slots=True)
class Sabotage:
    name: str
    put_in: Change
    finders: tuple[str, ...]


SABOTAGES: Final[dict[str, Sabotage]] = {}


def sabotage(*finders: str) -> Callable[[Change], Change]:
    """Register a defect under its function's name; its docstring says what it is."""

    def register(change: Change) -> Change:
        name = change.__name__.replace("_", "-")
        SABOTAGES[name] = Sabotage(name, change, finders)
        return change

    return register


def put_in(name: str) -> None:
    """Put the defect into this process; an empty name: none."""
    if name:
        SABOTAGES[name].put_in()


# Of the core and the journal.


@sabotage("crash", "powerloss", "torture")
def acknowledged_before_the_commit() -> None:
    """Acknowledgements leave when a group is packed, and not when it is on disk."""
    from sessions.journal.journal import Journal

    flush = Journal.flush

    def flush_and_tell(self: Journal, now: float) -> None:
        flush(self, now)
        self.on_committed(self.number, now)

    _set(Journal, "flush", flush_and_tell)


@sabotage("fairness")
def work_without_an_end() -> None:
    """Nobody's share of a turn ends: whatever a client asks for is done at once."""
    from sessions.messages.work import UNBOUNDED, Work

    init = Work.__init__

    def without_an_end(self: Work, share: int = 0, turn_units: int = 0) -> None:
        init(self, UNBOUNDED, UNBOUNDED)

    _set(Work, "__init__", without_an_end)


@sabotage("crash")
def inbound_id_forgotten() -> None:
    """The packet id of an inbound QoS 2 message is not recorded with it."""
    from sessions.journal.transaction import PublishTransaction

    pack = PublishTransaction.pack

    def pack_without(self: PublishTransaction) -> list[bytes]:
        self.inbound_ids = []
        return pack(self)

    _set(PublishTransaction, "pack", pack_without)


@sabotage("crash")
def outbound_id_unrecorded() -> None:
    """An outbound QoS 2 PUBLISH leaves before its packet id is on disk."""
    from sessions.journal.transaction import PublishTransaction

    def release(self: PublishTransaction, pending: Any) -> None:
        pending.release(self.born_at)

    _set(PublishTransaction, "hold", release)


@sabotage("crash")
def session_end_unrecorded() -> None:
    """A session that ends stays in the store."""
    from sessions.journal.journal import Journal

    def forget(self: Journal, session_number: int, items: list[Any], now: float) -> None:
        for _, _, place, txn in items:
            if place and txn is not None:
                txn.on_delivered(now)

    _set(Journal, "on_end", forget)


@sabotage("crash")
def will_sent_again() -> None:
    """A will that was sent stays recorded, and is sent again after a crash."""
    from mqtt_broker.core.clients.wills import Wills
    from sessions.session import Session

    send = Wills.send

    def send_unrecorded(wills: Wills, session: Session, now: float) -> None:
        number, session.outbound.session_number = session.session_number, 0
        send(wills, session, now)
        session.outbound.session_number = number

    _set(Wills, "send", send_unrecorded)


@sabotage("crash")
def suback_at_once() -> None:
    """SUBACK does not wait until the subscription is on disk."""
    from sessions.journal.journal import Journal

    def release(self: Journal, hold: Any) -> None:
        hold.is_safe = True
        hold.release(0.0)

    _set(Journal, "wait", release)


@sabotage("fuzz")
def expiry_signed() -> None:
    """A Message Expiry Interval of 2**31 or more does not fit its record, and takes its group."""
    import struct

    from sessions.journal import packing, records
    from sessions.journal.journal import Journal
    from sessions.journal.transaction import PublishTransaction

    def pack(self: Journal, now: float) -> packing.Packed:
        entries, self._entries = self._entries, []
        for entry in entries:
            if isinstance(entry, PublishTransaction):
                entry.pack()
        packed = packing.pack(entries, self.part_bytes_max)
        self._entries = entries
        return packed

    _set(records, "_STORED", struct.Struct("<BQIIdiB"))
    _set(Journal, "_pack", pack)


@sabotage("crash", "fuzz", "torture")
def connack_at_once() -> None:
    """CONNACK says that a session is over before that is on disk."""
    from sessions.registry import SessionRegistry

    _set(SessionRegistry, "is_on_disk", lambda self, client_id: True)


@sabotage("crash", "fuzz")
def lent_unstored() -> None:
    """What a group gives to a member without a stored session is not stored."""
    from mqtt_broker.core.routing.shared_groups import SharedGroup

    _set(SharedGroup, "_lend", lambda self, session, message, grant, txn, now: False)


@sabotage("crash", "fuzz")
def will_unrecorded() -> None:
    """The will of a session that is not stored is not recorded."""
    from sessions.session import Session

    _set(Session, "record_will", lambda self: None)


@sabotage("crash", "fuzz")
def expiry_from_the_last_sign() -> None:
    """Sessions that were online at a crash end as if they had been lost at the last beat."""
    from mqtt_broker.core import restore

    _set(restore, "SIGN_OF_LIFE_S", 0.0)


# Of what the protocol asks for.


@sabotage("fuzz")
def levels_refused_in_the_form_of_5() -> None:
    """A level of 3.x that is not spoken is refused in a CONNACK of five bytes."""
    from mqtt_broker.codec import decode

    _set(decode, "refused_form", lambda level: 0)


@sabotage("fuzz")
def levels_refused_in_the_form_of_3() -> None:
    """Every level that is not spoken is refused in a CONNACK of four bytes."""
    from mqtt_broker.codec import decode
    from mqtt_broker.codec.constants import V311

    _set(decode, "refused_form", lambda level: V311)


@sabotage("fuzz")
def identifier_0_malformed() -> None:
    """Subscription Identifier 0 in SUBSCRIBE is answered as a malformed packet."""
    from mqtt_broker.codec import decode, reasons
    from mqtt_broker.codec.constants import SUBSCRIBE
    from mqtt_broker.codec.errors import Violation
    from mqtt_broker.codec.properties import decode_properties as read

    def read_other(data: bytes, at: int, end: int, packet: int) -> Any:
        try:
            return read(data, at, end, packet)
        except Violation as violation:
            if packet != SUBSCRIBE or "identifier may not be 0" not in violation.text:
                raise
            raise Violation(reasons.MALFORMED_PACKET, violation.rule, violation.text) from None

    _set(decode, "decode_properties", read_other)


@sabotage("fuzz")
def wills_refused_in_silence() -> None:
    """A will of MQTT 5 with a field that is malformed or missing is answered by the close alone."""
    from mqtt_broker.codec import decode_connect, reasons
    from mqtt_broker.codec.errors import Violation

    read = decode_connect._decode_will

    def read_silently(*arguments: Any) -> Any:
        try:
            return read(*arguments)
        except Violation as violation:
            violation.silent = violation.reason == reasons.MALFORMED_PACKET
            raise

    _set(decode_connect, "_decode_will", read_silently)


@sabotage("fuzz")
def third_repetition_refused() -> None:
    """A QoS 2 PUBLISH that comes a third time under its open id ends the connection."""
    from mqtt_broker.codec import reasons
    from mqtt_broker.codec.errors import Violation
    from mqtt_broker.core.inbound import publish

    take = publish._take_qos2
    repeated: set[tuple[Any, int]] = set()

    def take_twice(connection: Any, packet: Any, *others: Any) -> None:
        for packet_id in packet.packet_ids():
            key = connection, packet_id
            if packet_id not in connection.session.inbound.ids:
                repeated.discard(key)
            elif key in repeated:
                raise Violation(reasons.PROTOCOL_ERROR, "MQTT-2.2.1-4", f"id {packet_id} is in use")
            else:
                repeated.add(key)
        take(connection, packet, *others)

    _set(publish, "_take_qos2", take_twice)


# Of what reaches the disk.


@sabotage("powerloss")
def synchronous_off() -> None:
    """SQLite does not sync."""

    class Hasty(sqlite3.Connection):
        def execute(self, statement: str, *values: Any) -> sqlite3.Cursor:
            return super().execute(
                statement.replace("synchronous = FULL", "synchronous = OFF"), *values
            )

    connect = sqlite3.connect

    def connect_hastily(*arguments: Any, **options: Any) -> sqlite3.Connection:
        return connect(*arguments, factory=Hasty, **options)

    _set(sqlite3, "connect", connect_hastily)


@sabotage("powerloss")
def directories_unsynced() -> None:
    """The names of new files in the store and the log are not synced."""
    from mqtt_broker.streams.format.disk import Disk
    from sessions.store import sqlite_files

    sync = sqlite_files.sync

    def sync_files(path: Path) -> None:
        if not path.is_dir():
            sync(path)

    _set(sqlite_files, "sync", sync_files)
    _set(Disk, "sync_directory", lambda self, path: None)


@sabotage("restarts")
def earlier_segment_unnamed() -> None:
    """A start does not sync the name of a segment that an earlier process made."""
    _leave_names_unsynced("_cut")


@sabotage("restarts")
def earlier_stream_unnamed() -> None:
    """A start does not sync the name of a stream that an earlier process made."""
    _leave_names_unsynced("open")


@sabotage("restarts")
def earlier_directory_unnamed() -> None:
    """A start does not sync the name of a directory that an earlier process made."""
    from sessions.store import sqlite_files

    def make(path: Path) -> None:
        for one in reversed([one for one in (path, *path.parents) if not one.exists()]):
            one.mkdir()
            sqlite_files.sync(one.parent)

    _set(sqlite_files, "make_directory", make)


@sabotage("powerloss")
def data_directory_unsynced() -> None:
    """The name of a new data directory is not synced."""
    from sessions.store import sqlite_files

    def make(path: Path) -> None:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)

    _set(sqlite_files, "make_directory", make)


@sabotage("powerloss")
def log_unsynced() -> None:
    """What is written to the log is not synced."""
    from mqtt_broker.streams.format.disk import Disk

    _set(Disk, "sync", lambda self, file: None)


# Of the pipeline behind the broker.


@sabotage("backlogs")
def dealt_by_row_count() -> None:
    """A trigger takes of every partition by what waits in it, whenever that was received."""
    from spark_ingest.source import batch_planning, size_limit

    def deal(starts: Any, ends: Any, limit: int, *others: Any) -> batch_planning.Deal:
        measure = others[1]
        if measure.weigh(tuple(ends)) <= limit:
            return batch_planning.Deal(tuple(ends), batch_planning.NEVER_US)
        return batch_planning.Deal(
            measure.share(tuple(starts), tuple(ends), limit), batch_planning.NEVER_US
        )

    _set(size_limit, "deal", deal)


@sabotage("refused")
def refused_row_ends_the_batch() -> None:
    """A row that the database does not take is not put aside."""
    from spark_ingest.sinks import tables

    def write(connection: Any, table: Any, output: Any, rows: Any) -> list[Any]:
        tables.upsert(connection, table, output, rows)
        return []

    _set(tables, "upsert_or_dead_letter", write)


@sabotage("refused")
def refused_row_takes_others_along() -> None:
    """All that is written together with a row that the database does not take is put aside."""
    from spark_ingest.sinks import dead_letters, tables

    def write(connection: Any, table: Any, output: Any, rows: Any) -> list[dead_letters.DeadLetter]:
        try:
            with connection.begin_nested():
                tables.upsert(connection, table, output, rows)
        except Exception as error:
            return [
                dead_letters.dead_letter(output, row, str(error))
                for row in dead_letters.rows_of(rows)
            ]
        return []

    _set(tables, "_halved", write)


@sabotage("accounts")
def rejects_wait() -> None:
    """What is rejected waits until the sessions around it are over."""
    from spark_ingest.source.losses import Losses

    _set(Losses, "sources", lambda self: 1)


def _leave_names_unsynced(caller: str) -> None:
    """Let the log sync no directory when a function of this name asks for it."""
    from mqtt_broker.streams.format.disk import Disk

    sync = Disk.sync_directory

    def sync_for_others(self: Disk, path: Path) -> None:
        if sys._getframe(1).f_code.co_name != caller:
            sync(self, path)

    _set(Disk, "sync_directory", sync_for_others)


def _set(owner: Any, name: str, value: Any) -> None:
    setattr(owner, name, value)


# The runner: a process for each search, since a defect stays in the one it was put into.


def search(name: str, finder: str, seed: int, seconds: float) -> tuple[str, float]:
    """What the finder says (empty: nothing found), and after how many seconds."""
    begun = time.monotonic()
    command = [sys.executable, "-m", "tests.sabotage", "--one", name, finder, str(seed)]
    done = subprocess.run(
        [*command, "--seconds", str(seconds)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    took_s = time.monotonic() - begun
    if done.returncode == FOUND:
        return done.stdout.strip(), took_s
    if done.returncode:
        raise RuntimeError(f"{finder} of {name} with seed {seed}: {done.stderr[-2000:]}")
    return "", took_s


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser("python -m tests.sabotage", None, __doc__, allow_abbrev=False)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--start", type=int, default=0, help="the first seed; 0: fresh ones")
    parser.add_argument("--seconds", type=float, default=120.0, help="that one search may take")
    parser.add_argument("--only", default="", help=f"of {', '.join(SABOTAGES)}")
    parser.add_argument("--finder", default="", help=f"one of {', '.join(FINDERS)}")
    parser.add_argument("--one", nargs=3, metavar=("NAME", "FINDER", "SEED"))
    args = parser.parse_args(arguments)
    if args.one:
        name, finder, seed = args.one
        said = FINDERS[finder](name, int(seed), args.seconds, put_in)
        sys.stdout.write(said + "\n")
        return FOUND if said else 0
    missed = 0
    wanted = args.only.split(",") if args.only else list(SABOTAGES)
    for name in wanted:
        for finder in SABOTAGES[name].finders:
            if args.finder in ("", finder):
                missed += _judge(name, finder, args.seeds, args.start, args.seconds)
    return int(missed > 0)


def _judge(name: str, finder: str, seeds: int, start: int, seconds: float) -> int:
    """How many of the seeds did not find it."""
    start = start or random.SystemRandom().randrange(1_000, 1_000_000)
    found = [search(name, finder, seed, seconds) for seed in range(start, start + seeds)]
    times = [took_s for said, took_s in found if said]
    slowest = max(times, default=0.0)
    sys.stdout.write(
        f"{name}: {finder} found it with {len(times)} of {seeds} seeds from {start} on, "
        f"within {slowest:.0f} s\n"
    )
    for said in [said for said, _ in found if said][:1]:
        sys.stdout.write(f"  {said[:200]}\n")
    sys.stdout.flush()
    return seeds - len(times)


if __name__ == "__main__":
    sys.exit(main())
