"""Clients that take as much of one kind of memory as the broker gives them, and keep it.

An attack runs in a thread of its own until `stop`. It tells `filled` when it was refused more, and
from then on keeps what it has.
"""

from __future__ import annotations

import itertools
import selectors
import socket
import threading
import time
from collections.abc import Callable
from typing import Final

from mqtt_broker.codec import properties as prop
from mqtt_broker.codec.constants import V5, V311
from mqtt_broker.codec.decode import Decoder
from mqtt_broker.codec.encode import encode_from_client, encode_publish
from mqtt_broker.codec.packets import Ack, Connack, Connect, Packet, Pingresp, Publish, Suback, Will
from mqtt_broker.codec.properties import Properties
from mqtt_broker.core.limits.settings import Settings
from tests.core.peers import connect, subscribe

PATIENCE_S: Final = 120.0
HOUR_S: Final = 3_600
_KERNEL_BYTES: Final = 6 << 20  # that a connection may hold outside the broker
REFUSALS: Final = 10  # in a row: then there is no more


class Gone(Exception):
    """The broker closed the connection."""


class Client:
    """A client of blocking calls."""

    def __init__(self, port: int, data: bytes) -> None:
        self.sock = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)
        self._decoder = Decoder(from_server=True, version=V5)
        self._packets: list[Packet] = []
        self.send(data)

    def send(self, data: bytes) -> None:
        try:
            self.sock.sendall(data)
        except OSError as error:
            raise Gone from error

    def receive(self) -> Packet:
        """Return the next packet."""
        while not self._packets:
            try:
                data = self.sock.recv(1 << 18)
            except OSError as error:
                raise Gone from error
            if not data:
                raise Gone
            self._packets += self._decoder.feed(data)  # type: ignore[arg-type]
        return self._packets.pop(0)

    def receive_acks(self, count: int) -> int:
        """Wait for so many acknowledgements; return how many of them are refusals."""
        refused = 0
        while count > 0:
            packet = self.receive()
            if isinstance(packet, Ack):
                count -= len(packet.packet_ids)
                refused += len(packet.packet_ids) if packet.reason >= 0x80 else 0
        return refused

    def is_open(self) -> bool:
        """Tell whether the broker has not closed it; what came is thrown away."""
        self.sock.settimeout(0)
        try:
            while self.sock.recv(1 << 18):
                pass
        except BlockingIOError:
            self.sock.settimeout(PATIENCE_S)
            return True
        except OSError:
            pass
        return False

    def close(self) -> None:
        self.sock.close()


