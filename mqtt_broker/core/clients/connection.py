"""One client's connection: the only dispatch, and the only catch of `Violation`.

`receive` is called with every byte the kernel had; PUBLISH is asked for first, the rest goes
through a small table. A Violation is answered with its reason code, in CONNACK before the
session and in DISCONNECT after, and costs this connection only. An exception that is no
Violation is our own mistake: it closes this connection with 0x80, and the broker is told.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Protocol

from mqtt_broker.codec import properties as prop
from mqtt_broker.codec import reasons
from mqtt_broker.codec.constants import CONNACK, PINGREQ, PINGRESP, V5
from mqtt_broker.codec.decode import Decoder
from mqtt_broker.codec.encode import PINGRESP_BYTES, encode_connack
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
from mqtt_broker.core.clients.ack_queue import (
    ANSWERS_HELD_BYTES_MAX,
    ANSWERS_HELD_MAX,
    NOTHING_HELD,
    PendingAck,
)
from mqtt_broker.core.clients.states import ACTIVE, CLOSED, NEW, WAITING
from mqtt_broker.core.inbound import acknowledge, connect, disconnect, publish, subscribe
from mqtt_broker.core.interfaces.access import Allow, Guard, Verdict
from mqtt_broker.core.limits import token_bucket
from mqtt_broker.core.limits.client_limits import ClientLimits
from mqtt_broker.core.limits.token_bucket import ListenerLimits, SendThrottle, TokenBucket
from mqtt_broker.core.runtime.timers import Timer
from mqtt_broker.topics.aliases import InboundAliases
from mqtt_broker.topics.names import level_count
from sessions.messages.outbox import CONGESTED, Outbox
from sessions.session import Session

if TYPE_CHECKING:
    from mqtt_broker.core.broker import Broker


TOPICS_REMEMBERED_MAX: Final = 512  # of one client: those it may publish to, and did
_TOPIC_CHARS_REMEMBERED_MAX: Final = 256


class Link(Protocol):
    """The socket's side of a connection, whatever kind of socket it is."""

    @property
    def peer(self) -> str:
        """Address of the peer, for logs and access rules."""

    def write(self, data: bytes) -> int:
        """Send the data; returns how many bytes wait for the peer to read."""

    def close(self) -> None:
        """Close when what was written is sent."""

    def abort(self) -> None:
        """Close at once."""

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


