"""The ledger: what was sent, what was acknowledged, what arrived, and in which order.

It keeps *flows* (see `stamps`), not messages: for each flow two sets of intervals and a few
numbers, however long the run is. The counts go to the `Tally` of the flow's class and QoS; tallies
of several processes add up.

    lost         acknowledged by the broker and never delivered (QoS 1 and 2);
                 at QoS 0, without acknowledgement: sent and never delivered
    repeated     delivered twice without a cause on the wire; at QoS 2 always
    redelivered  delivered twice at QoS 1 after the publisher or the broker sent it again
    reordered    delivered for the first time after a later message of its flow
    altered      delivered with another payload, topic or QoS than it was sent with
    unknown      delivered with a stamp of this run that was never sent
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final
from zlib import crc32

from iot_sim.devices.device import DEATH
from iot_sim.judge.histogram import Histogram
from iot_sim.judge.intervals import Intervals
from iot_sim.judge.stamps import flow_key, split

# The receiver whose deliveries are counted for a flow; other receivers get copies.
OBSERVER: Final = "observer"
COMMANDER: Final = "commander"
DEVICE: Final = "device"
NO_RECEIVER: Final = "nobody"

EXAMPLES_MAX: Final = 20  # stamps kept as examples of each kind of error


@dataclass(slots=True)
class Tally:
    """The counts of one class of messages at one QoS."""

    kind: str
    qos: int
    sent: int = 0
    resent: int = 0
    acknowledged: int = 0
    refused: int = 0
    delivered: int = 0
    lost: int = 0
    unconfirmed: int = 0  # sent at QoS 1 or 2 and never acknowledged
    abandoned: int = 0  # the client lost its state or its session before the acknowledgement
    cut: int = 0  # QoS 0 messages that an injected fault may have lost
    repeated: int = 0
    redelivered: int = 0
    reordered: int = 0
    altered: int = 0
    late: int = 0
    unjudged: int = 0  # sent to a topic without an observer
    latency: Histogram = field(default_factory=Histogram)
    ack_latency: Histogram = field(default_factory=Histogram)
    # The same from the time at which the message was due, as an open loop measures.
    latency_from_due: Histogram = field(default_factory=Histogram)
    ack_latency_from_due: Histogram = field(default_factory=Histogram)

    def add(self, other: Tally) -> None:
        for name in COUNTS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for name in LATENCIES:
            getattr(self, name).add(getattr(other, name))

    def to_data(self) -> dict[str, Any]:
        data: dict[str, Any] = {"class": self.kind, "qos": self.qos}
        data |= {name: getattr(self, name) for name in COUNTS}
        return data | {name: getattr(self, name).to_data() for name in LATENCIES}


LATENCIES: Final = ("latency", "ack_latency", "latency_from_due", "ack_latency_from_due")
COUNTS: Final = tuple(
    one.name for one in dataclasses.fields(Tally) if one.name not in ("kind", "qos", *LATENCIES)
)


class Flow:
    """The messages of one device to one topic at one QoS."""

    __slots__ = (
        "acked",
        "cut",
        "delivered",
        "highest",
        "key",
        "qos",
        "receiver",
        "resent",
        "sent",
        "tally",
        "topic",
    )  # fmt: skip

    def __init__(self, key: str, topic: str, qos: int, tally: Tally, receiver: str) -> None:
        self.key = key
        self.topic = topic
        self.qos = qos
        self.tally = tally
        self.receiver = receiver
        self.sent = 0  # the next sequence number
        self.acked = Intervals()
        self.delivered = Intervals()
        self.highest = -1
        self.resent: Intervals | None = None
        self.cut: Intervals | None = None

    def missing(self) -> Iterator[tuple[int, int]]:
        """Return the messages that are missing, as intervals of sequence numbers."""
        if self.qos:
            return self.acked.difference(self.delivered)
        if self.sent == self.delivered.count:
            return iter(())
        found = Intervals()
        found.edges = [0, self.sent]
        if self.cut is None:
            return found.difference(self.delivered)
        arrived = Intervals()
        arrived.edges = list(self.delivered.edges)
        for start, end in self.cut:
            for number in range(start, end):
                arrived.add(number)
        return found.difference(arrived)


class WillFlow:
    """The wills of one device: a new one at each connect, few of which are published."""

    __slots__ = ("cancelled", "delivered", "due", "key", "sent")

    def __init__(self, key: str) -> None:
        self.key = key
        self.sent = 0
        self.due: dict[int, float] = {}  # number of the will -> when it is to be published
        self.cancelled: set[int] = set()  # numbers of the wills that must not be published
        self.delivered: set[int] = set()


@dataclass(slots=True)
class WillCounts:
    registered: int = 0
    due: int = 0
    delivered: int = 0
    missing: int = 0
    unexpected: int = 0  # published although they were cancelled
    repeated: int = 0

    def add(self, other: WillCounts) -> None:
        for one in dataclasses.fields(self):
            setattr(self, one.name, getattr(self, one.name) + getattr(other, one.name))


class Ledger:
    """The ledger of one process."""

    def __init__(self, run: str, late_after_ms: float) -> None:
        self.run = run
        self.late_after_us = int(late_after_ms * 1000)
        self.tallies: dict[tuple[str, int], Tally] = {}
        self.flows: dict[str, Flow] = {}
        self.wills: dict[str, WillFlow] = {}
        self.will_counts = WillCounts()
        self.examples: dict[str, list[str]] = {}
        self.unknown = 0
        self.unstamped = 0
        self.retained = 0  # retained messages delivered to new subscriptions; not judged
        self.judges_order = True  # False: members of a shared subscription get parts of a flow
        self._run_head = run + "/"

    # Flows.

    def open(
        self, device: str, kind: str, topic: str, qos: int, number: int, receiver: str
    ) -> Flow:
        """Open a flow; `number` is different for each topic of a device."""
        tally = self.tallies.get((kind, qos))
        if tally is None:
            tally = self.tallies[kind, qos] = Tally(kind, qos)
        key = flow_key(self.run, device, kind, qos, number)
        flow = self.flows[key] = Flow(key, topic, qos, tally, receiver)
        return flow

    def open_will(self, device: str) -> WillFlow:
        key = f"{self.run}/{device}/will.{DEATH}/"
        flow = self.wills[key] = WillFlow(key)
        return flow

    # Called for publishers. A new message is `flow.sent += 1` and `tally.sent += 1` where it is
    # encoded: a call for each message would cost as much as the rest of the work.

    def on_resent(self, flow: Flow, sequence: int) -> None:
        if flow.resent is None:
            flow.resent = Intervals()
        flow.resent.add(sequence)
        flow.tally.resent += 1

    def on_cut(self, flow: Flow, sequence: int) -> None:
        """Note that an injected fault may have lost this QoS 0 message."""
        if flow.cut is None:
            flow.cut = Intervals()
        flow.cut.add(sequence)
        flow.tally.cut += 1

    def on_acked(self, flow: Flow, sequence: int, waited_us: int, late_us: int = 0) -> None:
        if flow.acked.add(sequence):
            flow.tally.acknowledged += 1
            flow.tally.ack_latency.record(waited_us)
            flow.tally.ack_latency_from_due.record(waited_us + late_us)

    # Called for subscribers.

    def on_delivered(
        self,
        text: str,
        payload: bytes,
        topic: str,
        qos: int,
        dup: bool,
        receiver: str,
        now_us: int,
    ) -> None:
        """Record that a message with the stamp `text` arrived at `receiver`, not retained."""
        parts = split(text)
        if parts is None or not text.startswith(self._run_head):
            return  # of another run
        key, sequence, sent_us, checksum, late_us = parts
        flow = self.flows.get(key)
        if flow is None:
            if key in self.wills:
                if receiver == OBSERVER:
                    self._on_will(self.wills[key], sequence, is_resent=dup and qos == 1)
            elif receiver == OBSERVER:
                self._on_unknown(text)
            return
        if flow.receiver != receiver:
            return
        if sequence >= flow.sent:
            self._on_unknown(text)
            return
        tally = flow.tally
        if flow.delivered.add(sequence):
            tally.delivered += 1
            waited_us = now_us - sent_us
            tally.latency.record(waited_us)
            tally.latency_from_due.record(waited_us + late_us)
            if waited_us > self.late_after_us:
                tally.late += 1
            if sequence > flow.highest:
                flow.highest = sequence
            elif self.judges_order:
                tally.reordered += 1
                self.note("reordered", f"{text} behind {flow.highest}")
        elif qos == 1 and (dup or (flow.resent is not None and sequence in flow.resent)):
            tally.redelivered += 1
        else:
            tally.repeated += 1
            self.note("repeated", text)
        if topic != flow.topic or qos != flow.qos or f"{crc32(payload):08x}" != checksum:
            tally.altered += 1
            self.note("altered", f"{text} on {topic} at QoS {qos}, {len(payload)} bytes")

    def _on_unknown(self, text: str) -> None:
        self.unknown += 1
        self.note("unknown", text)

    def note(self, what: str, text: str) -> None:
        examples = self.examples.setdefault(what, [])
        if len(examples) < EXAMPLES_MAX:
            examples.append(text)

    # Wills.

    def _on_will(self, flow: WillFlow, number: int, *, is_resent: bool) -> None:
        counts = self.will_counts
        if number in flow.delivered:
            if not is_resent:
                counts.repeated += 1
                self.note("will repeated", f"{flow.key}{number}")
            return
        flow.delivered.add(number)
        counts.delivered += 1
        if number in flow.cancelled:
            counts.unexpected += 1
            self.note("will unexpected", f"{flow.key}{number}")

    def will_due(self, flow: WillFlow, number: int, at: float) -> None:
        """Record that the connection of this will broke: the broker must publish it by `at`."""
        flow.due[number] = at
        self.will_counts.due += 1

    def will_cancelled(self, flow: WillFlow, number: int) -> None:
        """Record that this will must not be published."""
        flow.cancelled.add(number)

    def will_moot(self, flow: WillFlow, number: int) -> None:
        """Take back that this will is due: the broker may publish it or not."""
        if flow.due.pop(number, None) is not None:
            self.will_counts.due -= 1

    # The end.

    def missing(self) -> int:
        """Return how many acknowledged messages and due wills have not been delivered."""
        found = sum(
            flow.acked.difference_count(flow.delivered)
            for flow in self.flows.values()
            if flow.qos and flow.receiver != NO_RECEIVER
        )
        return found + sum(
            number not in flow.delivered for flow in self.wills.values() for number in flow.due
        )

    def missing_at_qos0(self) -> int:
        return sum(
            flow.sent - flow.delivered.count
            for flow in self.flows.values()
            if not flow.qos and flow.receiver != NO_RECEIVER
        )

    def close(self) -> None:
        """Count what was lost, at the end; the ledger takes no more records after it."""
        for flow in self.flows.values():
            tally = flow.tally
            if flow.qos:
                tally.unconfirmed += flow.sent - flow.acked.count
            if flow.receiver == NO_RECEIVER:
                tally.unjudged += flow.sent
                continue
            for start, end in flow.missing():
                tally.lost += end - start
                self.note(
                    "lost" if flow.qos else "lost at QoS 0", _range_text(flow.key, start, end)
                )
        for tally in self.tallies.values():
            known = tally.refused + tally.abandoned
            tally.unconfirmed = max(0, tally.unconfirmed - known)
        for will in self.wills.values():
            self.will_counts.registered += will.sent
            for number in will.due:
                if number not in will.delivered:
                    self.will_counts.missing += 1
                    self.note("will missing", f"{will.key}{number}")


def _range_text(key: str, start: int, end: int) -> str:
    return f"{key}{start}" if end == start + 1 else f"{key}{start}..{end - 1}"


def merge_tallies(lists: Iterable[Iterable[Tally]]) -> list[Tally]:
    """Merge the tallies of several processes into one list, in a fixed order."""
    merged: dict[tuple[str, int], Tally] = {}
    for tallies in lists:
        for tally in tallies:
            merged.setdefault((tally.kind, tally.qos), Tally(tally.kind, tally.qos)).add(tally)
    return [merged[key] for key in sorted(merged)]
