"""What is fuzzed: one function an input, which raises when the input brought out a fault.

decode_once       bytes to packets: whole and in pieces alike, packets to bytes and back
connection_once   a script of sends, losses, slow reads and time against a whole broker
proxy_once        a balancer's header
websocket_once    frames behind an upgrade
upgrade_once      the request for one
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from mqtt_broker.codec import properties as prop
from mqtt_broker.codec.constants import DISCONNECT, V5, V31, V311
from mqtt_broker.codec.decode import Decoder
from mqtt_broker.codec.encode import (
    PINGREQ_BYTES,
    encode_ack,
    encode_connack,
    encode_from_client,
)
from mqtt_broker.codec.errors import Violation
from mqtt_broker.codec.packets import (
    Ack,
    Connack,
    Connect,
    Packet,
    Pingresp,
    Publish,
    Suback,
    Unsuback,
)
from mqtt_broker.codec.properties import Properties
from mqtt_broker.core import dispatch
from mqtt_broker.core.broker import Broker
from mqtt_broker.core.clients.connection import CLOSED, Connection
from mqtt_broker.core.interfaces.access import (
    PENDING,
    Allow,
    Challenge,
    ConnectRequest,
    Refuse,
    Verdict,
)
from mqtt_broker.core.limits.settings import Settings
from mqtt_broker.server.config.endpoints import WebSocketRules
from mqtt_broker.server.net.proxy_protocol import SIGNATURE, V2_BYTES_MAX, ProxyError, read_header
from mqtt_broker.server.net.websocket import WebSocketLayer
from mqtt_broker.topics.names import split_share
from tests.core.recount import check_bytes
from tests.fuzz import grammar
from tests.server.transports import masked

PACKET_BYTES_MAX: Final = 4_000


# The decoder.


def decode_once(data: bytes) -> None:
    if not data:
        return
    options, data = data[0], data[1:]
    version = (0, V31, V311, V5)[options & 3]
    from_server = bool(options & 4) and version > 0
    small = Decoder(from_server=from_server, version=version, packet_bytes_max=PACKET_BYTES_MAX)
    whole = list(_single(small.feed(data)))
    assert small.buffered_bytes <= PACKET_BYTES_MAX
    pieces = Decoder(from_server=from_server, version=version, packet_bytes_max=PACKET_BYTES_MAX)
    step = (options >> 3) % 7 + 1
    parts: list[Packet | Violation] = []
    for at in range(0, len(data), step):
        parts += _single(pieces.feed(data[at : at + step]))
    assert list(map(_shown, whole)) == list(map(_shown, parts))
    for packet in whole[:-1]:
        assert not isinstance(packet, Violation), "a Violation is the end"
    if whole and isinstance(whole[-1], Violation):
        assert small.feed(PINGREQ_BYTES) == []
    for packet in whole:
        _check_round_trip(packet, small.version, from_server)


def _single(packets: list[Packet | Violation]) -> Iterator[Packet | Violation]:
    """Runs taken apart."""
    for packet in packets:
        if isinstance(packet, Publish):
            assert len(packet.raw) == packet.count * packet.size
            for at in range(0, len(packet.raw), packet.size):
                yield replace(packet, raw=packet.raw[at : at + packet.size], count=1)
        elif isinstance(packet, Ack):
            for packet_id in packet.packet_ids:
                yield replace(packet, packet_ids=[packet_id])
        else:
            yield packet


def _shown(packet: Packet | Violation) -> str:
    if isinstance(packet, Violation):
        return f"{packet.reason} {packet.rule} {packet.silent}"
    return repr(packet)


def _check_round_trip(packet: Packet | Violation, version: int, from_server: bool) -> None:
    if isinstance(packet, Violation | Pingresp | Suback | Unsuback):
        return
    if isinstance(packet, Publish):
        data = packet.raw
    elif isinstance(packet, Ack):
        data = encode_ack(
            packet.packet_type, packet.packet_ids[0], packet.reason, packet.properties
        )
    elif isinstance(packet, Connack):
        data = encode_connack(version, packet.session_present, packet.reason, packet.properties)
    else:
        data = encode_from_client(version, packet)
    first = 0 if data[0] >> 4 == 1 else version
    again = Decoder(from_server=from_server, version=first).feed(data)
    assert list(map(_shown, again)) == [_shown(packet)]


# A whole broker.


VERSIONS: Final = (V5, V5, V311, V31)  # what is usually spoken on each connection
STOCK: Final = [  # a CONNECT for each, for steps of kind 1
    encode_from_client(
        version,
        Connect(
            version,
            f"c{slot}",
            clean_start=slot == 1,
            properties=Properties({prop.SESSION_EXPIRY_INTERVAL: 30} if version == V5 else {}),
        ),
    )
    for slot, version in enumerate(VERSIONS)
]


class Door:
    """An access door with every kind of answer, chosen by what is asked."""

    def __init__(self, mood: int) -> None:
        self.mood = mood
        self.guards_topics = bool(mood & 1)

    def connect(self, request: ConnectRequest) -> Verdict:
        if request.client_id == "witness":
            return Allow()
        if request.auth_method is not None:
            if self.mood & 2:
                return Challenge(b"?", self._proceed)
            return PENDING if self.mood & 4 else Refuse(0x8C)
        return PENDING if self.mood & 4 else Allow(request.username)

    def _proceed(self, data: bytes | None) -> Verdict:
        if data == b"x":
            return PENDING if self.mood & 4 else Challenge(None, self._proceed)
        return Allow("proved", data) if data else Refuse()

    def may_publish(self, client_id: str, username: str | None, topic: str) -> bool:
        return topic != "a/b/c"

    def may_subscribe(self, client_id: str, username: str | None, text: str, qos: int) -> bool:
        return text != "+/b"


class Link:
    def __init__(self, peer: str) -> None:
        self.peer = peer
        self.written = bytearray()
        self.waiting = 0
        self.is_slow = False
        self.is_closed = False
        self.is_paused = False

    def write(self, data: bytes) -> int:
        if self.is_closed:
            return 0
        self.written += data
        if self.is_slow or self.waiting:
            self.waiting += len(data)
        return self.waiting

    def close(self) -> None:
        self.is_closed = True

    abort = close

    def pause_reading(self) -> None:
        self.is_paused = True

    def resume_reading(self) -> None:
        self.is_paused = False


class Play:
    """A script against a broker; a witness beside it that must never notice."""

    def __init__(self, options: int) -> None:
        self.now = 1000.0
        self.settings = Settings(
            sys_interval_s=7 if options & 8 else 0,
            client_events=bool(options & 16),
            packet_bytes_max=PACKET_BYTES_MAX,
            queue_messages_max=5,
            queue_bytes_max=3_000,
            queue_full=("drop_oldest", "drop_new", "disconnect")[(options >> 5) % 3],
            queue_qos0=bool(options & 128),
            outbox_bytes_max=1_500,
            inflight_max=10,
            retained_messages_max=6 if not options & 8 else 1000,
            retained_bytes_max=100_000,
            subscriptions_max=4,
            stalled_reader_s=20,
            topic_alias_maximum=2,
            receive_maximum=2,
        )
        self.broker = Broker(
            self.settings, now=self.now, rng=random.Random(1), access=Door(options)
        )
        self.links: list[Link] = []
        self.connections: list[Connection] = []
        self.told: list[bool] = []
        self.slots: dict[int, int] = {}
        self.witness = self._open()
        self._receive(
            self.witness, bytes.fromhex("10140004 4d515454 05020000 00 0007 7769746e657373")
        )
        assert self.links[self.witness].written[0] == 0x20
        self.check_witness()

    def _open(self) -> int:
        link = Link(f"192.0.2.1:{len(self.links)}")
        self.links.append(link)
        self.connections.append(self.broker.accept(link, self.now))
        self.told.append(False)
        return len(self.links) - 1

    def _receive(self, number: int, data: bytes) -> None:
        dispatch.receive(self.connections[number], data, self.now)
        self.settle()

    def settle(self) -> None:
        while True:
            self.broker.flush(self.now)
            while self.broker.has_more:
                self.broker.work(self.now)
                self.broker.flush(self.now)
            closed = [n for n, link in enumerate(self.links) if link.is_closed and not self.told[n]]
            if not closed:
                return
            for number in closed:
                self.told[number] = True
                self.connections[number].lost(self.now)

    def step(self, slot: int, kind: int, argument: int, data: bytes) -> None:
        if kind <= 2:
            number = self.slots.get(slot)
            if number is None or self.told[number]:
                number = self.slots[slot] = self._open()
                if kind == 1:
                    data = STOCK[slot] + data
            self._receive(number, data)
            return
        number = self.slots.get(slot)
        if kind == 3:
            self.wait(argument / 8)
        elif number is None or self.told[number]:
            return
        elif kind == 4:
            self.told[number] = self.links[number].is_closed = True
            self.connections[number].lost(self.now)
        elif kind == 5:
            self.links[number].is_slow = not self.links[number].is_slow
        elif kind == 6:
            link = self.links[number]
            if link.waiting:
                link.waiting = max(0, link.waiting - argument * 20)
                self.connections[number].on_written(link.waiting, self.now)
        else:
            verdict = Allow() if argument & 1 else Refuse()
            self.broker.resume(self.connections[number], verdict, self.now)
        self.settle()

    def wait(self, seconds: float) -> None:
        end = self.now + seconds
        while (deadline := self.broker.tick(self.now)) <= end:
            self.settle()
            self.now = max(self.now, deadline)
        self.now = end
        self.settle()

    # What must hold.

    def check_witness(self) -> None:
        link = self.links[self.witness]
        assert not link.is_closed
        link.written.clear()
        self._receive(self.witness, PINGREQ_BYTES)
        assert link.written == b"\xd0\x00", link.written.hex()

    def check(self) -> None:
        self.check_witness()
        broker = self.broker
        for connection, link in zip(self.connections, self.links, strict=True):
            if connection.state == CLOSED:
                assert link.is_closed
                assert connection.handshake is None
            assert connection.decoder.buffered_bytes <= PACKET_BYTES_MAX
        assert broker.outboxes.waiting_bytes == sum(
            link.waiting for link in self.links if not link.is_closed
        )
        queued = 0
        for session in broker.sessions:
            assert session.outbound.queued <= self.settings.queue_messages_max
            assert session.outbound.queue_bytes <= self.settings.queue_bytes_max
            waiting = session.outbound.queue.items() if session.outbound.queue is not None else []
            assert session.outbound.queue_bytes == sum(item[0].envelope.size for item in waiting)
            queued += session.outbound.queue_bytes
            for text in session.subscriptions:
                if split_share(text):
                    assert session.client_id in broker.subscriptions.groups[text].members
        for text, group in broker.subscriptions.groups.items():
            assert group.members, text
            for client_id in group.members:
                owner = broker.sessions.get(client_id)
                assert owner is not None and text in owner.subscriptions
            queued += group.waiting.bytes
        assert broker.backlog.queued_bytes == queued
        check_bytes(broker)

    def check_answers(self) -> None:
        """Everything the broker wrote is packets of its side; a DISCONNECT is the last."""
        for connection, link in zip(self.connections, self.links, strict=True):
            version = connection.version or V5
            packets = Decoder(from_server=True, version=version).feed(bytes(link.written))
            refused = bytes(link.written) == b"\x20\x03\x00\x84\x00"
            for place, packet in enumerate(packets):
                if isinstance(packet, Violation):
                    assert refused, f"the broker wrote {link.written.hex()}: {packet}"
                last = place == len(packets) - 1
                assert last or type(packet).__name__ != "Disconnect", DISCONNECT


def connection_once(data: bytes) -> None:
    if not data:
        return
    play = Play(data[0])
    at = 1
    steps = 0
    while at + 2 <= len(data) and steps < 60:
        head, argument = data[at], data[at + 1]
        at += 2
        kind = head >> 2 & 7
        chunk = b""
        if kind <= 2:
            size = argument << 3 | head >> 5
            chunk = data[at : at + size]
            at += size
        play.step(head & 3, kind, argument, chunk)
        play.check()
        steps += 1
    play.check_answers()
    for number in range(1, len(play.links)):
        if not play.told[number]:
            play.told[number] = play.links[number].is_closed = True
            play.connections[number].lost(play.now)
    play.settle()
    play.wait(60)
    play.check()
    assert list(play.broker.connections) == ["witness"]


def script(rng: random.Random) -> bytes:
    """An input for `connection_once` that means something."""
    mood = rng.randrange(256)
    if rng.random() < 0.7:
        mood &= ~4  # answers to CONNECT come at once
    out = bytearray([mood])
    for _ in range(rng.randint(1, 40)):
        slot = rng.randrange(4)
        kind = rng.choice((0, *(1,) * 14, 3, 3, 4, 5, 6, 7))
        if kind > 2:
            out += bytes([slot | kind << 2, rng.randrange(256)])
            continue
        chunk = b"" if kind else grammar.connect(rng, VERSIONS[slot])
        for _ in range(rng.randint(0, 4)):
            chunk += grammar.packet(rng, VERSIONS[slot])
        if rng.random() < 0.1 and chunk:
            chunk = grammar.mutate(chunk, rng)
        out += send(slot, chunk[:1000], kind)
    return bytes(out)


def mutate_script(data: bytes, rng: random.Random) -> bytes:
    """Change a few steps, and the packets inside them."""
    steps: list[tuple[int, int, bytes]] = []
    at = 1
    while at + 2 <= len(data):
        head, argument = data[at], data[at + 1]
        at += 2
        size = argument << 3 | head >> 5 if head >> 2 & 7 <= 2 else 0
        steps.append((head, argument, data[at : at + size]))
        at += size
    if not steps:
        return script(rng)
    for _ in range(rng.randint(1, 3)):
        place = rng.randrange(len(steps))
        head, argument, chunk = steps[place]
        kind = rng.randrange(6)
        if kind == 0:
            steps.insert(place, steps[rng.randrange(len(steps))])
        elif kind == 1 and len(steps) > 1:
            del steps[place]
        elif kind == 2:
            steps[place] = (head & 0xE0 | rng.randrange(32), rng.randrange(256), chunk)
        else:
            steps[place] = (head, argument, grammar.mutate(chunk, rng)[:1000])
    out = bytearray([data[0] ^ (1 << rng.randrange(8) if rng.random() < 0.1 else 0)])
    for head, argument, chunk in steps:
        if head >> 2 & 7 <= 2:
            out += send(head & 3, chunk, head >> 2 & 7)
        else:
            out += bytes([head, argument])
    return bytes(out)


def send(slot: int, chunk: bytes, kind: int) -> bytes:
    """One step of a script: these bytes on that connection."""
    size = len(chunk)
    assert size < 2048
    return bytes([slot | kind << 2 | (size & 7) << 5, size >> 3]) + chunk


# The transports.


UPGRADE: Final = (
    b"GET /mqtt HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: AQIDBAUGBwgJCgsMDQ4PEA==\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Protocol: mqtt\r\nSec-WebSocket-Extensions: permessage-deflate\r\n\r\n"
)


def proxy_once(data: bytes) -> None:
    """A header is found at one place, or nowhere, however the bytes come."""
    try:
        whole = read_header(data)
    except ProxyError:
        whole = None
        with_error = True
    else:
        with_error = False
    if whole is not None:
        assert 0 < whole.size <= min(len(data), 16 + V2_BYTES_MAX)
        assert read_header(data[: whole.size]) == whole
        assert read_header(data[: whole.size - 1]) is None
    elif not with_error:
        assert len(data) < 16 + V2_BYTES_MAX, "it cannot wait for ever"
    for end in range(min(len(data), 120)):  # what is wrong stays wrong
        try:
            read_header(data[:end])
        except ProxyError:
            assert with_error
            break


HEADERS: Final = (
    b"PROXY TCP4 198.51.100.7 203.0.113.1 4444 1883\r\n",
    b"PROXY TCP6 2001:db8::7 2001:db8::1 4444 1883\r\n",
    b"PROXY UNKNOWN ffff 1\r\n",
    SIGNATURE + b"\x20\x00\x00\x00",
    SIGNATURE + b"\x21\x11\x00\x0c" + bytes(range(12)),
    SIGNATURE + b"\x21\x21\x00\x2b" + bytes(36) + b"\x03\x00\x04abcd",
)


def changed(data: bytes, rng: random.Random) -> bytes:
    """A few bytes put in, taken out, or replaced by what means something somewhere."""
    out = bytearray(data)
    for _ in range(rng.randint(1, 3)):
        at = rng.randrange(len(out) + 1)
        new = rng.choice((b" ", b"\r\n", b":", b",", b"0", b"65536", b"\0", rng.randbytes(1)))
        out[at : at + rng.choice((0, 1, 1, len(new), 8))] = new if rng.random() < 0.8 else b""
    return bytes(out)


def frames(rng: random.Random) -> bytes:
    """An input for `websocket_once`: a few frames, mostly in order."""
    found = bytearray((rng.randrange(256),))
    for _ in range(rng.randrange(1, 6)):
        opcode = rng.choice((0, 1, 2, 2, 2, 8, 9, 10))
        payload = rng.randbytes(rng.choice((0, 2, 130)))
        frame = bytearray(masked(opcode, payload, fin=rng.random() < 0.7))
        if rng.random() < 0.1:
            frame[0] |= 0x40  # compressed
        found += frame
    return bytes(found)


def websocket_once(data: bytes) -> None:
    """Frames whole and in pieces hold the same, and end alike."""
    if len(data) < 2:
        return
    step, data = data[0] % 7 + 1, data[1:]
    rules = WebSocketRules(compression=True)
    outcomes = []
    for pieces in ([data], [data[at : at + step] for at in range(0, len(data), step)]):
        layer = WebSocketLayer(rules, PACKET_BYTES_MAX)
        layer.receive(UPGRADE)
        assert layer.is_open and layer.pending_output(may_wait=False)
        found = b"".join(layer.receive(piece) for piece in pieces)
        outcomes.append((found, layer.ended))
        if layer.ended:
            assert b"\x88\x02" in layer.pending_output(may_wait=True), "a close frame says why"
            assert layer.send(b"x") == b""
        else:
            assert layer.send(b"x")
    assert outcomes[0] == outcomes[1]


def upgrade_once(data: bytes) -> None:
    """A request whole and in pieces gets the same answer, and one of HTTP."""
    answers = []
    for pieces in ([data], [data[at : at + 5] for at in range(0, len(data), 5)]):
        layer = WebSocketLayer(WebSocketRules(), PACKET_BYTES_MAX)
        for piece in pieces:
            layer.receive(piece)
        said = layer.pending_output(may_wait=False)
        assert not said or said.startswith(b"HTTP/1.1 ")
        assert bool(said) == (layer.is_open or bool(layer.ended))
        answers.append((layer.is_open, said[:12]))
    assert answers[0] == answers[1]
