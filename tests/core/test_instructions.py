"""What a PUBLISH costs where the core is compiled, in instructions of the processor.

`test_calls` counts Python calls, which compiled code does not make. Here valgrind counts the
instructions of two runs of different length, and the difference is what the messages between them
cost. Compilers and Python versions differ a little: each limit has a fifth to spare.
"""

from __future__ import annotations

import pytest

from mqtt_broker.core import dispatch
from tests.instructions import instructions, needs_valgrind

FEW, MANY = 100, 600  # chunks of ten messages
# A publisher and a subscriber on links that drop what is written. QoS 1 is acknowledged at once.
SCRIPT = """
import sys
from mqtt_broker.codec.constants import PUBACK
from mqtt_broker.codec.encode import encode_ack
from mqtt_broker.core import dispatch
from tests.core.peers import World, publish

qos, count = int(sys.argv[1]), int(sys.argv[2])
world = World()
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


@pytest.mark.parametrize(("qos", "limit"), [(0, 2_100), (1, 14_800)])
def test_instructions_of_a_publish(qos: int, limit: int) -> None:
    few, many = instructions(SCRIPT, qos, FEW), instructions(SCRIPT, qos, MANY)
    spent = (many - few) // ((MANY - FEW) * 10)
    assert spent <= limit
    assert spent > limit * 0.6, f"{spent} instructions; lower the limit"
