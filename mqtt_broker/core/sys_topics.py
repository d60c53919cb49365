"""`$SYS`: what the broker says of itself, under the names that mosquitto made usual.

Every `sys_interval_s` the values that changed are published, retained. Load averages are
exponential over 1, 5 and 15 minutes, in units a minute. Beside mosquitto's names stand
counters by packet type (`$SYS/broker/mqtt/<packet>/received|sent`) and drops by reason.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from mqtt_broker.codec.constants import PACKET_NAMES, PUBLISH, STRING_BYTES_MAX
from mqtt_broker.core.inbound.publish import publish
from mqtt_broker.version import __version__
from sessions.messages.message import single

if TYPE_CHECKING:
    from mqtt_broker.core.broker import Broker

ROOT: Final = "$SYS/broker/"
STORE_OK: Final = "ok"
_PERIODS: Final = (("1min", 60.0), ("5min", 300.0), ("15min", 900.0))


class _Report:
    """The values told last, and the load averages that grow from one report to the next."""

    def __init__(self, broker: Broker, now: float) -> None:
        self.broker = broker
        self.told: dict[str, str] = {}
        self.at = now
        self.heap_bytes_max = 0
        self._counted: dict[str, int] = {}
        self._loads: dict[tuple[str, str], float] = {}

    def values(self, now: float) -> dict[str, str]:
        values = _gauges(self.broker, now)
        heap = self.broker.heap_bytes()
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


def _gauges(broker: Broker, now: float) -> dict[str, str]:
    stats = broker.stats
    budget = broker.budget
    online = len(broker.connections)
    total = len(broker.sessions)
    numbers = {
        "clients/total": total,
        "clients/connected": online,
        "clients/active": online,
        "clients/disconnected": total - online,
        "clients/inactive": total - online,
        "clients/maximum": stats.clients_maximum,
        "clients/expired": stats.clients_expired,
        "messages/received": sum(stats.packets_received),
        "messages/sent": sum(stats.packets_sent) + broker.budget.published,
        "messages/stored": len(broker.retained) + budget.queued_messages,
        "store/messages/count": len(broker.retained) + budget.queued_messages,
        "store/messages/bytes": broker.retained_bytes + budget.queued_bytes,
        "bytes/received": stats.bytes_received,
        "bytes/sent": stats.bytes_sent,
        "publish/messages/received": stats.packets_received[PUBLISH],
        "publish/messages/sent": broker.publishes_sent,
        "publish/messages/dropped": sum(budget.dropped.values()),
        "publish/bytes/received": stats.publish_bytes_received,
        "publish/bytes/sent": stats.publish_bytes_sent,
        "subscriptions/count": broker.routes.count,
        "shared_subscriptions/count": broker.routes.shared_count,
        "retained messages/count": len(broker.retained),
        "connections/socket/count": len(broker.links),
    }
    for packet_type, name in PACKET_NAMES.items():
        numbers[f"mqtt/{name}/received"] = stats.packets_received[packet_type]
        numbers[f"mqtt/{name}/sent"] = stats.packets_sent[packet_type]
    numbers["mqtt/publish/sent"] = broker.publishes_sent
    for reason, count in budget.dropped.items():
        numbers[f"publish/messages/dropped/{reason}"] = count
    for reason, count in stats.refusals().items():
        numbers[f"refused/{reason}"] = count
    if broker.stats.throttled:
        numbers["clients/throttled"] = broker.stats.throttled
    for name, number in broker.access_figures().items():
        numbers[f"access/{name}"] = number
    for name, number in broker.store_figures().items():
        numbers[f"store/journal/{name}"] = number
    numbers.update(broker.log_figures())
    values = {name: str(number) for name, number in numbers.items()}
    values.update(broker.watch_figures())
    if broker.journal is not None:
        values["store/state"] = broker.store_state or STORE_OK
    values["version"] = f"fleetmq version {__version__}"
    values["uptime"] = f"{int(now - stats.started_at)} seconds"
    return values


def _rates(broker: Broker) -> dict[str, int]:
    stats = broker.stats
    return {
        "messages/received": sum(stats.packets_received),
        "messages/sent": sum(stats.packets_sent) + broker.budget.published,
        "publish/received": stats.packets_received[PUBLISH],
        "publish/sent": broker.publishes_sent,
        "publish/dropped": sum(broker.budget.dropped.values()),
        "bytes/received": stats.bytes_received,
        "bytes/sent": stats.bytes_sent,
        "sockets": stats.sockets,
        "connections": stats.connections,
    }


def start(broker: Broker, now: float) -> None:
    """Publish the first values now and arm the timer for the next."""
    report = _Report(broker, now)

    def tell(then: float) -> None:
        broker.timers.at(then + broker.settings.sys_interval_s, tell)
        for name, value in report.values(then).items():
            if report.told.get(name) != value:
                report.told[name] = value
                message = single(
                    ROOT + name, value.encode(), retain=True, publisher="$broker", now=then
                )
                publish(broker, message, None, then)

    tell(now)


def publish_store_state(broker: Broker, now: float) -> None:
    """At once, since it is what operators wait for."""
    state = (broker.store_state or STORE_OK).encode()
    topic = ROOT + "store/state"
    publish(broker, single(topic, state, retain=True, publisher="$broker", now=now), None, now)


def publish_event(broker: Broker, client_id: str, what: str, body: str, now: float) -> None:
    """One event of one client. A client id may hold what a topic level may not: it is quoted."""
    quoted = client_id.replace("%", "%25").replace("/", "%2F").replace("+", "%2B")
    topic = f"{ROOT}clients/{quoted.replace('#', '%23')}/{what}"
    if len(topic.encode()) > STRING_BYTES_MAX:
        return  # a name so long that no topic can hold it
    publish(broker, single(topic, body.encode(), publisher="$broker", now=now), None, now)
