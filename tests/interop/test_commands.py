"""`fleetmq pub` and `fleetmq sub` against our own broker."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator

import pytest

from mqtt_broker.core.interfaces.access import OpenAccess
from mqtt_broker.testing import ThreadedBroker
from tests.interop.commands import ended, run, start

VERSIONS = ("31", "311", "5")


def subscribed(broker: ThreadedBroker, *argv: str) -> subprocess.Popen[bytes]:
    """A running `fleetmq sub` whose SUBACK has come."""
    process = start("fleetmq sub", "-d", *argv, broker=broker)
    assert process.stderr is not None
    while (line := process.stderr.readline()) != b"received SUBACK\n":
        assert line, "it ended before it was subscribed"
    return process


@pytest.mark.parametrize("version", VERSIONS)
def test_messages_go_round(broker: ThreadedBroker, version: str) -> None:
    sub = subscribed(broker, "-V", version, "-t", "a/+", "-q", "2", "-C", "3", "-F", "%t %q %p")
    for qos in ("0", "1", "2"):
        argv = ("-V", version, "-t", f"a/{qos}", "-q", qos, "-m", "hé")
        assert run("fleetmq pub", *argv, broker=broker) == (0, b"", b"")
    assert ended(sub)[:2] == (0, "a/0 0 hé\na/1 1 hé\na/2 2 hé\n".encode())


def test_json(broker: ThreadedBroker) -> None:
    publication = ("-t", "kept", "-q", "1", "-r", "-m", "21.5")
    properties = (
        ("content-type", "text"), ("user-property", "k", "v"), ("response-topic", "answers"),
    )  # fmt: skip
    options = [word for one in properties for word in ("-D", "publish", *one)]
    assert run("fleetmq pub", *publication, *options, broker=broker)[0] == 0
    code, out, err = run(
        "fleetmq sub", "-t", "kept", "-q", "1", "--json", "-C", "1", "-W", "10", broker=broker
    )
    assert (code, err) == (0, b"")
    found = json.loads(out)
    assert {key: found[key] for key in ("topic", "qos", "retain", "payload", "properties")} == {
        "topic": "kept",
        "qos": 1,
        "retain": True,
        "payload": "21.5",
        "properties": {
            "content-type": "text",
            "user-properties": [["k", "v"]],
            "response-topic": "answers",
        },
    }


@pytest.mark.parametrize("options", [(), ("-v",), ("-F", "%p")])
def test_a_terminal_is_not_at_the_mercy_of_publishers(
    broker: ThreadedBroker, options: tuple[str, ...]
) -> None:
    hostile = "\x1b]0;owned\x07\x1b[2J"
    assert run("fleetmq pub", "-t", "kept", "-r", "-m", hostile, broker=broker)[0] == 0
    argv = ("-t", "kept", "-C", "1", "-W", "10", *options)
    assert hostile.encode() in run("fleetmq sub", *argv, broker=broker)[1]  # a pipe has all of it
    ours, terminal = os.openpty()
    try:
        process = start("fleetmq sub", *argv, broker=broker, stdout=terminal)
        assert ended(process)[0] == 0
        shown = os.read(ours, 1000)
    finally:
        os.close(ours)
        os.close(terminal)
    assert b"\\x1b]0;owned\\x07" in shown and b"\x1b" not in shown and b"\x07" not in shown


def test_a_count_ends_it_and_the_rest_waits_for_the_session(broker: ThreadedBroker) -> None:
    session = ("-i", "logger", "-c", "-q", "1", "-t", "log")
    assert run("fleetmq sub", *session, "-E", broker=broker)[0] == 0
    lines = b"1\n2\n3\n"
    assert run("fleetmq pub", "-t", "log", "-q", "1", "-l", broker=broker, given=lines)[0] == 0
    assert run("fleetmq sub", *session, "-C", "1", broker=broker)[:2] == (0, b"1\n")
    assert run("fleetmq sub", *session, "-C", "2", broker=broker)[:2] == (0, b"2\n3\n")


def test_time_that_runs_out(broker: ThreadedBroker) -> None:
    code, out, err = run("fleetmq sub", "-t", "silent", "-C", "1", "-W", "0.3", broker=broker)
    assert (code, out, err) == (27, b"", b"fleetmq sub: timed out\n")


@pytest.mark.parametrize("text", ["a/#/b", "a#", "a+/b", ""])
def test_a_malformed_filter_is_named(broker: ThreadedBroker, text: str) -> None:
    code, out, err = run("fleetmq sub", "-t", text, broker=broker)
    assert (code, out) == (2, b"")
    assert err.count(b"\n") == 1
    assert err.startswith(f"fleetmq sub: -t {text!r}: ".encode())


def test_a_filter_the_broker_cannot_take_is_one_line() -> None:
    with ThreadedBroker(topic_levels_max=10) as broker:
        code, out, err = run("fleetmq sub", "-t", "a/" * 10, "-W", "10", broker=broker)
    assert (code, out) == (1, b"")
    assert err.count(b"\n") == 1
    assert b"Malformed Packet" in err and b"0x81" in err


class _Guarded(OpenAccess):
    """`secret/#` is nobody's."""

    guards_topics = True

    def may_publish(self, client_id: str, username: str | None, topic: str) -> bool:
        return not topic.startswith("secret/")

    def may_subscribe(self, client_id: str, username: str | None, text: str, qos: int) -> bool:
        return not text.startswith("secret/")


@pytest.fixture
def guarded() -> Iterator[ThreadedBroker]:
    with ThreadedBroker(access=_Guarded()) as running:
        yield running


def test_what_the_broker_refuses_is_named(guarded: ThreadedBroker) -> None:
    assert run("fleetmq sub", "-t", "secret/#", "-W", "10", broker=guarded) == (
        1,
        b"",
        b"fleetmq sub: not subscribed to secret/#: Not authorized (0x87)\n",
    )
    assert run("fleetmq pub", "-t", "secret/x", "-q", "1", "-m", "x", broker=guarded) == (
        1,
        b"",
        b"fleetmq pub: not published to secret/x: Not authorized (0x87)\n",
    )


def test_an_old_client_is_told_of_a_refused_filter(guarded: ThreadedBroker) -> None:
    code, _, err = run("fleetmq sub", "-V", "311", "-t", "secret/#", "-W", "10", broker=guarded)
    assert code == 1
    assert err.startswith(b"fleetmq sub: not subscribed to secret/#: ")
    assert err.count(b"\n") == 1


def test_the_brokers_end_is_told() -> None:
    broker = ThreadedBroker().start()
    try:
        sub = subscribed(broker, "-t", "a")
    finally:
        broker.stop()
    assert sub.stderr is not None
    while b"connecting again in" not in (line := sub.stderr.readline()):
        assert line
    assert b"Server shutting down (0x8B)" in line
    sub.terminate()
    code, out, err = ended(sub)
    assert (code, out) == (0, b"")
    assert b"Traceback" not in err
