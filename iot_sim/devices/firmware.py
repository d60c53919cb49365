"""A firmware update as a state machine.

    idle -> downloading -> verifying -> installing -> rebooting -> idle (done)
                               `-> idle (failed)

A download pauses while the device is offline and then continues where it stopped.
"""

from __future__ import annotations

from typing import Final

from iot_sim.payloads.schema import LONG, STRING, Field

DOWNLOADING: Final = "downloading"
VERIFYING: Final = "verifying"
INSTALLING: Final = "installing"
REBOOTING: Final = "rebooting"
DONE: Final = "done"
FAILED: Final = "failed"
STAGES: Final = (DOWNLOADING, VERIFYING, INSTALLING, REBOOTING, DONE, FAILED)

FIELDS: Final = (
    Field("id", STRING),
    Field("ts", LONG, "ms"),
    Field("version", STRING, help="new version"),
    Field("was", STRING, help="version before the update"),
    Field("stage", STRING, choices=STAGES),
    Field("percent", LONG, "%"),
    Field("error", STRING, nullable=True),
)

_VERIFY_SHARE: Final = 0.1  # of the time that the download takes
_INSTALL_SHARE: Final = 0.2


class Update:
    """A firmware update in progress."""

    __slots__ = ("_done", "_fails", "_step_s", "_steps", "percent", "stage", "version", "was")

    def __init__(self, version: str, was: str, *, lasts_s: float, steps: int, fails: bool) -> None:
        self.version = version
        self.was = was
        self.stage = DOWNLOADING
        self.percent = 0
        self._done = 0  # parts that are downloaded
        self._steps = steps
        self._step_s = lasts_s / steps
        self._fails = fails

    @property
    def step_s(self) -> float:
        """The duration of the current stage, or of the current part of the download."""
        if self.stage == VERIFYING:
            return self._step_s * self._steps * _VERIFY_SHARE
        if self.stage == INSTALLING:
            return self._step_s * self._steps * _INSTALL_SHARE
        return self._step_s

    @property
    def over(self) -> bool:
        return self.stage in (DONE, FAILED)

    @property
    def error(self) -> str | None:
        return "the signature does not match" if self.stage == FAILED else None

    def step(self) -> None:
        """Advance to the next stage, or to the next part of the download."""
        if self.stage == DOWNLOADING:
            self._done += 1
            self.percent = self._done * 100 // self._steps
            if self._done >= self._steps:
                self.stage = VERIFYING
        elif self.stage == VERIFYING:
            self.stage = FAILED if self._fails else INSTALLING
        elif self.stage == INSTALLING:
            self.stage = REBOOTING
        elif self.stage == REBOOTING:
            self.stage = DONE
