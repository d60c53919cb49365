"""What a PUBLISH costs in the core alone, in microseconds: no sockets, no system calls."""

from __future__ import annotations

import pathlib
import random
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))

from mqtt_broker.codec.constants import V5
from mqtt_broker.codec.encode import encode_connect, encode_publish, encode_subscribe
from mqtt_broker.codec.packets import Connect, Subscribe, SubscriptionRequest
from mqtt_broker.core import dispatch
from mqtt_broker.core.broker import Broker
from mqtt_broker.core.clients.connection import Connection
from mqtt_broker.core.limits.settings import Settings

NOW = 1_000.0


class Link:
    """Takes everything and keeps the last of it."""

    peer = "bench"

    def __init__(self) -> None:
        self.last = b""

    def write(self, data: bytes) -> int:
        self.last = data
        return 0

    def close(self) -> None: ...

    def abort(self) -> None: ...

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


def join(broker: Broker, client_id: str) -> tuple[Connection, Link]:
    link = Link()
    connection = broker.accept(link, NOW)
    dispatch.receive(connection, encode_connect(Connect(V5, client_id)), NOW)
    broker.flush(NOW)
    return connection, link


def cost(qos: int, burst: int, rounds: int) -> float:
    """Microseconds a message from one publisher to one subscriber, acknowledgements included."""
    broker = Broker(Settings(sys_interval_s=0), now=NOW, rng=random.Random(1))
    publisher, _ = join(broker, "p")
    subscriber, link = join(broker, "s")
    request = Subscribe(1, [SubscriptionRequest("bench/1", qos)])
    dispatch.receive(subscriber, encode_subscribe(V5, request), NOW)
    packets = [
        encode_publish(V5, "bench/1", b"x" * 64, qos=qos, packet_id=number + 1)
        for number in range(burst)
    ]
    chunk = b"".join(packets)
    id_at = 2 + 2 + len("bench/1")
    began = time.process_time()
    for _ in range(rounds):
        dispatch.receive(publisher, chunk, NOW)
        broker.flush(NOW)
        if qos:
            sent, size = link.last, len(packets[0])
            ids = [sent[at + id_at : at + id_at + 2] for at in range(0, len(sent), size)]
            dispatch.receive(
                subscriber, b"".join([b"\x40\x02" + packet_id for packet_id in ids]), NOW
            )
            broker.flush(NOW)
    return (time.process_time() - began) * 1e6 / rounds / burst


def main() -> None:
    print("core: us a message, one publisher to one subscriber")
    for qos in (0, 1):
        single = min(cost(qos, 1, 20_000) for _ in range(3))
        burst = min(cost(qos, 20, 2_000) for _ in range(3))
        print(f"  QoS {qos}: {single:6.2f} one at a time, {burst:6.2f} in bursts of 20")


if __name__ == "__main__":
    main()
