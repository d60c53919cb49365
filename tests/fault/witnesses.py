"""Special clients: one reads what is retained, two have wills, one watches for them, one renews."""

from __future__ import annotations

import time
from typing import Final

from mqtt_broker.codec import properties as prop
from mqtt_broker.codec.constants import PUBREC, PUBREL, V5
from mqtt_broker.codec.encode import PINGREQ_BYTES, encode_ack, encode_from_client, encode_publish
from mqtt_broker.codec.packets import (
    Ack,
    Packet,
    Pingresp,
    Publish,
    Suback,
    Subscribe,
    SubscriptionRequest,
    Unsuback,
    Unsubscribe,
    Will,
)
from mqtt_broker.codec.properties import Properties
from tests.fault import plan
from tests.fault.client import Client, Loop
from tests.fault.plan import STATUS_TOPIC, WILL_DELAY_S, WILL_TOPIC, Plan
from tests.fault.publisher import Sending

_READ_EVERY_S: Final = 0.4
_QUICK_S: Final = 0.1
_RENEW_S: Final = 0.05
_NO_SUBSCRIPTION: Final = 0x11
_LONG_S: Final = WILL_DELAY_S + 3.0


class Reader(Client):
    """Comes as somebody new, subscribes to all that is retained, and goes."""

    clean_start = True

    def __init__(self, loop: Loop, made: Plan) -> None:
        super().__init__(loop, "reader", made.rng("reader"))
        self.expiry_s = 0
        self._since = 0.0

    def on_connected(self, present: bool, told: Properties) -> None:
        self._since = time.monotonic()
        subscribe = Subscribe(1, [SubscriptionRequest("state/#", 0)])
        # What is retained comes before the answer to a ping that is behind SUBSCRIBE.
        self.send(encode_from_client(V5, subscribe) + PINGREQ_BYTES)

    def on_packet(self, packet: Packet) -> None:
        if isinstance(packet, Publish):
            for payload in packet.payloads():
                try:
                    stream, seq = plan.read(payload)
                except ValueError as error:
                    self.complain(f"retained {error} on {packet.topic}")
                    continue
                self.note("R", stream, seq)
        elif isinstance(packet, Pingresp):
            self.note("F", f"{self._since:.6f}")
            self.leave("disconnect")
            self.loop.after(_READ_EVERY_S, self.come)


class Mourner(Sending):
    """Has a will with a delay, dies a violent death, and comes back soon or late.

    Each connection is an episode and brings its own will. A QoS 2 message that is taken, for
    a subscriber that is away, says that the broker keeps the will too: it was written first.
    """

    def __init__(self, loop: Loop, made: Plan) -> None:
        super().__init__(loop, "mourner", made.rng("mourner"))
        self._begin()
        self._stream = made.streams[-1]
        self._episode = 0
        self.is_staying = False

    def will(self) -> Will:
        self._episode += 1
        self.note("T", self._episode)
        found = Properties({prop.WILL_DELAY_INTERVAL: WILL_DELAY_S})
        return Will(WILL_TOPIC, b"%d" % self._episode, 2, False, found)

    def on_connected(self, present: bool, told: Properties) -> None:
        super().on_connected(present, told)
        if self.room > 0:
            self.publish(self._stream, 0)

    def _on_pubrec(self, packet: Ack) -> None:
        super()._on_pubrec(packet)
        if not self.unacked:
            self.note("P", self._episode)
            if not self.is_staying:
                self.loop.after(self.rng.uniform(0.0, 0.5), self._die)

    def _die(self) -> None:
        if self.is_online and not self.is_staying:
            self.is_wanted = False
            self.cut()

    def on_lost(self) -> None:
        self.note("W", self._episode)
        self.is_wanted = False
        wait_s = _LONG_S if self.rng.random() < 0.5 else _QUICK_S
        self.loop.after(wait_s, self.come)

    def stay(self) -> None:
        """The end: come, and do not die again."""
        self.is_staying = True


