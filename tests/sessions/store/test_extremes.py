"""Every field of every record and table at its extremes, written, killed, folded and read back.

What the extremes are comes from the ranges of the fields (`sessions.journal.value_ranges`), from
MQTT's own table of properties and from the schema: what is new is examined, or fails here for want
of them.
"""

from __future__ import annotations

import dataclasses
import struct
import zlib
from collections.abc import Iterator
from typing import Any, Final

import pytest
from sqlalchemy import BigInteger, Integer, SmallInteger, Table

from mqtt_broker.codec import properties as prop
from mqtt_broker.codec.constants import PUBLISH, WILL
from mqtt_broker.codec.packets import Ack, Publish, Will
from mqtt_broker.codec.properties import TABLE, Kind, Properties, encode_properties
from sessions.journal import records, value_ranges
from sessions.journal.records import (
    Completed,
    Cursor,
    CursorsGone,
    Delivered,
    Done,
    Ended,
    Freed,
    Left,
    Received,
    Record,
    Released,
    Retained,
    Sent,
    Stored,
    StreamGone,
    Unsubscribed,
    seal,
    unseal,
)
from sessions.journal.rows import SessionRow, ShareRow, StreamRow, SubscriptionRow, WillRow
from sessions.journal.value_ranges import FIELDS, KINDS, NUMBER, U32_MAX
from sessions.store import schema
from tests.core.peers import V5, publish, subscribe
from tests.core.stored import StoredWorld
from tests.sessions.journal.test_records import encode
from tests.sessions.store.extremes import LISTS, every, fields_of, kinds, numbers, texts
from tests.sessions.store.lives import Life, kept
from tests.sessions.store.memory_store import Tables
from tests.sessions.store.places import Place, Watch, check_same

KEEPER: Final = 900_001  # a session that everything is delivered to


