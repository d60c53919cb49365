"""The judge: from what clients send and what the clock does, who is owed what.

`hear` is told every packet that the broker has taken, and `judge.Judge` every packet that it
wrote. The state here is what the broker's has to be; what a crash may have forgotten of it is
kept beside it (`Fact`) until everything is known to be on disk (`settle`).
"""

from __future__ import annotations

from collections.abc import Iterator

from tests.fuzz.broker import wire
from tests.fuzz.broker.facts import (
    BRIDGE,
    BRIDGED,
    Broken,
    Door,
    Fact,
    Ignored,
    Message,
    Owed,
    State,
    Subscription,
)
from tests.fuzz.broker.wire import Asked, Packet

NEVER = 0xFFFF_FFFF
FOREVER = float("inf")
OURS = (b"$SYS", b"$share", b"$stream", b"$dlq")
TINY = 400  # a Maximum Packet Size below this makes answers and messages vanish


class Model:
    def __init__(self, ignored: frozenset[str] = frozenset()) -> None:
        self.ignored = ignored
        self.now = 0.0
        self.stamp = 0
        self.is_stopping = False
        self.clients: dict[bytes, Fact[State | None]] = {}
        self.retained: dict[bytes, Fact[Message | None]] = {}
        self.brought: dict[Asked, list[Owed]] = {}  # since SUBSCRIBE, without SUBACK
        self.groups: dict[bytes, list[Owed]] = {}
        self.dealt: dict[bytes, set[tuple[bytes, bytes]]] = {}  # all that groups ever had
        self.arriving: dict[bytes, Door] = {}  # those whose CONNACK waits, in their order
        self.repeated: set[int] = set()  # serials
        self.bridged: tuple[bytes, bytes] | None = None  # what comes here is published there
        self.first_numbers: dict[tuple[bytes, bytes, bytes], int] = {}  # before any repetition

    def check(self, is_right: bool, oracle: str, text: str) -> None:
        if not is_right:
            raise Ignored if oracle in self.ignored else Broken(oracle, text)

    def tick_stamp(self) -> int:
        self.stamp += 1
        return self.stamp

    @property
    def states(self) -> Iterator[State]:
        for fact in self.clients.values():
            if fact.now is not None:
                yield fact.now

    def state(self, client: bytes) -> State | None:
        fact = self.clients.get(client)
        return None if fact is None else fact.now

    # What clients do, and the broker took.

    def hear(self, door: Door, packet: Packet) -> None:
        door.last_heard = self.now
        state = door.state
        if state is None or not door.is_open:
            return
        if packet.kind == wire.PUBLISH:
            self._on_publish(door, state, packet)
        elif packet.kind in (wire.PUBACK, wire.PUBREC):
            self._on_taken(door, state, packet)
        elif packet.kind == wire.PUBCOMP:
            door.unacked.discard(packet.id)
            state.outstanding.pop(packet.id, None)
        elif packet.kind == wire.PUBREL:
            message = state.open.pop(packet.id, None)
            if message is not None:
                state.freed[packet.id] = message
            self._expect(door, wire.PUBCOMP, packet.id, message)
        elif packet.kind == wire.SUBSCRIBE:
            self._on_subscribe(door, state, packet)
        elif packet.kind == wire.UNSUBSCRIBE:
            stamp = self.tick_stamp()
            for text in packet.filters:
                if state.subscription(text) is not None:
                    state.subs[text].put(stamp, None)
                    state.left[text] = stamp
                    for owed in self.groups.get(text, ()):  # it may be its client's, or is stored
                        is_elsewhere = bool(owed.holders - {door})
                        owed.must = owed.must and (is_elsewhere or bool(owed.keepers))
            self._expect(door, wire.UNSUBACK, packet.id, packet)
            packet.size = stamp
            self.check_groups()
        elif packet.kind == wire.PINGREQ:
            self._expect(door, wire.PINGRESP, 0, None)
        elif packet.kind == wire.DISCONNECT:
            self._on_disconnect(door, state, packet)

    def _expect(self, door: Door, kind: int, key: int, what: Message | Packet | None) -> None:
        door.pending.setdefault((kind, key), []).append(what)

    def arrive(self, door: Door, packet: Packet) -> bool:
        """A CONNECT: take over, end what it ends. Returns whether CONNACK may wait for the store.

        It may where a stored session of the client is over, or gets another Session Expiry
        Interval, and that is not surely on disk.
        """
        door.last_heard = self.now
        door.connect = packet
        door.version = packet.version
        door.client = packet.client
        maximum = packet.number(wire.PACKET_MAXIMUM)
        if 0 < maximum < TINY:
            door.may_close |= {0x95, 0}
            door.tainted = True
        self.tick_stamp()
        fact = self.clients.setdefault(packet.client, Fact(None))
        other = self.arriving.get(packet.client)
        if other is not None:
            self.close(other)
        state = fact.now
        if state is not None and state.door is not None:
            self.close(state.door)
            state = fact.now
        if state is not None and packet.clean:
            self.end(state)
            state = None
        others = (one for one in fact.possible if one is not None and one is not state)
        if any(one.stored or one.is_row for one in others):
            return True
        expiry = asked_expiry(packet)
        return (
            state is not None
            and state.stored
            and any(other_expiry != expiry for _, other_expiry in state.lives)
        )

    def wait(self, door: Door) -> None:
        """CONNACK waits. What the session will be may be on disk already, if there is one."""
        assert door.connect is not None
        door.waits = True
        self.arriving[door.client] = door
        state, expiry = self.state(door.client), asked_expiry(door.connect)
        if state is not None and state.stored and state.lives[-1][1] != expiry:
            door.prior = state.lives[-1]
            state.lives.append((None, expiry))
            state.wills.append(door.connect.will)

    def _give_up(self, door: Door) -> None:
        """It waited for CONNACK, and is gone: its session is what it was."""
        door.waits = False
        del self.arriving[door.client]
        state = self.state(door.client)
        if state is not None and door.prior is not None:
            state.lives.append(door.prior)
            state.wills.append(state.will)

    def admit(self, door: Door) -> None:
        """CONNACK: the client is in, with its session or a new one."""
        packet = door.connect
        assert packet is not None
        if door.waits:
            door.waits = False
            del self.arriving[door.client]
        fact = self.clients[door.client]
        state = fact.now
        door.expects_present = state is not None and packet.version > wire.V31
        stamp = self.tick_stamp()
        if state is None:
            before = [one.end_stamp for one in fact.possible if one is not None and one.stored]
            door.ended_stamp = max(before, default=0)
            state = State(packet.client, self.now, stamp)
            fact.put(stamp, state)
        state.expiry = asked_expiry(packet)
        state.version = packet.version
        state.stored = state.stored or state.expiry > 0
        state.tainted = state.tainted or door.tainted
        self._take_less(state, packet.number(wire.PACKET_MAXIMUM))
        state.door, door.state = door, state
        state.ends = state.will_due = FOREVER
        state.will, state.will_stamp = packet.will, stamp
        state.wills.append(packet.will)
        door.life = (None, state.expiry)
        state.lives.append(door.life)

    def _take_less(self, state: State, maximum: int) -> None:
        """What is too large for its new connection is dropped as if it had been taken."""
        shared = [owed for text in state.groups for owed in self.groups.get(text, ())]
        for owed in (*state.owed, *shared) if maximum else ():
            owed.must = owed.must and self.size_of(owed.message) < maximum

    def _on_disconnect(self, door: Door, state: State, packet: Packet) -> None:
        if wire.has(packet.props, wire.SESSION_EXPIRY):
            state.expiry = packet.number(wire.SESSION_EXPIRY)
        if not packet.reason:
            state.will = None
            state.wills.append(None)
        self.close(door)

    def _on_publish(self, door: Door, state: State, packet: Packet) -> None:
        topic = packet.topic
        alias = packet.number(wire.ALIAS)
        if alias:
            topic = topic or door.aliases_in[alias]
            door.aliases_in[alias] = topic
        if packet.qos == 2 and packet.id in state.open:
            self._expect(door, wire.PUBREC, packet.id, state.open[packet.id])
            return
        message = self.new_message(
            topic, packet.payload, packet.qos, packet.retain, packet.props, state.client
        )
        key = state.client, topic, packet.payload
        if packet.dup:
            message.serial = self.first_numbers.get(key, message.serial)
            self.repeated.add(message.serial)
        self.first_numbers[key] = message.serial
        if packet.qos:
            kind = wire.PUBACK if packet.qos == 1 else wire.PUBREC
            self._expect(door, kind, packet.id, message)
        if self.refusal(packet, topic):
            message.promised = True  # nothing: no one gets it
            message.qos = -1
            return
        if packet.qos == 2:
            state.open[packet.id] = message
        self.route(message)

    def refusal(self, packet: Packet, topic: bytes) -> int:
        is_state = topic.startswith(b"$SYS/broker/connection/") and topic.endswith(b"/state")
        if topic.split(b"/", 1)[0] in OURS and not is_state:
            return 0x87
        if packet.number(wire.FORMAT) == 1 and not is_utf8(packet.payload):
            return 0x99
        return 0

    def new_message(
        self, topic: bytes, payload: bytes, qos: int, retain: bool, props: wire.Properties,
        publisher: bytes,
    ) -> Message:  # fmt: skip
        expires = FOREVER
        if wire.has(props, wire.EXPIRY):
            expires = self.now + wire.number(props, wire.EXPIRY)
        stamp = self.tick_stamp()
        return Message(
            topic, payload, qos, retain, props, publisher, self.now, stamp, expires, stamp
        )

    def _on_taken(self, door: Door, state: State, packet: Packet) -> None:
        """The client owns it now: PUBACK, PUBREC."""
        if packet.kind == wire.PUBACK or packet.reason >= 0x80:
            door.unacked.discard(packet.id)
        owed = state.outstanding.pop(packet.id, None)
        if owed is not None:
            owed.taken += 1
            owed.taken_at = self.tick_stamp()
            owed.holders.clear()

    def _on_subscribe(self, door: Door, state: State, packet: Packet) -> None:
        stamp = packet.size = self.tick_stamp()
        identifier = packet.number(wire.SUB_ID)
        for one in packet.asked:
            if one.filter.startswith(b"$stream/"):
                packet.codes.append(0x8F)
                continue
            packet.codes.append(one.qos)
            fact = state.subs.setdefault(one.filter, Fact(None))
            # With handling 1 a subscription that is there already brings nothing.
            one.handling = 2 if one.handling == 1 and fact.now is not None else one.handling
            fact.put(stamp, Subscription(one, identifier))
            if state.stored and one.handling != 2 and wire.split_share(one.filter) is None:
                self._bring(state, one, identifier)
            if wire.split_share(one.filter) is not None:
                self.groups.setdefault(one.filter, [])
                asked = one.qos, identifier, one.as_published
                state.groups.setdefault(one.filter, set()).add(asked)
                if not one.qos or state.tainted:
                    for owed in self.groups[one.filter]:
                        owed.must = False
        self._expect(door, wire.SUBACK, packet.id, packet)

    def _bring(self, state: State, one: Asked, identifier: int) -> None:
        """They are in the session from now on; that they come is sure with SUBACK."""
        found = self.brought[one] = []
        for topic, fact in self.retained.items():
            message = fact.now
            if message is None or not wire.is_met(one.filter, topic):
                continue
            qos = min(message.qos, one.qos)
            if qos and not (one.no_local and message.publisher == state.client):
                ids = frozenset({identifier} - {0})
                found.append(Owed(message, qos, True, ids, must=False, kind="retained"))
        state.owed += found

    # Routing.

    def route(self, message: Message) -> None:
        if self.bridged is not None and message.topic == self.bridged[0] and message.payload:
            self._bridge(message, self.bridged[1])
        if message.retain:
            fact = self.retained.setdefault(message.topic, Fact(None))
            fact.put(message.number, message if message.payload else None)
        members: dict[bytes, list[State]] = {}
        for state in list(self.states):
            met: list[Subscription] = []
            for text, subscription in state.subs.items():
                if subscription.now is None:
                    continue
                shared = wire.split_share(text)
                if shared is not None:
                    if wire.is_met(shared[1], message.topic):
                        members.setdefault(text, []).append(state)
                elif wire.is_met(text, message.topic) and not (
                    subscription.now.asked.no_local and state.client == message.publisher
                ):
                    met.append(subscription.now)
            if met:
                self._owe(state, message, met)
        for text, found in members.items():
            others = [one for other, them in members.items() if other != text for one in them]
            self._owe_group(text, message, found, others)

    def _bridge(self, message: Message, topic: bytes) -> None:
        """As repeated as what it is made of, and nobody's own."""
        payload, publisher = BRIDGED + message.payload, BRIDGE + message.publisher
        copy = self.new_message(topic, payload, 1, False, [], publisher)
        copy.origin = message
        self._note_repetition(copy)
        self.route(copy)

    def _owe(self, state: State, message: Message, met: list[Subscription]) -> None:
        qos = min(message.qos, max(one.asked.qos for one in met))
        if not qos and state.door is None:
            return
        state.owed.append(
            Owed(
                message,
                qos,
                message.retain and any(one.asked.as_published for one in met),
                frozenset(one.identifier for one in met if one.identifier),
                must=not state.tainted and self._fits(state, message),
            )
        )

    def _owe_group(
        self, text: bytes, message: Message, members: list[State], others: list[State]
    ) -> None:
        least = min(self._sub(one, text).asked.qos for one in members)
        must = min(least, message.qos) > 0 and not any(one.tainted for one in members)
        must = must and all(self._fits(one, message) for one in members)
        # Which group a copy is from does not show on a client that is in two of them.
        is_mixed = any(one in others for one in members)
        must = must and not is_mixed
        owed = Owed(message, message.qos, False, frozenset(), must, "group", is_mixed=is_mixed)
        owed.keepers = [one for one in members if one.stored]
        self.groups.setdefault(text, []).append(owed)
        self.dealt.setdefault(text, set()).add((message.topic, message.payload))

    def _sub(self, state: State, text: bytes) -> Subscription:
        found = state.subscription(text)
        assert found is not None
        return found

    def _fits(self, state: State, message: Message) -> bool:
        """Whether it cannot be too large for its receiver as it is connected now."""
        connect = state.door.connect if state.door is not None else None
        maximum = connect.number(wire.PACKET_MAXIMUM) if connect is not None else 0
        return not maximum or self.size_of(message) < maximum

    def size_of(self, message: Message) -> int:
        return len(message.topic) + len(message.payload) + len(wire.packed(message.props)) + 60

    # The end of connections and of sessions.

    def close(self, door: Door) -> None:
        if not door.is_open:
            return
        door.is_open = False
        if door.waits:
            self._give_up(door)
            return
        state = door.state
        if state is None or state.door is not door:
            return
        state.door = None
        self.tick_stamp()
        state.lives.append((self.now, state.expiry))
        for owed in state.owed:
            owed.must = owed.must and owed.qos > 0
        self._let_go(state)
        for text, waiting in self.groups.items():
            for owed in waiting:
                owed.holders.discard(door)
                if owed.message.qos == 2 and not owed.taken and text in state.groups:
                    owed.must = False  # an exchange of QoS 2, begun or not, ends with its member
        if state.will is not None:
            delay = wire.number(state.will.props, wire.WILL_DELAY)
            wait = delay if state.expiry == NEVER else min(delay, state.expiry)
            state.will_due = self.now + wait
            if not wait:
                self.send_will(state)
        if not state.expiry:
            self.end(state)
        else:
            state.ends = FOREVER if state.expiry == NEVER else self.now + state.expiry

    def _let_go(self, state: State) -> None:
        """What it had of groups is another's now; a copy of its own may look like that one."""
        held = {key: owed for key, owed in state.outstanding.items() if owed and owed.qos < 2}
        moved = {
            (owed.message.topic, owed.message.payload)
            for owed in held.values()
            if owed.kind == "group"
        }
        for packet_id, owed in held.items():
            if (owed.message.topic, owed.message.payload) in moved:
                del state.outstanding[packet_id]

    def send_will(self, state: State) -> None:
        will = state.will
        assert will is not None
        state.will, state.will_due = None, FOREVER
        message = self.new_message(
            will.topic, will.payload, will.qos, will.retain, will.props, state.client
        )
        state.wills.append(None)
        self.route_will(message)

    def route_will(self, message: Message) -> None:
        """A crash may bring the same one again."""
        message.is_will = True
        self._note_repetition(message)
        self.route(message)

    def _note_repetition(self, message: Message) -> None:
        key = message.publisher, message.topic, message.payload
        if key in self.first_numbers:
            message.serial = self.first_numbers[key]
            self.repeated.add(message.serial)
        self.first_numbers[key] = message.serial

    def end(self, state: State) -> None:
        if state.will is not None and state.will_due < FOREVER:
            self.send_will(state)
        for owed in state.owed:  # what is acknowledged from here on is not for it
            owed.must = owed.must and owed.message.promised
        self.excuse_lookalikes(state)
        state.end_stamp = self.tick_stamp()
        self.clients[state.client].put(state.end_stamp, None)
        self.check_groups()

    def excuse_lookalikes(self, state: State) -> None:
        """A session is over. What it took as its own may have been a group's.

        While it lived that made no difference: it was owed all of its own copies.
        """
        for own, others in state.lookalikes:
            owed = next((one for one in others if one.must and not one.taken), None)
            if own.taken and owed is not None:
                owed.must = False
        state.lookalikes.clear()

    def taint(self, door: Door) -> None:
        """Its client does what no client should: nothing is owed to it, nor to its groups."""
        state = door.state
        assert state is not None
        state.tainted = True
        for owed in state.owed:
            owed.must = False
        for text, waiting in self.groups.items():
            if state.subscription(text) is not None:
                for owed in waiting:
                    owed.must = False

    def check_groups(self) -> None:
        """What waits for a group without members is nobody's."""
        for text, waiting in self.groups.items():
            if waiting and not any(state.subscription(text) for state in self.states):
                for owed in waiting:
                    owed.must = False

    def tick(self) -> None:
        """The broker's deadlines up to now have passed, and so have these."""
        while True:
            due: list[tuple[float, int, State]] = []
            for state in self.states:
                if state.will_due <= self.now:
                    due.append((state.will_due, 0, state))
                if state.ends <= self.now:
                    due.append((state.ends, 1, state))
            if not due:
                return
            _, kind, state = min(due, key=lambda one: one[:2])
            if kind:
                self.end(state)
            else:
                self.send_will(state)

    def stop(self) -> None:
        """Everybody is told to go, in any order: who sees whose will is anybody's guess."""
        mark = self.stamp
        self.is_stopping = True
        for state in list(self.states):
            if state.door is not None and state.will is not None:
                delay = wire.number(state.will.props, wire.WILL_DELAY)
                if not delay or not state.expiry:
                    self.send_will(state)
        for state in self.states:
            for owed in state.owed:
                if owed.message.number > mark:
                    owed.must = False
        for waiting in self.groups.values():
            for owed in waiting:
                if owed.message.number > mark:
                    owed.must = False

    # The disk.

    def settle(self) -> None:
        """Everything that happened is on disk."""
        for fact in self.clients.values():
            fact.settle()
        for kept in self.retained.values():
            kept.settle()
        for state in self.states:
            for sub in state.subs.values():
                sub.settle()
            state.subs = {text: sub for text, sub in state.subs.items() if sub.now is not None}
            state.freed.clear()
            state.wills[:] = [state.will]
            state.lives = state.lives[-1:]
            self._settle_owed(state.owed)
            for message in state.open.values():
                message.promised = True
        for waiting in self.groups.values():
            self._settle_owed(waiting)

    def _is_confused(self, owed: Owed) -> bool:
        """Whether a group's copy may have been its receiver's own, which looks the same."""
        return (
            owed.receiver is not None
            and owed.kind == "group"
            and any(
                not own.sent and is_alike(own.message, owed.message) for own in owed.receiver.owed
            )
        )

    def _settle_owed(self, found: list[Owed]) -> None:
        found[:] = [
            owed for owed in found if owed.again or not owed.taken or self._is_confused(owed)
        ]
        for owed in found:
            owed.message.promised = True


def is_alike(one: Message, other: Message) -> bool:
    return (one.topic, one.payload) == (other.topic, other.payload)


def asked_expiry(packet: Packet) -> int:
    if packet.version == wire.V5:
        return packet.number(wire.SESSION_EXPIRY)
    return 0 if packet.clean else NEVER


def is_utf8(raw: bytes) -> bool:
    try:
        raw.decode()
    except UnicodeDecodeError:
        return False
    return True
