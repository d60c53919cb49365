"""An update of a device's firmware, as a state machine.

    idle -> downloading -> verifying -> installing -> rebooting -> idle (done)
                               `-> idle (failed)

A download stands still while there is no link and goes on where it was.
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
    Field("version", STRING, help="what the update is to"),
    Field("was", STRING, help="what it is from"),
    Field("stage", STRING, choices=STAGES),
    Field("percent", LONG, "%"),
    Field("error", STRING, nullable=True),
)

_VERIFY_SHARE: Final = 0.1  # of the time that the download takes
_INSTALL_SHARE: Final = 0.2


class Update:
    """A firmware update in progress."""

    __slots__ = ("_fails", "_step_s", "_steps", "percent", "stage", "version", "was")

    def __init__(self, version: str, was: str, *, lasts_s: float, steps: int, fails: bool) -> None:
        self.version = version
        self.was = was
        self.stage = DOWNLOADING
        self.percent = 0
        self._steps = steps
        self._step_s = lasts_s / steps
        self._fails = fails

    @property
    def step_s(self) -> float:
        """Return the duration of the stage, or of this part of it."""
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
        """Go on to the next stage, or the next part of this one, when its time is over."""
        if self.stage == DOWNLOADING:
            done = round(self.percent * self._steps / 100) + 1
            self.percent = done * 100 // self._steps
            if done >= self._steps:
                self.stage = VERIFYING
        elif self.stage == VERIFYING:
            self.stage = FAILED if self._fails else INSTALLING
        elif self.stage == INSTALLING:
            self.stage = REBOOTING
        elif self.stage == REBOOTING:
            self.stage = DONE
