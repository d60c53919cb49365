"""Messages cross sooner over the bus, and less is read."""

from __future__ import annotations

from tests.sim.cluster.bus import AWAY, WHOLE
from tests.sim.cluster.crossing import measure


def test_the_bus_makes_messages_earlier_and_reads_fewer() -> None:
    over_bus, polled = measure(WHOLE, 40), measure(AWAY, 40)
    assert over_bus.lost == 0 and polled.lost == 20 and not polled.delays_s[0]
    assert max(over_bus.delays_s[1]) < sum(polled.delays_s[1]) / 20
    assert over_bus.reads < 0.3 < polled.reads
