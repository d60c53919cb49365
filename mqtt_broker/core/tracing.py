"""Begin and end traces: taps on the connections they want, and the publications of their topics."""

from __future__ import annotations

from collections.abc import Callable

from mqtt_broker.codec.packets import Publish
from mqtt_broker.core.clients.connection import ACTIVE, Connection
from mqtt_broker.core.clients.state import BrokerState
from mqtt_broker.core.clients.tap import Tap, shown_payload
from mqtt_broker.core.routing.routes import Route
from mqtt_broker.recorder.traces import Trace, Traces

_RECEIVERS_SHOWN = 20


class Tracing:
    """The traces of a broker. While none runs, nothing looks at them."""

    def __init__(self, broker: BrokerState, clock: Callable[[], float]) -> None:
        self._broker = broker
        self._clock = clock
        self.traces = Traces()

    def begin(self, now: float, **wanted: object) -> Trace:
        """Begin a trace; it is for the clients that are connected, and those that come."""
        trace = self.traces.add(now, **wanted)  # type: ignore[arg-type]
        self._broker.trace_with(self)
        for connection in list(self._broker.clients.connections.values()):
            assert isinstance(connection, Connection)
            self.attach(connection)
        self._broker.timers.at(trace.ends_at, lambda then: self._end(trace))
        return trace

    def _end(self, trace: Trace) -> None:
        trace.end()
        self.settle()

    def remove(self, number: int) -> bool:
        """End a trace; False: there is none."""
        found = self.traces.remove(number)
        self.settle()
        return found

    def settle(self) -> None:
        """Take away the taps that no trace wants any more."""
        for connection in list(self._broker.clients.connections.values()):
            assert isinstance(connection, Connection)
            if connection.tap is not None and connection.tap.is_over:
                connection.untap()
        if all(trace.is_over for trace in self.traces.running.values()):
            self._broker.trace_with(None)

    def attach(self, connection: Connection) -> None:
        """Tap a connection that a trace wants."""
        if connection.state != ACTIVE:
            return
        client_id = connection.session.client_id
        wanted = self.traces.of_client(client_id, connection.address)
        if not wanted:
            return
        connection.untap()
        outbox = connection.outbox
        connection.tap_with(Tap(client_id, connection.version, outbox.write, wanted, self._clock))

    def published(
        self, connection: Connection, packet: Publish, topic: str, route: Route, now: float
    ) -> None:
        """Show a run of PUBLISH to the traces of its topic, and who it matched."""
        for trace in self.traces.of_topic(topic):
            receivers = route.receivers()
            for payload in packet.payloads():
                line: dict[str, object] = {
                    "at": round(now, 3),
                    "client": connection.session.client_id,
                    "direction": "received",
                    "packet": "PUBLISH",
                    "topic": topic,
                    "qos": packet.qos,
                    "retain": bool(packet.retain),
                    "bytes": len(payload),
                    "matched": len(receivers.clients) + len(receivers.groups),
                    "receivers": list((receivers.clients + receivers.groups)[:_RECEIVERS_SHOWN]),
                }
                if trace.has_payloads:
                    line.update(shown_payload(payload))
                trace.add(line)
