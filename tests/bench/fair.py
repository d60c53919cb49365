"""How long a bystander waits for PINGRESP while somebody asks for as much as the limits allow.

    python tests/bench/fair.py [ATTACK ...]

A broker with default limits; an attacker in a process of its own; and a bystander that sends a
PINGREQ every 10 ms, whether the one before was answered or not. Printed for each attack: how many
were sent, how long the answers took, and whether that is within the goal; then how long the broker
computed until the answer, which is the same on a machine that does something else as well.
"""

from __future__ import annotations

import multiprocessing
import pathlib
import resource
import select
import socket
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator
from itertools import count, product
from multiprocessing.synchronize import Event
from typing import Final

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))

from mqtt_broker.codec.constants import V311
from mqtt_broker.codec.encode import (
    encode_connect,
    encode_publish,
    encode_subscribe,
    encode_unsubscribe,
)
from mqtt_broker.codec.packets import Connect, Subscribe, SubscriptionRequest, Unsubscribe

FLEETMQ: Final = pathlib.Path(sys.executable).with_name("fleetmq")
GOAL_P99_MS: Final = 100.0
GOAL_WORST_MS: Final = 250.0
ATTACK_S: Final = 10.0
PAUSE_S: Final = 0.01  # between two PINGREQs
PATIENCE_S: Final = 120.0
CROWD: Final = 15_000
RETAINED: Final = 500_000
PINGREQ: Final = b"\xc0\x00"
CONFIG: Final = 'data_dir = "{folder}"\nhttp = "off"\nlog_level = "error"\nport = 0\n'

# An attack prepares, then yields, and goes on when the bystander is there.
Attack = Callable[[int], Iterator[None]]
ATTACKS: Final[dict[str, Attack]] = {}


def attack(make: Attack) -> Attack:
    """Register an attack under its function's name; its docstring says what it is."""
    ATTACKS[make.__name__.replace("_", "-")] = make
    return make


def connect(port: int, client_id: str, source: str = "127.0.0.1") -> socket.socket:
    sock = socket.socket()
    sock.bind((source, 0))
    sock.connect(("127.0.0.1", port))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.sendall(encode_connect(Connect(V311, client_id, True, 0)))
    assert sock.recv(4) == b"\x20\x02\0\0", f"{client_id} was not let in"
    return sock


def subscribe(sock: socket.socket, *filters: str, qos: int = 0) -> None:
    """Subscribe to these, and wait for SUBACK."""
    sock.sendall(
        encode_subscribe(V311, Subscribe(1, [SubscriptionRequest(f, qos) for f in filters]))
    )
    settle(sock)


def settle(sock: socket.socket) -> None:
    """Wait until everything that was sent has been acted upon."""
    sock.sendall(PINGREQ)
    tail = b""
    while not tail.endswith(b"\xd0\x00"):
        data = sock.recv(1 << 18)
        assert data, "the broker closed the connection"
        tail = (tail + data)[-2:]


def attack_ends() -> float:
    return time.monotonic() + ATTACK_S


# The attacks.


@attack
def exponential_filters(port: int) -> Iterator[None]:
    """8,192 filters {a,+}^13 of one client, and QoS 0 to new topics."""
    sock = connect(port, "attacker")
    filters = ["/".join(levels) for levels in product("a+", repeat=13)]
    for at in range(0, len(filters), 512):
        subscribe(sock, *filters[at : at + 512])
    yield
    ends = attack_ends()
    numbers = count()
    while time.monotonic() < ends:
        topics = ["/".join(["a"] * 12 + [str(next(numbers))]) for _ in range(2_000)]
        sock.sendall(b"".join([encode_publish(V311, topic, b"x") for topic in topics]))
        settle(sock)


