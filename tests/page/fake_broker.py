"""A server with the page and an API whose answers a test chooses: large, hostile, failing, absent.

    python -m tests.page.fake_broker 8090

serves it for a look by hand. What the real broker answers is tested by `test_browser.py`.
"""

from __future__ import annotations

import asyncio
import base64
import json
import math
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, Self

from aiohttp import web

from mqtt_broker.http_api.pages import site_files

CLIENTS: Final = 15_000
RETAINED_PLANTS: Final = 1_000
RETAINED_EACH: Final = 100
HOSTILE: Final = (
    "<img src=x onerror=alert(1)>",
    '"><script>alert(2)</script>',
    "a/b?c#d%2F&e",
    "\u202etxt.exe",
    "üñí-💡-" + "x" * 80,
    "' onmouseover='alert(3)",
)

Answer = Callable[[dict[str, str]], Any]


def _wave(at: float, base: float, height: float, period: float) -> float:
    noise = math.sin(at * 12.9898) * 43758.5453 % 1
    return round(max(0.0, base + height * math.sin(at / period) + height * 0.3 * noise), 3)


class FakeBroker:
    """`with FakeBroker() as fake` serves at `fake.url` until the block ends.

    `fake.answers["clients"] = (503, {...})` replaces an answer; None stands for an absent path.
    """

    def __init__(self, port: int = 0) -> None:
        self.answers: dict[str, tuple[int, Any] | None] = {}
        self.requests: list[tuple[str, str, Any]] = []
        self.login_needed = False
        self.url = ""
        self._port = port
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._stop: asyncio.Event | None = None
        self._thread = threading.Thread(target=lambda: self._loop.run_until_complete(self._serve()))
        self._clients = [_client(number) for number in range(CLIENTS)]

    def __enter__(self) -> Self:
        self._thread.start()
        self._ready.wait()
        return self

    def __exit__(self, *error: object) -> None:
        assert self._stop is not None
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()
        self._loop.close()

    async def _serve(self) -> None:
        application = web.Application()
        application.add_routes(site_files.file_routes(self._websockets))
        application.add_routes([web.route("*", "/api/v1/{path:.*}", self._answer)])
        runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.2)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", self._port)
        await site.start()
        host, port = runner.addresses[0][:2]
        self.url = f"http://{host}:{port}"
        self._stop = asyncio.Event()
        self._ready.set()
        await self._stop.wait()
        await runner.cleanup()

    async def _websockets(self) -> Sequence[site_files.WebSocketAddress]:
        return [site_files.WebSocketAddress(8083, False)]

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        path = request.match_info["path"]
        body = await request.json() if request.can_read_body else None
        self.requests.append((request.method, path, body))
        if path == "login":
            if body == {"name": "ann", "password": "right"}:
                self.login_needed = False
                return _reply(200, ME)
            return _reply(*_problem(401, "WrongLogin", "the user or the password is wrong"))
        if self.login_needed:
            return _reply(*_problem(401, "Unauthorized", "log in"))
        if path in self.answers:
            found = self.answers[path]
            return _reply(*(_absent(path) if found is None else found))
        if request.method != "GET":
            return _reply(200, EXPLAINED if path == "rules/explain" else {})
        make = ANSWERS.get(path)
        if path == "clients":
            return _reply(200, self._page(dict(request.query)))
        if path.startswith("clients/"):
            return _reply(200, _of_client(path))
        return _reply(*_absent(path) if make is None else (200, make(dict(request.query))))

    def _page(self, query: dict[str, str]) -> Any:
        words = query.get("q", "").lower()
        found = [one for one in self._clients if words in one["id"].lower()]
        sort = query.get("sort", "id")
        key = {"backlog": "queued", "drops": "dropped", "idle": "idle_s"}.get(sort.lstrip("-"))
        found.sort(key=lambda one: one[key or sort.lstrip("-")], reverse=sort.startswith("-"))
        return _cut(found, query)


def _cut(found: Sequence[Any], query: dict[str, str]) -> Any:
    start, limit = int(query.get("cursor") or 0), int(query.get("limit") or 50)
    end = start + limit
    return {
        "items": found[start:end],
        "next": str(end) if end < len(found) else None,
        "total": len(found),
    }


