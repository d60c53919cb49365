"""The values of other packages: read when they are wanted, under the names that they are given."""

from __future__ import annotations

import pytest

from mqtt_broker.core.runtime.runtime import Metrics


def test_a_source_is_read_each_time() -> None:
    metrics = Metrics()
    values: dict[str, int | str] = {"waiting": 1}
    metrics.add("store", lambda: values, "store/journal/")
    assert metrics.values() == {"store/journal/waiting": "1"}
    values["waiting"] = 2
    values["state"] = "behind"
    assert metrics.values() == {"store/journal/waiting": "2", "store/journal/state": "behind"}
    assert metrics.read("store") == {"waiting": 2}, "numbers alone, without the prefix"


def test_each_source_stands_beside_the_others_and_replaces_its_own() -> None:
    metrics = Metrics()
    metrics.add("one", lambda: {"a": 1}, "x/")
    metrics.add("two", lambda: {"a": 2})
    assert metrics.values() == {"x/a": "1", "a": "2"}
    metrics.add("one", lambda: {"b": 3}, "y/")
    assert metrics.values() == {"y/b": "3", "a": "2"}
    assert metrics.read("one") == {"b": 3}


def test_what_nobody_added_has_no_values() -> None:
    assert Metrics().values() == {} and Metrics().read("store") == {}


def test_a_mistake_of_a_source_is_not_hidden() -> None:
    metrics = Metrics()

    def fail() -> dict[str, int | str]:
        raise ValueError("a mistake")

    metrics.add("one", fail)
    with pytest.raises(ValueError, match="a mistake"):
        metrics.values()
