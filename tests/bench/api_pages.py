"""How long pages of the API take with many clients and topics, and what others wait meanwhile.

    python tests/bench/api_pages.py [--clients 15000] [--topics 100000] [--seconds 10] [--browser]

A broker of its own gets that many idle connections and retained messages. Then a client sends
PINGREQ in a loop and notes how long each answer takes: first alone, then while the API is asked for
one page after the other, as a page that is open asks (once a second), and as fast as it answers.

`--browser`: instead, a headless Chromium has the page open, at its overview and then at its list of
clients. Alone and with the page take turns, since the browser shares the processors: a page of
another broker, which has no clients, shows how much of the difference is that.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import resource
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from mqtt_broker.version import build_kind
from tests.core.peers import connect, publish
from tests.page.webdriver import Browser

PINGREQ: Final = b"\xc0\x00"
ROUNDS: Final = 5  # of the browser
PATHS: Final = {
    "clients": "/clients",
    "clients, 1,000 a page": "/clients?limit=1000",
    "clients by backlog": "/clients?sort=-backlog",
    "search of clients": "/clients?q=c1499",
    "retained, first page": "/retained",
    "search of retained": "/retained?q=/9999",
    "retained by filter": "/retained?filter=plant/7/%23",
    "tree of retained": "/retained/tree",
    "tree, one level": "/retained/tree?prefix=plant/7",
    "who would get a topic": "/subscriptions/match?topic=plant/7/cmd",
    "overview": "/overview",
    "history": "/overview/history",
}


@contextmanager
def broker(directory: str) -> Iterator[tuple[int, str]]:
    """A broker in memory; yields its port and the URL of its API."""
    command = [
        sys.executable, "-c", "from mqtt_broker.cli.main import main; raise SystemExit(main())",
        "broker", "--port", "0", "--http", "127.0.0.1:0", "--durability", "memory",
    ]  # fmt: skip
    environment = {
        **os.environ, "PYTHONPATH": str(Path.cwd()), "FLEETMQ_CONNECTIONS_MAX": "50000",
        "FLEETMQ_RETAINED_MESSAGES_MAX": "1000000", "FLEETMQ_LOG_LEVEL": "warning",
    }  # fmt: skip
    with subprocess.Popen(
        command, cwd=directory, env=environment, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            port = int(line.split("listens on ")[1].split(" ")[0].rsplit(":", 1)[1].strip("/,"))
            url = process.stdout.readline().split()[-1]
            yield port, url
        finally:
            process.terminate()


def enter(port: int, client_id: str) -> socket.socket:
    near = socket.create_connection(("127.0.0.1", port))
    near.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    near.sendall(connect(client_id))
    assert near.recv(200)[0] == 0x20
    return near


def fill(port: int, topics: int) -> None:
    """Retain so many messages, a thousand plants with as many sensors each."""
    near = enter(port, "filler")
    for start in range(0, topics, 500):
        near.sendall(
            b"".join(
                publish(f"plant/{n % 1000}/sensor/{n}", b"21.5", retain=True)
                for n in range(start, min(topics, start + 500))
            )
            + PINGREQ
        )
        assert near.recv(10) == b"\xd0\x00"
    near.close()


class Pinger:
    """A client that asks all the time, and notes how long each answer takes."""

    def __init__(self, port: int) -> None:
        self._near = enter(port, "pinger")
        self._times: list[float] = []

    def measure(self, seconds: float, meanwhile: Callable[[], object] | None) -> list[float]:
        self._times = []
        end = time.monotonic() + seconds
        worker = None
        if meanwhile is not None:
            worker = threading.Thread(target=_repeat, args=(meanwhile, end))
            worker.start()
        while time.monotonic() < end:
            begin = time.perf_counter()
            self._near.sendall(PINGREQ)
            self._near.recv(10)
            self._times.append((time.perf_counter() - begin) * 1e3)
            time.sleep(0.001)
        if worker is not None:
            worker.join()
        return self._times


def _repeat(act: Callable[[], object], end: float) -> None:
    while time.monotonic() < end:
        act()


class Api:
    """A connection to the API, and how long its answers took."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._http = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=60)

    def ask(self, path: str) -> tuple[float, Any]:
        begin = time.perf_counter()
        self._http.request("GET", f"/api/v1{path}")
        answer = self._http.getresponse()
        found = json.loads(answer.read())
        if answer.status == 429:
            time.sleep(1)
            return self.ask(path)
        assert answer.status == 200, found
        return (time.perf_counter() - begin) * 1e3, found


