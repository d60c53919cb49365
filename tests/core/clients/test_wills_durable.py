"""Wills and expiries after a crash: of sessions that are not stored, and of those just lost."""

from __future__ import annotations

from typing import Any

import pytest

from mqtt_broker.codec import properties as prop
from mqtt_broker.codec.constants import V311
from mqtt_broker.codec.packets import Will
from mqtt_broker.codec.properties import NO_PROPERTIES, Properties
from mqtt_broker.core.restore import SIGN_OF_LIFE_S
from sessions.journal.rows import SessionRow
from tests.core.peers import V5, Peer, connect, disconnect, publish, subscribe
from tests.core.stored import StoredWorld

EXPIRY = 1000


def will(delay: int = 0, *, qos: int = 1, retain: bool = True) -> Will:
    if not delay:
        return Will("state", b"offline", qos, retain, NO_PROPERTIES)
    found = Properties({prop.WILL_DELAY_INTERVAL: delay})
    return Will("state", b"offline", qos, retain, found, b"\x05\x18" + delay.to_bytes(4, "big"))


def watcher(world: StoredWorld) -> Peer:
    peer = world.client("watcher", expiry=EXPIRY, clean=False)
    peer.send(subscribe(V5, "state", qos=1))
    world.commit()
    peer.take()
    return peer


def heard(world: StoredWorld) -> list[bytes]:
    """Messages that waited for the watcher."""
    peer = world.client("watcher", expiry=EXPIRY, clean=False)
    world.page()
    world.commit()
    return peer.payloads()


def retained(world: StoredWorld) -> bytes | None:
    message = world.broker.retained.get("state")
    return None if message is None else message.payload


def rows(world: StoredWorld) -> list[SessionRow]:
    world.fold()
    return list(world.store.tables.sessions.values())


class TestUnstoredWills:
    @pytest.mark.parametrize("version", [V5, V311])
    def test_it_is_sent_at_the_start(self, version: int) -> None:
        world = StoredWorld()
        watcher(world).drop()
        device = world.client("device", version, will=will())
        device.send(publish("state", b"online", retain=True, version=version))
        world.commit()
        assert heard(world) == []
        world.restart()
        assert retained(world) == b"offline", "before anybody is let in"
        assert heard(world) == [b"offline"]

    def test_it_is_on_disk_before_what_the_device_says_next(self) -> None:
        """Whatever of its life is on disk, its will is."""
        world = StoredWorld()
        device = world.client("device", will=will())
        device.send(publish("state", b"online", qos=1, retain=True))
        world.commit()
        world.restart()
        assert retained(world) == b"offline"

    def test_it_is_sent_once(self) -> None:
        world = StoredWorld()
        watcher(world).drop()
        world.client("device", will=will())
        world.commit()
        world.restart()  # and what that brought about is on disk
        world.restart()
        world.restart()
        assert heard(world) == [b"offline"]
        assert [row.client_id for row in rows(world)] == ["watcher"]

    def test_a_crash_of_the_start_itself_sends_it_again(self) -> None:
        world = StoredWorld()
        world.client("device", will=will())
        world.commit()
        world.store = world.store.crash()
        world._live()  # and dies before anything is written
        assert retained(world) == b"offline"
        world.restart()
        assert retained(world) == b"offline"
        assert rows(world) == []

    def test_a_device_that_says_goodbye_has_none(self) -> None:
        world = StoredWorld()
        device = world.client("device", will=will())
        world.fold()
        device.send(disconnect())
        assert rows(world) == []
        world.restart()
        assert retained(world) is None

    def test_one_that_was_sent_is_not_sent_again(self) -> None:
        world = StoredWorld()
        watcher(world).drop()
        world.client("device", will=will()).drop()
        world.commit()
        world.restart()
        assert heard(world) == [b"offline"]
        assert len(rows(world)) == 1

    def test_a_take_over_changes_it(self) -> None:
        world = StoredWorld()
        world.client("device", will=will())
        world.client("device", will=Will("state", b"gone", 1, True, NO_PROPERTIES))
        world.commit()
        found = [row.will for row in rows(world) if row.client_id == "device"]
        assert [row.payload for row in found if row is not None] == [b"gone"]
        world.restart()
        assert retained(world) == b"gone"

    def test_a_take_over_without_one_removes_it(self) -> None:
        world = StoredWorld()
        world.client("device", will=will())
        world.client("device").send(publish("state", b"online", retain=True))
        world.commit()
        world.restart()
        assert retained(world) == b"online"

    def test_a_client_that_comes_back_stored(self) -> None:
        world = StoredWorld()
        world.client("device", will=will())
        world.client("device", expiry=EXPIRY, clean=False, will=will(30))
        world.commit()
        assert [row.client_id for row in rows(world)] == ["device"]
        world.restart()
        assert retained(world) == b"offline", "of the first: it was taken over"

    def test_nothing_else_of_its_session_is_stored(self) -> None:
        world = StoredWorld()
        device = world.client("device", will=will())
        device.send(subscribe(V5, "#", qos=1))
        publisher = world.client("p")
        publisher.send(publish("a", b"x", qos=1))
        world.fold()
        tables = world.store.tables
        assert len(tables.sessions) == 1 and not tables.subscriptions
        assert not tables.deliveries and not tables.messages

    def test_a_returned_device_is_not_overwritten(self) -> None:
        world = StoredWorld()
        world.client("device", will=will())
        world.commit()
        world.restart(downtime_s=5)
        device = world.client("device", will=will())
        device.send(publish("state", b"online", retain=True))
        world.commit()
        world.wait(3 * SIGN_OF_LIFE_S)
        assert retained(world) == b"online"

    def test_a_will_for_a_client_whose_session_ends_with_it(self) -> None:
        """Two of them have a will to the other's topic; nobody is left to get it."""
        world = StoredWorld()
        for name in ("one", "two"):
            world.client(name, will=will()).send(subscribe(V5, "state", qos=1))
        world.commit()
        world.restart()
        world.fold()
        assert len(world.broker.sessions) == 0 and rows(world) == []
        assert retained(world) == b"offline"


