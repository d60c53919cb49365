"""A fresh broker for each test, as other people's tests get it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from mqtt_broker.testing import ThreadedBroker


@pytest.fixture
def broker() -> Iterator[ThreadedBroker]:
    with ThreadedBroker() as running:
        yield running