@attack
def retained_messages(port: int) -> Iterator[None]:
    """Twenty SUBSCRIBEs to # over 500,000 retained messages."""
    sock = connect(port, "attacker")
    for at in range(0, RETAINED, 5_000):
        found = [
            encode_publish(V311, f"r/{n % 997}/{n}", b"x", retain=True)
            for n in range(at, at + 5_000)
        ]
        sock.sendall(b"".join(found))
        settle(sock)
    readers = [connect(port, f"reader {number}") for number in range(20)]
    yield
    request = encode_subscribe(V311, Subscribe(1, [SubscriptionRequest("#", 0)]))
    for reader in readers:
        reader.sendall(request)
    drain(readers, attack_ends() + ATTACK_S, idle_s=3.0)


@attack
def readers_who_do_not_read(port: int) -> Iterator[None]:
    """75 readers on topics of their own, none of which reads."""
    readers = [connect(port, f"reader {number}") for number in range(75)]
    for number, reader in enumerate(readers):
        subscribe(reader, f"t/{number}")
    sock = connect(port, "attacker")
    yield
    ends = attack_ends()
    chunk = b"".join([encode_publish(V311, f"t/{n}", bytes(10_000)) for n in range(75)])
    while time.monotonic() < ends:
        sock.sendall(chunk)
        settle(sock)


@attack
def mass_disconnect(port: int) -> Iterator[None]:
    """15,000 clients with a subscription each go at once, twice."""
    for _ in range(2):
        crowd = enter_crowd(port, "+/{number}")
        yield
        for sock in crowd:
            sock.close()
        time.sleep(3)


@attack
def large_fan_out(port: int) -> Iterator[None]:
    """Messages at QoS 0 and 1 to 15,000 subscribers."""
    crowd = enter_crowd(port, "t", qos=1)
    sock = connect(port, "attacker")
    yield
    ends = attack_ends()
    numbers = count(1)
    while time.monotonic() < ends:
        qos_1 = encode_publish(V311, "t", bytes(100), qos=1, packet_id=1 + next(numbers) % 60_000)
        sock.sendall(encode_publish(V311, "t", bytes(100)) + qos_1)
        drain(crowd, time.monotonic() + 0.5)


@attack
def large_subscribe(port: int) -> Iterator[None]:
    """SUBSCRIBE and UNSUBSCRIBE with 10,000 filters."""
    sock = connect(port, "attacker")
    filters = [f"{number}/+/#" for number in range(10_000)]
    remove = encode_unsubscribe(V311, Unsubscribe(1, filters))
    yield
    ends = attack_ends()
    while time.monotonic() < ends:
        subscribe(sock, *filters)
        sock.sendall(remove)
        settle(sock)


@attack
def pings(port: int) -> Iterator[None]:
    """PINGREQ as fast as the broker answers, by ten clients."""
    crowd = [connect(port, f"attacker {number}") for number in range(10)]
    yield
    ends = attack_ends()
    while time.monotonic() < ends:
        for sock in crowd:
            sock.sendall(PINGREQ * 20_000)
        drain(crowd, time.monotonic() + 0.2)


def enter_crowd(port: int, text: str, qos: int = 0) -> list[socket.socket]:
    """Connect very many; a source address holds 28,000 ports, so they have several."""
    crowd = []
    for number in range(CROWD):
        sock = connect(port, f"c{number}", f"127.0.0.{2 + number % 8}")
        filters = [SubscriptionRequest(text.format(number=number), qos)]
        sock.sendall(encode_subscribe(V311, Subscribe(1, filters)))
        crowd.append(sock)
    drain(crowd, time.monotonic() + 2)
    return crowd


def drain(socks: list[socket.socket], ends: float, idle_s: float = 0.1) -> None:
    """Read, and throw away, until nothing more comes for a while or the time is over."""
    poll = select.epoll()
    by_fd = {sock.fileno(): sock for sock in socks}
    for fd in by_fd:
        poll.register(fd, select.EPOLLIN)
    while time.monotonic() < ends:
        events = poll.poll(idle_s, 4096)
        if not events:
            break
        for fd, _ in events:
            if not by_fd[fd].recv(1 << 18):
                poll.unregister(fd)
    poll.close()


# The bystander.


