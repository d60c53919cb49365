"""An hour of samples in fixed arrays."""

from __future__ import annotations

from typing import Any

from mqtt_broker.http_api.history import COUNTED, MEASURED, SLOTS, STEP_S, History


def take(history: History, now: float, count: float, value: float = 1.0) -> None:
    history.take(now, dict.fromkeys(COUNTED, count), dict.fromkeys(MEASURED, value))


def test_counters_become_rates_and_values_stay() -> None:
    history = History()
    for number in range(3):
        take(history, 1_000.0 + STEP_S * number, 50.0 * number, number)
    start_at, series = history.read(15)
    assert start_at == 1_000.0
    assert series["messages_in"] == [None, 10.0, 10.0] and history.rates["drops"] == 10.0
    assert series["clients_online"] == [0.0, 1.0, 2.0]


def test_what_is_missing_is_none_and_the_past_is_forgotten() -> None:
    history = History()
    take(history, 1_000.0, 0)
    take(history, 1_020.0, 100)
    _, series = history.read(25)
    assert series["sessions"] == [1.0, None, None, None, 1.0]
    assert series["messages_in"] == [None, None, None, None, 5.0]
    take(history, 1_020.0 + 2 * SLOTS * STEP_S, 100)
    start_at, series = history.read(1e9)
    assert len(series["sessions"]) == SLOTS and series["sessions"][:-1] == [None] * (SLOTS - 1)
    assert start_at == 1_020.0 + 2 * SLOTS * STEP_S - (SLOTS - 1) * STEP_S


def test_it_never_grows() -> None:
    history = History()
    sizes: set[Any] = set()
    for number in range(3 * SLOTS):
        take(history, 5.0 * number, number)
        if number > SLOTS and number % 20 == 0:  # each is a look at all of it
            sizes.add(len(history.read(1e9)[1]["cpu"]))
    assert sizes == {SLOTS}
