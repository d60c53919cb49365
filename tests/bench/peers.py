"""Clients of the store's benchmark: MQTT 3.1.1 on raw sockets, whole frames at a time.

The frames of one flow have one size, and next to nothing is done message by message: what is
sent is a slice of a ring of ready frames, what is acknowledged is compared with a slice of
ready acknowledgements, and the packet ids of what comes are taken by slices with a stride.
Whatever is lost, repeated or out of order ends the load with `Wrong`.
"""

from __future__ import annotations

import os
import select
import socket
import struct
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple, Self

sys.path.insert(0, str(Path(__file__).parents[2]))  # the working tree, installed or not

from mqtt_broker.codec.constants import V311
from mqtt_broker.codec.encode import encode_connect, encode_publish, encode_subscribe
from mqtt_broker.codec.packets import Connect, Subscribe, SubscriptionRequest

PATIENCE_S: Final = 60.0  # without any progress: then the load is stuck
WARM_UP_S: Final = 1.0
READ_BYTES: Final = 262_144
WAVE: Final = 200  # clients that are on their way in at once
PAYLOAD_MIN: Final = 4  # who sent it, and the frame's number
PUBACK: Final = 0x40
PUBREC: Final = 0x50
PUBREL: Final = 0x62
PUBCOMP: Final = 0x70
PINGRESP: Final = 0xD0
_PINGREQ: Final = b"\xc0\x00"
_DISCONNECT: Final = b"\xe0\x00"
_ANSWERS: Final = {1: b"\x40\x02\0\0", 2: b"\x50\x02\0\0"}  # to a PUBLISH, by its QoS


class Wrong(Exception):
    """Something was lost, repeated, out of order, or never came."""


class Target(NamedTuple):
    host: str
    port: int
    pid: int


