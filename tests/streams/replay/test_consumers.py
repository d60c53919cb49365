"""Consumer groups: dealing partitions, committed offsets, redelivery and poison."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from mqtt_broker.codec import properties as prop
from mqtt_broker.codec.constants import V311
from mqtt_broker.streams.format.errors import Invalid, OffsetAhead, UnknownStream, WrongEpoch
from mqtt_broker.streams.format.offsets import Offsets
from tests.core.peers import Peer, disconnect, unsubscribe
from tests.streams.replaying import (
    ERROR,
    NAME,
    STREAM,
    V5,
    Got,
    ReplayLimits,
    Replays,
    acknowledge,
    drain,
    got,
    payloads,
    subscribe,
)

GROUP = f"$share/work/{STREAM}"
OWNER = "group:work"


@pytest.fixture
def world(tmp_path: Path) -> Iterator[Replays]:
    """Four partitions with five records each."""
    world = make(tmp_path)
    yield world
    world.close()


def make(path: Path, partitions: int = 4, limits: ReplayLimits | None = None) -> Replays:
    world = Replays(
        path / "streams",
        partitions=partitions,
        stream={"partition_by": "round-robin"},
        limits=limits,
    )
    put(world, 0, 5 * partitions)
    return world


def put(world: Replays, first: int, last: int) -> None:
    world.put(*[b"%d" % number for number in range(first, last)])


def member(world: Replays, name: str, qos: int = 1, **fields: int) -> Peer:
    peer = world.client(name, **fields)
    assert subscribe(peer, GROUP, qos=qos) == qos
    return peer


def owned(world: Replays) -> Mapping[str, Sequence[int]]:
    (figures,) = world.replay.groups(NAME)
    return figures.members


def places(records: list[Got]) -> list[tuple[int, int]]:
    return sorted((record.partition, record.offset) for record in records)


ALL = [(partition, offset) for partition in range(4) for offset in range(5)]


@pytest.mark.parametrize("qos", [0, 1])
def test_members_share_the_partitions(world: Replays, qos: int) -> None:
    one = member(world, "one", qos)
    assert places(drain(one)) == ALL
    two, three = member(world, "two", qos), member(world, "three", qos)
    assert sorted(map(len, owned(world).values())) == [1, 1, 2]
    put(world, 20, 60)
    found = {peer: drain(peer) for peer in (one, two, three)}
    assert places([record for records in found.values() for record in records]) == [
        (partition, offset) for partition in range(4) for offset in range(5, 15)
    ]
    for name, peer in (("one", one), ("two", two), ("three", three)):
        assert {record.partition for record in found[peer]} == set(owned(world)[name])
    (figures,) = world.replay.groups()
    assert figures.committed == (15,) * 4 and figures.lag == (0,) * 4
    world.wait(0.2)
    assert world.position(OWNER) == dict.fromkeys(range(4), 15)


def test_few_partitions_move(world: Replays) -> None:
    peers = {name: member(world, name) for name in ("a", "b", "c")}
    for peer in peers.values():
        drain(peer)
    for change in ("d", "-a", "e", "-b", "-c", "a", "f", "-d", "-e", "-f"):
        before = owned(world)
        if change[0] == "-":
            peers.pop(change[1:]).drop()
        else:
            peers[change] = member(world, change)
            drain(peers[change])
        after = owned(world)
        sizes = [len(partitions) for partitions in after.values()]
        assert sorted(n for partitions in after.values() for n in partitions) == [0, 1, 2, 3]
        assert max(sizes) - min(sizes) <= 1 and len(after) == len(peers)
        stayed = sum(
            len(set(before[name]) & set(partitions))
            for name, partitions in after.items()
            if name in before
        )
        least = sum(
            min(len(before[name]), len(partitions))
            for name, partitions in after.items()
            if name in before
        )
        assert stayed == least


def test_more_members_than_partitions(tmp_path: Path) -> None:
    world = make(tmp_path, partitions=1)
    one, two = member(world, "one"), member(world, "two")
    assert owned(world) == {"one": [0], "two": []}
    first = got(one)
    assert len(first) == 5 and not got(two)
    acknowledge(one, *first[:2])
    one.drop()
    assert places(drain(two)) == [(0, 2), (0, 3), (0, 4)]
    world.close()


def test_the_start_counts_for_who_makes_the_group(world: Replays) -> None:
    one = world.client("one")
    subscribe(one, GROUP, '{"p0": 5, "p1": 4, "p2": 5, "p3": 3}', 1)
    assert places(drain(one)) == [(1, 4), (3, 3), (3, 4)]
    two = world.client("two")
    assert subscribe(two, f"{GROUP}/@earliest", "earliest", 1) == 1
    assert subscribe(two, GROUP, '{"p0": 99, "p1": 4, "p2": 5, "p3": 3}', 1) == 1
    put(world, 20, 40)
    assert len(drain(one)) + len(drain(two)) == 20


def test_a_time_as_the_start_of_a_group(world: Replays) -> None:
    world.now_us += 5_000_000
    put(world, 20, 24)
    world.holds_reads = True
    one, two = world.client("one"), world.client("two")
    subscribe(one, GROUP, "2023-11-14T22:13:25Z", 1)
    subscribe(two, GROUP, qos=1)
    world.holds_reads = False
    world.settle()
    assert places(drain(one) + drain(two)) == [(partition, 5) for partition in range(4)]


def test_a_group_whose_beginning_is_looked_for_can_be_looked_at(world: Replays) -> None:
    world.holds_reads = True
    subscribe(world.client("one"), GROUP, "2023-11-14T22:13:25Z", 1)
    (group,) = world.replay.groups()
    assert (group.members, group.committed, group.lag) == ({"one": []}, (), ())
    world.holds_reads = False
    world.settle()
    (group,) = world.replay.groups()
    assert (group.committed, group.lag) == ((5, 5, 5, 5), (0, 0, 0, 0))


def test_a_reset_counts_though_the_beginning_was_looked_for(world: Replays) -> None:
    world.holds_reads = True
    one = world.client("one")
    subscribe(one, GROUP, "2023-11-14T22:13:25Z", 1)
    one.send(unsubscribe(V5, GROUP))
    epoch = world.log.streams[NAME].epoch
    world.replay.group_reset("work", NAME, Offsets(epoch, (1, 2, 3, 4)))
    world.holds_reads = False
    world.settle()
    assert world.position(OWNER) == {0: 1, 1: 2, 2: 3, 3: 4}
    (group,) = world.replay.groups()
    assert group.committed == (1, 2, 3, 4)


def test_acknowledgements_in_any_order(tmp_path: Path) -> None:
    world = make(tmp_path, partitions=1)
    one = member(world, "one")
    found = got(one)
    acknowledge(one, found[1], found[3])
    world.wait(0.2)
    assert world.position(OWNER) == {0: 0}
    acknowledge(one, found[0])
    world.wait(0.2)
    assert world.position(OWNER) == {0: 2}
    one.drop()
    two = member(world, "two")
    assert places(drain(two)) == [(0, 2), (0, 4)]  # not what was acknowledged behind
    world.wait(0.2)
    assert world.position(OWNER) == {0: 5}
    world.close()


def test_a_group_lives_on_in_the_store(world: Replays) -> None:
    one = member(world, "one", receive_maximum=3)
    acknowledge(one, *got(one))
    one.send(disconnect())
    assert world.replay.groups()[0].members == {}
    world.commit()
    world.restart()
    (figures,) = world.replay.groups()
    assert sum(figures.committed) == 3
    two = world.client("two")
    subscribe(two, GROUP, "latest", 1)
    assert len(drain(two)) == 17
    assert world.replay.groups()[0].lag == (0, 0, 0, 0)


def test_a_member_that_comes_back_to_its_session(world: Replays) -> None:
    one = member(world, "one", expiry=100, receive_maximum=4)
    assert len(got(one)) == 4
    one.drop()
    assert not len(world.broker.sessions.get("one").outbound.window)  # type: ignore[union-attr]
    world.commit()
    world.restart()
    one = world.client("one", clean=False, expiry=100)
    world.commit()
    found = drain(one)
    assert places(found) == ALL and not any(record.dup for record in found)


def test_a_partition_moves_when_what_is_under_way_is_acknowledged(world: Replays) -> None:
    one = member(world, "one")
    found = got(one)
    two = member(world, "two")
    assert not got(two) and len(owned(world)["one"]) == 4
    put(world, 20, 24)
    new = got(one)
    assert len({record.partition for record in new}) == 2  # nothing new of what is to leave
    moving = [record for record in found if record.partition not in {r.partition for r in new}]
    acknowledge(one, *moving[:-1])
    world.wait(0.2)
    before = sum(world.position(OWNER).values())
    acknowledge(one, moving[-1])
    assert len(owned(world)["one"]) == 2
    assert sum(world.position(OWNER).values()) == before + 1  # at once
    assert places(drain(two)) == [(partition, 5) for partition in owned(world)["two"]]
    acknowledge(one, *[r for r in found if r not in moving], *new)
    assert world.replay.groups()[0].lag == (0, 0, 0, 0)
    assert world.replay.context.counters.redelivered == 0


def test_a_partition_does_not_wait_for_ever(world: Replays) -> None:
    one = member(world, "one")
    found = got(one)
    two = member(world, "two")
    world.wait(9)
    assert not got(two)
    world.wait(2)
    again = drain(two)
    assert len(again) == 10
    acknowledge(one, *found)  # too late for those; the others count
    assert not one.is_closed
    assert world.replay.groups()[0].lag == (0, 0, 0, 0)


def test_leaving_with_something_under_way(world: Replays) -> None:
    one, two = member(world, "one"), member(world, "two")
    first, others = got(one), got(two)
    acknowledge(two, *others)
    others += drain(two)
    one.send(unsubscribe(V5, GROUP))
    one.take()
    assert list(owned(world)) == ["two"]
    acknowledge(one, *first)
    assert one.connection.session.outbound.sources is None
    others += drain(two)
    assert places(others + first) == ALL
    one.drop()
    two.send(unsubscribe(V5, GROUP))
    two.drop()
    assert not world.replay.subscriptions and not world.replay.context.read_ahead.files


@pytest.mark.parametrize("qos", [0, 1])
def test_311_members(world: Replays, qos: int) -> None:
    one, two = world.client("one", V311), world.client("two", V311)
    assert subscribe(one, f"{GROUP}/@earliest", qos=qos) == qos
    found = drain(one)
    assert subscribe(two, f"{GROUP}/@earliest", qos=qos) == qos
    put(world, 20, 40)
    found += drain(one)
    assert len(new := drain(two)) > 0
    assert sorted(int(r.payload) for r in [*found, *new]) == list(range(40))


def test_what_fails_is_delivered_again_in_front(tmp_path: Path) -> None:
    world = make(tmp_path, partitions=1)
    one = member(world, "one", receive_maximum=2)
    first = got(one)
    acknowledge(one, first[0], reason=0x80)
    acknowledge(one, first[1])
    assert not got(one)  # nothing of this partition overtakes it
    world.wait(0.15)
    (again,) = got(one)
    assert again.offset == 0 and not again.dup and again.packet_id != first[0].packet_id
    acknowledge(one, again, reason=0x80)
    world.wait(0.15)
    assert not got(one)
    world.wait(0.1)
    (again,) = got(one)
    acknowledge(one, again)
    assert [record.offset for record in drain(one)] == [2, 3, 4]
    assert world.replay.context.counters.redelivered == 2 and not world.dead_letters
    world.close()


def test_poison_by_error_goes_to_the_dead_letters(tmp_path: Path) -> None:
    world = make(tmp_path, partitions=1, limits=ReplayLimits(redeliveries_max=2))
    one = member(world, "one")
    found = got(one)
    acknowledge(one, found[0], *found[2:])
    poison = found[1]
    acknowledge(one, poison, reason=0x99)
    for _ in range(2):
        world.wait(1)
        (poison,) = got(one)
        acknowledge(one, poison, reason=0x99)
    world.wait(60)
    assert not got(one)
    ((reason, message, client_id),) = world.dead_letters
    assert (reason, message.payload, client_id) == ("redelivery", b"1", GROUP)
    user = dict(message.envelope.properties.user)
    assert user["stream-offset"] == "1" and user["deliveries"] == "3"
    assert message.envelope.publisher == "device" and message.envelope.topic == "t/1"
    assert world.position(OWNER) == {0: 5} and world.replay.context.counters.dead == 1
    world.close()


def test_only_the_record_that_kills_its_consumers_is_given_up(tmp_path: Path) -> None:
    world = make(tmp_path, partitions=2, limits=ReplayLimits(redeliveries_max=2))
    put(world, 10, 30)
    done: list[tuple[int, int]] = []
    deaths = 0
    for life in range(50):
        one = member(world, f"one{life}")
        while new := got(one):
            if any(record.payload == b"6" for record in new):
                one.drop()
                deaths += 1
                break
            done += places(new)
            acknowledge(one, *new)
        else:
            break
    assert deaths == 3
    assert [message.payload for _, message, _ in world.dead_letters] == [b"6"]
    assert sorted(done) == [
        (partition, offset)
        for partition in range(2)
        for offset in range(15)
        if (partition, offset) != (0, 3)
    ]
    world.wait(0.2)
    assert world.position(OWNER) == {0: 15, 1: 15}
    world.close()


def test_a_message_that_is_too_large_is_passed_over(tmp_path: Path) -> None:
    world = make(tmp_path, partitions=1)
    world.put(bytes(3000), b"after")
    one = member(world, "one", packet_bytes_max=1000, receive_maximum=1)
    assert [record.payload for record in drain(one)][-1] == b"after"
    world.wait(0.2)
    assert world.position(OWNER) == {0: 7}
    world.close()


def test_two_groups_and_a_reader_do_not_touch_each_other(world: Replays) -> None:
    one = world.client("one")
    for text in (GROUP, f"$share/other/{STREAM}", STREAM):
        subscribe(one, text, qos=1)
    assert places(drain(one)) == sorted(ALL * 3)
    assert len(world.replay.groups()) == 2


def test_a_stream_that_is_deleted_ends_its_groups(world: Replays) -> None:
    one = member(world, "one", receive_maximum=2)
    member(world, "two").drop()
    world.log.delete(NAME)
    world.replay.on_deleted(NAME, world.now)
    world.settle()
    assert one.publishes()[-1].topic == ERROR
    assert (
        not world.replay.groups(None)
        and not world.replay.subscriptions
        and not world.replay.context.read_ahead.files
    )
    assert world.position(OWNER) == {}
    one.send(disconnect())


def test_operators(world: Replays) -> None:
    replay = world.replay
    epoch = world.log.streams[NAME].epoch
    one = member(world, "one", expiry=100)
    drain(one)
    start = Offsets(epoch, (5, 5, 5, 4))
    with pytest.raises(Invalid, match="online"):
        replay.group_reset("work", NAME, start)
    with pytest.raises(Invalid, match="online"):
        replay.group_delete("work", NAME)
    one.drop()
    with pytest.raises(Invalid, match="not connected"):
        replay.group_delete("work", NAME)
    with pytest.raises(Invalid, match="no group 'nobody'"):
        replay.group_reset("nobody", NAME, start)
    with pytest.raises(UnknownStream):
        replay.group_delete("work", "nothing")
    with pytest.raises(WrongEpoch):
        replay.group_reset("work", NAME, Offsets("other", (0,) * 4))
    with pytest.raises(OffsetAhead):
        replay.group_reset("work", NAME, Offsets(epoch, (6, 0, 0, 0)))
    replay.group_reset("work", NAME, start)
    assert world.position(OWNER) == {0: 5, 1: 5, 2: 5, 3: 4}
    one = world.client("one", clean=False, expiry=100)
    world.commit()
    assert places(drain(one)) == [(3, 4)]
    one.send(unsubscribe(V5, GROUP))
    replay.group_delete("work", NAME)
    assert world.position(OWNER) == {} and not replay.groups()
    assert replay.figures().groups == 0


def test_a_group_of_another_life_of_the_stream(world: Replays) -> None:
    one = member(world, "one")
    drain(one)
    one.drop()
    world.commit()
    settings = world.log.streams[NAME].settings
    world.log.delete(NAME)
    world.log.create(settings)
    world.restart()
    assert not world.replay.groups() and world.position(OWNER) == {}
    assert any("does not exist any more" in line for line in world.lines)


def test_properties_tell_the_group_nothing_else(world: Replays) -> None:
    one = world.client("one")
    subscribe(one, GROUP, qos=1, identifier=4)
    (packet, *_) = one.publishes()
    assert packet.properties.subscription_ids == [4]
    assert prop.MESSAGE_EXPIRY_INTERVAL not in packet.properties
    assert payloads(one) == []
