"""A PostgreSQL server of our own, from the PyPI package `pgserver`, on a unix socket.

    with PostgreSQL(directory) as server:
        url = server.database("one")
        server.stop("immediate"); server.start()

The package's own Python is not used: it starts a daemon, and ours has to end with us. As
root the server runs as `nobody`, since PostgreSQL refuses root.
"""

from __future__ import annotations

import importlib.util
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from tests.fault.tether import tied

PATIENCE_S: Final = 120.0
_STOPS: Final = {"smart": signal.SIGTERM, "fast": signal.SIGINT, "immediate": signal.SIGQUIT}
_CONFIGURATION: Final = """
listen_addresses = ''
fsync = on
max_connections = 50
shared_buffers = 64MB
logging_collector = off
"""


class Unavailable(Exception):
    """There is no PostgreSQL here, and why."""


def binaries() -> Path:
    found = importlib.util.find_spec("pgserver")
    if found is None or found.origin is None:
        raise Unavailable("pgserver is not installed")
    return Path(found.origin).parent / "pginstall" / "bin"


class PostgreSQL:
    """One server; its directory and its socket are gone when the block ends."""

    def __init__(self) -> None:
        self._bin = binaries()
        # Short, because a unix socket's path may have 107 characters.
        self.directory = Path(tempfile.mkdtemp(prefix="fmq-pg-"))
        self.log_path = self.directory / "log"
        self._cluster = self.directory / "data"
        self._process: subprocess.Popen[bytes] | None = None
        self._user = -1
        if os.geteuid() == 0:
            nobody = pwd.getpwnam("nobody")
            self._user = nobody.pw_uid
            os.chown(self.directory, nobody.pw_uid, nobody.pw_gid)

    def __enter__(self) -> Self:
        try:
            self._initialise()
            self.start()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop("immediate")
        shutil.rmtree(self.directory, ignore_errors=True)

    def _run(self, *command: str, text: str = "") -> None:
        try:
            subprocess.run(
                [str(self._bin / command[0]), *command[1:]],
                user=None if self._user == -1 else self._user,
                cwd=self.directory,
                input=text.encode(),
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=PATIENCE_S,
                check=True,
            )
        except subprocess.CalledProcessError as error:
            raise Unavailable(f"{command[0]}: {error.stdout.decode().strip()}") from None
        except OSError as error:  # its folder is not readable for `nobody`
            raise Unavailable(f"{command[0]}: {error}") from None

    def _initialise(self) -> None:
        self._run(
            "initdb", "-D", str(self._cluster), "-U", "postgres", "-A", "trust", "-E", "UTF8",
            "--locale=C", "--no-sync",
        )  # fmt: skip
        with (self._cluster / "postgresql.conf").open("a") as configuration:
            configuration.write(_CONFIGURATION)
            configuration.write(f"unix_socket_directories = '{self.directory}'\n")

    @property
    def is_running(self) -> bool:
        return self._process is not None

    def start(self) -> None:
        """Start it and wait until it takes connections."""
        assert self._process is None, "it is running"
        command = [str(self._bin / "postgres"), "-D", str(self._cluster)]
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                tied(command, signal.SIGQUIT, self._user),
                cwd=self.directory,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        deadline = time.monotonic() + PATIENCE_S
        while not self._is_taking():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.stop("immediate")
                raise Unavailable(f"postgres: {self.log_path.read_text().strip()}")
            time.sleep(0.02)

    def _is_taking(self) -> bool:
        done = subprocess.run(
            [str(self._bin / "pg_isready"), "-q", "-h", str(self.directory)], check=False
        )
        return done.returncode == 0

    def stop(self, mode: str = "fast") -> None:
        """`immediate` is its crash: it recovers at the next start. Waits for the end."""
        if self._process is None:
            return
        self._process.send_signal(_STOPS[mode])
        try:
            self._process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None

    def psql(self, database: str, statement: str) -> None:
        self._run(
            "psql", "-q", "-X", "-v", "ON_ERROR_STOP=1", "-h", str(self.directory),
            "-U", "postgres", "-d", database, text=statement,
        )  # fmt: skip

    def dump(self, database: str) -> str:
        """Return the statements that make the database anew, of one moment."""
        path = self.directory / f"{database}.sql"
        self._run("pg_dump", "-f", str(path), "-h", str(self.directory), "-U", "postgres", database)
        return path.read_text()

    @property
    def socket(self) -> Path:
        """The unix socket on which it listens."""
        return self.directory / ".s.PGSQL.5432"

    def conninfo(self, database: str) -> str:
        """What libpq takes."""
        return f"host={self.directory} user=postgres dbname={database}"

    def database(self, name: str) -> str:
        """A new, empty database; its URL for `--database-url`."""
        self.psql("postgres", f"CREATE DATABASE {name} STRATEGY FILE_COPY")  # a fifth of the work
        return f"postgresql+psycopg://postgres@/{name}?host={self.directory}"

    def keep(self, where: Path) -> None:
        """Stop it as it is, and copy its files."""
        self.stop("immediate")
        shutil.copytree(self.directory, where, ignore=shutil.ignore_patterns(".s.*"))
