"""docs/SQL.md: every query runs on either database, every view and column is described."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

from sqlalchemy import text

from sessions.journal import records
from sessions.journal.rows import ShareRow, StreamRow, SubscriptionRow, WillRow
from sessions.store.store import Store
from tests.sessions.store.places import (
    PATIENCE_S,
    Ledger,
    Place,
    Watch,
    delivered,
    session_row,
    stored,
)

DOCUMENT: Final = (Path(__file__).parents[3] / "docs" / "SQL.md").read_text()
QUERIES: Final = re.findall(r"^```sql\n(.*?)^```", DOCUMENT, re.MULTILINE | re.DOTALL)
VIEWS: Final = (
    "v_clients",
    "v_sessions",
    "v_subscriptions",
    "v_queues",
    "v_inflight",
    "v_retained",
    "v_streams",
    "v_stream_offsets",
)
NEVER: Final = 4_294_967_295


def small_fleet(place: Place) -> Store:
    watch = Watch(place.open())
    will = WillRow("fleet/7/gone", b"x", 1, False, b"")
    away = session_row(2, is_online=False, expires_at=5e9, will_at=4e9, will=will)
    kept = session_row(3, expires_at=float("inf"), expiry_interval=NEVER)
    online = session_row(1, is_online=True, expires_at=0.0, username="user")
    subscription = SubscriptionRow(1, "fleet/7/#", 1, True, False, 2, 0)
    shared = SubscriptionRow(1, "$share/g/jobs/#", 2, False, True, 0, 9)
    watch.submit(
        records.seal(
            [
                *(records.encode_session(row) for row in (online, away, kept)),
                records.encode_subscribed(subscription),
                records.encode_subscribed(shared),
                records.encode_shared(ShareRow(4, "$share/g/jobs/#")),
                stored(1, [b"%02d" % at for at in range(20)], topic=b"fleet/7/temperature"),
                delivered(2, 1, 1, 20),
                delivered(3, 1, 1, 5),
                delivered(4, 1, 20, 1),
                delivered(1, 1, 1, 3),
                records.encode_sent(1, [(1, 11), (2, 12), (3, 13)]),
                records.encode_released(1, [(3, 3, 13)]),
                records.encode_retained(20, 0),
                records.encode_stream(StreamRow("telemetry", "e1", "fleet/#", "{}", 1.8e9)),
                records.encode_stream(StreamRow("unread", "e2", "a/#", "{}", 1.8e9)),
                records.encode_cursor("$share/g/x", "telemetry", "e1", [(0, 30), (1, 12)]),
                records.encode_cursor("reader:client-1", "telemetry", "e1", [(1, 7)]),
                records.encode_cursor("reader:client-1", "unread", "e0", [(0, 1), (1, 1)]),
            ]
        )
    )
    assert watch.store.stop(PATIENCE_S)
    return place.open()


def ask(store: Store, query: str) -> list[dict[str, Any]]:
    with store.database.tables.connect() as connection:
        found = connection.execute(text(query.strip().rstrip(";")))
        return [dict(row) for row in found.mappings()]


def test_there_are_twelve_questions_and_a_last_one() -> None:
    assert len(QUERIES) == 13
    assert len(re.findall(r"^\*\*\d+\. ", DOCUMENT, re.MULTILINE)) == 12


def test_the_answers(place: Place) -> None:
    store = small_fleet(place)
    answers = [ask(store, query) for query in QUERIES]
    assert [(row["whose"], row["messages"]) for row in answers[0]] == [
        ("client-2", 20),
        ("client-3", 5),
        ("$share/g/jobs/#", 1),
    ]
    assert (answers[1][0]["queues"], int(answers[1][0]["messages"])) == (3, 26)
    assert (answers[2][0]["deliveries"], answers[2][0]["messages"]) == (26, 20)
    assert [(row["client_id"], row["queued"]) for row in answers[3]] == [
        ("client-2", 20),
        ("client-3", 5),
    ]
    assert answers[4] == []
    assert [row["client_id"] for row in answers[5]] == ["client-3"]
    assert answers[6] == [{"client_id": "client-1", "filter": "fleet/7/#", "qos": 1}]
    assert [(row["client_id"], row["messages"]) for row in answers[7]] == [("client-1", 2)]
    assert [(row["topic"], int(row["all_bytes"])) for row in answers[8]] == [
        ("fleet/7/temperature", 2)
    ]
    assert [(row["share"], row["members_known"]) for row in answers[9]] == [("$share/g/jobs/#", 1)]
    assert [tuple(row.values()) for row in answers[10]] == [
        ("telemetry", "reader:client-1", 1, 7, 7),
        ("telemetry", "$share/g/x", 2, 42, 12),
    ]
    assert [tuple(row.values()) for row in answers[11]] == [
        ("unread", "left over", "reader:client-1"),
        ("unread", "nobody reads it", None),
    ]
    assert answers[12][0]["up_to_group"] == 1


def test_every_column_is_described(place: Place) -> None:
    store = small_fleet(place)
    for view in VIEWS:
        part = DOCUMENT.split(f"### {view}:")[1].split("\n### ")[0].split("\n## ")[0]
        described = set()
        for line in part.splitlines():
            if line.startswith("| `"):
                described |= set(re.findall(r"`(\w+)`", line.split("|")[1]))
        rows = ask(store, f"SELECT * FROM {view}")
        assert rows, view
        assert set(rows[0]) == described, view


def test_what_the_views_say(place: Place) -> None:
    store = small_fleet(place)
    inflight = ask(store, "SELECT * FROM v_inflight ORDER BY packet_id")
    assert [(row["packet_id"], row["waits_after"], row["topic"]) for row in inflight] == [
        (11, "PUBLISH", "fleet/7/temperature"),
        (12, "PUBLISH", "fleet/7/temperature"),
        (13, "PUBREL", None),
    ]
    sessions = ask(store, "SELECT * FROM v_sessions ORDER BY sid")
    assert [row["expires_at"] is None for row in sessions] == [True, False, True]
    assert str(sessions[1]["expires_at"]).startswith("2128-06-11")
    assert str(sessions[1]["will_at"]).startswith("2096-10-02")
    assert sessions[1]["expires_in_s"] > 1e9
    streams = ask(store, "SELECT * FROM v_streams ORDER BY name")
    assert [(row["name"], row["readers"]) for row in streams] == [("telemetry", 2), ("unread", 0)]
    assert str(streams[0]["created_at"]).startswith("2027-01-15")
    shared = ask(store, "SELECT * FROM v_subscriptions WHERE is_shared")
    assert [(row["filter"], row["identifier"]) for row in shared] == [("$share/g/jobs/#", 9)]


def test_views_bear_whatever_a_history_brings(place: Place) -> None:
    ledger = Ledger(9)
    watch = Watch(place.open())
    ledger.submit(watch, 60)
    assert watch.store.stop(PATIENCE_S)
    store = place.open()
    for view in VIEWS:
        ask(store, f"SELECT * FROM {view}")
    for query in QUERIES:
        ask(store, query)
