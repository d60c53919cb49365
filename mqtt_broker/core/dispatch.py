"""Turn bytes into packets and act on them; the only catch of `Violation`.

    receive       every byte that the kernel had for a connection
    resume        a verdict that came later
    admit_ready   clients whose CONNACK waited for the store

PUBLISH is asked for first, the rest goes through a small table. A Violation is answered with its
reason code, in CONNACK before the session and in DISCONNECT after, and costs this connection
only. Any other exception is an internal error: it closes this connection with 0x80, and the
embedder is told.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from mqtt_broker.codec import reasons
from mqtt_broker.codec.constants import PINGREQ, PINGRESP
from mqtt_broker.codec.encode import PINGRESP_BYTES
from mqtt_broker.codec.errors import Violation
from mqtt_broker.codec.packets import (
    Ack,
    Auth,
    Connect,
    Disconnect,
    Packet,
    Pingreq,
    Publish,
    Subscribe,
    Unsubscribe,
)
from mqtt_broker.core.clients.connection import ACTIVE, CLOSED, NEW, WAITING, Connection
from mqtt_broker.core.clients.state import BrokerState
from mqtt_broker.core.inbound import (
    acknowledge,
    auth,
    connect,
    disconnect,
    publish,
    subscribe,
)
from mqtt_broker.core.interfaces.access import Verdict
from mqtt_broker.core.runtime.backpressure import UNDECIDED


def receive(connection: Connection, data: bytes, now: float, ack_runs: int = 0) -> int:
    """Act on what the peer sent, and tell the link whether it only acknowledges by now.

    Takes and returns how many runs of acknowledgements came in a row with nothing else between
    them; -1 once the peer has published.
    """
    if connection.state == CLOSED:
        return ack_runs
    connection.broker.counters.bytes_received += len(data)
    bucket = connection.bucket
    try:
        packets = connection.decoder.feed(data)
        if packets:
            connection.last_heard_at = now
            ack_runs = _take(connection, packets, now, ack_runs)
        elif connection.state == NEW and connection.handshake is not None:
            if not connection.handshake.count(len(data)):
                _end_for_memory(connection, now)
        if bucket is not None:
            connection.pay(bucket, packets, len(data), now)
    except Exception as error:
        connection.on_error(error, data, now)
    return ack_runs


def resume(connection: Connection, verdict: Verdict, now: float) -> None:
    """Carry on with a late verdict. One that comes too late, or a second one, is ignored."""
    handshake = connection.handshake
    if handshake is None or not handshake.is_undecided or connection.state == CLOSED:
        return
    handshake.decide()
    connection.resume(UNDECIDED)
    try:
        _act_on_verdict(connection, verdict, now)
    except Exception as error:
        connection.on_error(error, b"", now)


def admit_ready(broker: BrokerState, now: float) -> None:
    """Go on with clients that waited for the store: it has more on disk."""
    for client_id, client in list(broker.clients.arriving.items()):
        if not broker.sessions.is_on_disk(client_id):
            continue
        assert isinstance(client, Connection)
        handshake = client.handshake
        verdict = None if handshake is None else handshake.stop_waiting()
        if verdict is None:
            continue
        try:
            connect.go_on(client, verdict, now)
            _take_deferred(client, now)
        except Exception as error:  # ours: it costs this client, and not those behind it
            client.on_error(error, b"", now)


class Reply:
    """Carries a late verdict to the connection that asked. Too late, or a second one: ignored."""

    __slots__ = ("_connection",)

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    @property
    def is_wanted(self) -> bool:
        connection = self._connection
        handshake = connection.handshake
        return handshake is not None and handshake.awaits(self) and connection.state != CLOSED

    def __call__(self, verdict: Verdict, now: float) -> None:
        if self.is_wanted:
            resume(self._connection, verdict, now)


def _take(connection: Connection, packets: list[Packet | Violation], now: float, runs: int) -> int:
    """Act on packets in their order, while the connection stands; returns the runs of Acks."""
    for index, packet in enumerate(packets):
        state = connection.state
        if state == ACTIVE:
            if type(packet) is Publish:
                runs = -1
                publish.on_publish(connection, packet, now)
            elif type(packet) is Ack:
                if runs >= 0:
                    runs += 1
                acknowledge.on_ack(connection, packet, now)
            else:
                if runs >= 0:
                    runs = 0  # it may be about to ask for more
                _dispatch(connection, packet, now)
        elif state == CLOSED:  # what follows a refused CONNECT too. [MQTT-3.1.4-6]
            return runs
        elif state == WAITING and not _exchanges(connection):
            handshake = connection.handshake
            assert handshake is not None
            if not handshake.defer(packets[index:]):
                _end_for_memory(connection, now)
            return runs
        else:
            _dispatch(connection, packet, now)
    return runs


def _exchanges(connection: Connection) -> bool:
    """Tell whether the CONNECT is being decided by an exchange of AUTH packets."""
    handshake = connection.handshake
    return handshake is not None and handshake.proceed is not None


def _take_deferred(connection: Connection, now: float) -> None:
    """Act on what a client sent behind its CONNECT, once it is connected."""
    handshake = connection.handshake
    if handshake is None or connection.state != ACTIVE:
        return
    packets = handshake.take_deferred()
    connection.close_handshake()
    _take(connection, packets, now, 0)


def _end_for_memory(connection: Connection, now: float) -> None:
    connection.broker.counters.refuse("connect", "connecting_bytes")
    connection.end(now, say=False, why="too much memory for CONNECTs")


def _dispatch(connection: Connection, packet: Packet | Violation, now: float) -> None:
    if type(packet) is Violation:
        raise packet
    if connection.state == WAITING and type(packet) not in (Auth, Disconnect):
        raise Violation(
            reasons.PROTOCOL_ERROR, "MQTT-3.1.2-30", "only AUTH may follow until CONNACK"
        )
    act = _ACTS.get(type(packet))
    assert act is not None, "the decoder lets only a client's packets through"
    act(connection, packet, now)


def _on_connect(connection: Connection, packet: Connect, now: float) -> None:
    connect.on_connect(connection, packet, Reply(connection), now)
    _take_deferred(connection, now)


def _on_auth(connection: Connection, packet: Auth, now: float) -> None:
    _act_on_verdict(connection, auth.on_auth(connection, packet, Reply(connection)), now)


def _act_on_verdict(connection: Connection, verdict: Verdict, now: float) -> None:
    if connection.state == ACTIVE:
        auth.act_on_verdict(connection, verdict, now)
    else:
        connect.act_on_verdict(connection, verdict, now)
        _take_deferred(connection, now)


def _on_pingreq(connection: Connection, packet: Pingreq, now: float) -> None:
    counters = connection.broker.counters
    counters.packets_received[PINGREQ] += 1
    counters.packets_sent[PINGRESP] += 1
    connection.send(PINGRESP_BYTES)  # [MQTT-3.12.4-1]


_ACTS: Final[dict[type, Callable[[Connection, Any, float], None]]] = {
    Pingreq: _on_pingreq,
    Subscribe: subscribe.on_subscribe,
    Unsubscribe: subscribe.on_unsubscribe,
    Disconnect: disconnect.on_disconnect,
    Connect: _on_connect,
    Auth: _on_auth,
}
