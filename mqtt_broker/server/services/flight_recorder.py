"""The recorder's answers for other threads, a step a turn of the loop; its events to the disk."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Final, TypeVar

from mqtt_broker.core.broker import Broker
from mqtt_broker.core.client_views import inquire
from mqtt_broker.core.tracing import Tracing
from mqtt_broker.recorder import kinds
from mqtt_broker.recorder.figures import (
    FactFigures,
    SlowFigures,
    TooManyQuestions,
    TopicFigures,
    TraceFigures,
    TraceLines,
    TraceWanted,
    WhyFigures,
    event_figures,
    fact_figures,
    slow_figures,
    topic_figures,
    trace_figures,
    why_figures,
)
from mqtt_broker.recorder.message_ids import MessageName
from mqtt_broker.recorder.recorder import Recorder, to_ms
from mqtt_broker.recorder.search import Search
from mqtt_broker.recorder.traces import TRACES_MAX
from mqtt_broker.server.process.turn import Turn
from mqtt_broker.server.services.event_files import EventFiles

QUESTIONS_MAX: Final = 32  # that wait for their answers
EVENTS_MAX: Final = 5_000  # of one answer
TOPICS_MAX: Final = 1_000  # of one answer
_TURN_S: Final = 0.002  # of one turn of the loop, for questions
_WRITE_S: Final = 1.0
_TRACE_KEPT_S: Final = 3_600.0  # that its last lines can be read


_T = TypeVar("_T")


class FlightRecorder:
    """Answers questions from any thread. Between two steps the broker does its work."""

    def __init__(
        self,
        broker: Broker,
        recorder: Recorder,
        loop: asyncio.AbstractEventLoop,
        turn: Turn,
        data_dir: Path | None,
    ) -> None:
        self._broker = broker
        self._recorder = recorder
        self._loop = loop
        self._turn = turn  # for its clock
        self._files = None if data_dir is None else EventFiles(data_dir)
        self._tracing = Tracing(broker.state, turn.now)
        self._waiting: deque[Iterator[None]] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._writing: asyncio.Future[None] | None = None

    # Questions.

    def why(
        self, client_id: str, topic: str, since_s: float, message: MessageName | None = None
    ) -> Future[WhyFigures]:
        """Find out why a client did, or did not, get what was published in the last seconds.

        Of all that was published, or of one message.
        """
        done: Future[WhyFigures] = Future()

        def steps() -> Iterator[None]:
            now = self._turn.now()
            since = max(0.0, now - since_s)
            question = inquire(
                self._broker.state, self._recorder, client_id, topic, since, now, message
            )
            yield from question.steps()
            assert question.answer is not None
            done.set_result(why_figures(question.answer))

        self._ask(done, steps)
        return done

    def events(self, client_id: str, since_s: float) -> Future[list[FactFigures]]:
        """Return the events of a client, or (empty) of all, the newest first."""
        done: Future[list[FactFigures]] = Future()

        def steps() -> Iterator[None]:
            since_ms = to_ms(max(0.0, self._turn.now() - since_s))
            evidence = self._recorder.evidence
            search = Search(since_ms, EVENTS_MAX)
            if client_id:
                yield from search.evidence_of(evidence.rings_of(client_id), client_id)
            else:
                rings = [evidence.common, evidence.strangers, *evidence.shares.values()]
                yield from search.all_evidence(rings)
            found = [fact_figures(fact) for fact in search.found]
            self._add_files(done, found, client_id, since_ms)

        self._ask(done, steps)
        return done

    def _add_files(
        self,
        done: Future[list[FactFigures]],
        found: list[FactFigures],
        client_id: str,
        since_ms: int,
    ) -> None:
        """Add what is on disk and older than what is in memory."""
        files = self._files
        if files is None:
            done.set_result(_newest_first(found))
            return
        begins = min([fact.at for fact in found], default=float("inf"))

        def read() -> None:
            try:
                older = [event_figures(e) for e in files.read(client_id, since_ms, EVENTS_MAX)]
                lost = kinds.KIND_NAMES[kinds.EVENTS_LOST]
                older = [fact for fact in older if fact.at < begins or fact.kind == lost]
                if files.gap is not None:
                    older.append(event_figures(files.gap))
                done.set_result(_newest_first(found + older))
            except Exception as error:  # for the caller
                done.set_exception(error)

        self._loop.run_in_executor(None, read)

    def slow(self, count: int) -> Future[list[SlowFigures]]:
        """Return the slowest subscribers, the slowest first."""
        done: Future[list[SlowFigures]] = Future()

        def steps() -> Iterator[None]:
            found = self._recorder.slow_acks.slowest(count, self._turn.now())
            done.set_result([slow_figures(entry) for entry in found])
            yield

        self._ask(done, steps)
        return done

    def topics(self) -> Future[list[TopicFigures]]:
        """Return the busiest topics, the busiest first."""
        done: Future[list[TopicFigures]] = Future()

        def steps() -> Iterator[None]:
            now_ms = to_ms(self._turn.now())
            self._recorder.settle()
            found = self._recorder.busy_topics.busiest(TOPICS_MAX, now_ms)
            done.set_result([topic_figures(one, now_ms) for one in found])
            yield

        self._ask(done, steps)
        return done

    # Traces.

    def trace_begin(self, wanted: TraceWanted) -> Future[TraceFigures]:
        """Begin a trace."""
        done: Future[TraceFigures] = Future()

        def steps() -> Iterator[None]:
            if len(self._tracing.traces.running) >= TRACES_MAX:
                raise TooManyQuestions(f"{TRACES_MAX} traces run: end one of them")
            trace = self._tracing.begin(
                self._turn.now(),
                client_id=wanted.client,
                topic=wanted.topic,
                address=wanted.address,
                has_payloads=wanted.payloads,
                for_s=wanted.for_s,
                packets_max=wanted.packets_max,
            )
            done.set_result(trace_figures(trace))
            yield

        self._ask(done, steps)
        return done

    def traces(self) -> Future[list[TraceFigures]]:
        """Return the traces, the newest first; those that have ended stay for an hour."""
        done: Future[list[TraceFigures]] = Future()

        def steps() -> Iterator[None]:
            now = self._turn.now()
            for trace in list(self._tracing.traces.running.values()):
                if trace.is_over and now > trace.ends_at + _TRACE_KEPT_S:
                    self._tracing.remove(trace.number)
            found = [trace_figures(one) for one in self._tracing.traces.running.values()]
            done.set_result(found[::-1])
            yield

        self._ask(done, steps)
        return done

    def trace_end(self, number: int) -> Future[bool]:
        """End a trace and forget it; False: there is none."""
        done: Future[bool] = Future()

        def steps() -> Iterator[None]:
            done.set_result(self._tracing.remove(number))
            yield

        self._ask(done, steps)
        return done

    def trace_lines(self, number: int, count: int) -> Future[TraceLines | None]:
        """Take lines of a trace; None: there is none."""
        done: Future[TraceLines | None] = Future()

        def steps() -> Iterator[None]:
            trace = self._tracing.traces.running.get(number)
            if trace is None:
                done.set_result(None)
            else:
                lines = trace.take(count, self._turn.now())
                done.set_result(TraceLines(lines, trace.is_over))
            yield

        self._ask(done, steps)
        return done

    def _ask(self, done: Future[_T], steps: Callable[[], Iterator[None]]) -> None:
        def guarded() -> Iterator[None]:
            try:
                yield from steps()
            except Exception as error:  # for the caller
                done.set_exception(error)

        def begin() -> None:
            if len(self._waiting) >= QUESTIONS_MAX:
                done.set_exception(TooManyQuestions("too many questions wait: ask again later"))
                return
            self._waiting.append(guarded())
            if len(self._waiting) == 1:
                self._loop.call_soon(self._go_on)

        self._loop.call_soon_threadsafe(begin)

    def _go_on(self) -> None:
        """Take steps of the first question, for as long as a turn may take longer."""
        steps = self._waiting[0]
        until = self._loop.time() + _TURN_S
        while self._loop.time() < until:
            if next(steps, self) is self:
                self._waiting.popleft()
                break
        if self._waiting:
            self._loop.call_soon(self._go_on)

    # Events to the disk.

    def start(self) -> None:
        """Write events to the disk from now on, if there is a data directory."""
        if self._files is not None:
            self._recorder.events.collect()
            self._timer = self._loop.call_later(_WRITE_S, self._write)

    @property
    def event_files(self) -> EventFiles | None:
        """The events on disk; None: they are in memory only."""
        return self._files

    def _write(self) -> None:
        files = self._files
        assert files is not None
        if self._writing is None or self._writing.done():  # else they wait, up to a limit
            pending = self._recorder.events
            events, (lost, since_ms) = pending.take(), pending.take_lost()
            if events:
                now = self._turn.now()
                self._writing = self._loop.run_in_executor(
                    None, files.write, events, now, lost, since_ms
                )
        self._timer = self._loop.call_later(_WRITE_S, self._write)

    async def stop(self) -> None:
        """Write what is left."""
        if self._timer is not None:
            self._timer.cancel()
        if self._writing is not None:
            await self._writing
        pending = self._recorder.events
        events, (lost, since_ms) = pending.take(), pending.take_lost()
        if self._files is not None and events:
            now = self._turn.now()
            await self._loop.run_in_executor(None, self._files.write, events, now, lost, since_ms)


def _newest_first(found: list[FactFigures]) -> list[FactFigures]:
    return sorted(found, key=lambda fact: -fact.at)[:EVENTS_MAX]
