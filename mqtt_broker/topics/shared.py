"""Shared subscriptions: strategies that choose the member of a group for the next message.

A strategy is a class with one method; each group has an instance of its own, so a strategy may
keep state. `members` are the members that may be chosen (those that are online, if there are
any), in the order in which they joined, and never empty. A strategy of your own is named in the
configuration as `package.module:Class`.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Sequence
from typing import Final, Protocol


class Member(Protocol):
    """A member of a group, as a strategy sees it."""

    @property
    def client_id(self) -> str: ...

    @property
    def load(self) -> int:
        """The number of messages sent and not acknowledged, and of messages queued."""


class Strategy(Protocol):
    """Chooses the member of a shared subscription that gets a message."""

    def choose(self, members: Sequence[Member], topic: str, publisher: str) -> int:
        """Return the index of the member that takes a message `publisher` sent to `topic`."""


class RoundRobin:
    def __init__(self, rng: random.Random) -> None:
        self._next = 0

    def choose(self, members: Sequence[Member], topic: str, publisher: str) -> int:
        chosen = self._next % len(members)
        self._next = chosen + 1
        return chosen


class Random:
    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def choose(self, members: Sequence[Member], topic: str, publisher: str) -> int:
        return self._rng.randrange(len(members))


class Sticky:
    """Send all messages to one member until it leaves."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._client_id = ""

    def choose(self, members: Sequence[Member], topic: str, publisher: str) -> int:
        for index, member in enumerate(members):
            if member.client_id == self._client_id:
                return index
        chosen = self._rng.randrange(len(members))
        self._client_id = members[chosen].client_id
        return chosen


class HashClient:
    """Send all messages of one publisher to one member while the group does not change."""

    def __init__(self, rng: random.Random) -> None:
        pass

    def choose(self, members: Sequence[Member], topic: str, publisher: str) -> int:
        return zlib.crc32(publisher.encode()) % len(members)


class HashTopic:
    """Send all messages of one topic to one member while the group does not change."""

    def __init__(self, rng: random.Random) -> None:
        pass

    def choose(self, members: Sequence[Member], topic: str, publisher: str) -> int:
        return zlib.crc32(topic.encode()) % len(members)


class LeastInflight:
    def __init__(self, rng: random.Random) -> None:
        pass

    def choose(self, members: Sequence[Member], topic: str, publisher: str) -> int:
        return min(range(len(members)), key=lambda index: members[index].load)


StrategyFactory = Callable[[random.Random], Strategy]

STRATEGIES: Final[dict[str, StrategyFactory]] = {
    "round_robin": RoundRobin,
    "random": Random,
    "sticky": Sticky,
    "hash_client": HashClient,
    "hash_topic": HashTopic,
    "least_inflight": LeastInflight,
}
