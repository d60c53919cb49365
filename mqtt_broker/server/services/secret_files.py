"""Warn about files with secrets that every account of the machine may read or write."""

from __future__ import annotations

import contextlib
import logging

from mqtt_broker.security.files.atomic_files import open_to_others
from mqtt_broker.server.config.config import Config

_log = logging.getLogger("fleetmq")


def warn_of_open_secrets(config: Config) -> None:
    """Warn about TLS keys, and the configuration file if it holds a secret, that others may read.

    Files of `[[auth]]` are checked when their methods are opened.
    """
    keys = [e.rules.tls.key for e in config.endpoints if e.rules.tls is not None]
    for path in dict.fromkeys((config.secrets_file, *keys)):
        with contextlib.suppress(OSError):  # it has been removed since it was read
            if path and open_to_others(path):
                _log.warning(
                    "%s: every user of this machine may read or write it; chmod 640 it", path
                )
