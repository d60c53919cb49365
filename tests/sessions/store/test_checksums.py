"""What is altered on disk is not delivered: it is left out, counted, and said in one line."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import Connection, text

from mqtt_broker.codec.constants import PUBACK, PUBREC
from mqtt_broker.codec.encode import encode_ack
from mqtt_broker.codec.packets import Publish
from sessions.store import table_updates
from sessions.store.checksums import SIZE, checksum, checksums, is_altered
from sessions.store.store import Store
from tests.core.peers import V5, V311, publish, subscribe
from tests.sessions.store.lives import Life, kept, live_through_everything
from tests.sessions.store.places import Place

LEFT_OUT = "left out: altered on disk"
TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=20)


@contextmanager
def tables_of(store: Store) -> Iterator[Connection]:
    with store.database.tables.connect() as connection, connection.begin():
        yield connection


def rows(connection: Connection, statement: str) -> list[Any]:
    return list(connection.execute(text(statement)).all())


def lived(place: Place) -> dict[bytes, set[str]]:
    """Live, and return what was sent: payloads, each with its topics."""
    life = Life(place.open())
    live_through_everything(life)
    life.end()
    with tables_of(life.store) as connection:
        assert not rows(connection, "SELECT mid FROM messages WHERE crc IS NULL")
        assert rows(connection, "SELECT sid FROM sessions WHERE will_crc IS NOT NULL")
        assert not rows(
            connection,
            "SELECT sid FROM sessions WHERE (will_crc IS NULL) <> (will_topic IS NULL)",
        )
    sent: dict[bytes, set[str]] = {}
    for number in range(1, 21):
        sent.setdefault(b"message %d" % number, set()).add(f"a/{number % 3}")
    sent[b"gone"] = {"will/topic"}
    return sent


def delivered(life: Life) -> list[tuple[str, bytes]]:
    """All that clients get that come back, and one that reads what is retained."""
    found: list[tuple[str, bytes]] = []
    for name, version in (("away", V5), ("old", V311), ("here", V5), ("member", V5), ("new", V5)):
        peer = kept(life, name, "will/#", "a/#" if name == "new" else "x", version=version)
        for _ in range(10):
            life.page()
            life.commit()
            for packet in peer.take():
                if isinstance(packet, Publish):
                    found += [(packet.topic, payload) for payload in packet.payloads()]
                    kind = PUBACK if packet.qos == 1 else PUBREC
                    if packet.qos:
                        peer.send(*[encode_ack(kind, i) for i in packet.packet_ids()])
    return found


def flipped(value: bytes, chance: random.Random) -> bytes:
    """The same with one bit changed."""
    at = chance.randrange(len(value))
    return value[:at] + bytes((value[at] ^ 1 << chance.randrange(8),)) + value[at + 1 :]


@pytest.fixture(params=["small", "large"])
def size(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Small tables are examined as a whole at the start, large ones where they are read."""
    if request.param == "large":
        monkeypatch.setattr("sessions.store.store.CHECKED_BYTES_MAX", 0)
    return str(request.param)


# A database of its own takes a second: all of them are slow tests but one for each size.
FAST: Final = ("payload", 0.3)
ALTERED: Final = [
    pytest.param(
        where, size, column, share,
        marks=[pytest.mark.slow] if where == "postgresql" and (column, share) != FAST else [],
    )
    for where in ("sqlite", "postgresql")
    for size in ("small", "large")
    for column in ("payload", "section", "crc")
    for share in (0.3, 1.0)
]  # fmt: skip


@pytest.mark.parametrize(("place", "size", "column", "share"), ALTERED, indirect=["place", "size"])
def test_no_message_that_was_altered_is_delivered(
    place: Place, size: str, column: str, share: float
) -> None:
    sent = lived(place)
    chance = random.Random(7)
    altered: set[bytes] = set()
    store = place.opened[-1]
    with tables_of(store) as connection:
        for mid, payload, value in rows(connection, f"SELECT mid, payload, {column} FROM messages"):
            if chance.random() < share and value:
                altered.add(payload)
                connection.execute(
                    text(f"UPDATE messages SET {column} = :value WHERE mid = :mid"),
                    {"value": flipped(value, chance), "mid": mid},
                )
    assert altered
    life = Life(place.open(), now=2_100.0)
    found = delivered(life)
    assert {payload for _, payload in found} <= sent.keys() - altered
    assert all(topic in sent[payload] for topic, payload in found)
    whole = [payload for payload in sent.keys() - altered if payload != b"gone"]
    assert {payload for _, payload in found} >= set(whole) or share == 1.0
    said = [line for line in life.lines if line.startswith("store: ")]
    assert any(LEFT_OUT in line for line in said)
    assert re.search(r"\(message \d+ to '", next(line for line in said if LEFT_OUT in line))
    if share == 1.0:
        assert any(line.endswith(" and others)") for line in said)
    assert sum(life.broker.runtime.repaired.values()) > 0
    if size == "small":
        assert len(said) == 1, said
        life.end()
        again = Life(place.open(), now=2_200.0)
        assert not [line for line in again.lines if "store: " in line]
        life = again
    life.end()


@pytest.mark.parametrize("column", ["will_payload", "will_section", "will_crc"])
def test_no_will_that_was_altered_is_sent(place: Place, size: str, column: str) -> None:
    lived(place)
    chance = random.Random(8)
    with tables_of(place.opened[-1]) as connection:
        [(sid, value)] = rows(
            connection, f"SELECT sid, {column} FROM sessions WHERE will_topic = 'will/topic'"
        )
        connection.execute(
            text(f"UPDATE sessions SET {column} = :value WHERE sid = :sid"),
            {"value": flipped(value, chance), "sid": sid},
        )
    life = Life(place.open(), now=2_000.0)
    watcher = life.client("watcher")
    watcher.send(subscribe(V5, "will/#"))
    watcher.take()
    life.wait(10_000)
    assert not watcher.publishes()
    [line] = [line for line in life.lines if line.startswith("store: ")]
    assert f"1 will {LEFT_OUT}" in line
    assert "(will of 'away')" in line
    assert any(session.client_id == "away" for session in life.broker.sessions)
    life.end()


