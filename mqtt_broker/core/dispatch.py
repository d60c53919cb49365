"""Turn bytes into packets and act on them; the only catch of `Violation`.

    receive       every byte that the kernel had for a connection
    hold          bytes of no whole packet that a layer below keeps for it
    resume        a verdict that came later
    admit_ready   clients whose CONNACK waited for the store
    HeldClient    the packets of a client that had more than its share of a turn

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
from mqtt_broker.core.clients.connection import ACTIVE, CLOSED, WAITING, Connection
from mqtt_broker.core.clients.state import BrokerState
from mqtt_broker.core.clients.tap import RECEIVED
from mqtt_broker.core.inbound import (
    acknowledge,
    admission,
    auth,
    connect,
    disconnect,
    publish,
    subscribe,
)
from mqtt_broker.core.interfaces.access import Verdict
from mqtt_broker.core.limits.incomplete_packets import SMALL_BYTES
from mqtt_broker.core.runtime.backpressure import UNDECIDED
from sessions.messages.work import BYTES_A_UNIT, DONE, MORE, PACKET, WAITS

_LONG_S: Final = 1.0  # that a client is held, until it is said
_LOOK_AGAIN_S: Final = 0.05  # whether an operation has to wait


def receive(connection: Connection, data: bytes, now: float, ack_runs: int = 0) -> int:
    """Act on what the peer sent, and tell the link whether it only acknowledges by now.

    Takes and returns how many runs of acknowledgements came in a row with nothing else between
    them; -1 once the peer has published.
    """
    if connection.state == CLOSED:
        return ack_runs
    broker = connection.broker
    broker.counters.bytes_received += len(data)
    connection.bytes_in += len(data)
    bucket = connection.bucket
    outboxes = broker.outboxes
    before = outboxes.turn_bytes
    try:
        unfinished = connection.unfinished
        if unfinished is not None and unfinished.is_held:  # it came all the same: behind the rest
            connection.decoder.keep(data)
            hold(connection, 0, now)
            return 0
        work = broker.work
        work.spent += len(data) // BYTES_A_UNIT
        work.limit = work.spent + work.share  # as `begin` does: a call less a read
        packets = connection.decoder.feed(data)
        if packets:
            connection.last_heard_at = now
            if connection.tap is not None:
                connection.tap.show(packets, RECEIVED, now)
            ack_runs = _take(connection, packets, now, ack_runs)
            if connection.decoder.has_more:
                _take_more(connection, now)
                ack_runs = 0
        kept = connection.decoder.buffered_bytes
        if kept > SMALL_BYTES or connection.state < ACTIVE or connection.is_incomplete:
            hold(connection, 0, now, is_new=len(packets) > 0)
        if bucket is not None:
            connection.pay(bucket, _messages(packets), len(data), now)
        if outboxes.has_left or len(outboxes.dirty) > outboxes.writes_max:
            outboxes.write(connection.outbox, now)  # its answers do not wait for all the others
            if outboxes.is_full and outboxes.turn_bytes > before and connection.state == ACTIVE:
                broker.backpressure.wait_for_output(connection, now)
    except Exception as error:
        connection.on_error(error, data, now)
    return ack_runs


def hold(connection: Connection, below: int, now: float, *, is_new: bool = False) -> None:
    """Count what is kept of incomplete packets of a client: by its decoder, and by the layers
    below it. `is_new`: it has completed one.
    """
    size = connection.decoder.buffered_bytes + below
    if connection.state == ACTIVE:
        if connection.unfinished is not None:
            size += connection.unfinished.bytes
        connection.count_incomplete(size, now, is_new=is_new)
        return
    handshake = connection.handshake
    if connection.state < ACTIVE and handshake is not None:
        if not handshake.hold(size):
            connection.end_for_memory(now)


def resume(connection: Connection, verdict: Verdict, now: float) -> None:
    """Carry on with a late verdict. One that comes too late, or a second one, is ignored."""
    handshake = connection.handshake
    if handshake is None or not handshake.is_undecided or connection.state == CLOSED:
        return
    handshake.decide()
    connection.resume(UNDECIDED)
    connection.broker.work.begin()
    try:
        _act_on_verdict(connection, verdict, now)
        _take_deferred(connection, now)
    except Exception as error:
        connection.on_error(error, b"", now)


def admit_ready(broker: BrokerState, now: float) -> None:
    """Go on with clients that waited for the store: it has more on disk."""
    for client_id in list(broker.clients.arriving):
        _admit_if_ready(broker, client_id, now)


def admit_finished(broker: BrokerState, now: float) -> None:
    """Go on with clients that waited for what their earlier connections left to do."""
    for client_id in broker.clients.take_ready():
        _admit_if_ready(broker, client_id, now)


def _admit_if_ready(broker: BrokerState, client_id: str, now: float) -> None:
    """Go on with the client of this id that waits, if what it waited for has come."""
    client = broker.clients.arriving.get(client_id)
    if client is None or not admission.is_ready(broker, client_id):
        return
    assert isinstance(client, Connection)
    handshake = client.handshake
    verdict = None if handshake is None else handshake.stop_waiting()
    if verdict is None:
        return
    broker.work.begin()
    try:
        connect.go_on(client, verdict, now)
        _end_handshake(client)
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


class HeldClient:
    """A client that asked for more than its share of a turn: it goes on in the next ones."""

    __slots__ = ("_connection", "_since")

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._since = 0.0  # when it first went on

    def go_on(self, now: float) -> int:
        """Go on with the operation under way, then with the packets behind it."""
        connection = self._connection
        unfinished = connection.unfinished
        assert unfinished is not None
        self._note(now)
        if connection.broker.outboxes.is_full:  # it may be what fills them
            return MORE
        try:
            if unfinished.operation is not None:
                outcome = unfinished.operation.go_on(now)
                if outcome == WAITS:  # for the disk
                    connection.broker.timers.at(now + _LOOK_AGAIN_S, self._look_again)
                if outcome != DONE:
                    return outcome
                unfinished.end_operation()
            if not connection.broker.work.is_over:
                _take_more(connection, now)
        except Exception as error:
            unfinished.end_operation()
            connection.on_error(error, b"", now)
        if unfinished.operation is not None or _has_more(connection):
            return MORE
        connection.release(now)
        if connection.is_incomplete:
            hold(connection, 0, now, is_new=True)
        if connection.has_session:
            connection.broker.clients.finish(connection.session.client_id)
        return DONE

    def _look_again(self, now: float) -> None:
        """Go on in the next turn with what had to wait."""
        self._connection.broker.runtime.agenda.add(self)

    def _note(self, now: float) -> None:
        """Have it said, if it takes long."""
        if not self._since:
            self._since = now
        elif now - self._since >= _LONG_S:
            self._connection.broker.backpressure.note_work(
                self._connection, int(now - self._since), now
            )


def _has_more(connection: Connection) -> bool:
    """Tell whether packets of it wait, decoded or not."""
    if connection.state == CLOSED:
        return False
    unfinished = connection.unfinished
    return connection.decoder.has_more or (unfinished is not None and len(unfinished.packets) > 0)


def _take_more(connection: Connection, now: float) -> None:
    """Act on packets that wait, as far as the share goes; what is left is held."""
    while connection.operation is None and _has_more(connection):
        if connection.state == WAITING and not _exchanges(connection):
            return
        unfinished = connection.unfinished
        packets = [] if unfinished is None else unfinished.take()
        if not packets:
            packets = connection.decoder.feed(b"")
            if connection.bucket is not None:
                connection.pay(connection.bucket, _messages(packets), 0, now)
        _take(connection, packets, now, 0)
        if connection.broker.work.is_over and _has_more(connection):
            _put_on_agenda(connection, now)
            return


def _put_on_agenda(connection: Connection, now: float) -> None:
    """Let what is left of a client's packets wait for the next turns."""
    if not connection.is_held:
        connection.hold()
        connection.broker.agenda.add(HeldClient(connection))
    hold(connection, 0, now)


