"""Readers of streams within limits: how many, how much memory, how many files; late reads."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path

import pytest

from mqtt_broker.codec import reasons
from tests.core.peers import unsubscribe
from tests.streams.replaying import (
    NAME,
    STREAM,
    V5,
    ReplayLimits,
    Replays,
    acknowledge,
    drain,
    got,
    numbers,
    payloads,
    subscribe,
)


def test_too_many_readers(tmp_path: Path) -> None:
    world = Replays(tmp_path / "s", limits=ReplayLimits(readers_max=2, groups_max=1))
    one, two = world.client("one"), world.client("two")
    assert subscribe(one) == 0
    assert subscribe(two, f"$share/g/{STREAM}") == 0
    assert subscribe(two, f"{STREAM}/@latest") == reasons.QUOTA_EXCEEDED
    assert subscribe(one, STREAM, "latest") == 0
    one.send(unsubscribe(V5, STREAM))
    one.take()
    assert subscribe(one, f"$share/h/{STREAM}") == reasons.QUOTA_EXCEEDED
    world.close()


def test_one_client_leaves_readers_and_groups_to_others(tmp_path: Path) -> None:
    """Groups outlive their members: a client that makes one after the other has its part, too."""
    world = Replays(tmp_path / "s", limits=ReplayLimits(readers_max=100, groups_max=50))
    greedy, other = world.client("greedy"), world.client("other")
    taken = [subscribe(greedy, f"{STREAM}/@2000-01-01T00:00:{at:02}Z") for at in range(20)]
    assert taken == [0] * 10 + [reasons.QUOTA_EXCEEDED] * 10
    assert subscribe(greedy, f"{STREAM}/@2000-01-01T00:00:03Z") == 0, "it has this one"
    greedy.send(unsubscribe(V5, *[f"{STREAM}/@2000-01-01T00:00:{at:02}Z" for at in range(20)]))
    greedy.take()
    made = []
    for number in range(10):
        made.append(subscribe(greedy, f"$share/g{number}/{STREAM}"))
        greedy.send(unsubscribe(V5, f"$share/g{number}/{STREAM}"))
        greedy.take()
    assert made == [0] * 5 + [reasons.QUOTA_EXCEEDED] * 5
    assert subscribe(other, f"$share/h/{STREAM}") == subscribe(other) == 0
    world.replay.group_delete("g0", NAME)
    assert subscribe(greedy, f"$share/new/{STREAM}") == 0
    assert subscribe(greedy, f"$share/h/{STREAM}") == 0, "a group of others"
    world.close()


@pytest.mark.parametrize("ends_session", [False, True])
def test_a_reader_that_went_leaves_nothing_behind(world: Replays, ends_session: bool) -> None:
    """Not in the window either: the collector comes so seldom that it would be a leak."""
    world.put(*numbers(0, 200))
    peer = world.client("c")
    gc.disable()
    try:
        subscribe(peer, qos=1)
        world.settle()
        assert len(got(peer)) == 200
        session = world.broker.sessions.get("c")
        assert session is not None and session.outbound.sources is not None
        [feed] = session.outbound.sources
        lost = weakref.ref(feed)
        del feed
        if ends_session:
            peer.drop()
        else:
            peer.send(unsubscribe(V5, STREAM))
        assert lost() is None
    finally:
        gc.enable()


def test_pages_and_files_are_bounded(tmp_path: Path) -> None:
    world = Replays(
        tmp_path / "s",
        partitions=4,
        stream={"partition_by": "round-robin"},
        limits=ReplayLimits(buffered_bytes_max=400_000, files_max=3),
    )
    for number in range(20):
        world.put(*[b"%d " % number + bytes(1000)] * 40)
    peers = [world.client(f"c{number}", receive_maximum=2) for number in range(8)]
    for peer in peers:
        subscribe(peer, qos=1)
        assert world.replay.context.read_ahead.bytes < 800_000
        assert world.replay.context.read_ahead.files <= 4
    for peer in peers:
        found = drain(peer)
        assert len(found) == 800
        for partition in range(4):
            offsets = [record.offset for record in found if record.partition == partition]
            assert offsets == list(range(200))
    world.close()


def test_readers_who_can_be_sent_nothing_read_nothing(tmp_path: Path) -> None:
    """Else each read would drop another one's page, which is read again, and so on for ever."""
    world = Replays(
        tmp_path / "s",
        partitions=2,
        stream={"partition_by": "round-robin"},
        limits=ReplayLimits(buffered_bytes_max=100_000),
    )
    for number in range(120):  # a few more than may be in flight: a small page of each partition
        world.put(b"%d " % number + bytes(10_000))
    peers = [world.client(f"c{number}", expiry=100) for number in range(3)]
    world.holds_reads = True
    for peer in peers:
        subscribe(peer, qos=1)
    taken = {peer: got(peer) for peer in peers}
    for _ in range(1_000):
        if not world.reads:
            break
        world.read_once()
        for peer in peers:
            taken[peer] += got(peer)
    else:
        pytest.fail("they read for ever")
    world.holds_reads = False
    for peer in peers:
        acknowledge(peer, *taken[peer])
        assert len(taken[peer]) + len(drain(peer)) == 120
    world.close()


