"""Publish the broker's own state under `$SYS`, with the names that mosquitto made usual.

Every `sys_interval_s` the values that changed are published, retained. Load averages are
exponential over 1, 5 and 15 minutes, in units a minute. Beside mosquitto's names stand
counters by packet type (`$SYS/broker/mqtt/<packet>/received|sent`) and drops by reason.
"""

from __future__ import annotations

import math
from typing import Final, cast

from mqtt_broker.codec.constants import PACKET_NAMES, PUBLISH
from mqtt_broker.core.clients.connection import Connection
from mqtt_broker.core.clients.state import BrokerState
from mqtt_broker.core.runtime.timers import Timer
from mqtt_broker.version import __version__, build_time
from sessions.messages.message import single

ROOT: Final = "$SYS/broker/"
STORE_OK: Final = "ok"
_BUILT: Final = build_time()
_PERIODS: Final = (("1min", 60.0), ("5min", 300.0), ("15min", 900.0))


class _Report:
    """The values published last, and the load averages that grow from report to report."""

    def __init__(self, broker: BrokerState, now: float) -> None:
        self.broker = broker
        self.told: dict[str, str] = {}
        self.at = now
        self.heap_bytes_max = 0
        self._counted: dict[str, int] = {}
        self._loads: dict[tuple[str, str], float] = {}

    def values(self, now: float) -> dict[str, str]:
        values = gauges(self.broker, now)
        heap = self.broker.runtime.heap_bytes()
        self.heap_bytes_max = max(self.heap_bytes_max, heap)
        values["heap/current"] = str(heap)
        values["heap/maximum"] = str(self.heap_bytes_max)
        values.update(self._load_averages(now))
        return values

    def _load_averages(self, now: float) -> dict[str, str]:
        elapsed = now - self.at
        self.at = now
        values: dict[str, str] = {}
        for name, total in _rates(self.broker).items():
            a_minute = (total - self._counted.get(name, 0)) * 60 / elapsed if elapsed else 0.0
            self._counted[name] = total
            for label, period in _PERIODS:
                weight = math.exp(-elapsed / period)
                load = a_minute * (1 - weight) + self._loads.get((name, label), 0.0) * weight
                self._loads[name, label] = load
                values[f"load/{name}/{label}"] = f"{load:.2f}"
        return values


def gauges(broker: BrokerState, now: float) -> dict[str, str]:
    counters = broker.counters
    backlog = broker.backlog
    online = len(broker.clients.connections)
    total = len(broker.sessions)
    numbers = {
        "clients/total": total,
        "clients/connected": online,
        "clients/active": online,
        "clients/disconnected": total - online,
        "clients/inactive": total - online,
        "clients/maximum": counters.clients_maximum,
        "clients/expired": counters.clients_expired,
        "messages/received": sum(counters.packets_received),
        "messages/sent": sum(counters.packets_sent) + backlog.published,
        "messages/stored": len(broker.retained) + backlog.queued_messages,
        "store/messages/count": len(broker.retained) + backlog.queued_messages,
        "store/messages/bytes": broker.retained.bytes + backlog.queued_bytes,
        "bytes/received": counters.bytes_received,
        "bytes/sent": counters.bytes_sent,
        "publish/messages/received": counters.packets_received[PUBLISH],
        "publish/messages/sent": publishes_sent(broker),
        "publish/messages/dropped": sum(backlog.dropped.values()),
        "publish/bytes/received": counters.publish_bytes_received,
        "publish/bytes/sent": publish_bytes_sent(broker),
        "subscriptions/count": broker.routes.count,
        "subscriptions/bytes": broker.subscriptions.limits.bytes,
        "shared_subscriptions/count": broker.routes.shared_count,
        "retained messages/count": len(broker.retained),
        "retained messages/bytes": broker.retained.bytes,
        "connections/socket/count": len(broker.clients.links),
        "bytes/unread": broker.outboxes.waiting_bytes,
        "bytes/aliases": broker.aliases.bytes,
        "bytes/incomplete": broker.incomplete.bytes,
        "bytes/inflight": backlog.inflight_bytes,
        "messages/inflight": _inflight(broker),
        "packet/out/count": _packets_out(broker),
        "packet/out/bytes": broker.outboxes.waiting_bytes,
        "sessions/bytes": broker.sessions.state.bytes,
    }
    for reason, count in broker.backpressure.held().items():
        numbers[f"clients/held/{reason}"] = count
    for packet_type, name in PACKET_NAMES.items():
        numbers[f"mqtt/{name}/received"] = counters.packets_received[packet_type]
        numbers[f"mqtt/{name}/sent"] = counters.packets_sent[packet_type]
    numbers["mqtt/publish/sent"] = publishes_sent(broker)
    for reason, count in backlog.dropped.items():
        numbers[f"publish/messages/dropped/{reason}"] = count
    for reason, count in counters.refusals().items():
        numbers[f"refused/{reason}"] = count
    if counters.throttled:
        numbers["clients/throttled"] = counters.throttled
    values = {name: str(number) for name, number in numbers.items()}
    values.update(broker.runtime.metrics.values())
    if broker.journal is not None:
        values["store/state"] = broker.backpressure.store_state or STORE_OK
    values["timestamp"] = _BUILT
    values["version"] = f"fleetmq version {__version__}"
    values["uptime"] = f"{int(now - counters.started_at)} seconds"
    return values


