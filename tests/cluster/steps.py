"""Play a transaction by hand: its batches against rows that the test says."""

from __future__ import annotations

from typing import Any

from mqtt_broker.cluster.statements import Rows, Statement, Transaction


def play(
    transaction: Transaction[Any], answers: list[list[Rows]]
) -> tuple[list[list[Statement]], Any]:
    """Answer each batch in turn; return the batches and the result."""
    batches = [next(transaction)]
    for answer in answers[:-1]:
        batches.append(transaction.send(answer))
    try:
        transaction.send(answers[-1])
    except StopIteration as end:
        return batches, end.value
    raise AssertionError("the transaction has another batch")
