"""What systemd is told: that the broker is ready, that it lives, that it stops.

The protocol is a datagram to the socket that `NOTIFY_SOCKET` names; without one, nothing is
told. The watchdog is fed from the event loop, so a loop that hangs is found out, and only while
the broker does not need a restart.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Mapping

READY = "READY=1"
STOPPING = "STOPPING=1"
ALIVE = "WATCHDOG=1"


class Notifier:
    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        environment: Mapping[str, str],
        needs_restart: Callable[[], bool] = lambda: False,
    ) -> None:
        self._loop = loop
        self._needs_restart = needs_restart
        self._address = environment.get("NOTIFY_SOCKET", "")
        self._timer: asyncio.TimerHandle | None = None
        self._period_s = _period_s(environment)

    def ready(self, status: str) -> None:
        self.tell(f"{READY}\nSTATUS={status}")
        if self._address and self._period_s:
            self._feed()

    def stopping(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self.tell(STOPPING)

    def tell(self, text: str) -> None:
        """Whoever does not listen misses it: the broker runs without."""
        if not self._address:
            return
        address = self._address
        if address.startswith("@"):  # of Linux: a name that is no file
            address = "\0" + address[1:]
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
                sock.sendto(text.encode(), socket.MSG_DONTWAIT, address)
        except OSError:
            return

    def _feed(self) -> None:
        if not self._needs_restart():
            self.tell(ALIVE)
        self._timer = self._loop.call_later(self._period_s, self._feed)


def _period_s(environment: Mapping[str, str]) -> float:
    """Half of what systemd waits for; 0 when it does not, or waits for another process."""
    text = environment.get("WATCHDOG_USEC", "")
    whose = environment.get("WATCHDOG_PID", "")
    if not text.isdecimal() or (whose and whose != str(os.getpid())):
        return 0.0
    return int(text) / 2e6