def _inflight(broker: BrokerState) -> int:
    """Count the messages that connected clients have not acknowledged: a hundred ns a client."""
    connections = cast(dict[str, Connection], broker.clients.connections)
    return sum(len(client.session.outbound.window.unacked) for client in connections.values())


def publishes_sent(broker: BrokerState) -> int:
    """Count the PUBLISH packets that were sent, whichever way they went."""
    return broker.counters.packets_sent[PUBLISH] + broker.backlog.published


def publish_bytes_sent(broker: BrokerState) -> int:
    """Count the bytes of the PUBLISH packets that were sent."""
    return broker.counters.publish_bytes_sent + broker.backlog.published_bytes


def _packets_out(broker: BrokerState) -> int:
    """Estimate the packets that wait for their sockets, by the mean size of a PUBLISH.

    Unread bytes are nearly all of PUBLISH packets. To count them would take a look at each.
    """
    unread = broker.outboxes.waiting_bytes
    clients = len(broker.outboxes.unread)
    size = publish_bytes_sent(broker)
    return max(clients, round(unread * publishes_sent(broker) / size)) if size else clients


def _rates(broker: BrokerState) -> dict[str, int]:
    counters = broker.counters
    backlog = broker.backlog
    return {
        "messages/received": sum(counters.packets_received),
        "messages/sent": sum(counters.packets_sent) + backlog.published,
        "publish/received": counters.packets_received[PUBLISH],
        "publish/sent": publishes_sent(broker),
        "publish/dropped": sum(backlog.dropped.values()),
        "bytes/received": counters.bytes_received,
        "bytes/sent": counters.bytes_sent,
        "sockets": counters.sockets,
        "connections": counters.connections,
    }


class SysTopics:
    """Publishes the values every `sys_interval_s`, while that is not 0."""

    __slots__ = ("_broker", "_report", "_timer")

    def __init__(self, broker: BrokerState, now: float) -> None:
        self._broker = broker
        self._report = _Report(broker, now)
        self._timer: Timer | None = None

    def start(self, now: float) -> None:
        """Publish now and arm the timer for the next time; after a change of the interval, too."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._broker.settings.sys_interval_s:
            self._publish(now)

    def _publish(self, now: float) -> None:
        broker, told = self._broker, self._report.told
        self._timer = broker.timers.at(now + broker.settings.sys_interval_s, self._publish)
        for name, value in self._report.values(now).items():
            if told.get(name) != value:
                told[name] = value
                message = single(
                    ROOT + name, value.encode(), retain=True, publisher="$broker", now=now
                )
                broker.router.publish(message, None, now)


def publish_log_line(broker: BrokerState, letter: str, text: str, now: float) -> None:
    """Publish a line of the log under the letter of its level."""
    message = single(ROOT + f"log/{letter}", text.encode(), publisher="$broker", now=now)
    broker.router.publish(message, None, now)


def publish_store_state(broker: BrokerState, now: float) -> None:
    """Publish the state of the store at once: operators wait for it."""
    state = (broker.backpressure.store_state or STORE_OK).encode()
    topic = ROOT + "store/state"
    message = single(topic, state, retain=True, publisher="$broker", now=now)
    broker.router.publish(message, None, now)
