"""The broker's end of a socket, and the set of them that the broker keeps."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.fuzz.broker.facts import Door

if TYPE_CHECKING:
    from tests.fuzz.broker.actor import Actor
    from tests.fuzz.broker.world import World


class Link:
    """A socket that takes everything at once."""

    def __init__(self, world: World, actor: Actor, number: int) -> None:
        self.peer = f"192.0.2.1:{number}"
        self.actor = actor
        self.door = Door(number, last_heard=world.now)
        self.opened_at = world.now
        self.opened_stamp = world.model.stamp
        self.unread = bytearray()
        self.is_closed = False  # by the broker
        self.is_lost = False  # and it has been told so
        self.is_paused = False
        self.connection = world.broker.accept(self, world.now)

    @property
    def is_welcome(self) -> bool:
        """Whether a CONNACK that lets it in is the next that it reads."""
        return len(self.unread) > 3 and self.unread[0] == 0x20 and not self.unread[3]

    def write(self, data: bytes) -> int:
        if not self.is_closed:
            self.unread += data
        return 0

    def close(self) -> None:
        self.is_closed = True

    abort = close

    def pause_reading(self) -> None:
        self.is_paused = True

    def resume_reading(self) -> None:
        self.is_paused = False
