"""`fleetmq ctl top` and `trace`: what they show, and how they end."""

from __future__ import annotations

import json
import os
import pty
import select
import subprocess
import sys
import time
from typing import Any

import pytest

from mqtt_broker.cli.ctl_live import packet_line, screen
from mqtt_broker.cli.ctl_output import text_width
from tests.cli.fake_api import Answer, Ctl, FakeApi, problem

PATIENCE_S = 60.0
OVERVIEW: dict[str, Any] = {
    "version": "1.0", "uptime_s": 200, "health": "degraded", "why": ["disk: 5 % free"],
    "rates": {"messages_in": 1_500.5, "messages_out": 3, "drops": 0, "bytes_in": 1e6},
    "clients_online": 15_000, "sessions": 15_001, "subscriptions": 7, "retained": 8,
    "queued_messages": 9, "ack_latency_ms": {"p50": 0.5, "p99": 2}, "loop_late_ms": 1,
    "store": {"lag": 2}, "cpu": 0.25, "memory_bytes": 123_000_000,
}  # fmt: skip
CLIENT = {"id": "日本\x1b", "messages_in": 5, "queued": 0}


def test_a_screen_fits(ctl: Ctl) -> None:
    found = {"overview": OVERVIEW, "clients": [CLIENT] * 50}
    for width, lines in ((80, 24), (40, 12), (200, 60)):
        shown = screen(found, width, lines, has_colours=False)
        assert len(shown) <= lines and all(text_width(line) <= width for line in shown)
    text = "\n".join(screen(found, 120, 24, has_colours=False))
    for part in ("health degraded: disk: 5 % free", "in 1,500/s", "online 15,000", "p99 2.0 ms",
                 "cpu 25 %", "123 MB", "日本\\x1b", "up 3m20s"):  # fmt: skip
        assert part in text, part
    coloured = screen(found, 120, 24, has_colours=True)
    assert "health \x1b[33mdegraded\x1b[0m" in coloured[0]


def test_an_overview_of_which_much_is_missing() -> None:
    assert screen({"overview": {}, "clients": []}, 80, 24, has_colours=False)


def test_into_a_pipe_it_is_shown_once(ctl: Ctl) -> None:
    ctl.api.answers["GET /overview"] = OVERVIEW
    ctl.api.pages("/clients", [CLIENT])
    code, out, _ = ctl("top", "--sort", "drops")
    assert code == 0 and out.count("FleetMQ 1.0") == 1 and "\x1b" not in out
    assert ctl.api.last().query["sort"] == "-drops"
    code, out, _ = ctl("top", "--json", "--count", "2", "--interval", "1s")
    assert [json.loads(line)["overview"] for line in out.splitlines()] == [OVERVIEW] * 2


@pytest.mark.parametrize("key", [b"q", b"\x03"])
def test_a_key_ends_it_on_a_terminal(api: FakeApi, key: bytes) -> None:
    api.answers["GET /overview"] = OVERVIEW
    api.pages("/clients", [CLIENT])
    master, slave = pty.openpty()
    command = [sys.executable, "-m", "mqtt_broker.cli", "ctl", "top", "--api", api.url]
    command[1:3] = ["-c", "import sys; from mqtt_broker.cli.main import main; sys.exit(main())"]
    environment = os.environ | {"TERM": "xterm", "NO_COLOR": ""}
    with subprocess.Popen(
        command, stdin=slave, stdout=slave, stderr=slave, env=environment, start_new_session=True,
        preexec_fn=_take_terminal,
    ) as process:  # fmt: skip
        os.close(slave)
        shown = _read_until(master, b"online 15,000")
        assert shown.startswith(b"\x1b[H\x1b[2J")
        os.write(master, key)
        assert process.wait(PATIENCE_S) == (0 if key == b"q" else 130)
    os.close(master)


def _take_terminal() -> None:
    import fcntl
    import termios

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def _read_until(file: int, wanted: bytes) -> bytes:
    found = b""
    until = time.monotonic() + PATIENCE_S
    while wanted not in found:
        ready, _, _ = select.select([file], [], [], max(0.0, until - time.monotonic()))
        assert ready, found
        found += os.read(file, 4096)
    return found


def test_a_trace_prints_packets_until_the_broker_ends_it(ctl: Ctl) -> None:
    packets = [
        {"at": 1_700_000_000.25, "client": "a\n", "direction": "in", "packet": "PUBLISH",
         "topic": "t"},
        {"at": 1_700_000_001.0, "lost": 7},
    ]  # fmt: skip
    lines = "\n".join(map(json.dumps, packets)) + "\n\n"
    ctl.api.answers |= {
        "POST /traces": {"n": 3},
        "GET /traces/3/packets": Answer(200, lines.encode(), "application/x-ndjson"),
        "DELETE /traces/3": problem(404, "it has ended"),
    }
    code, out, err = ctl("trace", "client", "a", "--payloads", "--for", "5m", "--max", "9")
    assert (code, err) == (0, "")
    assert out.splitlines() == [
        "22:13:20.250 a\\n in PUBLISH topic=t",
        "22:13:21.000 7 packets were not shown: this reader is too slow",
    ]
    assert ctl.api.asked[0].body == {
        "client": "a", "payloads": True, "for_s": 300.0, "packets_max": 9,
    }  # fmt: skip
    assert [one.method for one in ctl.api.asked] == ["POST", "GET", "DELETE"]
    out = ctl("trace", "topic", "a/#", "--json")[1]
    assert [json.loads(line) for line in out.splitlines()] == packets


def test_traces_are_stopped(ctl: Ctl) -> None:
    ctl.api.answers["DELETE /traces/3"] = {}
    assert ctl("trace", "stop", "3")[0] == 0
    assert ctl("trace", "stop", "4")[0] == 1
    assert ctl("trace", "client", "a", "--for", "x")[0] == 2
    ctl.api.answers["POST /traces"] = problem(409, "8 traces run: end one")
    assert ctl("trace", "client", "a")[::2] == (1, "fleetmq ctl: 8 traces run: end one\n")


def test_packets_without_a_time() -> None:
    assert packet_line({"packet": "PINGREQ", "dup": False}) == "PINGREQ"
