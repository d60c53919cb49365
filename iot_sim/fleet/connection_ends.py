"""The ends of connections, and what each means for the will.

A will is *due* when its connection broke without DISCONNECT. It is *cancelled* when the broker has
read the DISCONNECT, or when the client came back before the Will Delay Interval was over. In all
other cases the specification leaves it open, and nothing is counted.
"""

from __future__ import annotations

from typing import Final

from iot_sim.fleet.engine import Link
from iot_sim.judge.ledger import Ledger, WillFlow

# A client that comes back around the end of the Will Delay Interval: the broker may do either.
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
        """Register the will of a CONNECT and return its number; `delay_s` is already limited."""
        if self.flow is None:
            self.flow = self._ledger.open_will(device)
        self._number = self.flow.sent
        self._delay_s = delay_s
        self.flow.sent += 1
        return self._number

    def discard(self) -> None:
        """Stop judging the current will: there is none, or either outcome is correct."""
        self._number = -1

    def take(self) -> CancelledWill | None:
        """Return the connection's will, to be confirmed as cancelled by the broker's close."""
        number, self._number = self._number, -1
        if number < 0 or self.flow is None:
            return None
        return CancelledWill(self._ledger, self.flow, number)

    def connection_broken(self, now: float) -> None:
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

    def connection_replaced(self, now: float) -> None:
        """Note that the client connects again while the broker still holds the connection.

        Without a delay the broker publishes the will when the CONNECT ends the old connection
        [MQTT-3.1.4-3]; with a delay it depends on whether the broker noticed the end before.
        """
        if self._delay_s:
            self._number = -1
        else:
            self.connection_broken(now)

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
    """A will that must not be published after the broker has read the DISCONNECT."""

    __slots__ = ("_flow", "_ledger", "_number")

    def __init__(self, ledger: Ledger, flow: WillFlow, number: int) -> None:
        self._ledger = ledger
        self._flow = flow
        self._number = number

    def confirm(self) -> None:
        self._ledger.will_cancelled(self._flow, self._number)


class ClosedConnection:
    """A connection after our DISCONNECT, until the broker closes it."""

    __slots__ = ("_will",)

    def __init__(self, will: CancelledWill | None) -> None:
        self._will = will

    def on_open(self, link: Link) -> None:
        """Do nothing: the connection was open before."""

    def on_data(self, link: Link, data: bytes) -> None:
        """Ignore data that arrives after our DISCONNECT."""

    def on_end(self, link: Link, why: str) -> None:
        """Confirm that the will is cancelled: a broker that closes has read our DISCONNECT."""
        if not why and self._will is not None:
            self._will.confirm()


class ReplacedConnection:
    """A connection after a take-over, until the broker closes it."""

    __slots__ = ()

    def on_open(self, link: Link) -> None:
        """Do nothing: the connection was open before."""

    def on_data(self, link: Link, data: bytes) -> None:
        """Ignore messages: the broker sends QoS 1 and 2 again on the new connection."""

    def on_end(self, link: Link, why: str) -> None:
        """Do nothing: the broker must close a connection that was taken over."""