def percentile(times: list[float], part: float) -> float:
    return sorted(times)[min(len(times) - 1, int(len(times) * part))]


def percentiles(times: list[float]) -> str:
    picked = [percentile(times, part) for part in (0.5, 0.99, 0.999, 1.0)]
    return "  ".join(f"{value:8.2f}" for value in picked)


def time_pages(api: Api) -> None:
    """Print how long each page takes."""
    print(f"{'page':28}  {'total':>7}  {'first ms':>9}  {'median ms':>9}")
    for name, path in PATHS.items():
        time.sleep(1.1)  # until nothing of the last one is kept
        first, found = api.ask(path)
        again = []
        for _ in range(2):
            time.sleep(1.1)
            again.append(api.ask(path)[0])
        total = found.get("total", "")
        print(f"{name:28}  {total:>7}  {first:9.1f}  {statistics.median(again):9.1f}")


def time_others(api: Api, pinger: Pinger, seconds: float) -> None:
    """Print what others wait while the API is asked."""
    every = list(PATHS.values())

    def open_page() -> None:
        for path in ("/overview", "/clients?sort=-backlog", "/retained/tree"):
            api.ask(path)
        time.sleep(1)

    def hurry() -> None:
        for path in every:
            api.ask(path)

    for name, meanwhile in (
        ("alone", None), ("a page that is open", open_page), ("pages without a pause", hurry),
        ("alone again", None),
    ):  # fmt: skip
        print(f"{name:31}  {percentiles(pinger.measure(seconds, meanwhile))}", flush=True)


def time_browser(url: str, other: str, pinger: Pinger, seconds: float) -> None:
    """Print what others wait while a browser shows the page, and the ratios of the p99."""
    ratios: dict[str, list[float]] = {}
    with Browser() as browser:
        for _ in range(ROUNDS):
            browser.go("about:blank")
            alone = pinger.measure(seconds, None)
            print(f"{'an empty page':31}  {percentiles(alone)}", flush=True)
            for name, page in (
                ("another broker's overview", f"{other}/#/"),
                ("the overview", f"{url}/#/"), ("the list of clients", f"{url}/#/clients"),
            ):  # fmt: skip
                browser.go("about:blank")
                browser.go(page)
                browser.wait("document.querySelector('h1') !== null")
                time.sleep(2)
                found = pinger.measure(seconds, None)
                ratio = percentile(found, 0.99) / percentile(alone, 0.99)
                ratios.setdefault(name, []).append(ratio)
                print(f"{name:31}  {percentiles(found)}", flush=True)
    for name, each in ratios.items():
        print(f"{name}: p99 {statistics.median(each):.2f} of that with an empty page, the median")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--clients", type=int, default=15_000)
    parser.add_argument("--topics", type=int, default=100_000)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--browser", action="store_true", help="open the page in Chromium")
    args = parser.parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with tempfile.TemporaryDirectory() as directory, broker(directory) as (port, url):
        crowd = [enter(port, f"c{number}") for number in range(args.clients)]
        fill(port, args.topics)
        print(f"{build_kind()}; {len(crowd)} clients, {args.topics} retained topics")
        pinger = Pinger(port)
        heads = "  ".join(f"{head:>8}" for head in ("p50", "p99", "p99.9", "max"))
        if args.browser:
            with tempfile.TemporaryDirectory() as beside, broker(beside) as (_, other):
                print(f"PINGREQ, ms{'':20}  {heads}")
                time_browser(url, other, pinger, args.seconds)
        else:
            api = Api(url)
            time_pages(api)
            print(f"PINGREQ, ms{'':20}  {heads}")
            time_others(api, pinger, args.seconds)
        for near in crowd:
            near.close()


if __name__ == "__main__":
    main()
