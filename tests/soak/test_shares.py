"""No limit in bytes is missing from the sum that docs/reference/memory.md documents."""

from __future__ import annotations

import dataclasses
import tomllib

import pytest

from mqtt_broker.core.limits.settings import DEFAULTS, Settings
from tests.server.broker_process import document
from tests.soak.shares import (
    ELSEWHERE,
    PARTS,
    memory_bytes_max,
    memory_shares,
)

NAMES = {field.name for field in dataclasses.fields(Settings)}
IN_BYTES = sorted(name for name in NAMES if "bytes" in name)


@pytest.mark.parametrize("name", IN_BYTES)
def test_every_limit_in_bytes_is_a_share_or_a_part_of_one(name: str) -> None:
    shares = {share.limit for stored in (True, False) for share in memory_shares(
        DEFAULTS, is_stored=stored)}  # fmt: skip
    places = [name in shares, name in PARTS, name in ELSEWHERE]
    assert sum(places) == 1, "add it to tests/soak/shares.py"
    assert PARTS.get(name, "queue_total_bytes_max") in shares


@pytest.mark.parametrize("name", ["connections_max", "sessions_max", *IN_BYTES])
@pytest.mark.parametrize("is_stored", [True, False])
def test_a_larger_limit_makes_the_sum_larger(name: str, is_stored: bool) -> None:
    """By so much at least, if it is the limit of all clients and counts here."""
    more = dataclasses.replace(DEFAULTS, **{name: getattr(DEFAULTS, name) + 1_000_000})
    grown = memory_bytes_max(more, is_stored=is_stored) - memory_bytes_max(
        DEFAULTS, is_stored=is_stored
    )
    limits = {share.limit for share in memory_shares(DEFAULTS, is_stored=is_stored)}
    assert grown >= 1_000_000 if name in limits else grown == 0


def test_the_hardened_configuration_is_stricter_in_every_limit_of_all() -> None:
    found = tomllib.loads(document("deploy/hardened.toml"))
    hardened = Settings(**{name: found[name] for name in NAMES & found.keys()})
    for before, after in zip(memory_shares(DEFAULTS), memory_shares(hardened), strict=True):
        if before.limit not in ("", "journal_bytes_max", "stream_bytes_max"):
            assert after.bytes < before.bytes, f"deploy/hardened.toml: set {before.limit}"
    assert memory_bytes_max(hardened) < 4 << 30 < memory_bytes_max(DEFAULTS)
