"""The bus over NATS: it connects again and again, and drops what cannot be sent.

Whether NATS is there is a matter of speed, so its absence is reported as degraded, never raised.
"""

from __future__ import annotations

import asyncio
import random
import socket
from collections import Counter
from collections.abc import Collection, Mapping
from typing import Any, Final

from mqtt_broker.cluster.bus.interface import OnFrame
from mqtt_broker.cluster.bus.nats_link import Address, NatsLink, Sockets
from mqtt_broker.cluster.bus.nats_protocol import PING, encode_subscribe, encode_unsubscribe
from mqtt_broker.cluster.bus.notices import Notices
from mqtt_broker.cluster.bus.settings import NatsSettings
from mqtt_broker.cluster.frames.layout import ALL, FRAME_BYTES_MAX, OVERHEAD_BYTES, Drop, FrameKey
from mqtt_broker.cluster.frames.reader import Frame, FrameReader
from mqtt_broker.cluster.frames.writer import FrameWriter

CONNECT_S: Final = 5.0  # for a whole attempt: TCP, TLS, CONNECT
CHECK_S: Final = 2.0  # between looks at a connection
SILENT_CHECKS: Final = 2  # without a byte in them it has ended
RETRY_S: Final = 0.1
RETRY_S_MAX: Final = 5.0
_DOUBLINGS: Final = 10

# Why a frame is not sent.
NOT_CONNECTED: Final = "not-connected"
BUFFER_FULL: Final = "buffer-full"
CONNECTION_LOST: Final = "connection-lost"
UNKNOWN_NUMBER: Final = "unknown-number"  # hosted by nobody, or not by this process
TOO_LARGE: Final = "too-large"
_RIGHTS: Final = "permissions violation for "


