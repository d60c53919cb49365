"""The bus as the rest of a node sees it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Protocol

from mqtt_broker.cluster.frames.reader import Frame

# It takes a frame that was checked.
OnFrame = Callable[[Frame], object]


class Bus(Protocol):
    """A way to send frames to other nodes: any of them may be lost, late or come twice.

    None of the calls waits or raises. Frames come by `OnFrame`, in a turn.
    """

    @property
    def is_connected(self) -> bool:
        """Tell whether frames are sent at present."""

    @property
    def problem(self) -> str:
        """The reason why the bus is degraded, for people; empty: it is not."""

    def set_hosts(self, epochs: Mapping[int, str], own: Collection[int]) -> None:
        """Learn the epoch of each number that is hosted, and which of them this process hosts."""

    def send(self, sender: int, to: int, kind: int, body: bytes) -> bool:
        """Send a frame from a number of this process to one of another; False: it is dropped."""

    def broadcast(self, sender: int, kind: int, body: bytes) -> bool:
        """Send a frame to all other processes; False: it is dropped."""

    def flush(self) -> None:
        """Hand to the kernel what was sent: the turn ends."""
