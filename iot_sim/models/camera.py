"""A camera-like device: large incompressible payloads, each with a report.

A frame is a small header with a checksum, followed by noise, more of it when there is more
motion. It may be sent in parts. `read_frame` verifies a frame that came through a broker.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping, Sequence
from functools import cache
from random import Random
from typing import Any, ClassVar, Final

from iot_sim.devices.commands import CommandResult
from iot_sim.devices.device import BULK, Publication
from iot_sim.devices.device_model import CommandHandler, DeviceModel, describe
from iot_sim.devices.model_info import INT, Command, Option
from iot_sim.devices.signals import Signal, hour_of
from iot_sim.payloads.schema import BINARY, DOUBLE, LONG, Field

MAGIC: Final = b"FMQF"
FRAME_BYTES_MAX: Final = 16_000_000
_NOISE_BYTES: Final = 1 << 20
_HEAD_BYTES: Final = len(MAGIC) + 4


@cache
def _noise() -> bytes:
    """Return the noise that all cameras of a process share: a frame is a slice of it."""
    return Random("noise of every frame").randbytes(_NOISE_BYTES)


def make_frame(header: Mapping[str, Any], offset: int, size: int) -> tuple[bytes, int]:
    """Make a frame of about `size` bytes; return it with the checksum of its body."""
    noise = _noise()
    whole, rest = divmod(offset + size, _NOISE_BYTES)
    body = (noise * whole + noise[:rest])[offset:]
    checksum = zlib.crc32(body)
    head = json.dumps({**header, "crc32": checksum}, separators=(",", ":")).encode()
    return MAGIC + len(head).to_bytes(4, "big") + head + body, checksum


def read_frame(raw: bytes) -> dict[str, Any]:
    """Decode the header of a frame; raise ValueError when the frame is damaged."""
    if raw[:4] != MAGIC or len(raw) < _HEAD_BYTES:
        raise ValueError(f"not a frame: it does not begin with {MAGIC!r}")
    end = _HEAD_BYTES + int.from_bytes(raw[4:_HEAD_BYTES], "big")
    try:
        header = json.loads(raw[_HEAD_BYTES:end])
    except RecursionError:
        raise ValueError("damaged frame: its header is nested too deeply") from None
    if not isinstance(header, dict) or zlib.crc32(raw[end:]) != header.get("crc32"):
        raise ValueError("damaged frame: the checksum of its body does not match")
    return header


class Camera(DeviceModel):
    MODEL = "camera"
    FIELDS: ClassVar = (
        Field("frame", LONG, help="number of the frame"),
        Field("bytes", LONG, "B"),
        Field("parts", LONG, help="messages of the frame"),
        Field("crc32", LONG),
        Field("motion", DOUBLE, digits=3, help="share of the picture that moved"),
    )
    FRAME: ClassVar = (Field("payload", BINARY, help="a frame, or a part of one"),)

    def setup(self, options: Mapping[str, Any]) -> None:
        rng, start = self.rng, self.spec.started_at
        self._motion = Signal(
            rng, 0.2, start, wander=0.12, wander_s=90, noise=0.02, low=0.0, high=1.0
        )
        self._frame = 0
        self._frames: list[Publication] = []

    def measure(self, t: float) -> Sequence[Any]:
        options = self.spec.options
        hour = hour_of(t, options["utc_offset_h"])
        motion = self._motion.at(t, 0.25 if 7.0 <= hour < 20.0 else -0.1)
        self._frame += 1
        size = int(options["frame_bytes"] * (0.6 + 1.2 * motion))
        header = {"id": self.spec.client_id, "frame": self._frame, "ts": self.clock.read_ms(t)}
        offset = int(self.rng.random() * _NOISE_BYTES)
        frame, checksum = make_frame(header, offset, min(size, FRAME_BYTES_MAX))
        parts = self._split(frame, options["part_bytes"])
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
        """Return the frame before its report: whoever has the report has had the frame."""
        report = self.report(t)
        frames, self._frames = self._frames, []
        return [*frames, report]

    @staticmethod
    def _split(frame: bytes, part_bytes: int) -> list[bytes]:
        if not part_bytes or len(frame) <= part_bytes:
            return [frame]
        return [frame[at : at + part_bytes] for at in range(0, len(frame), part_bytes)]

    def _command_snapshot(self, args: Mapping[str, Any], now: float) -> CommandResult:
        publications = self.reports(now)
        return CommandResult(value=float(self._frame), publications=publications)

    COMMANDS: ClassVar[Mapping[str, CommandHandler]] = {"snapshot": _command_snapshot}


INFO: Final = describe(
    Camera,
    "camera-like device: large payloads with a checksum, whole or in parts",
    (
        Option("frame_bytes", INT, 50_000, "size of a frame at average motion", 64, 10_000_000),
        Option(
            "part_bytes", INT, 0, "maximum size of a part of a frame; 0: no parts", 0, 16_000_000
        ),
        Option("frame_qos", INT, 0, "QoS of the frames", 0, 2),
    ),
    documents={"frame": Camera.FRAME},
    commands={"snapshot": Command("takes a frame now")},
)
