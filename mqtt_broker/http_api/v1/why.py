"""`/api/v1/why`, `events` and `slow`: what the flight recorder knows."""

from __future__ import annotations

import re
import time
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Annotated, Final, Literal, TypeVar

from mqtt_broker.http_api.request.json_types import Limits
from mqtt_broker.http_api.request.middleware import Site
from mqtt_broker.http_api.request.operations import Operation, get
from mqtt_broker.http_api.request.paging import Page, Paging, take_page
from mqtt_broker.http_api.request.problems import Problem, bad_request
from mqtt_broker.http_api.request.recorder_part import RECORDS, FlightRecords
from mqtt_broker.recorder.figures import (
    FactFigures,
    SlowFigures,
    TooManyQuestions,
    TopicFigures,
    WhyFigures,
)
from mqtt_broker.recorder.message_ids import EXPECTED, InvalidMessage, parse_name

_SLOW_MAX: Final = 1_000
_NAME_CHARS_MAX: Final = 65_535
_AGE: Final = re.compile(r"([0-9]{1,9})(s|m|h|d)")
_UNITS: Final = {"s": 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0}
_UNIX: Final = re.compile(r"[0-9]{1,12}(\.[0-9]{1,9})?")
_DAY: Final = "1d"
_SINCE: Final = "how long ago, as 90s, 10m, 2h or 1d; or a Unix time in seconds"

T = TypeVar("T")
Name = Annotated[str, Limits(chars_max=_NAME_CHARS_MAX)]
Since = Annotated[str, Limits(chars_max=24, text=_SINCE)]
EventKind = Literal[
    "connected",
    "disconnected",
    "dropped",
    "events_lost",
    "not_connected",
    "refused",
    "session_ended",
    "taken_over",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class WhyQuestion:
    """The client that is asked about, and what was published."""

    client: Annotated[str, Limits(chars_min=1, chars_max=_NAME_CHARS_MAX, text="a client id")]
    topic: Annotated[
        str, Limits(chars_max=_NAME_CHARS_MAX, text="a topic or a filter; by default any")
    ] = ""
    message: Annotated[
        str,
        Limits(
            chars_max=_NAME_CHARS_MAX + 40,
            text=f"one message, as {EXPECTED}; then since is of no use",
        ),
    ] = ""
    since: Since = _DAY


@dataclass(frozen=True, slots=True, kw_only=True)
class EventList(Paging):
    """The filters of events."""

    client: Name = ""
    kind: EventKind | None = None
    since: Since = _DAY


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnEvents(Paging):
    """The filters of the events of one client."""

    kind: EventKind | None = None
    since: Since = _DAY


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicList(Paging):
    """The filters of topics."""

    q: Annotated[str, Limits(chars_max=_NAME_CHARS_MAX, text="only topics with this text")] = ""


def operations(site: Site) -> list[Operation]:
    """Return the operations that ask the flight recorder."""
    page = _Recorder(site)
    return [
        get("/api/v1/why", page.why, errors=(409,)),
        get("/api/v1/events", page.events, errors=(409,)),
        get("/api/v1/clients/{id}/events", page.events_of, errors=(409,)),
        get("/api/v1/slow", page.slow, errors=(409,)),
        get("/api/v1/topics", page.topics, errors=(409,)),
    ]


def seconds_ago(text: str) -> float:
    """Return how many seconds ago a time was: 10m, or a Unix time."""
    found = _AGE.fullmatch(text)
    if found is not None:
        return float(found[1]) * _UNITS[found[2]]
    if _UNIX.fullmatch(text):
        return max(0.0, time.time() - float(text))
    raise bad_request(f"since must be {_SINCE}, and is {text[:24]!r}")


async def answered(answer: Awaitable[T]) -> T:
    """Wait for an answer; too many questions at once are a 429."""
    try:
        return await answer
    except TooManyQuestions as error:
        raise Problem(429, "TooManyRequests", str(error)) from None


class _Recorder:
    def __init__(self, site: Site) -> None:
        self._site = site

    def _records(self) -> FlightRecords:
        return self._site.broker.part(RECORDS)

    async def why(self, query: WhyQuestion) -> WhyFigures:
        """Tell why a client did, or did not, get what was published.

        The answer is a sentence, one for each publication and refusal, and the facts that they are
        made from. `sees_back_to` is the time from which on everything about the client is there. A
        publication among the facts has a `message`, which asks for the messages of its time.
        """
        since_s = seconds_ago(query.since)
        try:
            message = parse_name(query.message, time.time()) if query.message else None
        except InvalidMessage as error:
            raise bad_request(str(error)) from None
        records = self._records()
        return await answered(
            self._site.ask(records.why, query.client, query.topic, since_s, message)
        )

    async def events(self, query: EventList) -> Page[FactFigures]:
        """List drops, refusals and connections, the newest first."""
        return await self._page(query.client, query.kind, query.since, query)

    async def events_of(self, id: str, query: OwnEvents) -> Page[FactFigures]:
        """List drops, refusals and connections of one client, the newest first."""
        return await self._page(id, query.kind, query.since, query)

    async def _page(
        self, client: str, kind: EventKind | None, since: str, paging: Paging
    ) -> Page[FactFigures]:
        records = self._records()
        found = await answered(self._site.ask(records.events, client, seconds_ago(since)))
        return await take_page(
            found,
            paging,
            lambda fact: (fact.at, f"{fact.client} {fact.kind} {fact.topic}"),
            lambda fact: fact,
            "-at",
            None if not kind else lambda fact: fact.kind == kind,
        )

    async def topics(self, query: TopicList) -> Page[TopicFigures]:
        """List the busiest topics, the busiest first.

        The broker counts a bounded number of topics: one that was quiet for long begins anew.
        """
        found = await answered(self._site.ask(self._records().topics))
        return await take_page(
            found,
            query,
            lambda one: (one.rate_in, one.topic),
            lambda one: one,
            "-rate_in",
            None if not query.q else lambda one: query.q in one.topic,
        )

    async def slow(self, query: Paging) -> Page[SlowFigures]:
        """List the clients that acknowledge slowly, by client and topic, the slowest first."""
        found = await answered(self._site.ask(self._records().slow, _SLOW_MAX))
        return await take_page(
            found,
            query,
            lambda one: (one.slowest_s, f"{one.client} {one.topic}"),
            lambda one: one,
            "-slowest_s",
        )
