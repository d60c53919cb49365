"""The calls by which the core records what it decides.

    published      a run of PUBLISH was accepted, and goes to the receivers of its route
    queued         a client's messages have to wait, and why
    sent, resent   they were sent from the queue; they were sent again with DUP
    acknowledged   by PUBACK or PUBREC
    given          a member of a shared subscription got them
    retained       a retained message was delivered, because of a SUBSCRIBE
    dropped        messages, and why
    refused        a PUBLISH or a SUBSCRIBE, by which rule
    connected, disconnected, taken_over, not_connected, session_ended, subscribed, unsubscribed

A PUBLISH is one cell for all its receivers: that they got it at once is not written down. What went
otherwise is, by client and by the time at which the messages were received, which `Envelope` keeps.

Times are milliseconds of Unix time, rounded down, so that they compare equal.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from mqtt_broker.recorder import kinds
from mqtt_broker.recorder.busy_topics import BusyTopics
from mqtt_broker.recorder.evidence import Evidence
from mqtt_broker.recorder.pending_events import PendingEvents
from mqtt_broker.recorder.runs import OPENED, OTHER, RUN_MAX, RUN_MS, ClientRuns, Run, TopicRuns
from mqtt_broker.recorder.segments import (
    EVENT,
    PUBLICATION,
    TRAFFIC_CELL,
    Segment,
    SegmentRing,
)
from mqtt_broker.recorder.slow_acks import SlowAcks

SEGMENTS: Final = 6
_OPEN_MAX: Final = 500  # runs whose cells are behind them
_MORE_PUBLISHED: Final = Struct("<IIH")  # count, bytes, lasted
_MORE_EVENTS: Final = Struct("<iIIH")  # last, count, topic, lasted
_MORE_EVIDENCE: Final = Struct("<IiiH")  # count, first, last, lasted
OFFSET_MAX: Final = (1 << 31) - 1  # milliseconds that a cell may lie behind its message


def to_ms(seconds: float) -> int:
    """Return a time as the recorder keeps it."""
    return int(seconds * 1000.0)


def _between(ms: int, since_ms: int) -> int:
    """Return the distance of two times, as far as a cell can hold it."""
    return max(-OFFSET_MAX, min(OFFSET_MAX, ms - since_ms))


class Recorder:
    """Writes cells. `bytes_max` bounds everything that it keeps."""

    __slots__ = (
        "_open_runs",
        "_open_topics",
        "broker",
        "busy_topics",
        "bytes_max",
        "events",
        "evidence",
        "slow_acks",
        "started_ms",
        "traffic",
    )

    def __init__(self, bytes_max: int, now: float) -> None:
        self.bytes_max = bytes_max
        self.started_ms = to_ms(now)
        self.traffic = SegmentRing(TRAFFIC_CELL, bytes_max * 3 // 4, SEGMENTS)
        self.evidence = Evidence(bytes_max * 3 // 16)
        self.busy_topics = BusyTopics(bytes_max // 32)
        self.slow_acks = SlowAcks(bytes_max // 32)
        self.events = PendingEvents()
        # Runs that were extended since their cells were written: a cell is written once for many.
        self._open_topics: list[TopicRuns] = []
        self._open_runs: list[Run] = []
        self.broker = ClientRuns("$broker")  # the publisher of its own messages

    @property
    def bytes(self) -> int:
        """The bytes in use."""
        counted = self.busy_topics.bytes + self.slow_acks.bytes
        return self.traffic.bytes + self.evidence.bytes + counted

    # Publications.

    def published(
        self, topic: TopicRuns, publisher: ClientRuns, count: int, code: int, size: int, now: float
    ) -> None:
        """Record a run of PUBLISH that was accepted; `size` is that of its payloads."""
        at = int(now * 1000.0)
        done = topic.extend(self.traffic.current, publisher, count, code, size, at)
        if done == OPENED:
            self._open_topics.append(topic)
            if len(self._open_topics) >= _OPEN_MAX:
                self.settle()
        elif done == OTHER:
            if topic.is_open:
                self._settle_topic(topic)
            self._begin_publication(topic, publisher, count, code, size, at)

    def _begin_publication(
        self, topic: TopicRuns, publisher: ClientRuns, count: int, code: int, size: int, at: int
    ) -> None:
        segment = self.traffic.writable(at)
        number = segment.number_topic(topic.topic)
        route = segment.number_route(topic.receivers())
        client = publisher.number_in(segment)
        offset = segment.reserve()
        PUBLICATION.pack_into(
            segment.cells, offset, at - segment.base_ms, number, client, route,
            count, min(size, RUN_MAX), 0, kinds.PUBLISHED, code,
        )  # fmt: skip
        figures = self.busy_topics.find(topic.topic, at)
        topic.begin(segment, offset, publisher, code, count, min(size, RUN_MAX), at, figures)

    # Cells that are behind their runs.

    def settle(self) -> None:
        """Bring the cells of all open runs up to date, before somebody looks at them."""
        topics, self._open_topics = self._open_topics, []
        for topic in topics:
            self._settle_topic(topic)
        runs, self._open_runs = self._open_runs, []
        for run in runs:
            self._settle_run(run)

    def _settle_topic(self, topic: TopicRuns) -> None:
        segment = self.traffic.of_generation(topic.generation)
        if topic.is_open and segment is not None:
            _MORE_PUBLISHED.pack_into(
                segment.cells, topic.offset + 16, topic.count, topic.size, topic.lasted_ms
            )
        topic.settle()

    def _settle_run(self, run: Run) -> None:
        segment = self.traffic.of_generation(run.generation)
        if run.is_open and segment is not None:
            _MORE_EVENTS.pack_into(
                segment.cells, run.offset + 12,
                _between(int(run.last_at * 1000.0), run.began_ms), run.count, run.topic,
                run.lasted_ms,
            )  # fmt: skip
        run.settle()

    # What happens to messages at a client. Times are those at which they were received.

    def acknowledged(
        self, client: ClientRuns, count: int, first: float, last: float, now: float
    ) -> bool:
        """Record an acknowledgement of messages; True: it is one for `note_slow`.

        An open run is extended here as `_extend` does it, in fewer steps.
        """
        flow = client.flow
        if flow is None:
            flow = client.open_flow()
        run = flow.acknowledged
        lasted = int(now * 1000.0) - run.began_ms
        if (
            run.is_open
            and run.generation == self.traffic.generation
            and first >= run.last_at
            and 0 <= lasted < RUN_MS
            and run.count < RUN_MAX
        ):
            run.extend_open(count, last, lasted)
        else:
            self._extend(client, run, kinds.ACKNOWLEDGED, 0, "", count, first, last, now)
        return now - first >= flow.slow_from_s

    def note_slow(self, client: ClientRuns, topic: str, took_s: float, now: float) -> None:
        """Rank the acknowledgement that `acknowledged` has told of; `topic` is of its first."""
        flow = client.flow
        if flow is None:
            flow = client.open_flow()
        flow.look_from(self.slow_acks.note(client.client_id, topic, took_s, now))

    def queued(
        self, client: ClientRuns, why: int, topic: str, count: int, received_at: float, now: float,
        *, is_first: bool,
    ) -> None:  # fmt: skip
        """Record that messages have to wait; `is_first`: nothing waited before them."""
        flow = client.flow
        if flow is None:
            flow = client.open_flow()
        if is_first:
            if flow.queued.is_open:
                self._settle_run(flow.queued)
            flow.queued.close()
        self._extend(
            client, flow.queued, kinds.QUEUED, why, topic, count, received_at, received_at, now
        )

    def sent(self, client: ClientRuns, count: int, first: float, last: float, now: float) -> None:
        """Record messages that waited in the queue and were sent."""
        flow = client.flow
        if flow is None:
            flow = client.open_flow()
        self._extend(client, flow.open_sent(), kinds.SENT, 0, "", count, first, last, now)

    def resent(self, client: ClientRuns, received_at: float, now: float, *, follows: bool) -> None:
        """Record a message that was sent again with DUP; `follows`: its packet id is the next."""
        flow = client.flow
        if flow is None:
            flow = client.open_flow()
        run = flow.open_resent()
        if not follows:  # what is between was not sent again
            if run.is_open:
                self._settle_run(run)
            run.close()
        self._extend(client, run, kinds.RESENT, 0, "", 1, received_at, received_at, now)

    def given(
        self, client: ClientRuns, topic: str, qos: int, received_at: float, now: float
    ) -> None:
        """Record that a member of a shared subscription got a message."""
        flow = client.flow
        if flow is None:
            flow = client.open_flow()
        self._extend(
            client, flow.open_given(), kinds.GIVEN, qos, topic, 1, received_at, received_at, now
        )

    def retained(
        self, client: ClientRuns, topic: str, qos: int, received_at: float, now: float
    ) -> None:
        """Record a retained message that a SUBSCRIBE brought; without `topic`, one of many."""
        flow = client.flow
        if flow is None:
            flow = client.open_flow()
        run, code, at = flow.open_retained(), qos, received_at
        if not topic:
            code, at = qos | kinds.MANY_BIT, now
        self._extend(client, run, kinds.RETAINED, code, topic, 1, at, at, now)

    def _extend(
        self,
        client: ClientRuns,
        run: Run,
        kind: int,
        code: int,
        topic: str,
        count: int,
        first: float,
        last: float,
        now: float,
    ) -> None:
        """Extend an open run, or begin another one.

        It is extended by messages that were received later, and, where a topic is given, by those
        of the same topic. Between two messages of a shared subscription another member may have
        been given one, so that such a run has messages of one millisecond only.
        """
        at = int(now * 1000.0)
        lasted = at - run.began_ms
        segment = self.traffic.current
        if (
            run.generation == segment.generation
            and run.code == code
            and 0 <= lasted < RUN_MS
            and (first == run.last_at or (first > run.last_at and kind != kinds.GIVEN))
            and run.count < RUN_MAX
            and (not topic or segment.topic_numbers.get(topic) == run.topic)
        ):
            if run.extend_open(count, last, lasted):
                self._open_runs.append(run)
                if len(self._open_runs) >= _OPEN_MAX:
                    self.settle()
            return
        if run.is_open:
            self._settle_run(run)
        segment = self.traffic.writable(at)
        number = segment.number_topic(topic) if topic else 0
        first_ms, last_ms = int(first * 1000.0), int(last * 1000.0)
        offset = self._write(client, kind, code, number, count, first_ms, last_ms, at)
        run.begin(segment, offset, code, number, at, last_ms, count)
        run.begin_open(last)

    def _write(
        self,
        client: ClientRuns,
        kind: int,
        code: int,
        topic: int,
        count: int,
        first_ms: int,
        last_ms: int,
        at: int,
    ) -> int:
        """Write a cell of a client into the current segment of traffic, which has room for it."""
        segment = self.traffic.current
        number = client.number_in(segment)
        offset = segment.reserve()
        EVENT.pack_into(
            segment.cells, offset, at - segment.base_ms, number,
            _between(first_ms, at), _between(last_ms, at), count, topic, 0, kind, code,
        )  # fmt: skip
        return offset

    def subscribed(self, client: ClientRuns, text: str, code: int, now: float) -> None:
        """Record a subscription that was granted; see `subscription_code` in `kinds`."""
        self._note_filter(client, kinds.SUBSCRIBED, text, code, now)

    def unsubscribed(self, client: ClientRuns, text: str, now: float) -> None:
        """Record a subscription that has ended: its client, or a change of rules, ended it."""
        self._note_filter(client, kinds.UNSUBSCRIBED, text, 0, now)

    def _note_filter(self, client: ClientRuns, kind: int, text: str, code: int, now: float) -> None:
        at = int(now * 1000.0)
        segment = self.traffic.writable(at)
        self._write(client, kind, code, segment.number_topic(text), 1, at, at, at)

    # Evidence.

    def dropped(
        self,
        client: ClientRuns,
        reason: str,
        topic: str,
        publisher: str,
        count: int,
        received_at: float,
        now: float,
    ) -> None:
        """Record messages of one topic that a client, or a group, does not get."""
        code = kinds.DROP_CODES.get(reason, 0)
        at, received_ms = int(now * 1000.0), int(received_at * 1000.0)
        flow = client.flow
        if flow is None:
            flow = client.open_flow()
        run = flow.open_dropped()
        if self._more_dropped(client, run, code, topic, publisher, count, received_ms, at):
            return
        segment, offset = self.evidence.write(
            client, kinds.DROPPED, code, topic, publisher, at,
            are_texts=False, count=count,
            first=_between(received_ms, at), last=_between(received_ms, at),
        )  # fmt: skip
        run.begin(segment, offset, code, segment.number_topic(topic), at, received_ms, count)
        self.events.add(client.client_id, kinds.DROPPED, code, topic, publisher, at, count)

    def _more_dropped(
        self,
        client: ClientRuns,
        run: Run,
        code: int,
        topic: str,
        publisher: str,
        count: int,
        received_ms: int,
        at: int,
    ) -> bool:
        """Extend the newest run of drops, if these are equal and follow at once."""
        segment = self.evidence.current_of(client)
        lasted = at - run.began_ms
        if (
            segment is None
            or run.generation != segment.generation
            or run.code != code
            or not 0 <= lasted < RUN_MS
            or received_ms < run.last_ms
            or run.count >= RUN_MAX
            or segment.topic_numbers.get(topic) != run.topic
            or segment.text_numbers.get(publisher) != _publisher_of(segment, run.offset)
        ):
            return False
        run.extend(count, received_ms)
        first = int.from_bytes(
            segment.cells[run.offset + 20 : run.offset + 24], "little", signed=True
        )
        _MORE_EVIDENCE.pack_into(
            segment.cells, run.offset + 16,
            run.count, first, _between(received_ms, run.began_ms), lasted,
        )  # fmt: skip
        return True

    def refused(
        self,
        client: ClientRuns,
        what: int,
        topic: str,
        reason: int,
        why: str,
        now: float,
        count: int = 1,
    ) -> None:
        """Record a refusal: `reason` is the reason code, `why` names the rule, if one decided."""
        at = int(now * 1000.0)
        flow = client.flow
        if flow is None:
            flow = client.open_flow()
        run = flow.open_refused()
        segment = self.evidence.current_of(client)
        lasted = at - run.began_ms
        if (
            segment is not None
            and run.generation == segment.generation
            and run.code == reason << 1 | what
            and 0 <= lasted < RUN_MS
            and run.count < RUN_MAX
            and segment.topic_numbers.get(topic) == run.topic
        ):
            run.extend(count, at)
            _MORE_EVIDENCE.pack_into(segment.cells, run.offset + 16, run.count, what, 0, lasted)
            return
        segment, offset = self.evidence.write(
            client, kinds.REFUSED, reason, topic, why, at,
            are_texts=False, count=count, first=what,
        )  # fmt: skip
        number = segment.number_topic(topic)
        run.begin(segment, offset, reason << 1 | what, number, at, at, count)
        self.events.add(client.client_id, kinds.REFUSED, reason, topic, why, at, 1)

    def connected(self, client: ClientRuns, address: str, details: str, now: float) -> None:
        """Record a client past its CONNACK; `details` are what it asked for."""
        self._note_connection(client, kinds.CONNECTED, 0, address, details, now)

    def disconnected(
        self, client: ClientRuns, reason: int, address: str, why: str, now: float
    ) -> None:
        """Record the end of a connection; `reason` is 0 where the broker did not end it."""
        self._note_connection(client, kinds.DISCONNECTED, reason, address, why, now)

    def taken_over(
        self, client: ClientRuns, how: int, before: str, address: str, now: float
    ) -> None:
        """Record a connection that ends for another one of its client; addresses with ports."""
        self._note_connection(client, kinds.TAKEN_OVER, how, address, before, now)

    def not_connected(
        self, client_id: str, known: ClientRuns | None, reason: int, address: str, why: str,
        now: float,
    ) -> None:  # fmt: skip
        """Record a CONNECT that was refused; `known` is the session of that client id, if any."""
        at = int(now * 1000.0)
        client = ClientRuns(client_id[:_CLIENT_CHARS_MAX]) if known is None else known
        self.evidence.write(
            client, kinds.NOT_CONNECTED, reason, address, why, at,
            are_texts=True, is_stranger=known is None,
        )  # fmt: skip
        self.events.add(client.client_id, kinds.NOT_CONNECTED, reason, address, why, at, 1)

    def session_ended(
        self, client: ClientRuns, how: int, in_flight: int, queued: int, now: float
    ) -> None:
        """Record the end of a session, and how many messages it still had."""
        at = int(now * 1000.0)
        self.evidence.write(
            client, kinds.SESSION_ENDED, how, "", "", at,
            are_texts=True, first=min(in_flight, OFFSET_MAX), last=min(queued, OFFSET_MAX),
        )  # fmt: skip
        self.events.add(client.client_id, kinds.SESSION_ENDED, how, "", "", at, in_flight + queued)
        self.evidence.end_session(client)

    def _note_connection(
        self, client: ClientRuns, kind: int, code: int, address: str, why: str, now: float
    ) -> None:
        at = int(now * 1000.0)
        self.evidence.write(client, kind, code, address, why, at, are_texts=True)
        self.events.add(client.client_id, kind, code, address, why, at, 1)


_CLIENT_CHARS_MAX: Final = 256  # of a client id that nobody has authenticated


def _publisher_of(segment: Segment, offset: int) -> int:
    return int.from_bytes(segment.cells[offset + 12 : offset + 16], "little")