def test_rows_of_before_are_delivered(place: Place, size: str) -> None:
    """They have no checksum."""
    sent = lived(place)
    with tables_of(place.opened[-1]) as connection:
        connection.execute(text("UPDATE messages SET crc = NULL"))
        connection.execute(text("UPDATE sessions SET will_crc = NULL"))
    life = Life(place.open(), now=2_100.0)
    assert {payload for _, payload in delivered(life)} == sent.keys() - {b"gone"}
    assert not [line for line in life.lines if line.startswith("store: ")]
    life.end()


def test_what_is_altered_while_the_broker_runs(place: Place) -> None:
    """Its queue is read page by page, long after the start."""
    life = Life(place.open(), queue_memory_bytes_max=1 << 20)
    kept(life, "away", "a/#").drop()
    publisher = life.client("publisher")
    for number in range(1, 50):
        publisher.send(publish("a/b", b"%05d" % number * 10, qos=1, packet_id=number))
    life.end()
    life = Life(place.open(), now=2_100.0)
    with tables_of(life.store) as connection:
        mids = [mid for (mid,) in rows(connection, "SELECT mid FROM messages ORDER BY mid")]
        assert len(mids) == 49
        connection.execute(
            text("UPDATE messages SET payload = :value WHERE mid = :mid"),
            {"value": b"00003" * 9 + b"00004", "mid": mids[2]},
        )
    peer = kept(life, "away", "a/#")
    found: list[bytes] = []
    for _ in range(10):
        life.page()
        life.commit()
        for packet in peer.publishes():
            found += packet.payloads()
            peer.send(*[encode_ack(PUBACK, i) for i in packet.packet_ids()])
    assert found == [b"%05d" % number * 10 for number in range(1, 50) if number != 3]
    assert life.broker.runtime.repaired == {
        "message left out: altered on disk, it does not match its checksum": 1
    }
    [line] = [line for line in life.lines if "repaired or left out 1 queued" in line]
    assert line.endswith(f"(message {mids[2]} to 'a/b')")
    life.end()


def test_runs_and_single_rows_have_the_same(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Equal messages are one statement in which the database makes the rows."""
    found = []
    for run_min in (2, 10**9):
        monkeypatch.setattr(table_updates.TableUpdate, "apply", _with(run_min))
        life = Life(place.open(), now=2_000.0)
        name = f"away{run_min}"
        kept(life, name, f"{name}/#").drop()
        publisher = life.client("publisher")
        burst = [
            publish(f"{name}/x", b"%06d" % n, qos=1, packet_id=n, version=V5) for n in range(1, 20)
        ]
        publisher.send(b"".join(burst))
        life.end()
        with tables_of(life.store) as connection:
            statement = (
                f"SELECT topic, section, payload, crc FROM messages WHERE topic = '{name}/x'"
            )
            stored = rows(connection, f"{statement} ORDER BY mid")
        assert len(stored) == 19
        for topic, section, payload, crc in stored:
            assert bytes(crc) == checksum(topic, section, payload)
        found.append([bytes(row[2]) for row in stored])
    assert found[0] == found[1]


def _with(run_min: int) -> Any:
    apply = table_updates.TableUpdate.apply

    def changed(self: table_updates.TableUpdate) -> None:
        self.run_min = run_min
        apply(self)

    return changed


@given(TEXTS, st.binary(max_size=20), st.lists(st.binary(max_size=20), min_size=1))
def test_many_at_once_are_the_same_as_one_by_one(
    topic: str, section: bytes, payloads: list[bytes]
) -> None:
    together = checksums(topic, section, payloads)
    alone = [checksum(topic, section, payload) for payload in payloads]
    assert together == b"".join(alone)
    assert all(len(one) == SIZE for one in alone)
    assert not any(map(is_altered, alone, [topic] * 99, [section] * 99, payloads))


@given(TEXTS, st.binary(min_size=1, max_size=9), st.binary(min_size=1, max_size=9), st.randoms())
def test_where_one_ends_and_the_next_begins_counts(
    topic: str, section: bytes, payload: bytes, chance: random.Random
) -> None:
    crc = checksum(topic, section, payload)
    assert is_altered(crc, topic + "x", section, payload)
    assert is_altered(crc, topic, section[:-1], section[-1:] + payload)
    assert is_altered(crc, topic, section + payload[:1], payload[1:])
    assert is_altered(crc, topic, section, flipped(payload, chance))
    assert is_altered(flipped(crc, chance), topic, section, payload)


@pytest.mark.parametrize(
    "row",
    [
        (b"", "t", b"", b""),
        (b"\0" * 5, "t", b"", b""),
        (5, "t", b"", b""),
        ("text", "t", b"", b""),
        (b"1234", None, b"", b""),
        (b"1234", 5, b"", b""),
        (b"1234", b"\xff", b"", b""),
        (b"1234", "t", "section", b""),
        (b"1234", "t", b"", 7),
        (b"1234", "t", b"", None),
        (b"1234", "\udfff", b"", b""),
    ],
)
def test_values_of_other_types_are_altered(row: tuple[Any, Any, Any, Any]) -> None:
    assert is_altered(*row)
    assert not is_altered(None, *row[1:])
