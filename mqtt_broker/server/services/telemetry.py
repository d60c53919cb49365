"""OpenTelemetry traces of messages: a span for the PUBLISH, the store, and each delivery.

The extra `otel` brings the libraries. They are imported only if `otel_endpoint` is set.
A sampled parent in the message's `traceparent` is followed; other messages are sampled by
`otel_sample`. A delivery finds its parent in the `traceparent` that the message carries since its
PUBLISH, so it has one after a queue, a change of the member and a restart as well.

Spans are sent in a thread. At most `SPANS_PER_S` begin in a second, and at most 2,048 wait for a
collector that is slow or away; those above are left out, and the log says so.
"""

from __future__ import annotations

import logging
import random
import re
import threading
import time
from collections.abc import Sequence
from typing import Any, Final, Protocol, cast
from urllib.parse import urlsplit

from opentelemetry import trace as api
from opentelemetry.context import Context
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExportResult

from mqtt_broker.codec.properties import properties_of
from mqtt_broker.version import __version__
from sessions.messages.message import DeliveryOptions, Envelope

SPANS_PER_S: Final = 1_000  # one takes about 50 us of the loop
_LEFT_OUT_S: Final = 60.0  # between two lines about spans that are left out
_STOP_S: Final = 1.0  # for what waits at the end
_NAME_CHARS_MAX: Final = 256
_REASON_CHARS_MAX: Final = 200
_TRACEPARENT: Final = "traceparent"
_TRACEPARENT_BYTES: Final = b"traceparent"
_PARENT: Final = re.compile(r"00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")
# These log every attempt to export and every span that is dropped; `Collector` logs it once.
_EXPORTER_LOG: Final = "opentelemetry.exporter.otlp.proto.http.trace_exporter"
_SDK_LOGS: Final = ("opentelemetry.sdk._shared_internal", "opentelemetry.sdk.trace.export")

_log: Final = logging.getLogger(__name__)


class Telemetry:
    """Begins traces, and sends their spans to a collector."""

    def __init__(
        self, endpoint: str, sample: float, processor: SpanProcessor | None = None
    ) -> None:
        """`sample`: the share of messages without a sampled parent that are traced."""
        self._sample = sample
        self._budget = SpanBudget()
        self._section = b""  # the last one that was looked at,
        self._context: Context | None = None  # and what it says
        self._provider = TracerProvider(
            resource=Resource.create({"service.name": "fleetmq", "service.version": __version__}),
            shutdown_on_exit=False,  # it waits for the collector
        )
        self._provider.add_span_processor(processor or _sender(endpoint))
        self._tracer = self._provider.get_tracer("fleetmq", __version__)

    def begin(
        self, traceparent: str, client_id: str, topic: str, qos: int, size: int, now: float
    ) -> Trace | None:
        """Begin the trace of a PUBLISH; None: it is not sampled, or there are too many."""
        found = _PARENT.fullmatch(traceparent)
        is_sampled = found is not None and _is_sampled(found)
        if not is_sampled and random.random() >= self._sample:
            return None
        if not self._budget.take(now):
            return None
        span = self._tracer.start_span(
            f"publish {topic[:_NAME_CHARS_MAX]}",
            None if found is None else _context_of(found),
            kind=api.SpanKind.CONSUMER,
            attributes={
                "messaging.system": "mqtt",
                "messaging.destination.name": topic[:_NAME_CHARS_MAX],
                "messaging.client.id": client_id[:_NAME_CHARS_MAX],
                "messaging.message.envelope.size": size,
                "mqtt.qos": qos,
            },
            start_time=_nanoseconds(now),
        )
        return Trace(self._tracer, span, now)

    def delivered(
        self,
        envelope: Envelope,
        options: DeliveryOptions,
        client_id: str,
        count: int,
        now: float,
        *,
        is_repeated: bool,
    ) -> None:
        """Trace messages that were written for a client.

        The span lasts as long as they waited. One of a repetition, or of what is retained, has no
        length: the message was not under way all the time.
        """
        context = self._context_in(envelope.section)
        if context is None or not self._budget.take(now):
            return
        has_waited = not (is_repeated or options.retain) and now > envelope.received_at
        attributes: dict[str, str | int | bool] = {
            "messaging.client.id": client_id[:_NAME_CHARS_MAX],
            "messaging.batch.message_count": count,
            "mqtt.qos": options.qos,
            "mqtt.delivery": "waited" if has_waited else "repeated" if is_repeated else "sent",
        }
        if options.group is not None:
            attributes["mqtt.shared_subscription"] = options.group.name[:_NAME_CHARS_MAX]
        self._tracer.start_span(
            "deliver",
            context,
            kind=api.SpanKind.PRODUCER,
            attributes=attributes,
            start_time=_nanoseconds(envelope.received_at if has_waited else now),
        ).end(_nanoseconds(now))

    def dropped(self, envelope: Envelope, client_id: str, reason: str, now: float) -> None:
        """Trace a message that a client, or a group of them, does not get."""
        context = self._context_in(envelope.section)
        if context is None or not self._budget.take(now):
            return
        span = self._tracer.start_span(
            "drop",
            context,
            kind=api.SpanKind.PRODUCER,
            attributes={
                "messaging.client.id": client_id[:_NAME_CHARS_MAX],
                "error.type": reason,
            },
            start_time=_nanoseconds(min(envelope.received_at, now)),
        )
        span.set_status(api.StatusCode.ERROR, reason)
        span.end(_nanoseconds(now))

    def _context_in(self, section: bytes) -> Context | None:
        """Return the parent that a message carries, if that is sampled."""
        if section is self._section:
            return self._context
        context: Context | None = None
        if _TRACEPARENT_BYTES in section:
            pairs = properties_of(section).user
            text = next((value for name, value in pairs if name == _TRACEPARENT), "")
            found = _PARENT.fullmatch(text)
            if found is not None and _is_sampled(found):
                context = _context_of(found)
        self._section, self._context = section, context
        return context

    def stop(self) -> None:
        """Send what waits, if that takes only a moment: the collector may not answer."""
        thread = threading.Thread(target=self._provider.shutdown, name="traces-stop", daemon=True)
        thread.start()
        thread.join(_STOP_S)