class Attacks:
    """The attacks on one broker."""

    def __init__(self, port: int, settings: Settings) -> None:
        self._port = port
        self._settings = settings
        self._connect_bytes = min(settings.connect_bytes_max, settings.packet_bytes_max) - 60_000
        self.stop = threading.Event()
        self.filled: dict[str, threading.Event] = {}
        self.errors: list[str] = []
        self._numbers = itertools.count()
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        """Begin all attacks."""
        for attack in (
            self.incomplete_connects,
            self.incomplete_packets,
            self.aliases,
            self.wills,
            self.subscriptions,
            self.retained,
            self.queues,
            self.windows,
            self.outboxes,
            self.routes,
            self.exchanges,
        ):
            self.filled[attack.__name__] = threading.Event()
            thread = threading.Thread(target=self._run, args=(attack,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def join(self) -> None:
        """End all attacks."""
        self.stop.set()
        for thread in self._threads:
            thread.join(PATIENCE_S)

    def _run(self, attack: Callable[[threading.Event], None]) -> None:
        try:
            attack(self.filled[attack.__name__])
        except Gone:
            if not self.stop.is_set():
                self.errors.append(f"{attack.__name__}: the broker closed a connection it needs")
        except Exception as error:
            if not self.stop.is_set():
                self.errors.append(f"{attack.__name__}: {error!r}")

    def _enter(self, **fields: object) -> Client:
        """Connect a client of a new id."""
        data = connect(f"hostile-{next(self._numbers)}", **fields)  # type: ignore[arg-type]
        client = Client(self._port, data)
        answer = client.receive()
        assert isinstance(answer, Connack) and answer.reason == 0, answer
        return client

    # Those that send in part.

    def incomplete_connects(self, filled: threading.Event) -> None:
        """Keep parts of CONNECTs, and come again when they are thrown out."""
        whole = self._connect_with_will(self._connect_bytes)
        self._keep_parts(
            lambda: Client(self._port, whole[:-1]), len(whole), "connecting_bytes_max", filled
        )

    def incomplete_packets(self, filled: threading.Event) -> None:
        """Keep parts of PUBLISH packets."""
        size = self._settings.packet_bytes_max - 100
        part = encode_publish(V5, "incomplete", bytes(size))[:-1]

        def come() -> Client:
            client = self._enter()
            client.send(part)
            return client

        self._keep_parts(come, size, "incomplete_bytes_max", filled)

    def _keep_parts(
        self, come: Callable[[], Client], size: int, limit: str, filled: threading.Event
    ) -> None:
        count = getattr(self._settings, limit) // size + 10
        found: list[Client] = []
        while not self.stop.wait(0.5):
            before = len(found)
            for client in found:
                if not client.is_open():
                    client.close()
            found = [client for client in found if client.sock.fileno() >= 0]
            if len(found) < before:
                filled.set()
            while len(found) < count and not self.stop.is_set():
                try:
                    found.append(come())
                except Gone:
                    filled.set()
                    break

    def aliases(self, filled: threading.Event) -> None:
        """Give long names to aliases, by as many clients as it takes."""
        clients: list[Client] = []
        for count in (10, 4, 2, 1):
            refused = 0
            while refused < REFUSALS and not self.stop.is_set():
                client = self._enter()
                try:
                    for alias in range(1, count + 1):
                        found = Properties({prop.TOPIC_ALIAS: alias})
                        topic = f"alias/{alias}/" + "t" * 60_000
                        client.send(encode_publish(V5, topic, b"", properties=found))
                    client.send(b"\xc0\x00")
                    is_kept = isinstance(client.receive(), Pingresp)  # else it is DISCONNECT
                except Gone:
                    is_kept = False
                if is_kept:
                    clients.append(client)
                else:
                    client.close()
                refused = 0 if is_kept else refused + 1
        filled.set()
        self.stop.wait()

    # Those that leave something behind.

    def _connect_with_will(self, size: int) -> bytes:
        payload = min(size, 60_000)
        pairs = [("k" * 1_000, "v" * 1_000)] * ((size - payload) // 2_005)
        found = Properties({prop.WILL_DELAY_INTERVAL: HOUR_S})
        if pairs:
            found[prop.USER_PROPERTY] = pairs
        number = next(self._numbers)
        will = Will(f"will/{number}", bytes(payload), properties=found)
        expiry = Properties({prop.SESSION_EXPIRY_INTERVAL: HOUR_S})
        return encode_from_client(V5, Connect(V5, f"will-{number}", True, 0, expiry, will))

    def wills(self, filled: threading.Event) -> None:
        """Leave sessions with wills behind: large ones, and smaller ones where they do not fit."""
        for size in (self._connect_bytes, 60_000, 5_000):
            refused = 0
            while refused < REFUSALS and not self.stop.is_set():
                client = Client(self._port, self._connect_with_will(size))
                try:
                    answer = client.receive()
                    refused = (
                        0 if isinstance(answer, Connack) and not answer.reason else refused + 1
                    )
                except Gone:
                    refused += 1
                client.close()
        filled.set()

    def subscriptions(self, filled: threading.Event) -> None:
        """Subscribe to deep filters with wildcards and to long ones, by many clients."""
        levels = self._settings.topic_levels_max
        clients = []
        refused = 0
        while refused < REFUSALS and not self.stop.is_set():
            client = self._enter()
            clients.append(client)
            taken = 0
            for number in itertools.count():
                head = f"s{next(self._numbers)}"
                deep = [f"{head}-{one}/" + "+/" * (levels - 2) + "x" for one in range(10)]
                long = [f"{head}-{one}/" + "y" * 65_000 for one in range(3)]
                client.send(subscribe(V5, *deep) + subscribe(V5, *long))
                answers = [client.receive(), client.receive()]
                codes = [code for one in answers if isinstance(one, Suback) for code in one.reasons]
                taken += sum(code < 0x80 for code in codes)
                if all(code >= 0x80 for code in codes) or self.stop.is_set() or number > 10_000:
                    break
            refused = 0 if taken else refused + 1
        filled.set()
        self.stop.wait()

    def retained(self, filled: threading.Event) -> None:
        """Retain messages under deep and long names."""
        levels = self._settings.topic_levels_max
        client = self._enter()
        refused = 0
        sizes = itertools.cycle([100, 100, 100, 1_000, 30_000, 60_000])
        while refused < REFUSALS and not self.stop.is_set():
            batch = []
            for packet_id in range(1, 21):
                number = next(self._numbers)
                size = next(sizes)
                name = f"r{number}/" + f"{number}/" * (levels - 2)
                name = name[:2_000] + "z" * size
                batch.append(
                    encode_publish(V5, name, bytes(size), qos=1, retain=True, packet_id=packet_id)
                )
            client.send(b"".join(batch))
            all_refused = client.receive_acks(len(batch)) == len(batch)
            refused = refused + 1 if all_refused else 0
        filled.set()
        self.stop.wait()

    def queues(self, filled: threading.Event) -> None:
        """Let queues of clients that are away grow, until messages are dropped."""
        settings = self._settings
        count = settings.queue_total_bytes_max // settings.queue_bytes_max + 4
        for number in range(count):
            away = self._enter(expiry=HOUR_S)
            away.send(subscribe(V5, f"queue/{number}", qos=1))
            away.receive()
            away.close()
        self._publish("queue", count, settings.queue_total_bytes_max * 5 // 4, filled)

    # Those that do not read, or do not acknowledge.

    def windows(self, filled: threading.Event) -> None:
        """Read messages and acknowledge none of them."""
        settings = self._settings
        count = 4 * settings.inflight_total_bytes_max // settings.inflight_bytes_max + 24
        poll = selectors.DefaultSelector()
        for number in range(count):
            client = self._enter()
            client.send(subscribe(V5, f"window/{number}", qos=1))
            client.receive()
            poll.register(client.sock, selectors.EVENT_READ, client)
        threading.Thread(target=self._drain, args=(poll,), daemon=True).start()
        self._publish("window", count, settings.inflight_total_bytes_max * 3 // 2, filled)

    def _drain(self, poll: selectors.BaseSelector) -> None:
        while not self.stop.is_set():
            for key, _ in poll.select(0.2):
                if not key.data.is_open():
                    poll.unregister(key.fileobj)

    def outboxes(self, filled: threading.Event) -> None:
        """Subscribe, and read nothing."""
        settings = self._settings
        count = settings.outbox_total_bytes_max // settings.outbox_bytes_max + 24
        clients = []
        for number in range(count):
            client = self._enter()
            client.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
            client.send(subscribe(V5, f"outbox/{number}"))
            client.receive()
            clients.append(client)
        size = settings.outbox_total_bytes_max * 3 // 2 + count * _KERNEL_BYTES
        self._publish("outbox", count, size, filled, qos=0)

    def _publish(
        self,
        name: str,
        count: int,
        size: int,
        filled: threading.Event,
        *,
        qos: int = 1,
    ) -> None:
        """Publish so many bytes to `count` topics; then go on slowly, so that they stay full."""
        payload = bytes(60_000)
        client = self._enter()
        sent = 0
        for number in itertools.count():
            batch = [
                encode_publish(V5, f"{name}/{number % count}", payload, qos=qos, packet_id=one)
                for one in range(1, 5)
            ]
            client.send(b"".join(batch) + (b"" if qos else b"\xc0\x00"))
            if qos:
                client.receive_acks(len(batch))
            else:
                client.receive()
            sent += len(batch) * len(payload)
            if sent > size:
                filled.set()
            if self.stop.wait(0.1 if sent > size else 0):
                return

    def routes(self, filled: threading.Event) -> None:
        """Publish to more long names than routes are kept of."""
        client = self._enter()
        for number in range(70_000):
            topic = f"{number}/" + "\U0001f600" * 120
            client.send(encode_publish(V5, topic, b""))
            if self.stop.is_set():
                return
        client.send(b"\xc0\x00")
        client.receive()
        filled.set()

    def exchanges(self, filled: threading.Event) -> None:
        """Open QoS 2 exchanges of 3.1.1, and complete none of them."""
        refused = 0
        clients = []
        while refused < 3 and not self.stop.is_set():
            client = Client(self._port, connect(f"hostile-{next(self._numbers)}", V311))
            client.receive()
            clients.append(client)
            try:
                for first in range(1, 8_001, 1_000):
                    batch = [
                        encode_publish(V311, "exchange", b"", qos=2, packet_id=one)
                        for one in range(first, first + 1_000)
                    ]
                    client.send(b"".join(batch))
                    client.receive_acks(len(batch))
            except Gone:
                refused += 1
                client.close()
            if len(clients) == 20:
                break
        filled.set()
        self.stop.wait()


class Bystander(threading.Thread):
    """A client that publishes to itself, and counts what comes back."""

    def __init__(self, port: int, stop: threading.Event) -> None:
        super().__init__(daemon=True)
        self._client = Client(port, connect("bystander"))
        self._client.receive()
        self._client.send(subscribe(V5, "bystander", qos=1))
        self._client.receive()
        self._stop_event = stop
        self.served = 0
        self.slowest_s = 0.0
        self.error = ""

    def run(self) -> None:
        while not self._stop_event.wait(0.05):
            began = time.monotonic()
            try:
                self._client.send(
                    encode_publish(V5, "bystander", b"x", qos=1, packet_id=1) + b"\xc0\x00"
                )
                for _ in range(3):  # PUBACK, PINGRESP and its message, in any order
                    packet = self._client.receive()
                    if isinstance(packet, Publish):
                        self._client.send(b"\x40\x02" + packet.packet_ids()[0].to_bytes(2, "big"))
            except Gone:
                self.error = "the broker closed its connection, or did not answer"
                return
            self.served += 1
            self.slowest_s = max(self.slowest_s, time.monotonic() - began)