def _reply(status: int, found: Any) -> web.Response:
    return web.Response(status=status, text=json.dumps(found), content_type="application/json")


def _problem(status: int, error: str, text: str) -> tuple[int, Any]:
    title = {"type": "about:blank", "title": error, "status": status, "detail": text}
    return status, {**title, "error": error, "text": text}


def _absent(path: str) -> tuple[int, Any]:
    return _problem(404, "NotFound", f"there is nothing at /api/v1/{path}")


ME: Final = {"name": "ann", "role": "admin", "csrf": "c" * 32}


def _client(number: int) -> dict[str, Any]:
    kinds = ("pump", "meter", "tracker", "gateway")
    plain = f"{kinds[number % 4]}-{number:05d}"
    now = time.time()
    online = number % 9 != 3
    return {
        "id": HOSTILE[number] if number < len(HOSTILE) else plain,
        "online": online,
        "user": f"plant{number % 40}",
        "address": f"10.{number % 7}.{number // 250}.{number % 250}",
        "version": 5 if number % 3 else 4,
        "listener": "fleet",
        "connected_at": now - number * 7,
        "disconnected_at": None if online else now - number,
        "keep_alive_s": 60,
        "clean_start": False,
        "session_expiry_s": 86_400,
        "subscriptions": 3,
        "inflight": number % 3,
        "queued": 0 if online else number % 900,
        "queued_bytes": 0 if online else number % 900 * 80,
        "dropped": 17 * number if number % 31 == 7 else 0,
        "unread_bytes": number % 5 * 400,
        "messages_in": number * 13,
        "messages_out": number * 3,
        "bytes_in": number * 1300,
        "bytes_out": number * 300,
        "idle_s": number % 60,
        "held": ["output"] if number % 97 == 1 else [],
    }


def _of_client(path: str) -> Any:
    if path.endswith("/subscriptions"):
        return _cut([_subscription("c", "plant/+/cmd"), _subscription("c", "fleet/#", "g")], {})
    if path.endswith("/events"):
        return _events({})
    if path.endswith(("/inflight", "/queue")):
        return _cut([{**RETAINED, "place": 4, "retain": False}], {})
    will = {"topic": "plant/7/state", "payload_bytes": 4, "qos": 1, "retain": True}
    limits = {"inflight_max": 100, "queue_messages_max": 10_000, "messages_per_s": 50}
    rates = {"messages_in": 4.2, "messages_out": 0.8, "bytes_in": 420.0, "bytes_out": 90.0}
    more = {"receive_maximum": 65_535, "packet_bytes_max": 0, "will": will, "stored": True}
    more |= {"created_at": 1.79e9, "session_expires_at": None}
    one = {**_client(7), "id": path.removeprefix("clients/").split("/")[0]}
    return {**one, **more, "limits": limits, "rates": rates}


def _overview(query: dict[str, str]) -> Any:
    at = time.time()
    rates = ("messages_in", "messages_out", "bytes_in", "bytes_out", "connects", "disconnects")
    scale = (12_000, 18_000, 1_800_000, 2_900_000, 14, 13)
    return {
        "at": at,
        "rates": {
            **{
                name: _wave(at, base, base / 6, 90) for name, base in zip(rates, scale, strict=True)
            },
            "drops": _wave(at, 2, 3, 50),
        },
        "clients": CLIENTS,
        "clients_online": 13_334,
        "sessions": CLIENTS,
        "subscriptions": 45_120,
        "retained": RETAINED_PLANTS * RETAINED_EACH,
        "queued_messages": 184_220,
        "dropped": {"queue full": 41_822, "slow reader": 1_207, "expired": 310, "too large": 4},
        "refused": {"publish, not authorized": 88, "connect, banned": 12},
        "held": {"output": 154, "store": 2},
        "ack_latency_ms": {"p50": 1.4, "p99": 11.8},
        "loop_late_ms": 0.8,
        "cpu": 0.412,
        "memory_bytes": 412_000_000,
        "store": {"state": "ok", "lag": 14},
        "health": "degraded",
        "why": ["the certificate of listener fleet ends in 6 days"],
        "uptime_s": 412_345,
        "version": "0.1.0",
        "build": "compiled",
        "durability": "commit",
        "node": "plant-a",
    }


