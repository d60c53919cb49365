"""The ends of connections, and the fate of the will of each.

A will is *due* when its connection broke without a word, *void* when the client said goodbye
and the broker heard it, or came back before the Will Delay was over; in every other case
nobody can say what a broker has to do, and nothing is counted.
"""

from __future__ import annotations

from typing import Final

from iot_sim.fleet.engine import Link
from iot_sim.judge.ledger import Ledger, WillFlow

# A broker may publish a delayed will some time about its hour; there it may also hold it back.
EARLY_S: Final = 1.0
LATE_S: Final = 2.0


class Wills:
    """The wills of one client: the one the broker holds now, and those of broken connections."""

    __slots__ = ("_delay_s", "_ledger", "_number", "_pending", "flow")

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self.flow: WillFlow | None = None
        self._number = -1  # of the will of this connection; -1: there is none
        self._delay_s = 0
        self._pending: list[tuple[int, float]] | None = None  # number, broken at

    def register(self, device: str, delay_s: int) -> int:
        """Register the will of a CONNECT; `delay_s` ends with the session at the latest."""
        if self.flow is None:
            self.flow = self._ledger.open_will(device)
        self._number = self.flow.sent
        self._delay_s = delay_s
        self.flow.sent += 1
        return self._number

    def none(self) -> None:
        """Stop expecting the current will: there is none, or its fate cannot be known."""
        self._number = -1

    def take(self) -> CancelledWill | None:
        """Take the connection's will, to be cancelled once the broker has read our DISCONNECT."""
        number, self._number = self._number, -1
        if number < 0 or self.flow is None:
            return None
        return CancelledWill(self._ledger, self.flow, number)

    def broken(self, now: float) -> None:
        """Note that the connection broke without a DISCONNECT: its will becomes due."""
        number, self._number = self._number, -1
        if number < 0 or self.flow is None:
            return
        if not self._delay_s:
            self._ledger.will_due(self.flow, number, now)
        elif self._pending is None:
            self._pending = [(number, now)]
        else:
            self._pending.append((number, now))

    def taken_over(self, now: float) -> None:
        """Note that the client connects again while the broker still holds the connection.

        Without a delay the will is published when that CONNECT ends it [MQTT-3.1.4-3]; with one
        it depends on whether the broker had found out before.
        """
        if self._delay_s:
            self._number = -1
        else:
            self.broken(now)

    def settle(self, now: float, *, resumed: bool) -> None:
        """Decide delayed wills when the client is back, or when the run is over."""
        pending, flow = self._pending, self.flow
        if not pending or flow is None:
            return
        self._pending = None
        for number, broken_at in pending:
            waited_s = now - broken_at
            if waited_s > self._delay_s + LATE_S:
                self._ledger.will_due(flow, number, now)
            elif waited_s < self._delay_s - EARLY_S and resumed:
                self._ledger.will_cancelled(flow, number)


class CancelledWill:
    """A will that must not be published any more."""

    __slots__ = ("_flow", "_ledger", "_number")

    def __init__(self, ledger: Ledger, flow: WillFlow, number: int) -> None:
        self._ledger = ledger
        self._flow = flow
        self._number = number

    def tell(self) -> None:
        self._ledger.will_cancelled(self._flow, self._number)


class ClosedConnection:
    """A connection after our DISCONNECT, until the broker closes it."""

    __slots__ = ("_void",)

    def __init__(self, void: CancelledWill | None) -> None:
        self._void = void

    def on_open(self, link: Link) -> None:
        """Do nothing: the connection was open before."""

    def on_data(self, link: Link, data: bytes) -> None:
        """Ignore data that arrives after our DISCONNECT."""

    def on_end(self, link: Link, why: str) -> None:
        """Cancel the will if the broker closed in order: it has read our DISCONNECT."""
        if not why and self._void is not None:
            self._void.tell()


class ReplacedConnection:
    """A connection whose client id connected again: the broker is to end it."""

    __slots__ = ()

    def on_open(self, link: Link) -> None:
        """Do nothing: the connection was open before."""

    def on_data(self, link: Link, data: bytes) -> None:
        """Ignore messages to the old connection; QoS 1 and 2 come again on the new one."""

    def on_end(self, link: Link, why: str) -> None:
        """Do nothing: the broker has to close a connection that was taken over."""
