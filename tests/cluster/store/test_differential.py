"""The model of PostgreSQL does what PostgreSQL does; see `differential`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pytest

from mqtt_broker.cluster.statements import Commit, Delete, Insert, InsertNew, Row, Select, Update
from mqtt_broker.cluster.tables import OWNERS
from sessions.store.schema import digest
from tests.cluster.store.differential import Real, Script, follow, play
from tests.cluster.store.rule_plays import play_rules
from tests.fault.postgres import PostgreSQL


@pytest.fixture
def real(postgresql: PostgreSQL) -> Iterator[Real]:
    real = Real(postgresql)
    yield real
    real.close()


def test_the_same_statements_have_the_same_answers(real: Real) -> None:
    plays = [play(real, seed) for seed in range(20)]
    assert sum(found.waits for found in plays) > 20
    assert sum(found.errors for found in plays) > 20


_ROW = {"number": 1, "v": 0}
_FIRST = {"number": 1}
_MADE: Script = [(0, [Insert("pairs", _ROW), Commit()])]
# What the model once did otherwise than PostgreSQL.
SCRIPTS: Final[dict[str, Script]] = {
    "a row that somebody has only locked is inserted": [
        *_MADE,
        (0, [Select("pairs", _FIRST, for_update=True)]),
        (1, [Insert("pairs", _ROW), Commit()]),
        (2, [InsertNew("pairs", [_ROW]), Commit()]),
    ],
    "a row that somebody has changed is inserted": [
        *_MADE,
        (0, [Update("pairs", _FIRST, {"v": 1})]),
        (1, [Insert("pairs", _ROW), Commit()]),
        (0, [Commit()]),
    ],
    "a row that was waited for is gone, and inserted": [
        *_MADE,
        (0, [Delete("pairs", _FIRST)]),
        (1, [Select("pairs", _FIRST, for_update=True)]),
        (0, [Commit()]),
        (2, [Insert("pairs", _ROW), Commit()]),
        (1, [Commit()]),
    ],
    "a row that was waited for is deleted and inserted again": [
        *_MADE,
        (0, [Delete("pairs", _FIRST), Insert("pairs", _ROW)]),
        (1, [Update("pairs", _FIRST, {"v": 7}, required=True), Commit()]),
        (2, [Update("pairs", {"v": 0}, {"v": 8}), Commit()]),
        (0, [Commit()]),
        (1, [Select("pairs"), Commit()]),
    ],
}


# Two clients whose digests are not in the order of their names.
_NAMES = ("c0", "c1")
_BOTH: Row = {"client": [*_NAMES], "is_offered": True}
_OFFER: Row = {"is_offered": True}


def _owner(client: str) -> Row:
    return {"client": client, "number": 9, "tenure": 0, "is_offered": False}


def _mine(number: int) -> Update:
    return Update(OWNERS, _BOTH, {"number": number, "is_offered": False})


SCRIPTS["clients are offered between the lock and the change of a claim"] = [
    (0, [*(Insert(OWNERS, _owner(one)) for one in _NAMES), Commit()]),
    (0, [Select(OWNERS, _BOTH, for_update=True)]),
    (2, [*(Update(OWNERS, {"client": one}, _OFFER) for one in _NAMES), Commit()]),
    (2, [Select(OWNERS, {"client": _NAMES[0]}, for_update=True)]),
    (1, [Select(OWNERS, _BOTH, for_update=True)]),
    (0, [_mine(1), Commit()]),
    (2, [Commit()]),
    (1, [_mine(2), Commit()]),
]


def test_the_order_of_digests_is_another_than_that_of_names() -> None:
    assert sorted(_NAMES, key=digest) != sorted(_NAMES)


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_has_the_same_answers(real: Real, name: str) -> None:
    follow(real, SCRIPTS[name])


@pytest.mark.slow
@pytest.mark.parametrize("start", range(1_000, 3_000, 100))
def test_many_statements_have_the_same_answers(real: Real, start: int) -> None:
    for seed in range(start, start + 100):
        play(real, seed)


def test_the_rules_have_the_same_answers(real: Real) -> None:
    plays = [play_rules(real, seed) for seed in range(20)]
    assert sum(found.waits for found in plays) > 20
    assert sum(found.errors for found in plays) > 10


@pytest.mark.slow
@pytest.mark.parametrize("start", range(1_000, 3_000, 100))
def test_many_transactions_of_the_rules_have_the_same_answers(real: Real, start: int) -> None:
    for seed in range(start, start + 100):
        play_rules(real, seed)