def _history(query: dict[str, str]) -> Any:
    many = int(query.get("s", 3600)) // 5
    start = (time.time() // 5 - many) * 5
    scale = {
        "messages_in": (12_000, 2_000, 90),
        "messages_out": (18_000, 3_000, 70),
        "bytes_in": (1_800_000, 300_000, 90),
        "bytes_out": (2_900_000, 600_000, 70),
        "clients_online": (13_300, 40, 400),
        "connects": (14, 6, 30),
        "disconnects": (13, 6, 31),
        "drops": (2, 3, 50),
        "ack_latency_p50_ms": (1.4, 0.3, 40),
        "ack_latency_p99_ms": (11, 5, 60),
        "loop_late_ms": (0.8, 0.6, 20),
        "cpu": (0.41, 0.08, 90),
        "memory_bytes": (412_000_000, 9_000_000, 500),
        "queued_messages": (184_000, 9_000, 300),
    }
    series = {
        name: [_wave(start + step * 5, *shape) for step in range(many)]
        for name, shape in scale.items()
    }
    return {"step_s": 5, "start_at": start, "series": series}


def _tree(query: dict[str, str]) -> Any:
    prefix = query.get("prefix", "")
    if prefix == "":
        names = [(HOSTILE[0], 1, True), ("plant", RETAINED_PLANTS * RETAINED_EACH, False)]
    elif prefix == "plant":
        names = [(str(number), RETAINED_EACH, False) for number in range(RETAINED_PLANTS)]
    elif prefix.count("/") == 1:
        names = [(f"sensor{number}", 1, True) for number in range(RETAINED_EACH)]
    else:
        names = []
    items = [
        {
            "name": name,
            "topic": f"{prefix}/{name}" if prefix else name,
            "messages": many,
            "retained": has,
            "children": not has,
        }
        for name, many, has in names
    ]
    return _cut(items, query)


def _message(query: dict[str, str]) -> Any:
    payload = b'{"temperature": 21.5, "note": "<b>not bold</b>", "unit": "\xc2\xb0C"}'
    return {
        **RETAINED,
        "topic": query["topic"],
        "payload": payload.decode(),
        "payload_base64": base64.b64encode(payload).decode(),
        "properties": {"content_type": "application/json", "user_properties": [["site", "north"]]},
    }


def _events(query: dict[str, str]) -> Any:
    now = time.time() // 10 * 10
    found = [
        _fact(now - 4 - number, *more)
        for number, more in enumerate(
            [
                ("dropped", "pump-00012", "plant/7/cmd", "queue full"),
                ("connected", HOSTILE[0], "", ""),
                ("disconnected", "meter-00013", "", "keep alive"),
                ("refused", "pump-00016", HOSTILE[1], "denied by rule 12"),
            ]
            * 12
        )
    ]
    return _cut(found, query)


def _fact(at: float, kind: str, client: str, topic: str, reason: str) -> dict[str, Any]:
    found = {"at": at, "until": at, "kind": kind, "client": client, "topic": topic}
    found |= {"count": 1, "qos": None, "reason": reason, "reason_code": None, "publisher": ""}
    return {**found, "address": "", "received_at": None, "received_until": None}


def _why(query: dict[str, str]) -> Any:
    now = time.time()
    return {
        "sentence": f"published by app-3 at 12:00:01, QoS 1, matched `plant/+/cmd` of "
        f"{query['client']} granted QoS 1, queued (away since 11:58), delivered 12:03:10 with "
        "DUP, never acknowledged",
        "sentences": [],
        "facts": [
            _fact(now - 300, "disconnected", query["client"], "", "lost"),
            _fact(now - 200, "published", "app-3", "plant/7/cmd", ""),
            _fact(now - 199, "queued", query["client"], "plant/7/cmd", "away"),
            _fact(now - 20, "resent", query["client"], "plant/7/cmd", ""),
        ],
        "is_cut": False,
        "sees_back_to": now - 2_700,
        "advice": "look at the client: it got the message and never acknowledged it",
    }


RETAINED: Final = {
    "topic": "plant/7/cmd",
    "qos": 1,
    "payload_bytes": 120,
    "publisher": HOSTILE[1],
    "received_at": 1.79e9,
    "expires_at": None,
}


def _subscription(client: str, filter: str, group: str | None = None) -> dict[str, Any]:
    options = {"no_local": True, "retain_as_published": False, "retain_handling": 2}
    found = {"client": client, "filter": filter, "qos": 1, "group": group, "online": True}
    return found | options | {"identifier": 7, "permitted": group is None}


STREAM: Final = {
    "name": "telemetry",
    "epoch": "0f8d4a4e-7f2b-4c0f-8e63-1a2b3c4d5e6f",
    "settings": {"filter": "plant/+/temperature", "retain_s": 604_800, "max_bytes": 0},
    "schema": None,
    "starts": {"p0": 0, "p1": 120},
    "ends": {"p0": 812_344, "p1": 799_120},
    "bytes": 94_000_000,
    "segments": 8,
    "appended": 12_000,
    "refused": 0,
    "groups": ["billing"],
}
GROUP: Final = {
    "name": "billing",
    "members": {"worker1": ["p0"], "worker2": ["p1"]},
    "committed": {"p0": 812_000, "p1": 799_120},
    "lag": {"p0": 344, "p1": 0},
}
EXPLAINED: Final = {
    "is_allowed": False,
    "rule": "acl.toml:12",
    "text": "deny publish plant/#",
    "why": "rule 12 of acl.toml denies it",
    "roles": ["meter"],
}
RULE: Final = {
    "id": "file:12",
    "place": "acl.toml:12",
    "permit": "deny",
    "action": "publish",
    "topics": ["plant/#"],
    "users": [],
    "roles": ["meter"],
    "clients": [],
    "addresses": [],
    "anonymous": False,
}


def _user(name: str, *roles: str) -> dict[str, Any]:
    found = {"name": name, "source": "users", "kind": "password_file", "roles": list(roles)}
    return {**found, "has_password": True, "has_scram": False, "is_enabled": True}


def _items(*found: Any) -> Answer:
    return lambda query: {"items": list(found), "next": None, "total": len(found)}


def _line(text: str, level: str = "info") -> dict[str, Any]:
    return {"number": 1, "at": time.time() // 60 * 60, "level": level, "text": text, "fields": {}}


def _listener(name: str, host: str, port: int, scheme: str, path: str) -> dict[str, Any]:
    found: dict[str, Any] = {
        "name": name,
        "address": f"{host}:{port}",
        "host": host,
        "port": port,
        "path": "",
    }
    found |= {"url": f"{scheme}://{host}:{port}{path}", "scheme": scheme, "settings": {}}
    after = "gone" if scheme == "ws" else "same"
    found |= {"is_from_file": scheme != "ws", "after_restart": after}
    return {**found, "connections": 13_300, "max_connections": 0}


def _value(key: str, value: Any, origin: str, holds: str) -> dict[str, Any]:
    return {"key": key, "value": value, "origin": origin, "default": value, "holds": holds}


def _backup(name: str, state: str, **more: Any) -> dict[str, Any]:
    found: dict[str, Any] = {
        "id": name,
        "state": state,
        "directory": f"/var/lib/fleetmq/backups/{name}",
    }
    found |= {"started_at": 1.7e9, "finished_at": 0.0, "created_at": 0.0, "phase": "", "error": ""}
    return {**found, "bytes_done": 0, "bytes_total": 0, "bytes": 0, "files": 4, **more}


ANSWERS: Final[dict[str, Answer]] = {
    "me": lambda query: ME,
    "overview": _overview,
    "overview/history": _history,
    "subscriptions": _items(*(_subscription(f"c{n}", "a/#") for n in range(40))),
    "subscriptions/match": _items(
        _subscription("pump-00012", "plant/+/cmd"), _subscription(HOSTILE[0], "#", "g")
    ),
    "retained/tree": _tree,
    "retained/message": _message,
    "topics": _items(
        *(
            {
                "topic": f"plant/{n}/temperature",
                "messages_in": 9_000 - n,
                "rate_in": 90 - n / 2,
                "bytes_in": 90_000 - n,
                "last_at": time.time(),
            }
            for n in range(40)
        )
    ),
    "streams": lambda query: {"streams": [STREAM]},
    "streams/telemetry": lambda query: STREAM,
    "streams/telemetry/groups": lambda query: {"groups": [GROUP]},
    "streams/telemetry/messages": lambda query: {
        "items": []
        if "at" in query
        else [
            {
                "partition": n % 2,
                "offset": n,
                "received_at": time.time() - 50 + n,
                "topic": "plant/7/temperature",
                "client": HOSTILE[n % 6],
                "qos": 1,
                "payload_base64": base64.b64encode(b'{"t": %d}' % n).decode(),
            }
            for n in range(50)
        ],
        "next": {"p0": 25, "p1": 25},
    },
    "why": _why,
    "events": _events,
    "slow": _items(
        {
            "client": "pump-00012",
            "topic": "plant/7/cmd",
            "count": 7,
            "slowest_s": 4.2,
            "average_s": 1.1,
            "p50_s": 0.3,
            "p99_s": 3.5,
            "last_at": 1.79e9,
        }
    ),
    "traces": _items(
        {
            "n": 3,
            "client": "pump-7",
            "topic": "",
            "address": "",
            "payloads": True,
            "ends_at": time.time() + 200,
            "packets": 48,
            "packets_max": 1_000,
            "is_over": False,
        }
    ),
    "logs": _items(_line("pump-7 connected from 10.1.1.4"), _line("slow reader", "warning")),
    "log-level": lambda query: {"level": "info"},
    "users": _items(_user("ann", "admin"), _user("plant1")),
    "roles": _items({"role": "admin", "users": ["ann"]}),
    "rules": _items(RULE),
    "bans": lambda query: {
        "bans": [
            {
                "kind": "address",
                "value": "203.0.113.0/24",
                "until": time.time() + 7_000,
                "why": HOSTILE[0],
                "made_by": "hand",
            }
        ]
    },
    "health": lambda query: {
        "status": "degraded",
        "parts": [
            {"name": "store", "status": "ok", "why": "", "figures": {"lag_groups": 14}},
            {"name": "log", "status": "ok", "why": "", "figures": {"streams": 1}},
            {"name": "loop", "status": "ok", "why": "", "figures": {"late_s": 0.0008}},
            {"name": "disk", "status": "ok", "why": "", "figures": {"free_bytes": 81_000_000_000}},
            {
                "name": "certificates",
                "status": "degraded",
                "why": "that of fleet ends in 6 days",
                "figures": {"ends_in_s": 6 * 86_400},
            },
            {"name": "events", "status": "ok", "why": "", "figures": {"lost": 0}},
        ],
    },
    "listeners": _items(
        _listener("fleet", "0.0.0.0", 8883, "mqtts", ""),
        _listener("browsers", "127.0.0.1", 8083, "ws", "/mqtt"),
    ),
    "certificates": _items(
        {
            "listener": "fleet",
            "key": "cert",
            "file": "/etc/fleetmq/server.pem",
            "subject": "CN=broker",
            "issuer": "CN=fleet",
            "serial": "4f",
            "names": ["broker"],
            "begins_at": 1.7e9,
            "ends_at": time.time() + 6 * 86_400,
        }
    ),
    "config": lambda query: {
        "file": "fleet.toml",
        "values": [
            _value("durability", "commit", "default", ""),
            _value("queue_messages_max", 20_000, "fleet.toml:3", "for new messages"),
            _value("http", "127.0.0.1:8080", "--http", ""),
        ],
        "tables": [
            {
                "header": "[[listeners]] fleet",
                "place": "fleet.toml:7",
                "values": {"host": {"value": "0.0.0.0", "place": "fleet.toml:9"}},
            }
        ],
        "needs_restart": [],
    },
    "backups": _items(
        _backup("b2", "running", bytes_done=42, bytes_total=100, phase="streams"),
        _backup("b1", "done", finished_at=1.7e9 + 12, bytes=9_400_000),
    ),
}


if __name__ == "__main__":
    with FakeBroker(int(sys.argv[1])) as fake:
        sys.stdout.write(f"{fake.url}\n")
        sys.stdout.flush()
        threading.Event().wait()
