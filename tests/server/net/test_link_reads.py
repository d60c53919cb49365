"""How much a link reads in a turn, while many sockets wait for theirs."""

from __future__ import annotations

import pytest

from mqtt_broker.codec.constants import PUBLISH, V5
from mqtt_broker.server.net.poller import READ_BYTES
from tests.core.peers import publish
from tests.server.running import Running

OF_MANY = 65_536  # what a link reads at a time while many sockets are ready


@pytest.mark.parametrize(("payload_bytes", "reads_on"), [(50_000, True), (5, False)])
def test_large_payloads_are_read_on_and_small_ones_are_not(
    payload_bytes: int, reads_on: bool
) -> None:
    """What costs little work is not put off: each turn would cost a wake-up of its peer."""
    payload = bytes(payload_bytes)
    pair = publish("a", payload, version=V5) + publish("bc", payload, version=V5)
    count = 2 * (200_000 // len(pair))
    with Running() as broker:
        core, poller = broker.server.broker, broker.server.net.poller
        before = broker.ask(lambda: set(poller.readers))
        with broker.client("p") as publisher:

            def read_once() -> int:
                """Do as a turn of many sockets does."""
                [fd] = set(poller.readers) - before
                publisher.send(pair * (count // 2))
                poller.read_bytes = OF_MANY
                try:
                    poller.readers[fd]()
                finally:
                    poller.read_bytes = READ_BYTES
                return core.counters.packets_received[PUBLISH]

            received = broker.ask(read_once)
            assert (received == count) is reads_on
            broker.wait_until(lambda: core.counters.packets_received[PUBLISH] == count)
