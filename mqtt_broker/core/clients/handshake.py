"""A CONNECT on its way to CONNACK, or a re-authentication on its way to its end."""

from __future__ import annotations

from collections.abc import Callable

from mqtt_broker.codec.errors import Violation
from mqtt_broker.codec.packets import Connect, Packet
from mqtt_broker.core.clients.unfinished import packet_bytes
from mqtt_broker.core.interfaces.access import PENDING, Allow, Challenge, Reply, Verdict
from mqtt_broker.core.limits.preconnect_limits import PreconnectLimits


class Handshake:
    """Belongs to a connection from its accept to CONNACK, and again while it re-authenticates."""

    __slots__ = (
        "_buffered_bytes",
        "_incomplete_bytes",
        "_limits",
        "_reply",
        "admitted_by",
        "connect",
        "has_claimed",
        "is_undecided",
        "proceed",
    )

    def __init__(self, limits: PreconnectLimits, connect: Connect | None = None) -> None:
        self._limits = limits
        self._buffered_bytes = 0
        self._incomplete_bytes = 0  # of these, those of packets that are not complete
        self._reply: Reply | None = None  # to the newest question
        self.connect = connect  # None: it is not complete
        self.proceed: Callable[[bytes | None], Verdict] | None = None  # takes the next AUTH
        self.is_undecided = False  # the verdict comes later
        self.admitted_by: Allow | None = None  # it is allowed, and waits for the store
        self.has_claimed = False  # its client, from other brokers

    def begin(self, connect: Connect) -> bool:
        """Take the CONNECT, which is complete; False: it holds too many bytes while it waits."""
        self.stop_counting()
        self.connect = connect
        return self._count(connect.size)

    def ask(self, reply: Reply) -> None:
        """Expect the verdict of a new question; the answer to an older one is ignored."""
        self._reply = reply

    def awaits(self, reply: Reply) -> bool:
        """Tell whether this is the reply to the newest question."""
        return self._reply is reply

    def take_verdict(self, verdict: Verdict) -> None:
        """Note what happens next: the verdict comes later, AUTH comes, or neither."""
        self.is_undecided = verdict is PENDING
        self.proceed = verdict.proceed if isinstance(verdict, Challenge) else None

    def decide(self) -> None:
        """Take the late verdict: it is no longer undecided."""
        self.is_undecided = False

    def wait_for_store(self, verdict: Allow) -> None:
        """Keep the verdict until the store has what CONNACK says."""
        self.admitted_by = verdict

    def claim(self) -> None:
        """Note that the client is claimed for this CONNECT."""
        self.has_claimed = True

    def stop_waiting(self) -> Allow | None:
        """Return the verdict that waited for the store, which it no longer does."""
        verdict, self.admitted_by = self.admitted_by, None
        return verdict

    # What it holds in memory.

    def hold(self, size: int) -> bool:
        """Count the `size` bytes that are kept by now of what is not complete, a CONNECT or an
        answer to a challenge; False: it holds too many.
        """
        grown = size - self._incomplete_bytes
        self._incomplete_bytes = size
        return self._count(grown)

    def _count(self, size: int) -> bool:
        self._buffered_bytes += size
        return self._limits.add(size, self._buffered_bytes)

    def count_packets(self, packets: list[Packet | Violation]) -> bool:
        """Count packets that came behind CONNECT and wait; False: it holds too many bytes."""
        return self._count(sum([packet_bytes(packet) for packet in packets]))

    def stop_counting(self) -> None:
        """Release its share of the memory that unconnected clients may hold."""
        self._limits.remove(self._buffered_bytes)
        self._buffered_bytes = self._incomplete_bytes = 0