def test_reads_that_are_late_are_void(world: Replays) -> None:
    world.put(*numbers(0, 5))
    one = world.client("one", expiry=100)
    world.holds_reads = True
    subscribe(one, qos=1)
    assert len(world.reads) == 1
    one.drop()
    one = world.client("one", clean=False, expiry=100)
    assert len(world.reads) == 1  # the first has to come back before the next
    world.holds_reads = False
    world.settle()
    assert [record.payload for record in drain(one)] == numbers(0, 5)
    world.put(b"5")
    world.holds_reads = True
    acknowledge(one, *got(one))
    world.put(b"6")
    one.send(unsubscribe(V5, STREAM))
    world.holds_reads = False
    world.settle()
    assert not world.replay.context.read_ahead.files and not world.replay.context.read_ahead.bytes


def test_files_that_cannot_be_opened_are_tried_again(
    world: Replays, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.put(*numbers(0, 3))

    def fails(*_: object, **__: object) -> None:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr("mqtt_broker.streams.replay.pages.Reader", fails)
    one = world.client("one")
    subscribe(one)
    assert not got(one)
    monkeypatch.undo()
    world.wait(2)
    assert payloads(one) == numbers(0, 3)
    assert any("Too many open files" in line for line in world.lines)


@pytest.mark.parametrize("start", ["", "/@earliest", "/@2000-01-01T00:00:00Z"])
def test_who_subscribes_again_and_again_fills_no_threads(world: Replays, start: str) -> None:
    """What it does not want any longer is not read, and others do not wait for it."""
    world.put(*numbers(0, 5))
    world.holds_reads = True
    greedy, other = world.client("greedy"), world.client("other")
    for _ in range(200):
        if start:
            subscribe(greedy, STREAM + start)
        else:
            subscribe(greedy)
            greedy.send(unsubscribe(V5, STREAM))
    subscribe(greedy, STREAM + start)
    subscribe(other)
    assert len(world.reads) == 2
    world.holds_reads = False
    world.settle()
    assert payloads(greedy) == payloads(other) == numbers(0, 5)
    assert not len(world.replay.context.reads)


def test_work_on_streams_is_counted(world: Replays) -> None:
    """A few hundred are a share: each begins reads, and its start may be as long as a filter."""
    world.holds_reads = True
    peer, work = world.client("c"), world.broker.state.work
    before = work.spent
    for _ in range(10):
        subscribe(peer)
        peer.send(unsubscribe(V5, STREAM))
    short = work.spent - before
    assert short >= 20 * 500
    before = work.spent
    subscribe(peer, f"{STREAM}/@" + "9" * 60_000)
    subscribe(peer, STREAM, "9" * 60_000)
    assert work.spent - before >= 2 * 60_000 // 10