class Beacon(Client):
    """Says that it is online, by a retained message, and has a will that says that it is not.

    Its session ends with its connection, so a broker that dies has to know the will by itself.
    Each connection is an episode. It leaves in order now and then, else it stays.
    """

    clean_start = True

    def __init__(self, loop: Loop, made: Plan) -> None:
        super().__init__(loop, "beacon", made.rng("beacon"))
        self.expiry_s = 0
        self.is_staying = False
        self._episode = 0

    def will(self) -> Will:
        self._episode += 1
        return Will(STATUS_TOPIC, b"offline %d" % self._episode, 2, True, Properties())

    def on_connected(self, present: bool, told: Properties) -> None:
        payload = b"online %d" % self._episode
        self.send(encode_publish(V5, STATUS_TOPIC, payload, qos=2, retain=True, packet_id=1))

    def on_packet(self, packet: Packet) -> None:
        if not isinstance(packet, Ack):
            self.complain(f"{type(packet).__name__} to the beacon")
        elif packet.packet_type == PUBREC:
            self.note("B", self._episode)
            self.send(encode_ack(PUBREL, 1))
            self.loop.after(self.rng.uniform(0.3, 3.0), self._go)

    def _go(self) -> None:
        if not self.is_online or self.is_staying:
            return
        if self.rng.random() < 0.5:
            self.note("O", self._episode)
            self.leave("disconnect")
        else:
            self.leave(self.rng.choice(("close", "reset")))
        self.loop.after(self.rng.uniform(0.0, 0.3), self._come_back)

    def _come_back(self) -> None:
        if not self.is_staying:
            self.come()

    def stay_away(self) -> None:
        """The end: go in order, and do not come again."""
        self.is_staying = True
        if self.is_online:
            self.note("O", self._episode)
        self.leave("disconnect")


class Renewer(Client):
    """Begins a new session by Clean Start, again and again, and asks whether the old one is back.

    Each session has a subscription of its own that SUBACK has confirmed. Once CONNACK has said
    that a session is over, no later one may have its subscription: UNSUBSCRIBE finds none.
    """

    def __init__(self, loop: Loop, made: Plan) -> None:
        super().__init__(loop, "renewer", made.rng("renewer"))
        self._session = 1
        self.is_staying = False

    def on_connected(self, present: bool, told: Properties) -> None:
        if self.clean_start:
            self._session += 1
            self.clean_start = False
        topics = [self._topic(self._session - 1)]
        self.send(encode_from_client(V5, Unsubscribe(1, topics)))
        requests = [SubscriptionRequest(self._topic(self._session), 1)]
        self.send(encode_from_client(V5, Subscribe(2, requests)))

    def on_packet(self, packet: Packet) -> None:
        if isinstance(packet, Unsuback):
            if packet.reasons != [_NO_SUBSCRIPTION]:
                self.complain(f"session {self._session - 1} is back, which CONNACK said was over")
        elif isinstance(packet, Suback):
            self.is_promised = True
            self.loop.after(self.rng.uniform(0.0, _RENEW_S), self._renew)
        else:
            self.complain(f"{type(packet).__name__} to the renewer")

    def _renew(self) -> None:
        if self.is_promised and not self.is_staying:
            self.clean_start = True
            self.is_promised = False
            self.leave(self.rng.choice(("disconnect", "close")))
            self.come()

    def stay(self) -> None:
        """The end: begin no more sessions."""
        self.is_staying = True

    def _topic(self, session: int) -> str:
        return f"renewer/{session}"


class Watcher(Client):
    """Always there, and notes the wills that arrive."""

    def __init__(self, loop: Loop, made: Plan) -> None:
        super().__init__(loop, "watcher", made.rng("watcher"))
        self._open: dict[int, bytes] = {}
        self.is_settled = False

    def on_connected(self, present: bool, told: Properties) -> None:
        if not present:
            self._open.clear()
            self.is_settled = False
        if not self.is_settled:
            requests = [
                SubscriptionRequest(topic, 2, retain_handling=2)
                for topic in (WILL_TOPIC, STATUS_TOPIC)
            ]
            self.send(encode_from_client(V5, Subscribe(1, requests)))

    def on_packet(self, packet: Packet) -> None:
        if isinstance(packet, Suback):
            self.is_settled = self.is_promised = True
        elif isinstance(packet, Publish):
            for packet_id, payload in zip(packet.packet_ids(), packet.payloads(), strict=True):
                if packet_id not in self._open:
                    self._open[packet_id] = payload
                    self._note(payload.decode())
                self.send(encode_ack(PUBREC, packet_id))
        elif isinstance(packet, Ack) and packet.packet_type == PUBREL:
            for packet_id in packet.packet_ids:
                self._open.pop(packet_id, None)
                self.send(encode_ack(7, packet_id))

    def _note(self, text: str) -> None:
        word, _, episode = text.rpartition(" ")
        self.note({"": "D", "online": "I", "offline": "J"}[word], episode)
