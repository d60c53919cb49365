"""The store fails while the broker runs, and comes back: what is promised waits, the rest goes on.

Every fault is done to a broker in a process of its own, from outside: a disk that is full, a
database that another process locks, a PostgreSQL that is gone.
"""

from __future__ import annotations

import os
import resource
import sqlite3
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psycopg
import pytest

from mqtt_broker.codec.constants import PUBACK, PUBCOMP, PUBREC, PUBREL
from mqtt_broker.codec.encode import encode_ack
from tests.fault.lives import Lives
from tests.fault.postgres import PostgreSQL
from tests.fault.talk import PATIENCE_S, Silence, Talker
from tests.fault.torture import Options, torture

Fault = Callable[[Lives], AbstractContextManager[None]]
STATE: Final = "$SYS/broker/store/state"
SETTINGS: Final = {"FLEETMQ_SYS_INTERVAL_S": "1", "FLEETMQ_RECEIVE_MAXIMUM": "500"}
SILENT_S: Final = 1.0  # so long nothing comes of what is held
DISK_BYTES: Final = 12 << 20


# Faults.


@contextmanager
def full_disk(broker: Lives) -> Iterator[None]:
    """Not a byte is left on the disk that the data directory is."""
    ballast = broker.data / "ballast"
    with ballast.open("wb", buffering=0) as file:
        for size in (1 << 16, 1 << 10, 1):
            while True:
                try:
                    if file.write(bytes(size)) < size:
                        break
                except OSError:
                    break
    try:
        yield
    finally:
        ballast.unlink()


