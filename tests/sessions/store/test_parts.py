"""A group that is too large for one row is several, and is there whole or not at all."""

from __future__ import annotations

import pytest

from sessions.journal import records
from sessions.store import writer
from tests.sessions.store.memory_store import Tables
from tests.sessions.store.places import (
    PATIENCE_S,
    Place,
    Watch,
    check_same,
    delivered,
    queued,
    stored,
)


def parts() -> list[bytes]:
    """A message and its delivery in each; they lean on a session of a group before."""
    return [
        records.seal(
            [stored(mid, [b"x" * 1000]), delivered(1, mid, mid, 1)], is_continued=mid < 105
        )
        for mid in range(100, 106)
    ]


def submit(watch: Watch, tables: Tables, blobs: list[bytes]) -> None:
    for blob in blobs:
        number = watch.submit(blob)
        tables.apply_group(number, blob, 1.0)


def test_all_parts_are_one_commit(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """However little a commit is meant to take."""
    monkeypatch.setattr(writer, "COMMIT_BYTES_MAX", 1500)
    tables = Tables()
    watch = Watch(place.open())
    submit(watch, tables, [queued(1, 2), *parts()])
    watch.until_committed()
    assert set(watch.committed) <= {0, 1, 7}
    watch.store.abandon()
    check_same(place.open(), tables)


def test_without_its_end_a_group_is_not_there(place: Place) -> None:
    tables = Tables()
    watch = Watch(place.open())
    submit(watch, tables, [queued(1, 2)])
    for blob in parts()[:-1]:
        watch.submit(blob)
    watch.until(lambda: watch.committed[-1] == 1)
    assert watch.store.flush(5.0)
    assert watch.committed[-1] == 1
    watch.store.abandon()
    again = place.open()
    check_same(again, tables)
    submit(Watch(again), tables, parts())
    assert again.stop(PATIENCE_S)
    check_same(place.open(), tables)


def test_a_statement_takes_no_more_than_it_may() -> None:
    groups = [(number, 1.0, bytes(1 << 20)) for number in range(200)]
    pieces = list(writer.pieces(groups))
    assert [group for piece in pieces for group in piece] == groups
    assert all(sum(len(group[2]) for group in piece) <= writer.COMMIT_BYTES_MAX for piece in pieces)
    large = [(1, 1.0, bytes(writer.COMMIT_BYTES_MAX + 1)), (2, 1.0, b"")]
    assert list(writer.pieces(large)) == [large[:1], large[1:]]
