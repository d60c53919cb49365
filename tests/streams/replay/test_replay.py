"""Streams read over MQTT by subscriptions of their own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mqtt_broker.codec import properties as prop
from mqtt_broker.codec.constants import V311
from mqtt_broker.codec.properties import Properties, encode_each
from mqtt_broker.streams.format.offsets import Offsets
from tests.core.peers import connect, disconnect, publish, unsubscribe
from tests.streams.replaying import (
    ERROR,
    NAME,
    START_US,
    STREAM,
    V5,
    Replays,
    acknowledge,
    ask,
    drain,
    got,
    numbers,
    payloads,
    subscribe,
)


def test_a_record_says_where_it_stands(world: Replays) -> None:
    world.put(b"21.5", b"22", topic="fleet/7", qos=2, retain=True)
    one = world.client("one")
    assert subscribe(one, qos=0, identifier=9) == 0
    first, second = one.publishes()
    assert (first.topic, first.qos, first.retain) == ("fleet/7", 0, False)
    assert first.properties.subscription_ids == [9]
    assert first.properties.user == [
        ("stream-partition", "0"),
        ("stream-offset", "0"),
        ("stream-timestamp", "2023-11-14T22:13:20.000000Z"),
    ]
    assert first.payloads() == [b"21.5"] and second.payloads() == [b"22"]
    assert dict(second.properties.user)["stream-offset"] == "1"


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("fields", [{}, {"alias_maximum": 5}, {"packet_bytes_max": 10_000}])
@pytest.mark.parametrize("identifier", [0, 300])
def test_properties_of_the_publisher_stay(
    world: Replays, qos: int, fields: dict[str, int], identifier: int
) -> None:
    stored = Properties(
        {
            prop.CONTENT_TYPE: "text/plain",
            prop.CORRELATION_DATA: b"\0\1",
            prop.USER_PROPERTY: [("unit", "C"), ("unit", "K")],
        }
    )
    world.put(b"1", properties=encode_each(stored))
    one = world.client("one", **fields)
    assert subscribe(one, qos=qos, identifier=identifier) == min(qos, 1)
    (packet,) = one.publishes()
    assert packet.qos == min(qos, 1)
    found = packet.properties
    assert found[prop.CONTENT_TYPE] == "text/plain" and found[prop.CORRELATION_DATA] == b"\0\1"
    assert found.user[:2] == [("unit", "C"), ("unit", "K")]
    assert [name for name, _ in found.user[2:]] == [
        "stream-partition", "stream-offset", "stream-timestamp",
    ]  # fmt: skip
    assert found.subscription_ids == ([identifier] if identifier else [])


@pytest.mark.parametrize("qos", [0, 1])
def test_311_gets_topic_and_payload(world: Replays, qos: int) -> None:
    world.put(*numbers(0, 12), topic="a/b")
    one = world.client("one", V311)
    assert subscribe(one, f"{STREAM}/@earliest", qos=qos) == qos
    packets = one.publishes()
    assert [payload for packet in packets for payload in packet.payloads()] == numbers(0, 12)
    assert {packet.topic for packet in packets} == {"a/b"}


@pytest.mark.parametrize("qos", [0, 1])
@pytest.mark.parametrize(
    ("start", "first"),
    [
        (None, 0),
        ("earliest", 0),
        ("latest", 6),
        ('{"p0": 4}', 4),
        ("2023-11-14T22:13:21Z", 2),
        ("2023-11-14T22:13:21.000001Z", 4),
        ("1999-01-01", 0),
        ("2099-01-01", 6),
    ],
)
@pytest.mark.parametrize("in_topic", [False, True])
def test_starts(world: Replays, qos: int, start: str | None, first: int, in_topic: bool) -> None:
    for second in range(3):
        world.now_us = START_US + second * 1_000_000
        world.put(*numbers(2 * second, 2 * second + 2))
    one = world.client("one")
    if in_topic and start is not None:
        assert subscribe(one, f"{STREAM}/@{start}", "latest", qos) == qos
    else:
        assert subscribe(one, STREAM, start, qos) == qos
    assert payloads(one) == numbers(first, 6)
    world.put(b"6")
    assert payloads(one) == [b"6"]


def test_a_timestamp_that_was_sent_is_a_start(world: Replays) -> None:
    world.now_us += 123_457
    world.put(b"1")
    world.now_us += 1
    world.put(b"2")
    one = world.client("one")
    subscribe(one)
    stamp = dict(one.publishes()[1].properties.user)["stream-timestamp"]
    two = world.client("two")
    subscribe(two, start=stamp)
    assert payloads(two) == [b"2"]


REFUSED = [
    ("$stream", None, 0x8F, "neither"),
    ("$stream/", None, 0x8F, "expected up to 100"),
    ("$stream/+", None, 0x8F, "wildcards"),
    ("$stream/#", None, 0x8F, "wildcards"),
    ("$stream/tele/me", None, 0x8F, "neither"),
    ("$stream/nothing", None, 0x8F, "there is no stream 'nothing'"),
    (f"{STREAM}/", None, 0x8F, "neither"),
    (f"{STREAM}/+", None, 0x8F, "neither"),
    (f"{STREAM}/$error", None, 0x8F, "neither"),
    (f"{STREAM}/@", None, 0x8F, "expected earliest"),
    (f"{STREAM}/@soon", None, 0x8F, "expected earliest"),
    (STREAM, "17", 0x8F, "expected earliest"),
    (STREAM, '{"p0": 11}', 0x83, "beyond the end"),
    (STREAM, '{"p0": -1}', 0x83, "expected a number"),
    (STREAM, '{"p0": 1.5}', 0x83, "expected a number"),
    (STREAM, '{"p1": 1}', 0x83, "no partition"),
    (STREAM, "{}", 0x83, "p0 of stream"),
    (STREAM, "{", 0x83, "not valid JSON"),
    (STREAM, '{"p0": 1, "epoch": "old"}', 0x83, "epoch old"),
    ("$share/g/$stream", None, 0x8F, "neither"),
    ("$share/g/$stream/#", None, 0x8F, "wildcards"),
    (f"$share/g/{STREAM}/@soon", None, 0x8F, "expected earliest"),
    (f"$share/g/{STREAM}", '{"p0": 11}', 0x83, "beyond the end"),
    (f"$share/{'g' * 201}/{STREAM}", None, 0x8F, "200 are allowed"),
]


@pytest.mark.parametrize(("text", "start", "code", "why"), REFUSED)
def test_what_cannot_be_read_is_refused_with_the_reason(
    world: Replays, text: str, start: str | None, code: int, why: str
) -> None:
    world.put(*numbers(0, 10))
    one = world.client("one")
    suback = ask(one, text, start, 1)
    assert suback.reasons == [code]
    assert why in str(suback.properties.text(prop.REASON_STRING))
    assert not one.take() and not one.is_closed
    assert (
        one.connection.session.outbound.sources is None and not one.connection.session.subscriptions
    )
    assert not world.replay.groups()
    old = world.client("old", V311)
    assert ask(old, text, None, 1).reasons == [0x80 if start is None else 1]


def test_a_reason_string_only_for_who_wants_and_can_take_it(world: Replays) -> None:
    small = world.client("small", packet_bytes_max=30)
    assert prop.REASON_STRING not in ask(small, "$stream/x").properties
    quiet = world.peer()
    packet = connect("quiet")
    body = bytearray(packet)
    at = body.index(b"\x05\x02\x00\x00\x00")  # version, flags, keep alive, no properties
    body[at + 4 : at + 5] = b"\x02\x17\x00"
    body[1] += 2
    quiet.send(bytes(body))
    quiet.take()
    assert prop.REASON_STRING not in ask(quiet, "$stream/x").properties


def test_a_broker_without_streams(world: Replays) -> None:
    world.broker.attach_log(None)
    one = world.client("one")
    suback = ask(one, STREAM)
    assert suback.reasons == [0x8F]
    assert suback.properties.text(prop.REASON_STRING) == "this broker has no streams"


def test_what_is_published_does_not_match(world: Replays) -> None:
    one = world.client("one")
    subscribe(one, start="latest")
    one.subscribe("#")
    one.take()
    world.put(b"1")
    assert payloads(one) == [b"1"]
    assert world.broker.routes.count == 1


def test_no_local(world: Replays) -> None:
    world.put(b"mine", client_id="one")
    world.put(b"theirs", client_id="two")
    world.put(b"mine too", client_id="one")
    for qos in (0, 1):
        one = world.client("one")
        subscribe(one, qos=qos, no_local=True)
        assert payloads(one) == [b"theirs"]
        assert world.replay.subscriptions["one", STREAM].cursors[0].next_send == 3


def test_many_read_at_different_places(world: Replays) -> None:
    world.put(*numbers(0, 50))
    early, late, slow = world.client("early"), world.client("late"), world.client(
        "slow", receive_maximum=3
    )  # fmt: skip
    subscribe(early)
    subscribe(late, start='{"p0": 45}', qos=1)
    subscribe(slow, qos=1)
    assert payloads(early) == numbers(0, 50)
    assert payloads(late) == numbers(45, 50)
    assert [one.payload for one in drain(slow)] == numbers(0, 50)
    world.put(*numbers(50, 60))
    assert payloads(early) == payloads(late) == numbers(50, 60)
    assert [one.payload for one in drain(slow)] == numbers(50, 60)


def test_receive_maximum_is_kept_and_live_messages_go_first(world: Replays) -> None:
    world.put(*numbers(0, 20))
    one = world.client("one", receive_maximum=2)
    one.subscribe("live", qos=1)
    one.take()
    subscribe(one, qos=1)
    first = got(one)
    assert len(first) == 2
    other = world.client("other")
    other.send(*[publish("live", b"live%d" % n, qos=1, packet_id=n + 1) for n in range(3)])
    assert not got(one) and len(one.connection.session.outbound.window) == 2
    acknowledge(one, *first)
    then = got(one)
    assert [record.payload for record in then] == [b"live0", b"live1"]
    acknowledge(one, *then)
    then = got(one)
    assert [record.payload for record in then] == [b"live2", b"2"]
    assert one.connection.session.outbound.queue is None


def test_order_in_each_partition_round_robin_over_them(tmp_path: Path) -> None:
    world = Replays(tmp_path / "s", partitions=3, stream={"partition_by": "round-robin"})
    world.put(*numbers(0, 300))
    for qos in (0, 1):
        one = world.client(f"one{qos}")
        subscribe(one, qos=qos)
        found = drain(one)
        assert sorted(int(record.payload) for record in found) == list(range(300))
        for partition in range(3):
            offsets = [record.offset for record in found if record.partition == partition]
            assert offsets == list(range(100))
    world.close()


def test_a_slow_peer_is_sent_little(world: Replays) -> None:
    for _ in range(40):
        world.put(*[bytes(1000)] * 50)
    one = world.client("one")
    subscribe(one, start="latest")
    one.is_slow = True
    for _ in range(40):
        world.put(*[bytes(1000)] * 50)
    assert 250_000 < len(one.waiting) < 400_000
    assert world.broker.outboxes.waiting_bytes == len(one.waiting)
    assert world.replay.context.read_ahead.bytes < 1_000_000
    seen = 0
    while one.waiting:
        one.read(100_000)
        seen += len(payloads(one))
    assert seen == 2000


@pytest.mark.parametrize("qos", [0, 1])
def test_nobody_is_held_back_for_readers(tmp_path: Path, qos: int) -> None:
    world = Replays(tmp_path / "s", outbox_bytes_max=400_000, outbox_total_bytes_max=1_000_000)
    for _ in range(30):
        world.put(*[bytes(2000)] * 20)
    slow = []
    for number in range(12):
        peer = world.client(f"slow{number}")
        subscribe(peer, start="latest", qos=qos)
        peer.is_slow = True
        slow.append(peer)
    for _ in range(30):
        world.put(*[bytes(2000)] * 20)
    assert world.broker.outboxes.waiting_bytes < 12 * 1_100_000
    if qos == 0:
        assert world.broker.outboxes.waiting_bytes < 1_500_000
    for peer in slow:
        seen = 0
        while peer.waiting:
            peer.read()
            seen += len(drain(peer))
        assert seen == 600
    world.close()


def test_what_is_too_large_for_the_peer_is_skipped_and_counted(world: Replays) -> None:
    world.put(b"1", bytes(5000), b"2", bytes(5000), b"3")
    for qos in (0, 1):
        one = world.client(f"one{qos}", packet_bytes_max=500, receive_maximum=1)
        subscribe(one, qos=qos)
        assert [record.payload for record in drain(one)] == [b"1", b"2", b"3"]
        assert world.broker.backlog.dropped["packet_too_large"] == 2 * qos + 2
        reader = world.replay.subscriptions[f"one{qos}", STREAM]
        assert reader.cursors[0].position == 5 and not reader.in_window
        assert not reader.cursors[0].in_flight.bytes


def test_aliases_are_used(world: Replays) -> None:
    world.put(b"1", b"2", topic="a/long/topic")
    one = world.client("one", alias_maximum=3)
    subscribe(one, qos=1)
    first, second = one.publishes()
    assert first.topic == "a/long/topic" and first.properties.number(prop.TOPIC_ALIAS) == 1
    assert second.topic == "" and second.properties.number(prop.TOPIC_ALIAS) == 1


def test_large_batches_come_in_pages(tmp_path: Path) -> None:
    world = Replays(tmp_path / "s")
    world.put(*numbers(0, 16_000))
    for qos, fields in ((0, {}), (1, {}), (0, {"alias_maximum": 1})):
        one = world.client("one", **fields)
        subscribe(one, qos=qos)
        assert [record.payload for record in drain(one)] == numbers(0, 16_000)
    assert world.replay.context.read_ahead.bytes == 0
    world.close()


def test_unsubscribe_ends_it(world: Replays) -> None:
    world.put(*numbers(0, 5))
    one = world.client("one", expiry=100, receive_maximum=2)
    subscribe(one, qos=1)
    assert world.position(f"client:one {STREAM}") == {0: 0}
    under_way = got(one)
    one.send(unsubscribe(V5, STREAM))
    world.commit()
    one.take()
    acknowledge(one, *under_way)
    assert not got(one) and one.connection.session.outbound.sources is None
    assert world.position(f"client:one {STREAM}") == {}
    assert not world.replay.subscriptions and not world.replay.by_stream


def test_subscribe_again(world: Replays) -> None:
    world.put(*numbers(0, 4))
    one = world.client("one")
    subscribe(one, qos=1)
    assert [record.payload for record in drain(one)] == numbers(0, 4)
    subscribe(one, qos=1)  # it says no start: it goes on
    assert not got(one)
    subscribe(one, start="earliest", qos=1, retain_handling=1)
    assert not got(one)
    subscribe(one, start="earliest", qos=0)
    assert payloads(one) == numbers(0, 4)
    subscribe(one, start='{"p0": 3}', qos=1)
    assert payloads(one) == [b"3"]
    assert len(one.connection.session.outbound.sources or ()) == 1


def test_a_lost_connection_goes_on_where_it_was(world: Replays) -> None:
    world.put(*numbers(0, 10))
    one = world.client("one", expiry=100, receive_maximum=4)
    subscribe(one, qos=1)
    first = got(one)
    acknowledge(one, *first[:2])
    assert payloads(one) == [b"4", b"5"]
    one.drop()
    world.put(*numbers(10, 12))
    one = world.client("one", clean=False, expiry=100, receive_maximum=4)
    world.commit()
    again = got(one)
    assert [record.payload for record in again] == numbers(2, 6)
    assert all(record.dup for record in again)
    acknowledge(one, *again)
    assert [record.payload for record in drain(one)] == numbers(6, 12)


def test_qos0_goes_on_behind_what_was_sent(world: Replays) -> None:
    world.put(*numbers(0, 3))
    one = world.client("one", expiry=100)
    subscribe(one)
    assert payloads(one) == numbers(0, 3)
    one.drop()
    world.put(*numbers(3, 5))
    one = world.client("one", clean=False, expiry=100)
    assert payloads(one) == numbers(3, 5)


def test_another_version_reads_anew_what_was_not_acknowledged(world: Replays) -> None:
    world.put(*numbers(0, 5))
    one = world.client("one", V311, clean=False)
    subscribe(one, f"{STREAM}/@earliest", qos=1)
    acknowledge(one, *got(one)[:2])
    one.drop()
    one = world.client("one", clean=False, expiry=100)
    found = drain(one)
    assert [(record.offset, record.dup) for record in found] == [(n, False) for n in (2, 3, 4)]


@pytest.mark.parametrize("qos", [0, 1])
def test_a_restart_goes_on_where_it_was(world: Replays, qos: int) -> None:
    world.put(*numbers(0, 10))
    one = world.client("one", expiry=100, receive_maximum=4)
    subscribe(one, qos=qos)
    found = got(one)
    if qos:
        acknowledge(one, *found[1:])
        assert payloads(one) == numbers(4, 7)
    world.wait(0.2)
    world.commit()
    world.restart()
    one = world.client("one", clean=False, expiry=100, receive_maximum=100)
    world.put(b"10")
    assert [record.payload for record in drain(one)] == numbers(0 if qos else 10, 11)


def test_positions_are_recorded_seldom_and_at_the_end(world: Replays) -> None:
    world.put(*numbers(0, 100))
    one = world.client("one", expiry=100, receive_maximum=1)
    subscribe(one, qos=1)
    before = world.journal.records
    for _ in range(50):
        acknowledge(one, *got(one))
    world.commit()
    assert world.journal.records - before <= 2
    world.wait(0.1)
    assert world.position(f"client:one {STREAM}") == {0: 50}
    acknowledge(one, *got(one))
    one.send(disconnect())
    assert world.position(f"client:one {STREAM}") == {0: 51}


def test_the_start_that_was_said_outlives_a_crash(world: Replays) -> None:
    world.put(*numbers(0, 5))
    one = world.client("one", expiry=100)
    one.is_slow = True
    one.subscribe(STREAM)
    for start in ("latest", '{"p0": 3}'):
        world.client("two", expiry=100)
        two = world.client("two", expiry=100)
        subscribe(two, start=start, qos=1)
        world.restart()
        world.put(b"5")
        two = world.client("two", clean=False, expiry=100)
        assert drain(two)[0].offset == (5 if start == "latest" else 3)


def test_the_end_of_a_session_ends_its_readers(world: Replays) -> None:
    world.put(*numbers(0, 5))
    for fields in ({}, {"expiry": 5}):
        one = world.client("one", receive_maximum=2, **fields)
        subscribe(one, qos=1)
        one.send(disconnect())
        world.wait(10)
        assert not world.replay.subscriptions and not world.replay.context.positions
        assert world.position(f"client:one {STREAM}") == {}
        assert not world.replay.context.read_ahead.bytes


def test_retention_overtakes_a_reader(tmp_path: Path) -> None:
    world = Replays(tmp_path / "s", stream={"segment_bytes": 4096})
    for number in range(40):
        world.put(b"%d" % number + bytes(1000))
    one = world.client("one", receive_maximum=1)
    subscribe(one, qos=1)
    world.replay.subscriptions["one", STREAM].drop_pages()
    epoch = world.log.streams[NAME].epoch
    assert world.log.trim(NAME, Offsets(epoch, (30,))) > 0
    start = world.log.streams[NAME].partitions[0].catalog.start
    assert start > 10
    first = got(one)
    acknowledge(one, *first)
    packets = one.publishes()
    said = json.loads(packets[0].payloads()[0])
    assert packets[0].topic == ERROR
    assert said["error"] == "OffsetGone" and said["earliest"] == start and said["offset"] == 1
    assert dict(packets[1].properties.user)["stream-offset"] == str(start)
    assert world.replay.context.counters.gaps == start - 1
    assert any("no longer kept" in line for line in world.lines)
    world.close()


def test_a_stream_that_is_deleted(world: Replays) -> None:
    world.put(*numbers(0, 5))
    here = world.client("here", receive_maximum=1)
    away = world.client("away", expiry=100)
    subscribe(here, qos=1)
    subscribe(away)
    away.drop()
    world.log.delete(NAME)
    world.replay.on_deleted(NAME, world.now)
    world.settle()
    assert [packet.topic for packet in here.publishes()] == ["t/1", ERROR]
    assert not world.replay.subscriptions
    away = world.client("away", clean=False, expiry=100)
    (packet,) = away.publishes()
    assert packet.topic == ERROR and b"was deleted" in packet.payloads()[0]
    here.send(unsubscribe(V5, STREAM))
    assert not here.is_closed and here.connection.session.outbound.sources is None


def test_damage_stops_a_reader_or_is_passed_over(tmp_path: Path) -> None:
    for skips in (False, True):
        world = Replays(tmp_path / f"s{skips}", skips_damage=skips)
        world.put(b"1")
        world.put(b"damaged")
        world.put(b"3")
        (path,) = (tmp_path / f"s{skips}" / NAME / "p0").glob("*.seg")
        data = path.read_bytes()
        path.write_bytes(data.replace(b"damaged", b"daXaged"))
        one = world.client("one")
        subscribe(one)
        packets = one.publishes()
        topics = sorted(packet.topic for packet in packets)
        assert topics == ([ERROR, "t/1", "t/1"] if skips else [ERROR, "t/1"])
        world.put(b"4")
        assert payloads(one) == ([b"4"] if skips else [])
        assert world.replay.context.counters.gaps == int(skips)
        world.close()


def an_hour(world: Replays) -> None:
    """A record a minute."""
    for number in range(60):
        world.now_us = int(world.now * 1e6)
        world.put(b"%d" % number)
        world.wait(60)


@pytest.mark.parametrize("qos", [0, 1])
@pytest.mark.parametrize("group", ["", "$share/g/"])
def test_nothing_older_than_the_retention_is_replayed(tmp_path: Path, qos: int, group: str) -> None:
    world = Replays(tmp_path / "s", stream={"retain_s": 600})
    an_hour(world)
    one = world.client("one")
    subscribe(one, text=f"{group}{STREAM}", qos=qos)
    assert [record.offset for record in got(one)] == list(range(50, 60))
    two = world.client("two")
    subscribe(two, text=f"{group.replace('g', 'h')}{STREAM}/@1970-01-01", qos=qos)
    assert [record.offset for record in got(two)] == list(range(50, 60))


def test_offsets_that_are_too_old_are_told_and_left_behind(tmp_path: Path) -> None:
    world = Replays(tmp_path / "s", stream={"retain_s": 600})
    an_hour(world)
    one = world.client("one")
    subscribe(one, text=f'{STREAM}/@{{"p0": 7}}', qos=1)
    packets = one.publishes()
    said = json.loads(packets[0].payloads()[0])
    assert (packets[0].topic, said["error"]) == (ERROR, "OffsetGone")
    assert (said["offset"], said["earliest"]) == (7, 50)
    assert [dict(one.properties.user)["stream-offset"] for one in packets[1:]] == [
        str(number) for number in range(50, 60)
    ]
    assert world.replay.context.counters.gaps == 43


def test_a_retention_that_changes_counts_for_readers_that_are_there(tmp_path: Path) -> None:
    world = Replays(tmp_path / "s")
    an_hour(world)
    one = world.client("one", receive_maximum=1)
    subscribe(one, qos=1)
    world.log.change(NAME, retain_s=600)
    world.replay.subscriptions["one", STREAM].drop_pages()
    acknowledge(one, *got(one))
    packets = one.publishes()
    assert json.loads(packets[0].payloads()[0])["earliest"] == 50
    assert dict(packets[1].properties.user)["stream-offset"] == "50"
