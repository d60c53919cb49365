"""What CONNACK says is true after a crash: when it waits for the store, and when it does not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from mqtt_broker.codec import properties as prop
from mqtt_broker.codec import reasons
from mqtt_broker.codec.constants import PUBREC, V31
from mqtt_broker.codec.encode import encode_from_client
from mqtt_broker.codec.packets import Ack, Connack, Disconnect, Publish, Suback, Will
from mqtt_broker.codec.properties import NO_PROPERTIES, Properties
from mqtt_broker.core.interfaces.access import PENDING, Allow, ConnectRequest, OpenAccess, Reply
from mqtt_broker.core.interfaces.client_log import RefusalLog
from sessions.journal.journal import MEMORY, RELAXED
from tests.core.peers import V5, V311, Peer, connect, disconnect, publish, subscribe
from tests.core.stored import StoredWorld

EXPIRY = 1000
VERSIONS = [V5, V311, V31]


def stored(world: StoredWorld, name: str = "c", version: int = V5, **fields: Any) -> Peer:
    """A client with a stored session that is on disk."""
    options = {"expiry": EXPIRY, "clean": False, **fields}
    peer = world.client(name, version, **options)
    peer.send(subscribe(version, "a", qos=1))
    world.commit()
    peer.take()
    return peer


def arrive(world: StoredWorld, name: str = "c", version: int = V5, **fields: Any) -> Peer:
    """A client that has sent CONNECT, answered or not."""
    peer = world.peer(version)
    peer.send(connect(name, version, **fields))
    return peer


def say_goodbye(world: StoredWorld, peer: Peer) -> None:
    found = Properties({prop.SESSION_EXPIRY_INTERVAL: 0})
    peer.send(encode_from_client(V5, Disconnect(0, found)))


def present(peer: Peer) -> bool:
    (answer,) = peer.take()
    assert isinstance(answer, Connack) and answer.reason == 0, answer
    return answer.session_present


class TestAnEndedSession:
    @pytest.mark.parametrize("version", VERSIONS)
    @pytest.mark.parametrize("is_online", [False, True])
    def test_clean_start_is_answered_when_the_end_is_on_disk(
        self, version: int, is_online: bool
    ) -> None:
        world = StoredWorld()
        old = stored(world, version=version)
        if not is_online:
            old.drop()
        peer = arrive(world, version=version)
        assert (peer.take(), peer.is_paused) == ([], True)
        world.pack()
        assert peer.take() == []
        world.commit()
        assert (present(peer), peer.is_paused) == (False, False)
        world.restart()
        again = arrive(world, version=version, clean=False)
        assert not present(again)

    def test_a_packet_id_of_the_old_session_is_not_in_use(self) -> None:
        """The exchange that was acknowledged and never delivered."""
        world = StoredWorld()
        old = stored(world)
        old.send(publish("b", b"old", qos=2, packet_id=5))
        world.commit()
        peer = arrive(world, expiry=EXPIRY)
        was_told = bool(peer.take())
        world.restart()
        watcher = world.client("watcher")
        watcher.subscribe("b", qos=2)
        watcher.take()
        again = world.client("c", expiry=EXPIRY, clean=False)
        if was_told:  # it has forgotten its packet ids
            again.send(publish("b", b"new", qos=2, packet_id=5))
            assert watcher.payloads() == [b"new"]
        assert not was_told, "the end of the old session was not on disk"

    def test_disconnect_that_ends_it_and_a_return(self) -> None:
        world = StoredWorld()
        say_goodbye(world, stored(world))
        peer = arrive(world, expiry=EXPIRY, clean=False)
        assert peer.take() == []
        world.commit()
        assert not present(peer)

    def test_a_timer_a_moment_before(self) -> None:
        world = StoredWorld()
        stored(world, expiry=5).drop()
        world.commit()
        world.wait(6)
        peer = arrive(world, clean=False)
        assert peer.take() == []
        world.commit()
        assert not present(peer)

    def test_what_the_start_ended(self) -> None:
        world = StoredWorld()
        stored(world, expiry=1)
        world.store = world.store.crash()
        world.now += 500
        world.peers.clear()
        world._live()
        peer = arrive(world, clean=False)
        assert peer.take() == []
        world.commit()
        assert not present(peer)

    def test_an_operator_ended_it(self) -> None:
        world = StoredWorld()
        stored(world).drop()
        session = world.broker.sessions.get("c")
        assert session is not None
        world.broker.state.lifecycle.end(session, world.now)
        peer = arrive(world)
        assert peer.take() == []
        world.commit()
        assert not present(peer)

    def test_connack_is_first_and_the_rest_follows(self) -> None:
        world = StoredWorld()
        stored(world, will=Will("a", b"gone", 1, False, NO_PROPERTIES))
        peer = world.peer()
        peer.send(
            connect("c", expiry=EXPIRY),
            subscribe(V5, "a", qos=1),
            publish("a", b"x", qos=1, packet_id=9),
        )
        peer.send(publish("a", b"y", qos=0))  # in the kernel, if it were one
        world.client("p").send(publish("a", b"live"))
        assert peer.take() == []
        world.commit()
        world.commit()
        found = peer.take()
        assert isinstance(found[0], Connack)
        assert {type(packet) for packet in found[1:]} == {Suback, Publish, Ack}

    @pytest.mark.parametrize("is_packed", [False, True])
    def test_a_connection_that_goes_meanwhile(self, is_packed: bool) -> None:
        world = StoredWorld()
        stored(world).drop()
        peer = arrive(world, will=Will("a", b"gone", 0, True, NO_PROPERTIES))
        if is_packed:
            world.pack()
        peer.drop()
        assert not world.broker.clients.arriving
        world.commit()
        assert peer.take() == [] and not world.broker.links
        assert len(world.broker.sessions) == 0
        assert len(world.broker.retained) == 0, "it was never in"

    def test_the_last_of_several_comes_in(self) -> None:
        world = StoredWorld()
        stored(world)
        peers = [arrive(world, expiry=EXPIRY) for _ in range(3)]
        world.commit()
        assert [peer.take() for peer in peers[:2]] == [[], []]
        assert all(peer.is_closed for peer in peers[:2])
        assert not present(peers[2])
        assert len(world.broker.connections) == 1

    def test_one_after_the_other(self) -> None:
        """Each ends the session of the one before."""
        world = StoredWorld()
        stored(world)
        for _ in range(3):
            peer = arrive(world, expiry=EXPIRY)
            assert peer.take() == []
            world.commit()
            assert not present(peer)

    @pytest.mark.parametrize(("version", "code"), [(V5, 0x88), (V311, 3), (V31, 3)])
    def test_a_store_that_is_away(self, version: int, code: int) -> None:
        world = StoredWorld(connect_timeout_s=10)
        stored(world, version=version).drop()
        stored(world, "carried").drop()
        world.store.fail("away")
        peer = arrive(world, version=version)
        carried = arrive(world, "carried", clean=False, expiry=EXPIRY)
        other = arrive(world, "new", expiry=EXPIRY)
        world.pack()
        world.store.commit()
        assert peer.take() == []
        assert present(carried) and not present(other)
        lines: list[str] = []
        world.broker.runtime.client_log = RefusalLog(lines.append)
        world.wait(11)
        (answer,) = peer.take()
        assert isinstance(answer, Connack) and answer.reason == code
        assert peer.is_closed and not world.broker.clients.arriving
        assert "refused, Server unavailable (store timeout)" in lines[0]
        assert world.broker.counters.refused["connect/store timeout"] == 1
        world.store.fail("")
        world.commit()
        assert not present(arrive(world, version=version))

    def test_the_keep_alive_begins_with_connack(self) -> None:
        world = StoredWorld()
        stored(world).drop()
        peer = arrive(world, keep_alive=1)
        world.wait(5)
        world.commit()
        assert not present(peer)
        world.wait(1.4)
        assert not peer.is_closed
        world.wait(0.2)
        assert peer.is_closed

    @pytest.mark.parametrize("is_away", [False, True])
    def test_the_broker_stops(self, is_away: bool) -> None:
        world = StoredWorld()
        stored(world).drop()
        peer = arrive(world)
        if not is_away:
            world.commit()
            assert not present(peer)
        world.broker.stop(world.now)
        world.settle()
        world.commit()
        kinds = [type(packet) for packet in peer.take()]
        assert kinds == ([] if is_away else [Disconnect])
        assert peer.is_closed

    def test_others_took_the_last_place(self) -> None:
        world = StoredWorld(connections_max=1)
        stored(world).drop()
        peer = arrive(world)
        world.client("other")
        world.commit()
        (answer,) = peer.take()
        assert isinstance(answer, Connack) and answer.reason == reasons.SERVER_BUSY


class TestNothingElseWaits:
    def test_a_new_client(self) -> None:
        world = StoredWorld()
        assert not present(arrive(world, expiry=EXPIRY))

    @pytest.mark.parametrize("is_online", [False, True])
    def test_a_session_that_is_carried_on(self, is_online: bool) -> None:
        world = StoredWorld()
        old = stored(world)
        if not is_online:
            old.drop()
        assert present(arrive(world, expiry=EXPIRY, clean=False))

    def test_sessions_that_are_not_stored(self) -> None:
        world = StoredWorld()
        will = Will("a", b"gone", 0, False, NO_PROPERTIES)
        for _ in range(3):
            peer = arrive(world, will=will)
            assert not present(peer)

    @pytest.mark.parametrize("mode", [RELAXED, MEMORY])
    def test_modes_that_promise_nothing(self, mode: int) -> None:
        world = StoredWorld(mode=mode)
        stored(world).drop()
        assert not present(arrive(world))

    def test_a_client_whose_session_ended_long_ago(self) -> None:
        world = StoredWorld()
        say_goodbye(world, stored(world))
        world.commit()
        assert not present(arrive(world))

    def test_what_was_ended_is_not_remembered_for_ever(self) -> None:
        world = StoredWorld()
        for number in range(50):
            say_goodbye(world, stored(world, f"c{number}"))
            world.commit()
        say_goodbye(world, stored(world))
        assert len(world.broker.sessions.marked) == 1


class TestAnotherExpiry:
    def test_a_longer_one_is_on_disk_before_it_is_said(self) -> None:
        world = StoredWorld()
        stored(world, expiry=5).drop()
        world.commit()
        peer = arrive(world, expiry=EXPIRY, clean=False)
        assert peer.take() == []
        world.store.commit()
        world.pack()
        world.store.commit()
        world.settle()
        assert present(peer)
        world.store = world.store.crash()  # what CONNACK brought about is not on disk
        world.peers.clear()
        world.now += EXPIRY / 2
        world._live()
        assert present(arrive(world, expiry=EXPIRY, clean=False))

    def test_none_is_on_disk_before_it_is_said(self) -> None:
        """Else the client would find a session that it knows to be over."""
        world = StoredWorld()
        stored(world).drop()
        peer = arrive(world, clean=False)
        assert peer.take() == []
        world.commit()
        assert present(peer)
        world.store = world.store.crash()
        world.peers.clear()
        world._live()
        world.commit()
        assert not present(arrive(world, clean=False))

    def test_what_waits_is_not_lost_meanwhile(self) -> None:
        world = StoredWorld()
        stored(world).drop()
        world.client("p").send(publish("a", b"x", qos=1))
        peer = arrive(world, clean=False)
        world.commit()
        found = peer.take()
        assert isinstance(found[0], Connack) and found[0].session_present
        assert [packet.payloads() for packet in found[1:]] == [[b"x"]]

    @pytest.mark.parametrize("asked", [0, 5000])
    def test_a_connection_that_goes_meanwhile_changes_nothing(self, asked: int) -> None:
        world = StoredWorld()
        stored(world).drop()
        peer = arrive(world, expiry=asked, clean=False)
        world.pack()
        peer.drop()
        world.fold()
        (row,) = world.store.tables.sessions.values()
        assert (row.expiry_interval, row.is_online) == (EXPIRY, False)
        assert row.expires_at == world.now + EXPIRY
        world.restart()
        assert present(arrive(world, expiry=EXPIRY, clean=False))

    def test_it_ends_by_itself_meanwhile(self) -> None:
        world = StoredWorld(connect_timeout_s=60)
        stored(world, expiry=5).drop()
        peer = arrive(world, expiry=EXPIRY, clean=False)
        world.wait(6)
        world.store.commit()
        assert peer.take() == []
        world.commit()
        assert not present(peer)

    def test_its_will_is_sent_meanwhile(self) -> None:
        world = StoredWorld(connect_timeout_s=60)
        found = Properties({prop.WILL_DELAY_INTERVAL: 3})
        section = b"\x05\x18\x00\x00\x00\x03"
        stored(world, will=Will("w", b"gone", 0, True, found, section)).drop()
        peer = arrive(world, expiry=5000, clean=False)
        world.wait(4)
        assert len(world.broker.retained) == 1
        world.commit()
        world.commit()
        assert present(peer)
        world.fold()
        (row,) = world.store.tables.sessions.values()
        assert (row.expiry_interval, row.is_online, row.will) == (5000, True, None)

    def test_disconnect_with_another_one(self) -> None:
        world = StoredWorld()
        found = Properties({prop.SESSION_EXPIRY_INTERVAL: 5})
        stored(world).send(encode_from_client(V5, Disconnect(0, found)))
        peer = arrive(world, expiry=EXPIRY, clean=False)
        assert peer.take() == []
        world.commit()
        assert present(peer)

    def test_the_one_that_disconnect_asked_for_a_moment_before(self) -> None:
        world = StoredWorld()
        found = Properties({prop.SESSION_EXPIRY_INTERVAL: 5})
        stored(world).send(encode_from_client(V5, Disconnect(0, found)))
        peer = arrive(world, expiry=5, clean=False)
        assert peer.take() == []
        world.commit()
        assert present(peer)

    def test_the_old_one_after_a_connection_that_asked_for_another(self) -> None:
        world = StoredWorld()
        stored(world).drop()
        world.commit()
        gone = arrive(world, expiry=5, clean=False)
        gone.drop()
        peer = arrive(world, expiry=EXPIRY, clean=False)
        assert peer.take() == []
        world.commit()
        assert present(peer)


class LateAccess(OpenAccess):
    """Answers when it is told to."""

    def __init__(self) -> None:
        self.replies: list[Reply] = []
        self.verdict = Allow("u")

    def connect(self, request: ConnectRequest) -> Any:
        if request.client_id != "late":
            return self.verdict
        self.replies.append(request.reply)
        return PENDING


class Unwelcome:
    """A guard that thinks otherwise of its client after a while."""

    is_welcome = True

    def may_publish(self, topic: str) -> bool:
        return True

    def may_subscribe(self, text: str, qos: int) -> bool:
        return True


class GuardedWorld(StoredWorld):
    def _live(self) -> None:
        super()._live()
        self.access = LateAccess()
        self.broker.state.authorizer.access = self.access


def refused(peer: Peer) -> int:
    (answer,) = peer.take()
    assert isinstance(answer, Connack) and peer.is_closed
    return answer.reason


class TestVerdicts:
    def test_a_late_verdict_and_then_the_store(self) -> None:
        world = GuardedWorld()
        peer = arrive(world, "late", expiry=EXPIRY, clean=False)
        world.access.replies.pop()(Allow("u"), world.now)
        world.settle()
        assert not present(peer)
        peer.drop()
        peer = world.peer()
        peer.send(connect("late", expiry=EXPIRY), subscribe(V5, "a"))
        reply = world.access.replies.pop()
        reply(Allow("u"), world.now)
        reply(Allow("u"), world.now)
        assert peer.take() == [] and peer.is_paused
        world.commit()
        reply(Allow("u"), world.now)
        world.commit()
        assert [type(packet) for packet in peer.take()] == [Connack, Suback]

    def test_a_verdict_that_expires_meanwhile(self) -> None:
        world = GuardedWorld()
        stored(world).drop()
        world.access.verdict = Allow("u", expires_at=world.now + 2)
        peer = arrive(world)
        world.wait(3)
        world.commit()
        assert refused(peer) == reasons.NOT_AUTHORIZED

    def test_a_client_that_is_no_longer_welcome(self) -> None:
        world = GuardedWorld()
        stored(world).drop()
        guard = Unwelcome()
        world.access.verdict = Allow("u", guard=guard)
        peer = arrive(world)
        guard.is_welcome = False
        world.commit()
        assert refused(peer) == reasons.NOT_AUTHORIZED

    def test_another_user_does_not_take_the_client_id_of_one_that_waits(self) -> None:
        world = GuardedWorld()
        world.access.verdict = Allow("mine", is_bound=True)
        stored(world).drop()
        world.commit()
        peer = arrive(world)
        world.access.verdict = Allow("theirs", is_bound=True)
        assert refused(arrive(world)) == reasons.CLIENT_IDENTIFIER_NOT_VALID
        world.commit()
        assert not present(peer)


class TestWhatElseIsPromised:
    """Acknowledgements of sessions that are stored, or are not, across a crash."""

    def test_puback_of_an_unstored_publisher(self) -> None:
        world = StoredWorld()
        stored(world, "s").drop()
        publisher = world.client("p")
        publisher.send(publish("a", b"x", qos=2, packet_id=3))
        assert publisher.take() == []
        publisher.send(publish("a", b"x", qos=2, packet_id=3))
        assert publisher.take() == [], "nor is a repetition answered before"
        world.commit()
        (answer,) = publisher.take()
        assert (answer.packet_type, answer.packet_ids) == (PUBREC, [3, 3])

    def test_ids_of_a_session_that_lasts_no_longer(self) -> None:
        """It was stored, carries on with expiry 0, and the broker dies."""
        world = StoredWorld()
        client = stored(world)
        client.send(publish("b", b"1", qos=2, packet_id=5))
        world.commit()
        client.drop()
        client = world.client("c", clean=False)
        world.commit()
        world.restart()
        watcher = world.client("watcher")
        watcher.subscribe("b", qos=2)
        watcher.take()
        again = arrive(world, clean=False)
        assert not present(again)
        again.send(publish("b", b"2", qos=2, packet_id=5))
        world.commit()
        assert watcher.payloads() == [b"2"]

    @pytest.mark.parametrize(
        "end", [disconnect, lambda: encode_from_client(V5, Disconnect(4))], ids=["bye", "will"]
    )
    def test_a_session_that_ends_with_its_connection(self, end: Callable[[], bytes]) -> None:
        world = StoredWorld()
        stored(world).drop()
        client = world.client("c", clean=False)
        client.send(end())
        peer = arrive(world, clean=False)
        assert peer.take() == []
        world.commit()
        assert not present(peer)
