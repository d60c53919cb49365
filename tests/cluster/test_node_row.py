"""The row of a number."""

from __future__ import annotations

from mqtt_broker.cluster.node_row import FREE, NodeRow, new_row


def test_a_number_is_empty_until_its_first_group() -> None:
    assert NodeRow(new_row(3, "e1")).is_empty
    assert not NodeRow({**new_row(3, FREE), "group": 1}).is_empty
