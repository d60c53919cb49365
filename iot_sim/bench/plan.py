"""Describe what one run of the load generator does."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from mqtt_broker.codec.constants import V5

CONNECT: Final = "conn"
PUBLISH: Final = "pub"
SUBSCRIBE: Final = "sub"
_PLACE: Final = re.compile("%[ciu]")


@dataclass(frozen=True, slots=True)
class Plan:
    """A run: so many clients that only connect, or publish, or subscribe."""

    action: str
    clients: int
    first: int = 1  # number of the first client
    connect_rate: float = 100.0  # connections a second
    duration_s: float = 0.0  # from the start; 0: until it is stopped
    version: int = V5
    prefix: str = "bench"
    username: str | None = None
    password: bytes | None = None
    keep_alive_s: int = 60
    clean_start: bool = True
    session_expiry_s: int = 0
    reconnects: bool = False
    topic: str = ""
    qos: int = 0
    retain: bool = False
    interval_s: float = 1.0  # between two messages of one publisher
    messages: int = 0  # of one publisher; 0: no end
    payload: bytes | None = None  # None: `payload_bytes`, with the time of sending
    payload_bytes: int = 256
    inflight: int = 100  # messages of one publisher that await an acknowledgement

    def client_id(self, number: int) -> str:
        return f"{self.prefix}-{self.action}-{number}"

    def user_of(self, number: int) -> str | None:
        return None if self.username is None else self._placed(self.username, number, "")

    def topic_of(self, number: int) -> str:
        """Return the topic of a client: %i is its number, %c its client id, %u its user name."""
        return self._placed(self.topic, number, self.user_of(number) or "")

    def _placed(self, text: str, number: int, user: str) -> str:
        places = {"%i": str(number), "%c": self.client_id(number), "%u": user}
        return _PLACE.sub(lambda found: places[found[0]], text)
