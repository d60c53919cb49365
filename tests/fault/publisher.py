"""A publisher that keeps every promise of QoS 1 and 2 on its side."""

from __future__ import annotations

from typing import Final

from mqtt_broker.codec import properties as prop
from mqtt_broker.codec.constants import PUBACK, PUBCOMP, PUBREC, PUBREL, V5
from mqtt_broker.codec.encode import encode_ack, encode_publish
from mqtt_broker.codec.packets import Ack, Packet
from mqtt_broker.codec.properties import Properties
from tests.fault import plan
from tests.fault.client import Client, Loop
from tests.fault.plan import Plan, Stream

_TICK_S: Final = 0.01
_RECEIVE_MAXIMUM: Final = 65_535
_BURST_MAX: Final = 24
_CUT_EVERY_S: Final = (0.5, 5.0)
_TOGGLE_EVERY_S: Final = (0.02, 0.2)
_CUT_IN_BURST_S: Final = 0.005


class Sent:
    """A message that the broker has not taken yet."""

    __slots__ = ("payload", "seq", "stream")

    def __init__(self, stream: Stream, seq: int, payload: bytes) -> None:
        self.stream = stream
        self.seq = seq
        self.payload = payload


class Sending(Client):
    """The publishing half of a client: numbers, sends, repeats, and lets go."""

    takes_lowest_id = False  # else the next on the ring; an id may come back at once
    sent = 0
    acknowledged = 0

    def _begin(self) -> None:
        self.unacked: dict[int, Sent] = {}  # in the order sent; waits for PUBACK or PUBREC
        self.released: dict[int, None] = {}  # PUBREL sent, waits for PUBCOMP
        self._last_id = 0
        self._window = 0
        self._seqs: dict[int, int] = {}

    @property
    def is_busy(self) -> bool:
        return bool(self.unacked or self.released)

    @property
    def room(self) -> int:
        if not self.is_online:
            return 0
        return self._window - len(self.unacked) - len(self.released)

    def publish(self, stream: Stream, size: int) -> None:
        """Send the stream's next message; there has to be room."""
        seq = self._seqs.get(stream.index, 0) + 1
        self._seqs[stream.index] = seq
        packet_id = 1 if self.takes_lowest_id else self._last_id % 65_535 + 1
        while packet_id in self.unacked or packet_id in self.released:
            packet_id = packet_id % 65_535 + 1
        self._last_id = packet_id
        message = Sent(stream, seq, plan.write(stream.index, seq, size))
        self.unacked[packet_id] = message
        self.note("S", stream.index, seq)
        self.sent += 1
        self._write(packet_id, message, dup=False)

    def _write(self, packet_id: int, message: Sent, *, dup: bool) -> None:
        stream = message.stream
        self.send(
            encode_publish(
                V5,
                stream.topic,
                message.payload,
                qos=stream.qos,
                retain=stream.retain,
                dup=dup,
                packet_id=packet_id,
            )
        )

    def on_connected(self, present: bool, told: Properties) -> None:
        """Repeat what the session has under way [MQTT-4.4.0-1]; without one, send it anew."""
        self._window = min(told.number(prop.RECEIVE_MAXIMUM, _RECEIVE_MAXIMUM), 1000)
        if not present:
            self.released.clear()
            self.on_new_session()
        for packet_id in self.released:
            self.send(encode_ack(PUBREL, packet_id))
        for packet_id, message in self.unacked.items():
            self._write(packet_id, message, dup=present)

    def on_new_session(self) -> None:
        """What was under way in the old one may be sent again as something new."""

    def on_packet(self, packet: Packet) -> None:
        if not isinstance(packet, Ack):
            self.complain(f"{type(packet).__name__} to a publisher")
        elif packet.packet_type == PUBACK:
            self._on_puback(packet)
        elif packet.packet_type == PUBREC:
            self._on_pubrec(packet)
        elif packet.packet_type == PUBCOMP:
            for packet_id in packet.packet_ids:
                if packet_id not in self.released:
                    self.complain(f"PUBCOMP for {packet_id}, which was not released")
                self.released.pop(packet_id, None)
        else:
            self.complain("PUBREL to a publisher")

    def _on_puback(self, packet: Ack) -> None:
        for packet_id in packet.packet_ids:
            message = self.unacked.get(packet_id)
            if message is None or message.stream.qos != 1:
                self.complain(f"PUBACK for {packet_id}, which is not a QoS 1 message under way")
                continue
            del self.unacked[packet_id]
            self._on_taken(message, packet.reason)

    def _on_pubrec(self, packet: Ack) -> None:
        for packet_id in packet.packet_ids:
            message = self.unacked.get(packet_id)
            if message is not None and message.stream.qos == 2:
                del self.unacked[packet_id]
                self._on_taken(message, packet.reason)
                if packet.reason >= 0x80:
                    continue
                self.released[packet_id] = None
                self.is_promised = True
            elif packet_id not in self.released:
                self.complain(f"PUBREC for {packet_id}, which is not a QoS 2 message under way")
                continue
            self.release(packet_id)

    def release(self, packet_id: int) -> None:
        self.send(encode_ack(PUBREL, packet_id))

    def _on_taken(self, message: Sent, reason: int) -> None:
        if reason >= 0x80:
            self.note("X", message.stream.index, message.seq, f"0x{reason:02X}")
            return
        self.acknowledged += 1
        self.note("A", message.stream.index, message.seq)


