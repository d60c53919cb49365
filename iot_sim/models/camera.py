"""A camera-like device: large payloads that nobody compresses away, and a report on each.

A frame is a small header with a checksum, and noise of the size that the scene's motion
asks for. It may be sent in parts. `read_frame` gives back what a frame says, or raises: what
came through a broker can be proved whole.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping, Sequence
from functools import cache
from random import Random
from typing import Any, ClassVar, Final

from iot_sim.devices.commands import Outcome
from iot_sim.devices.device import BULK, Publication
from iot_sim.devices.model_info import INT, Command, Option
from iot_sim.devices.signals import Signal, hour_of
from iot_sim.devices.thing import Order, Thing, describe
from iot_sim.payloads.schema import BINARY, DOUBLE, LONG, Field

MAGIC: Final = b"FMQF"
FRAME_BYTES_MAX: Final = 16_000_000
_NOISE_BYTES: Final = 1 << 20
_HEAD_BYTES: Final = len(MAGIC) + 4


@cache
def _noise() -> bytes:
    """Return the noise that all cameras of a process share: a frame is a slice of it."""
    return Random("noise of every frame").randbytes(_NOISE_BYTES)


def make_frame(said: Mapping[str, Any], offset: int, size: int) -> tuple[bytes, int]:
    """Make a frame of about `size` bytes, and the checksum of its body."""
    noise = _noise()
    whole, rest = divmod(offset + size, _NOISE_BYTES)
    body = (noise * whole + noise[:rest])[offset:]
    checksum = zlib.crc32(body)
    head = json.dumps({**said, "crc32": checksum}, separators=(",", ":")).encode()
    return MAGIC + len(head).to_bytes(4, "big") + head + body, checksum


def read_frame(raw: bytes) -> dict[str, Any]:
    """Decode the header of a frame; raise ValueError when the frame is not whole."""
    if raw[:4] != MAGIC or len(raw) < _HEAD_BYTES:
        raise ValueError("no frame")
    end = _HEAD_BYTES + int.from_bytes(raw[4:_HEAD_BYTES], "big")
    said = json.loads(raw[_HEAD_BYTES:end])
    if not isinstance(said, dict) or zlib.crc32(raw[end:]) != said.get("crc32"):
        raise ValueError("the frame is damaged")
    return said


class Camera(Thing):
    MODEL = "camera"
    FIELDS: ClassVar = (
        Field("frame", LONG, help="number of the frame"),
        Field("bytes", LONG, "B"),
        Field("parts", LONG, help="messages that it was sent in"),
        Field("crc32", LONG),
        Field("motion", DOUBLE, digits=3, help="share of the picture that moved"),
    )
    FRAME: ClassVar = (Field("payload", BINARY, help="a frame, or a part of one"),)

    def setup(self, options: Mapping[str, Any]) -> None:
        chance, start = self.chance, self.spec.started_at
        self._motion = Signal(
            chance, 0.2, start, wander=0.12, wander_s=90, noise=0.02, low=0.0, high=1.0
        )
        self._frame = 0
        self._frames: list[Publication] = []

    def measure(self, t: float) -> Sequence[Any]:
        options = self.spec.options
        hour = hour_of(t, options["utc_offset_h"])
        motion = self._motion.at(t, 0.25 if 7.0 <= hour < 20.0 else -0.1)
        self._frame += 1
        size = int(options["frame_bytes"] * (0.6 + 1.2 * motion))
        said = {"id": self.spec.client_id, "frame": self._frame, "ts": self.clock.read_ms(t)}
        offset = int(self.chance.random() * _NOISE_BYTES)
        frame, checksum = make_frame(said, offset, min(size, FRAME_BYTES_MAX))
        parts = self._cut(frame, options["part_bytes"])
        for number, part in enumerate(parts, 1):
            user = (("frame", str(self._frame)), ("part", f"{number}/{len(parts)}"))
            self._frames.append(
                Publication(
                    self.spec.topic + "/frame",
                    part,
                    options["frame_qos"],
                    kind=BULK,
                    content_type="application/octet-stream",
                    user=user,
                )
            )
        return self._frame, len(frame), len(parts), checksum, motion

    def reports(self, t: float) -> list[Publication]:
        """Return frames before their report: a report that arrived promises that they did."""
        report = self.report(t)
        frames, self._frames = self._frames, []
        return [*frames, report]

    @staticmethod
    def _cut(frame: bytes, part_bytes: int) -> list[bytes]:
        if not part_bytes or len(frame) <= part_bytes:
            return [frame]
        return [frame[at : at + part_bytes] for at in range(0, len(frame), part_bytes)]

    def _order_snapshot(self, args: Mapping[str, Any], now: float) -> Outcome:
        says = self.reports(now)
        return Outcome(value=float(self._frame), says=says)

    ORDERS: ClassVar[Mapping[str, Order]] = {"snapshot": _order_snapshot}


INFO: Final = describe(
    Camera,
    "camera-like device: large payloads with a checksum, whole or in parts",
    (
        Option("frame_bytes", INT, 50_000, "size of a frame of average motion", 64, 10_000_000),
        Option(
            "part_bytes", INT, 0, "send frames in parts of so many bytes; 0: whole", 0, 16_000_000
        ),
        Option("frame_qos", INT, 0, "QoS of the frames", 0, 2),
    ),
    documents={"frame": Camera.FRAME},
    commands={"snapshot": Command("takes a frame now")},
)
