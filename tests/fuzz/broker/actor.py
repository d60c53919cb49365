"""A client with its own Session State: honest, unless a step makes it send something else.

It answers what it is sent, at once or when it is told to, repeats what has to be repeated
after a reconnect, and lets go of everything when the broker says that there was no session.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from tests.fuzz.broker import values, wire
from tests.fuzz.broker.decisions import Decisions
from tests.fuzz.broker.wire import Asked, Packet, Will

if TYPE_CHECKING:
    from tests.fuzz.broker.links import Link
    from tests.fuzz.broker.world import World

OPEN_QOS2_MAX = 3  # below every Receive Maximum that the broker announces
_PACKET_IDS = (1, 2, 0x7F, 0x80, 0xFF, 0x100, 0x7FFF, 0x8000, 0xFFFE, 0xFFFF)
_NOT_IN_CONNECT = frozenset({wire.METHOD, wire.AUTH_DATA, wire.SESSION_EXPIRY})
_NOT_IN_PUBLISH = frozenset({wire.SUB_ID, wire.ALIAS})
_NONE: frozenset[int] = frozenset()


class Actor:
    def __init__(self, world: World, client: bytes, version: int) -> None:
        self.world = world
        self.client = client
        self.version = version
        self.link: Link | None = None
        self.is_reading = True  # and answers at once
        self.late: list[bytes] = []  # answers that it has not sent
        self.serial = 0
        self.ids: set[int] = set()  # in use
        self.repeats: Counter[int] = Counter()  # ids: PUBRECs that come for nothing
        self.unacked: dict[int, Packet] = {}
        self.released: dict[int, None] = {}
        self.asked: set[int] = set()  # SUBSCRIBE and UNSUBSCRIBE, of this connection
        self.is_in = False
        self.life = "any"  # of its sessions: any, fleeting or stored
        self.resubscribes = False  # when there is no session to carry on
        self.wants: dict[bytes, Asked] = {}

    # What a step makes it do.

    def connect(self, c: Decisions) -> None:
        version = self.version
        packet = Packet(wire.CONNECT, version=version, client=self.client)
        packet.clean = c.chance(0.3)
        if version < wire.V5 and self.life != "any":
            packet.clean = self.life == "fleeting"
        packet.keep_alive = values.number(c, 0, 65_535) if c.chance(0.2) else 0
        if version == wire.V5:
            packet.props = values.properties(c, wire.CONNECT, _NOT_IN_CONNECT) if c.below(2) else []
            expiry = 0 if self.life == "fleeting" else self._expiry(c)
            if not c.chance(0.2) and expiry:
                packet.props.append((wire.SESSION_EXPIRY, expiry))
            if packet.number(wire.PACKET_MAXIMUM) and not c.chance(0.1):
                packet.props = [one for one in packet.props if one[0] != wire.PACKET_MAXIMUM]
            if c.chance(0.02):
                packet.props.append((wire.METHOD, values.text(c)))
        if c.chance(0.4):
            packet.will = self._will(c)
        username = values.text(c) if c.chance(0.1) else None
        password = values.binary(c) if username is not None and c.below(2) else None
        self.open(wire.connect(packet, username, password))

    def _expiry(self, c: Decisions) -> int:
        if c.below(2):
            return c.pick((wire_never(), 0 if self.life == "any" else 1_000, 5, 1, 30, 100))
        return self.world.wide(values.number(c, 0, wire_never()))

    def _will(self, c: Decisions) -> Will:
        """Mostly a payload of its own, so that one will is not taken for another."""
        will = Will(
            self.world.subject.topic(c),
            self._payload(c)[: values.LONGEST],
            c.below(3),
            c.chance(0.3),
        )
        if self.version == wire.V5:
            will.props = self._checked(values.properties(c, wire.WILL, _NONE), will)
        return will

    def open(self, data: bytes) -> None:
        """Connect; who is connected takes itself over."""
        old, self.link = self.link, None
        self.late.clear()
        self.asked.clear()
        self.ids = {*self.unacked, *self.released}
        self.repeats.clear()
        self.is_in = False
        self.link = self.world.open(self)
        self.world.send(self.link, data)
        if old is not None and not old.is_lost and not old.is_closed:
            self.world.lose(old)  # it was not let in anew, or has lost its way

    def _payload(self, c: Decisions) -> bytes:
        self.serial += 1
        payload = self.client[:4] + b" %d" % self.serial
        if c.below(4) == 3:
            payload += values.binary(c)
        return payload

    def _checked(self, found: wire.Properties, message: Will | Packet) -> wire.Properties:
        """What it says of the payload is true, most of the time it is checked at all."""
        out: wire.Properties = []
        for key, value in found:
            if key == wire.FORMAT and isinstance(message, Will):
                continue
            if isinstance(value, int):
                value = self.world.wide(value)
            out.append((key, value))
        return out

    def publish(self, c: Decisions) -> None:
        if not self.is_in or self.link is None:
            return
        out: list[bytes] = []
        packet = Packet(wire.PUBLISH, topic=self.world.subject.topic(c), qos=c.pick((1, 2, 0)))
        packet.retain = c.chance(0.3)
        if self.version == wire.V5:
            packet.props = self._checked(
                values.properties(c, wire.PUBLISH, _NOT_IN_PUBLISH), packet
            )
        count = c.pick((1, 1, 1, 3))
        if count > 1 and "format" in self.world.ignored:
            packet.props = [one for one in packet.props if one[0] != wire.FORMAT]
        for _ in range(count):
            one = Packet(**vars(packet))
            one.payload = b"" if packet.retain and c.chance(0.2) else self._payload(c)
            if one.qos:
                if one.qos == 2 and len(self.unacked) + len(self.released) >= OPEN_QOS2_MAX:
                    break
                one.id = self._new_id(c)
                self.unacked[one.id] = one
            out.append(wire.publish(self.version, one))
        if out:
            self.world.send(self.link, b"".join(out))

    def repeat(self, c: Decisions) -> None:
        """Send QoS 2 messages again that were not answered, as often as it likes."""
        waiting = [one for one in self.unacked.values() if one.qos == 2]
        if not waiting or not self.is_in or self.link is None or not c.chance(0.3):
            return
        again = Packet(**vars(c.pick(waiting)))
        again.dup = c.below(4) > 0
        count = 1 + c.below(4)
        self.repeats[again.id] += count
        self.world.send(self.link, wire.publish(self.version, again) * count)

    def _new_id(self, c: Decisions) -> int:
        found = c.pick(_PACKET_IDS) if c.below(4) == 3 else 1
        while found in self.ids or self.repeats[found]:
            found = found % 65_535 + 1
        self.ids.add(found)
        return found

    def subscribe(self, c: Decisions) -> None:
        if not self.is_in or self.link is None:
            return
        packet = Packet(wire.SUBSCRIBE, id=self._new_id(c))
        self.asked.add(packet.id)
        for _ in range(c.pick((1, 1, 2, 3))):
            text = self.world.subject.topic_filter(c)
            one = Asked(text, c.pick((1, 2, 1, 2, 1, 2, 1, 0)))
            if self.version == wire.V5:
                one.no_local = c.chance(0.2) and not text.startswith(b"$share")
                one.as_published = c.chance(0.3)
                one.handling = c.below(3)
            packet.asked.append(one)
            self.wants[text] = one
        if self.version == wire.V5:
            packet.props = values.properties(c, wire.SUBSCRIBE, _NONE)
        self.world.send(self.link, wire.subscribe(self.version, packet))

    def unsubscribe(self, c: Decisions) -> None:
        if not self.is_in or self.link is None:
            return
        packet = Packet(wire.UNSUBSCRIBE, id=self._new_id(c))
        self.asked.add(packet.id)
        state = self.world.model.state(self.client)
        known = [] if state is None else list(state.subs)
        for _ in range(c.pick((1, 2))):
            if known and c.below(4) < 3:
                packet.filters.append(c.pick(known))
            else:
                packet.filters.append(self.world.subject.topic_filter(c))
        if self.version == wire.V5:
            packet.props = values.properties(c, wire.UNSUBSCRIBE, _NONE)
        self.world.send(self.link, wire.unsubscribe(self.version, packet))

    def disconnect(self, c: Decisions) -> None:
        if not self.is_in or self.link is None:
            return
        props: wire.Properties = []
        state = self.world.model.state(self.client)
        if self.version == wire.V5 and state is not None:
            connect = self.link.door.connect
            asked = 0 if connect is None else connect.number(wire.SESSION_EXPIRY)
            if c.chance(0.3):
                props = [(wire.SESSION_EXPIRY, self._expiry(c) if asked else 0)]
        reason = c.pick((0, 4)) if self.version == wire.V5 else 0
        self.world.send(self.link, wire.disconnect(self.version, reason, props))

    def toggle(self, c: Decisions) -> None:
        self.is_reading = not self.is_reading
        if self.is_reading:
            self.catch_up()

    def catch_up(self) -> None:
        late, self.late = self.late, []
        if late and self.link is not None and not self.link.is_closed:
            self.world.send(self.link, b"".join(late))

    # What it is told.

    def told(self, packet: Packet) -> None:
        kind = packet.kind
        if kind == wire.PUBREC and packet.id not in self.unacked and self.repeats[packet.id]:
            self.repeats[packet.id] -= 1
        if kind == wire.CONNACK:
            self._on_connack(packet)
        elif kind == wire.PUBLISH and packet.qos:
            self._answer(wire.ack(wire.PUBACK if packet.qos == 1 else wire.PUBREC, packet.id))
        elif kind == wire.PUBREL:
            self._answer(wire.ack(wire.PUBCOMP, packet.id))
        elif kind == wire.PUBREC and packet.reason < 0x80:
            if self.unacked.pop(packet.id, None) is not None:
                self.released[packet.id] = None
            if packet.id in self.released:
                self._answer(wire.ack(wire.PUBREL, packet.id))
        elif kind in (wire.PUBACK, wire.PUBREC):
            self.unacked.pop(packet.id, None)
            self.ids.discard(packet.id)
        elif kind == wire.PUBCOMP:
            if self.released.pop(packet.id, packet) is None:  # and not for the second time
                self.ids.discard(packet.id)
        elif kind in (wire.SUBACK, wire.UNSUBACK):
            self.asked.discard(packet.id)
            self.ids.discard(packet.id)

    def _on_connack(self, packet: Packet) -> None:
        if packet.reason or self.link is None:
            return
        self.is_in = True
        state = self.link.door.state
        is_kept = packet.present
        if self.version == wire.V31 and self.link.door.connect is not None:  # it is not told
            is_kept = not self.link.door.connect.clean and state is not None
            is_kept = is_kept and state is not None and state.stamp < self.link.opened_stamp
        if not is_kept:
            self.unacked.clear()
            self.released.clear()
            self.ids.clear()
            if self.resubscribes and self.wants:
                again = Packet(wire.SUBSCRIBE, id=1, asked=list(self.wants.values())[-3:])
                self.ids.add(again.id)
                self.asked.add(again.id)
                self.world.send(self.link, wire.subscribe(self.version, again))
        out: list[bytes] = []
        for one in self.unacked.values():
            repeated = Packet(**vars(one))
            repeated.dup = True
            out.append(wire.publish(self.version, repeated))
        out += [wire.ack(wire.PUBREL, packet_id) for packet_id in self.released]
        if out:
            self.late.extend(out)
            self.catch_up()

    def _answer(self, data: bytes) -> None:
        self.late.append(data)

    def lost(self) -> None:
        self.link = None
        self.is_in = False
        self.late.clear()
        self.asked.clear()


def wire_never() -> int:
    return 0xFFFF_FFFF
