"""What TLS and WebSocket cost the broker: the same load through each, in one run of one broker.

    python tests/bench/transports.py [--command .venv/bin/fleetmq] [--rounds 3]
        [--messages 5000000] [--pings 2000]

Publishers send windows of messages to a subscriber each and wait until it has them all; then
one message at a time goes to and fro. The generator is this process; trust the broker's CPU
time a message, which the kernel counts in hundredths of a second, and the ratios to plain TCP:
the default makes each round last about one. WebSocket clients send each PUBLISH in a frame of
its own, as clients do.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import re
import selectors
import socket
import ssl
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any, Final

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))

from tests.core.peers import connect, publish, subscribe
from tests.server.transports import Files, WebSocketRaw, masked, over_tls

PAIRS: Final = 50
WINDOW: Final = 100
PAYLOAD: Final = bytes(16)
KINDS: Final = ("plain", "tls", "ws", "wss")
CONFIG: Final = """\
durability = "memory"
http = "off"
sys_interval_s = 0
log_level = "warning"
[[listeners]]
port = 0
[[listeners]]
port = 0
tls = {{ cert = "{cert}", key = "{key}" }}
[[listeners]]
port = 0
websocket = true
[[listeners]]
port = 0
websocket = true
tls = {{ cert = "{cert}", key = "{key}" }}
"""


class Client:
    def __init__(self, kind: str, port: int, ca: str, client_id: str) -> None:
        if kind in ("tls", "wss"):
            sock = over_tls(port, ca).sock
        else:
            sock = socket.create_connection(("127.0.0.1", port))
        self.is_web = kind in ("ws", "wss")
        if self.is_web:
            WebSocketRaw(sock)
        self.sock = sock
        self.got = 0  # bytes of MQTT
        self._left = 0  # of a frame
        self._head = b""
        sock.settimeout(10)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.send(connect(client_id))
        self.wait(1)

    def wrap(self, data: bytes) -> bytes:
        return masked(2, data) if self.is_web else data

    def send(self, data: bytes) -> None:
        self.sock.sendall(self.wrap(data))

    def wait(self, at_least: int) -> None:
        while self.got < at_least:
            self.read()
        self.got = 0

    def read(self) -> None:
        data = self.sock.recv(262_144)
        if not data:
            raise EOFError
        while isinstance(self.sock, ssl.SSLSocket) and (size := self.sock.pending()):
            data += self.sock.recv(size)
        self.got += self._payload(data) if self.is_web else len(data)

    def _payload(self, data: bytes) -> int:
        """Bytes of the frames' payloads; the broker's frames have no mask."""
        found = min(self._left, len(data))
        self._left -= found
        data = self._head + data[found:]
        self._head = b""
        at = 0
        while at < len(data):
            if len(data) - at < 4:
                self._head = data[at:]
                break
            size = data[at + 1]
            at += 2
            if size == 126:
                size = int.from_bytes(data[at : at + 2], "big")
                at += 2
            have = min(size, len(data) - at)
            found += have
            self._left = size - have
            at += size
        return found


def cpu_s(pid: int) -> float:
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def flood(kind: str, port: int, ca: str, pid: int, messages: int) -> dict[str, float]:
    pairs = []
    selector = selectors.DefaultSelector()
    for number in range(PAIRS):
        subscriber = Client(kind, port, ca, f"s{number}")
        subscriber.send(subscribe(5, f"bench/{number}"))
        subscriber.wait(1)
        publisher = Client(kind, port, ca, f"p{number}")
        packet = publish(f"bench/{number}", PAYLOAD)
        window = b"".join(publisher.wrap(packet) for _ in range(WINDOW))
        pairs.append((publisher, subscriber, window, len(packet) * WINDOW))
        selector.register(subscriber.sock, selectors.EVENT_READ, pairs[-1])
    rounds = messages // (PAIRS * WINDOW)
    left = dict.fromkeys(range(PAIRS), rounds)
    start, used = time.perf_counter(), cpu_s(pid)
    for publisher, _, window, _ in pairs:
        publisher.sock.sendall(window)
    running = PAIRS
    while running:
        for key, _ in selector.select():
            publisher, subscriber, window, size = key.data
            subscriber.read()
            if subscriber.got >= size:
                subscriber.got -= size
                number = pairs.index(key.data)
                left[number] -= 1
                if left[number]:
                    publisher.sock.sendall(window)
                else:
                    running -= 1
    took, used = time.perf_counter() - start, cpu_s(pid) - used
    done = rounds * PAIRS * WINDOW
    for publisher, subscriber, _, _ in pairs:
        publisher.sock.close()
        subscriber.sock.close()
    return {"rate": done / took, "cpu_us": used / done * 1e6}


def ping_pong(kind: str, port: int, ca: str, messages: int) -> float:
    """The median time to and fro, in microseconds."""
    subscriber = Client(kind, port, ca, "s")
    subscriber.send(subscribe(5, "bench"))
    subscriber.wait(1)
    publisher = Client(kind, port, ca, "p")
    packet = publish("bench", PAYLOAD)
    data = publisher.wrap(packet)
    took = []
    for _ in range(messages):
        start = time.perf_counter()
        publisher.sock.sendall(data)
        subscriber.wait(len(packet))
        took.append(time.perf_counter() - start)
    publisher.sock.close()
    subscriber.sock.close()
    return statistics.median(took) * 1e6


def main() -> int:
    parser = argparse.ArgumentParser(allow_abbrev=False, description=__doc__)
    parser.add_argument("--command", default=str(pathlib.Path(sys.executable).with_name("fleetmq")))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--messages", type=int, default=5_000_000)
    parser.add_argument("--pings", type=int, default=2_000)
    args = parser.parse_args()
    samples: dict[str, list[dict[str, float]]] = {kind: [] for kind in KINDS}
    with tempfile.TemporaryDirectory() as folder:
        files = Files(pathlib.Path(folder))
        config = pathlib.Path(folder) / "broker.toml"
        config.write_text(CONFIG.format(cert=files.cert, key=files.key))
        command = [args.command, "broker", "--config", str(config)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as broker:
            assert broker.stdout is not None
            ports = [int(port) for port in re.findall(r":(\d+)", broker.stdout.readline())]
            try:
                for _ in range(args.rounds):
                    for kind, port in zip(KINDS, ports, strict=True):
                        found = flood(kind, port, files.ca, broker.pid, args.messages)
                        found["ping_us"] = ping_pong(kind, port, files.ca, args.pings)
                        samples[kind].append(found)
            finally:
                broker.terminate()
    print_table(samples)
    return 0


def print_table(samples: dict[str, list[dict[str, float]]]) -> None:
    def best(kind: str, figure: str, choose: Any) -> float:
        return float(choose(one[figure] for one in samples[kind]))

    print(f"{'':6} {'msgs/s':>9} {'cpu us':>7} {'ping us':>8}   of plain: rate, cpu, ping")
    for kind in KINDS:
        rate, cpu = best(kind, "rate", max), best(kind, "cpu_us", min)
        ping = best(kind, "ping_us", min)
        print(
            f"{kind:6} {rate:9.0f} {cpu:7.3f} {ping:8.1f}   "
            f"{rate / best('plain', 'rate', max):.2f} {cpu / best('plain', 'cpu_us', min):.2f} "
            f"{ping / best('plain', 'ping_us', min):.2f}"
        )
    print(json.dumps(samples))


if __name__ == "__main__":
    sys.exit(main())
