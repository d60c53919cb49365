"""The pytest fixture `fleetmq_broker`, there wherever FleetMQ is installed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from mqtt_broker.testing import ThreadedBroker


@pytest.fixture
def fleetmq_broker() -> Iterator[ThreadedBroker]:
    """A broker with default settings, for one test."""
    from mqtt_broker.testing import ThreadedBroker  # not before a test asks for it

    with ThreadedBroker() as broker:
        yield broker
