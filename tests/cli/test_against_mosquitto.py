"""`fleetmq pub` and `sub` as people run them, against somebody else's broker."""

from __future__ import annotations

import getpass
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests import forked

ROOT = Path(__file__).parents[2]
MOSQUITTO = shutil.which("mosquitto", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
FLEETMQ = [sys.executable, "-c", "from mqtt_broker.cli.main import main; raise SystemExit(main())"]
PATIENCE_S = 120.0

pytestmark = pytest.mark.skipif(MOSQUITTO is None, reason="mosquitto is not installed")


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """A mosquitto on a port of its own; user `known`, ACL that hides `secret/#`."""
    assert MOSQUITTO is not None
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        chosen: int = probe.getsockname()[1]
    home = tmp_path_factory.mktemp("mosquitto")
    (home / "acl").write_text("topic readwrite open/#\ntopic readwrite keep/#\n")
    (home / "conf").write_text(
        f"listener {chosen} 127.0.0.1\nallow_anonymous true\nacl_file {home}/acl\n"
        "max_packet_size 100000\nmax_queued_messages 0\n"
        f"user {getpass.getuser()}\n"  # or root becomes nobody
    )
    broker = subprocess.Popen(
        [MOSQUITTO, "-c", str(home / "conf")],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        until(lambda: answers(chosen))
        yield chosen
    finally:
        broker.terminate()
        broker.wait(PATIENCE_S)


def answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True


def until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < deadline, "it takes too long"
        time.sleep(0.01)


def start(port: int, *argv: str) -> subprocess.Popen[bytes]:
    command, *rest = argv
    return forked.Popen(
        [*FLEETMQ, command, "-h", "127.0.0.1", "-p", str(port), *rest],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def run(port: int, *argv: str, given: bytes = b"") -> tuple[int, bytes, bytes]:
    with start(port, *argv) as process:
        out, err = process.communicate(given, PATIENCE_S)
        return process.returncode, out, err


def subscribed(port: int, *argv: str) -> subprocess.Popen[bytes]:
    """A running `fleetmq sub` whose SUBACK has come."""
    process = start(port, "sub", "-d", *argv)
    assert process.stderr is not None
    while (line := process.stderr.readline()) != b"received SUBACK\n":
        assert line, "it ended before it was subscribed"
    return process


def ended(process: subprocess.Popen[bytes]) -> tuple[int, bytes, bytes]:
    with process:
        out, err = process.communicate(timeout=PATIENCE_S)
        return process.returncode, out, err


@pytest.mark.parametrize("version", ["31", "311", "5"])
@pytest.mark.parametrize("qos", ["0", "1", "2"])
def test_a_message_goes_round(port: int, version: str, qos: str) -> None:
    topic = f"open/round/{version}/{qos}"
    sub = subscribed(port, "-V", version, "-t", topic, "-q", qos, "-C", "1", "-F", "%t %q %p")
    assert run(port, "pub", "-V", version, "-t", topic, "-q", qos, "-m", "hé")[0] == 0
    code, out, _ = ended(sub)
    assert (code, out) == (0, f"{topic} {qos} hé\n".encode())


def test_lines_of_stdin_arrive_in_order(port: int) -> None:
    lines = [b"line %d" % number for number in range(5_000)]
    sub = subscribed(port, "-t", "open/lines", "-q", "2", "-C", str(len(lines)))
    code, _, err = run(port, "pub", "-t", "open/lines", "-q", "2", "-l", given=b"\n".join(lines))
    assert (code, err) == (0, b"")
    assert ended(sub)[1].split(b"\n") == [*lines, b""]


def test_a_file_on_stdin_can_be_waited_for(port: int, tmp_path: Path) -> None:
    (tmp_path / "in").write_bytes(b"1\n2\n")
    sub = subscribed(port, "-t", "open/file", "-C", "2", "-N")
    with (tmp_path / "in").open("rb") as given:
        forked.run(
            [*FLEETMQ, "pub", "-p", str(port), "-t", "open/file", "-l"],
            cwd=ROOT, stdin=given, check=True, timeout=PATIENCE_S,
        )  # fmt: skip
    assert ended(sub)[1] == b"12"


def test_payloads_from_elsewhere(port: int, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"\x00file\xff")
    sub = subscribed(port, "-t", "open/bytes", "-C", "5", "-F", "%x")
    topic = ("pub", "-t", "open/bytes")
    assert run(port, *topic, "-f", str(tmp_path / "f"))[0] == 0
    assert run(port, *topic, "-s", given=b"a\nb")[0] == 0
    assert run(port, *topic, "-n")[0] == 0
    assert run(port, *topic, "-m", "2", "--repeat", "2", "--repeat-delay", "0.01")[0] == 0
    assert ended(sub)[1] == b"0066696c65ff\n610a62\n\n32\n32\n"


def test_json_with_properties(port: int) -> None:
    sub = subscribed(
        port, "-t", "open/json", "-q", "1", "-C", "1", "--json",
        "-D", "subscribe", "subscription-identifier", "9",
    )  # fmt: skip
    run(
        port, "pub", "-t", "open/json", "-q", "1", "-m", "x",
        "-D", "publish", "user-property", "k", "v", "-D", "publish", "content-type", "text",
    )  # fmt: skip
    found = json.loads(ended(sub)[1])
    assert found["properties"] == {
        "user-properties": [["k", "v"]],
        "content-type": "text",
        "subscription-identifier": [9],
    }


def test_retained_messages(port: int) -> None:
    for name in ("a", "b", "c"):
        assert run(port, "pub", "-t", f"keep/{name}", "-m", name, "-r", "-q", "1")[0] == 0
    everything = ("sub", "-t", "keep/#", "-v")
    code, out, _ = run(port, *everything, "-C", "2", "-T", "keep/b")
    assert (code, sorted(out.split(b"\n"))) == (0, [b"", b"keep/a a", b"keep/c c"])
    assert run(port, *everything, "-R", "-W", "0.3")[:2] == (27, b"")
    assert run(port, *everything, "--remove-retained", "-T", "keep/c", "-C", "2")[0] == 0
    code, out, _ = run(port, *everything, "--remove-retained", "-W", "0.5")
    assert (code, out) == (27, b"keep/c c\n")
    assert run(port, *everything, "-W", "0.3")[:2] == (27, b"")


def test_retained_only_ends_at_the_first_fresh_message(port: int) -> None:
    run(port, "pub", "-t", "open/only", "-m", "old", "-r", "-q", "1")
    sub = subscribed(port, "-t", "open/only", "--retained-only")
    run(port, "pub", "-t", "open/only", "-m", "new")
    assert ended(sub)[:2] == (0, b"old\n")
    run(port, "pub", "-t", "open/only", "-n", "-r", "-q", "1")


@pytest.mark.parametrize("qos", ["1", "2"])
def test_what_count_leaves_stays_with_the_broker(port: int, qos: str) -> None:
    session = ("-c", "-i", f"lasting-{qos}", "-t", f"open/lasting/{qos}", "-q", qos)
    assert run(port, "sub", *session, "-E")[0] == 0
    lines = b"1\n2\n3\n4\n5"
    run(port, "pub", "-t", f"open/lasting/{qos}", "-q", qos, "-l", given=lines)
    assert run(port, "sub", *session, "-C", "2")[:2] == (0, b"1\n2\n")
    assert run(port, "sub", *session, "-C", "3")[:2] == (0, b"3\n4\n5\n")


def test_unsubscribe(port: int) -> None:
    session = ("-c", "-i", "leaver")
    assert run(port, "sub", *session, "-t", "open/left", "-q", "1", "-E")[0] == 0
    assert run(port, "sub", *session, "-U", "open/left", "-E")[0] == 0
    run(port, "pub", "-t", "open/left", "-q", "1", "-m", "x")
    assert run(port, "sub", *session, "-t", "open/other", "-W", "0.3")[:2] == (27, b"")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_with_disconnect_and_without_the_will(
    port: int, number: signal.Signals
) -> None:
    will = f"open/will/{number.name}"
    watcher = subscribed(port, "-t", will, "-W", "1")
    sub = subscribed(port, "-t", "open/idle", "--will-topic", will, "--will-payload", "gone")
    sub.send_signal(number)
    code, out, err = ended(sub)
    assert (code, out) == (0, b"")
    assert err == f"fleetmq sub: {number.name}, stopping\nsending DISCONNECT\n".encode()
    assert ended(watcher)[:2] == (27, b"")


def test_a_killed_client_leaves_its_will(port: int) -> None:
    watcher = subscribed(port, "-t", "open/last", "-C", "1")
    sub = subscribed(port, "-t", "open/idle", "--will-topic", "open/last", "--will-payload", "bye")
    sub.kill()
    ended(sub)
    assert ended(watcher)[:2] == (0, b"bye\n")


def test_a_disconnect_carries_properties(port: int) -> None:
    code, _, err = run(port, "sub", "-t", "open/x", "-D", "disconnect", "reason-string", "over",
                       "-E")  # fmt: skip
    assert (code, err) == (0, b"")


def test_a_reader_that_has_enough(port: int) -> None:
    sub = subscribed(port, "-t", "open/pipe")
    assert sub.stdout is not None
    sub.stdout.close()
    run(port, "pub", "-t", "open/pipe", "-m", "x", "-q", "1")
    with sub:
        assert sub.wait(PATIENCE_S) == 0
        assert sub.stderr is not None
        assert b"Traceback" not in sub.stderr.read()


def test_refusals_are_named(port: int) -> None:
    code, _, err = run(port, "pub", "-t", "secret/x", "-q", "1", "-m", "x")
    assert (code, err) == (
        1,
        b"fleetmq pub: not published to secret/x: Not authorized (0x87)\n",
    )
    code, _, err = run(port, "pub", "-t", "open/x", "-s", given=b"x" * 100_001)
    assert code == 1
    assert b"maximum of 100000" in err


def test_nobody_listens() -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))  # bound and not listening: nobody else gets the port
        port = held.getsockname()[1]
        code, _, err = run(port, "pub", "-t", "a", "-m", "x")
    assert code == 1
    assert err.decode() == (
        f"fleetmq pub: cannot connect to 127.0.0.1:{port}: Connection refused; "
        "is a broker listening there?\n"
    )


def test_a_broker_that_hangs_is_given_up(port: int) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        code, _, err = run(silent.getsockname()[1], "pub", "-t", "a", "-m", "x", "-W", "0.3")
    assert (code, err) == (27, b"fleetmq pub: timed out\n")
