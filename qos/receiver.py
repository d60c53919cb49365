"""The inbound half: the QoS 2 ids that the peer has not released, and the peer's quota."""

from __future__ import annotations


class Receiver:
    """Remembers inbound QoS 2 ids so that a repeated PUBLISH is delivered once.

    `held` counts QoS 1 messages whose PUBACK waits, if the caller keeps it. Together with the open
    QoS 2 exchanges it must not exceed `limit`, the Receive Maximum that we announced.
    [MQTT-3.3.4-7], [MQTT-4.3.3-10]
    """

    __slots__ = ("held", "ids", "limit")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.ids: set[int] = set()  # open exchanges; a PUBLISH with one of them is a repetition
        self.held = 0

    def on_publish(self, packet_id: int) -> bool:
        """Record a PUBLISH; return True if its id is new, False if it repeats an open exchange."""
        if packet_id in self.ids:
            return False
        self.ids.add(packet_id)
        return True

    def over_quota(self, more: int = 0) -> bool:
        """Tell whether the peer exceeds the announced quota, with `more` messages in addition."""
        return len(self.ids) + self.held + more > self.limit

    def on_pubrel(self, packet_id: int) -> bool:
        """End the exchange; return True if the id was open.

        An id stays open until PUBREL, even if its message has expired. [MQTT-4.3.3-13]
        """
        if packet_id not in self.ids:
            return False
        self.ids.remove(packet_id)
        return True

    def refuse(self, packet_id: int) -> None:
        """Close an exchange that was answered with an error in PUBREC."""
        self.ids.discard(packet_id)
