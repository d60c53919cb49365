"""An MQTT client of the fleet. Its Session State outlives its connections.

    idle -> connecting -> awaiting CONNACK -> online -> disconnecting -> idle

The module knows MQTT and nothing of devices: a `ClientOwner` decides what to publish and gets what
arrives. After a reconnect the client sends unacknowledged QoS 1 and 2 messages again. If the
session is gone, it publishes QoS 1 messages anew and abandons QoS 2 messages, which must not
arrive twice.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from iot_sim.devices.device import Publication, Subscription
from iot_sim.fleet.connection_ends import ClosedConnection, ReplacedConnection, Wills
from iot_sim.fleet.context import ClientOptions, ClientOwner, FleetContext
from iot_sim.fleet.encoding import encode_will
from iot_sim.fleet.engine import Link
from iot_sim.fleet.outbound import Outbound
from iot_sim.judge.ledger import Flow
from mqtt_broker.client.other_protocols import other_protocol
from mqtt_broker.codec import properties as prop
from mqtt_broker.codec import reasons
from mqtt_broker.codec.constants import (
    PUBCOMP,
    PUBREC,
    PUBREL,
    RECEIVE_MAXIMUM_DEFAULT,
    V5,
)
from mqtt_broker.codec.decode import Decoder
from mqtt_broker.codec.encode import (
    ID_BYTES,
    PINGREQ_BYTES,
    encode_ack,
    encode_connect,
    encode_disconnect,
    encode_subscribe,
)
from mqtt_broker.codec.errors import Violation
from mqtt_broker.codec.packets import (
    Ack,
    Connack,
    Connect,
    Disconnect,
    Packet,
    Pingresp,
    Publish,
    Suback,
    Subscribe,
    SubscriptionRequest,
    Will,
)
from mqtt_broker.codec.properties import NO_PROPERTIES, Properties
from qos import PACKET_ID_MAX, WrongAck

IDLE: Final = 0
CONNECTING: Final = 1
AWAITING_CONNACK: Final = 2
ONLINE: Final = 3
DISCONNECTING: Final = 4

CONNECT_TIMEOUT_S: Final = 10.0
ACK_WAIT_S: Final = 10.0  # how long DISCONNECT waits for acknowledgements
CLOSE_WAIT_S: Final = 2.0  # how long the broker may take to close after our DISCONNECT
TAKEOVER_S: Final = 5.0  # how long the broker may keep a connection open after a take-over
FILTERS_A_SUBSCRIBE: Final = 500


class Client:
    """The client of one client id, over all its connections."""

    __slots__ = (
        "_attempts",
        "_awaits_pingresp",
        "_connect_us",
        "_decoder",
        "_epoch",
        "_has_received",
        "_inbound",
        "_keep_alive_s",
        "_left_at",
        "_requests",
        "_was_online",
        "away_until",
        "clean_next",
        "context",
        "ends_session",
        "is_fault_injected",
        "is_waiting",
        "lacks_suback",
        "link",
        "options",
        "outbound",
        "owner",
        "state",
        "wills",
    )  # fmt: skip

    def __init__(self, context: FleetContext, options: ClientOptions, owner: ClientOwner) -> None:
        self.context = context
        self.options = options
        self.owner = owner
        self.state = IDLE
        self.link: Link | None = None
        self.outbound = Outbound(context, options)
        self.wills = Wills(context.ledger)
        self.away_until = 0.0  # an injected fault delays the reconnect until then
        self.clean_next = True  # the next connection asks for a clean start
        self.is_fault_injected = False  # an injected fault explains the end of this connection
        self.is_waiting = False  # a reconnect is scheduled
        self.ends_session = False  # the next DISCONNECT ends the session
        self.lacks_suback = False  # the session may be without the last subscriptions
        self._epoch = 0  # counts connections and retries, so that old timers do nothing
        self._attempts = 0
        self._was_online = False
        self._left_at = 0.0
        self._decoder: Decoder | None = None
        self._inbound: set[int] | None = None
        self._requests: dict[int, int] = {}  # packet id of a SUBSCRIBE -> its number of filters
        self._keep_alive_s = 0
        self._connect_us = 0
        self.outbound.has_sent = self._has_received = self._awaits_pingresp = False

    @property
    def is_online(self) -> bool:
        return self.state == ONLINE

    @property
    def has_session(self) -> bool:
        """Tell whether the broker keeps messages while this client is away."""
        return self._was_online and not self.clean_next

    @property
    def unacknowledged(self) -> int:
        """Messages that the broker has not acknowledged."""
        return self.outbound.unacknowledged

    # Connecting and disconnecting.

    def connect(self) -> None:
        if self.state != IDLE:
            return
        self.is_waiting = False
        context = self.context
        now = context.engine.clock.now()
        self._epoch += 1
        if now < self.away_until:
            self.reconnect_after(0.0)
            return
        try:
            self.link = context.engine.connect(context.target, context.address, self)
        except OSError as error:
            self._failed(f"{self.options.client_id}: {error}")
            return
        self.state = CONNECTING
        self.is_fault_injected = False
        context.engine.after(CONNECT_TIMEOUT_S, partial(self._check_connected, self._epoch))

    def _reconnect(self, epoch: int) -> None:
        if epoch == self._epoch and self.state == IDLE:
            self.is_waiting = False
            if self.owner.wants_link():
                self.connect()

    def _check_connected(self, epoch: int) -> None:
        if epoch == self._epoch and self.state in (CONNECTING, AWAITING_CONNACK):
            link = self._drop_link()
            link.close()
            if not self.is_fault_injected:
                self._failed(f"{self.options.client_id}: no CONNACK in {CONNECT_TIMEOUT_S:g} s")
            else:
                self._retry()

    def _failed(self, text: str) -> None:
        self.context.error("connect_failures", f"cannot connect: {text}")
        self._retry()

    def _retry(self) -> None:
        """Reconnect with back-off and jitter, if the owner wants a link then."""
        options = self.options
        delay = min(options.backoff_max_s, options.backoff_min_s * 2.0 ** min(self._attempts, 30))
        self._attempts += 1
        self.reconnect_after(delay * (1 - options.jitter * self.context.rng.random()))

    def reconnect_after(self, seconds: float) -> None:
        self._epoch += 1
        self.is_waiting = True
        engine = self.context.engine
        when = max(engine.clock.now() + seconds, self.away_until)
        engine.at(when, partial(self._reconnect, self._epoch))

    def disconnect(self) -> None:
        """Disconnect once all is acknowledged, after ACK_WAIT_S at the latest."""
        if self.state == ONLINE:
            self.state = DISCONNECTING
            self.context.engine.after(ACK_WAIT_S, partial(self._disconnect_overdue, self._epoch))
            self._disconnect_if_done()

    def _disconnect_overdue(self, epoch: int) -> None:
        if epoch == self._epoch:
            self.disconnect_now()

    def _disconnect_if_done(self) -> None:
        if self.state == DISCONNECTING and not self.unacknowledged:
            self.disconnect_now()

    def disconnect_now(self) -> None:
        if self.state not in (ONLINE, DISCONNECTING) or self.link is None:
            return
        options = self.options
        properties = NO_PROPERTIES
        if self.ends_session and options.session_expiry_s and options.version == V5:
            properties = Properties({prop.SESSION_EXPIRY_INTERVAL: 0})
        link = self._drop_link()
        self.context.counters["goodbyes"] += 1
        link.handler = ClosedConnection(self.wills.take())
        link.write_last(encode_disconnect(options.version, 0, properties))
        self.context.engine.after(CLOSE_WAIT_S, link.close)
        self.owner.on_offline()
        if self.owner.wants_link():  # again, since `disconnect`
            self.reconnect_after(0.0)

    def _drop_link(self) -> Link:
        """Detach the link from this client and return it; the caller closes it."""
        link = self.link
        assert link is not None
        if self.state in (ONLINE, DISCONNECTING):
            self.context.online -= 1
            self._left_at = self.context.engine.clock.now()
        self.link = None
        self.state = IDLE
        self._epoch += 1
        self._decoder = None
        self.outbound.stop()
        if self._requests:
            self._requests.clear()
            self.lacks_suback = True
        return link

    # Events of the link.

    def on_open(self, link: Link) -> None:
        options = self.options
        self.state = AWAITING_CONNACK
        self._decoder = Decoder(from_server=True, version=options.version)
        self._connect_us = self.context.engine.clock.now_us()
        properties = Properties()
        clean = self.clean_next
        if options.version == V5:
            if options.session_expiry_s:
                properties[prop.SESSION_EXPIRY_INTERVAL] = options.session_expiry_s
            if options.receive_maximum != RECEIVE_MAXIMUM_DEFAULT:
                properties[prop.RECEIVE_MAXIMUM] = options.receive_maximum
        else:
            clean = not options.session_expiry_s  # in 3.1.1 the flag also ends the session
        target = self.context.target
        packet = Connect(
            options.version,
            options.client_id,
            clean,
            options.keep_alive_s,
            properties,
            self._will(),
            target.username,
            target.password,
        )
        link.write(encode_connect(packet))

    def _will(self) -> Will | None:
        found = self.owner.will()
        if found is None:
            self.wills.discard()
            return None
        publication, delay_s = found
        options = self.options
        if publication.retain:
            self.context.retained.add(publication.topic)
        number = self.wills.register(options.client_id, min(delay_s, options.session_expiry_s))
        flow = self.wills.flow
        assert flow is not None
        return encode_will(options.version, publication, delay_s, flow, number, self._connect_us)

    def on_data(self, link: Link, data: bytes) -> None:
        self._has_received = True
        decoder = self._decoder
        assert decoder is not None
        if self.state == AWAITING_CONNACK and (other := other_protocol(data)):
            self._on_violation(other)
            return
        now_us = self.context.engine.clock.now_us()
        for packet in decoder.feed(data):
            try:
                if type(packet) is Publish:
                    self._on_publish(packet, now_us)
                elif type(packet) is Ack:
                    self._on_ack(packet, now_us)
                elif isinstance(packet, Violation):
                    raise packet
                else:
                    self._on_packet(packet, now_us)
            except (Violation, WrongAck) as error:
                self._on_violation(str(error))
            if self.link is not link:
                return

    def _on_violation(self, why: str) -> None:
        self.context.error("protocol_errors", f"{self.options.client_id}: {why}")
        self.is_fault_injected = True
        link = self._drop_link()
        if self.options.version == V5:
            link.write_last(encode_disconnect(V5, reasons.PROTOCOL_ERROR))
        link.close()
        self.wills.discard()
        self.owner.on_offline()
        self._retry()

    def on_end(self, link: Link, why: str) -> None:
        if link is not self.link:
            return
        state = self.state
        self._drop_link()
        if state in (CONNECTING, AWAITING_CONNACK):
            self._failed(f"{self.options.client_id}: {why or 'the broker closed'}")
            return
        if not self.is_fault_injected:
            text = why or "closed without DISCONNECT"
            self.context.error(
                "dropped", f"{self.options.client_id}: the broker ended the connection: {text}"
            )
        self.wills.discard()
        self.owner.on_offline()
        self._retry()

    def _on_packet(self, packet: Packet, now_us: int) -> None:
        if isinstance(packet, Connack):
            if self.state != AWAITING_CONNACK:
                raise Violation(reasons.PROTOCOL_ERROR, "MQTT-3.2.0-2", "second CONNACK")
            self._on_connack(packet, now_us)
        elif self.state == AWAITING_CONNACK:
            raise Violation(reasons.PROTOCOL_ERROR, "MQTT-3.2.0-1", "packet before CONNACK")
        elif isinstance(packet, Suback):
            count = self._requests.pop(packet.packet_id, None)
            if count is None or count != len(packet.reasons):
                raise Violation(
                    reasons.PROTOCOL_ERROR, "MQTT-3.8.4-2", "SUBACK that matches no SUBSCRIBE"
                )
            for reason in packet.reasons:
                if reason < 0x80:
                    self.context.counters["subscribed"] += 1
                else:
                    self.context.error(
                        "unsubscribed",
                        f"{self.options.client_id}: SUBSCRIBE refused: {reasons.name(reason)}",
                    )
        elif isinstance(packet, Pingresp):
            self._awaits_pingresp = False
        elif isinstance(packet, Disconnect):
            link = self._drop_link()
            link.close()
            if not self.is_fault_injected:
                self.context.error(
                    "dropped",
                    f"{self.options.client_id}: the broker disconnected:"
                    f" {reasons.name(packet.reason)}",
                )
            self.wills.discard()
            self.owner.on_offline()
            self._retry()
        else:
            raise Violation(reasons.PROTOCOL_ERROR, "MQTT-2.1.2", "unexpected packet type")

    def _on_connack(self, packet: Connack, now_us: int) -> None:
        options, context = self.options, self.context
        link = self.link
        assert link is not None
        if packet.reason:
            self._drop_link()
            link.close()
            name = reasons.name(packet.reason) if options.version == V5 else f"code {packet.reason}"
            self._failed(f"{options.client_id}: the broker refused: {name}")
            return
        now = context.engine.clock.now()
        self.state = ONLINE
        self._attempts = 0
        context.online += 1
        context.counters["connects"] += 1
        context.connect_latency.record(now_us - self._connect_us)
        told = packet.properties
        self._keep_alive_s = told.number(prop.SERVER_KEEP_ALIVE, options.keep_alive_s)
        self._check_session(packet.session_present, now)
        self.outbound.start(link, told)
        self.wills.settle(now, resumed=packet.session_present)
        if self._was_online:
            context.counters["reconnects"] += 1
            if not packet.session_present:
                self._inbound = None
            self.outbound.resend(session_present=packet.session_present)
        self._was_online = True
        self.clean_next = not options.session_expiry_s
        self.outbound.has_sent = self._awaits_pingresp = False
        if self._keep_alive_s:
            context.engine.after(self._keep_alive_s / 2, partial(self._keep_alive, self._epoch))
        self.owner.on_online(packet.session_present)
        self.outbound.pump()

    def _check_session(self, present: bool, now: float) -> None:
        options, counters = self.options, self.context.counters
        if present and self.clean_next and (options.version == V5 or not options.session_expiry_s):
            counters["sessions_strange"] += 1
        if self.clean_next:
            return
        if present:
            counters["resumed"] += 1
        elif options.version != V5 or now - self._left_at < options.session_expiry_s - 1:
            self.context.error("sessions_lost", f"{options.client_id}: the session is gone")

    def _keep_alive(self, epoch: int) -> None:
        if epoch != self._epoch or self.link is None:
            return
        if self._awaits_pingresp and not self._has_received:
            self.context.counters["keep_alive_timeouts"] += 1
            self.take_over()
            return
        if not self.outbound.has_sent:
            self._awaits_pingresp = True
            self.link.write(PINGREQ_BYTES)
        self.outbound.has_sent = self._has_received = False
        self.context.engine.after(self._keep_alive_s / 2, partial(self._keep_alive, epoch))

    def publish(self, flow: Flow, publication: Publication, due_us: int = 0) -> None:
        """Send a publication now, or as soon as the broker's Receive Maximum permits."""
        if self.state in (ONLINE, DISCONNECTING):
            self.outbound.publish(flow, publication, due_us)

    def _on_ack(self, packet: Ack, now_us: int) -> None:
        if packet.packet_type != PUBREL:
            self.outbound.on_ack(packet, now_us)
            self._disconnect_if_done()
            return
        link = self.link
        assert link is not None
        for packet_id in packet.packet_ids:
            if self._inbound is not None:
                self._inbound.discard(packet_id)
            link.write(encode_ack(PUBCOMP, packet_id))

    # Receiving.

    def subscribe(self, wanted: list[Subscription], *, with_retained: bool = True) -> None:
        link = self.link
        assert link is not None
        self.lacks_suback = False
        version = self.options.version
        handling = 0 if with_retained or version != V5 else 2
        qos_max = self.outbound.qos_max
        for start in range(0, len(wanted), FILTERS_A_SUBSCRIBE):
            part = wanted[start : start + FILTERS_A_SUBSCRIBE]
            requests = [
                SubscriptionRequest(one.filter, min(one.qos, qos_max), retain_handling=handling)
                for one in part
            ]
            packet_id = self._request_id()
            self._requests[packet_id] = len(part)
            link.write(encode_subscribe(version, Subscribe(packet_id, requests)))
        self.outbound.has_sent = True

    def _request_id(self) -> int:
        """Return a free packet id, the highest one: PUBLISH packets take the lowest."""
        packet_id = PACKET_ID_MAX
        while packet_id in self._requests or self.outbound.is_busy(packet_id):
            packet_id -= 1
        return packet_id

    @property
    def awaits_suback(self) -> bool:
        return bool(self._requests)

    @property
    def may_lack_subscriptions(self) -> bool:
        """Tell whether the broker may lack subscriptions of this client."""
        return self.lacks_suback or self.awaits_suback

    def _on_publish(self, run: Publish, now_us: int) -> None:
        if self.state == AWAITING_CONNACK:
            raise Violation(reasons.PROTOCOL_ERROR, "MQTT-3.2.0-1", "PUBLISH before CONNACK")
        link = self.link
        assert link is not None
        on_message = self.owner.on_message
        if not run.qos:
            for payload in run.payloads():
                on_message(run, payload, now_us)
            return
        self.outbound.has_sent = True
        ids = run.packet_ids()
        if run.qos == 1:
            for payload in run.payloads():
                on_message(run, payload, now_us)
            if not link.is_closed:
                link.write(b"".join([b"\x40\x02" + ID_BYTES[packet_id] for packet_id in ids]))
            return
        inbound = self._inbound
        if inbound is None:
            inbound = self._inbound = set()
        for packet_id, payload in zip(ids, run.payloads(), strict=True):
            if packet_id not in inbound:
                inbound.add(packet_id)
                on_message(run, payload, now_us)
            link.write(encode_ack(PUBREC, packet_id))

    def settle_wills(self) -> None:
        """Decide at the end of the run which wills of this client were due."""
        self.wills.settle(self.context.engine.clock.now(), resumed=False)

    # Faults.

    def lose_link(self, away_s: float, *, at_once: bool = False) -> None:
        """Break the connection, and keep the network away for `away_s`."""
        now = self.context.engine.clock.now()
        self.away_until = now + away_s
        if self.link is None:
            return
        was_online = self.state in (ONLINE, DISCONNECTING)
        self.is_fault_injected = True
        link = self._drop_link()
        link.reset()
        if was_online:
            self.wills.connection_broken(now)
            self.owner.on_offline()
        else:
            self.wills.discard()  # whether the broker has read the CONNECT is unknown
        self._attempts = 0
        if at_once:
            self.reconnect_after(away_s)
        else:
            self._retry()

    def kill(self, away_s: float) -> None:
        """Break the connection and lose the Session State, like a device that loses power."""
        self.lose_link(away_s, at_once=True)
        self.outbound.forget()
        self._inbound = None
        # A client without its Session State must not resume the session. [MQTT-4.1.0-1]
        self.clean_next = True

    def take_over(self) -> None:
        """Connect again while the broker still holds the old connection."""
        link = self._drop_link()
        link.flush()
        now = self.context.engine.clock.now()
        self.wills.connection_replaced(now)
        link.handler = ReplacedConnection()
        self.owner.on_offline()
        self._attempts = 0
        self.is_fault_injected = False
        self.context.counters["takeovers"] += 1
        if link.is_half_open or link.is_stalled:
            link.resume_reading()
        self.connect()
        self.context.engine.after(TAKEOVER_S, partial(self._check_replaced_link, link, 0))

    def end_half_open(self, link: Link) -> None:
        """Reconnect after a half-open connection, unless keep alive has detected it before."""
        if self.link is link and link.is_half_open:
            self.take_over()

    def _check_replaced_link(self, link: Link, turn: int) -> None:
        """Check that the broker has closed the old connection after it accepted the new one."""
        if link.is_closed:
            return
        if self.state not in (ONLINE, DISCONNECTING) and turn < 12:
            self.context.engine.after(
                TAKEOVER_S, partial(self._check_replaced_link, link, turn + 1)
            )
            return
        if self.state in (ONLINE, DISCONNECTING):
            self.context.error(
                "takeovers_unanswered",
                f"{self.options.client_id}: the old connection is open {TAKEOVER_S:g} s after a"
                " take-over",
            )
        link.close()
