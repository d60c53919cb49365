"""What the broker has to do, told by the specification alone, and checked as it does it.

The model stands at the broker's door: it reads every packet that is handed to the broker, in
that order, and every packet the broker writes. From the first it works out who is owed what;
each PUBLISH that is written has to be something that is owed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mqtt_broker.codec import properties as prop
from mqtt_broker.codec.constants import PUBACK, PUBCOMP, PUBREC, PUBREL, V5, V31
from mqtt_broker.codec.errors import Violation
from mqtt_broker.codec.packets import (
    Ack,
    Connack,
    Connect,
    Disconnect,
    Publish,
    Subscribe,
    SubscriptionRequest,
    Unsubscribe,
    Will,
)
from mqtt_broker.core.routing.retained_delivery import delivery_to
from mqtt_broker.topics.names import matches

if TYPE_CHECKING:
    from tests.sim.wire import Wire
    from tests.sim.world import World


@dataclass(eq=False)
class Said:
    """One application message as the broker took it."""

    topic: str
    payload: bytes
    qos: int
    retain: bool
    publisher: str
    number: int
    may_expire: bool = False


@dataclass(eq=False)
class Owed:
    """A message that a session has to get. `is_due`: it may not be left out."""

    said: Said
    qos: int
    retain: bool
    identifiers: frozenset[int]
    is_due: bool
    kind: str = "live"
    is_written: bool = False


@dataclass(eq=False)
class Shared:
    """A message for a group, and to whom it was written."""

    said: Said
    is_due: bool
    writes: list[tuple[str, int, int]] = field(default_factory=list)  # client, connection, QoS


@dataclass(eq=False)
class State:
    """A session."""

    client_id: str
    expiry: float = 0.0
    wire: Wire | None = None
    ends_at: float = math.inf
    will: Will | None = None
    will_at: float = math.inf
    subscriptions: dict[str, tuple[SubscriptionRequest, int]] = field(default_factory=dict)
    groups: set[str] = field(default_factory=set)  # that it was ever in
    owed: list[Owed] = field(default_factory=list)
    brought: list[tuple[SubscriptionRequest, int]] = field(default_factory=list)  # of this chunk
    inflight: dict[int, bytes] = field(default_factory=dict)  # id -> payload; b"" once released
    open_ids: set[int] = field(default_factory=set)
    order: dict[tuple[str, str, int], int] = field(default_factory=dict)


@dataclass(eq=False)
class Door:
    """What the model knows of one connection."""

    connect: Connect | None = None
    state: State | None = None
    expects_present: bool = False
    has_connack: bool = False
    is_over: bool = False
    names_in: dict[int, str] = field(default_factory=dict)
    names_out: dict[int, str] = field(default_factory=dict)
    unfinished: set[int] = field(default_factory=set)  # sent on this connection, not finished
    received: dict[int, int] = field(default_factory=dict)


class Model:
    def __init__(self, world: World) -> None:
        self.world = world
        self.sessions: dict[str, State] = {}
        self.doors: dict[Wire, Door] = {}
        self.retained: dict[str, Said] = {}
        self.groups: dict[str, list[Shared]] = {}
        self._number = 0
        self._heard: State | None = None  # whose packets are heard now

    # Towards the broker.

    def on_heard(self, wire: Wire, data: bytes) -> None:
        door = self.doors.setdefault(wire, Door())
        if door.state is not None:
            self._settle_brought(door.state)
        for packet in wire.heard.feed(data):
            if door.is_over:
                break
            assert not isinstance(packet, Violation), f"the client is not honest: {packet}"
            self._on_packet(wire, door, packet)
            self._heard = door.state  # the broker acts upon it next
        self._heard = None

    def _on_packet(self, wire: Wire, door: Door, packet: Any) -> None:
        if isinstance(packet, Connect):
            self._on_connect(wire, door, packet)
            return
        state = door.state
        assert state is not None
        if isinstance(packet, Publish):
            self._on_publish(door, state, packet)
        elif isinstance(packet, Ack):
            for packet_id in packet.packet_ids:
                self._on_ack(door, state, packet.packet_type, packet_id)
        elif isinstance(packet, Subscribe):
            self._on_subscribe(state, packet)
        elif isinstance(packet, Unsubscribe):
            for text in packet.filters:
                state.subscriptions.pop(text, None)
                for owed in self._on_its_way(state):
                    if matches(text, owed.said.topic):
                        owed.is_due = False
            self._check_groups()
        elif isinstance(packet, Disconnect):
            if packet.reason == 0:
                state.will = None
            self.end(wire)

    def _on_connect(self, wire: Wire, door: Door, packet: Connect) -> None:
        state = self.sessions.get(packet.client_id)
        if state is not None and state.wire is not None:
            self.end(state.wire)
            state = self.sessions.get(packet.client_id)
        if state is not None and packet.clean_start:
            self._forget(state)
            state = None
        door.connect = packet
        door.expects_present = state is not None and packet.version != V31
        if state is None:
            state = self.sessions[packet.client_id] = State(packet.client_id)
        door.state = state
        if packet.version == V5:
            state.expiry = packet.properties.number(prop.SESSION_EXPIRY_INTERVAL)
        else:
            state.expiry = 0 if packet.clean_start else 0xFFFF_FFFF
        state.wire = wire
        state.ends_at = state.will_at = math.inf
        state.will = packet.will

    def _on_publish(self, door: Door, state: State, packet: Publish) -> None:
        topic = packet.topic
        alias = packet.properties.number(prop.TOPIC_ALIAS)
        if alias:
            topic = topic or door.names_in[alias]
            door.names_in[alias] = topic
        ids = packet.packet_ids() if packet.qos else [0] * packet.count
        for packet_id, payload in zip(ids, packet.payloads(), strict=True):
            if packet.qos == 2:
                if packet_id in state.open_ids:
                    continue
                state.open_ids.add(packet_id)
            self._number += 1
            said = Said(
                topic,
                payload,
                packet.qos,
                packet.retain,
                state.client_id,
                self._number,
                prop.MESSAGE_EXPIRY_INTERVAL in packet.properties,
            )
            self.route(said)

    def _on_ack(self, door: Door, state: State, packet_type: int, packet_id: int) -> None:
        if packet_type == PUBREL:
            state.open_ids.discard(packet_id)
        elif packet_type == PUBREC:
            if packet_id in state.inflight:
                state.inflight[packet_id] = b""
        else:
            assert packet_type in (PUBACK, PUBCOMP)
            state.inflight.pop(packet_id, None)
            door.unfinished.discard(packet_id)

    def _on_subscribe(self, state: State, packet: Subscribe) -> None:
        found = packet.properties.subscription_ids
        identifier = found[0] if found else 0
        for request in packet.requests:
            is_new = request.filter not in state.subscriptions
            state.subscriptions[request.filter] = request, identifier
            if request.filter.startswith("$share/"):
                self._join(state, request)
                continue
            if request.retain_handling == 2 or (request.retain_handling == 1 and not is_new):
                continue
            state.brought.append((request, identifier))
            for said in self.retained.values():
                is_due = min(said.qos, request.qos) > 0 and not said.may_expire
                self._bring(state, request, identifier, said, is_due)

    def _bring(
        self, state: State, request: SubscriptionRequest, identifier: int, said: Said, is_due: bool
    ) -> None:
        """A subscription brings this message, if it matches."""
        if not matches(request.filter, said.topic):
            return
        if request.no_local and said.publisher == state.client_id:
            return
        ids = frozenset({identifier} - {0})
        qos = min(said.qos, request.qos)
        state.owed.append(Owed(said, qos, True, ids, is_due, "retained"))

    def _settle_brought(self, state: State) -> None:
        """Forget what was brought, unless the broker is still at it, or has not begun."""
        session = self.world.broker.sessions.get(state.client_id)
        if state is not self._heard and (session is None or delivery_to(session) is None):
            state.brought.clear()

    def _on_its_way(self, state: State) -> list[Owed]:
        """What a SUBSCRIBE brings, as far as it may not have been delivered yet."""
        if not state.brought:
            return []
        return [owed for owed in state.owed if owed.kind == "retained" and not owed.is_written]

    def _change_retained(self, said: Said) -> None:
        """Keep it, or (empty) remove what was there; what is on its way changes with it."""
        self.retained.pop(said.topic, None)
        if said.payload:
            self.retained[said.topic] = said
        for state in self.sessions.values():
            self._settle_brought(state)
            for owed in self._on_its_way(state):
                if owed.said.topic == said.topic:
                    owed.is_due = False
            for request, identifier in state.brought:
                if said.payload:
                    self._bring(state, request, identifier, said, False)

    def _join(self, state: State, request: SubscriptionRequest) -> None:
        state.groups.add(request.filter)
        for shared in self.groups.get(request.filter, ()):
            # What moves to this member may be dropped on the way.
            if not request.qos or self._is_too_large(state.client_id, shared.said):
                shared.is_due = False

    # Routing.

    def route(self, said: Said) -> None:
        if said.retain:
            self._change_retained(said)
        groups: dict[str, dict[str, int]] = {}
        for state in self.sessions.values():
            matching: list[tuple[SubscriptionRequest, int]] = []
            for text, (request, identifier) in state.subscriptions.items():
                if text.startswith("$share/"):
                    _, _, inner = text.split("/", 2)
                    if matches(inner, said.topic):
                        members = groups.setdefault(text, {})
                        members[state.client_id] = min(request.qos, said.qos)
                elif matches(text, said.topic) and not (
                    request.no_local and said.publisher == state.client_id
                ):
                    matching.append((request, identifier))
            if matching:
                self._owe(state, said, matching)
        for text, members in groups.items():
            is_due = min(members.values()) > 0 and not said.may_expire
            is_due = is_due and not any(self._is_too_large(name, said) for name in members)
            self.groups.setdefault(text, []).append(Shared(said, is_due))

    def _owe(
        self, state: State, said: Said, matching: list[tuple[SubscriptionRequest, int]]
    ) -> None:
        qos = min(said.qos, max(request.qos for request, _ in matching))
        if not qos and state.wire is None:
            return
        retain = said.retain and any(request.retain_as_published for request, _ in matching)
        ids = frozenset(identifier for _, identifier in matching if identifier)
        is_due = qos > 0 and bool(said.payload) and not said.may_expire
        is_due = is_due and not self._is_too_large(state.client_id, said)
        state.owed.append(Owed(said, qos, retain, ids, is_due))

    def _is_too_large(self, client_id: str, said: Said) -> bool:
        limit = self.world.clients[client_id].packet_bytes_max
        return bool(limit) and len(said.payload) + 60 > limit

    # The end of connections and sessions.

    def on_closed(self, wire: Wire) -> None:
        """The broker closed the link."""
        self.end(wire)

    def end(self, wire: Wire) -> None:
        door = self.doors.setdefault(wire, Door())
        if door.is_over:
            return
        door.is_over = True
        state = door.state
        if state is None:
            return
        now = self.world.now
        state.wire = None
        expiry = math.inf if state.expiry >= 0xFFFF_FFFF else state.expiry
        state.ends_at = now + expiry
        if state.will is not None:
            delay = state.will.properties.number(prop.WILL_DELAY_INTERVAL)
            state.will_at = now + min(delay, expiry)
            if state.will_at <= now:
                self._send_will(state)
        if not expiry:
            self._forget(state)

    def _forget(self, state: State) -> None:
        if state.will_at < math.inf:
            self._send_will(state)
        del self.sessions[state.client_id]
        for waiting in self.groups.values():
            for shared in waiting:  # an exchange of QoS 2 ends with its session
                if any(name == state.client_id for name, _, _ in shared.writes):
                    shared.is_due = False
        self._check_groups()

    def _check_groups(self) -> None:
        """What waits for a group without members is nobody's."""
        for text, waiting in self.groups.items():
            if not any(text in state.subscriptions for state in self.sessions.values()):
                for shared in waiting:
                    shared.is_due = False

    def _send_will(self, state: State) -> None:
        will = state.will
        assert will is not None
        state.will = None
        state.will_at = math.inf
        self._number += 1
        self.route(
            Said(will.topic, will.payload, will.qos, will.retain, state.client_id, self._number)
        )

    def tick(self) -> None:
        now = self.world.now
        for state in list(self.sessions.values()):
            if state.will_at <= now:
                self._send_will(state)
            if state.ends_at <= now:
                self._forget(state)

    # From the broker.

    def on_written(self, wire: Wire, data: bytes) -> None:
        door = self.doors.setdefault(wire, Door())
        for packet in wire.said.feed(data):
            assert not isinstance(packet, Violation), f"the broker wrote nonsense: {packet}"
            if isinstance(packet, Connack):
                assert not door.has_connack and door.connect is not None
                door.has_connack = True
                assert packet.session_present == door.expects_present, (
                    f"{door.connect.client_id}: Session Present is {packet.session_present}"
                )
                continue
            assert door.has_connack, f"{packet} before CONNACK"
            state = door.state
            assert state is not None
            if isinstance(packet, Publish):
                self._on_broker_publish(wire, door, state, packet)
            elif isinstance(packet, Ack) and packet.packet_type == PUBREL:
                door.unfinished.update(packet.packet_ids)

    def _on_broker_publish(self, wire: Wire, door: Door, state: State, packet: Publish) -> None:
        assert door.connect is not None
        limit = door.connect.properties.number(prop.MAXIMUM_PACKET_SIZE)
        assert not limit or packet.size <= limit, f"{packet.size} bytes for {state.client_id}"
        topic = packet.topic
        alias = packet.properties.number(prop.TOPIC_ALIAS)
        if alias:
            topic = topic or door.names_out[alias]
            door.names_out[alias] = topic
        ids = packet.packet_ids() if packet.qos else [0] * packet.count
        for packet_id, payload in zip(ids, packet.payloads(), strict=True):
            # A repeat of what never reached the link is the first that is seen of it.
            is_new = not packet.dup or packet_id not in state.inflight
            if packet.qos:
                self._check_window(door, state, packet, packet_id, payload)
            if is_new:
                self._settle(wire, state, packet, topic, payload)

    def _check_window(
        self, door: Door, state: State, packet: Publish, packet_id: int, payload: bytes
    ) -> None:
        who = f"{state.client_id}, packet id {packet_id}"
        if packet.dup and packet_id in state.inflight:
            assert state.inflight[packet_id] == payload, f"{who}: repeats what was not sent"
        else:
            assert packet_id not in state.inflight, f"{who} is used while in flight"
            state.inflight[packet_id] = payload
        door.unfinished.add(packet_id)
        assert door.connect is not None
        limit = door.connect.properties.number(prop.RECEIVE_MAXIMUM, 65_535)
        assert len(door.unfinished) <= limit, f"{who}: over Receive Maximum {limit}"

    def _settle(
        self, wire: Wire, state: State, packet: Publish, topic: str, payload: bytes
    ) -> None:
        """What was written has to be owed, and its turn."""
        found = packet.properties.subscription_ids
        late = False
        # What has to come is settled before what may come as well.
        for index, owed in sorted(enumerate(state.owed), key=lambda item: not item[1].is_due):
            said = owed.said
            if owed.is_written or (said.topic, said.payload) != (topic, payload):
                continue
            if (owed.qos, owed.retain) != (packet.qos, packet.retain):
                continue
            if owed.identifiers != frozenset(found):
                continue
            if owed.kind == "live" and payload:
                key = said.publisher, topic, packet.qos
                if index <= state.order.get(key, -1):
                    late = True  # unless a repeat by its publisher is meant
                    continue
                state.order[key] = index
            owed.is_written = True
            return
        assert not late, f"{state.client_id}: {payload!r} comes out of its order"
        self._settle_shared(wire, state, packet, topic, payload)

    def _settle_shared(
        self, wire: Wire, state: State, packet: Publish, topic: str, payload: bytes
    ) -> None:
        """One member gets it; another only at QoS 1, when the first has gone."""
        found = [
            shared
            for text, waiting in self.groups.items()
            for shared in waiting
            if (shared.said.topic, shared.said.payload) == (topic, payload) and text in state.groups
        ]
        found.sort(key=lambda shared: (len(shared.writes), not shared.is_due))
        for shared in found:
            if all(self._has_moved(write) for write in shared.writes):
                shared.writes.append((state.client_id, wire.number, packet.qos))
                return
        assert not found, f"{state.client_id} was sent {payload!r} as well: {found[0].writes}"
        raise AssertionError(f"{state.client_id} was sent {topic} {payload!r}, owed by nobody")

    def _has_moved(self, write: tuple[str, int, int]) -> bool:
        """Whether the member lost the message with its connection."""
        holder, number, qos = write
        other = self.sessions.get(holder)
        return qos == 1 and (other is None or other.wire is None or other.wire.number != number)

    # At the end.

    def check_complete(self) -> None:
        for state in self.sessions.values():
            for owed in state.owed:
                assert owed.is_written or not owed.is_due, (
                    f"{state.client_id} never got {owed.said} ({owed.kind}, QoS {owed.qos})"
                )
            got = self.world.clients[state.client_id].got
            for owed in state.owed:
                if not owed.is_due or not owed.is_written or owed.kind != "live":
                    continue
                key = owed.said.topic, owed.said.payload, owed.qos
                assert got[key], f"{key} was sent and never reached {state.client_id}"
        for text, waiting in self.groups.items():
            for shared in waiting:
                assert shared.writes or not shared.is_due, f"{shared.said} is lost in {text}"
        for client in self.world.clients.values():
            for (topic, payload, qos), count in client.got.items():
                if qos == 2 and topic[:2] == "m/":
                    assert count == 1, f"{client.name} got {payload!r} {count} times at QoS 2"
