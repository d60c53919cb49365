"""The judge: reads the ledgers and says what was lost, repeated, reordered, or made up.

An acknowledged message is *due* to a taker that had its SUBACK for a matching filter before
the message was sent for the first time, and had not asked to unsubscribe when it was
acknowledged. A message is *made up* when it was delivered though no subscription can have
been in force at any moment at which the broker can have seen it. Members of a shared group
are one taker. Order is that of first deliveries, for each taker and stream, of what was due:
what was sent before the subscription may come late, when its publisher repeats it.
"""

from __future__ import annotations

import math
from array import array
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.fault import ledger
from tests.fault.plan import DAY_S, WILL_DELAY_S, Plan, Stream, Taker, matches

WILL_SLACK_S: Final = 2.0
EXPIRY_SLACK_S: Final = 2.0  # a busy client notices late that its connection is gone
_EXAMPLES_MAX: Final = 8


@dataclass(slots=True)
class Span:
    """A subscription from SUBSCRIBE to UNSUBACK."""

    asked: float
    granted: float = math.inf
    leaving: float = math.inf
    gone: float = math.inf
    is_discarded: bool = False  # with its session, and what was queued in it

    def must(self, sent: float, acknowledged: float) -> bool:
        return self.granted < sent and acknowledged < self.leaving and not self.is_discarded

    def may(self, sent: float, acknowledged: float) -> bool:
        return self.asked <= acknowledged and sent <= self.gone


