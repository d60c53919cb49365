"""OpenTelemetry traces of messages: a span for the PUBLISH, the store, and each delivery.

The extra `otel` brings the libraries. They are imported only if `otel_endpoint` is set.
A sampled parent in the message's `traceparent` is followed; other messages are sampled by
`otel_sample`.
"""

from __future__ import annotations

import random
import re
from typing import Any, Final

from opentelemetry import trace as api
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from mqtt_broker.version import __version__

_PARENT: Final = re.compile(r"00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")
_NAME_CHARS_MAX: Final = 256


class Telemetry:
    """Begins traces, and sends their spans to a collector."""

    def __init__(
        self, endpoint: str, sample: float, processor: SpanProcessor | None = None
    ) -> None:
        """`sample`: the share of messages without a sampled parent that are traced."""
        self._sample = sample
        self._provider = TracerProvider(
            resource=Resource.create({"service.name": "fleetmq", "service.version": __version__})
        )
        if processor is None:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

            exporter = OTLPSpanExporter(endpoint=f"{endpoint.rstrip('/')}/v1/traces")
            processor = BatchSpanProcessor(exporter)
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("fleetmq", __version__)

    def begin(
        self, traceparent: str, client_id: str, topic: str, qos: int, size: int
    ) -> Trace | None:
        found = _PARENT.fullmatch(traceparent)
        is_sampled = found is not None and int(found[3], 16) & 1 == 1
        if not is_sampled and random.random() >= self._sample:
            return None
        context = None
        if found is not None and int(found[1], 16) and int(found[2], 16):
            parent = api.SpanContext(
                int(found[1], 16), int(found[2], 16), is_remote=True,
                trace_flags=api.TraceFlags(api.TraceFlags.SAMPLED),
            )  # fmt: skip
            context = api.set_span_in_context(api.NonRecordingSpan(parent))
        span = self._tracer.start_span(
            f"publish {topic[:_NAME_CHARS_MAX]}",
            context,
            kind=api.SpanKind.CONSUMER,
            attributes={
                "messaging.system": "mqtt",
                "messaging.destination.name": topic[:_NAME_CHARS_MAX],
                "messaging.client.id": client_id[:_NAME_CHARS_MAX],
                "messaging.message.envelope.size": size,
                "mqtt.qos": qos,
            },
        )
        return Trace(self._tracer, span)

    def stop(self) -> None:
        """Send what waits, if that takes only a moment."""
        self._provider.force_flush(1_000)
        self._provider.shutdown()


class Trace:
    """The spans of one PUBLISH."""

    def __init__(self, tracer: Any, span: Any) -> None:
        self._tracer = tracer
        self._span = span
        self._context = api.set_span_in_context(span)
        self._store: Any = None

    @property
    def traceparent(self) -> str:
        found = self._span.get_span_context()
        return f"00-{found.trace_id:032x}-{found.span_id:016x}-01"

    def deliver(self, client_id: str, *, is_online: bool) -> None:
        self._tracer.start_span(
            "deliver",
            self._context,
            kind=api.SpanKind.PRODUCER,
            attributes={
                "messaging.client.id": client_id[:_NAME_CHARS_MAX],
                "mqtt.delivery": "sent" if is_online else "queued",
            },
        ).end()

    def begin_store(self) -> None:
        self._store = self._tracer.start_span("store", self._context)

    def end_store(self) -> None:
        self._store.end()

    def end(self) -> None:
        self._span.end()
