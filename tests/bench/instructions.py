"""Instructions of the processor per message of the core, in the shapes of the speed table.

    python tests/bench/instructions.py [ROW ...]      with the recorder, without it, and the ratio

The core has to be compiled. valgrind runs it twice, for few and for many turns, so that the
difference is what the messages cost: reading, matching, delivering, flushing, acknowledging and
measuring the turn. The links drop what is written to them. Collections of garbage are left out,
since they come at other places in each run. PYTHONPATH chooses another tree that is compiled.
"""

from __future__ import annotations

import pathlib
import sys
from typing import Final

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))

from mqtt_broker.core import dispatch
from tests.instructions import instructions

# Publishers, subscribers, QoS, messages in a chunk, and how many turns at least and at most.
ROWS: Final[dict[str, tuple[int, int, int, int, int, int]]] = {
    "p2p-qos0": (50, 50, 0, 20, 4, 14),
    "p2p-qos1": (50, 50, 1, 10, 4, 14),
    "fanout-qos0": (1, 20, 0, 5, 50, 150),
    "fanout-qos1": (1, 20, 1, 5, 50, 150),
    "collector-qos0": (100, 1, 0, 10, 4, 14),
    "collector-qos1": (100, 1, 1, 10, 4, 14),
    "pingpong-qos0": (1, 1, 0, 1, 200, 1_200),
    "pingpong-qos1": (1, 1, 1, 1, 200, 1_200),
}
RECORDER_BYTES: Final = 1 << 20
SCRIPT: Final = """
import gc, sys
from mqtt_broker.codec.constants import PUBACK
from mqtt_broker.codec.encode import encode_ack
from mqtt_broker.core import dispatch
from tests.core.peers import World, publish

gc.disable()
pubs, subs, qos, chunk, recorder_bytes, turns = map(int, sys.argv[1:])
world = World(recorder_bytes_max=recorder_bytes)
publishers = [world.client(f"p{n}").connection for n in range(pubs)]
subscribers = [world.client(f"s{n}") for n in range(subs)]
for n, one in enumerate(subscribers):
    one.subscribe("bench/+" if subs == 1 else f"bench/{n if pubs > 1 else 0}", qos=qos)
for connection in world.broker.connections.values():
    connection.outbox.write = lambda data: 0
chunks = [
    b"".join(publish(f"bench/{n}", b"x" * 64, qos=qos, packet_id=1 + i) for i in range(chunk))
    for n in range(pubs)
]
each = chunk * (pubs if subs == 1 else 1)
acks = b"".join(encode_ack(PUBACK, packet_id) for packet_id in range(1, 65_536))
receive, flush, now = dispatch.receive, world.broker.flush, world.now
measure = world.broker.on_turn
connections = [one.connection for one in subscribers]
for n in range(turns):
    now += 0.0005
    for connection, data in zip(publishers, chunks):
        receive(connection, data, now)
    flush(now)
    measure(0.0003)
    if qos:
        for connection in connections:
            receive(connection, acks[4 * each * n : 4 * each * (n + 1)], now)
        flush(now)
        measure(0.0001)
assert not any(one.connection.session.outbound.window.unacked for one in subscribers)
"""


def per_delivery(row: str, recorder_bytes: int) -> float:
    """Return the instructions of one delivered message."""
    pubs, subs, qos, chunk, few, many = ROWS[row]
    counts = [
        instructions(SCRIPT, pubs, subs, qos, chunk, recorder_bytes, turns) for turns in (few, many)
    ]
    return (counts[1] - counts[0]) / ((many - few) * chunk * max(pubs, subs))


def main() -> int:
    if dispatch.__file__.endswith(".py"):
        sys.exit(f"{dispatch.__file__} is not compiled: install the product, or set PYTHONPATH")
    print(f"{'instructions a delivery':24}{'recorder':>10}{'without':>10}{'ratio':>8}")
    for row in sys.argv[1:] or ROWS:
        found, without = per_delivery(row, RECORDER_BYTES), per_delivery(row, 0)
        print(f"{row:24}{found:10,.0f}{without:10,.0f}{found / without:8.3f}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
