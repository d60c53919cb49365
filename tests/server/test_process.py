"""`fleetmq broker` as a process: its start, its signals, its addresses, its limits."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import time
from pathlib import Path

import pytest

from mqtt_broker.codec.constants import V5, V311
from mqtt_broker.codec.decode import Decoder
from mqtt_broker.codec.packets import Publish
from tests.core.peers import connect, disconnect, publish, subscribe, unsubscribe
from tests.server.broker_process import PATIENCE_S, Process, refused
from tests.server.running import Raw

pytest_plugins = ["pytester"]
# So long those may take to leave who do not; a test that ends has not waited for it.
FOREVER = "import mqtt_broker.server.server as server; server.STOP_S = 3600.0; "
PING = b"\xc0\x00"
PONG = b"\xd0\x00"


def received(raw: Raw) -> Publish:
    """The next packet, which is a PUBLISH."""
    (packet,) = Decoder(from_server=True, version=V5).feed(raw.packet())
    assert isinstance(packet, Publish), packet
    return packet


def payload(raw: Raw) -> bytes:
    (one,) = received(raw).payloads()
    return one


def watch(raw: Raw, *filters: str) -> None:
    raw.send(subscribe(V5, *filters))
    assert raw.packet()[0] == 0x90


# The end.


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_and_everybody_is_told(number: signal.Signals) -> None:
    with Process("--port", "0") as broker, contextlib.ExitStack() as stack:
        clients = [stack.enter_context(broker.client(f"c{n}")) for n in range(20)]
        old = stack.enter_context(broker.client("old", V311))
        broker.process.send_signal(number)
        for client in clients:
            assert client.rest().hex() == "e0018b"
        assert old.rest() == b""
        stack.close()
        assert broker.process.wait(PATIENCE_S) == 0
        assert broker.process.stdout is not None
        assert broker.process.stdout.read() == "FleetMQ stops\n"


def test_a_signal_as_soon_as_it_listens() -> None:
    """A supervisor that stops it at once gets an orderly end as well."""
    with Process("--port", "0", before=FOREVER) as broker:
        broker.end()


def test_nobody_can_come_in_while_it_ends() -> None:
    with Process("--port", "0") as broker, broker.client("c") as client:
        broker.process.send_signal(signal.SIGTERM)
        assert client.rest().hex() == "e0018b"
        with pytest.raises(OSError):
            broker.raw()


def test_a_client_that_does_not_listen_holds_nothing_up() -> None:
    with Process("--port", "0") as broker, broker.client("deaf"):
        broker.end()


# What a start costs.

LIBRARIES = {"aiohttp", "websockets", "sqlalchemy", "pyarrow", "jsonschema_rs", "prometheus_client"}
SAY_LIBRARIES = (
    "import atexit, sys; atexit.register(lambda: print("
    f"'imported:', *sorted({LIBRARIES!r} & set(sys.modules)), file=sys.stderr)); "
)


@pytest.mark.parametrize(
    ("durability", "more", "needed"),
    [
        ("memory", "", []),
        ("memory", "websocket = true", ["aiohttp", "websockets"]),
        ("commit", "", ["sqlalchemy"]),
    ],
)
def test_it_imports_the_libraries_that_it_needs_alone(
    tmp_path: Path, durability: str, more: str, needed: list[str]
) -> None:
    """aiohttp alone takes as long as all the rest of a start."""
    (tmp_path / "f.toml").write_text(f"[[listeners]]\nport = 0\n{more}\n")
    argv = ("--config", str(tmp_path / "f.toml"), "--data-dir", str(tmp_path / "data"))
    settings = {"FLEETMQ_DURABILITY": durability}
    with Process(*argv, env=settings, before=SAY_LIBRARIES) as broker:
        broker.end()
        assert broker.wait_for("imported:").split()[1:] == needed


# Addresses.


def test_the_greeting_names_every_address(tmp_path: Path) -> None:
    path = str(tmp_path / "mqtt.sock")
    (tmp_path / "f.toml").write_text(
        f'[[listeners]]\nport = 0\n[[listeners]]\nport = 0\n[[listeners]]\npath = "{path}"\n'
    )
    with Process("--config", str(tmp_path / "f.toml")) as broker:
        first, second, third = broker.addresses
        assert first != second and third == path
        assert broker.greeting.endswith("(durability memory)\n")
        with broker.client("s", address=first) as sub:
            watch(sub, "a")
            for address in (first, second, third):
                with broker.client("p", address=address) as publisher:
                    publisher.send(publish("a", b"x"))
                    assert payload(sub) == b"x"
        broker.end()
    assert not os.path.exists(path)


def test_a_unix_socket_left_behind_is_replaced(tmp_path: Path) -> None:
    path = str(tmp_path / "mqtt.sock")
    with Process("--unix-socket", path) as broker:
        assert broker.addresses == [path]
        broker.process.kill()
        broker.process.wait()
    assert os.path.exists(path)
    with Process("--unix-socket", path) as broker, broker.client("c") as client:
        client.send(PING)
        assert client.packet() == PONG


def test_ipv6_loopback() -> None:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError as error:
        pytest.skip(f"no IPv6 loopback: {error}")
    with Process("--host", "::1", "--port", "0") as broker, broker.client("c") as client:
        assert broker.addresses[0][0] == "::1"
        client.send(PING)
        assert client.packet() == PONG


def test_a_port_in_use_is_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, out, err = refused("--port", str(port))
    assert (code, out) == (2, "")
    words = f"--port: cannot listen on 127.0.0.1:{port}: Address already in use; end the program"
    assert err == f"fleetmq broker: {words} that listens there, or choose another port\n"


IMPOSSIBLE = {
    "an unresolvable name": 'host = "nowhere.invalid"\nallow_anonymous = true\n',
    "a name that is none": 'host = "a..b"\nallow_anonymous = true\n',
    "another machine's": 'host = "192.0.2.1"\nport = 0\nallow_anonymous = true\n',
    "no such folder": 'unix_socket = "/nonexistent/mqtt.sock"\n',
    "a folder": 'unix_socket = "/"\n',
    "a path too long": f'unix_socket = "/tmp/{"a" * 200}"\n',
    "a path that is none": 'unix_socket = "a\\u0000b"\n',
    "a time beyond all time": f"port = 0\nretained_sweep_s = {10**400}\n",
}


@pytest.mark.parametrize("what", list(IMPOSSIBLE))
def test_what_cannot_be_had_is_one_line(what: str, tmp_path: Path) -> None:
    path = tmp_path / "f.toml"
    path.write_text(IMPOSSIBLE[what])
    code, out, err = refused("--config", str(path))
    assert (code, out) == (2, "")
    assert err.startswith("fleetmq broker: ") and err.count("\n") == 1


def test_a_mistake_in_the_configuration_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "f.toml"
    path.write_text("max_keepalives = 1\n")
    assert refused("--config", str(path)) == (
        2,
        "",
        f"fleetmq broker: {path}:1: unknown key max_keepalives; did you mean max_keepalive?\n",
    )


def test_the_port_can_be_had_again_at_once() -> None:
    with Process("--port", "0") as broker, broker.client("c"):
        port = broker.addresses[0][1]
        broker.end()
    with Process("--port", str(port)) as broker, broker.client("c") as client:
        client.send(PING)
        assert client.packet() == PONG


# Limits.


def test_it_recovers_when_descriptors_run_out() -> None:
    """Those who wait are let in as others leave, and nobody is lost."""
    with (
        Process("--port", "0", files=40, before=FOREVER) as broker,
        contextlib.ExitStack() as stack,
    ):
        raws = [stack.enter_context(broker.raw()) for _ in range(80)]
        for number, raw in enumerate(raws):
            raw.send(connect(f"c{number}"))
        broker.wait_for("cannot accept")
        for raw in raws:  # accepted in this order
            assert raw.packet()[3] == 0
            raw.sock.close()
        with broker.client("c") as client:
            client.send(PING)
            assert client.packet() == PONG
        broker.end()


def test_it_ends_in_order_while_descriptors_are_out() -> None:
    with Process("--port", "0", files=40) as broker, contextlib.ExitStack() as stack:
        raws = [stack.enter_context(broker.raw()) for _ in range(80)]
        broker.wait_for("cannot accept")
        broker.process.send_signal(signal.SIGTERM)
        assert raws[0].rest() == b""
        stack.close()
        assert broker.process.wait(PATIENCE_S) == 0


def test_it_takes_as_many_descriptors_as_it_may() -> None:
    with Process("--port", "0") as broker:
        limits = Path(f"/proc/{broker.process.pid}/limits")
        if not limits.exists():
            pytest.skip("no /proc")
        found = re.search(r"^Max open files +(\d+) +(\d+)", limits.read_text(), re.MULTILINE)
        assert found is not None
        assert found[1] == found[2]


# Settings that only a running broker shows.


@pytest.mark.parametrize(("argv", "seconds"), [((), 77), (("--max-keepalive", "78"), 78)])
def test_the_environment_and_the_options_reach_the_clients(
    argv: tuple[str, ...], seconds: int
) -> None:
    settings = {"FLEETMQ_MAX_KEEPALIVE": "77"}
    with Process("--port", "0", *argv, env=settings) as broker, broker.raw() as client:
        client.send(connect("c"))
        assert bytes((0x13, 0, seconds)) in client.packet()  # Server Keep Alive


@pytest.mark.parametrize("levels", ["1", "3", "5"])
def test_few_levels_leave_the_brokers_own_topics_alone(levels: str) -> None:
    settings = {"FLEETMQ_TOPIC_LEVELS_MAX": levels, "FLEETMQ_CLIENT_EVENTS": "1"}
    with Process("--port", "0", env=settings) as broker, broker.client("c") as client:
        client.send(PING)
        assert client.packet() == PONG


STRATEGY = """
class Last:
    def __init__(self, rng):
        pass

    def choose(self, members, topic, publisher):
        return len(members) - 1
