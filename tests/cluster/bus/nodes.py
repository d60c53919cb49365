"""Nodes that are a bus and nothing else, on one loop, in the test's own thread."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Collection
from types import TracebackType
from typing import Any, Final, Self

from mqtt_broker.cluster.bus.nats_bus import NatsBus
from mqtt_broker.cluster.bus.settings import NatsSettings
from mqtt_broker.cluster.frames.bodies import encode_ping
from mqtt_broker.cluster.frames.layout import PING, FrameKey
from mqtt_broker.cluster.frames.reader import Frame
from mqtt_broker.server.net.event_loop import TurnLoop

SECRET: Final = bytes(range(32))
PATIENCE_S: Final = 60.0
_STEP_S: Final = 0.002


class Node:
    """A bus, and the frames that came."""

    def __init__(self, loop: TurnLoop, settings: NatsSettings, secret: bytes, seed: int) -> None:
        self.frames: list[Frame] = []
        self.bus = NatsBus(
            settings,
            FrameKey(settings.cluster, secret),
            self.frames.append,
            loop.poller,
            loop,
            random.Random(seed),
        )

    def ping(self, sender: int, to: int, number: int) -> bool:
        return self.bus.send(sender, to, PING, encode_ping(number))

    @property
    def bodies(self) -> list[object]:
        return [frame.body for frame in self.frames]


class Nodes:
    """The nodes of a test, and their loop."""

    def __init__(self) -> None:
        self.loop = TurnLoop()
        self.loop.poller.end_turn = self._end_turn
        self.nodes: list[Node] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for node in self.nodes:
            node.bus.stop()
        self.loop.run_until_complete(self.loop.shutdown_default_executor())
        self.loop.close()

    def add(
        self,
        own: Collection[int],
        *urls: str,
        cluster: str = "fleet",
        secret: bytes = SECRET,
        start: bool = True,
        **more: str,
    ) -> Node:
        """A node that hosts these numbers of 1, 2 and 3."""
        settings = NatsSettings(cluster, urls, **more)
        node = Node(self.loop, settings, secret, len(self.nodes))
        node.bus.set_hosts({1: "a", 2: "b", 3: "c"}, own)
        self.nodes.append(node)
        if start:
            node.bus.start()
        return node

    def connected(self, *urls: str, count: int = 2, **more: Any) -> list[Node]:
        """Nodes that host 1, 2, and so on, and are connected."""
        found = [self.add([number + 1], *urls, **more) for number in range(count)]
        self.until(lambda: all(node.bus.is_connected for node in found))
        return found

    def until(self, holds: Callable[[], object]) -> None:
        """Serve until something holds."""
        self.loop.run_until_complete(self._until(holds))

    def run_for(self, seconds: float) -> None:
        """Serve for some time, for what has to happen as well as for what may not."""
        self.loop.run_until_complete(asyncio.sleep(seconds))

    async def _until(self, holds: Callable[[], object]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not holds():
            if time.monotonic() > deadline:
                problems = [node.bus.problem for node in self.nodes]
                raise AssertionError(f"it does not come to hold; problems: {problems}")
            self._end_turn()
            await asyncio.sleep(_STEP_S)

    def _end_turn(self) -> None:
        for node in self.nodes:
            node.bus.flush()
