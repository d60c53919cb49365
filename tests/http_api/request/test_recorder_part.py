"""The part of the interface that asks the flight recorder."""

from __future__ import annotations

from mqtt_broker.http_api.request.recorder_part import RECORDS


def test_a_broker_without_it_is_told_which_key_to_set() -> None:
    assert "recorder_bytes_max" in RECORDS.name
