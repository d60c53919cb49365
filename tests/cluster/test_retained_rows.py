"""Retained messages as rows: what a group writes, and which rows a number deletes."""

from __future__ import annotations

from mqtt_broker.cluster.retained_rows import (
    NEVER,
    OwnRows,
    RetainedLimits,
    RetainedMessage,
    Sweep,
    delete_rows,
    message_of,
    write_retained,
)
from mqtt_broker.cluster.statements import Commit, Delete, LockTimeout, Put, Select, Update
from mqtt_broker.cluster.tables import SWEEPS
from tests.cluster.steps import play

LIMITS = RetainedLimits(sweep_rows=2, tombstones=2, generation_s=10.0)


def removal(topic: str) -> RetainedMessage:
    return RetainedMessage(topic, b"")


def swept(rows: OwnRows, now: float, server_now: float = 0.0) -> tuple[list[str], int]:
    sweep = rows.sweep(now, server_now)
    if sweep is None:
        return [], 0
    rows.on_swept(sweep)
    return sweep.topics, sweep.group


def test_a_group_writes_its_rows_in_the_order_of_topics() -> None:
    messages = [RetainedMessage("b", b"2"), RetainedMessage("a", b"1", 7), removal("c")]
    wait, *puts = write_retained(messages, 3, 9)
    assert isinstance(wait, LockTimeout)
    assert [one.row for one in puts if isinstance(one, Put)] == [
        {"topic": "a", "number": 3, "group": 9, "blob": b"1", "expires_at": 7},
        {"topic": "b", "number": 3, "group": 9, "blob": b"2", "expires_at": NEVER},
        {"topic": "c", "number": 3, "group": 9, "blob": b"", "expires_at": NEVER},
    ]
    assert write_retained([], 3, 9) == []


def test_a_removal_never_expires() -> None:
    found = message_of({"topic": "a", "blob": b"", "expires_at": 5})
    assert found.is_tombstone and found.expires_at == NEVER


def test_tombstones_are_deleted_a_generation_later() -> None:
    rows = OwnRows(LIMITS)
    for group, topic in enumerate(["a", "b", "c"], 1):
        rows.on_written(removal(topic), group)
    assert swept(rows, 10.0) == ([], 0)
    for group, topic in enumerate(["d", "e", "f"], 4):
        rows.on_written(removal(topic), group)
    assert swept(rows, 19.9) == ([], 0)
    assert rows.tombstones == 6
    assert swept(rows, 20.0) == (["a", "b"], 3)
    assert swept(rows, 20.0) == (["c"], 3)
    assert swept(rows, 29.9) == ([], 0)
    assert [swept(rows, 30.0), swept(rows, 30.0)] == [(["d", "e"], 6), (["f"], 6)]
    rows.on_written(removal("g"), 7)
    assert swept(rows, 99.0) == ([], 0), "it is not worth it"
    assert rows.tombstones == 1


def test_what_is_written_again_is_kept() -> None:
    rows = OwnRows(LIMITS)
    for topic in "abc":
        rows.on_written(removal(topic), 1)
    rows.sweep(10.0, 0.0)
    rows.on_written(RetainedMessage("a", b"1"), 2)
    rows.forget("b")
    for topic in "def":
        rows.on_written(removal(topic), 3)
    assert swept(rows, 20.0) == (["c"], 1)


def test_rows_of_expired_messages_are_deleted_some_time_later() -> None:
    rows = OwnRows(LIMITS)
    for topic, expires_at in [("a", 101), ("b", 105), ("c", 130), ("d", NEVER)]:
        rows.on_written(RetainedMessage(topic, b"1", expires_at), 1)
    rows.on_written(RetainedMessage("b", b"1"), 2)
    assert swept(rows, 0.0, 119.9) == ([], 0)
    assert swept(rows, 0.0, 120.0) == (["a"], 1)
    rows.on_written(RetainedMessage("b", b"1", 105), 7)
    assert swept(rows, 0.0, 999.0) == (["b", "c"], 7)
    assert swept(rows, 0.0, 9999.0) == ([], 0)


def test_the_group_that_is_told_never_goes_back() -> None:
    rows = OwnRows(LIMITS)
    rows.on_told(9)
    rows.on_written(RetainedMessage("a", b"1", 101), 3)
    assert swept(rows, 0.0, 999.0) == (["a"], 9)


def test_rows_are_locked_in_order_and_deleted_if_nobody_else_has_written_them() -> None:
    batches, _ = play(delete_rows(1, "e", 4, Sweep(["a", "b"], 3)), [[[], [], [], [], [], []]])
    (own, says, wait, locks, deletes, commit) = batches[0]
    assert isinstance(own, Update) and own.required
    assert isinstance(says, Put) and says.table == SWEEPS and says.row["group"] == 3
    assert isinstance(wait, LockTimeout) and isinstance(commit, Commit)
    assert isinstance(locks, Select) and locks.for_update and locks.where == {"topic": ["a", "b"]}
    assert isinstance(deletes, Delete) and deletes.where == {"topic": ["a", "b"], "number": 1}
