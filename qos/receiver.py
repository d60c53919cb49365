"""The inbound side: QoS 2 ids the peer has sent and not released, and the peer's quota."""

from __future__ import annotations


class Receiver:
    """Remembers inbound QoS 2 ids so that a repeated PUBLISH is delivered once.

    `held` counts QoS 1 messages that are not answered yet, where somebody keeps count; together
    with the open QoS 2 exchanges it is what the peer has under way, which may not exceed
    `limit`, the Receive Maximum we announced. [MQTT-3.3.4-7], [MQTT-4.3.3-10]
    """

    __slots__ = ("_repeated", "held", "ids", "limit")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.ids: dict[int, int] = {}  # open id -> fingerprint of what was sent under it
        self.held = 0
        self._repeated: set[int] = set()

    def on_publish(self, packet_id: int, fingerprint: int = 0) -> bool:
        """True when the id opens a new exchange, False when it repeats an open one."""
        if packet_id in self.ids:
            return False
        self.ids[packet_id] = fingerprint
        return True

    def is_stuck(self, packet_id: int, fingerprint: int) -> bool:
        """Whether the peer repeats an open id, on one connection, once too often.

        A peer that never releases an id and goes on using it would otherwise be answered
        for ever. Other content under the id is a new message to the peer: it starts anew.
        """
        if self.ids[packet_id] != fingerprint:
            self.ids[packet_id] = fingerprint
            self._repeated.discard(packet_id)
            return False
        if packet_id in self._repeated:
            return True
        self._repeated.add(packet_id)
        return False

    def over_quota(self, more: int = 0) -> bool:
        """Whether the peer has more under way than we allowed, with `more` about to come."""
        return len(self.ids) + self.held + more > self.limit

    def on_pubrel(self, packet_id: int) -> bool:
        """True when the id was open. Either way the exchange is over.

        An id stays open until then, though its message has expired. [MQTT-4.3.3-13]
        """
        self._repeated.discard(packet_id)
        return self.ids.pop(packet_id, None) is not None

    def refuse(self, packet_id: int) -> None:
        """We answered PUBREC with an error: the exchange never opened."""
        self.ids.pop(packet_id, None)

    def on_reconnect(self) -> None:
        """A new connection may repeat each open id once more."""
        self._repeated.clear()
