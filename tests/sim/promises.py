"""What the broker has promised of sessions and wills, whatever crashes.

`Promises` reads every packet at the broker's door, as `model.Model` does, and knows of each
client which states the store may hold: those since the last commit. After a crash one of them
has to be there, with the time that went by counted from when the connection ended for certain:
the restart, or a minute after the last sign of life when the broker was away for longer.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from mqtt_broker.codec import properties as prop
from mqtt_broker.codec.constants import PUBCOMP, PUBREC, PUBREL, V5
from mqtt_broker.codec.errors import Violation
from mqtt_broker.codec.packets import (
    Ack,
    Connack,
    Connect,
    Disconnect,
    Publish,
    Suback,
    Subscribe,
)
from tests.sim.model import Model

if TYPE_CHECKING:
    from mqtt_broker.core.broker import Broker
    from tests.sim.crash import CrashWorld
    from tests.sim.wire import Wire

FOREVER: Final = 0xFFFF_FFFF
UNSEEN_S_MAX: Final = 60.0  # how long after the last sign of life a broker may have lived on
SLACK_S: Final = 0.02


@dataclass(frozen=True, slots=True)
class Row:
    """A state of one client's session that the store may hold."""

    serial: int  # of the connection that made it so
    is_there: bool
    expiry: float = 0.0
    ends_at: float = math.inf  # when the client is away
    is_online: bool = False
    group: int = 0  # of the journal: committed, this one or a later one is in the store

    def after_crash(self, left_at: float) -> Row:
        if not self.is_there or not self.is_online:
            return self
        if not self.expiry:
            return replace(self, is_there=False, is_online=False)
        return replace(self, is_online=False, ends_at=left_at + self.expiry)


@dataclass(eq=False)
class WillCase:
    """One connection's will, and what has to become of it."""

    client_id: str
    serial: int
    topic: str
    payload: bytes
    retain: bool
    delay: float
    heard_at: float
    is_fleeting: bool
    fate: str = "armed"  # due, deciding, sent, cancelled, or unsure: anything may come of it
    is_recorded: bool = False
    group: int = 0
    due_from: float = math.inf
    due_to: float = math.inf


@dataclass(eq=False)
class Door:
    """One connection."""

    serial: int
    client_id: str
    expects: tuple[bool, bool]  # Session Present: has to be, may be
    expiry: float
    will: WillCase | None
    before: list[Row]  # what was possible until it came: still so while it is not answered
    is_told: bool = False  # CONNACK was written
    is_over: bool = False
    asked: dict[int, list[str]] = field(default_factory=dict)


@dataclass(eq=False)
class Known:
    """One client, over all its sessions and all lives of the broker."""

    client_id: str
    possible: list[Row]  # what the broker may have in memory; more than one only after a crash
    stored: list[Row]  # what the store may have
    wire: Wire | None = None
    last_serial: int = 0
    filters: set[str] = field(default_factory=set)  # asked for in this session
    promised: set[str] = field(default_factory=set)  # acknowledged in it
    ids: set[int] = field(default_factory=set)  # of QoS 2, used in it
    open_ids: set[int] = field(default_factory=set)  # PUBREC left, and no PUBREL came
    free_ids: set[int] = field(default_factory=set)  # PUBCOMP left, and not used again
    wills: list[WillCase] = field(default_factory=list)

    def put(self, row: Row) -> None:
        self.possible = [row]
        self.stored.append(row)

    def bounds(self, now: float) -> tuple[bool, bool]:
        """Whether a session has to be there, and whether it may."""
        return (
            all(row.is_there and now < row.ends_at - SLACK_S for row in self.possible),
            any(row.is_there and now <= row.ends_at + SLACK_S for row in self.possible),
        )

    def begin(self) -> None:
        """A new session: nothing of the old one is there any longer."""
        for kept in (self.filters, self.promised, self.ids, self.open_ids, self.free_ids):
            kept.clear()