class TestShortExpiries:
    def test_an_expiry_of_seconds_counts_from_the_start(self) -> None:
        world = StoredWorld()
        world.client("short", expiry=2, clean=False)
        world.commit()
        world.now += 5  # nothing was written meanwhile
        world.restart(downtime_s=3)
        assert len(world.broker.sessions) == 1
        world.wait(1.9)
        peer = world.peer()
        peer.send(connect("short", expiry=2, clean=False))
        assert peer.take()[0].session_present

    def test_it_ends_all_the_same(self) -> None:
        world = StoredWorld()
        world.client("short", expiry=2, clean=False)
        world.commit()
        world.restart(downtime_s=3)
        world.wait(2.1)
        assert len(world.broker.sessions) == 0

    def test_a_days_downtime_is_counted(self) -> None:
        world = StoredWorld()
        watcher(world)
        world.client("short", expiry=60, clean=False, will=will(30))
        world.commit()
        world.restart(downtime_s=EXPIRY - 100)
        assert heard(world) == [b"offline"]
        assert [session.client_id for session in world.broker.sessions] == ["watcher"]

    def test_a_sign_of_life_beside_the_tables_counts(self) -> None:
        """The database was away for an hour when the process died."""
        world = StoredWorld()
        world.client("short", expiry=100, clean=False)
        world.commit()
        world.now += 3600
        world.sign_of_life = world.now
        world.restart(downtime_s=30)
        assert len(world.broker.sessions) == 1
        world.wait(99)
        assert len(world.broker.sessions) == 1

    def test_the_delay_of_a_will_counts_from_the_same_moment(self) -> None:
        world = StoredWorld()
        world.client("device", expiry=EXPIRY, clean=False, will=will(10))
        world.commit()
        world.restart(downtime_s=5)
        world.wait(9.9)
        assert retained(world) is None
        world.wait(0.2)
        assert retained(world) == b"offline"

    def test_what_was_written_at_the_end_of_a_connection_is_exact(self) -> None:
        world = StoredWorld()
        world.client("away", expiry=10, clean=False).drop()
        world.commit()
        world.restart(downtime_s=9)
        assert len(world.broker.sessions) == 1
        world.wait(1.1)
        assert len(world.broker.sessions) == 0

    @pytest.mark.parametrize("back_s", [1.0, 500.0])
    def test_a_clock_that_was_set_back(self, back_s: float) -> None:
        world = StoredWorld()
        world.client("here", expiry=5, clean=False)
        world.client("away", expiry=5, clean=False).drop()
        world.commit()
        world.restart(downtime_s=-back_s)
        assert len(world.broker.sessions) == 2
        world.wait(4.9)
        assert len(world.broker.sessions) == 2

    def test_a_store_that_never_showed_a_sign(self) -> None:
        world = StoredWorld()
        world.client("here", expiry=5, clean=False)
        world.commit()
        world.store = world.store.crash()
        world.store.tables.alive_at = 0.0
        world.now += 1e6
        world._live()
        assert len(world.broker.sessions) == 1

    def test_what_a_member_has_moves_before_its_session_ends(self) -> None:
        """Its session lasted a second, and the group is another's too."""
        world = StoredWorld()
        options: dict[str, Any] = {"qos": 1}
        one = world.client("one", expiry=1, clean=False)
        one.send(subscribe(V5, "$share/g/a", **options))
        world.client("p").send(publish("a", b"x", qos=1))
        two = world.client("two", expiry=EXPIRY, clean=False)
        two.send(subscribe(V5, "$share/g/a", **options))
        world.commit()
        assert one.payloads() == [b"x"]
        world.restart(downtime_s=EXPIRY / 2)
        two = world.client("two", expiry=EXPIRY, clean=False)
        world.page()
        assert two.payloads() == [b"x"]