class Cases:
    """Groups of records, each with one value that is extreme."""

    def __init__(self) -> None:
        self.sid = 1_000_000
        self.mid = 2_000_000
        self.n = 0
        self.stored: set[int] = set()
        self.shapes: dict[type, Any] = {
            SessionRow: lambda: [self.session()],
            SubscriptionRow: lambda: [
                SubscriptionRow(self.new_sid(), "a/#", 1, False, False, 0, 0)
            ],
            ShareRow: lambda: [ShareRow(self.new_sid(), "$share/g/a")],
            StreamRow: lambda: [StreamRow(f"s{self.new_sid()}", "e", "f", "{}", 1.0)],
            WillRow: lambda: [WillRow("t", b"p", 1, False, b"")],
            Stored: lambda: [self.message()],
            Delivered: lambda: [self.delivery(self.message())],
            Ended: lambda: [Ended(self.new_sid())],
            Unsubscribed: lambda: [Unsubscribed(KEEPER, "x")],
            Sent: lambda: [Sent(KEEPER, [])],
            Done: lambda: [Done(KEEPER, [])],
            Released: lambda: [Released(KEEPER, [])],
            Completed: lambda: [Completed(KEEPER, ())],
            Received: lambda: [Received(KEEPER, (1,))],
            Freed: lambda: [Freed(KEEPER, ())],
            Retained: lambda: [Retained(0, 0)],
            StreamGone: lambda: [StreamGone("none")],
            Cursor: lambda: [Cursor("owner", "stream", "epoch", [(0, 1)])],
            CursorsGone: lambda: [CursorsGone("nobody", "")],
            Left: lambda: [Left(KEEPER, 1, 0)],
        }

    def new_sid(self) -> int:
        self.sid += 1
        return self.sid

    def session(self) -> SessionRow:
        sid = self.new_sid()
        return SessionRow(sid, f"client-{sid}", None, 5, 1.0, 3600, False, 10.0, 0.0, None)

    def message(self, mid: int = 0, count: int = 1) -> Stored:
        if not mid:
            self.mid += 100_000
            mid = self.mid
        return Stored(mid, "a/b", 1, False, b"", "publisher", 1.0, -1, [b"x"] * count)

    def delivery(self, message: Stored, **more: Any) -> Delivered:
        count = len(message.payloads)
        self.n += 1
        self.n += count
        values: dict[str, Any] = {
            "sid": KEEPER, "n": self.n - count, "mid": message.mid, "count": count, "size": 9,
            "qos": 1, "retain": False, "subscription_ids": (), "share": "", "packet_ids": (),
        }  # fmt: skip
        return Delivered(**(values | more))

    def groups(self) -> Iterator[tuple[str, list[Record]]]:
        known: set[int] = set()
        for what, group in self.cases():
            owners: dict[int, Record] = {}
            for record in group:
                sid = getattr(record, "sid", 0)
                if isinstance(record, Ended):
                    known.discard(sid)
                elif isinstance(record, SessionRow):
                    known.add(sid)
                elif sid and sid not in known and not isinstance(record, ShareRow):
                    known.add(sid)
                    owners[sid] = dataclasses.replace(self.session(), sid=sid)
            yield what, [*owners.values(), *group]

    def cases(self) -> Iterator[tuple[str, list[Record]]]:
        for kind, name, value in every():
            yield f"{kind.__name__}.{name} = {str(value)[:40]}", self.group(kind, name, value)
        for kind in kinds():
            for name, field in fields_of(kind).items():
                if field is LISTS:
                    yield from self.lists(kind, name)

    def group(self, kind: type, name: str, value: Any) -> list[Record]:
        (row,) = self.shapes[kind]()
        if kind is Stored:
            row = dataclasses.replace(row, **{name: [value] if name == "payloads" else value})
            self.stored.add(row.mid)
            return [row, self.delivery(row)]
        if kind is Delivered:
            return self.delivered(name, value)
        if kind is Retained:
            message = [] if value in self.stored else [self.message(value)]
            self.stored.add(value)
            kept = [self.delivery(self.message(value))] if message else []
            if name == "mid":
                return [*message, *kept, Retained(value, 0)]
            return [*message, *kept, Retained(0, value)]
        row = dataclasses.replace(row, **{name: value})
        if kind is WillRow:
            return [dataclasses.replace(self.session(), will=row)]
        if kind is Ended and value == KEEPER:
            return []
        return [row]

    def delivered(self, name: str, value: Any) -> list[Record]:
        more = {name: value}
        count = value if name == "count" else len(value) or 1 if name == "packet_ids" else 1
        if name == "mid" and value in self.stored:
            return [self.delivery(self.message(value))]
        message = self.message(value if name == "mid" else 0, count)
        self.stored.add(message.mid)
        if name == "n":
            more["sid"] = self.new_sid()
        return [message, self.delivery(message, **more)]

    def lists(self, kind: type, name: str) -> Iterator[tuple[str, list[Record]]]:
        """Deliveries that go on: under packet ids, released, done; and places in streams."""
        ids = numbers(1, 65_535)
        message = self.message(count=len(ids))
        delivery = self.delivery(message)
        places = list(enumerate(ids))
        found: list[Record] = [message, delivery]
        if kind is Sent:
            found.append(Sent(KEEPER, [(delivery.n + at, i) for at, i in places]))
        elif kind is Done:
            found.append(Done(KEEPER, [(delivery.n, delivery.mid, len(ids) - 1)]))
        elif kind is Released:
            released = [(delivery.n + at, delivery.mid + at, i) for at, i in places]
            found.append(Released(KEEPER, released))
        else:
            assert kind is Cursor
            offsets = [(at, offset) for at, offset in enumerate(numbers(0, (1 << 63) - 1))]
            found = [Cursor("o", "s", "e", [*offsets, (65_535, 0)]), Cursor("none", "s", "e", [])]
        yield f"{kind.__name__}.{name}", found


def test_a_record_says_the_same_when_it_is_read() -> None:
    for what, group in Cases().groups():
        assert list(unseal(seal([encode(record) for record in group]))) == group, what


def test_all_of_it_comes_through_a_crash(place: Place) -> None:
    tables = Tables()
    groups = list(Cases().groups())
    half = len(groups) // 2
    number = 0
    for some, is_folded in ((groups[:half], True), (groups[half:], False)):
        watch = Watch(place.open())
        for _, group in some:
            number += 1
            blob = seal([encode(record) for record in group])
            watch.submit(blob, float(number))
            tables.apply_group(number, blob, float(number))
        if is_folded:
            watch.until_folded()
        else:
            watch.until_committed()
        assert not any(watch.states), watch.states
        watch.store.abandon()
    store = place.open()
    assert not store.healed
    check_same(store, tables)


def test_what_is_extreme_is_sound() -> None:
    """Nothing that may be is put right when it is read."""
    for kind, name, value in every():
        if kind in FIELDS:
            row = Cases().shapes[kind]()[0] if kind in Cases().shapes else None
            if row is not None:
                assert value_ranges.repair_row(dataclasses.replace(row, **{name: value})) == []


def test_every_kind_of_row_has_ranges_and_a_name() -> None:
    assert FIELDS.keys() == KINDS.keys()
    for kind in FIELDS:
        fields_of(kind)
    assert all(kind in Cases().shapes for kind in kinds())


