"""The filters of other numbers: what is read when, and who has subscribers of a topic."""

from __future__ import annotations

from typing import Any

import pytest

from mqtt_broker.cluster.digest import FLEETING, NOBODY, STORED, Digest, compare, learn
from mqtt_broker.cluster.statements import Commit, Expect, Rows, SelectNewer, Stale
from tests.cluster.steps import play


def version(number: int, filters: int, epoch: str = "e", since: int = 0) -> dict[str, Any]:
    return {"number": number, "epoch": epoch, "filters": filters, "filters_from": since}


def row(number: int, text: str, reach: int = STORED) -> dict[str, Any]:
    return {"number": number, "filter": text, "reach": reach, "group": 1}


def read(digest: Digest, versions: Rows, changed: Rows, after: Rows | None = None) -> bool:
    return digest.on_rows(versions, changed, versions if after is None else after)


def known(*rows: dict[str, Any], version_of_2: int = 5) -> Digest:
    """A digest of number 1 that knows these filters of number 2."""
    digest = Digest(1)
    assert not read(digest, [version(2, version_of_2)], [])
    assert read(digest, [version(2, version_of_2)], list(rows))
    return digest


def than(digest: Digest) -> dict[int, int]:
    found = digest.reads()[1]
    assert isinstance(found, SelectNewer)
    return found.than


def test_numbers_are_found_by_their_filters() -> None:
    digest = known(row(2, "a/+"), row(2, "a/b", FLEETING), row(2, "c", STORED | FLEETING))
    assert digest.route("a/b") == (2,)
    assert digest.route("a/x") == (2,)
    assert digest.route("c") == (2,)
    assert digest.route("d") == ()
    assert digest.filters(2) == {"a/+", "a/b", "c"} and digest.count == 3


def test_a_new_number_is_read_whole_then_by_changes() -> None:
    digest = Digest(1)
    assert digest.is_behind and than(digest) == {}
    assert not read(digest, [version(2, 5)], [])
    assert than(digest) == {2: -1} and digest.is_behind
    assert read(digest, [version(2, 5)], [row(2, "a")])
    assert than(digest) == {2: 5}
    assert read(digest, [version(2, 6)], [row(2, "a", NOBODY), row(2, "b")])
    assert digest.route("a") == () and digest.route("b") == (2,)


def test_a_cached_route_is_forgotten_when_a_filter_changes() -> None:
    digest = known()
    assert digest.route("a/b") == ()
    assert read(digest, [version(2, 6)], [row(2, "a/#")])
    assert digest.route("a/b") == (2,)


def test_another_epoch_is_read_whole() -> None:
    digest = known(row(2, "a"))
    assert not read(digest, [version(2, 5, "e2")], [])
    assert digest.count == 0 and than(digest) == {2: -1}
    assert read(digest, [version(2, 5, "e2")], [row(2, "b")])
    assert digest.filters(2) == {"b"} and digest.epoch(2) == "e2"


def test_an_epoch_that_changes_while_it_is_read_is_read_again() -> None:
    digest = Digest(1)
    assert not read(digest, [version(2, 5)], [])
    assert not read(digest, [version(2, 5)], [row(2, "a")], [version(2, 6, "e2")])
    assert digest.count == 0 and digest.epoch(2) == "e2"


def test_who_knows_less_than_what_was_deleted_reads_all() -> None:
    digest = known(row(2, "a"), version_of_2=5)
    assert read(digest, [version(2, 9, since=5)], [])
    digest = known(row(2, "a"), version_of_2=5)
    assert not read(digest, [version(2, 9)], [row(2, "b")], [version(2, 9, since=9)])
    assert digest.count == 0 and than(digest) == {2: -1}


def test_a_number_that_is_gone_is_forgotten() -> None:
    digest = known(row(2, "a"))
    assert read(digest, [], [])
    assert digest.numbers == [] and digest.count == 0


def test_all_numbers_are_expected_as_they_are_known() -> None:
    digest = known()
    assert read(digest, [version(1, 3, "own"), version(2, 5)], [])
    assert digest.expectation().rows == [(1, "own", 3), (2, "e", 5)]
    digest.set_own("own", 4)
    assert digest.expectation().rows == [(1, "own", 4), (2, "e", 5)]


def test_a_hint_of_something_new_has_it_read() -> None:
    digest = known(version_of_2=5)
    digest.on_hint(2, "e", 5)
    assert not digest.is_behind
    for number, epoch, filters in [(2, "e", 6), (2, "e2", 5), (3, "e", 1)]:
        digest = known(version_of_2=5)
        digest.on_hint(number, epoch, filters)
        assert digest.is_behind


def test_learning_reads_until_all_is_there() -> None:
    digest = Digest(1)
    versions = [version(2, 5)]
    batches, _ = play(
        learn(digest), [[versions, [], versions, []], [versions, [row(2, "a")], versions, []]]
    )
    assert len(batches) == 2 and all(isinstance(batch[-1], Commit) for batch in batches)
    assert digest.filters(2) == {"a"}


def test_a_comparison_that_fails_says_that_it_is_behind() -> None:
    digest = known()
    batches, _ = play(compare(digest), [[[], []]])
    assert isinstance(batches[0][0], Expect) and not digest.is_behind
    transaction = compare(digest)
    next(transaction)
    with pytest.raises(Stale):
        transaction.throw(Stale("no"))
    assert digest.is_behind