@contextmanager
def small_files(broker: Lives) -> Iterator[None]:
    """No file may grow: what a disk quota does, and it needs no root."""
    _, hard = resource.prlimit(broker.process.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(broker.process.pid, resource.RLIMIT_FSIZE, (8192, hard))
    try:
        yield
    finally:
        resource.prlimit(broker.process.pid, resource.RLIMIT_FSIZE, (hard, hard))


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Another process, as it were, writes to the database and takes its time."""
    connection = sqlite3.connect(path, isolation_level=None, timeout=60)
    try:
        connection.execute("BEGIN EXCLUSIVE")
        yield
        connection.execute("ROLLBACK")
    finally:
        connection.close()


@contextmanager
def locked_journal(broker: Lives) -> Iterator[None]:
    with locked(broker.data / "journal.db"):
        yield


@contextmanager
def small_disk(directory: Path) -> Iterator[None]:
    """A data directory that is a disk of its own; skips where none may be mounted."""
    data = directory / "data"
    data.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "none", str(data)]
    if os.geteuid() or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("only root may mount a small disk")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(data)], check=True)


@pytest.fixture
def broker(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Lives]:
    """With state that outlives it; `indirect` says on which database."""
    where = getattr(request, "param", "sqlite")
    url = ""
    if where == "postgresql":
        server: PostgreSQL = request.getfixturevalue("postgresql")
        url = server.database(f"faults_{os.urandom(4).hex()}")
    disk = small_disk(tmp_path) if where == "disk" else contextmanager(lambda: iter([None]))()
    with disk, Lives(tmp_path, database_url=url, env=SETTINGS) as lives:
        lives.start()
        yield lives


# What happens in each.


@dataclass
class Held:
    """A message on its way through its acknowledgements."""

    publisher: Talker
    packet_id: int
    waits_for: int
    payload: bytes

    def go_on(self, sent: list[bytes], seconds: float = PATIENCE_S) -> None:
        """Through the rest of them; from the first on it counts as sent."""
        answer = self.publisher.ack(self.waits_for, seconds)
        assert answer.packet_ids == [self.packet_id] and answer.reason < 0x80
        if self.waits_for != PUBCOMP:
            sent.append(self.payload)
        if self.waits_for == PUBREC:
            self.waits_for = PUBCOMP
            self.publisher.send(encode_ack(PUBREL, self.packet_id))
            self.go_on(sent, seconds)


class Scene:
    """A publisher, a subscriber that is away, one at QoS 0, and one that watches the state."""

    def __init__(self, broker: Lives) -> None:
        self.broker = broker
        self.sent: list[bytes] = []
        away = Talker(broker.address, "away")
        away.subscribe("fault/#", 2)
        away.disconnect()
        self.listener = Talker(broker.address, "listener", clean=True, expiry=0)
        self.listener.subscribe("fault/#", 0)
        self.watcher = Talker(broker.address, "watcher", clean=True, expiry=0)
        self.watcher.subscribe(STATE, 0)
        self.publishers = [Talker(broker.address, f"publisher {n}") for n in range(2)]
        self.held: list[Held] = []

    def wait_state(self, is_well: bool) -> str:
        """Until the broker says so; what it says."""
        while True:
            (message,) = self.watcher.take(1)
            text = message.payload.decode()
            if (text == "ok") == is_well:
                return text

    def publish(self, size: int = 0) -> None:
        """One message at each QoS, acknowledged."""
        for qos in (1, 2):
            self._publish(b"%d at QoS %d " % (len(self.sent), qos) + bytes(size), qos, PATIENCE_S)

    def _publish(self, payload: bytes, qos: int, seconds: float) -> None:
        """Publish one message; Silence when it is not acknowledged in that time."""
        publisher = self.publishers[qos - 1]
        packet_id = publisher.start_publish("fault/a", payload, qos=qos)
        assert self.listener.take(1)[0].payload == payload
        held = Held(publisher, packet_id, PUBACK if qos == 1 else PUBREC, payload)
        self.held.append(held)
        held.go_on(self.sent, seconds)
        self.held.remove(held)

    def hold(self) -> None:
        """Publish until the store has no room and acknowledgements stop, at both QoS."""
        size = 0
        while len(self.held) < 2 and len(self.sent) < 400:
            for qos in (1, 2):
                if not any(held.publisher is self.publishers[qos - 1] for held in self.held):
                    with suppress(Silence):
                        payload = b"%d at QoS %d " % (len(self.sent), qos) + bytes(size)
                        self._publish(payload, qos, SILENT_S)
            size = 100_000
        assert len(self.held) == 2, "it is acknowledged, whatever is done to the store"

    def release(self) -> None:
        for held in self.held:
            held.go_on(self.sent)
        self.held.clear()

    def check_qos_0_goes_on(self) -> None:
        with Talker(self.broker.address, "guest", clean=True, expiry=0) as guest:
            guest.publish("fault/zero", b"zero", qos=0)
            assert self.listener.take(1)[0].payload == b"zero"

    def check_nothing_is_lost(self) -> None:
        """Over a death, too: what was acknowledged is there, once, in its order."""
        self.hang_up()
        self.broker.kill()
        self.broker.start()
        with Talker(self.broker.address, "away") as away:
            assert away.present
            messages = away.accept(away.take(len(self.sent)))
            away.disconnect()
        for qos in (1, 2):
            payloads = [m.payload for m in messages if m.qos == qos]
            assert sorted(payloads) == sorted(set(payloads))
        assert sorted(m.payload for m in messages) == sorted(self.sent)
        assert self.broker.complaints(store_may_fail=True) == []

    def hang_up(self) -> None:
        for talker in (self.listener, self.watcher, *self.publishers):
            talker.drop()


@pytest.fixture
def scene(broker: Lives) -> Iterator[Scene]:
    found = Scene(broker)
    yield found
    found.hang_up()


@pytest.mark.parametrize(
    ("broker", "fault"),
    [("disk", full_disk), ("sqlite", small_files), ("sqlite", locked_journal)],
    indirect=["broker"],
)
def test_the_store_fails_and_is_back(scene: Scene, fault: Fault) -> None:
    scene.wait_state(is_well=True)
    scene.publish()
    with fault(scene.broker):
        scene.hold()
        assert scene.wait_state(is_well=False)
        scene.check_qos_0_goes_on()
    scene.release()
    scene.wait_state(is_well=True)
    scene.publish()
    scene.check_nothing_is_lost()


@pytest.mark.parametrize("broker", ["postgresql"], indirect=True)
def test_postgresql_is_gone_and_back(scene: Scene, postgresql: PostgreSQL) -> None:
    scene.wait_state(is_well=True)
    scene.publish()
    postgresql.stop("immediate")
    try:
        scene.hold()
        assert scene.wait_state(is_well=False)
        scene.check_qos_0_goes_on()
    finally:
        postgresql.start()
    scene.release()
    scene.wait_state(is_well=True)
    scene.publish()
    scene.check_nothing_is_lost()


@pytest.mark.parametrize("broker", ["postgresql"], indirect=True)
def test_its_connection_outlives_it_not_for_long(scene: Scene) -> None:
    """PostgreSQL is in the middle of our statement and does not look whether we are alive."""
    scene.wait_state(is_well=True)
    scene.publish()
    command = scene.broker.command
    url = command[command.index("--database-url") + 1]
    with psycopg.connect(url.replace("+psycopg", "")) as other:
        other.execute("LOCK TABLE journal IN EXCLUSIVE MODE")
        scene.hold()
        scene.broker.kill()
        scene.broker.start()
        other.rollback()
    scene.hang_up()
    with Talker(scene.broker.address, "away") as away:
        assert set(away.payloads(len(scene.sent))) >= set(scene.sent)


def test_the_broker_dies_while_the_store_fails(scene: Scene) -> None:
    """What was never acknowledged may be gone; what was, is there; and it starts."""
    scene.publish()
    with locked_journal(scene.broker):
        scene.hold()
        scene.broker.kill()
    scene.check_nothing_is_lost()


@pytest.mark.slow
def test_it_ends_in_order_while_the_store_fails(scene: Scene) -> None:
    """SIGTERM does not wait for a store for ever, and says that something was not saved."""
    scene.publish()
    with locked_journal(scene.broker):
        scene.hold()
        assert scene.broker.terminate() == 1
    scene.hang_up()
    scene.broker.start()
    with Talker(scene.broker.address, "away") as away:
        assert sorted(away.payloads(len(scene.sent))) == sorted(scene.sent)


def test_tables_that_are_locked_hold_nothing_up(scene: Scene) -> None:
    """An operator reads, or writes, for long: the journal is elsewhere."""
    scene.wait_state(is_well=True)
    with locked(scene.broker.data / "fleetmq.db"):
        for _ in range(50):
            scene.publish(size=1000)
        assert scene.wait_state(is_well=False)
        scene.publish()
    scene.wait_state(is_well=True)
    scene.check_nothing_is_lost()


def test_what_its_subscribers_have_taken_needs_no_store(scene: Scene) -> None:
    """The acknowledgement leaves when the message is on disk or taken, whichever is first."""
    with Talker(scene.broker.address, "here") as here:
        here.subscribe("taken", 1)
        with locked_journal(scene.broker):
            publisher = scene.publishers[0]
            packet_id = publisher.start_publish("taken", b"x", qos=1)
            here.accept(here.take(1))
            assert publisher.finish_publish(packet_id, 1) == 0
            held = publisher.start_publish("fault/b", b"y", qos=1)
            with pytest.raises(Silence):
                publisher.ack(PUBACK, SILENT_S)
        assert publisher.finish_publish(held, 1) == 0


def test_what_is_retained_is_not_taken(scene: Scene) -> None:
    """Though every subscriber has it: it has to be there for the next one."""
    with Talker(scene.broker.address, "here") as here:
        here.subscribe("taken", 1)
        with locked_journal(scene.broker):
            publisher = scene.publishers[0]
            held = publisher.start_publish("taken", b"x", qos=1, retain=True)
            here.accept(here.take(1))
            with pytest.raises(Silence):
                publisher.ack(PUBACK, SILENT_S)
        assert publisher.finish_publish(held, 1) == 0


def test_a_shared_message_whose_member_went_is_not_taken(scene: Scene) -> None:
    """It waits with the group, and that has to be on disk."""
    member = Talker(scene.broker.address, "member")
    member.subscribe("$share/crew/shared", 1)
    with locked_journal(scene.broker):
        publisher = scene.publishers[0]
        held = publisher.start_publish("shared", b"x", qos=1)
        member.take(1)
        member.drop()
        with pytest.raises(Silence):
            publisher.ack(PUBACK, SILENT_S)
    assert publisher.finish_publish(held, 1) == 0
    scene.hang_up()
    scene.broker.kill()
    scene.broker.start()
    with Talker(scene.broker.address, "member") as member:
        assert member.payloads(1) == [b"x"]


def test_a_subscription_is_promised_when_it_is_kept(scene: Scene) -> None:
    with locked_journal(scene.broker), Talker(scene.broker.address, "new") as new:
        new.start_subscribe("some/thing", 1)
        with pytest.raises(Silence):
            new.take(1, SILENT_S)
        assert not new.answers()
        scene.broker.kill()


# In the middle of load.


@pytest.mark.slow
def test_sigterm_in_the_middle_of_load(tmp_path: Path) -> None:
    options = Options(kills=4, deaths="orderly", rate=800.0, life_s=0.5, clients=3)
    with (tmp_path / "said").open("w") as out:
        verdict = torture(options, out, tmp_path)
    assert verdict.is_clean, (tmp_path / "said").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
def test_the_store_fails_in_the_middle_of_load(
    tmp_path: Path, database: str, request: pytest.FixtureRequest
) -> None:
    if database == "postgresql":
        request.getfixturevalue("postgresql")  # skips where there is none
    options = Options(kills=5, database=database, faults=True, rate=800.0, life_s=0.8, clients=3)
    with (tmp_path / "said").open("w") as out:
        verdict = torture(options, out, tmp_path)
    assert verdict.is_clean, (tmp_path / "said").read_text()