WIDTHS: Final = {SmallInteger: 15, Integer: 31, BigInteger: 63}


def columns() -> Iterator[tuple[Table, Any]]:
    for table in (*schema.tables.tables.values(), *schema.journal_tables.tables.values()):
        for column in table.columns:
            yield table, column


def test_a_column_is_as_wide_as_what_stands_in_it() -> None:
    """Of whole numbers; those that no row names are counted up, or are constants."""
    others = {
        "refs": 31, "place": 62, "id": 1, "folded": 62, "last_mid": 62, "last_sid": 62,
        "next_place": 62, "number": 62, "removed_to": 62,
    }  # fmt: skip
    ranges: dict[str, float] = {}
    for kind, fields in FIELDS.items():
        for name, field in fields.items():
            if field.kind == NUMBER:
                column = f"will_{name}" if kind is WillRow else name
                column = "next_offset" if column == "offset" else column
                ranges[column] = max(ranges.get(column, 0), field.high)
    for table, column in columns():
        bits = next((bits for kind, bits in WIDTHS.items() if isinstance(column.type, kind)), 0)
        if isinstance(column.type, BigInteger):
            bits = 63
        if bits:
            high = ranges[column.name] if column.name in ranges else (1 << others[column.name]) - 1
            assert high < 1 << bits, f"{table.name}.{column.name}"


# What a client may say, through the whole of the core and each store.


def values_of(key: int) -> list[Any]:
    """Of a property: by the way it is written, and its range."""
    row = TABLE[key]
    high = {Kind.BYTE: 0xFF, Kind.TWO: 0xFFFF, Kind.FOUR: 0xFFFF_FFFF, Kind.VARINT: 0xFFF_FFFF}
    if row.kind in high:
        return list(numbers(row.low, min(row.high, high[row.kind])))
    if row.kind is Kind.BINARY:
        return [b"", b"\0", b"\xff" * 65_535]
    words = [text for text in texts(0, 65_535) if "\ufeff" not in text or key != 0x08]
    if row.kind is Kind.PAIR:
        return [[(one, two)] for one in ("", words[3], words[-1]) for two in (words[3], "")]
    return words


def said(packet: int) -> Iterator[tuple[int, Any]]:
    for key, row in TABLE.items():
        if packet in row.packets and key not in (prop.TOPIC_ALIAS, prop.SUBSCRIPTION_IDENTIFIER):
            for value in values_of(key):
                if key != prop.RESPONSE_TOPIC or (value and "+" not in value):
                    yield key, value


LIMITS: Final[dict[str, Any]] = {"queue_bytes_max": 1 << 30, "receive_maximum": 65_535}
World = StoredWorld | Life


class Worlds:
    """A broker on a store, and the same after a crash."""

    def __init__(self, place: Place | None) -> None:
        self._place = place
        self._world: World | None = None

    def __call__(self) -> World:
        if self._place is None:
            self._world = StoredWorld(**LIMITS)
        else:
            self._world = Life(self._place.open(), **LIMITS)
        return self._world

    def crash(self, *, is_folded: bool) -> World:
        world = self._world
        assert world is not None
        if isinstance(world, StoredWorld):
            world.restart()
            return world
        world.end(is_folded=is_folded)
        assert self._place is not None
        self._world = Life(self._place.open(), world.now, **LIMITS)
        return self._world


@pytest.fixture(params=["memory", "sqlite", "postgresql"])
def worlds(request: pytest.FixtureRequest) -> Worlds:
    if request.param == "memory":
        return Worlds(None)
    name = "files" if request.param == "sqlite" else "database"
    return Worlds(request.getfixturevalue(name))


