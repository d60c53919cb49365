"""What the end of a connection means for its will: due, cancelled, or left open."""

from __future__ import annotations

import pytest

from iot_sim.fleet.connection_ends import (
    EARLY_S,
    LATE_S,
    ClosedConnection,
    ReplacedConnection,
    Wills,
)
from iot_sim.fleet.engine import Link
from iot_sim.judge.ledger import Ledger, WillFlow

NO_LINK: Link = None  # type: ignore[assignment]


def wills(*delays_s: int) -> tuple[Wills, WillFlow]:
    """The wills of a client that has connected so many times, each with a will of this delay."""
    found = Wills(Ledger("run", 1_000))
    for number, delay_s in enumerate(delays_s):
        assert found.register("dev", delay_s) == number
    assert found.flow is not None
    return found, found.flow


def state(flow: WillFlow) -> tuple[dict[int, float], set[int]]:
    return flow.due, flow.cancelled


def test_a_broken_connection_makes_its_will_due_once() -> None:
    found, flow = wills(0)
    found.connection_broken(5.0)
    assert state(flow) == ({0: 5.0}, set())
    found.connection_broken(6.0)  # it has gone with the connection
    assert state(flow) == ({0: 5.0}, set())


def test_without_a_will_nothing_is_counted() -> None:
    nobody = Wills(Ledger("run", 1_000))
    nobody.connection_broken(1.0)
    nobody.settle(1.0, resumed=True)
    assert nobody.take() is None and nobody.flow is None
    found, flow = wills(0)
    found.discard()
    found.connection_broken(5.0)
    assert found.take() is None and state(flow) == ({}, set())


@pytest.mark.parametrize(("why", "is_cancelled"), [("", True), ("reset by peer", False)])
def test_a_will_is_cancelled_when_the_broker_has_read_the_disconnect(
    why: str, is_cancelled: bool
) -> None:
    found, flow = wills(0)
    closed = ClosedConnection(found.take())
    closed.on_open(NO_LINK)
    closed.on_data(NO_LINK, b"late")
    assert state(flow) == ({}, set()), "not before it closes the connection"
    closed.on_end(NO_LINK, why)
    assert state(flow) == ({}, {0} if is_cancelled else set())
    found.connection_broken(9.0)
    assert not flow.due, "it was taken"


def test_a_closed_connection_without_a_will_cancels_none() -> None:
    ClosedConnection(None).on_end(NO_LINK, "")
    replaced = ReplacedConnection()
    replaced.on_open(NO_LINK)
    replaced.on_data(NO_LINK, b"")
    replaced.on_end(NO_LINK, "")


@pytest.mark.parametrize(("delay_s", "due"), [(0, {0: 5.0}), (10, {})])
def test_a_take_over_publishes_a_will_that_has_no_delay(
    delay_s: int, due: dict[int, float]
) -> None:
    found, flow = wills(delay_s)
    found.connection_replaced(5.0)
    found.settle(1_000.0, resumed=False)
    assert state(flow) == (due, set()), "with a delay, it depends on what the broker noticed"


@pytest.mark.parametrize(
    ("waited_s", "resumed", "is_due", "is_cancelled"),
    [
        (10.0 - EARLY_S - 0.1, True, False, True),
        (10.0 - EARLY_S - 0.1, False, False, False),  # another session: nobody cancelled it
        (10.0 - EARLY_S, True, False, False),  # the broker may do either
        (10.0, True, False, False),
        (10.0 + LATE_S, True, False, False),
        (10.0 + LATE_S + 0.1, True, True, False),
        (10.0 + LATE_S + 0.1, False, True, False),
    ],
)
def test_a_delayed_will_depends_on_when_the_client_is_back(
    waited_s: float, resumed: bool, is_due: bool, is_cancelled: bool
) -> None:
    found, flow = wills(10)
    found.connection_broken(100.0)
    assert state(flow) == ({}, set()), "not yet"
    found.settle(100.0 + waited_s, resumed=resumed)
    assert (0 in flow.due, 0 in flow.cancelled) == (is_due, is_cancelled)
    found.settle(10_000.0, resumed=False)
    assert (0 in flow.due) is is_due, "decided once"


def test_each_of_several_delayed_wills_is_decided_by_its_own_time() -> None:
    found, flow = wills(10)
    found.connection_broken(100.0)
    found.register("dev", 10)
    found.connection_broken(110.0)
    found.settle(115.0, resumed=True)
    assert state(flow) == ({0: 115.0}, {1})
