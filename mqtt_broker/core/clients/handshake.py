"""A CONNECT on its way to CONNACK, or a re-authentication on its way to its end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from mqtt_broker.codec.errors import Violation
from mqtt_broker.codec.packets import Connect, Packet, Publish
from mqtt_broker.core.interfaces.access import PENDING, Allow, Challenge, Reply, Verdict
from mqtt_broker.core.limits.preconnect_limits import PreconnectLimits

_PACKET_BYTES: Final = 256  # about what a packet takes in memory beside its own bytes


class Handshake:
    """Belongs to a connection from its accept to CONNACK, and again while it re-authenticates."""

    __slots__ = (
        "_buffered_bytes",
        "_limits",
        "_reply",
        "admitted_by",
        "connect",
        "deferred",
        "is_undecided",
        "proceed",
    )

    def __init__(self, limits: PreconnectLimits, connect: Connect | None = None) -> None:
        self._limits = limits
        self._buffered_bytes = 0
        self._reply: Reply | None = None  # to the newest question
        self.connect = connect  # None: it is not complete
        self.proceed: Callable[[bytes | None], Verdict] | None = None  # takes the next AUTH
        self.is_undecided = False  # the verdict comes later
        self.admitted_by: Allow | None = None  # it is allowed, and waits for the store
        self.deferred: list[Packet | Violation] = []  # came while it was being decided

    def begin(self, connect: Connect) -> None:
        """Take the CONNECT, which is complete."""
        self.stop_counting()
        self.connect = connect

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

    def stop_waiting(self) -> Allow | None:
        """Return the verdict that waited for the store, which it no longer does."""
        verdict, self.admitted_by = self.admitted_by, None
        return verdict

    # What it holds in memory.

    def count(self, size: int) -> bool:
        """Count more bytes of a CONNECT that is not complete; False: it holds too many."""
        self._buffered_bytes += size
        return self._limits.add(size, self._buffered_bytes)

    def defer(self, packets: list[Packet | Violation]) -> bool:
        """Keep packets that came behind CONNECT; False: it holds too many bytes."""
        self.deferred.extend(packets)
        size = _PACKET_BYTES * len(packets)
        for packet in packets:
            if type(packet) is Publish:
                size += len(packet.raw)
        return self.count(size)

    def take_deferred(self) -> list[Packet | Violation]:
        """Hand out the packets that were kept, in their order."""
        deferred, self.deferred = self.deferred, []
        return deferred

    def stop_counting(self) -> None:
        """Release its share of the memory that unconnected clients may hold."""
        self._limits.remove(self._buffered_bytes)
        self._buffered_bytes = 0