class NatsBus:
    """Frames from and to the numbers that a process hosts."""

    def __init__(
        self,
        settings: NatsSettings,
        key: FrameKey,
        on_frame: OnFrame,
        sockets: Sockets,
        loop: asyncio.AbstractEventLoop,
        rng: random.Random,
    ) -> None:
        self._settings = settings
        self._key = key
        self._on_frame = on_frame
        self._sockets = sockets
        self._loop = loop
        self._rng = rng
        self._notices = Notices()
        self._writers: dict[int, FrameWriter] = {}
        self._own: dict[int, str] = {}
        self._subjects: dict[int, bytes] = {ALL: settings.subject_of_all.encode()}
        # The attempts to connect. Nodes begin with different servers.
        self._servers = list(settings.servers)
        rng.shuffle(self._servers)
        self._server = self._servers[0]
        self._addresses: list[Address] = []
        self._attempts = 0
        self._timer: asyncio.TimerHandle | None = None
        self._is_stopped = True
        # The connection.
        self._link: NatsLink | None = None
        self._ready_at = 0.0
        self._silent_checks = 0
        self._lacks_rights = False
        self._was_reported = False  # the log has a line about its absence
        self._problem = "it is not started"
        # What was sent and received.
        self.reader = FrameReader(key)
        self.frames_out = 0
        self.bytes_out = 0
        self.bytes_in = 0
        self.connects = 0
        self.dropped_out: Counter[str] = Counter()

    @property
    def is_connected(self) -> bool:
        """Tell whether frames are sent at present."""
        return self._link is not None and self._link.is_ready

    @property
    def problem(self) -> str:
        """The reason why the bus is degraded, for people; empty: it is not."""
        return self._problem

    @property
    def queued_bytes(self) -> int:
        """Count the bytes that the kernel has not taken."""
        return 0 if self._link is None else self._link.queued_bytes

    def start(self) -> None:
        """Begin to connect."""
        self._is_stopped = False
        self._resolve()

    def stop(self) -> None:
        """Send what is left, as far as the kernel takes it, and close."""
        self._is_stopped = True
        self._cancel()
        if self._link is None:
            self._problem = "it is stopped"
        else:
            self._link.flush()
            self._link.close("it is stopped")

    # Who is who.

    def set_hosts(self, epochs: Mapping[int, str], own: Collection[int]) -> None:
        """Learn the epoch of each number that is hosted, and which of them this process hosts."""
        mine = {number: epochs[number] for number in own}
        others = {number: epoch for number, epoch in epochs.items() if number not in mine}
        self.reader.set_hosted(mine)
        self.reader.set_senders(others)
        before, self._writers = self._writers, {}
        for number, epoch in mine.items():
            known = self._own.get(number) == epoch
            writer = before[number] if known else FrameWriter(self._key, number, epoch)
            writer.set_receivers(others)
            self._writers[number] = writer
        self._subjects = {number: self._settings.subject(number).encode() for number in others}
        self._subjects[ALL] = self._settings.subject_of_all.encode()
        self._subscribe(mine)

    def _subscribe(self, own: dict[int, str]) -> None:
        """Tell NATS which numbers are hosted here now."""
        before, self._own = self._own, own
        if self._link is not None and self._link.is_open:
            commands = [encode_unsubscribe(number) for number in before.keys() - own.keys()]
            commands += [self._subscription(number) for number in own.keys() - before.keys()]
            if commands:
                self._link.command(b"".join(commands))

    def _subscription(self, number: int) -> bytes:
        return encode_subscribe(self._settings.subject(number), number)

    def subscriptions(self) -> bytes:
        """Return the commands that subscribe to all that is wanted now."""
        found = [encode_subscribe(self._settings.subject_of_all, ALL)]
        return b"".join([*found, *map(self._subscription, self._own)])

    # Frames.

    def send(self, sender: int, to: int, kind: int, body: bytes) -> bool:
        """Send a frame from a number of this process to one of another; False: it is dropped."""
        link = self._link
        if link is None or not link.is_ready:
            return self._drop(NOT_CONNECTED)
        if len(body) + OVERHEAD_BYTES > link.payload_bytes_max:
            return self._drop_too_large(len(body) + OVERHEAD_BYTES, link.payload_bytes_max)
        writer = self._writers.get(sender)
        data = None if writer is None else writer.write(kind, to, body)
        if data is None:
            return self._drop(UNKNOWN_NUMBER)
        if not link.publish(self._subjects[to], data):
            return self._drop(BUFFER_FULL)
        self.frames_out += 1
        self.bytes_out += len(data)
        return True

    def broadcast(self, sender: int, kind: int, body: bytes) -> bool:
        """Send a frame to all other processes; False: it is dropped."""
        return self.send(sender, ALL, kind, body)

    def flush(self) -> None:
        """Hand to the kernel what was sent: the turn ends."""
        if self._link is not None:
            self._link.flush()

    def _drop(self, reason: str, count: int = 1) -> bool:
        self.dropped_out[reason] += count
        return False

    def _drop_too_large(self, size: int, payload_bytes_max: int) -> bool:
        if payload_bytes_max < FRAME_BYTES_MAX:
            self._warn(
                "payload",
                f"{self._server} takes messages of at most {payload_bytes_max} bytes, and a frame "
                f"has {size}: set max_payload to {FRAME_BYTES_MAX} in the configuration of NATS",
            )
        return self._drop(TOO_LARGE)

    def on_message(self, data: memoryview) -> None:
        """Check a frame, and hand it over."""
        self.bytes_in += len(data)
        found = self.reader.read(data)
        if isinstance(found, Frame):
            self._on_frame(found)
        elif found is Drop.FORGED:
            self._warn(
                "forged",
                f"frames on {self._settings.subjects} are not of this cluster's database: another "
                f"cluster named {self._settings.cluster!r} uses the same NATS, or somebody forges "
                "frames; give one of the clusters another name, and each its own account in NATS",
            )

    def on_oversized(self) -> None:
        """Count a frame that was skipped."""
        self.reader.drop(Drop.OVERSIZED)

    # The connection.

    def _resolve(self) -> None:
        """Look the next server up, in a thread unless its URL has an address."""
        self._timer = None
        self._server = self._servers[self._attempts % len(self._servers)]
        self._attempts += 1
        arguments = (self._server.host, self._server.port, 0, socket.SOCK_STREAM)
        try:
            found = socket.getaddrinfo(*arguments, flags=socket.AI_NUMERICHOST)
        except OSError:
            task = self._loop.run_in_executor(None, socket.getaddrinfo, *arguments)
            task.add_done_callback(self._on_resolved)
        else:
            self._try_addresses(found)

    def _on_resolved(self, task: asyncio.Future[Any]) -> None:
        if task.cancelled() or self._is_stopped:
            return
        error = task.exception()
        if isinstance(error, OSError):
            self._fail(f"its host is not found: {error.strerror or error}")
        else:
            self._try_addresses(task.result())

    def _try_addresses(self, found: list[Any]) -> None:
        self._addresses = [(family, address) for family, _, _, _, address in found]
        self._connect()

    def _connect(self) -> None:
        """Try the next address of the server."""
        address = self._addresses.pop(0)
        self._lacks_rights = False
        self._timer = self._loop.call_later(CONNECT_S, self._give_up)
        try:
            self._link = NatsLink(self._sockets, self, self._settings, self._server, address)
        except OSError as error:  # no descriptor, or no such family
            self.on_lost(error.strerror or str(error))
        else:
            self._link.open()

    def _give_up(self) -> None:
        if self._link is not None:
            self._link.close(f"it does not answer within {CONNECT_S:g} s")

    def on_ready(self) -> None:
        """Note that frames can be sent."""
        self._cancel()
        self._ready_at = self._loop.time()
        self._silent_checks = 0
        self.connects += 1
        self._timer = self._loop.call_later(CHECK_S, self._check)
        if not self._lacks_rights:
            self._problem = ""
        if self._was_reported or self.connects == 1:
            self._was_reported = False
            self._notices.inform(f"connected to {self._server}")

    def _check(self) -> None:
        """End a connection that is silent: NATS is stopped, or the network drops all of it."""
        link = self._link
        assert link is not None
        self._silent_checks = 0 if link.take_heard() else self._silent_checks + 1
        if self._silent_checks >= SILENT_CHECKS:
            link.close(f"it is silent for {SILENT_CHECKS * CHECK_S:g} s")
            return
        link.command(PING)
        if self._link is link:
            self._timer = self._loop.call_later(CHECK_S, self._check)

    def on_complaint(self, text: str) -> None:
        """Take a complaint of the server: it may be about rights."""
        if text.lower().startswith(_RIGHTS):
            self._lacks_rights = True
            pattern = self._settings.subjects
            self._problem = (
                f"{self._server} refuses: {text}; allow this user to publish and to subscribe "
                f"to {pattern}"
            )
            self._warn("rights", self._problem)

    def on_lost(self, reason: str) -> None:
        """Note that the connection, or the attempt to make one, has ended; try again."""
        self._cancel()
        was_ready, self._ready_at = self._ready_at, 0.0
        if self._link is not None and was_ready and self._link.queued:
            self._drop(CONNECTION_LOST, self._link.queued)
        self._link = None
        if self._is_stopped:
            self._problem = "it is stopped"
            return
        if self._addresses and not was_ready:
            self._connect()
            return
        if was_ready and self._loop.time() >= was_ready + RETRY_S_MAX:
            self._attempts = 0
        self._fail(reason)

    def _fail(self, reason: str) -> None:
        """Report why there is no connection, and try again some time later."""
        self._problem = f"{self._server}: {reason}"
        text = f"{self._problem}; it is tried again, and nodes go on by the database alone"
        if self._warn(self._problem, text):
            self._was_reported = True
        doublings = min(self._attempts // len(self._servers), _DOUBLINGS)
        delay_s = min(RETRY_S_MAX, RETRY_S * 2**doublings) * self._rng.uniform(0.5, 1.0)
        self._timer = self._loop.call_later(delay_s, self._resolve)

    def _warn(self, subject: str, text: str) -> bool:
        return self._notices.warn(subject, text, self._loop.time())

    def _cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
