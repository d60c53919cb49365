"""The filter that nearly matches."""

from __future__ import annotations

import pytest

from mqtt_broker.recorder.nearest import nearest_filter


@pytest.mark.parametrize(
    ("filters", "topic", "nearest"),
    [
        (["plants/7/#", "other/+"], "plant/7/cmd", "plants/7/#"),
        (["plant/7/cmd/x", "a/b/c/d"], "plant/7/cmd", "plant/7/cmd/x"),
        (["plant/+"], "plant/7/cmd", "plant/+"),
        (["$share/g/plant/8/cmd"], "plant/7/cmd", "$share/g/plant/8/cmd"),
        (["x/y/z"], "plant/7/cmd", ""),
        ([], "plant/7/cmd", ""),
        (["Plant/7/cmd"], "plant/7/cmd", "Plant/7/cmd"),
    ],
)
def test_the_nearest_differs_least(filters: list[str], topic: str, nearest: str) -> None:
    assert nearest_filter(filters, topic) == nearest


def test_very_long_topics_and_many_filters_are_cut() -> None:
    topic = "/".join(["x" * 1_000] * 200)
    assert nearest_filter([topic + "y"] * 5_000, topic) == topic + "y"
