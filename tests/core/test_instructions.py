"""What a PUBLISH costs where the core is compiled, in instructions of the processor.

`test_calls` counts Python calls, which compiled code does not make. Here valgrind counts the
instructions of two runs of different length, and the difference is what the messages between them
cost. Compilers and Python versions differ a little: each limit has a fifth to spare. A ratio of two
such counts needs nothing to spare: it is what the recorder may add.
"""

from __future__ import annotations

import pytest

from mqtt_broker.core import dispatch
from tests.instructions import instructions, needs_valgrind

FEW, MANY = 100, 600  # chunks of ten messages
RECORDER_BYTES = 1 << 20
RECORDER_RATIO_MAX = 1.03
# A publisher and a subscriber on links that drop what is written. QoS 1 is acknowledged at once.
SCRIPT = """
import sys
from mqtt_broker.codec.constants import PUBACK
from mqtt_broker.codec.encode import encode_ack
from mqtt_broker.core import dispatch
from tests.core.peers import World, publish

qos, recorder_bytes, count = map(int, sys.argv[1:])
world = World(recorder_bytes_max=recorder_bytes)
subscriber, publisher = world.client("s"), world.client("p")
subscriber.subscribe("a/b", qos=qos)
for connection in world.broker.connections.values():
    connection.outbox.write = lambda data: 0
chunk = b"".join(publish("a/b", b"x" * 20, qos=qos, packet_id=1 + n) for n in range(10))
receive, flush, now = dispatch.receive, world.broker.flush, world.now
window = subscriber.connection.session.outbound.window
for n in range(count):
    receive(publisher.connection, chunk, now)
    flush(now)
    if qos:
        acks = b"".join(encode_ack(PUBACK, packet_id) for packet_id in list(window.unacked))
        receive(subscriber.connection, acks, now)
        flush(now)
"""

pytestmark = [
    pytest.mark.skipif(
        dispatch.__file__.endswith(".py"), reason="instructions are counted where it is compiled"
    ),
    needs_valgrind,
]


def spent(qos: int, recorder_bytes: int) -> int:
    """Return the instructions of one message."""
    few, many = (instructions(SCRIPT, qos, recorder_bytes, count) for count in (FEW, MANY))
    return (many - few) // ((MANY - FEW) * 10)


@pytest.mark.parametrize(("qos", "limit"), [(0, 2_100), (1, 14_800)])
def test_instructions_of_a_publish(qos: int, limit: int) -> None:
    found = spent(qos, RECORDER_BYTES)
    assert found <= limit
    assert found > limit * 0.6, f"{found} instructions; lower the limit"
    without = spent(qos, 0)
    assert found <= without * RECORDER_RATIO_MAX, f"{found} with the recorder, {without} without"