def _messages(packets: list[Packet | Violation]) -> int:
    """Count the messages that a client publishes."""
    count = 0
    for packet in packets:
        if type(packet) is Publish:
            count += packet.count
    return count


def _take(connection: Connection, packets: list[Packet | Violation], now: float, runs: int) -> int:
    """Act on packets in their order, while the connection stands; returns the runs of Acks.

    When the share of the client is used up, the rest is held.
    """
    work = connection.broker.work
    work.spent += PACKET * len(packets)
    for index, packet in enumerate(packets):
        state = connection.state
        if state == ACTIVE:
            if type(packet) is Publish:
                runs = -1
                connection.messages_in += packet.count
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
            _defer_to_connack(connection, packets[index:], now)
            return runs
        else:
            _dispatch(connection, packet, now)
        if work.spent >= work.limit and connection.state == ACTIVE:
            if index + 1 < len(packets):
                connection.open_unfinished().defer(packets[index + 1 :])
            if connection.operation is not None or _has_more(connection):
                _put_on_agenda(connection, now)
                return 0
    return runs


def _defer_to_connack(
    connection: Connection, packets: list[Packet | Violation], now: float
) -> None:
    """Keep what came behind a CONNECT that is being decided."""
    connection.open_unfinished().defer(packets)
    handshake = connection.handshake
    assert handshake is not None
    if not handshake.count_packets(packets):
        connection.end_for_memory(now)


def _exchanges(connection: Connection) -> bool:
    """Tell whether the CONNECT is being decided by an exchange of AUTH packets."""
    handshake = connection.handshake
    return handshake is not None and handshake.proceed is not None


def _end_handshake(connection: Connection) -> None:
    """Drop the handshake of a client that is connected."""
    if connection.handshake is not None and connection.state == ACTIVE:
        connection.close_handshake()


def _take_deferred(connection: Connection, now: float) -> None:
    """Act on what a client sent behind its CONNECT, once that is decided."""
    if connection.state == ACTIVE:
        _take_more(connection, now)
        if not connection.is_held:
            connection.release(now)
        hold(connection, 0, now)


def _dispatch(connection: Connection, packet: Packet | Violation, now: float) -> None:
    if type(packet) is Violation:
        raise packet
    if connection.state == WAITING and type(packet) not in (Auth, Disconnect):
        raise Violation(
            reasons.PROTOCOL_ERROR, "MQTT-3.1.2-30", "packet other than AUTH before CONNACK"
        )
    act = _ACTS.get(type(packet))
    assert act is not None, "the decoder lets only a client's packets through"
    act(connection, packet, now)


def _on_connect(connection: Connection, packet: Connect, now: float) -> None:
    connect.on_connect(connection, packet, Reply(connection), now)
    _end_handshake(connection)


def _on_auth(connection: Connection, packet: Auth, now: float) -> None:
    _act_on_verdict(connection, auth.on_auth(connection, packet, Reply(connection)), now)


def _act_on_verdict(connection: Connection, verdict: Verdict, now: float) -> None:
    if connection.state == ACTIVE:
        auth.act_on_verdict(connection, verdict, now)
    else:
        connect.act_on_verdict(connection, verdict, now)
        _end_handshake(connection)


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
