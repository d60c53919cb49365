"""A client's connection: its phase, its timers, and both directions of its bytes.

`core.dispatch` brings what the peer sent; `core.inbound` acts on it. The connection has a
handshake until CONNACK, and from then on a session, an authorization and the outbox that the
session writes to.

why long: one object has both directions of a client, its phases, and the reasons not to read it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from mqtt_broker.codec import properties as prop
from mqtt_broker.codec import reasons
from mqtt_broker.codec.constants import CONNACK, DISCONNECT, V5, V31, V311
from mqtt_broker.codec.decode import Decoder
from mqtt_broker.codec.encode import encode_connack
from mqtt_broker.codec.errors import Violation
from mqtt_broker.codec.packets import Connect
from mqtt_broker.codec.properties import Properties
from mqtt_broker.core.clients.ack_queue import AckQueue
from mqtt_broker.core.clients.authorization import OPEN, Authorization
from mqtt_broker.core.clients.goodbye import last_packet
from mqtt_broker.core.clients.handshake import Handshake
from mqtt_broker.core.clients.send_throttle import SendThrottle
from mqtt_broker.core.clients.state import BrokerState
from mqtt_broker.core.clients.tap import Tap
from mqtt_broker.core.clients.unfinished import Unfinished
from mqtt_broker.core.interfaces.access import Allow
from mqtt_broker.core.interfaces.link import LATER, NOW, SOON, ClosedLink, Link
from mqtt_broker.core.limits.client_limits import ClientLimits
from mqtt_broker.core.limits.incomplete_packets import INCOMPLETE_BYTES
from mqtt_broker.core.limits.token_bucket import (
    ListenerLimits,
    TokenBucket,
    known_rate,
    window_max,
)
from mqtt_broker.core.runtime.backpressure import (
    BEHIND,
    READS_SLOWLY,
    THROTTLED,
    UNDECIDED,
    UNFINISHED,
)
from mqtt_broker.core.runtime.slow_readers import READS_NOTHING
from mqtt_broker.core.runtime.timers import Timer
from mqtt_broker.recorder import kinds
from mqtt_broker.topics.aliases import InboundAliases, OutboundAliases
from sessions.messages.outbox import Outbox
from sessions.messages.work import CLOSED as CLOSED_UNITS
from sessions.messages.work import WorkItem
from sessions.session import Session

# The phases of a connection, in the order it goes through them.
NEW: Final = 0  # waiting for CONNECT
WAITING: Final = 1  # CONNECT is being decided; what follows it is kept
ACTIVE: Final = 2  # connected
CLOSED: Final = 3  # nothing more is read or written
_FILTERS_AT_ONCE: Final = 1_000  # in one packet, though a client may have fewer subscriptions
_VERSIONS: Final = {V5: "5", V311: "3.1.1", V31: "3.1"}
_PACKETS_AT_ONCE: Final = 512  # decoded before they are acted upon


class Connection:
    __slots__ = (
        "_end_reason",
        "_pauses",
        "acks",
        "aliases",
        "authorization",
        "broker",
        "bucket",
        "bytes_in",
        "clean_start",
        "connected_at",
        "decoder",
        "handshake",
        "has_session",
        "is_incomplete",
        "last_heard_at",
        "last_read_at",
        "limits",
        "link",
        "listener_limits",
        "may_expire",
        "messages_in",
        "outbox",
        "reauthenticates_with",
        "server_keep_alive",
        "session",
        "state",
        "tap",
        "throttle",
        "timer",
        "unfinished",
        "wants_reasons",
    )

    def __init__(self, broker: BrokerState, link: Link, now: float) -> None:
        settings = broker.settings
        self.broker = broker
        self.link = link
        self.state = NEW
        # Of its listener; links of embedders and tests need have none.
        self.listener_limits: ListenerLimits | None = getattr(link, "allowance", None)
        self.limits: ClientLimits = self.meet_limits(None)  # the strictest of all that hold
        self.decoder = Decoder(
            packet_bytes_max=self.limits.packet_bytes_max,
            connect_bytes_max=settings.connect_bytes_max,
            packets_max=_PACKETS_AT_ONCE,
            filters_max=max(settings.subscriptions_max, _FILTERS_AT_ONCE),
        )
        self.is_incomplete = False  # a large part of a packet is counted
        self.unfinished: Unfinished | None = None  # what it sent, as far as that is not finished
        self.outbox = Outbox(0, self, link.write, broker.outboxes)
        self.aliases: InboundAliases | None = None  # made when the peer uses the first
        self.handshake: Handshake | None = Handshake(broker.preconnect_limits)
        self.session: Session  # set by `enter`: it is read for each message, so it is no property
        self.has_session = False
        self.authorization = OPEN
        self.acks: AckQueue | None = None  # made when the first acknowledgement has to wait
        self.bucket: TokenBucket | None = None  # how fast it may send
        self.throttle: SendThrottle | None = None  # how fast it is sent
        # Of its CONNECT, which is forgotten after CONNACK unless it names a method.
        self.wants_reasons = False  # it understands Reason Strings, and did not refuse them
        self.may_expire = False  # its session outlives the connection, so that may be changed
        self.reauthenticates_with: Connect | None = None
        self.server_keep_alive = 0
        self.connected_at = now
        self.last_heard_at = now  # a whole packet came from the peer
        self.last_read_at = now  # the peer took bytes from us
        self.bytes_in = 0
        self.messages_in = 0
        self.clean_start = False
        self._pauses = 0  # why it is not read from, as bits
        self._end_reason = 0
        self.tap: Tap | None = None  # shows its packets to traces
        self.timer: Timer | None = broker.timers.at(
            now + settings.connect_timeout_s, self._on_connect_timeout
        )

    @property
    def username(self) -> str | None:
        """The name of its user, as the access knows it."""
        return self.authorization.username

    @property
    def address(self) -> str:
        """The address of the peer without its port, of which there are too many to record."""
        return self.link.peer.rpartition(":")[0] or self.link.peer

    @property
    def version(self) -> int:
        return self.decoder.version

    @property
    def name(self) -> str:
        """Client id and address, for the log."""
        client_id = self._client_id
        return f"{client_id} ({self.link.peer})" if client_id else self.link.peer

    @property
    def _client_id(self) -> str:
        """The client id, also of a CONNECT that is being decided; empty when there is none yet."""
        if self.has_session:
            return self.session.client_id
        handshake = self.handshake
        connect = None if handshake is None else handshake.connect
        return "" if connect is None else connect.client_id

    @property
    def listener(self) -> str:
        """The name of its listener; links of embedders and tests have none."""
        found: str = getattr(self.link, "listener", "")
        return found

    def urgency(self, unread_max: int) -> int:
        """Say how soon the link is to read what the peer acknowledges.

        With more than `unread_max` messages under way to it the acknowledgements are read soon.
        """
        if not self.has_session or self.session.outbound.sources is not None:
            return NOW
        outbound = self.session.outbound
        journal = self.broker.journal
        if journal is not None and len(journal):  # it may save us from writing them
            return NOW
        window = outbound.window
        unacked = len(window.unacked)
        if outbound.has_waiting or window.qos2 or window.releasing or unacked * 2 >= window.limit:
            return NOW  # it lets something go on that waits
        if unacked >= unread_max or self.broker.subscriptions.groups:  # strategies compare loads
            return SOON
        return LATER

    # The way in.

    def open_handshake(self, connect: Connect) -> Handshake:
        """Begin a re-authentication."""
        handshake = self.handshake = Handshake(self.broker.preconnect_limits, connect)
        return handshake

    def close_handshake(self) -> None:
        """Drop the handshake: the client is connected, or re-authenticated."""
        if self.handshake is not None:
            self.handshake.stop_counting()
            self.handshake = None

    def wait(self) -> None:
        """Take only AUTH and DISCONNECT until CONNACK, no larger than a CONNECT."""
        self.state = WAITING
        bytes_max = self.broker.settings.connect_bytes_max
        self.decoder.limit_packets(min(self.decoder.packet_bytes_max, bytes_max))

    def wait_unread(self) -> None:
        """Read nothing until the CONNECT is decided."""
        self.state = WAITING
        self.pause(UNDECIDED)

    def meet_limits(self, own: ClientLimits | None) -> ClientLimits:
        """Find the strictest limits of all: the settings', its listener's and its own."""
        listener = self.listener_limits
        return self.broker.known_limits.met(None if listener is None else listener.limits, own)

    def authorize(self, session: Session, verdict: Allow, limits: ClientLimits) -> None:
        """Set who it is, what it may do, and for how long."""
        broker = self.broker
        authorizer = broker.authorizer
        username = verdict.username
        guard = authorizer.guard_for(verdict.guard, session.client_id, username)
        authorizer.set_guard(session.client_id, guard)
        self.authorization.end()
        # Topics are looked into for a guard's sake, or for levels of which others may have more.
        is_deep = limits.topic_levels_max == broker.known_limits.base.topic_levels_max
        remembers = guard is not None or not is_deep
        if username is None and not remembers and not verdict.expires_at:
            self.authorization = OPEN
        else:
            self.authorization = Authorization(
                username,
                guard,
                levels_max=limits.topic_levels_max,
                remembers=remembers,
                expiry=broker.timers.at(verdict.expires_at, self._on_expired)
                if verdict.expires_at
                else None,
            )
        session.outbound.limit_queue(broker.known_limits.bounds(limits))
        self.limits = limits
        self.decoder.limit_packets(limits.packet_bytes_max)
        self._set_rates(limits)

    def forget_topics(self) -> None:
        """Ask again for every topic: the rules changed."""
        self.authorization.forget_topics()

    def enter(
        self, packet: Connect, session: Session, verdict: Allow, limits: ClientLimits
    ) -> None:
        """Carry this session from now on. Nothing is sent to it before `activate`."""
        version = packet.version
        found = packet.properties
        self.session = session
        self.has_session = True
        self.clean_start = packet.clean_start
        self.authorize(session, verdict, limits)
        if version == V5:
            # [MQTT-3.1.2-29]
            self.wants_reasons = found.number(prop.REQUEST_PROBLEM_INFORMATION, 1) == 1
            self.may_expire = found.number(prop.SESSION_EXPIRY_INTERVAL) > 0
            if found.text(prop.AUTHENTICATION_METHOD) is not None:
                self.reauthenticates_with = _without_state(packet)
        alias_maximum = min(
            found.number(prop.TOPIC_ALIAS_MAXIMUM), self.broker.settings.topic_alias_outbound_max
        )
        self.outbox = Outbox(
            version,
            self,
            self.link.write if self.throttle is None else self.throttle.write,
            self.broker.outboxes,
            packet_bytes_max=found.number(prop.MAXIMUM_PACKET_SIZE),
            aliases=OutboundAliases(alias_maximum, self.broker.aliases)
            if alias_maximum
            else None,  # [MQTT-3.1.2-27]
        )

    def activate(self, receive_maximum: int, keep_alive: int, now: float) -> None:
        """Let the session write to this connection from now on; CONNACK follows."""
        broker = self.broker
        session = self.session
        self.state = ACTIVE
        self.connected_at = now
        self._watch_keep_alive(keep_alive, now)
        outbound = session.outbound
        before = outbound.version, outbound.is_plain
        quota = min(receive_maximum, window_max(self.limits))
        outbound.attach(self.outbox, quota, lambda: self._on_overflow(now))
        if session.subscriptions and before != (outbound.version, outbound.is_plain):
            broker.subscriptions.drop_routes(session)
        broker.clients.connect(self, session.client_id, session.username)
        broker.subscriptions.on_attached(session, now)
        if broker.recorder is not None:
            details = f"MQTT {_VERSIONS.get(self.version, '')}"
            broker.recorder.connected(outbound, self.address, details, now)
        if broker.tracer is not None:
            broker.tracer.attach(self)
        counters = broker.counters
        counters.connections += 1
        counters.clients_maximum = max(counters.clients_maximum, len(broker.clients.connections))

    def tap_with(self, tap: Tap) -> None:
        """Show its packets to traces from now on; those it is sent, only from a whole one on."""
        self.tap = tap
        if self.outbox.kept is None:
            self.outbox.write_through(tap.write)

    def untap(self) -> None:
        """Show its packets no more."""
        tap, self.tap = self.tap, None
        if tap is not None:
            self.outbox.write_through(tap.link_write)

    def _on_overflow(self, now: float) -> None:
        """Disconnect a client whose queue is full; soon, not from inside a delivery."""
        self.broker.timers.at(
            now, lambda then: self.end(then, reasons.QUOTA_EXCEEDED, why="queue full")
        )

    # From the peer.

    def pause(self, reason: int) -> None:
        """Stop reading from the peer."""
        if not self._pauses:
            self.link.pause_reading()
        if not self._pauses & reason:
            self.broker.backpressure.count(reason, 1)
        self._pauses |= reason

    def resume(self, reason: int) -> None:
        """Read from the peer again, unless there is another reason not to."""
        if self._pauses & reason:
            self.broker.backpressure.count(self._pauses & reason, -1)
            self._pauses &= ~reason
            if not self._pauses and self.state != CLOSED:
                self.link.resume_reading()

    @property
    def pauses(self) -> int:
        """The reasons not to read from the peer, as bits."""
        return self._pauses

    @property
    def is_paused(self) -> bool:
        return self._pauses != 0

    @property
    def is_held(self) -> bool:
        """Tell whether more of what it sent is under way than one turn could act upon."""
        return self.unfinished is not None and self.unfinished.is_held

    @property
    def operation(self) -> WorkItem | None:
        """The operation under way."""
        return None if self.unfinished is None else self.unfinished.operation

    def open_unfinished(self) -> Unfinished:
        """Make the place for what is not finished, unless there is one."""
        if self.unfinished is None:
            self.unfinished = Unfinished()
        return self.unfinished

    def begin(self, operation: WorkItem) -> None:
        """Go on with this in the next turns, before anything else that the client sent."""
        self.open_unfinished().begin(operation)
        self.broker.work.stop()

    def hold(self) -> None:
        """Read nothing until what it sent is worked on: it stands on the agenda."""
        self.open_unfinished().hold()
        self.pause(UNFINISHED)

    def release(self, now: float) -> None:
        """Read from it again, or let it leave: nothing of it is held."""
        unfinished, self.unfinished = self.unfinished, None
        if unfinished is None:
            return
        if unfinished.leaves_because:
            self._leave(unfinished.leaves_because, now)
        elif unfinished.lost_because:
            self.end(now, say=False, why=unfinished.lost_because)
        else:
            self.resume(UNFINISHED)

    def hold_back(self, reason: int, now: float) -> None:
        """Stop reading until what is behind has caught up."""
        if self.state == ACTIVE and not self._pauses & reason:
            self.broker.backpressure.pause(self, reason, now)

    def on_error(self, error: Exception, data: bytes, now: float) -> None:
        """End the connection for an error, the peer's or our own. [MQTT-4.13.1-1]"""
        if isinstance(error, Violation):
            self._on_violation(error, now)
            error.with_traceback(None)  # it keeps the packets, of which the violation is one
            return
        on_bug = self.broker.runtime.on_bug
        on_bug(self, data, error)
        try:
            self.end(now, reasons.UNSPECIFIED_ERROR)
        except Exception as another:  # a goodbye may fail as well, and still costs only this
            on_bug(self, b"", another)

    def _on_violation(self, violation: Violation, now: float) -> None:
        if self.state != ACTIVE:
            self.broker.counters.refuse("connect", reasons.name(violation.reason))
        self.broker.log(f"{self.name}: {violation}")
        if violation.silent:
            self.end(now, violation.reason, say=False, why=violation.text)
        else:
            self.end(now, violation.reason, why=violation.text)

    def end_for_memory(self, now: float) -> None:
        """End without a word: clients that are not connected yet hold too many bytes."""
        self.broker.counters.refuse("connect", "connecting_bytes")
        self.end(now, say=False, why="too much memory for CONNECTs")

    def count_incomplete(self, size: int, now: float, *, is_new: bool) -> None:
        """Count the bytes of packets that the client has not completed."""
        packets = self.broker.incomplete
        self.is_incomplete = packets.count(self, size, now, is_new=is_new)

    def give_up_packet(self, why: str, now: float) -> None:
        """Close: the parts that its client sent take too much memory."""
        self.is_incomplete = False
        self.broker.log(f"{self.name}: {why}, closed")
        counted_as = INCOMPLETE_BYTES
        self.end(now, reasons.QUOTA_EXCEEDED, why=counted_as, counted_as=counted_as)

    def lost(self, now: float) -> None:
        """End without a goodbye: the peer closed, or the network did.

        What it had sent before still counts.
        """
        unfinished = self.unfinished
        if unfinished is not None and unfinished.is_held and self.state != CLOSED:
            unfinished.lose("connection lost")
        else:
            self.end(now, say=False, why="connection lost")

    # To the peer.

    def send(self, data: bytes) -> None:
        self.outbox.put(data)

    def check_answer(self, data: bytes) -> None:
        """Refuse to send what the peer cannot take: some answers grow with what it asked for.

        [MQTT-3.1.2-24]
        """
        if not self.outbox.fits(len(data)):
            raise Violation(
                reasons.PACKET_TOO_LARGE,
                "MQTT-3.1.2-24",
                "response larger than its Maximum Packet Size",
            )

    def open_aliases(self) -> InboundAliases:
        """Make the table of the peer's Topic Aliases, when it uses the first."""
        aliases = self.aliases = InboundAliases(
            self.broker.settings.topic_alias_maximum, self.broker.aliases
        )
        return aliases

    def open_acks(self) -> AckQueue:
        """Make the queue of acknowledgements that wait, unless there is one."""
        if self.acks is None:
            inbound = self.session.inbound
            self.acks = AckQueue(self, self.outbox, inbound, self.broker.unanswered)
        return self.acks

    def send_in_order(
        self,
        data: bytes,
        now: float,
        after: Callable[[float], None] | None = None,
        *,
        safely: bool = False,
    ) -> None:
        """Send an acknowledgement behind those that wait, and then call `after`.

        `safely`: not before everything recorded so far is on disk.
        """
        journal = self.broker.journal
        if safely and journal is not None and journal.is_behind:
            self.hold_back(BEHIND, now)  # what it asks for is recorded, like what others publish
        must_wait = (
            safely and journal is not None and journal.awaits_commit and not journal.is_settled
        )
        acks = self.acks
        if not must_wait and (acks is None or not acks.waiting):
            self.outbox.put(data)
            if after is not None:
                after(now)
            return
        ack = self.open_acks().hold(data)
        ack.follow(after, is_safe=not must_wait)
        if must_wait and journal is not None:
            journal.wait(ack)

    def send_before(self, data: bytes, place: int) -> None:
        """Send an acknowledgement in front of what the peer was sent since, from `place` on."""
        acks = self.acks
        if acks is not None and acks.waiting:
            acks.hold(data).follow(None, is_safe=True)
        else:
            self.outbox.pieces.insert(place, data)
            self.outbox.mark()

    def on_written(self, waiting_bytes: int, now: float) -> None:
        """Adapt to `waiting_bytes` that wait for the peer: the link or the peer took some."""
        box = self.outbox
        if waiting_bytes < box.link_bytes or not box.waiting_bytes:
            self.last_read_at = now
        try:
            self.broker.slow_readers.settle(self, box, waiting_bytes, now)
        except Exception as error:
            self.on_error(error, b"", now)

    def read_on(self, now: float) -> None:
        """Send sources what there is room for: the peer has taken some of what waited."""
        if self.has_session and self.session.outbound.sources is not None:
            self.session.outbound.pump_sources(now)

    def write_on(self, now: float) -> None:
        """Send what waits, unless there is still a reason not to."""
        throttle = self.throttle
        if self._pauses & READS_SLOWLY or (throttle is not None and throttle.is_shut):
            return
        self.outbox.decongest()
        if self.has_session:
            self.session.outbound.pump(now)

    @property
    def reads_slowly(self) -> bool:
        """Tell whether the peer is over its share, and gets nothing more until it has read."""
        return self._pauses & READS_SLOWLY != 0

    def give_up(self, counted_as: str, why: str, now: float) -> None:
        """Close: what the peer does not read takes too much memory.

        It is told, unless it reads nothing, or its link ends in the middle of a packet.
        """
        self.broker.log(f"{self.name}: {why}, closed")
        if counted_as != READS_NOTHING and self.outbox.kept is None:
            self.end(now, reasons.QUOTA_EXCEEDED, why=counted_as, counted_as=counted_as)
            return
        self.broker.counters.refuse("disconnect", counted_as)
        self.outbox.forget_kept()
        self.link.abort()
        self.end(now, say=False, why=counted_as)

    # How fast.

    def _set_rates(self, limits: ClientLimits) -> None:
        """Set how fast it may send and be sent; a re-authentication fills no bucket."""
        listener = self.listener_limits
        shared = None if listener is None else listener.meter
        messages, size = known_rate(limits.messages_per_s), known_rate(limits.bytes_per_s)
        if not (messages or size or shared is not None):
            self.bucket = None
        elif self.bucket is None:
            self.bucket = TokenBucket(messages, size, shared)
        else:
            self.bucket.set(messages, size)
        messages = known_rate(limits.sent_messages_per_s)
        size = known_rate(limits.sent_bytes_per_s)
        if self.throttle is not None:
            self.throttle.bucket.set(messages, size)
        elif messages or size:
            self.throttle = SendThrottle(
                TokenBucket(messages, size),
                self.broker.runtime,
                self.link.write,
                self._on_throttle_shut,
                self._on_throttle_open,
            )
            if self.state == ACTIVE:  # else its outbox is made next
                self.outbox.write_through(self.throttle.write)

    def pay(self, bucket: TokenBucket, messages: int, size: int, now: float) -> None:
        """Count what came; a client that is ahead of its rate is not read until it is not."""
        wait_s = bucket.take(messages, size, now)
        if wait_s > 0 and not self._pauses & THROTTLED and self.state == ACTIVE:
            self.broker.counters.throttled += 1
            self.pause(THROTTLED)
            self.broker.timers.at(now + wait_s, lambda then: self.resume(THROTTLED))

    def _on_throttle_shut(self) -> bool:
        if self.state != ACTIVE:
            return False
        self.outbox.congest()
        return True

    def _on_throttle_open(self, now: float) -> None:
        if self.state == ACTIVE:
            self.write_on(now)

    # The end.

    def end(
        self,
        now: float,
        reason: int = 0,
        *,
        say: bool = True,
        why: str = "",
        counted_as: str = "",
    ) -> None:
        """Close, with the reason in the packet that fits the phase. [MQTT-4.13.1-1]

        Whether the reason was sent or not, the link is closed. [MQTT-4.13.2-1]
        """
        if self.state == CLOSED:
            return
        broker = self.broker
        phase, self.state = self.state, CLOSED
        if reason >= reasons.UNSPECIFIED_ERROR and phase == ACTIVE:
            broker.counters.refuse("disconnect", counted_as or reasons.name(reason))
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
        self.authorization.end()
        self.decoder.close()
        self._end_reason = reason
        try:
            if say:
                self._send_goodbye(phase, reason)
            broker.outboxes.hand_over_all(self.outbox)
        finally:
            self.link.close()  # DISCONNECT was the last packet. [MQTT-3.14.4-1], [MQTT-3.14.4-2]
            try:
                why = why or reasons.name(reason)
                unfinished = self.unfinished
                if unfinished is None or unfinished.operation is None:
                    self._leave(why, now)
                else:
                    unfinished.leave(why)
            finally:
                # Let go of what could keep this object in a cycle: a fleet that reconnects all
                # day then leaves nothing for the garbage collector.
                self.handshake = None
                if self.acks is not None:
                    self.acks.close()

    def _leave(self, why: str, now: float) -> None:
        """Take the connection out of everything that knows it; its session may live on."""
        try:
            self._leave_broker(why, now)
        finally:
            self._let_go()

    def _let_go(self) -> None:
        """Let go of what knows this connection, or it would be left to the garbage collector: that
        takes a second, in one piece, for 15,000 that go at once.
        """
        self.outbox.close()
        self.throttle = None
        self.link = ClosedLink(self.link.peer)

    def _leave_broker(self, why: str, now: float) -> None:
        broker = self.broker
        broker.work.spent += CLOSED_UNITS
        clients = broker.clients
        clients.remove(self)
        broker.incomplete.forget(self)
        self._forget_aliases()
        broker.backpressure.forget(self)
        broker.backpressure.count(self._pauses, -1)
        self._pauses = 0
        if self.acks is not None:
            broker.unanswered.forget(self.acks)
        handshake = self.handshake
        if handshake is not None:
            handshake.stop_counting()
            handshake.stop_waiting()
            if handshake.connect is not None:
                broker.lifecycle.on_abandoned(self, handshake.connect.client_id)
        broker.outboxes.count_waiting(self.outbox, 0)
        if not self.has_session or self.session.outbound.outbox is not self.outbox:
            return
        session = self.session
        broker.runtime.client_log.disconnected(
            session.client_id, self.username, self.link.peer, why, now - self.connected_at
        )
        session.outbound.detach()
        if broker.recorder is not None:
            broker.recorder.disconnected(session.outbound, self._end_reason, self.address, why, now)
        clients.disconnect(session.client_id)
        try:
            if broker.events.is_wanted:
                broker.events.publish(session.client_id, "disconnected", {"reason": why}, now)
        finally:
            broker.lifecycle.on_disconnected(session, now)

    def _forget_aliases(self) -> None:
        """Stop counting the Topic Aliases of both directions."""
        if self.aliases is not None:
            self.aliases.close()
        outbound = self.outbox.aliases
        if isinstance(outbound, OutboundAliases):
            outbound.close()

    def refuse(
        self,
        now: float,
        reason: int,
        *,
        v3_code: int | None = None,
        counted_as: str = "",
        detail: str = "",
    ) -> None:
        """Send CONNACK with a reason, and close. [MQTT-3.2.2-7]

        `detail` is for the log alone.
        """
        self.broker.counters.refuse("connect", counted_as or reasons.name(reason))
        version = self.version
        code = reason if version == V5 else v3_code or reasons.connack_v3(reason)
        if code is not None:  # else the close says it. [MQTT3-3.2.2-6]
            self.broker.counters.packets_sent[CONNACK] += 1
            self.send(encode_connack(version, False, code))  # no session. [MQTT-3.2.2-6]
        said = reasons.name(reason) + (f" ({counted_as})" if counted_as else "")
        self._log_refusal(f"{said}: {detail}" if detail else said)
        self._record_refusal(reason, f"{said}: {detail}" if detail else said, now)
        self.end(now, reason, say=False, why=f"refused: {said}")

    def _log_refusal(self, why: str) -> None:
        handshake = self.handshake
        connect = None if handshake is None else handshake.connect
        username = None if connect is None else connect.username
        self.broker.runtime.client_log.refused(
            self._client_id, username, self.link.peer, self.listener, why
        )

    def _record_refusal(self, reason: int, said: str, now: float) -> None:
        recorder = self.broker.recorder
        handshake = self.handshake
        if recorder is None or handshake is None or handshake.connect is None:
            return
        client_id = handshake.connect.client_id
        session = self.broker.sessions.get(client_id)
        known = None if session is None else session.outbound
        recorder.not_connected(client_id, known, reason, self.address, said, now)

    def record_takeover(self, peer: str, now: float, *, clean_start: bool) -> None:
        """Record once that it ends for another connection of its client, and what its session does.

        `peer` and `clean_start` are the other's.
        """
        recorder = self.broker.recorder
        if recorder is None or self.state == CLOSED:
            return
        how = kinds.CONTINUED
        if clean_start or not self.session.expiry_interval:
            how = kinds.BEGUN_ANEW
        recorder.taken_over(self.session.outbound, how, self.link.peer, peer, now)

    def _send_goodbye(self, phase: int, reason: int) -> None:
        data = last_packet(self.version, reason, is_connected=phase == ACTIVE)
        if data:
            if phase == ACTIVE:
                self.broker.counters.packets_sent[DISCONNECT] += 1
            self.send(data)

    # Time.

    def expect_connect(self, seconds: float, now: float) -> None:
        """Take the connect timeout of its listener, in place of the settings'."""
        if self.state == NEW and self.timer is not None:
            self.timer.cancel()
            self.timer = self.broker.timers.at(now + seconds, self._on_connect_timeout)

    def _on_connect_timeout(self, now: float) -> None:
        if self.handshake is not None and self.handshake.admitted_by is not None:
            self.refuse(now, reasons.SERVER_UNAVAILABLE, counted_as="store timeout")
            return
        self.broker.counters.refuse("connect", "timeout")
        self.broker.log(f"{self.name}: no CONNECT in time")  # [MQTT-3.1.4-1]
        self.end(now, say=False, why="no CONNECT in time")

    def _on_expired(self, now: float) -> None:
        second = int(self.authorization.expires_at) % 86_400
        time = f"{second // 3600:02d}:{second // 60 % 60:02d}:{second % 60:02d}Z"
        why = f"credentials expired at {time}"
        self.broker.log(f"{self.name}: {why}")
        self.end(now, reasons.MAXIMUM_CONNECT_TIME, why=why)

    def count_as_heard(self, until: float) -> None:
        """Let the peer have sent and read something at this time, up to which a test moves the
        clock.
        """
        self.last_heard_at = max(self.last_heard_at, until)
        self.last_read_at = max(self.last_read_at, until)

    def _watch_keep_alive(self, seconds: int, now: float) -> None:
        """Allow one and a half times the keep alive between packets. [MQTT-3.1.2-22]"""
        if self.timer is not None:
            self.timer.cancel()
        self.server_keep_alive = seconds
        due_at = now + seconds * 1.5
        self.timer = self.broker.timers.at(due_at, self._on_keep_alive) if seconds else None

    def _on_keep_alive(self, now: float) -> None:
        if self._pauses:
            self.last_heard_at = now  # we are not reading: its silence is ours
        deadline = self.last_heard_at + self.server_keep_alive * 1.5
        if now < deadline:
            self.timer = self.broker.timers.at(deadline, self._on_keep_alive)
            return
        self.end(now, reasons.KEEP_ALIVE_TIMEOUT)


def _without_state(packet: Connect) -> Connect:
    """Return the part of a CONNECT that a re-authentication refers to."""
    method = packet.properties.text(prop.AUTHENTICATION_METHOD)
    assert method is not None
    found = Properties({prop.AUTHENTICATION_METHOD: method})
    return Connect(packet.version, packet.client_id, packet.clean_start, 0, found)
