"""A subscriber: acknowledges as the standard says, keeps its ids, and cuts where it hurts."""

from __future__ import annotations

from typing import Final

from mqtt_broker.codec.constants import PUBACK, PUBCOMP, PUBREC, PUBREL, V5
from mqtt_broker.codec.encode import encode_ack, encode_from_client
from mqtt_broker.codec.packets import (
    Ack,
    Packet,
    Publish,
    Suback,
    Subscribe,
    SubscriptionRequest,
    Unsuback,
    Unsubscribe,
)
from mqtt_broker.codec.properties import Properties
from tests.fault import plan
from tests.fault.client import Client, Loop
from tests.fault.plan import Plan, Taker

_NOT_FOUND: Final = 0x92
_ONLINE_S: Final = (0.3, 2.0)
_AWAY_S: Final = (0.2, 4.0)
_CHURN_S: Final = (0.05, 0.6)
_RENEW_S: Final = (0.2, 2.0)
_CUT_CHANCE: Final = 0.004
_DO_NOT_SEND_RETAINED: Final = 2


class Subscriber(Client):
    def __init__(self, loop: Loop, made: Plan, taker: Taker) -> None:
        super().__init__(
            loop, taker.name, made.rng(taker.name), receive_maximum=taker.receive_maximum
        )
        self.taker = taker
        self.expiry_s = taker.expiry_s
        self.clean_start = taker.is_fleeting
        self.got = 0
        self.is_gathering = False
        self._qos = {stream.index: min(stream.qos, taker.qos) for stream in made.streams}
        self._topics = {stream.index: stream.topic for stream in made.streams}
        # The session: the QoS 2 ids of the broker that are open, and what came under them.
        self._open: dict[int, tuple[int, int]] = {}
        self._unacked = 0  # QoS 1 messages whose PUBACK waits for `ack_pause_s`
        # Filters by number: wanted, and what the broker said.
        self._wanted = [True] * len(taker.filters)
        self._granted = [False] * len(taker.filters)
        self._requests: dict[int, int] = {}  # packet id -> filter, of this connection
        self._last_id = 0
        if taker.comes_and_goes:
            loop.after(self.rng.uniform(*_ONLINE_S), self._go)
        if taker.is_churning:
            loop.after(self.rng.uniform(*_CHURN_S), self._churn)
        if taker.is_renewing:
            loop.after(self.rng.uniform(*_RENEW_S), self._renew)

    # Coming and going.

    @property
    def is_settled(self) -> bool:
        """Whether every subscription is as it is wanted, acknowledged."""
        return self._wanted == self._granted

    def _go(self) -> None:
        if self.is_gathering:
            return
        if not self.is_settled:
            self.loop.after(self.rng.uniform(*_ONLINE_S), self._go)
            return
        self.leave(self.rng.choice(("disconnect", "close", "reset", "torn")))
        self.loop.after(self.rng.uniform(*_AWAY_S), self._come_back)

    def _come_back(self) -> None:
        self.come()
        self.loop.after(self.rng.uniform(*_ONLINE_S), self._go)

    def gather(self) -> None:
        """The end: be here, and stay."""
        self.is_gathering = True
        self.come()

    def _churn(self) -> None:
        if self.is_gathering:
            return
        number = self.rng.randrange(len(self._wanted))
        if self.is_online and not self._requests:
            self._wanted[number] = not self._wanted[number]
            self._ask(number)
        self.loop.after(self.rng.uniform(*_CHURN_S), self._churn)

    def _renew(self) -> None:
        """Come again as somebody new, by Clean Start until the new session is promised."""
        if self.is_gathering:
            return
        if self.is_promised and self.is_online:
            self.clean_start = True
            self.is_promised = False
            self.note("Z", self.name)
            self.leave(self.rng.choice(("disconnect", "close")))
            self.come()
        self.loop.after(self.rng.uniform(*_RENEW_S), self._renew)

    def _is_cut_here(self) -> bool:
        cutting = self.taker.is_cutting and not self.is_gathering
        return cutting and self.rng.random() < _CUT_CHANCE

    # Subscriptions.

    def _ask(self, number: int) -> None:
        """Make the broker's side what is wanted."""
        self._last_id = packet_id = self._last_id % 65_535 + 1
        self._requests[packet_id] = number
        text = self.taker.asked(number)
        if self._wanted[number]:
            request = SubscriptionRequest(
                text, self.taker.qos, retain_handling=_DO_NOT_SEND_RETAINED
            )
            self.note("Q", self.name, number)
            self.send(encode_from_client(V5, Subscribe(packet_id, [request])))
        else:
            self.note("U", self.name, number)
            self.send(encode_from_client(V5, Unsubscribe(packet_id, [text])))

    def _on_answer(self, packet: Suback | Unsuback) -> None:
        number = self._requests.pop(packet.packet_id, None)
        if number is None or self._wanted[number] != isinstance(packet, Suback):
            self.complain(f"{type(packet).__name__} for {packet.packet_id}, unasked")
            return
        if isinstance(packet, Suback):
            if packet.reasons != [self.taker.qos]:
                self.complain(f"SUBACK {packet.reasons} for QoS {self.taker.qos}")
            self.note("K", self.name, number)
        else:
            # Asked twice, because the first answer was lost: there is nothing any more.
            if packet.reasons not in ([0], [0x11]):
                self.complain(f"UNSUBACK {packet.reasons}")
            self.note("V", self.name, number)
        self._granted[number] = self._wanted[number]
        if not self.taker.is_fleeting:
            self.is_promised = True
            self.clean_start = False
        if self.taker.is_late and self.is_settled and not self.is_gathering:
            self.leave("disconnect")

    # Connections.

    def on_connected(self, present: bool, told: Properties) -> None:
        self._requests.clear()
        self._unacked = 0
        if not present:
            self._open.clear()
            self._granted = [False] * len(self._granted)
        for number, wanted in enumerate(self._wanted):
            if wanted != self._granted[number]:
                self._ask(number)

    def on_packet(self, packet: Packet) -> None:
        if isinstance(packet, Publish):
            self._on_publish(packet)
        elif isinstance(packet, Ack) and packet.packet_type == PUBREL:
            for packet_id in packet.packet_ids:
                self._on_pubrel(packet_id)
        elif isinstance(packet, Suback | Unsuback):
            self._on_answer(packet)
        else:
            self.complain(f"{type(packet).__name__} to a subscriber")

    # Messages.

    def _on_publish(self, packet: Publish) -> None:
        connection = self.connection
        ids = packet.packet_ids() if packet.qos else [0] * packet.count
        for packet_id, payload in zip(ids, packet.payloads(), strict=True):
            self._on_message(packet_id, payload, packet)
            if self.connection != connection or not self.is_online:
                return

    def _on_message(self, packet_id: int, payload: bytes, packet: Publish) -> None:
        try:
            key = plan.read(payload)
        except ValueError as error:
            self.complain(f"delivered {error} on {packet.topic}")
            return
        stream = key[0]
        if packet.topic != self._topics[stream] or packet.qos != self._qos[stream]:
            self.complain(f"delivered {key} on {packet.topic} at QoS {packet.qos}")
        if packet.qos == 1:
            self._deliver(key, 1)
            self._unacked += 1
            self._check_quota()
            self._answer(PUBACK, packet_id)
        elif packet.qos == 2:
            known = self._open.get(packet_id)
            if known is None:
                self._open[packet_id] = key
                self._deliver(key, 2)
                self._check_quota()
            elif known != key:
                self.complain(f"used id {packet_id} of {known} for {key}")
            elif not packet.dup:
                self.complain(f"repeated {key} under its id {packet_id} without DUP")
            if self._is_cut_here():
                self.cut()
                return
            self._answer(PUBREC, packet_id)
            if self._is_cut_here():
                self.flush()
                self.cut()

    def _deliver(self, key: tuple[int, int], qos: int) -> None:
        self.got += 1
        self.note("G", self.name, *key, qos)

    def _check_quota(self) -> None:
        if len(self._open) + self._unacked > self.receive_maximum:
            self.complain(f"more than {self.receive_maximum} messages at once")

    def _on_pubrel(self, packet_id: int) -> None:
        known = self._open.pop(packet_id, None)
        if self._is_cut_here():  # PUBREL arrived, PUBCOMP never leaves
            self.cut()
            return
        self._answer(PUBCOMP, packet_id, _NOT_FOUND if known is None else 0)

    def _answer(self, packet_type: int, packet_id: int, reason: int = 0) -> None:
        if not self.taker.ack_pause_s:
            self._write(packet_type, packet_id, reason)
            return
        connection = self.connection

        def later() -> None:
            if self.is_online and self.connection == connection:
                self._write(packet_type, packet_id, reason)

        self.loop.after(self.taker.ack_pause_s, later)

    def _write(self, packet_type: int, packet_id: int, reason: int) -> None:
        if packet_type == PUBACK:
            self._unacked -= 1
        self.send(encode_ack(packet_type, packet_id, reason))

    @property
    def is_busy(self) -> bool:
        return bool(self._open) or not self.is_online
