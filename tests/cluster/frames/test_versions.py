"""The newest program writes the older frames until all nodes read the new ones."""

from __future__ import annotations

import pytest

from mqtt_broker.cluster.frames.layout import KINDS
from mqtt_broker.cluster.frames.versions import (
    READS,
    VERSION,
    WRITES,
    NoCommonVersion,
    version_to_write,
)


@pytest.mark.parametrize(
    ("reads", "version"),
    [
        ([], 3),
        ([(2, 3), (2, 3)], 3),
        ([(2, 3), (1, 2)], 2),
        ([(3, 4), (2, 3)], 3),
    ],
)
def test_the_newest_that_all_read(reads: list[tuple[int, ...]], version: int) -> None:
    assert version_to_write(reads, (2, 3), newest=3) == version


def test_a_version_is_held_back() -> None:
    assert version_to_write([(2, 3)], (2, 3), newest=2) == 2


@pytest.mark.parametrize("reads", [[(1,)], [(3,), (2,)], [()]])
def test_nodes_without_a_common_version(reads: list[tuple[int, ...]]) -> None:
    with pytest.raises(NoCommonVersion, match="a node reads frames of version"):
        version_to_write(reads, (2, 3), newest=3)


def test_a_program_reads_what_it_writes() -> None:
    assert WRITES <= READS and VERSION in WRITES
    assert KINDS.keys() == READS