class Promises(Model):
    def __init__(self, world: CrashWorld) -> None:
        super().__init__(world)
        self.crash_world = world
        self.known: dict[str, Known] = {}
        self.gates: dict[Wire, Door] = {}
        self._serial = 0

    def _check(self, oracle: str, holds: bool, text: str) -> None:
        self.crash_world.oracles.check(oracle, holds, text)

    @property
    def _group(self) -> int:
        """The journal's group that what happens now goes into."""
        return self.crash_world.journal.number + 1

    # Towards the broker.

    def on_heard(self, wire: Wire, data: bytes) -> None:
        for packet in wire.heard.feed(data):
            assert not isinstance(packet, Violation), f"the client is not honest: {packet}"
            if isinstance(packet, Connect):
                self._hear_connect(wire, packet)
                continue
            door = self.gates[wire]
            if door.is_over:
                return
            self._hear(wire, door, self.known[door.client_id], packet)

    def has_heard(self, wire: Wire) -> bool:
        """Whether the broker has its CONNECT."""
        return wire in self.gates

    def _hear_connect(self, wire: Wire, packet: Connect) -> None:
        now = self.world.now
        name = packet.client_id
        if name not in self.known:
            self.known[name] = Known(name, [Row(0, False)], [Row(0, False)])
        known = self.known[name]
        if known.wire is not None:
            self.end(known.wire)
        must, may = known.bounds(now)
        if packet.clean_start:
            must = may = False
        if not must:  # the promises of the old session end here, those of the new begin
            known.promised.clear()
            known.open_ids.clear()
            # And a crash may come between the two.
            known.stored.append(Row(self._serial, False, group=self._group))
        if packet.version == V5:
            expiry = float(packet.properties.number(prop.SESSION_EXPIRY_INTERVAL))
        else:
            expiry = 0.0 if packet.clean_start else FOREVER
        self._serial += 1
        door = Door(self._serial, name, (must, may), _seconds(expiry), None, known.possible)
        for case in known.wills:
            if case.fate == "due":
                case.fate = "deciding"
                if not must:  # the session may end here, and then it comes at once
                    case.due_from = min(case.due_from, now)
        if packet.will is not None:
            door.will = WillCase(
                name,
                self._serial,
                packet.will.topic,
                packet.will.payload,
                packet.will.retain,
                float(packet.will.properties.number(prop.WILL_DELAY_INTERVAL)),
                now,
                not expiry,
            )
            known.wills.append(door.will)
        self.gates[wire] = door
        known.wire = wire
        known.last_serial = door.serial
        known.put(Row(door.serial, True, door.expiry, math.inf, True, self._group))

    def _hear(self, wire: Wire, door: Door, known: Known, packet: Any) -> None:
        if isinstance(packet, Publish) and packet.qos == 2:
            ids = packet.packet_ids()
            known.ids.update(ids)
            known.free_ids.difference_update(ids)
        elif isinstance(packet, Ack) and packet.packet_type == PUBREL:
            known.open_ids.difference_update(packet.packet_ids)
        elif isinstance(packet, Subscribe):
            texts = [request.filter for request in packet.requests]
            door.asked[packet.packet_id] = texts
            known.filters.update(texts)
        elif isinstance(packet, Disconnect):
            asked = packet.properties.get(prop.SESSION_EXPIRY_INTERVAL)
            if asked is not None:
                door.expiry = _seconds(
                    float(packet.properties.number(prop.SESSION_EXPIRY_INTERVAL))
                )
            if not packet.reason and door.will is not None:
                door.will.fate = "cancelled"
                door.will.group = self._group
            self.end(wire)

    # From the broker.

    def on_written(self, wire: Wire, data: bytes) -> None:
        door = self.gates.get(wire)
        for packet in wire.said.feed(data):
            assert not isinstance(packet, Violation), f"the broker wrote nonsense: {packet}"
            assert door is not None, f"{packet} to nobody"
            known = self.known[door.client_id]
            if isinstance(packet, Connack):
                self._on_told(door, known, packet)
            elif isinstance(packet, Suback) and not door.is_over:
                known.promised.update(door.asked.pop(packet.packet_id, ()))
                self._is_there(known)
            elif isinstance(packet, Ack) and not door.is_over:
                if packet.packet_type == PUBREC:
                    known.open_ids.update(packet.packet_ids)
                    self._is_there(known)
                elif packet.packet_type == PUBCOMP:
                    known.free_ids.update(packet.packet_ids)

    def _is_there(self, known: Known) -> None:
        """What was acknowledged to a stored session is on disk, so the session is too."""
        if known.possible[-1].expiry:
            known.stored = [row for row in known.stored if row.is_there] or known.possible[:]

    def _on_told(self, door: Door, known: Known, packet: Connack) -> None:
        """CONNACK: what it says is true from now on."""
        if packet.reason:
            return  # refused: it may have done anything until then
        must, may = door.expects
        present = packet.session_present
        name = door.client_id
        self._check("session-kept", present or not must, f"{name}: its session is gone")
        self._check("session-gone", may or not present, f"{name}: the session it ended is back")
        door.is_told = True
        group = self._group
        own = [replace(row, group=group) for row in known.stored if row.serial >= door.serial]
        if present:
            known.stored = [row for row in known.stored if row.serial < door.serial] + own
        else:
            known.begin()
            known.stored = [Row(door.serial, False), *own]
        if door.serial == known.possible[-1].serial:
            known.possible = own[-1:]
        if door.will is not None and door.will.fate == "armed":
            door.will.group = group
        for case in known.wills:
            if case.fate == "deciding":
                self._decide(case, present)

    def _decide(self, case: WillCase, present: bool) -> None:
        """Its client is back: a will that was not due yet is cancelled with a session kept."""
        now = self.world.now
        case.group = self._group
        if not present or now > case.due_to + SLACK_S:
            case.fate = "sent"
        elif now < case.due_from - SLACK_S:
            case.fate = "cancelled"
        else:
            case.fate = "unsure"

    # The end of connections.

    def on_closed(self, wire: Wire) -> None:
        self.end(wire)

    def end(self, wire: Wire) -> None:
        door = self.gates.get(wire)
        if door is None or door.is_over:
            return
        door.is_over = True
        known = self.known[door.client_id]
        if known.wire is wire:
            known.wire = None
        now = self.world.now
        is_there = door.expiry > 0
        known.put(Row(door.serial, is_there, door.expiry, now + door.expiry, False, self._group))
        case = door.will
        if not door.is_told:
            known.possible = [*door.before, *known.possible]
            for other in known.wills:
                if other.fate == "deciding" or other is case:
                    other.fate, other.due_from = "unsure", math.inf
        elif case is not None and case.fate == "armed":
            case.fate = "due"
            case.group = self._group
            case.due_from = case.due_to = now + min(case.delay, door.expiry)
            if case.due_to <= now:
                case.fate = "sent"

    def tick(self) -> None:
        now = self.world.now
        for known in self.known.values():
            for case in known.wills:
                if case.fate == "due" and case.due_to < now - SLACK_S:
                    case.fate = "sent"
                    case.group = self._group

    # The store.

    def on_committed(self, number: int, is_settled: bool) -> None:
        """Groups up to this one are on disk; `is_settled`: everything is."""
        for known in self.known.values():
            stored = known.stored
            if is_settled:
                known.stored = [replace(row, group=0) for row in known.possible]
            else:
                newest = max((row.group for row in stored if row.group <= number), default=0)
                if newest:
                    first = next(at for at, row in enumerate(stored) if row.group == newest)
                    known.stored = stored[first:]
            for case in known.wills:
                if case.group and (is_settled or case.group <= number):
                    self._on_recorded(case)

    def _on_recorded(self, case: WillCase) -> None:
        case.group = 0
        case.is_recorded = True

    def on_killed(self) -> None:
        """The process is gone; what it had not committed may be so or so."""
        for known in self.known.values():
            known.wire = None
            for case in known.wills:
                is_pending = case.fate == "cancelled" and case.group > 0
                is_known = case.is_recorded or case.fate not in ("armed", "due", "sent")
                if case.fate == "deciding" or is_pending or not is_known:
                    case.fate = "unsure"
                if case.fate == "unsure":
                    case.due_from = math.inf
        for door in self.gates.values():
            door.is_over = True

    def on_restart(self, alive_at: float, broker: Broker) -> None:
        """The broker has its state back, and nobody is connected yet."""
        now = self.world.now
        left_at = min(now, alive_at + UNSEEN_S_MAX) if alive_at else now
        for known in self.known.values():
            known.possible = [row.after_crash(left_at) for row in known.stored]
            must, may = known.bounds(now)
            session = broker.sessions.get(known.client_id)
            name = known.client_id
            self._check("session-kept", session is not None or not must, f"{name}: lost in a crash")
            self._check("session-gone", session is None or may, f"{name}: back after a crash")
            if session is not None:
                self._check_state(known, session, is_certain=must)
            is_there = session is not None
            known.possible = [row for row in known.possible if row.is_there == is_there] or [
                Row(self._serial, is_there, FOREVER)
            ]
            # Until that is committed, one more crash finds the rows as they were.
            group = self._group
            known.stored = [replace(row, group=0) for row in known.stored] + [
                replace(row, group=group) for row in known.possible
            ]
            for case in known.wills:
                self._restart_will(case, known, left_at)
        self._check_first(broker)

    def _check_state(self, known: Known, session: Any, *, is_certain: bool) -> None:
        name = known.client_id
        filters, ids = set(session.subscriptions), set(session.inbound.ids)
        old = filters - known.filters
        self._check("state-gone", not old, f"{name}: has the old session's {sorted(old)}")
        old_ids = (ids - known.ids) | (ids & known.free_ids)
        self._check("state-gone", not old_ids, f"{name}: has the ids {sorted(old_ids)}")
        if is_certain:
            lost = known.promised - filters
            self._check("state-kept", not lost, f"{name}: has lost {sorted(lost)}")
            lost_ids = known.open_ids - ids
            self._check("state-kept", not lost_ids, f"{name}: has lost the ids {sorted(lost_ids)}")

    def _restart_will(self, case: WillCase, known: Known, left_at: float) -> None:
        now = self.world.now
        if case.fate == "armed" or (case.fate in ("due", "sent") and case.group):
            waits = [min(case.delay, row.expiry) for row in known.stored if row.is_there]
            first = left_at + min(waits, default=0.0)
            last = left_at + max(waits, default=0.0)
            if case.is_fleeting:
                first = last = left_at
            case.due_from = min(first, case.due_from)
            case.due_to = max(last, last if case.due_to == math.inf else case.due_to)
            case.fate = "due"
        if case.fate == "due" and (case.is_fleeting or case.due_to <= now - SLACK_S):
            case.fate = "sent"
        case.group = self._group if case.fate in ("due", "sent") else 0

    def _check_first(self, broker: Broker) -> None:
        """What came due while nobody was there has its place before all that follows."""
        retained = {m.envelope.topic: m.payload for m in broker.retained.values()}
        for known in self.known.values():
            if not known.wills:
                continue
            case = known.wills[-1]
            is_last = case.serial == known.last_serial
            if is_last and case.fate == "sent" and case.is_recorded and case.retain:
                self._check(
                    "will-first",
                    retained.get(case.topic) == case.payload,
                    f"{case.client_id}: after the restart {case.topic} is "
                    f"{retained.get(case.topic)!r}, and not {case.payload!r}",
                )


def _seconds(expiry: float) -> float:
    return math.inf if expiry >= FOREVER else expiry
