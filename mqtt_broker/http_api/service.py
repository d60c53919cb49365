"""The HTTP server of a broker that the command runs: its address and its address file."""

from __future__ import annotations

import contextlib
import logging
import time
from pathlib import Path
from typing import Final

from mqtt_broker.http_api import address_file
from mqtt_broker.http_api.credentials import CredentialFiles
from mqtt_broker.http_api.http_server import HttpServer, HttpServerError
from mqtt_broker.http_api.server_interface import ServerInterface
from mqtt_broker.server.config.config import Config
from mqtt_broker.server.config.tables import ConfigError
from mqtt_broker.server.process.log_limiter import LogLimiter
from mqtt_broker.server.server import Server
from mqtt_broker.server.services.streams import DIRECTORY

_STOP_S: Final = 2.0
_LINES_PER_S: Final = 10  # some of these have a traceback
_log = logging.getLogger("fleetmq")


class HttpService:
    """Runs the HTTP server that the configuration asks for and writes its address file."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._credentials: CredentialFiles | None = None
        self._url = ""
        self._http: HttpServer | None = None
        self._has_file = False  # it is ours to remove
        self._lines = LogLimiter(
            lambda line: _log.warning("%s", line), time.monotonic, _LINES_PER_S, lambda line: line
        )
        # Without a store there is no data directory.
        self._data_dir = Path(config.data_dir) if config.needs_store else None

    def start(self) -> None:
        """Answer that the broker is starting, unless HTTP is off.

        If the default port is taken, another one is used.
        """
        endpoint = self._config.http
        if endpoint is None:
            return
        try:
            credentials = CredentialFiles(self._config)
        except ConfigError as error:
            raise HttpServerError(str(error)) from None
        try:
            host, port = self._listen(endpoint.host, endpoint.port, credentials)
        except HttpServerError as error:
            if not self._config.http_is_default:
                raise
            _log.warning("%s; using another port: set `http` to choose one", error)
            host, port = self._listen(endpoint.host, 0, credentials)
        self._credentials = credentials
        self._url = address_file.url_of(host, port)

    def say(self, progress: str) -> None:
        """Note what the broker's start is at, in a few words."""
        if self._http is not None:
            self._http.say(progress)

    def serve(self, server: Server) -> str:
        """Serve a broker that has started. Return the URL, or "" if HTTP is off."""
        if self._http is None or self._credentials is None:
            return ""
        self._http.serve(ServerInterface(server), server.descriptors)
        self._credentials.watch(server.reload)
        # Not before: until now the data directory could have been another broker's.
        if self._data_dir is not None:
            try:
                address_file.write(self._data_dir, self._url)
            except OSError as error:  # tools then need the URL as an argument
                _log.warning("%s: %s", self._data_dir / address_file.FILE, error.strerror)
            self._has_file = True
        return self._url

    def _listen(self, host: str, port: int, credentials: CredentialFiles) -> tuple[str, int]:
        data_dir = self._data_dir
        http = HttpServer(
            host,
            port,
            None,
            self._config.http_token,
            data_dir / DIRECTORY if data_dir is not None else None,
            self._lines.write,
            credentials=credentials.current,
        )
        bound = http.start()
        self._http = http
        return bound

    def stop(self) -> None:
        """Stop serving and remove the address file."""
        if self._http is None:
            return
        if self._data_dir is not None and self._has_file:
            with contextlib.suppress(OSError):
                address_file.remove(self._data_dir)
        self._http.stop(_STOP_S)
