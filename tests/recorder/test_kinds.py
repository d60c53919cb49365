"""The names of kinds and reasons."""

from __future__ import annotations

from mqtt_broker.recorder import kinds


def test_every_kind_has_a_name_of_its_own() -> None:
    assert len(set(kinds.KIND_NAMES.values())) == len(kinds.KIND_NAMES)


def test_every_reason_of_a_drop_has_its_code() -> None:
    assert [kinds.DROP_CODES[name] for name in kinds.DROP_REASONS] == list(
        range(len(kinds.DROP_REASONS))
    )
