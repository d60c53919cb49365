"""Statements as data, and the errors of transactions."""

from __future__ import annotations

import pytest

from mqtt_broker.cluster.statements import (
    Aborted,
    ConnectionLost,
    Refused,
    Select,
    TransactionError,
)


@pytest.mark.parametrize("error", [Refused(), Aborted(), ConnectionLost(is_unknown=True)])
def test_errors_are_one_family(error: TransactionError) -> None:
    assert isinstance(error, TransactionError)


def test_a_lost_connection_says_whether_the_outcome_is_unknown() -> None:
    assert ConnectionLost(is_unknown=True).is_unknown
    assert not ConnectionLost(is_unknown=False).is_unknown


def test_a_select_without_conditions_reads_all() -> None:
    assert Select("t").where == {} and Select("t").above is None
