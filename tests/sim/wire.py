"""One TCP connection of the simulation: bytes keep their order, and nothing else is certain.

Towards the broker it is a `Link`. Bytes travel in chunks of any size with any delay; the
kernel of the receiving side holds only so much, and the rest is the backlog of which
`write` and `on_written` speak. The client may vanish at any byte, and the broker may learn
of it at once, late, or never.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from mqtt_broker.codec.decode import Decoder

if TYPE_CHECKING:
    from tests.sim.client import Client
    from tests.sim.world import World


class Wire:
    def __init__(self, world: World, client: Client, number: int) -> None:
        self.world = world
        self.client = client
        self.rng: random.Random = world.rng
        self.number = number
        self.peer = f"192.0.2.1:{number}"
        self.room = self.rng.choice([64, 400, 4_000, 1 << 20])  # of the client's kernel
        self.delay_s = self.rng.choice([0.0, 0.01, 0.2])
        self.is_closed = False  # by the broker
        self.is_paused = False
        self.is_cut = False  # the client has gone
        self.is_lost = False  # the broker was told
        self.on_its_way = bytearray()  # client to broker
        self.arrived = bytearray()  # read by nobody yet
        self.kernel = bytearray()  # broker to client
        self.backlog = bytearray()
        self._reads = False
        self._travels = False
        # What passes at the broker's door, read by the oracles.
        self.heard = Decoder(version=client.version)
        self.heard.version = 0
        self.said = Decoder(from_server=True, version=client.version)
        self.connection = world.broker.accept(self, world.now)

    # The broker's side.

    def write(self, data: bytes) -> int:
        if self.is_closed:
            return 0
        self.world.model.on_written(self, data)
        self.backlog += data
        self._fill()
        return len(self.backlog)

    def close(self) -> None:
        if self.is_closed:
            return
        self.is_closed = True
        self.world.model.on_closed(self)
        self.kernel += self.backlog
        if self.rng.random() < 0.2:  # the client's bytes met a socket that was closed: RST
            del self.kernel[self.rng.randrange(len(self.kernel) + 1) :]
        self.backlog.clear()
        self._read_soon()
        self.world.lose_soon(self)

    def abort(self) -> None:
        if not self.is_closed:
            self.is_closed = True
            self.world.model.on_closed(self)
            self.kernel.clear()
            self.backlog.clear()
            self._read_soon()
            self.world.lose_soon(self)

    def pause_reading(self) -> None:
        self.is_paused = True

    def resume_reading(self) -> None:
        self.is_paused = False
        if self.arrived:
            self.world.ready(self)

    def take(self) -> bytes:
        """What one read gives: any number of the bytes that arrived."""
        count = len(self.arrived)
        if self.rng.random() < 0.3:
            count = self.rng.randint(1, count)
        data = bytes(self.arrived[:count])
        del self.arrived[:count]
        if self.arrived:
            self.world.ready(self)
        return data

    # The client's side.

    def send(self, data: bytes) -> None:
        if not self.is_cut:
            self.on_its_way += data
            self._travel_soon()

    def _travel_soon(self) -> None:
        if not self._travels and self.on_its_way:
            self._travels = True
            self.world.after(self.rng.random() * self.delay_s, self._travel)

    def _travel(self) -> None:
        self._travels = False
        count = len(self.on_its_way)
        if self.rng.random() < 0.4:
            count = self.rng.randint(1, count) if count else 0
        self.arrived += self.on_its_way[:count]
        del self.on_its_way[:count]
        if self.arrived and not self.is_closed:
            self.world.ready(self)
        self._travel_soon()

    def _fill(self) -> None:
        count = max(0, self.room - len(self.kernel))
        self.kernel += self.backlog[:count]
        del self.backlog[:count]
        self._read_soon()

    def _read_soon(self) -> None:
        if not self._reads and not self.is_cut:
            self._reads = True
            pause = self.client.read_pause_s if not self.world.is_draining else 0.0
            self.world.after(self.rng.random() * (self.delay_s + pause), self._read)

    def _read(self) -> None:
        """The client reads some of what its kernel holds, and the broker sends on."""
        self._reads = False
        if self.is_cut:
            return
        count = len(self.kernel)
        if self.rng.random() < 0.4 and count:
            count = self.rng.randint(1, count)
        data = bytes(self.kernel[:count])
        del self.kernel[:count]
        if not self.world.is_stopped:
            self.send_on()
        if data:
            self.client.on_bytes(self, data)
        self._read_on()

    def send_on(self) -> None:
        """The client's kernel may have room again."""
        had_backlog = bool(self.backlog)
        self._fill_quietly()
        if had_backlog and not self.is_closed:
            self.connection.on_written(len(self.backlog), self.world.now)
            self.world.turn_soon()

    def _read_on(self) -> None:
        if self.is_cut:
            return
        if self.kernel:
            self._read_soon()
        elif self.is_closed:
            self.cut(tell_s=0.0)
            self.client.on_end(self)

    def _fill_quietly(self) -> None:
        count = max(0, self.room - len(self.kernel))
        self.kernel += self.backlog[:count]
        del self.backlog[:count]

    def cut(self, tell_s: float | None) -> None:
        """The client goes at this byte. The broker learns of it after `tell_s`, or never."""
        if self.is_cut:
            return
        self.is_cut = True
        self.kernel.clear()
        del self.on_its_way[self.rng.randint(0, len(self.on_its_way)) :]
        if tell_s is not None:
            self.world.after(tell_s, lambda: self.world.lose(self))

    def finish(self) -> None:
        """The client closes in order: everything it wrote arrives, then the end."""
        self.is_cut = True
        self.kernel.clear()
        self.world.after(0.0, self._finish)

    def _finish(self) -> None:
        if self.on_its_way or (self.arrived and not self.is_closed):
            self.world.after(0.05, self._finish)
        else:
            self.world.lose(self)
