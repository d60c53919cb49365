"""Which partition a message goes to, and that order holds within one."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Final

import pytest

from mqtt_broker.streams.format.errors import Invalid
from mqtt_broker.streams.format.partitioning import Partitioner, User
from mqtt_broker.streams.write.partition_functions import load_partition_functions

PAYLOADS = [b"%d" % number for number in range(10)]


def by_size(topic: str, client_id: str, payload: bytes, user: User) -> int:
    return len(payload)


def by_text(topic: str, client_id: str, payload: bytes, user: User) -> str:
    return topic


def by_bytes(topic: str, client_id: str, payload: bytes, user: User) -> bytes:
    return payload


def leaves(topic: str, client_id: str, payload: bytes, user: User) -> int:
    raise SystemExit(3)


class Odd(int):
    def __int__(self) -> int:
        raise RuntimeError("it is no number after all")


def odd(topic: str, client_id: str, payload: bytes, user: User) -> int:
    return Odd(3)


def wrong(topic: str, client_id: str, payload: bytes, user: User) -> object:
    if payload == b"3":
        raise ValueError
    return None


HERE: Final = "tests.streams.format.test_partitioning"
FUNCTIONS: Final = load_partition_functions(
    f"{HERE}.{name}" for name in ("by_size", "by_text", "by_bytes", "leaves", "odd", "wrong")
)


def crc(key: str | bytes, partitions: int) -> int:
    return zlib.crc32(key if isinstance(key, bytes) else key.encode()) % partitions


def deal(
    by: str, topic: str = "fleet/7/t", client: str = "dev", user: User = ()
) -> list[tuple[int, Sequence[bytes]]]:
    return Partitioner(by, 5, FUNCTIONS).deal(topic, client, PAYLOADS, user)


def test_a_run_stays_together_where_its_key_says() -> None:
    assert deal("client") == [(crc("dev", 5), PAYLOADS)]
    assert deal("topic") == [(crc("fleet/7/t", 5), PAYLOADS)]
    assert deal("level:1") == [(crc("fleet", 5), PAYLOADS)]
    assert deal("level:2") == [(crc("7", 5), PAYLOADS)]
    assert deal("level:3") == [(crc("t", 5), PAYLOADS)]
    assert deal("property:site", user=[("a", "b"), ("site", "x"), ("site", "y")]) == [
        (crc("x", 5), PAYLOADS)
    ]


def test_what_has_no_key_goes_by_client() -> None:
    assert deal("level:4") == deal("property:site", user=[("a", "b")]) == deal("client")


def test_one_partition_is_everybodys() -> None:
    for by in ("client", "round-robin", f"{HERE}.by_size"):
        assert Partitioner(by, 1, FUNCTIONS).deal("t", "c", PAYLOADS, ()) == [(0, PAYLOADS)]


def test_turns_are_even_and_go_on_from_run_to_run() -> None:
    partitioner = Partitioner("round-robin", 3)
    counts = [0, 0, 0]
    for length in (1, 2, 5, 0, 4):
        dealt = partitioner.deal("t", "c", PAYLOADS[:length], ())
        assert sorted(p for _, part in dealt for p in part) == PAYLOADS[:length]
        assert all(part for _, part in dealt)
        for number, part in dealt:
            counts[number] += len(part)
            assert list(part) == sorted(part)
    assert counts == [4, 4, 4]


def test_a_function_of_the_users_own() -> None:
    assert deal(f"{HERE}.by_size") == [(1, PAYLOADS)]
    assert deal(f"{HERE}.by_text") == deal("topic")
    dealt = dict(deal(f"{HERE}.by_bytes"))
    assert all(crc(payload, 5) == number for number, part in dealt.items() for payload in part)
    assert sum(map(len, dealt.values())) == len(PAYLOADS)


@pytest.mark.parametrize("name", ["wrong", "leaves"])
def test_a_function_that_fails_loses_nothing(name: str) -> None:
    partitioner = Partitioner(f"{HERE}.{name}", 5, FUNCTIONS)
    assert partitioner.deal("t", "dev", PAYLOADS, ()) == deal("client", "t")
    assert partitioner.failures == len(PAYLOADS)


def test_a_number_that_is_none_after_all_loses_nothing() -> None:
    """Whether it is believed depends on how we were compiled."""
    partitioner = Partitioner(f"{HERE}.odd", 5, FUNCTIONS)
    [(number, payloads)] = partitioner.deal("t", "dev", PAYLOADS, ())
    assert payloads == PAYLOADS and 0 <= number < 5


@pytest.mark.parametrize("by", [f"{HERE}.by_size", "no_such_module.function", "os.remove"])
def test_a_function_that_nobody_gave_is_not_called(by: str) -> None:
    for functions in (None, {}, {f"{HERE}.by_text": FUNCTIONS[f"{HERE}.by_text"]}):
        partitioner = Partitioner(by, 5, functions)
        assert partitioner.deal("t", "dev", PAYLOADS, ()) == deal("client", "t")
        assert partitioner.failures == len(PAYLOADS)
        assert partitioner.splits_runs  # so that each message counts


@pytest.mark.parametrize("by", ["level:x", "client:x", "os", "a.b()", "a..b", ".a.b"])
def test_what_cannot_be_is_refused_at_once(by: str) -> None:
    with pytest.raises(Invalid, match=r"^partition_by: .* expected client, topic"):
        Partitioner(by, 2)


def test_what_is_remembered_is_bounded() -> None:
    """A topic may have 65,535 bytes, and a publisher as many topics as it likes."""
    partitioner = Partitioner("topic", 5)
    topics = [f"{number}/" + "x" * 65_000 for number in range(3)]
    assert [deal_of(partitioner, topic) for topic in topics] == [crc(t.encode(), 5) for t in topics]
    assert not partitioner.cached
    deal_of(partitioner, "short")
    assert list(partitioner.cached) == ["short"]


def deal_of(partitioner: Partitioner, topic: str) -> int:
    ((number, _),) = partitioner.deal(topic, "c", PAYLOADS, ())
    return number
