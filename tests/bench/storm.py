"""A reconnect storm: everybody comes at once, and two who are connected talk meanwhile.

    python tests/bench/storm.py [CLIENTS] [--known | --clean-start]

Every client has a user name and a password of argon2id, as `fleetmq passwd` writes them. `--known`:
all use a password that was right before, as after an outage of the network. Printed: how long it
took until all were in, and the round trip of the two, before and during the storm.

`--clean-start`: no passwords; sessions are stored, in a data directory. They come twice, each time
with Clean Start 1: first as new clients, then over the sessions they left, whose end has to be on
disk before CONNACK.
"""

from __future__ import annotations

import pathlib
import resource
import select
import socket
import subprocess
import sys
import tempfile
import time
from typing import Final

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))

from mqtt_broker.codec import properties as prop
from mqtt_broker.codec.constants import V5
from mqtt_broker.codec.encode import encode_from_client, encode_publish
from mqtt_broker.codec.packets import Connect, Subscribe, SubscriptionRequest
from mqtt_broker.codec.properties import Properties
from mqtt_broker.security.authentication.password_hasher import hash_password

PATIENCE_S: Final = 120.0
FLEETMQ: Final = pathlib.Path(sys.executable).with_name("fleetmq")
CONFIG: Final = """\
durability = "memory"
http = "off"
log_level = "error"
connect_timeout_s = 120.0
port = 0
[[auth]]
type = "password_file"
file = "{users}"
[security]
remember_passwords_s = {remember}
"""
STORED: Final = """\
durability = "commit"
data_dir = "{folder}"
http = "off"
log_level = "error"
connect_timeout_s = 120.0
port = 0
"""
HOUR_S: Final = 3600


def main() -> int:
    arguments = [one for one in sys.argv[1:] if not one.startswith("--")]
    is_stored = "--clean-start" in sys.argv
    count = int(arguments[0]) if arguments else 15_000
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with tempfile.TemporaryDirectory() as folder:
        users = pathlib.Path(folder) / "users"
        users.write_text(f"fleet:{hash_password(b'secret')}\n")
        users.chmod(0o600)
        config = pathlib.Path(folder) / "fleetmq.toml"
        remember = 600 if "--known" in sys.argv else 0
        text = STORED.format(folder=folder) if is_stored else CONFIG
        config.write_text(text.format(users=users, remember=remember))
        command = [sys.executable, "-c", "from mqtt_broker.cli.main import main; main()"]
        broker = subprocess.Popen(
            [*command, "broker", "--config", str(config)], stdout=subprocess.PIPE, text=True
        )
        try:
            assert broker.stdout is not None
            port = int(broker.stdout.readline().split(" (")[0].rpartition(":")[2])
            for name in ("as new clients", "over their sessions") if is_stored else ("",):
                print(name)
                storm(port, count, HOUR_S if is_stored else 0)
        finally:
            broker.terminate()
            broker.wait()
    return 0


def enter(port: int, client_id: str) -> socket.socket:
    sock = socket.create_connection(("127.0.0.1", port))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.sendall(hello(client_id))
    assert sock.recv(100)[3] == 0
    return sock


def hello(client_id: str, expiry: int = 0) -> bytes:
    found = Properties({prop.SESSION_EXPIRY_INTERVAL: expiry} if expiry else {})
    packet = Connect(V5, client_id, True, 0, found, username="fleet", password=b"secret")
    return encode_from_client(V5, packet)


def storm(port: int, count: int, expiry: int) -> None:
    one, two = enter(port, "one"), enter(port, "two")
    request = Subscribe(1, [SubscriptionRequest("t", 0)])
    two.sendall(encode_from_client(V5, request))
    two.recv(100)
    message = encode_publish(V5, "t", b"x" * 16)

    def round_trip_ms() -> float:
        began = time.perf_counter()
        one.sendall(message)
        two.recv(100)
        return (time.perf_counter() - began) * 1e3

    calm = [round_trip_ms() for _ in range(500)]
    poll = select.epoll()
    crowd: dict[int, socket.socket] = {}
    began = time.perf_counter()
    for number in range(count):
        sock = socket.socket()
        sock.setblocking(False)
        # A source address holds 28,000 ports: a crowd has several, as fleets do.
        sock.bind((f"127.0.0.{2 + number % 8}", 0))
        sock.connect_ex(("127.0.0.1", port))
        crowd[sock.fileno()] = sock
        poll.register(sock, select.EPOLLOUT)
    waiting, entered, refused, number = count, 0, 0, 0
    busy: list[float] = []
    while waiting and time.perf_counter() - began < PATIENCE_S:
        for fd, event in poll.poll(0.002):
            if event & select.EPOLLOUT:
                crowd[fd].send(hello(f"c{number}", expiry))
                number += 1
                poll.modify(fd, select.EPOLLIN)
                continue
            try:
                answer = crowd[fd].recv(100)
            except OSError:
                answer = b""
            entered += answer[3:4] == b"\0"
            refused += answer[3:4] != b"\0"
            waiting -= 1
            poll.unregister(fd)
        busy.append(round_trip_ms())
    took_s = time.perf_counter() - began
    print(
        f"{count} clients: {entered} in, {refused} refused, {waiting} waiting after {took_s:.1f} s"
    )
    for name, found in (("before", calm), ("during", busy)):
        ranked = sorted(found)
        p50, p99 = ranked[len(ranked) // 2], ranked[int(len(ranked) * 0.99)]
        print(f"round trip {name}: p50 {p50:.2f} ms, p99 {p99:.2f} ms, longest {ranked[-1]:.2f} ms")
    for sock in (*crowd.values(), one, two):
        sock.close()


if __name__ == "__main__":
    sys.exit(main())
