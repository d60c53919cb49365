"""Packing a group: parts of a size, what is left out, and memory that does not suffice."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessions.journal import packing, records
from sessions.journal.packing import Entry, pack
from sessions.journal.transaction import JournalNumbers, PendingCommit, PublishTransaction
from sessions.messages.message import DeliveryOptions, single
from tests.property_examples import examples

CHECK = examples(200)

replaces_seal = pytest.mark.skipif(
    not packing.__file__.endswith(".py"), reason="compiled code calls seal() itself"
)


def record(number: int, filler: int = 0) -> bytes:
    """A record of 13 bytes, and more, that tells its number."""
    return records.encode_unsubscribed(number, "x" * filler)


def numbers_of(blob: bytes) -> list[int]:
    return [found.sid for found in records.unseal(blob)]  # type: ignore[union-attr]


def transaction(payload: bytes = b"x", *, is_wanted: bool = True) -> PublishTransaction:
    message = single("a", payload, qos=1)
    made = PublishTransaction(JournalNumbers(0, 0, 0), [message], awaits_commit=True)
    made.is_recorded(message)
    if is_wanted:
        made.deliver(1, 1, [message], DeliveryOptions(1), [7])
    return made


@CHECK
@given(st.lists(st.integers(0, 60), max_size=30), st.integers(1, 100))
def test_all_records_in_their_order_in_parts_that_say_whether_more_follow(
    fillers: list[int], part_bytes_max: int
) -> None:
    entries: list[Entry] = [record(n, filler) for n, filler in enumerate(fillers)]
    packed = pack(entries, part_bytes_max)
    assert packed.count == packed.records == len(entries)
    assert [n for blob in packed.blobs for n in numbers_of(blob)] == list(range(len(fillers)))
    assert [records.is_continued(blob) for blob in packed.blobs] == [True] * (
        len(packed.blobs) - 1
    ) + [False] * bool(entries)
    for blob in packed.blobs[:-1]:  # it is full, and was not before its last entry
        sizes = [len(record(n, fillers[n])) for n in numbers_of(blob)]
        assert sum(sizes) >= part_bytes_max > sum(sizes[:-1])


def test_what_waits_is_told_in_order_and_makes_no_record() -> None:
    first, second = PendingCommit(), PendingCommit()
    wanted = transaction()
    packed = pack([first, wanted, second], 1 << 20)
    assert packed.waits == [first, wanted, second]
    assert packed.records == 1 and len(packed.blobs) == 1
    assert pack([first], 1 << 20).blobs == []


def test_what_was_acknowledged_before_is_counted_and_left_out() -> None:
    packed = pack([transaction(is_wanted=False), record(5)], 1 << 20)
    assert packed.cancelled == 1 and packed.waits == [] and packed.records == 1
    assert [numbers_of(blob) for blob in packed.blobs] == [[5]]


def test_a_transaction_that_cannot_be_packed_is_left_out_alone() -> None:
    broken = transaction()
    broken.deliver(1 << 80, 1, broken.messages, DeliveryOptions(1), [])  # no such number fits
    good = transaction(b"good")
    packed = pack([record(1), broken, good, record(2)], 1 << 20)
    [(failed, error)] = packed.failed
    assert failed is broken and isinstance(error, Exception)
    assert packed.waits == [good] and packed.records == 3
    [blob] = packed.blobs
    kinds = [type(found).__name__ for found in records.unseal(blob)]
    assert kinds == ["Unsubscribed", "Stored", "Delivered", "Unsubscribed"]


@replaces_seal
@pytest.mark.parametrize("fits", [1, 2, 3, 7])
def test_without_memory_for_all_the_first_are_packed_and_say_that_more_follow(
    fits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    entries: list[Entry] = [record(n) for n in range(20)]
    seal = records.seal

    def scarce(found: list[bytes], *, is_continued: bool = False) -> bytes:
        if len(found) > fits:
            raise MemoryError
        return seal(found, is_continued=is_continued)

    monkeypatch.setattr(records, "seal", scarce)
    done = []
    while entries:
        packed = pack(entries, 1 << 20)
        assert 0 < packed.count <= fits
        [blob] = packed.blobs
        assert records.is_continued(blob) is (packed.count < len(entries))
        done += numbers_of(blob)
        del entries[: packed.count]
    assert done == list(range(20))


@replaces_seal
def test_without_memory_for_one_it_fails_and_changes_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def none(found: list[bytes], *, is_continued: bool = False) -> bytes:
        raise MemoryError

    entries: list[Entry] = [record(1), transaction(), record(2)]
    before = list(entries)
    with monkeypatch.context() as patch:
        patch.setattr(records, "seal", none)
        with pytest.raises(MemoryError):
            pack(entries, 1 << 20)
    assert entries == before
    assert pack(entries, 1 << 20).records == 3
