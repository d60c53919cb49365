"""How many requests a key may make."""

from __future__ import annotations

from mqtt_broker.http_api.request.rates import KEYS_MAX, Rates


def test_a_burst_and_then_so_many_a_second() -> None:
    now = [0.0]
    found = Rates(2.0, 3.0, lambda: now[0])
    assert [found.take("a") for _ in range(5)] == [0, 0, 0, 0.5, 0.5]
    assert found.take("b") == 0
    now[0] = 0.5
    assert [found.take("a"), found.take("a")] == [0, 0.5]
    now[0] = 1_000.0
    assert [found.take("a") for _ in range(4)] == [0, 0, 0, 0.5]


def test_what_is_given_back() -> None:
    found = Rates(1.0, 1.0, lambda: 0.0)
    for _ in range(9):
        assert found.take("a") == 0
        found.take("a", -1.0)


def test_the_table_is_bounded() -> None:
    found = Rates(1.0, 1.0, lambda: 0.0)
    found.take("first")
    assert found.take("first") > 0
    for number in range(KEYS_MAX):
        found.take(str(number))
    assert found.take("first") == 0
