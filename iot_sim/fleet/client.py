"""An MQTT client of the fleet. Its Session State outlives its connections.

    idle -> opening -> greeting -> online -> leaving -> idle

Rules of this module: it knows MQTT and nothing of devices. Its `Owner` tells what to say and
hears what arrives. What a client promised at QoS 1 or 2 it sends again after a reconnect; with
the session gone, QoS 1 is published anew and QoS 2, which may not come twice, is given up.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from iot_sim.devices.device import Publication, Subscription
from iot_sim.fleet.connection_ends import ClosedConnection, ReplacedConnection, Wills
from iot_sim.fleet.context import FleetContext, Identity, Owner
from iot_sim.fleet.encoding import encode_will
from iot_sim.fleet.engine import Link
from iot_sim.fleet.outbound import Outbound
from iot_sim.judge.ledger import Flow
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
OPENING: Final = 1
GREETING: Final = 2
ONLINE: Final = 3
LEAVING: Final = 4

CONNECT_TIMEOUT_S: Final = 10.0
LEAVE_S: Final = 10.0  # how long acknowledgements may take before a goodbye
GOODBYE_S: Final = 2.0  # how long the broker may take to close behind our DISCONNECT
TAKEOVER_S: Final = 5.0  # how long it may leave the old connection open behind a twin
FILTERS_A_SUBSCRIBE: Final = 500


class Client:
    """The client of one client id, over all its connections."""

    __slots__ = (
        "_attempts",
        "_connect_us",
        "_decoder",
        "_epoch",
        "_heard",
        "_inbound",
        "_keep_alive_s",
        "_left_at",
        "_pinged",
        "_requests",
        "_was_online",
        "away_until",
        "clean_next",
        "context",
        "ends_session",
        "identity",
        "is_provoked",
        "is_waiting",
        "lacks_suback",
        "link",
        "outbound",
        "owner",
        "state",
        "wills",
    )  # fmt: skip

    def __init__(self, context: FleetContext, identity: Identity, owner: Owner) -> None:
        self.context = context
        self.identity = identity
        self.owner = owner
        self.state = IDLE
        self.link: Link | None = None
        self.outbound = Outbound(context, identity)
        self.wills = Wills(context.ledger)
        self.away_until = 0.0  # a fault keeps it from coming back before
        self.clean_next = True  # the next connection asks for a clean start
        self.is_provoked = False  # an injected fault explains the end of this connection
        self.is_waiting = False  # for the time of the next try
        self.ends_session = False  # the next goodbye is for good
        self.lacks_suback = False  # its session may be without what it subscribed to last
        self._epoch = 0  # counts connections and retries, so that old timers fall silent
        self._attempts = 0
        self._was_online = False
        self._left_at = 0.0
        self._decoder: Decoder | None = None
        self._inbound: set[int] | None = None
        self._requests: dict[int, int] = {}  # SUBSCRIBEs under way: how many filters each
        self._keep_alive_s = 0
        self._connect_us = 0
        self.outbound.wrote = self._heard = self._pinged = False

    @property
    def is_online(self) -> bool:
        return self.state == ONLINE

    @property
    def has_session(self) -> bool:
        """Tell whether the broker keeps messages while this client is away."""
        return self._was_online and not self.clean_next

    @property
    def unfinished(self) -> int:
        """Messages the broker has not taken yet."""
        return self.outbound.unfinished

    # Coming and going.

    def connect(self) -> None:
        if self.state != IDLE:
            return
        self.is_waiting = False
        context = self.context
        now = context.engine.clock.now()
        self._epoch += 1
        if now < self.away_until:
            self.come_back_in(0.0)
            return
        try:
            self.link = context.engine.connect(context.target, context.address, self)
        except OSError as error:
            self._failed(f"{self.identity.client_id}: {error}")
            return
        self.state = OPENING
        self.is_provoked = False
        context.engine.after(CONNECT_TIMEOUT_S, partial(self._check_connected, self._epoch))

    def _again(self, epoch: int) -> None:
        if epoch == self._epoch and self.state == IDLE:
            self.is_waiting = False
            if self.owner.wants_link():
                self.connect()

    def _check_connected(self, epoch: int) -> None:
        if epoch == self._epoch and self.state in (OPENING, GREETING):
            link = self._drop_link()
            link.close()
            if not self.is_provoked:
                self._failed(f"{self.identity.client_id}: no CONNACK in {CONNECT_TIMEOUT_S:g} s")
            else:
                self._retry()

    def _failed(self, text: str) -> None:
        self.context.error("connect_failures", f"cannot connect: {text}")
        self._retry()

    def _retry(self) -> None:
        """Reconnect with back-off and jitter, if the owner still wants a link by then."""
        who = self.identity
        delay = min(who.backoff_max_s, who.backoff_min_s * 2.0 ** min(self._attempts, 30))
        self._attempts += 1
        self.come_back_in(delay * (1 - who.jitter * self.context.chance.random()))

    def come_back_in(self, seconds: float) -> None:
        self._epoch += 1
        self.is_waiting = True
        engine = self.context.engine
        when = max(engine.clock.now() + seconds, self.away_until)
        engine.at(when, partial(self._again, self._epoch))

    def leave(self) -> None:
        """Say goodbye when all is acknowledged; `leave_now` when that takes too long."""
        if self.state == ONLINE:
            self.state = LEAVING
            self.context.engine.after(LEAVE_S, partial(self._leave_anyway, self._epoch))
            self._leave_if_done()

    def _leave_anyway(self, epoch: int) -> None:
        if epoch == self._epoch:
            self.leave_now()

    def _leave_if_done(self) -> None:
        if self.state == LEAVING and not self.unfinished:
            self.leave_now()

    def leave_now(self) -> None:
        if self.state not in (ONLINE, LEAVING) or self.link is None:
            return
        who = self.identity
        properties = NO_PROPERTIES
        if self.ends_session and who.session_expiry_s and who.version == V5:
            properties = Properties({prop.SESSION_EXPIRY_INTERVAL: 0})
        link = self._drop_link()
        self.context.counters["goodbyes"] += 1
        link.talker = ClosedConnection(self.wills.take())
        link.say_last(encode_disconnect(who.version, 0, properties))
        self.context.engine.after(GOODBYE_S, link.close)
        self.owner.on_offline()
        if self.owner.wants_link():  # it changed its mind while it was leaving
            self.come_back_in(0.0)

    def _drop_link(self) -> Link:
        """Forget the link; the caller says what becomes of it."""
        link = self.link
        assert link is not None
        if self.state in (ONLINE, LEAVING):
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

    # What the link tells.

    def on_open(self, link: Link) -> None:
        who = self.identity
        self.state = GREETING
        self._decoder = Decoder(from_server=True, version=who.version)
        self._connect_us = self.context.engine.clock.now_us()
        properties = Properties()
        clean = self.clean_next
        if who.version == V5:
            if who.session_expiry_s:
                properties[prop.SESSION_EXPIRY_INTERVAL] = who.session_expiry_s
            if who.receive_maximum != RECEIVE_MAXIMUM_DEFAULT:
                properties[prop.RECEIVE_MAXIMUM] = who.receive_maximum
        else:
            clean = not who.session_expiry_s  # in 3.1.1 a clean session also ends at its end
        target = self.context.target
        packet = Connect(
            who.version,
            who.client_id,
            clean,
            who.keep_alive_s,
            properties,
            self._will(),
            target.username,
            target.password,
        )
        link.write(encode_connect(packet))

    def _will(self) -> Will | None:
        found = self.owner.will()
        if found is None:
            self.wills.none()
            return None
        publication, delay_s = found
        who = self.identity
        number = self.wills.register(who.client_id, min(delay_s, who.session_expiry_s))
        flow = self.wills.flow
        assert flow is not None
        return encode_will(who.version, publication, delay_s, flow, number, self._connect_us)

    def on_data(self, link: Link, data: bytes) -> None:
        self._heard = True
        decoder = self._decoder
        assert decoder is not None
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
                self._on_violation(error)
            if self.link is not link:
                return

    def _on_violation(self, error: Violation | WrongAck) -> None:
        self.context.error("protocol_errors", f"{self.identity.client_id}: {error}")
        self.is_provoked = True
        link = self._drop_link()
        if self.identity.version == V5:
            link.say_last(encode_disconnect(V5, reasons.PROTOCOL_ERROR))
        link.close()
        self.wills.none()
        self.owner.on_offline()
        self._retry()

    def on_end(self, link: Link, why: str) -> None:
        if link is not self.link:
            return
        state = self.state
        self._drop_link()
        if state in (OPENING, GREETING):
            self._failed(f"{self.identity.client_id}: {why or 'the broker closed'}")
            return
        if not self.is_provoked:
            text = why or "without a word"
            self.context.error(
                "dropped", f"{self.identity.client_id}: the broker ended the connection: {text}"
            )
        self.wills.none()
        self.owner.on_offline()
        self._retry()

    def _on_packet(self, packet: Packet, now_us: int) -> None:
        if isinstance(packet, Connack):
            if self.state != GREETING:
                raise Violation(reasons.PROTOCOL_ERROR, "MQTT-3.2.0-2", "a second CONNACK")
            self._on_connack(packet, now_us)
        elif self.state == GREETING:
            raise Violation(reasons.PROTOCOL_ERROR, "MQTT-3.2.0-1", "no CONNACK first")
        elif isinstance(packet, Suback):
            count = self._requests.pop(packet.packet_id, None)
            if count is None or count != len(packet.reasons):
                raise Violation(
                    reasons.PROTOCOL_ERROR, "MQTT-3.8.4-2", "a SUBACK that fits nothing"
                )
            for reason in packet.reasons:
                if reason < 0x80:
                    self.context.counters["subscribed"] += 1
                else:
                    self.context.error(
                        "unsubscribed",
                        f"{self.identity.client_id}: SUBSCRIBE refused: {reasons.name(reason)}",
                    )
        elif isinstance(packet, Pingresp):
            self._pinged = False
        elif isinstance(packet, Disconnect):
            link = self._drop_link()
            link.close()
            if not self.is_provoked:
                self.context.error(
                    "dropped",
                    f"{self.identity.client_id}: the broker disconnected:"
                    f" {reasons.name(packet.reason)}",
                )
            self.wills.none()
            self.owner.on_offline()
            self._retry()
        else:
            raise Violation(reasons.PROTOCOL_ERROR, "MQTT-2.1.2", "a packet nobody asked for")

    def _on_connack(self, packet: Connack, now_us: int) -> None:
        who, context = self.identity, self.context
        link = self.link
        assert link is not None
        if packet.reason:
            self._drop_link()
            link.close()
            name = reasons.name(packet.reason) if who.version == V5 else f"code {packet.reason}"
            self._failed(f"{who.client_id}: the broker refused: {name}")
            return
        now = context.engine.clock.now()
        self.state = ONLINE
        self._attempts = 0
        context.online += 1
        context.counters["connects"] += 1
        context.connect_latency.record(now_us - self._connect_us)
        told = packet.properties
        self._keep_alive_s = told.number(prop.SERVER_KEEP_ALIVE, who.keep_alive_s)
        self._check_session(packet.session_present, now)
        self.outbound.start(link, told)
        self.wills.settle(now, resumed=packet.session_present)
        if self._was_online:
            context.counters["reconnects"] += 1
            if not packet.session_present:
                self._inbound = None
            self.outbound.resend(session_present=packet.session_present)
        self._was_online = True
        self.clean_next = not who.session_expiry_s
        self.outbound.wrote = self._pinged = False
        if self._keep_alive_s:
            context.engine.after(self._keep_alive_s / 2, partial(self._keep_alive, self._epoch))
        self.owner.on_online(packet.session_present)
        self.outbound.pump()

    def _check_session(self, present: bool, now: float) -> None:
        who, counters = self.identity, self.context.counters
        if present and self.clean_next and (who.version == V5 or not who.session_expiry_s):
            counters["sessions_strange"] += 1
        if self.clean_next:
            return
        if present:
            counters["resumed"] += 1
        elif who.version != V5 or now - self._left_at < who.session_expiry_s - 1:
            self.context.error("sessions_lost", f"{who.client_id}: the session is gone")

    def _keep_alive(self, epoch: int) -> None:
        if epoch != self._epoch or self.link is None:
            return
        if self._pinged and not self._heard:
            self.context.counters["keep_alive_timeouts"] += 1
            self.take_over()
            return
        if not self.outbound.wrote:
            self._pinged = True
            self.link.write(PINGREQ_BYTES)
        self.outbound.wrote = self._heard = False
        self.context.engine.after(self._keep_alive_s / 2, partial(self._keep_alive, epoch))

    def publish(self, flow: Flow, publication: Publication) -> None:
        """Send it now, or when the broker's Receive Maximum lets it."""
        if self.state in (ONLINE, LEAVING):
            self.outbound.publish(flow, publication)

    def _on_ack(self, packet: Ack, now_us: int) -> None:
        if packet.packet_type != PUBREL:
            self.outbound.on_ack(packet, now_us)
            self._leave_if_done()
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
        version = self.identity.version
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
        self.outbound.wrote = True

    def _request_id(self) -> int:
        """Return a free packet id, from the top: PUBLISHes take theirs from the bottom."""
        packet_id = PACKET_ID_MAX
        while packet_id in self._requests or self.outbound.is_busy(packet_id):
            packet_id -= 1
        return packet_id

    @property
    def awaits_suback(self) -> bool:
        return bool(self._requests)

    @property
    def is_deaf(self) -> bool:
        """Tell whether the broker may not have the subscriptions of this client yet."""
        return self.lacks_suback or self.awaits_suback

    def _on_publish(self, run: Publish, now_us: int) -> None:
        if self.state == GREETING:
            raise Violation(reasons.PROTOCOL_ERROR, "MQTT-3.2.0-1", "no CONNACK first")
        link = self.link
        assert link is not None
        on_message = self.owner.on_message
        if not run.qos:
            for payload in run.payloads():
                on_message(run, payload, now_us)
            return
        self.outbound.wrote = True
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

    def settle(self) -> None:
        """Settle the client's wills at the end of the run."""
        self.wills.settle(self.context.engine.clock.now(), resumed=False)

    # Faults.

    def lose_link(self, away_s: float, *, at_once: bool = False) -> None:
        """Break the connection, and keep the network away for `away_s`."""
        now = self.context.engine.clock.now()
        self.away_until = now + away_s
        if self.link is None:
            return
        was_online = self.state in (ONLINE, LEAVING)
        self.is_provoked = True
        link = self._drop_link()
        link.reset()
        if was_online:
            self.wills.broken(now)
            self.owner.on_offline()
        else:
            self.wills.none()  # the broker may have read the CONNECT, or not
        self._attempts = 0
        if at_once:
            self.come_back_in(away_s)
        else:
            self._retry()

    def kill(self, away_s: float) -> None:
        """Break the connection, and forget the Session State as a device without power does."""
        self.lose_link(away_s, at_once=True)
        self.outbound.forget()
        self._inbound = None
        # Who lost its Session State must not go on with the broker's half. [MQTT-4.1.0-1]
        self.clean_next = True

    def take_over(self) -> None:
        """Connect again while the broker still holds the old connection."""
        link = self._drop_link()
        link.flush()
        now = self.context.engine.clock.now()
        self.wills.taken_over(now)
        link.talker = ReplacedConnection()
        self.owner.on_offline()
        self._attempts = 0
        self.is_provoked = False
        self.context.counters["takeovers"] += 1
        if link.is_deaf or link.is_held:
            link.listen_again()
        self.connect()
        self.context.engine.after(TAKEOVER_S, partial(self._check_zombie, link, 0))

    def end_half_open(self, link: Link) -> None:
        """Reconnect after a half-open connection, if keep alive did not detect it before."""
        if self.link is link and link.is_deaf:
            self.take_over()

    def _check_zombie(self, link: Link, turn: int) -> None:
        """Check that the broker closed the old connection a while after it accepted the new one."""
        if link.is_closed:
            return
        if self.state not in (ONLINE, LEAVING) and turn < 12:
            self.context.engine.after(TAKEOVER_S, partial(self._check_zombie, link, turn + 1))
            return
        if self.state in (ONLINE, LEAVING):
            self.context.error(
                "takeovers_unanswered",
                f"{self.identity.client_id}: taken over, and the old connection is still open",
            )
        link.close()