class Publisher(Sending):
    """Bursts on its streams, at its share of the rate, until it is told to finish."""

    def __init__(self, loop: Loop, made: Plan, number: int) -> None:
        super().__init__(loop, f"p{number}", made.rng(f"p{number}"))
        self._begin()
        self._is_toggler = number == made.toggler
        self.takes_lowest_id = number % 2 == 0 or self._is_toggler
        streams = [stream for stream in made.streams if stream.publisher == number]
        self._load = [stream for stream in streams if not stream.retain]
        self._states = [stream for stream in streams if stream.retain]
        self._rate = made.rate / made.publishers
        self._credit = 0.0
        self.is_finishing = False
        loop.after(_TICK_S, self._tick)
        loop.after(self.rng.uniform(*_CUT_EVERY_S), self._cut_now_and_then)

    def _tick(self) -> None:
        if self.is_finishing:
            return
        self._credit = min(self._credit + self._rate * _TICK_S, self._rate)
        while self._credit >= 1 and self.room > 0:
            self._burst()
            if self.rng.random() < 0.3:  # a pause, so that the next comes in a lump
                break
        self.loop.after(_TICK_S, self._tick)

    def _burst(self) -> None:
        rng = self.rng
        chance = rng.random()
        stream = rng.choice(self._states if chance < 0.05 else self._load)
        count = min(rng.choice((1, 1, 2, 4, _BURST_MAX)), self.room)
        size = rng.choice((0, 20, 100, 100, 300))
        if chance > 0.995:
            count, size = 1, rng.randrange(20_000, 60_000)
        elif chance > 0.95:
            size = rng.randrange(1000, 5000)
        for _ in range(count):
            self.publish(stream, size)
        self._credit -= count

    def _cut_now_and_then(self) -> None:
        """While something is under way, if that is soon the case."""
        if self.is_finishing:
            return
        if not self.unacked and self.rng.random() < 0.9:
            self.loop.after(_CUT_IN_BURST_S, self._cut_now_and_then)
            return
        if self._is_toggler and self.rng.random() < 0.7:
            self.clean_start = True
            self.is_promised = False
        self.cut()
        every_s = _TOGGLE_EVERY_S if self._is_toggler else _CUT_EVERY_S
        self.loop.after(self.rng.uniform(*every_s), self._cut_now_and_then)

    def release(self, packet_id: int) -> None:
        """The toggler takes its time, so that its sessions end with ids that are open."""
        if not self._is_toggler:
            super().release(packet_id)
            return
        connection = self.connection

        def later() -> None:
            if self.is_online and self.connection == connection and packet_id in self.released:
                self.send(encode_ack(PUBREL, packet_id))

        self.loop.after(self.rng.uniform(0.0, 0.4), later)

    def on_new_session(self) -> None:
        """By Clean Start: nothing of the old session is sent again, it could come twice."""
        if self.clean_start:
            for message in self.unacked.values():
                self.note("N", message.stream.index, message.seq)
            self.unacked.clear()
            self.clean_start = False
            self._last_id = 0

    def finish(self) -> None:
        self.is_finishing = True