class Flow:
    """A stream: when each message was sent and acknowledged; 0 and infinity: never."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.sent = array("d", [0.0])
        self.acknowledged = array("d", [math.inf])
        self.given_up: set[int] = set()

    def on_sent(self, seq: int, at: float) -> None:
        assert seq == len(self.sent), "a publisher numbers one by one"
        self.sent.append(at)
        self.acknowledged.append(math.inf)

    @property
    def count(self) -> int:
        return len(self.sent) - 1

    @property
    def acknowledged_count(self) -> int:
        return sum(at < math.inf for at in self.acknowledged)


class Desk:
    """What one taker, or one shared group, was given of one stream."""

    def __init__(self) -> None:
        self.counts = bytearray(1)
        self.newest = 0
        self.reordered: set[int] = set()

    def on_delivered(self, seq: int) -> None:
        if seq >= len(self.counts):
            self.counts.extend(bytes(2 * seq - len(self.counts)))
        before = self.counts[seq]
        self.counts[seq] = min(255, before + 1)
        if not before:
            if seq < self.newest:
                self.reordered.add(seq)
            self.newest = max(self.newest, seq)

    def count(self, seq: int) -> int:
        return self.counts[seq] if seq < len(self.counts) else 0


@dataclass(slots=True)
class Row:
    """What the table says of one QoS."""

    sent: int = 0
    acknowledged: int = 0
    due: int = 0
    delivered: int = 0
    lost: int = 0
    repeated: int = 0
    reordered: int = 0


@dataclass(slots=True)
class Finding:
    kind: str
    text: str
    at: float  # when what it is about happened; 0: no moment
    seq: int  # the number of the message; 0: it is about none


@dataclass(slots=True)
class Verdict:
    rows: dict[int, Row] = field(default_factory=lambda: {1: Row(), 2: Row()})
    findings: list[Finding] = field(default_factory=list)
    readings: int = 0
    wills: int = 0
    without: frozenset[str] = frozenset()  # kinds that are not looked for

    @property
    def counts(self) -> dict[str, int]:
        found: dict[str, int] = defaultdict(int)
        for finding in self.findings:
            found[finding.kind] += 1
        return found

    @property
    def is_clean(self) -> bool:
        return not self.findings

    def find(self, kind: str, text: str, at: float = 0.0, seq: int = 0) -> None:
        if kind not in self.without:
            self.findings.append(Finding(kind, text, at, seq))


class Judge:
    def __init__(
        self, made: Plan, without: frozenset[str] = frozenset(), starts: Sequence[float] = ()
    ) -> None:
        self.plan = made
        self.verdict = Verdict(without=without)
        self.flows = [Flow(stream) for stream in made.streams]
        self._takers = {taker.name: taker for taker in made.takers}
        self._parties = {taker.name: taker.share or taker.name for taker in made.takers}
        self._desks: dict[str, dict[int, Desk]] = defaultdict(lambda: defaultdict(Desk))
        self._spans: dict[str, dict[int, list[Span]]] = defaultdict(lambda: defaultdict(list))
        self._seen: dict[int, int] = {}  # by the reader, since it came
        self._readings: list[tuple[float, dict[int, int]]] = []
        self._wills = Wills(starts)
        self._beacons = Beacons()

    def read(self, paths: Iterable[Path]) -> Verdict:
        for path in paths:
            for at, kind, fields in ledger.read(path):
                self._take(at, kind, fields)
        self._judge_streams()
        for party in sorted({*self._parties.values()}):
            self._judge_party(party)
        self._judge_retained()
        self._wills.judge(self.verdict)
        self._beacons.judge(self.verdict)
        return self.verdict

    # Reading.

    def _take(self, at: float, kind: str, fields: list[str]) -> None:
        if kind == "G":
            desk = self._desks[self._parties[fields[0]]][int(fields[1])]
            desk.on_delivered(int(fields[2]))
        elif kind == "S":
            self.flows[int(fields[0])].on_sent(int(fields[1]), at)
        elif kind == "A":
            self.flows[int(fields[0])].acknowledged[int(fields[1])] = at
        elif kind in "QKUV":
            self._subscribed(at, kind, fields[0], int(fields[1]))
        elif kind == "Z":
            self._discard(fields[0], at)
        elif kind == "R":
            stream, value = int(fields[0]), int(fields[1])
            self._seen[stream] = max(value, self._seen.get(stream, 0))
        elif kind == "F":
            self._readings.append((float(fields[0]), self._seen))
            self._seen = {}
        elif kind == "N":
            self.flows[int(fields[0])].given_up.add(int(fields[1]))
        elif kind in "BOIJ":
            self._beacons.take(at, kind, int(fields[0]))
        elif kind in "WTPD":
            self._wills.take(at, kind, int(fields[0]))
        elif kind == "L":
            self._session_lost(at, fields[0], float(fields[1]))
        elif kind == "X":
            text = f"{self._named(int(fields[0]))}, with {fields[2]}"
            self.verdict.find("refused", text, at, int(fields[1]))
        else:
            self.verdict.find("protocol errors", f"{fields[0]}: {' '.join(fields[1:])}", at)

    def _session_lost(self, at: float, name: str, away_s: float) -> None:
        taker = self._takers.get(name)
        text = f"{name} lost its session after {away_s:.1f} s"
        if taker is None or taker.expiry_s == DAY_S:
            self.verdict.find("sessions lost", text, at)
            return
        if away_s < taker.expiry_s - EXPIRY_SLACK_S:
            self.verdict.find("short sessions lost", text, at)
        self._discard(name, at)

    def _discard(self, name: str, at: float) -> None:
        """Its session is over, and what waited in it."""
        for spans in self._spans[name].values():
            spans[-1].leaving = min(spans[-1].leaving, at)
            spans[-1].is_discarded = True

    def _subscribed(self, at: float, kind: str, name: str, number: int) -> None:
        """A repeated request changes nothing: the first counts, until its answer came."""
        spans = self._spans[name][number]
        span = spans[-1] if spans else None
        if kind == "Q" and (span is None or span.leaving < math.inf):
            spans.append(Span(at, is_discarded=self._takers[name].is_fleeting))
        elif kind == "K" and span is not None:
            span.granted = min(span.granted, at)
        elif kind == "U" and span is not None:
            span.leaving = min(span.leaving, at)
        elif kind == "V" and span is not None:
            span.gone = at

    # Judging.

    def _named(self, stream: int) -> str:
        found = self.plan.streams[stream]
        return f"{found.topic} QoS {found.qos}"

    def _judge_streams(self) -> None:
        for flow in self.flows:
            row = self.verdict.rows[flow.stream.qos]
            row.sent += flow.count
            row.acknowledged += flow.acknowledged_count
            for seq in range(1, flow.count + 1):
                if flow.acknowledged[seq] == math.inf and seq not in flow.given_up:
                    text = self._named(flow.stream.index)
                    self.verdict.find("never acknowledged", text, flow.sent[seq], seq)

    def _judge_party(self, party: str) -> None:
        members = [taker for taker in self._takers.values() if self._parties[taker.name] == party]
        for flow in self.flows:
            spans = [
                span
                for member in members
                for number, text in enumerate(member.filters)
                if matches(text, flow.stream.topic)
                for span in self._spans[member.name][number]
            ]
            if spans or flow.stream.index in self._desks[party]:
                self._judge_flow(party, members, flow, spans)

    def _judge_flow(self, party: str, members: list[Taker], flow: Flow, spans: list[Span]) -> None:
        desk = self._desks[party][flow.stream.index]
        qos = min(flow.stream.qos, members[0].qos)
        row = self.verdict.rows[qos]
        find = self.verdict.find
        what = f"to {party}: {self._named(flow.stream.index)}"
        # Most subscriptions stay: one comparison instead of a look at every span.
        granted = min(
            (s.granted for s in spans if s.leaving == math.inf and not s.is_discarded),
            default=math.inf,
        )
        asked = min((s.asked for s in spans if s.gone == math.inf), default=math.inf)
        for seq in range(1, max(flow.count + 1, len(desk.counts))):
            count = desk.count(seq)
            if seq > flow.count:
                if count:
                    find("made up", f"{what}, which was never sent", 0.0, seq)
                continue
            sent, acknowledged = flow.sent[seq], flow.acknowledged[seq]
            row.delivered += count
            if acknowledged < math.inf and (
                granted < sent or any(s.must(sent, acknowledged) for s in spans)
            ):
                row.due += 1
                if not count:
                    kind = self._kind_of_loss(flow, members, qos)
                    row.lost += kind not in self.verdict.without
                    find(kind, what, sent, seq)
                if seq in desk.reordered and not members[0].share:
                    row.reordered += 1
                    find("reordered", what, sent, seq)
            if count > 1:
                row.repeated += count - 1
                if qos == 2:
                    find("repeated at QoS 2", f"{what}, {count} times", sent, seq)
            if members[0].log:
                continue  # what was sent before it subscribed is in the log
            if count and asked > acknowledged and not any(s.may(sent, acknowledged) for s in spans):
                find("made up", f"{what}, without a subscription", sent, seq)

    def _kind_of_loss(self, flow: Flow, members: list[Taker], qos: int) -> str:
        if any(member.is_fleeting for member in members):
            return "lost from a group with fleeting members"
        if flow.stream.publisher == self.plan.toggler and flow.stream.qos == 2:
            return "lost after Clean Start"
        return f"lost at QoS {qos}"

    def _judge_retained(self) -> None:
        """Each reading has, of every retained stream, what was acknowledged before it or newer."""
        self.verdict.readings = len(self._readings)
        if not self._readings:
            self.verdict.find("retained wrong", "nobody read what is retained")
        for flow in self.flows:
            if not flow.stream.retain:
                continue
            order = sorted(range(1, flow.count + 1), key=flow.acknowledged.__getitem__)
            newest = place = 0
            for since, seen in self._readings:
                while place < len(order) and flow.acknowledged[order[place]] < since:
                    newest = max(newest, order[place])
                    place += 1
                value = seen.get(flow.stream.index, 0)
                if value < newest:
                    text = f"{self._named(flow.stream.index)}: {value}, {newest} is acknowledged"
                    self.verdict.find("retained wrong", text, since)


class Wills:
    """Episodes of the mourner: when each was cut, and what came of its will."""

    def __init__(self, starts: Sequence[float]) -> None:
        self._starts = starts  # of the broker: when it listened
        self._cut: dict[int, float] = {}
        self._tried: dict[int, float] = {}
        self._promised: dict[int, float] = {}
        self._came: dict[int, list[float]] = defaultdict(list)

    def take(self, at: float, kind: str, episode: int) -> None:
        if kind == "W":
            self._cut[episode] = at
        elif kind == "T":
            self._tried[episode] = at
        elif kind == "P":
            self._promised.setdefault(episode, at)
        else:
            self._came[episode].append(at)

    def judge(self, verdict: Verdict) -> None:
        verdict.wills = len(self._came)
        for episode, times in sorted(self._came.items()):
            if len(times) > 1:
                verdict.find("wills repeated", f"will {episode}, {len(times)} times", times[1])
        for episode, cut in sorted(self._cut.items()):
            if episode not in self._promised:
                continue
            times = self._came.get(episode, [])
            next_try = self._tried.get(episode + 1, math.inf)
            # A delay that a crash cut in two may count from the start behind it, which is noted
            # when it is heard of: clients may be quicker.
            until = next_try + WILL_SLACK_S
            begun = max([cut, *(at for at in self._starts if at < until)])
            if next_try - begun > WILL_DELAY_S + WILL_SLACK_S and not times:
                if next_try < math.inf:  # else it is perhaps not due yet
                    verdict.find("wills lost", f"will {episode}", cut)
            back = self._promised.get(episode + 1, math.inf)
            if back - cut < WILL_DELAY_S - WILL_SLACK_S and times:
                verdict.find("wills wrong", f"will {episode}, though its client was back", cut)


class Beacons:
    """Episodes of the beacon: what the watcher saw of them, in its order."""

    def __init__(self) -> None:
        self._promised: dict[int, float] = {}
        self._left: set[int] = set()
        self._came: dict[int, list[float]] = defaultdict(list)
        self._online: list[tuple[float, int]] = []

    def take(self, at: float, kind: str, episode: int) -> None:
        if kind == "B":
            self._promised[episode] = at
        elif kind == "O":
            self._left.add(episode)
        elif kind == "I":
            self._online.append((at, episode))
        else:
            self._came[episode].append(at)

    def judge(self, verdict: Verdict) -> None:
        """A will comes once when its client did not leave in order, and before it is back."""
        for episode, at in self._promised.items():
            if episode not in self._came and episode not in self._left:
                verdict.find("fleeting wills lost", f"will {episode}", at)
        for episode, times in self._came.items():
            if len(times) > 1:
                verdict.find("wills repeated", f"fleeting will {episode}", times[1])
            if any(at < times[-1] for at, newer in self._online if newer > episode):
                verdict.find("fleeting wills late", f"will {episode}", times[-1])


# Telling.


def table(verdict: Verdict) -> str:
    names = ("sent", "acknowledged", "due", "delivered", "lost", "repeated", "reordered")
    lines = [" " * 7 + "".join(f"{name:>14}" for name in names)]
    for qos, row in verdict.rows.items():
        cells = "".join(f"{getattr(row, name):>14,}" for name in names)
        lines.append(f"  QoS {qos}{cells}")
    lines.append(f"  {verdict.readings} readings of what is retained, {verdict.wills} wills")
    wrong = ", ".join(f"{kind} {count:,}" for kind, count in verdict.counts.items())
    lines.append(f"  wrong: {wrong or 'nothing'}")
    return "\n".join(lines)


def explain(verdict: Verdict, kills: list[tuple[float, str]], start: float) -> str:
    """The first findings of each kind, neighbours as one, with the kills around them."""
    lines = []
    told: dict[str, int] = defaultdict(int)
    for group in _runs(verdict.findings):
        first, last = group[0], group[-1]
        told[first.kind] += 1
        if told[first.kind] > _EXAMPLES_MAX:
            continue
        numbers = ""
        if first.seq:
            numbers = f" {first.seq}" + (f" to {last.seq}" if last.seq > first.seq else "")
        where = ""
        if first.at:
            where = f" at {first.at - start:.3f} s ({_around(first.at, kills, start)})"
        lines.append(f"  {first.kind}: {first.text}{numbers}{where}")
    lines += [
        f"  {kind}: and {count - _EXAMPLES_MAX} more such runs"
        for kind, count in told.items()
        if count > _EXAMPLES_MAX
    ]
    return "\n".join(lines)


def _runs(findings: list[Finding]) -> list[list[Finding]]:
    runs: list[list[Finding]] = []
    for finding in findings:
        last = runs[-1][-1] if runs else None
        is_next = last is not None and (finding.kind, finding.text) == (last.kind, last.text)
        if last is not None and is_next and finding.seq and finding.seq == last.seq + 1:
            runs[-1].append(finding)
        else:
            runs.append([finding])
    return runs


def _around(at: float, kills: list[tuple[float, str]], start: float) -> str:
    before = [kill for kill in kills if kill[0] <= at][-1:]
    after = [kill for kill in kills if kill[0] > at][:2]
    told = [f"{kind} at {when - start:.3f}" for when, kind in before + after]
    return "kills: " + ", ".join(told) if told else "no kill near"
