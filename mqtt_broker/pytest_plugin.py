"""The pytest fixtures of FleetMQ, there wherever it is installed.

fleetmq_broker          a broker for one test
fleetmq_broker_session  a broker for all tests of the session
fleetmq_broker_factory  makes brokers with options of your own, which end with the test
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Protocol

import pytest

if TYPE_CHECKING:
    from mqtt_broker.testing import ThreadedBroker

# Each imports the broker when a test asks for it: those that do not need not wait.


class BrokerFactory(Protocol):
    """Makes brokers that are stopped at the end of the test."""

    def __call__(self, **options: Any) -> ThreadedBroker:
        """Return a broker with these options of `Broker`, which has started."""


@pytest.fixture
def fleetmq_broker() -> Iterator[ThreadedBroker]:
    """A broker with default settings, for one test."""
    from mqtt_broker.testing import ThreadedBroker

    with ThreadedBroker() as broker:
        yield broker


@pytest.fixture(scope="session")
def fleetmq_broker_session() -> Iterator[ThreadedBroker]:
    """A broker with default settings, for all tests of the session."""
    from mqtt_broker.testing import ThreadedBroker

    with ThreadedBroker() as broker:
        yield broker


@pytest.fixture
def fleetmq_broker_factory() -> Iterator[BrokerFactory]:
    """A function that takes the options of `Broker`, and returns a broker that has started."""
    from mqtt_broker.testing import ThreadedBroker

    with ExitStack() as brokers:
        yield lambda **options: brokers.enter_context(ThreadedBroker(**options))
