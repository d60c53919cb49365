"""A small HTTP server that answers as a test says, and remembers what it was asked."""

from __future__ import annotations

import http.server
import json
import threading
from types import TracebackType
from typing import Any, NamedTuple, Self
from urllib.parse import parse_qs, urlsplit

import pytest

from mqtt_broker.cli.main import main


class Asked(NamedTuple):
    """A request."""

    method: str
    path: str
    query: dict[str, str]
    body: Any
    token: str


class Answer(NamedTuple):
    """An answer that is not 200, or not JSON."""

    status: int
    body: bytes
    kind: str = "application/problem+json"


def problem(status: int, detail: str) -> Answer:
    found = {"type": "about:blank", "title": "x", "status": status, "detail": detail}
    return Answer(status, json.dumps(found | {"error": "X", "text": detail}).encode())


class FakeApi:
    """`answers` are by "METHOD /path": a value, or a function of the request."""

    def __init__(self) -> None:
        self.answers: dict[str, Any] = {}
        self.asked: list[Asked] = []
        fake = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def handle_one(self) -> None:
                parts = urlsplit(self.path)
                size = int(self.headers.get("Content-Length") or 0)
                data = self.rfile.read(size)
                asked = Asked(
                    self.command,
                    parts.path.removeprefix("/api/v1"),
                    {key: one[0] for key, one in parse_qs(parts.query).items()},
                    json.loads(data) if data else None,
                    self.headers.get("Authorization", ""),
                )
                fake.asked.append(asked)
                found = fake.answers.get(
                    f"{asked.method} {asked.path}", problem(404, f"nothing at {asked.path}")
                )
                if callable(found):
                    found = found(asked)
                if not isinstance(found, Answer):
                    found = Answer(200, json.dumps(found).encode(), "application/json")
                self.send_response(found.status)
                self.send_header("Content-Type", found.kind)
                self.send_header("Content-Length", str(len(found.body)))
                self.end_headers()
                self.wfile.write(found.body)

            do_GET = do_POST = do_PUT = do_DELETE = do_PATCH = handle_one

            def log_message(self, *_: object) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def pages(self, path: str, items: list[Any]) -> None:
        """Answer a list, in pages."""

        def answer(asked: Asked) -> Any:
            at, limit = int(asked.query.get("cursor", "0")), int(asked.query["limit"])
            end = at + limit
            more = str(end) if end < len(items) else None
            return {"items": items[at:end], "next": more, "total": len(items)}

        self.answers[f"GET {path}"] = answer

    def last(self) -> Asked:
        return self.asked[-1]


class Ctl:
    """Runs `fleetmq ctl` against a fake broker."""

    def __init__(self, api: FakeApi, capsys: pytest.CaptureFixture[str]) -> None:
        self.api = api
        self._capsys = capsys

    def __call__(self, *arguments: str) -> tuple[int, str, str]:
        """Return the exit code, stdout and stderr."""
        try:
            code = main(["ctl", *arguments])
        except SystemExit as end:
            code = int(str(end.code))
        said = self._capsys.readouterr()
        return code, said.out, said.err
