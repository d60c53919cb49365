"""Traces of a broker process, as a collector gets them: OTLP over HTTP, on loopback."""

from __future__ import annotations

import http.server
import queue
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from mqtt_broker.codec import properties as prop
from mqtt_broker.codec.constants import V5
from tests.core.peers import connect, publish, subscribe
from tests.server.broker_process import PATIENCE_S, Process
from tests.server.running import Raw

pytest.importorskip("opentelemetry.exporter.otlp.proto.http")
service = pytest.importorskip("opentelemetry.proto.collector.trace.v1.trace_service_pb2")

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = "b7ad6b7169203331"


class Collector(http.server.ThreadingHTTPServer):
    """An OTLP receiver; `answer` is its status, None: it never answers."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answer: int | None = 200
        self.spans: queue.Queue[Any] = queue.Queue()
        self.requests: queue.Queue[int] = queue.Queue()  # their sizes
        self.is_over = threading.Event()
        self._known: list[Any] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def wait_for(self, wanted: Callable[[Any], bool], count: int = 1) -> list[Any]:
        """Return the spans so far that are wanted, when there are so many."""
        while len(found := [span for span in self._known if wanted(span)]) < count:
            self._known.append(self.spans.get(timeout=PATIENCE_S))
        return found


class _Handler(http.server.BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.requests.put(len(body))
        if self.server.answer is None:
            self.server.is_over.wait()
            return
        if self.server.answer == 200 and self.path == "/v1/traces":
            request = service.ExportTraceServiceRequest.FromString(body)
            for resource in request.resource_spans:
                for scope in resource.scope_spans:
                    for span in scope.spans:
                        self.server.spans.put(span)
        self.send_response(self.server.answer)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *args: object) -> None:
        """Write nothing."""


@contextmanager
def collecting() -> Iterator[Collector]:
    with Collector() as collector:
        thread = threading.Thread(target=collector.serve_forever)
        thread.start()
        yield collector
        collector.is_over.set()
        collector.shutdown()
        thread.join()


def environment(url: str, **more: str) -> Mapping[str, str]:
    return {"FLEETMQ_OTEL_ENDPOINT": url, "OTEL_BSP_SCHEDULE_DELAY": "50", **more}


def persistent(broker: Process, name: str) -> Raw:
    client = broker.raw()
    client.send(connect(name, clean=False, expiry=1_000))
    assert client.packet()[3] == 0
    return client


def traced(qos: int = 1) -> bytes:
    pairs = [("traceparent", f"00-{TRACE}-{PARENT}-01")]
    return publish("plant/7/cmd", b"x", qos=qos, properties={prop.USER_PROPERTY: pairs})


def text(span: Any, name: str) -> str:
    [found] = [pair.value for pair in span.attributes if pair.key == name]
    return str(found.string_value)


def named(name: str, client: str = "") -> Callable[[Any], bool]:
    return lambda span: (
        span.name == name and (not client or text(span, "messaging.client.id") == client)
    )


def test_the_collector_gets_the_tree_over_a_queue_a_change_of_member_and_a_restart(
    tmp_path: Path,
) -> None:
    arguments = ("--port", "0", "--data-dir", str(tmp_path))
    with collecting() as collector:
        env = environment(collector.url, FLEETMQ_DURABILITY="commit")
        with Process(*arguments, env=env) as broker:
            with persistent(broker, "away") as away:
                away.send(subscribe(V5, "plant/#", qos=1))
                away.packet()
            online = broker.client("online")
            online.send(subscribe(V5, "plant/+/cmd", qos=1))
            online.packet()
            members = [persistent(broker, name) for name in ("one", "other")]
            for member in members:
                member.send(subscribe(V5, "$share/g/plant/#", qos=1))
                member.packet()
            publisher = broker.client("app-3")
            publisher.send(traced())
            publisher.packet()
            [top] = collector.wait_for(named("publish plant/7/cmd"))
            collector.wait_for(named("store"))
            shared = [
                span
                for span in collector.wait_for(named("deliver"), 2)
                if text(span, "messaging.client.id") != "online"
            ]
            holder = text(shared[0], "messaging.client.id")
            members[["one", "other"].index(holder)].sock.close()
            other = "other" if holder == "one" else "one"
            collector.wait_for(named("deliver", other))
            broker.end()
            for peer in (*members, online, publisher):
                peer.sock.close()
        with Process(*arguments, env=env) as broker, persistent(broker, "away") as away:
            away.packet()
            [late] = collector.wait_for(named("deliver", "away"))
            broker.end()
        tree = collector.wait_for(lambda span: True)
    assert top.trace_id.hex() == TRACE
    assert top.parent_span_id.hex() == PARENT
    for span in tree:
        assert span.trace_id == top.trace_id
        assert span is top or span.parent_span_id == top.span_id
    assert text(late, "mqtt.delivery") == "waited"
    assert late.end_time_unix_nano > late.start_time_unix_nano
    assert text(shared[0], "mqtt.shared_subscription") == "$share/g/plant/#"


def exchange(broker: Process, count: int) -> None:
    """Publish traced messages and see each of them arrive and acknowledged."""
    with broker.client("s") as subscriber, broker.client("p") as publisher:
        subscriber.send(subscribe(V5, "#"))
        subscriber.packet()
        for _ in range(count):
            publisher.send(traced())
            assert publisher.packet()[0] == 0x40
            subscriber.packet()


def lines_about_traces(broker: Process) -> list[str]:
    return [line for line in list(broker.lines.queue) if "traces:" in line]


@pytest.mark.parametrize("how", ["refuses", "answers 400", "never answers"])
def test_a_collector_that_fails_disturbs_nobody(how: str) -> None:
    with collecting() as collector, socket.create_server(("127.0.0.1", 0)) as closed:
        url = collector.url
        if how == "refuses":
            url = f"http://127.0.0.1:{closed.getsockname()[1]}"
            closed.close()
        collector.answer = None if how == "never answers" else 400
        # The library repeats an attempt for so long.
        env = environment(url, OTEL_EXPORTER_OTLP_TRACES_TIMEOUT="1")
        with Process("--port", "0", env=env) as broker:
            exchange(broker, 100)
            line = broker.wait_for("traces:")
            assert f"{url} takes no spans, they are dropped until it does" in line
            exchange(broker, 100)
            broker.end()  # whatever still waits
            assert lines_about_traces(broker) == []
