"""Rows for operators: what they say, and that gathering them is spread over many turns."""

from __future__ import annotations

from typing import Any

from mqtt_broker.codec.packets import Will
from mqtt_broker.core.inspection import PARTS, ROW, Inspector
from mqtt_broker.core.interfaces.rows import (
    HAS_CHILDREN,
    HAS_MESSAGE,
    ONE_BELOW,
    ClientRow,
    RetainedSelect,
    RetainedSelected,
    Rows,
)
from sessions.messages.work import Work
from tests.core.peers import World, publish


def gather(world: World, start: Any, *values: Any) -> Any:
    """The rows of a walk, and how many slices it took is checked by others."""
    found: list[Any] = []
    start(*values, found.append)
    world.settle()
    (rows,) = found
    return list(rows) if isinstance(rows, Rows) else rows


def select(world: World, text: str = "", limit: int = 300) -> RetainedSelected:
    query = RetainedSelect(text, "", "topic", False, None, limit)
    found: RetainedSelected = gather(world, Inspector(world.broker.state).retained, query)
    return found


def client_row(world: World, client_id: str) -> ClientRow:
    rows = gather(world, Inspector(world.broker.state).clients)
    (found,) = [row for row in rows if row.id == client_id]
    assert isinstance(found, ClientRow)
    return found


def test_a_client_and_what_it_sent_and_got() -> None:
    world = World()
    one = world.client("one", expiry=60, keep_alive=30)
    two = world.client("two", clean=False)
    one.subscribe("a/#", qos=1)
    for qos in (0, 1):
        two.send(publish("a/b", b"x", qos=qos, packet_id=7))
    two.send(publish("a/b", b"y") + publish("a/b", b"y") + publish("a/b", b"z"))
    world.settle()
    got, sent = client_row(world, "one"), client_row(world, "two")
    assert (got.messages_out, got.messages_in, got.inflight, got.subscriptions) == (5, 0, 1, 1)
    assert (sent.messages_in, sent.messages_out, sent.clean_start) == (5, 0, False)
    assert got.bytes_out > 5 * 6 and sent.bytes_in > 5 * 6 and got.is_online
    assert (got.keep_alive_s, got.session_expiry_s, got.clean_start) == (30, 60, True)
    counters = world.broker.counters
    rows = gather(world, Inspector(world.broker.state).clients)
    assert sum(row.bytes_in for row in rows) == counters.bytes_received
    assert sum(row.bytes_out for row in rows) == counters.bytes_sent


def test_a_client_that_is_away() -> None:
    world = World()
    away = world.client("away", expiry=60)
    away.subscribe("t", qos=1)
    world.now += 5
    away.drop()
    world.settle()
    sender = world.client("s")
    for number in range(3):
        sender.send(publish("t", b"%d" % number, qos=1, packet_id=number + 1))
    world.settle()
    row = client_row(world, "away")
    assert (row.is_online, row.queued, row.address, row.connected_at) == (False, 3, "", 0)
    assert row.disconnected_at == world.now and row.expires_at == world.now + 60
    inspector = Inspector(world.broker.state)
    waiting = gather(world, inspector.queue, "away")
    assert [(one.place, one.topic, one.qos, one.publisher) for one in waiting] == [
        (n, "t", 1, "s") for n in range(3)
    ]
    assert not inspector.queue("nobody", lambda rows: None)
    assert gather(world, inspector.inflight, "away") == []


def test_all_about_one_client() -> None:
    world = World()
    world.client("c", receive_maximum=7, will=Will("w", b"gone", 1, True))
    inspector = Inspector(world.broker.state)
    found = inspector.client("c")
    assert found is not None
    assert (found.receive_maximum, found.will) == (7, ("w", 1, True, 4))
    assert "queue_messages_max" in found.limits and inspector.client("nobody") is None


def test_subscriptions_and_who_would_get_a_topic() -> None:
    world = World()
    for name in ("a", "b"):
        peer = world.client(name)
        peer.subscribe("x/+", "$share/g/x/y", "other", qos=1)
    world.settle()
    inspector = Inspector(world.broker.state)
    rows = gather(world, inspector.subscriptions, None)
    assert len(rows) == 6 and {row.group for row in rows} == {"", "g"}
    assert len(gather(world, inspector.subscriptions, "a")) == 3
    assert gather(world, inspector.subscriptions, "nobody") == []
    found = gather(world, inspector.matches, "x/y")
    assert sorted((row.client, row.filter, row.group) for row in found) == [
        ("a", "$share/g/x/y", "g"), ("a", "x/+", ""),
        ("b", "$share/g/x/y", "g"), ("b", "x/+", ""),
    ]  # fmt: skip
    assert all(row.is_permitted and row.is_online for row in found)
    assert gather(world, inspector.matches, "nothing/here") == []


def test_retained_messages() -> None:
    world = World()
    peer = world.client("p")
    for number in range(200):
        peer.send(publish(f"a/{number}", b"x" * number or b"-", retain=True))
    peer.send(publish("b", b"x", retain=True))
    world.settle()
    inspector = Inspector(world.broker.state)
    assert select(world).total == 201
    assert len(select(world, limit=50).rows) == 51
    (row,) = select(world, text="a/7").rows
    assert gather(world, inspector.branches, "a")["7"] == ONE_BELOW | HAS_MESSAGE
    assert gather(world, inspector.branches, "") == {
        "a": 200 * ONE_BELOW | HAS_CHILDREN, "b": ONE_BELOW | HAS_MESSAGE,
    }  # fmt: skip
    assert (row.topic, row.size, row.publisher) == ("a/7", 7, "p")
    found = inspector.retained_message("a/7", world.now)
    assert found is not None and found.payload == b"x" * 7
    assert inspector.retained_message("a/x", world.now) is None


def test_a_walk_takes_a_part_of_a_share_in_a_turn() -> None:
    """However long the list is: counted in units of work, for a clock would say nothing here."""
    work = Work(share=2_000)
    world = World(work=work)
    for number in range(300):
        world.client(f"c{number}")
    peer = world.client("p")
    for number in range(300):
        peer.send(publish(f"a/{number}", b"x", retain=True))
    world.settle()
    inspector = Inspector(world.broker.state)
    for start in (
        inspector.clients,
        lambda done: inspector.retained(RetainedSelect("", "", "topic", False, None, 9), done),
        lambda done: inspector.branches("", done),
        lambda done: inspector.subscriptions(None, done),
    ):
        found: list[Any] = []
        start(found.append)
        turns = 0
        while not found:
            before = work.spent
            world.broker.work(world.now)
            assert work.spent - before <= work.share // PARTS + 32 * (ROW + 2)
            turns += 1
        assert turns >= 5


def test_what_ends_between_two_slices_does_no_harm() -> None:
    world = World(work=Work(share=400))
    peers = [world.client(f"c{number}") for number in range(50)]
    found: list[Any] = []
    inspector = Inspector(world.broker.state)
    inspector.clients(found.append)
    inspector.subscriptions(None, found.append)
    world.broker.work(world.now)
    for peer in peers:
        peer.drop()
    world.settle()
    assert len(found) == 2 and len(found[0]) == 50