class Trace:
    """The spans of one PUBLISH."""

    def __init__(self, tracer: Any, span: Any, now: float) -> None:
        self._tracer = tracer
        self._span = span
        self._begun = now
        self._context = api.set_span_in_context(span)
        self._store: Any = None

    @property
    def traceparent(self) -> str:
        """The context of which deliveries are children."""
        found = self._span.get_span_context()
        return f"00-{found.trace_id:032x}-{found.span_id:016x}-01"

    def begin_store(self) -> None:
        """Begin the span of the store."""
        self._store = self._tracer.start_span(
            "store", self._context, start_time=_nanoseconds(self._begun)
        )

    def end_store(self) -> None:
        """End the span of the store."""
        self._store.end(self._end())

    def end(self) -> None:
        """End the span of the PUBLISH."""
        self._span.end(self._end())

    def _end(self) -> int:
        """Return the time, which is never before the beginning, whatever was done to the clock."""
        return max(time.time_ns(), _nanoseconds(self._begun))


class SpanBudget:
    """Limits the spans of a second: publishers decide what is traced, and the loop makes them."""

    def __init__(self, per_s: int = SPANS_PER_S) -> None:
        self._per_s = per_s
        self._left = float(per_s)
        self._at = 0.0
        self._told_at = float("-inf")
        self._left_out = 0

    def take(self, now: float) -> bool:
        """Count a span; False: it is one too many."""
        self._left = min(self._per_s, self._left + max(0.0, now - self._at) * self._per_s)
        self._at = now
        if self._left >= 1.0:
            self._left -= 1.0
            return True
        self._left_out += 1
        if now - self._told_at >= _LEFT_OUT_S:
            self._told_at = now
            _log.warning(
                "traces: more than %d spans a second; %d left out so far",
                self._per_s,
                self._left_out,
            )
        return False


class Exporter(Protocol):
    """Sends spans somewhere; the part of the library's interface that its processor uses."""

    def export(self, spans: Sequence[ReadableSpan], /) -> Any:
        """Send spans; returns a `SpanExportResult`."""

    def shutdown(self) -> None:
        """End an attempt that is under way."""


class Collector:
    """Exports spans, and logs when the collector stops and begins to take them."""

    def __init__(self, exporter: Exporter, place: str) -> None:
        self._exporter = exporter
        self._place = place
        self._fails = False
        logging.getLogger(_EXPORTER_LOG).addFilter(_EXPORTER_LINES)
        for name in _SDK_LOGS:
            logging.getLogger(name).addFilter(_SDK_LINES)

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Export spans, in the thread of the processor."""
        why = ""
        _EXPORTER_LINES.forget()
        result: SpanExportResult
        try:
            result = self._exporter.export(spans)
        except Exception as error:  # as any failure: the next batch may do
            why = str(error)
            result = SpanExportResult.FAILURE
        fails = result is not SpanExportResult.SUCCESS
        if fails and not self._fails:
            _log.warning(
                "traces: %s takes no spans, they are dropped until it does: %s",
                self._place,
                (why or _EXPORTER_LINES.last)[:_REASON_CHARS_MAX] or "it does not say why",
            )
        elif self._fails and not fails:
            _log.warning("traces: %s takes spans again", self._place)
        self._fails = fails
        return result

    def shutdown(self) -> None:
        """End an attempt that is under way."""
        self._exporter.shutdown()


class _KeptLines(logging.Filter):
    """Lets no line of a log pass, and keeps the last one."""

    last = ""

    def filter(self, record: logging.LogRecord) -> bool:
        self.last = record.getMessage()
        return False

    def forget(self) -> None:
        """Forget the last line."""
        self.last = ""


_EXPORTER_LINES: Final = _KeptLines()
_SDK_LINES: Final = _KeptLines()


def _sender(endpoint: str) -> SpanProcessor:
    """Return what sends spans to a collector, in a thread."""
    # Not above: tests and other processors do without it.
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    exporter = OTLPSpanExporter(endpoint=f"{endpoint.rstrip('/')}/v1/traces")
    return BatchSpanProcessor(cast(Any, Collector(exporter, _without_password(endpoint))))


def _without_password(endpoint: str) -> str:
    parts = urlsplit(endpoint)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


def _is_sampled(found: re.Match[str]) -> bool:
    """Tell whether a `traceparent` names a span, and asks for it to be followed."""
    return int(found[3], 16) & 1 == 1 and int(found[1], 16) > 0 and int(found[2], 16) > 0


def _context_of(found: re.Match[str]) -> Context | None:
    """Return the context of a `traceparent`; None: it names no span."""
    trace_id, span_id = int(found[1], 16), int(found[2], 16)
    if not trace_id or not span_id:
        return None
    flags = api.TraceFlags(api.TraceFlags.SAMPLED)
    parent = api.SpanContext(trace_id, span_id, is_remote=True, trace_flags=flags)
    return api.set_span_in_context(api.NonRecordingSpan(parent))


def _nanoseconds(at: float) -> int:
    return int(at * 1e9)