def attack_from(name: str, port: int, is_ready: Event, may_go: Event) -> None:
    raise_descriptors()
    steps = ATTACKS[name](port)
    for _ in steps:
        is_ready.set()
        assert may_go.wait(PATIENCE_S)


def busy_ms(pid: int) -> float:
    """Return how long the main thread of a process has computed."""
    return int(pathlib.Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e6


def waits_ms(
    port: int, pid: int, attacker: multiprocessing.Process, may_go: Event
) -> list[tuple[float, float]]:
    """Ask until the attacker has ended; return how long each answer took, and how long the broker
    computed meanwhile.
    """
    sock = connect(port, "bystander")
    sock.setblocking(False)
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    asked: deque[tuple[float, float]] = deque()
    waits: list[tuple[float, float]] = []
    may_go.set()
    due = time.monotonic()
    while attacker.is_alive() or asked:
        now = time.monotonic()
        if attacker.is_alive() and now >= due:
            sock.send(PINGREQ)
            asked.append((now, busy_ms(pid)))
            due = max(due + PAUSE_S, now - 1)
        if poll.poll(max(0.0, due - time.monotonic()) * 1e3):
            answers = len(sock.recv(4096)) // 2
            assert answers, "the broker closed the bystander's connection"
            now, busy = time.monotonic(), busy_ms(pid)
            for _ in range(answers):
                at, busy_then = asked.popleft()
                waits.append(((now - at) * 1e3, busy - busy_then))
        elif asked and now - asked[0][0] > PATIENCE_S:
            raise TimeoutError(f"no answer within {PATIENCE_S:.0f} s")
    sock.close()
    return waits


def measure(name: str) -> bool:
    """Measure one attack, and tell whether it is within the goal."""
    with tempfile.TemporaryDirectory() as folder:
        config = pathlib.Path(folder) / "fleetmq.toml"
        config.write_text(CONFIG.format(folder=folder))
        broker = subprocess.Popen(
            [FLEETMQ, "broker", "--config", config], stdout=subprocess.PIPE, text=True
        )
        is_ready, may_go = multiprocessing.Event(), multiprocessing.Event()
        try:
            assert broker.stdout is not None
            port = int(broker.stdout.readline().split(" (")[0].rpartition(":")[2])
            attacker = multiprocessing.Process(
                target=attack_from, args=(name, port, is_ready, may_go), daemon=True
            )
            attacker.start()
            assert is_ready.wait(PATIENCE_S), f"{name} was not ready in time"
            found = waits_ms(port, broker.pid, attacker, may_go)
        finally:
            broker.terminate()
            broker.wait()
    took, computed = ([each[i] for each in found] for i in (0, 1))
    is_good = percentile(took, 0.99) <= GOAL_P99_MS and max(took) <= GOAL_WORST_MS
    said = "" if is_good else "  over the goal"
    print(f"{name:24} {len(found):6}{columns(took)}{columns(computed)}{said}", flush=True)
    return is_good


def percentile(values: list[float], part: float) -> float:
    return sorted(values)[int(len(values) * part)]


def columns(values: list[float]) -> str:
    return "".join(
        f" {value:9.1f}"
        for value in (percentile(values, 0.5), percentile(values, 0.99), max(values))
    )


def raise_descriptors() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def main() -> int:
    raise_descriptors()
    names = sys.argv[1:] or list(ATTACKS)
    unknown = [name for name in names if name not in ATTACKS]
    if unknown:
        sys.exit(f"unknown attack {unknown[0]!r}: expected {', '.join(ATTACKS)}")
    head = f"{'p50 ms':>10}{'p99 ms':>10}{'worst ms':>10}"
    print(f"{'':24} {'':6}{'answered after':>30}{'computed until then':>30}")
    print(f"{'attack':24} {'asked':>6}{head}{head}")
    print(f"{'the goal':24} {'':6} {'':9} {GOAL_P99_MS:9.1f} {GOAL_WORST_MS:9.1f}", flush=True)
    missed = [name for name in names if not measure(name)]
    return int(len(missed) > 0)


if __name__ == "__main__":
    sys.exit(main())