@dataclass(slots=True)
class Flow:
    """What was measured between `began` and `ended`."""

    messages: int
    began: float
    ended: float
    cpu_s: float
    latencies_ms: tuple[float, float, float] = (0.0, 0.0, 0.0)  # p50, p99, the longest
    late_ms_p99: float = 0.0  # how late the load itself was

    def __post_init__(self) -> None:
        if self.messages <= 0:
            raise Wrong("nothing came while it was measured")

    @property
    def rate(self) -> float:
        return self.messages / (self.ended - self.began)

    @property
    def cpu_us(self) -> float:
        """The broker's CPU time a message, all its threads."""
        return self.cpu_s * 1e6 / self.messages


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def spread_ms(seconds: Sequence[float]) -> tuple[float, float, float]:
    """p50, p99 and the longest."""
    if not seconds:
        raise Wrong("nothing was timed")
    ranked = sorted(seconds)
    last = len(ranked) - 1
    return ranked[last // 2] * 1e3, ranked[int(last * 0.99)] * 1e3, ranked[last] * 1e3


# Connections.


class Link:
    """A client that waits for each answer."""

    def __init__(self, target: Target, client_id: str, *, clean: bool = True) -> None:
        self.client_id = client_id
        self.sock = socket.create_connection((target.host, target.port), PATIENCE_S)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.rest = b""  # what was read and is no whole packet yet
        self.sock.sendall(encode_connect(Connect(V311, client_id, clean)))

    def welcome(self) -> Self:
        """Wait for CONNACK."""
        answer = self.packet()
        if answer[0] != 0x20 or answer[3]:
            raise Wrong(f"{self.client_id}: CONNECT was answered with {answer.hex()}")
        return self

    def subscribe(self, text: str, qos: int) -> list[bytes]:
        """Returns what came before SUBACK."""
        self.ask_subscribe(text, qos)
        return self.subscribed(qos)

    def ask_subscribe(self, text: str, qos: int) -> None:
        request = Subscribe(1, [SubscriptionRequest(text, qos)])
        self.sock.sendall(encode_subscribe(V311, request))

    def subscribed(self, qos: int) -> list[bytes]:
        before: list[bytes] = []
        while (answer := self.packet())[0] != 0x90:
            before.append(answer)
        if answer[4] != qos:
            raise Wrong(f"{self.client_id}: SUBSCRIBE was answered with {answer.hex()}")
        return before

    def packet(self) -> bytes:
        while (size := _size(self.rest)) > len(self.rest):
            self.rest += self.read()
        found, self.rest = self.rest[:size], self.rest[size:]
        return found

    def read(self) -> bytes:
        try:
            data = self.sock.recv(READ_BYTES)
        except ConnectionError as error:
            raise Wrong(f"{self.client_id}: {error}") from None
        if not data:
            raise Wrong(f"{self.client_id}: the broker closed the connection")
        return data

    def close(self) -> None:
        self.sock.close()

    def leave(self) -> None:
        self.sock.setblocking(True)
        self.sock.sendall(_DISCONNECT)
        while self.sock.recv(READ_BYTES):  # the broker closes when it has seen it
            pass
        self.sock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _size(data: bytes) -> int:
    """Of the packet that begins here; more than there is while that is unknown."""
    length = 0
    for place, byte in enumerate(data[1:5]):
        length |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            return 2 + place + length
    return len(data) + 1


class Poll:
    """The connections of one load, and the loop that serves them."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._peers: dict[int, Peer] = {}

    def add(self, peer: Peer) -> None:
        peer.sock.setblocking(False)
        peer.poll = self
        self._peers[peer.sock.fileno()] = peer
        self._epoll.register(peer.sock.fileno(), select.EPOLLIN)
        if peer.rest:
            peer.on_data(b"", time.monotonic())

    def want_write(self, peer: Peer, wanted: bool) -> None:
        events = select.EPOLLIN | (select.EPOLLOUT if wanted else 0)
        self._epoll.modify(peer.sock.fileno(), events)

    def turn(self, timeout_s: float) -> None:
        found = self._epoll.poll(0, 512)
        if not found:
            # epoll counts in milliseconds, which is too coarse to keep time by.
            select.select([self._epoll], [], [], timeout_s)
            found = self._epoll.poll(0, 512)
        for number, events in found:
            peer = self._peers[number]
            if events & select.EPOLLOUT:
                peer.on_writable()
            if events & ~select.EPOLLOUT:
                peer.on_data(peer.read(), time.monotonic())

    def run(self, until: float) -> None:
        while (left := until - time.monotonic()) > 0:
            self.turn(left)

    def finish(self, what: str, due: int, count: Callable[[], int]) -> float:
        """Serve until `count` is `due`; the time when it was."""
        done, at = count(), time.monotonic()
        while done < due:
            self.turn(0.5)
            now, before = time.monotonic(), done
            done = count()
            if done > before:
                at = now
            elif now - at > PATIENCE_S:
                raise Wrong(f"{what}: {done} of {due}, then nothing for {PATIENCE_S:.0f} s")
        if done > due:
            raise Wrong(f"{what}: {done}, and only {due} were due")
        return at

    def ask_all(self, what: str) -> None:
        """Ping, so that whatever else is on its way has come."""
        for peer in self._peers.values():
            peer.pongs = 0
            peer.write(_PINGREQ)
        peers = self._peers.values()
        self.finish(f"{what}: PINGRESP", len(peers), lambda: sum(peer.pongs for peer in peers))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._epoll.close()
        for peer in self._peers.values():
            peer.close()


class Peer(Link):
    """A connection of a `Poll`. Frames that begin alike and follow each other are one `take`."""

    poll: Poll

    def __init__(self, target: Target, client_id: str, *, clean: bool = True) -> None:
        super().__init__(target, client_id, clean=clean)
        self.strides: dict[int, int] = {PINGRESP: 2}  # first byte: the size of such frames
        self.run_max = 1 << 16
        self.pongs = 0
        self._unsent: deque[memoryview | bytes | bytearray] = deque()

    def on_data(self, data: bytes, now: float) -> None:
        if self.rest:
            data = self.rest + data
        at, end = 0, len(data)
        while at < end:
            first = data[at]
            stride = self.strides.get(first)
            if stride is None:
                raise Wrong(f"{self.client_id}: {data[at : at + 40].hex()} came")
            # The first bytes of all whole frames, were they all like this one; the first that
            # differs is that of a frame of another kind.
            whole = min((end - at) // stride, self.run_max) * stride
            heads = data[at : at + whole : stride]
            count = len(heads) - len(heads.lstrip(heads[:1]))
            if not count:
                break
            if first == PINGRESP:
                self.pongs += count
            else:
                self.take(first, data, at, count, now)
            at += count * stride
        self.rest = data[at:]
        self.after_data(now)

    def take(self, first: int, data: bytes, at: int, count: int, now: float) -> None:
        raise Wrong(f"{self.client_id}: nothing is due here")

    def after_data(self, now: float) -> None:
        """Everything that was read is taken."""

    def write(self, data: memoryview | bytes | bytearray) -> None:
        if not self._unsent:
            data = self._send(data)
            if not len(data):
                return
            self.poll.want_write(self, True)
        self._unsent.append(data)

    def on_writable(self) -> None:
        while self._unsent:
            left = self._send(self._unsent[0])
            if len(left):
                self._unsent[0] = left
                return
            self._unsent.popleft()
        self.poll.want_write(self, False)

    def _send(self, data: memoryview | bytes | bytearray) -> memoryview:
        """What was not sent of it."""
        try:
            return memoryview(data)[self.sock.send(data) :]
        except BlockingIOError:
            return memoryview(data)
        except ConnectionError as error:
            raise Wrong(f"{self.client_id}: {error}") from None


class Frames:
    """The PUBLISH packets of one publisher, numbered from 1, which is their packet id too.

    Everything stands here twice over, so that any run of up to `count` is one slice.
    """

    def __init__(self, topic: str, qos: int, payload_bytes: int, count: int, owner: int) -> None:
        numbers = range(1, count + 1)
        rest = b"x" * (payload_bytes - PAYLOAD_MIN)
        packets = [
            encode_publish(
                V311, topic, struct.pack(">HH", owner, n) + rest, qos=qos, packet_id=n if qos else 0
            )
            for n in numbers
        ]
        self.qos = qos
        self.count = count
        self.first = packets[0][0]
        self.stride = len(packets[0])
        self.payload_at = self.stride - payload_bytes
        self.id_at = self.payload_at - 2
        self.packets = memoryview(b"".join(packets) * 2)
        self._high = bytes([n >> 8 for n in numbers]) * 2
        self._low = bytes([n & 0xFF for n in numbers]) * 2
        ids = [struct.pack(">H", n) for n in numbers]
        self.acks = {
            first: b"".join([bytes((first, 2)) + i for i in ids]) * 2
            for first in (PUBACK, PUBREC, PUBREL, PUBCOMP)
        }

    def run(self, place: int, count: int) -> memoryview:
        return self.packets[place * self.stride : (place + count) * self.stride]

    def is_next(self, data: bytes, at: int, count: int, place: int) -> bool:
        """Whether these frames are those from `place` on."""
        stride = self.stride
        end = at + count * stride
        at += self.payload_at + 2
        return (
            data[at:end:stride] == self._high[place : place + count]
            and data[at + 1 : end : stride] == self._low[place : place + count]
        )


class Stopwatch:
    """When counts were sent, and how long it took until they had come."""

    def __init__(self) -> None:
        self._sent: deque[tuple[int, float]] = deque()
        self.seconds: list[float] = []

    def sent(self, count: int, at: float) -> None:
        self._sent.append((count, at))

    def came(self, count: int, now: float) -> None:
        sent = self._sent
        while sent and sent[0][0] <= count:
            self.seconds.append(now - sent.popleft()[1])


class Publisher(Peer):
    """Sends its frames round and round, at most `window` of them unfinished.

    With a window of 0 it sends only when it is told to.
    """

    def __init__(self, target: Target, client_id: str, frames: Frames, window: int) -> None:
        super().__init__(target, client_id)
        self.frames = frames
        self.run_max = frames.count
        self.strides |= {1: {PUBACK: 4}, 2: {PUBREC: 4, PUBCOMP: 4}}.get(frames.qos, {})
        self.window = window
        self.due = sys.maxsize  # how many it sends in all
        self.sent = 0
        self.received = 0  # PUBREC came
        self.done = 0
        self.watch: Stopwatch | None = None
        self._release = b""

    def fill(self) -> None:
        room = min(self.window - self.sent + self.done, self.due - self.sent)
        if room > 0:
            self.send(room)

    def send(self, count: int) -> None:
        frames = self.frames
        if self.sent + count - self.done > frames.count:
            raise Wrong(f"{self.client_id}: {self.sent - self.done} are not acknowledged")
        run = frames.run(self.sent % frames.count, count)
        self.sent += count
        if self.watch is not None:
            self.watch.sent(self.sent, time.monotonic())
        self.write(run)

    def take(self, first: int, data: bytes, at: int, count: int, now: float) -> None:
        frames = self.frames
        before = self.received if first == PUBREC else self.done
        place = before % frames.count
        part = slice(place * 4, (place + count) * 4)
        is_due = before + count <= self.sent
        if not is_due or data[at : at + count * 4] != frames.acks[first][part]:
            raise Wrong(f"{self.client_id}: an acknowledgement is not the next: {data[at:].hex()}")
        if first == PUBREC:
            self.received += count
            self._release += frames.acks[PUBREL][part]
            return
        self.done += count
        if self.watch is not None:
            self.watch.came(self.done, now)

    def after_data(self, now: float) -> None:
        release, self._release = self._release, b""
        room = min(self.window - self.sent + self.done, self.due - self.sent)
        if release and room > 0:
            run = self.frames.run(self.sent % self.frames.count, room)
            self.sent += room
            self.write(b"".join((release, run)))
        elif release:
            self.write(release)
        else:
            self.fill()


class Subscriber(Peer):
    """Takes the frames of one publisher in their order, and acknowledges each read at once."""

    def __init__(
        self, target: Target, client_id: str, frames: Frames, *, clean: bool = False
    ) -> None:
        super().__init__(target, client_id, clean=clean)
        self.frames = frames
        self.run_max = frames.count
        self.strides |= {frames.first: frames.stride}
        if frames.qos == 2:
            self.strides[PUBREL] = 4
        self.came = 0
        self.done = 0  # QoS 2: released
        self.on_came: Callable[[int, float], None] | None = None
        self._out: list[bytearray] = []

    def check(self, data: bytes, at: int, count: int) -> None:
        if not self.frames.is_next(data, at, count, self.came % self.frames.count):
            raise Wrong(f"{self.client_id}: what came after {self.came} messages is not the next")

    def take(self, first: int, data: bytes, at: int, count: int, now: float) -> None:
        if first == PUBREL:
            answer = bytearray(data[at : at + count * 4])
            answer[0::4] = b"\x70" * count
            self._out.append(answer)
            self.done += count
            return
        self.check(data, at, count)
        self.came += count
        frames = self.frames
        if frames.qos:
            end = at + count * frames.stride
            answer = bytearray(_ANSWERS[frames.qos] * count)
            answer[2::4] = data[at + frames.id_at : end : frames.stride]
            answer[3::4] = data[at + frames.id_at + 1 : end : frames.stride]
            self._out.append(answer)

    def after_data(self, now: float) -> None:
        out = self._out
        if out:
            self._out = []
            self.write(out[0] if len(out) == 1 else b"".join(out))
        if self.on_came is not None:
            self.on_came(self.came, now)


class Gatherer(Subscriber):
    """Takes the frames of many publishers, each one's in order; message by message."""

    def __init__(self, target: Target, client_id: str, frames: Frames) -> None:
        super().__init__(target, client_id, frames)
        self._next: dict[int, int] = {}

    def check(self, data: bytes, at: int, count: int) -> None:
        frames = self.frames
        for place in range(count):
            owner, number = struct.unpack_from(
                ">HH", data, at + place * frames.stride + frames.payload_at
            )
            if number != self._next.get(owner, 1):
                raise Wrong(f"{self.client_id}: {number} of publisher {owner} is not the next")
            self._next[owner] = number % frames.count + 1
