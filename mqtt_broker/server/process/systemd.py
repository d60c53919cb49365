"""Notify systemd that the broker is ready, alive, or stopping.

The protocol is a datagram to the socket that `NOTIFY_SOCKET` names; without it nothing is sent.
Keep-alive notifications are sent from the event loop, so that systemd notices a loop that hangs,
and only while the watchdog finds that the broker does not need a restart.
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
    """Sends notifications to the socket of the environment, if there is one."""

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
        """Report that the broker is ready, and start the keep-alive notifications."""
        self.send(f"{READY}\nSTATUS={status}")
        if self._address and self._period_s:
            self.keep_alive()

    def stopping(self) -> None:
        """Report that the broker is stopping."""
        if self._timer is not None:
            self._timer.cancel()
        self.send(STOPPING)

    def send(self, text: str) -> None:
        """Send a notification. Failures are ignored."""
        if not self._address:
            return
        address = self._address
        if address.startswith("@"):  # an abstract socket of Linux
            address = "\0" + address[1:]
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
                sock.sendto(text.encode(), socket.MSG_DONTWAIT, address)
        except OSError:
            return

    def keep_alive(self) -> None:
        if not self._needs_restart():
            self.send(ALIVE)
        self._timer = self._loop.call_later(self._period_s, self.keep_alive)


def _period_s(environment: Mapping[str, str]) -> float:
    """Return half of systemd's timeout, or 0 if it has none or watches another process."""
    text = environment.get("WATCHDOG_USEC", "")
    pid = environment.get("WATCHDOG_PID", "")
    if not text.isdecimal() or (pid and pid != str(os.getpid())):
        return 0.0
    return int(text) / 2e6