@pytest.mark.parametrize("is_folded", [False, True])
def test_whatever_a_publish_says_is_kept(worlds: Worlds, is_folded: bool) -> None:
    world = worlds()
    kept(world, "away", "p/#").drop()
    publisher = kept(world, "publisher", packet_bytes_max=2_000_000)
    wanted: dict[str, tuple[dict[int, Any], bytes]] = {}
    for number, (key, value) in enumerate(said(PUBLISH), 1):
        wanted[f"p/{number}"] = {key: value}, b"%d" % number
    wanted["p/none"] = {}, b""
    wanted["p/large"] = {}, bytes(1_900_000)
    wanted["p/" + "t" * 65_533] = {}, b"long"
    wanted["p/" + "\N{GRINNING FACE}" * 16_000] = {}, b"supplementary"
    for packet_id, (topic, (found, payload)) in enumerate(wanted.items(), 65_535 - len(wanted)):
        publisher.send(
            publish(topic, payload, qos=1 + packet_id % 2, packet_id=packet_id + 1, retain=True,
                    properties=found)
        )  # fmt: skip
    world.commit()
    assert [p.reason for p in publisher.take() if isinstance(p, Ack)] == [0] * len(wanted)
    world = worlds.crash(is_folded=is_folded)
    assert not world.broker.runtime.repaired
    for name, retained in (("away", False), ("new", True)):
        got: dict[str, Publish] = {}
        peer = world.client(name, clean=False, expiry=U32_MAX, packet_bytes_max=5_000_000)
        if retained:
            peer.send(subscribe(V5, "p/#", qos=2))
        for _ in range(9):
            world.page()
            world.commit()
            for packet in peer.publishes():
                got[packet.topic] = packet
        expected = {t for t, (_, payload) in wanted.items() if payload or not retained}
        # What has no time left is not there for anybody. [MQTT-3.3.2-5]
        expired = {t for t, (p, _) in wanted.items() if p.get(prop.MESSAGE_EXPIRY_INTERVAL) == 0}
        assert got.keys() == expected - expired
        for topic, packet in got.items():
            found, payload = wanted[topic]
            assert (dict(packet.properties), packet.payload) == (found, payload), topic


def test_whatever_a_will_says_is_kept(worlds: Worlds) -> None:
    world = worlds()
    kept(world, "away", "w/#").drop()
    wanted: dict[str, dict[int, Any]] = {}
    for number, (key, value) in enumerate(said(WILL), 1):
        topic = f"w/{number}"
        found = Properties({key: value})
        if key != prop.WILL_DELAY_INTERVAL:
            wanted[topic] = {key: value}
            found[prop.WILL_DELAY_INTERVAL] = 1_000
        will = Will(topic, b"x" * 65_535, 2, True, found, encode_properties(found))
        peer = world.client(f"c{number}", clean=False, expiry=U32_MAX, will=will)
        world.commit()
        peer.drop()
    world.commit()
    world = worlds.crash(is_folded=False)
    assert not world.broker.runtime.repaired
    world.wait(1_000)
    world.commit()
    peer = world.client("away", clean=False, expiry=U32_MAX, packet_bytes_max=5_000_000)
    got: dict[str, Publish] = {}
    for _ in range(9):
        world.page()
        world.commit()
        for packet in peer.publishes():
            got[packet.topic] = packet
    for topic, said_of in wanted.items():
        if said_of.get(prop.MESSAGE_EXPIRY_INTERVAL) != 0:
            assert dict(got[topic].properties) == said_of, topic


@pytest.mark.parametrize("expiry", numbers(0, U32_MAX))
def test_an_expiry_is_told_again_after_the_clock_was_set_back(expiry: int) -> None:
    world = StoredWorld()
    kept(world, "away", "a").drop()
    world.client("p").send(publish("a", b"x", qos=1, properties={2: expiry}))
    world.commit()
    world.now -= 500
    world.restart()
    peer = world.client("away", clean=False, expiry=U32_MAX)
    world.page()
    (packet,) = peer.publishes()
    assert packet.properties[2] == expiry


# Formats of before.


def test_format_1_is_read() -> None:
    """As a program before it wrote it, for what it could write."""
    stored = struct.pack("<BQIIdiB", records.STORED, 7, 1, 1, 2.5, -1, 1 << 1)
    stored += b"".join(struct.pack("<I", len(part)) + part for part in (b"a", b"", b"p")) + b"x"
    expiring = stored[:25] + struct.pack("<i", 2**31 - 1) + stored[29:]
    delivered = struct.pack("<BQQQIIBBBH", records.DELIVERED, 1, 2, 7, 1, 9, 2, 0, 0, 2)
    delivered += struct.pack("<2I", 5, 6)
    body = stored + expiring + delivered
    blob = struct.pack("<BI", 1, zlib.crc32(body)) + body
    found = list(unseal(blob))
    assert found == [
        Stored(7, "a", 1, False, b"", "p", 2.5, -1, [b"x"]),
        Stored(7, "a", 1, False, b"", "p", 2.5, 2**31 - 1, [b"x"]),
        Delivered(1, 2, 7, 1, 9, 1, False, (5, 6), "", ()),
    ]


@pytest.mark.parametrize("form", [0, 4, 255])
def test_a_newer_format_is_refused_by_name(form: int) -> None:
    blob = bytes((form,)) + seal([])[1:]
    with pytest.raises(records.Corrupt, match=f"format {form}; this version reads up to 3"):
        unseal(blob)