class Connection:
    __slots__ = (
        "_session",
        "acks_in_row",
        "admitted_by",
        "aliases",
        "allowance",
        "allowed",
        "awaits_log",
        "broker",
        "connect",
        "connected_at",
        "counted_as",
        "decoder",
        "expiry",
        "guard",
        "has_published",
        "held",
        "held_bytes",
        "is_held_back",
        "is_owed",
        "is_stuck",
        "is_throttled",
        "is_undecided",
        "kept",
        "last_heard_at",
        "last_read_at",
        "limits",
        "link",
        "meter",
        "only_acknowledges",
        "outbox",
        "proceed",
        "question",
        "server_keep_alive",
        "state",
        "timer",
        "username",
        "valve",
    )

    def __init__(self, broker: Broker, link: Link, now: float) -> None:
        settings = broker.settings
        self.broker = broker
        self.link = link
        self.state = NEW
        # Of its listener; links of embedders and tests need have none.
        self.allowance: ListenerLimits | None = getattr(link, "allowance", None)
        # The strictest of all that hold for it.
        self.limits: ClientLimits = broker.limits.met(
            None if self.allowance is None else self.allowance.limits, None
        )
        self.decoder = Decoder(
            packet_bytes_max=self.limits.packet_bytes_max,
            connect_bytes_max=settings.connect_bytes_max,
        )
        self.outbox = Outbox(0, self, link.write, broker.dirty)
        self.aliases = InboundAliases(settings.topic_alias_maximum)
        self._session: Session | None = None
        self.connect: Connect | None = None  # the CONNECT that is being decided, then in force
        self.proceed: Callable[[bytes | None], Any] | None = None  # an AUTH exchange goes on here
        self.admitted_by: Allow | None = None  # the CONNECT is allowed, and waits for the store
        self.kept: list[Packet | Violation] = []  # came while the CONNECT was being decided
        self.username: str | None = None
        self.counted_as: str | None = None  # the user it is one of the connections of
        self.guard: Guard | None = None  # None: everything is open to it
        self.allowed: set[str] | None = None  # topics it may publish to, as asked; None: any
        self.question = 0  # the number of the last one the access door was asked
        self.expiry: Timer | None = None  # when it may no longer be here
        self.meter: TokenBucket | None = None  # how fast it may send
        self.valve: SendThrottle | None = None  # how much it may be sent
        self.is_stuck = False  # so much waits for the peer that it is not read from
        self.is_throttled = False  # it was faster, and is not read until it is due again
        self.server_keep_alive = 0
        self.connected_at = now
        self.last_heard_at = now  # a whole packet came from the peer
        self.last_read_at = now  # the peer took bytes from us
        self.held: deque[PendingAck] = NOTHING_HELD  # answers that wait, in their order
        self.held_bytes = 0
        self.is_held_back = False
        self.awaits_log = False  # held back, and only because the log cannot keep up
        self.is_owed = False  # so many answers wait that it is not read
        self.is_undecided = False  # the access door owes an answer
        # It has sent acknowledgements and never a PUBLISH: a pure subscriber, for the link.
        self.only_acknowledges = False
        self.acks_in_row = 0
        self.has_published = False
        self.timer: Timer | None = broker.timers.at(
            now + settings.connect_timeout_s, self._on_connect_timeout
        )

    @property
    def session(self) -> Session:
        assert self._session is not None
        return self._session

    @session.setter
    def session(self, session: Session) -> None:
        self._session = session

    @property
    def has_session(self) -> bool:
        return self._session is not None

    @property
    def urgency(self) -> int:
        """How soon the link is to read what is acknowledged here."""
        return acknowledge.NOW if self._session is None else acknowledge.urgency(self)

    @property
    def version(self) -> int:
        return self.decoder.version

    @property
    def wants_reasons(self) -> bool:
        """Whether it understands Reason Strings, and did not refuse them. [MQTT-3.1.2-29]"""
        connect = self.connect
        return (
            connect is not None
            and self.version == V5
            and connect.properties.number(prop.REQUEST_PROBLEM_INFORMATION, 1) == 1
        )

    @property
    def name(self) -> str:
        """For the log."""
        if self._session is not None:
            return f"{self._session.client_id} ({self.link.peer})"
        return self.link.peer

    # From the peer.

    def receive(self, data: bytes, now: float) -> None:
        if self.state == CLOSED:
            return
        self.broker.stats.bytes_received += len(data)
        meter = self.meter
        try:
            packets = self.decoder.feed(data)
            if packets:
                self.last_heard_at = now
                self.take(packets, now)
            elif self.state == NEW:
                self.broker.strangers.keep(self, len(data), now)
            if meter is not None:
                token_bucket.pay(self, meter, packets, len(data), now)
        except Exception as error:
            self.on_error(error, data, now)

    def resume(self, verdict: Verdict, now: float) -> None:
        """The access door's late answer to the CONNECT that waits here."""
        self.is_undecided = False
        try:
            if self.state == ACTIVE:
                connect.settle_again(self, verdict, now)
            else:
                connect.settle(self, verdict, now)
        except Exception as error:
            self.on_error(error, b"", now)

    def on_error(self, error: Exception, data: bytes, now: float) -> None:
        """The one place where errors end: the peer's, and our own."""
        if isinstance(error, Violation):
            self._on_violation(error, now)
        else:
            self.broker.on_bug(self, data, error)
            try:
                self.end(now, reasons.UNSPECIFIED_ERROR)
            except Exception as another:  # a goodbye may fail as well, and still costs only this
                self.broker.on_bug(self, b"", another)

    def take(self, packets: list[Packet | Violation], now: float) -> None:
        """Act on packets in their order, while the connection stands."""
        for index, packet in enumerate(packets):
            if self.state == ACTIVE:
                if type(packet) is Publish:
                    publish.on_publish(self, packet, now)
                else:
                    self._dispatch(packet, now)
            elif self.state == CLOSED:  # what follows a refused CONNECT too. [MQTT-3.1.4-6]
                return
            elif self.state == WAITING and self.proceed is None:
                kept = packets[index:]
                self.kept.extend(kept)
                self.broker.strangers.keep_packets(self, kept, now)
                return
            else:
                self._dispatch(packet, now)

    def _dispatch(self, packet: Packet | Violation, now: float) -> None:
        if type(packet) is Violation:
            raise packet
        if self.state == WAITING and type(packet) not in (Auth, Disconnect):
            raise Violation(
                reasons.PROTOCOL_ERROR, "MQTT-3.1.2-30", "only AUTH may follow until CONNACK"
            )
        if type(packet) is Ack:
            acknowledge.on_ack(self, packet, now)
            return
        self.only_acknowledges = False  # it may be about to ask for more
        self.acks_in_row = 0
        act = _ACTS.get(type(packet))
        assert act is not None, "the decoder lets only a client's packets through"
        act(self, packet, now)

    def lost(self, now: float) -> None:
        """The peer closed, or the network did."""
        self.end(now, say=False, why="connection lost")

    # To the peer.

    def send(self, data: bytes) -> None:
        self.outbox.put(data)

    def check_answer(self, data: bytes) -> None:
        """An answer that grows with what the peer asked for may be too large. [MQTT-3.1.2-24]"""
        if not self.outbox.fits(len(data)):
            raise Violation(
                reasons.PACKET_TOO_LARGE,
                "MQTT-3.1.2-24",
                "an answer larger than it takes",
            )

    def hold(self, data: bytes) -> PendingAck:
        """An answer that leaves when it is safe, and all before it are."""
        if not self.held:
            self.broker.unanswered.add(self)
            if self.held is NOTHING_HELD:
                self.held = deque()
        answer = PendingAck(self, data)
        self.held.append(answer)
        self.held_bytes += len(data)
        if not self.is_owed and (
            len(self.held) >= ANSWERS_HELD_MAX or self.held_bytes >= ANSWERS_HELD_BYTES_MAX
        ):
            self.is_owed = True
            self.link.pause_reading()
        return answer

    def answer(
        self,
        data: bytes,
        now: float,
        after: Callable[[float], None] | None = None,
        *,
        safely: bool = False,
    ) -> None:
        """Send it in its turn, behind the answers that wait, and then `after`.

        `safely`: not before everything recorded so far is on disk.
        """
        journal = self.broker.journal
        must_wait = (
            safely and journal is not None and journal.awaits_commit and not journal.is_settled
        )
        if not must_wait and not self.held:
            self.send(data)
            if after is not None:
                after(now)
            return
        answer = self.hold(data)
        answer.after = after
        answer.is_safe = not must_wait
        if must_wait and journal is not None:
            journal.wait(answer)

    def answer_before(self, data: bytes, place: int) -> None:
        """In its turn, but in front of what the peer was sent since: from `place` on."""
        if self.held:
            self.hold(data).is_safe = True
        else:
            self.outbox.pieces.insert(place, data)
            self.outbox.mark()

    def send_answers(self, now: float) -> None:
        """Those at the front that are safe."""
        held = self.held
        while held and held[0].is_safe:
            answer = held.popleft()
            self.held_bytes -= len(answer.data)
            self.outbox.put(answer.data)
            if answer.after is not None:
                answer.after(now)
        if (
            self.is_owed
            and len(held) < ANSWERS_HELD_MAX // 2
            and self.held_bytes < ANSWERS_HELD_BYTES_MAX // 2
        ):
            self.is_owed = False
            self.read_on()

    def read_on(self) -> None:
        """Read from the peer, unless there is still a reason not to."""
        if not self.is_unread:
            self.link.resume_reading()

    @property
    def is_unread(self) -> bool:
        """Whether there is a reason not to read from the peer."""
        return self.is_held_back or self.is_owed or self.is_throttled or self.is_stuck

    # What it may do, and how fast.

    def may_publish(self, topic: str) -> bool:
        """Looked into once, as long as the rules stay as they are."""
        allowed = self.allowed
        if allowed is None or topic in allowed:
            return True
        if level_count(topic) > self.limits.topic_levels_max:
            raise Violation(reasons.MALFORMED_PACKET, "MQTT-4.7.3-3", "too many topic levels")
        if self.guard is not None and not self.guard.may_publish(topic):
            return False
        if len(topic) <= _TOPIC_CHARS_REMEMBERED_MAX:
            if len(allowed) >= TOPICS_REMEMBERED_MAX:
                allowed.clear()
            allowed.add(topic)
        return True

    def watch_expiry(self, expires_at: float) -> None:
        """What let it in holds until then; 0: as long as it likes."""
        if self.expiry is not None:
            self.expiry.cancel()
            self.expiry = None
        if expires_at:
            self.expiry = self.broker.timers.at(expires_at, self._on_expired)

    def _on_expired(self, now: float) -> None:
        self.broker.log(f"{self.name}: what let it in has expired")
        self.end(now, reasons.MAXIMUM_CONNECT_TIME, why="credentials expired")

    def on_written(self, waiting_bytes: int, now: float) -> None:
        """The link took bytes, or the peer did; `waiting_bytes` wait for the peer."""
        try:
            self._settle_outbox(waiting_bytes, now)
        except Exception as error:
            self.on_error(error, b"", now)

    def _settle_outbox(self, waiting_bytes: int, now: float) -> None:
        box = self.outbox
        broker = self.broker
        if waiting_bytes < box.waiting_bytes or not waiting_bytes:
            self.last_read_at = now
        broker.waiting_bytes += waiting_bytes - box.waiting_bytes
        box.waiting_bytes = waiting_bytes
        limit = broker.settings.outbox_bytes_max
        if waiting_bytes > limit:
            if not self.is_stuck:
                # It reads too slowly, so it is not read from either: what it asks for would
                # only pile up. [a client that floods and never reads]
                self.is_stuck = True
                box.state |= CONGESTED
                self.link.pause_reading()
                self._watch_stalled(now)
        elif self.is_stuck and waiting_bytes <= limit // 2:
            self.is_stuck = False
            self.read_on()
            self.write_on(now)
        elif self._session is not None and self._session.outbound.sources is not None:
            self._session.outbound.pump_sources(now)
        broker.release_held_back()

    def write_on(self, now: float) -> None:
        """Send what waits, unless there is still a reason not to."""
        if self.is_stuck or (self.valve is not None and self.valve.is_shut):
            return
        self.outbox.state &= ~CONGESTED
        if self._session is not None:
            self._session.outbound.pump(now)

    def _watch_stalled(self, now: float) -> None:
        self.broker.timers.at(now + self.broker.settings.stalled_reader_s, self._on_stalled_check)

    def _on_stalled_check(self, now: float) -> None:
        if self.state != CLOSED and self.is_stuck:
            if not self.close_if_stalled(now):
                self._watch_stalled(now)

    def close_if_stalled(self, now: float) -> bool:
        """Give up on a peer that has bytes to read and takes none of them."""
        limit = self.broker.settings.stalled_reader_s
        if not self.outbox.waiting_bytes or now - self.last_read_at < limit:
            return False
        self.broker.stats.refuse("disconnect", "reads nothing")
        self.broker.log(f"{self.name}: reads nothing, closed")
        self.link.abort()
        self.end(now, say=False, why="reads nothing")
        return True

    # Packets that mean little more than themselves.

    def on_pingreq(self, packet: Pingreq, now: float) -> None:
        stats = self.broker.stats
        stats.packets_received[PINGREQ] += 1
        stats.packets_sent[PINGRESP] += 1
        self.send(PINGRESP_BYTES)  # [MQTT-3.12.4-1]

    # The end.

    def _on_violation(self, violation: Violation, now: float) -> None:
        if self.state != ACTIVE:
            self.broker.stats.refuse("connect", reasons.name(violation.reason))
        self.broker.log(f"{self.name}: {violation}")
        if violation.silent:
            self.end(now, violation.reason, say=False, why=violation.text)
        else:
            self.end(now, violation.reason, why=violation.text)

    def end(self, now: float, reason: int = 0, *, say: bool = True, why: str = "") -> None:
        """Close, with the reason in the packet that fits the moment. [MQTT-4.13.1-1]

        Whether the reason was said or not, the link is closed. [MQTT-4.13.2-1]
        """
        if self.state == CLOSED:
            return
        state, self.state = self.state, CLOSED
        if reason >= reasons.UNSPECIFIED_ERROR and state == ACTIVE:
            self.broker.stats.refuse("disconnect", reasons.name(reason))
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
        self.watch_expiry(0.0)
        try:
            if say:
                disconnect.say_goodbye(self, state, reason)
            self.broker.write_out(self.outbox, now)
        finally:
            self.link.close()  # DISCONNECT was the last packet. [MQTT-3.14.4-1], [MQTT-3.14.4-2]
            try:
                self.broker.on_closed(self, why or reasons.name(reason), now)
            finally:
                # Let go of what could keep this object in a cycle: a fleet that reconnects all
                # day then leaves nothing for the garbage collector.
                self.kept = []
                self.proceed = None
                for answer in self.held:  # the journal has them until the next commit
                    answer.data = b""
                self.held = NOTHING_HELD

    def refuse(
        self, now: float, reason: int, *, v3_code: int | None = None, counted_as: str = ""
    ) -> None:
        """CONNACK with a reason, and close. [MQTT-3.2.2-7]"""
        self.broker.stats.refuse("connect", counted_as or reasons.name(reason))
        version = self.version
        code = reason if version == V5 else v3_code or reasons.connack_v3(reason)
        if code is not None:  # else the close says it. [MQTT3-3.2.2-6]
            self.broker.stats.packets_sent[CONNACK] += 1
            self.send(encode_connack(version, False, code))  # no session. [MQTT-3.2.2-6]
        said = reasons.name(reason) + (f" ({counted_as})" if counted_as else "")
        self.broker.log(f"{self.name}: refused, {said}")
        self.end(now, reason, say=False, why=f"refused: {said}")

    # Time.

    def expect_connect(self, seconds: float, now: float) -> None:
        """Its listener has a connect timeout of its own."""
        if self.state == NEW and self.timer is not None:
            self.timer.cancel()
            self.timer = self.broker.timers.at(now + seconds, self._on_connect_timeout)

    def _on_connect_timeout(self, now: float) -> None:
        if self.admitted_by is not None:
            self.refuse(now, reasons.SERVER_UNAVAILABLE, counted_as="store timeout")
            return
        self.broker.stats.refuse("connect", "timeout")
        self.broker.log(f"{self.name}: no CONNECT in time")  # [MQTT-3.1.4-1]
        self.end(now, say=False, why="no CONNECT in time")

    def watch_keep_alive(self, seconds: int, now: float) -> None:
        """Allow one and a half times the keep alive between packets. [MQTT-3.1.2-22]"""
        if self.timer is not None:
            self.timer.cancel()
        self.server_keep_alive = seconds
        due_at = now + seconds * 1.5
        self.timer = self.broker.timers.at(due_at, self._on_keep_alive) if seconds else None

    def _on_keep_alive(self, now: float) -> None:
        if self.is_unread:
            self.last_heard_at = now  # we are not reading: its silence is ours
        deadline = self.last_heard_at + self.server_keep_alive * 1.5
        if now < deadline:
            self.timer = self.broker.timers.at(deadline, self._on_keep_alive)
            return
        self.broker.log(f"{self.name}: keep alive timeout")
        self.end(now, reasons.KEEP_ALIVE_TIMEOUT)


_ACTS: Final[dict[type, Callable[[Connection, Any, float], None]]] = {
    Pingreq: Connection.on_pingreq,
    Subscribe: subscribe.on_subscribe,
    Unsubscribe: subscribe.on_unsubscribe,
    Disconnect: disconnect.on_disconnect,
    Connect: connect.on_connect,
    Auth: connect.on_auth,
}
