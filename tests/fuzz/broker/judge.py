"""What the broker writes, held against the model: each packet has to be owed, or an answer."""

from __future__ import annotations

from typing import Final

from tests.fuzz.broker import wire
from tests.fuzz.broker.facts import Broken, Door, Message, Owed, State
from tests.fuzz.broker.model import FOREVER, NEVER, Model
from tests.fuzz.broker.wire import Packet

# A DISCONNECT for which nothing has to have been wrong with the last packet.
AT_ANY_TIME: Final = frozenset({0x8D, 0x8E})
SHUTTING_DOWN: Final = 0x8B


class Judge(Model):
    def told(self, door: Door, raw: bytes) -> Packet:
        """A packet of the broker."""
        try:
            packet = wire.read(door.version or wire.V5, raw, from_server=True)
        except wire.Bad as bad:
            raise Broken("answer", f"the broker wrote {raw[:60].hex()}: {bad}") from None
        who = f"{door.client[:20]!r} on connection {door.number}"
        if door.said_goodbye:
            raise Broken("close", f"{who}: {raw[:20].hex()} after DISCONNECT")
        maximum = door.connect.number(wire.PACKET_MAXIMUM) if door.connect is not None else 0
        self.check(
            not maximum or packet.size <= maximum, "unowed",
            f"{who}: {packet.size} bytes, it takes {maximum}",
        )  # fmt: skip
        if packet.kind == wire.CONNACK:
            self._on_connack(door, packet, who)
        elif packet.kind == wire.DISCONNECT:
            self._on_disconnected(door, packet, who)
        elif packet.kind == wire.AUTH:
            raise Broken("answer", f"{who}: AUTH that nobody asked for")
        else:
            self.check(door.has_connack, "answer", f"{who}: {raw[:20].hex()} before CONNACK")
            if packet.kind == wire.PUBLISH:
                self._on_message(door, packet, who)
            elif packet.kind == wire.PUBREL:
                door.unacked.add(packet.id)
                if door.state is not None:
                    door.state.received.pop(packet.id, None)
            else:
                self._on_answer(door, packet, who)
        return packet

    def _on_connack(self, door: Door, packet: Packet, who: str) -> None:
        self.check(not door.has_connack, "answer", f"{who}: a second CONNACK")
        door.has_connack = True
        if packet.reason:
            allowed = door.refusals or wire.MALFORMED
            if door.version < wire.V5 and door.version:
                allowed = frozenset({1, 2, 4, 5})
            if door.waits_until < FOREVER:  # the store did not come back in time
                right = self.now >= door.waits_until
                self.check(right, "close", f"{who}: CONNACK 0x{packet.reason:02X} too early")
                allowed = frozenset({0x88 if door.version == wire.V5 else 3})
            self.check(
                packet.reason in allowed and not packet.present, "close",
                f"{who}: CONNACK 0x{packet.reason:02X}, not one of {hexed(allowed)}",
            )  # fmt: skip
            door.must_close = True
            return
        right = door.state is not None
        self.check(right, "close", f"{who}: CONNACK to a client that is gone")
        self.check(not door.must_close, "close", f"{who}: let in with a CONNECT that is none")
        self.check(
            packet.present == door.expects_present or not door.is_open, "present",
            f"{who}: Session Present {packet.present}",
        )  # fmt: skip
        if door.ended_stamp:
            self.clients[door.client].promise(door.ended_stamp)
        assert door.state is not None
        lives, life = door.state.lives, door.life
        place = next((place for place, one in enumerate(lives) if one is life), 0)
        lives[:place] = [one for one in lives[:place] if life is None or one[1] == life[1]]

    def _on_disconnected(self, door: Door, packet: Packet, who: str) -> None:
        self.check(
            door.version == wire.V5 and door.has_connack,
            "close",
            f"{who}: DISCONNECT is not for it",
        )
        allowed = door.refusals | door.may_close | AT_ANY_TIME
        self.check(
            packet.reason in allowed, "close",
            f"{who}: DISCONNECT 0x{packet.reason:02X}, not one of {hexed(allowed)}",
        )  # fmt: skip
        door.said_goodbye = True

    # Answers.

    def _on_answer(self, door: Door, packet: Packet, who: str) -> None:
        waiting = door.pending.get((packet.kind, packet.id))
        if not waiting:
            raise Broken("answer", f"{who}: packet {packet.kind} for id {packet.id}, unasked")
        asked = waiting.pop(0)
        if not waiting:
            del door.pending[packet.kind, packet.id]
        if packet.kind in (wire.PUBACK, wire.PUBREC):
            assert isinstance(asked, Message)
            self._on_acknowledged(door, packet, asked, who)
        elif packet.kind == wire.PUBCOMP:
            if door.state is not None and isinstance(asked, Message):
                door.state.freed.pop(packet.id, None)
        elif packet.kind in (wire.SUBACK, wire.UNSUBACK):
            assert isinstance(asked, Packet)
            self._on_subscribed(door, packet, asked, who)

    def _on_acknowledged(self, door: Door, packet: Packet, message: Message, who: str) -> None:
        is_wrong = packet.reason == 0x99 and message.qos >= 0
        self.check(not is_wrong, "format", f"{who}: {message} is refused for another's payload")
        if message.qos < 0:
            right = packet.reason in (0x87, 0x99) or door.version < wire.V5
            self.check(right, "answer", f"{who}: 0x{packet.reason:02X} for {message}")
            return
        right = packet.reason in (0, 0x10)
        self.check(right, "answer", f"{who}: 0x{packet.reason:02X} for {message}")
        message.promised = True
        if message.retain:
            self.retained[message.topic].promise(message.number)

    def _on_subscribed(self, door: Door, packet: Packet, asked: Packet, who: str) -> None:
        state = door.state
        assert state is not None
        count = len(asked.asked) or len(asked.filters)
        if door.version == wire.V5 or packet.kind == wire.SUBACK:
            self.check(len(packet.codes) == count, "answer", f"{who}: {len(packet.codes)} codes")
        for one in asked.filters:
            if one in state.subs:
                state.subs[one].promise(asked.size)
        if packet.kind == wire.UNSUBACK:
            return
        codes = [code if code < 0x80 or door.version == wire.V5 else 0x80 for code in asked.codes]
        self.check(packet.codes == codes, "answer", f"{who}: SUBACK {packet.codes}, not {codes}")
        for wanted in asked.asked:
            if wanted.filter in state.subs:
                state.subs[wanted.filter].promise(asked.size)
            if wanted.handling != 2 and wire.split_share(wanted.filter) is None:
                self._owe_retained(door, state, wanted, asked)

    def _owe_retained(self, door: Door, state: State, wanted: wire.Asked, asked: Packet) -> None:
        """Those that stood all the while since SUBSCRIBE must come; others may."""
        identifier = asked.number(wire.SUB_ID)
        brought = {owed.message.number: owed for owed in self.brought.pop(wanted, ())}
        for topic, fact in self.retained.items():
            if not wire.is_met(wanted.filter, topic):
                continue
            possible = fact.possible if fact.now is None or fact.now.number > asked.size else []
            for message in dict.fromkeys((*possible, fact.now)):
                if message is None:
                    continue
                if wanted.no_local and message.publisher == state.client:
                    continue
                must = not possible and message.expires_at > self.now and not state.tainted
                must = must and door.is_open and self._fits(state, message)
                if message.number in brought:
                    brought[message.number].must = must
                    continue
                qos = min(message.qos, wanted.qos)
                ids = frozenset({identifier} - {0})
                state.owed.append(Owed(message, qos, True, ids, must, "retained"))

    # Messages.

    def _on_message(self, door: Door, packet: Packet, who: str) -> None:
        state = door.state
        assert state is not None and door.connect is not None
        topic = packet.topic
        alias = packet.number(wire.ALIAS)
        if alias:
            limit = door.connect.number(wire.ALIAS_MAXIMUM)
            right = alias <= limit and bool(topic or alias in door.aliases_out)
            self.check(right, "unowed", f"{who}: Topic Alias {alias}, it takes {limit}")
            topic = packet.topic = topic or door.aliases_out.get(alias, b"")
            door.aliases_out[alias] = topic
        if packet.qos:
            self._check_window(door, packet, who)
        shown = f"{topic[:40]!r} {packet.payload[:24]!r} (QoS {packet.qos}, id {packet.id})"
        if packet.qos == 2 and packet.id in state.received:
            known = state.received[packet.id]
            if known is not None:
                message = known.message
                right = (message.topic, message.payload) == (topic, packet.payload)
                right = right or state.tainted
                self.check(right, "once", f"{who}: {shown} under the id of {message}")
            state.outstanding[packet.id] = known
            return
        owed = self._find(door, state, packet, topic)
        if owed is None:
            # Empty payloads, which remove what is retained, all look alike.
            right = state.tainted or not packet.payload
            # What a group gives as it was published looks like what a subscription brings.
            right = right or (packet.retain and self._has_brought(state, topic))
            self.check(right, "unowed", f"{who} was sent {shown}, which nobody owes it")
        if packet.qos == 2:
            state.received[packet.id] = owed
        if packet.qos:
            state.outstanding[packet.id] = owed
        if owed is not None:
            if packet.qos and door.is_open:  # else it was read when the connection was gone
                owed.holders.add(door)
            self._check_message(door, state, packet, owed, f"{who}: {shown}")

    def _has_brought(self, state: State, topic: bytes) -> bool:
        """Whether the client asked for this topic by itself and by a shared subscription."""
        shared = [split for one in state.subs if (split := wire.split_share(one)) is not None]
        return any(wire.is_met(one[1], topic) for one in shared) and any(
            wire.is_met(one, topic) for one in state.subs if wire.split_share(one) is None
        )

    def _check_window(self, door: Door, packet: Packet, who: str) -> None:
        assert door.connect is not None
        is_new = packet.id not in door.unacked
        self.check(is_new or door.tainted, "unowed", f"{who}: packet id {packet.id} is under way")
        door.unacked.add(packet.id)
        limit = door.connect.number(wire.RECEIVE_MAXIMUM, 65_535)
        right = len(door.unacked) <= limit or door.tainted
        self.check(right, "unowed", f"{who}: over Receive Maximum {limit}")

    def _find(self, door: Door, state: State, packet: Packet, topic: bytes) -> Owed | None:
        """The promise that this PUBLISH keeps, or repeats."""
        before = state.outstanding.get(packet.id) if packet.qos else None
        if before is not None and packet.dup:
            message = before.message
            if (message.topic, message.payload) == (topic, packet.payload):
                return before
        wanted = (packet.qos, packet.retain, frozenset(
            value for key, value in packet.props if key == wire.SUB_ID and isinstance(value, int)
        ))  # fmt: skip
        found = [
            owed
            for owed in state.owed
            if (owed.message.topic, owed.message.payload) == (topic, packet.payload)
            and (owed.qos, owed.retain, owed.ids) == wanted
            and (not owed.taken or (owed.again and owed.qos < 2))
        ]
        busy = {id(owed) for owed in (*state.outstanding.values(), *state.received.values())}
        found = [owed for owed in found if id(owed) not in busy]  # under another id
        fresh = [owed for owed in found if not owed.sent]
        repeats = [owed for owed in found if owed.sent and (packet.dup or owed.again)]
        shared = self._find_shared(door, state, packet, topic)
        likely = [*repeats, *fresh, *shared] if packet.dup else [*fresh, *shared, *repeats]
        alike = [owed for owed in likely if same_props(door, packet, owed.message)]
        others = self._find_other(door, state, packet, topic)
        if not any(self._is_aged(packet, owed.message) for owed in alike):  # of an earlier one
            alike = [one for one in others if self._is_aged(packet, one.message)] or alike
        likely = alike or self._swap(door, state, packet, topic) or others
        likely = likely or [*repeats, *fresh, *shared]
        # Copies of one publication and of its repetition look alike: the surest comes first.
        for owed in sorted(
            likely,
            key=lambda one: (
                not self._is_aged(packet, one.message),
                not self._is_aged(packet, one.message, 0.5),
                one.message.expires_at < self.now,
                one.kind == "group" and self._was_other(state, one, packet),
                one.taken > 0 or not one.must,
                packet.dup and not one.sent,
                one.kind == "group",
                one.message.number,
            ),
        ):
            if not owed.sent and owed.kind == "live" and owed in fresh:
                if any(one.kind == "retained" for one in likely) and self._is_early(state, owed):
                    continue
                self._check_order(state, packet, owed)
            if owed.kind != "group" and (others := [one for one in alike if one in shared]):
                state.lookalikes.append((owed, others))
            owed.sent += 1
            owed.receiver = state
            if owed.taken and owed.again:  # a crash forgot that it was
                owed.taken = 0
            owed.again = owed.again and owed.sent < 2
            return owed
        return None

    def _find_shared(self, door: Door, state: State, packet: Packet, topic: bytes) -> list[Owed]:
        """What a group has that this client is in, or was, and that nobody else has now."""
        ids = tuple(value for key, value in packet.props if key == wire.SUB_ID)
        return [
            owed
            for text, waiting in self.groups.items()
            if text in state.groups
            for owed in waiting
            if state.subscription(text) is not None or owed.message.number < state.left.get(text, 0)
            if (owed.message.topic, owed.message.payload) == (topic, packet.payload)
            and any(
                (packet.qos, packet.retain, ids)
                == (
                    min(owed.message.qos, qos),
                    owed.message.retain and as_published,
                    (identifier,) if identifier else (),
                )
                for qos, identifier, as_published in state.groups[text]
            )
            # At the end it goes from one who has left to one who has yet to be told.
            and (self.is_stopping or not owed.holders)
            and (not owed.taken or owed.again or owed.message.qos != packet.qos)
        ]

    def _swap(self, door: Door, state: State, packet: Packet, topic: bytes) -> list[Owed]:
        """A group's copy that was taken for its receiver's own: the two look the same."""
        for text in state.groups:
            for owed in self.groups.get(text, ()):
                other = owed.receiver
                if other is None or other is state or not same_props(door, packet, owed.message):
                    continue
                if (owed.message.topic, owed.message.payload) != (topic, packet.payload):
                    continue
                for own in other.owed:
                    message = own.message
                    is_alike = (message.topic, message.payload) == (topic, packet.payload)
                    if is_alike and not own.sent and own.qos == owed.qos:
                        own.sent, own.taken, own.taken_at = owed.sent, owed.taken, owed.taken_at
                        for packet_id, one in other.outstanding.items():
                            if one is owed:
                                other.outstanding[packet_id] = own
                        owed.sent = owed.taken = 0
                        owed.holders.clear()
                        return [owed]
        return []

    def _find_other(self, door: Door, state: State, packet: Packet, topic: bytes) -> list[Owed]:
        """What another group has not given away yet: copies for several groups look alike."""
        shares = {text: wire.split_share(text) for text in state.groups}
        if not any(share and wire.is_met(share[1], topic) for share in shares.values()):
            return []
        found = [
            owed
            for waiting in self.groups.values()
            for owed in waiting
            if (owed.message.topic, owed.message.payload) == (topic, packet.payload)
            and same_props(door, packet, owed.message)
        ]
        unsent = [owed for owed in found if not owed.sent]
        if unsent or len(found) > 1:  # of several groups, or repeated by its publisher
            return unsent or found
        return [owed for owed in found if owed.is_mixed]

    def _was_other(self, state: State, owed: Owed, packet: Packet) -> bool:
        """Whether the group's subscription would have to be an earlier one, of another QoS."""
        for text in state.groups:
            subscription = state.subscription(text)
            if subscription is not None and owed in self.groups.get(text, ()):
                return min(owed.message.qos, subscription.asked.qos) != packet.qos
        return False

    def _is_early(self, state: State, owed: Owed) -> bool:
        """Whether others stand in front of it: then a copy that a subscription brings came."""
        message = owed.message
        return any(
            not one.sent
            and (one.kind, one.qos) == ("live", owed.qos)
            and (one.message.publisher, one.message.topic) == (message.publisher, message.topic)
            and one.message.number < message.number
            for one in state.owed
        )

    def _check_order(self, state: State, packet: Packet, owed: Owed) -> None:
        message = owed.message
        if message.serial in self.repeated or not message.payload:
            return  # its publisher repeats it, or it looks like others
        key = message.publisher, message.topic, packet.qos
        last = state.order.get(key, 0)
        right = message.number > last or owed.again or state.tainted
        # It expired after it had got its packet id, and a crash forgot that: nobody knows whether
        # it was written, so it is repeated in its place.
        right = right or (packet.dup and message.expires_at <= self.now)
        self.check(right, "order", f"{state.client[:20]!r}: {message} after no. {last}")
        state.order[key] = max(last, message.number)

    def _check_message(
        self, door: Door, state: State, packet: Packet, owed: Owed, shown: str
    ) -> None:
        message = owed.message
        right = same_props(door, packet, message) or not packet.payload  # those look alike
        self.check(right, "unowed", f"{shown}: {packet.props}, sent with {message.props}"[:300])
        if owed.kind == "group":
            owed.qos = packet.qos
            if not packet.qos:
                owed.must = False  # nobody repeats it
        if message.expires_at < FOREVER:
            is_new = owed.sent == 1 and not packet.dup and packet.qos < 2 and not owed.again
            late = is_new and self.now > message.expires_at
            dealt = set().union(*(self.dealt.get(text, set()) for text in state.groups))
            is_of_group = (message.topic, message.payload) in dealt
            oracle = "expired" if is_of_group else "unowed"
            self.check(not late, oracle, f"{shown} came after its expiry")
            if door.version == wire.V5:
                left = packet.number(wire.EXPIRY, -1)
                right = self._is_aged(packet, message)
                self.check(
                    right, "unowed", f"{shown}: {left} s, sent {self.now - message.at} s ago"
                )
        if not packet.qos:
            owed.taken += 1
            owed.taken_at = self.stamp

    def _is_aged(self, packet: Packet, message: Message, slack_s: float = 1.0) -> bool:
        """Whether its Message Expiry Interval is less by as long as it waited."""
        if message.expires_at == FOREVER or not wire.has(packet.props, wire.EXPIRY):
            return message.expires_at > self.now
        left = message.expires_at - self.now
        return max(0, left - slack_s) <= packet.number(wire.EXPIRY) <= max(0, left + slack_s)

    # Now and then.

    def check_live(self) -> None:
        """QoS 0 is there in the turn in which it was published, or never."""
        for state in self.states:
            for owed in state.owed:
                if not owed.qos and owed.must and not owed.taken and owed.kind == "live":
                    right = state.door is None or owed.message.expires_at <= self.now
                    self.check(right, "live", f"{state.client[:20]!r} never got {owed.message}")
            state.owed = [owed for owed in state.owed if owed.qos or owed.kind == "retained"]
        for waiting in self.groups.values():
            waiting[:] = [owed for owed in waiting if owed.message.qos]

    def check_kept(self) -> None:
        """Everybody is here, reads and acknowledges: nothing may be owed any more."""
        for state in self.states:
            # Copies that may have been taken for its own.
            shared = set().union(*(self.dealt.get(text, set()) for text in state.groups))
            for owed in state.owed:
                right = owed.taken or not owed.must or owed.message.expires_at <= self.now
                right = right or (owed.message.topic, owed.message.payload) in shared
                oracle = "will" if owed.message.is_will else "promise"
                self.check(
                    bool(right), "brought" if owed.kind == "retained" else oracle,
                    f"{state.client[:20]!r} never got {owed.message} ({owed.kind}, {owed.qos})",
                )  # fmt: skip
        for text, waiting in self.groups.items():
            for owed in waiting:
                right = owed.taken or not owed.must or owed.message.expires_at <= self.now
                oracle = "will" if owed.message.is_will else "group"
                self.check(bool(right), oracle, f"no member of {text!r} got {owed.message}")

    def check_answered(self, door: Door) -> None:
        self.check(
            not door.pending or door.tainted, "liveness",
            f"{door.client[:20]!r} waits for {list(door.pending)[:4]} (type, id)",
        )  # fmt: skip


def same_props(door: Door, packet: Packet, message: Message) -> bool:
    """Whether it has the properties that it was sent with, but for those of one hop."""
    props = [one for one in packet.props if one[0] not in wire.HOP]
    sent = [one for one in message.props if one[0] not in wire.HOP]
    return props == (sent if door.version == wire.V5 else [])


def hexed(reasons: frozenset[int]) -> str:
    return ", ".join(f"0x{reason:02X}" for reason in sorted(reasons))


__all__ = ["NEVER", "SHUTTING_DOWN", "Judge"]