"""


def test_a_strategy_of_the_users_own(tmp_path: Path) -> None:
    (tmp_path / "crew_choice.py").write_text(STRATEGY)
    settings = {"PYTHONPATH": str(tmp_path), "FLEETMQ_SHARED_STRATEGY": "crew_choice:Last"}
    with Process("--port", "0", env=settings) as broker, contextlib.ExitStack() as stack:
        crew = [stack.enter_context(broker.client(f"w{number}")) for number in range(3)]
        for worker in crew:
            watch(worker, "$share/crew/jobs")
        publisher = stack.enter_context(broker.client("p"))
        publisher.send(*(publish("jobs", b"%d" % number) for number in range(20)))
        assert [payload(crew[-1]) for _ in range(20)] == [b"%d" % n for n in range(20)]
        for worker in crew[:-1]:
            worker.send(PING)
            assert worker.packet() == PONG  # and nothing in front of it


@pytest.mark.parametrize(
    ("source", "name"),
    [
        (STRATEGY, "crew_choice:Lost"),
        ("Last = 7", "crew_choice:Last"),
        ("raise ValueError('not today')", "crew_choice:Last"),
        ("def broken(:", "crew_choice:Last"),
        (STRATEGY, "no_such_module:Last"),
    ],
)
def test_a_strategy_that_cannot_be_had_is_one_line(tmp_path: Path, source: str, name: str) -> None:
    (tmp_path / "crew_choice.py").write_text(source)
    settings = {"PYTHONPATH": str(tmp_path), "FLEETMQ_SHARED_STRATEGY": name}
    code, out, err = refused("--check", env=settings)
    assert (code, out) == (2, "")
    assert err.startswith(f"fleetmq broker: shared_strategy {name}: ")
    assert err.count("\n") == 1


def test_client_events() -> None:
    root = "$SYS/broker/clients/"
    with (
        Process("--port", "0", env={"FLEETMQ_CLIENT_EVENTS": "yes"}) as broker,
        broker.client("watcher") as watcher,
    ):
        watch(watcher, f"{root}+/connected", f"{root}+/disconnected", f"{root}+/unsubscribed")
        with broker.client("pump/7+#%") as client:
            client.send(subscribe(V5, "a", "b"), unsubscribe(V5, "a"), disconnect())
            client.rest()
        topics, bodies = [], []
        for _ in range(3):
            event = received(watcher)
            topics.append(event.topic.removeprefix(f"{root}pump%2F7%2B%23%25/"))
            bodies.append(json.loads(b"".join(event.payloads())))
        assert topics == ["connected", "unsubscribed", "disconnected"]
        assert bodies[0]["version"] == 5 and bodies[0]["peer"].startswith("127.0.0.1:")
        assert bodies[1]["filters"] == ["a"]
        assert bodies[2]["reason"] == "disconnected"
        assert all(abs(body["at"] - time.time()) < 60 for body in bodies)


def test_no_client_events_unless_they_are_asked_for() -> None:
    with Process("--port", "0") as broker, broker.client("watcher") as watcher:
        watch(watcher, "$SYS/broker/clients/+/connected")
        with broker.client("c") as client:
            client.send(PING)
            assert client.packet() == PONG
        watcher.send(PING)
        assert watcher.packet() == PONG
