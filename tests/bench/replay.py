"""What it costs to read a stream over MQTT, in CPU microseconds a message: no sockets.

    python tests/bench/replay.py

Everything is counted, reading and decoding included: what the broker does in threads is done
here between two turns. A QoS 1 client acknowledges what it gets, a window at a time.
"""

from __future__ import annotations

import pathlib
import random
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any, NamedTuple

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))

from mqtt_broker.codec import properties as prop
from mqtt_broker.codec.constants import V5, V311
from mqtt_broker.codec.encode import encode_connect, encode_subscribe
from mqtt_broker.codec.packets import Connect, Subscribe, SubscriptionRequest
from mqtt_broker.codec.properties import NO_PROPERTIES, Properties
from mqtt_broker.core import dispatch
from mqtt_broker.core.broker import Broker
from mqtt_broker.core.interfaces.message_log import StreamSubscriptions, TopicWriter
from mqtt_broker.core.limits.settings import Settings as CoreSettings
from mqtt_broker.server.services.streams import replay_host
from mqtt_broker.streams.format.stream_settings import StreamSettings
from mqtt_broker.streams.replay.service import ReplayService
from mqtt_broker.streams.write.log import Log
from mqtt_broker.streams.write.writer import LogWriter

NOW = 1_000.0
MESSAGES = 200_000
DEVICES = 1_000
TURN = 200  # messages of a batch: what came in one turn
STREAM = "$stream/bench"


class ReadOnlyLog(NamedTuple):
    """A message log that is read, and that nothing published goes to."""

    subscriptions: StreamSubscriptions

    def find(self, topic: str) -> TopicWriter | None:
        return None


class Link:
    """Takes everything; finds the packet ids when it is to."""

    peer = "bench"

    def __init__(self) -> None:
        self.chunks: list[bytes] = []
        self.bytes = 0

    def write(self, data: bytes) -> int:
        self.chunks.append(data)
        self.bytes += len(data)
        return 0

    def close(self) -> None: ...

    def abort(self) -> None: ...

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


def fill(root: pathlib.Path, *, run: int) -> Log:
    """Messages of many devices, in runs of so many of one."""
    log = Log.open(root, report=print)
    stream = log.create(StreamSettings("bench", partitions=4))
    writer = LogWriter(log)
    rng = random.Random(1)
    at_us = 1_700_000_000_000_000
    for number in range(MESSAGES // TURN):
        for _ in range(TURN // run):
            device = rng.randrange(DEVICES)
            at_us += 13
            payloads = [b'{"t": %09d, "v": 21.5}' % rng.randrange(10**9) + bytes(36)] * run
            writer.append(
                stream, f"fleet/{device:04d}/telemetry", f"device{device:04d}", payloads, at_us
            )
        writer.assign(number)
        writer.committed(writer.write(number))
    return log


def cost(log: Log, version: int, qos: int, receive_maximum: int) -> tuple[float, float]:
    """(CPU us a message, of it on the loop)."""
    broker = Broker(CoreSettings(sys_interval_s=0), now=NOW, rng=random.Random(1))
    reads: list[tuple[Callable[[], Any], Callable[[Any], None]]] = []
    replay = ReplayService(
        log, replay_host(broker), lambda work, done: reads.append((work, done)), lambda: NOW
    )
    broker.attach_log(ReadOnlyLog(replay))
    link = Link()
    connection = broker.accept(link, NOW)
    found = NO_PROPERTIES
    if version == V5:
        found = Properties({prop.RECEIVE_MAXIMUM: receive_maximum})
    dispatch.receive(connection, encode_connect(Connect(version, "reader", properties=found)), NOW)
    connection.session.outbound.window.limit = receive_maximum
    request = Subscribe(1, [SubscriptionRequest(f"{STREAM}/@earliest", qos)])
    began = time.process_time()
    loop_s = 0.0
    dispatch.receive(connection, encode_subscribe(version, request), NOW)
    window = connection.session.outbound.window
    while True:
        broker.flush(NOW)
        link.chunks.clear()
        if window.unacked:
            ids = [b"\x40\x02" + number.to_bytes(2, "big") for number in window.unacked]
            before = time.process_time()
            dispatch.receive(connection, b"".join(ids), NOW)
            loop_s += time.process_time() - before
        elif not reads:
            break
        if reads:
            work, done = reads.pop(0)
            page = work()
            before = time.process_time()
            done(page)
            loop_s += time.process_time() - before
    total_s = time.process_time() - began
    assert replay.context.counters.messages == MESSAGES, replay.context.counters.messages
    return total_s * 1e6 / MESSAGES, loop_s * 1e6 / MESSAGES


def main() -> None:
    print("replay: CPU us a message (of it on the loop), and messages a second on one core")
    for run in (1, 20):
        with tempfile.TemporaryDirectory() as folder:
            log = fill(pathlib.Path(folder) / "streams", run=run)
            for name, version, qos in (
                ("MQTT 5,     QoS 0", V5, 0),
                ("MQTT 3.1.1, QoS 0", V311, 0),
                ("MQTT 5,     QoS 1", V5, 1),
                ("MQTT 3.1.1, QoS 1", V311, 1),
            ):
                us, loop_us = min(cost(log, version, qos, 100) for _ in range(3))
                print(f"  runs of {run:2}: {name}  {us:6.2f} ({loop_us:5.2f})  {1e6 / us:9,.0f}")
            log.close()


if __name__ == "__main__":
    main()
