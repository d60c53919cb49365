"""The recorder's answers as plain data, for the HTTP API. Times are Unix time in seconds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from mqtt_broker.recorder import kinds
from mqtt_broker.recorder.busy_topics import rate_of
from mqtt_broker.recorder.inquiry import Answer
from mqtt_broker.recorder.message_ids import name_of
from mqtt_broker.recorder.pending_events import Event
from mqtt_broker.recorder.runs import TopicFigures as CountedTopic
from mqtt_broker.recorder.search import Fact
from mqtt_broker.recorder.slow_acks import SlowAck
from mqtt_broker.recorder.traces import Trace

_MESSAGES: Final = frozenset(
    {
        kinds.PUBLISHED,
        kinds.QUEUED,
        kinds.SENT,
        kinds.RESENT,
        kinds.ACKNOWLEDGED,
        kinds.GIVEN,
        kinds.RETAINED,
        kinds.DROPPED,
    }
)
_CONNECTIONS: Final = frozenset(
    {kinds.CONNECTED, kinds.DISCONNECTED, kinds.NOT_CONNECTED, kinds.TAKEN_OVER}
)
_WITH_QOS: Final = frozenset({kinds.PUBLISHED, kinds.SUBSCRIBED, kinds.RETAINED})


class TooManyQuestions(Exception):
    """Refusal of a question: too many others wait for their answers."""


@dataclass(frozen=True, slots=True)
class FactFigures:
    """A run of equal decisions."""

    at: float
    until: float
    kind: str  # published, queued, sent, resent, acknowledged, given, dropped, refused, ...
    client: str  # of a publication, its publisher
    topic: str = ""  # or a filter
    count: int = 1
    qos: int | None = None
    reason: str = ""  # of a wait, a drop, a refusal, or the end of a connection
    reason_code: int | None = None
    publisher: str = ""  # of what was dropped
    address: str = ""
    message: str = ""  # of a publication: the name to ask for its first message by
    received_at: float | None = None  # when the first of these messages was received,
    received_until: float | None = None  # and the last


@dataclass(frozen=True, slots=True)
class WhyFigures:
    """Why a client did, or did not, get messages."""

    sentence: str
    sentences: list[str]  # one for each publication and refusal, the oldest first
    facts: list[FactFigures]
    sees_back_to: float  # everything since is there
    advice: str
    is_cut: bool  # there was more than one answer may hold


@dataclass(frozen=True, slots=True)
class SlowFigures:
    """A client that acknowledges messages of a topic slowly."""

    client: str
    topic: str
    count: int  # acknowledgements that took half a second or more
    slowest_s: float
    average_s: float  # of these
    p50_s: float  # of all its acknowledgements of the topic since the first slow one
    p99_s: float
    last_at: float


@dataclass(frozen=True, slots=True)
class TopicFigures:
    """A topic among the busiest."""

    topic: str
    messages_in: int  # since it is counted
    rate_in: float  # messages a second, over the last five to ten seconds
    bytes_in: int
    last_at: float


@dataclass(frozen=True, slots=True)
class TraceWanted:
    """A trace to begin: of a client, a topic or an address."""

    client: str = ""
    topic: str = ""
    address: str = ""
    payloads: bool = False
    for_s: float = 600.0
    packets_max: int = 10_000


@dataclass(frozen=True, slots=True)
class TraceFigures:
    """A trace."""

    n: int
    client: str
    topic: str
    address: str
    payloads: bool
    ends_at: float
    packets: int  # so far
    packets_max: int
    is_over: bool


@dataclass(frozen=True, slots=True)
class TraceLines:
    """Lines of a trace, and whether it has ended."""

    lines: list[dict[str, object]]
    is_over: bool


def fact_figures(fact: Fact) -> FactFigures:
    """Return a fact as plain data."""
    kind = fact.kind
    is_message = kind in _MESSAGES
    is_connection = kind in _CONNECTIONS
    has_code = kind in (kinds.REFUSED, kinds.DISCONNECTED, kinds.NOT_CONNECTED)
    return FactFigures(
        at=fact.at_ms / 1000,
        until=fact.until_ms / 1000,
        kind=kinds.KIND_NAMES.get(kind, "unknown"),
        client=fact.client,
        topic="" if is_connection else fact.topic,
        count=fact.count,
        qos=fact.code & kinds.QOS_BITS if kind in _WITH_QOS else None,
        reason=reason_of(kind, fact.code, fact.other),
        reason_code=fact.code if has_code else None,
        publisher=fact.other if kind == kinds.DROPPED else "",
        address=fact.topic if is_connection else "",
        message=name_of(fact),
        received_at=fact.first_ms / 1000 if is_message else None,
        received_until=fact.last_ms / 1000 if is_message else None,
    )


def event_figures(event: Event) -> FactFigures:
    """Return an event of the disk as plain data."""
    client_id, kind, code, topic, why, at_ms, count = event
    return fact_figures(
        Fact(kind, code, at_ms, at_ms, client=client_id, topic=topic, other=why, count=count)
    )


def reason_of(kind: int, code: int, other: str) -> str:
    """Return a reason in words."""
    if kind == kinds.QUEUED:
        return kinds.WAIT_NAMES.get(code, "")
    if kind == kinds.DROPPED:
        return kinds.DROP_REASONS[code] if code < len(kinds.DROP_REASONS) else ""
    if kind == kinds.SESSION_ENDED:
        return kinds.ENDS.get(code, "")
    if kind == kinds.TAKEN_OVER:
        return f"from {other} (same client id), {kinds.TAKEOVERS.get(code, '')}"
    return other


def why_figures(answer: Answer) -> WhyFigures:
    """Return an answer as plain data."""
    return WhyFigures(
        sentence=answer.sentence,
        sentences=answer.sentences,
        facts=[fact_figures(fact) for fact in answer.facts],
        sees_back_to=answer.sees_back_to_ms / 1000,
        advice=answer.advice,
        is_cut=answer.is_cut,
    )


def slow_figures(entry: SlowAck) -> SlowFigures:
    """Return a slow subscriber as plain data."""
    return SlowFigures(
        entry.client_id,
        entry.topic,
        entry.count,
        round(entry.slowest_s, 3),
        round(entry.sum_s / max(1, entry.count), 3),
        round(min(entry.times.quantile(0.5), entry.slowest_s), 3),
        round(min(entry.times.quantile(0.99), entry.slowest_s), 3),
        entry.last_at,
    )


def topic_figures(counted: CountedTopic, now_ms: int) -> TopicFigures:
    """Return a topic as plain data."""
    return TopicFigures(
        counted.topic,
        counted.messages,
        round(rate_of(counted, now_ms), 3),
        counted.bytes,
        counted.last_ms / 1000,
    )


def trace_figures(trace: Trace) -> TraceFigures:
    """Return a trace as plain data."""
    return TraceFigures(
        trace.number,
        trace.client_id,
        trace.topic,
        trace.address,
        trace.has_payloads,
        trace.ends_at,
        trace.packets,
        trace.packets_max,
        trace.is_over,
    )
