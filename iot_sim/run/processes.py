"""A whole run: in this process, or in several that each drive a part of the devices.

Every process has observers for the devices of its own, so each keeps complete books, and the
books add up. The parent starts them together, gives them one clock, adds their seconds up for
the progress display, watches the broker's process, and makes the verdict of the sum.
"""

from __future__ import annotations

import contextlib
import os
import resource
import secrets
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from types import FrameType
from typing import Any, Final

from iot_sim.fleet.engine import Clock, Target
from iot_sim.judge.outcome import Outcome, Sample
from iot_sim.run.process import NotReady, Part, ProcessRun
from iot_sim.scenarios.scenario import Scenario, ScenarioError, check_rate
from mqtt_broker.client.url import InvalidUrl, parse_url

CONNECT_S: Final = 5.0
OWN_FILES: Final = 64  # descriptors a process needs besides its connections
SILENCE_S: Final = 60.0  # a worker that says nothing for so long is given up


class SetupError(Exception):
    """A run that could not begin: nothing was sent, and one line says what to change."""


class RunError(Exception):
    """The run began and could not be finished."""


@dataclass(frozen=True, slots=True)
class Broker:
    """The address of the broker in a form that can be passed to another process."""

    host: str
    port: int
    is_tls: bool = False
    username: str | None = None
    password: bytes | None = None
    ca_file: str = ""
    is_insecure: bool = False

    def target(self) -> Target:
        tls = None
        if self.is_tls:
            try:
                tls = ssl.create_default_context(cafile=self.ca_file or None)
            except (OSError, ssl.SSLError) as error:
                raise SetupError(f"--cafile {self.ca_file}: {error}") from None
            if self.is_insecure:
                tls.check_hostname = False
                tls.verify_mode = ssl.CERT_NONE
        return Target(self.host, self.port, tls, self.username, self.password)

    def __str__(self) -> str:
        scheme = "mqtts" if self.is_tls else "mqtt"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{scheme}://{host}:{self.port}"


def parse_broker(url: str, *, ca_file: str = "", is_insecure: bool = False) -> Broker:
    """Parse `mqtt://[user[:password]@]host[:port]` or `mqtts://...`. Raises SetupError."""
    try:
        found = parse_url(url, ("mqtt", "mqtts"))
    except InvalidUrl as error:
        raise SetupError(f"--broker: {error}") from None
    if found.rest not in ("", "/"):
        raise SetupError(f"--broker: {found} must end there, without {found.rest!r}")
    return Broker(
        found.host,
        found.port,
        found.is_tls,
        found.username,
        None if found.password is None else found.password.encode(),
        ca_file,
        is_insecure,
    )


def reach(broker: Broker) -> tuple[int, Any]:
    """Connect once to find the broker's address. Raises SetupError."""
    try:
        with socket.create_connection((broker.host, broker.port), CONNECT_S) as sock:
            return sock.family, sock.getpeername()
    except socket.gaierror as error:
        raise SetupError(f"--broker {broker}: no such host: {error.strerror}") from None
    except OSError as error:
        why = error.strerror or str(error)
        raise SetupError(f"--broker {broker}: {why}; is a broker listening there?") from None


def allow_connections(devices: int) -> None:
    """Raise the limit of open files for this many devices. Raises SetupError."""
    needed = devices + OWN_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < needed:
        if hard != resource.RLIM_INFINITY and hard < needed:
            raise SetupError(
                f"{devices:,} devices a process need {needed:,} open files and the limit is"
                f" {hard:,}: raise it (ulimit -n), or use more --workers, or fewer --devices"
            )
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


class Watch:
    """CPU and memory of the broker's process, as Linux tells them."""

    def __init__(self, pid: int) -> None:
        self._stat = Path(f"/proc/{pid}/stat")
        self._status = Path(f"/proc/{pid}/status")
        self._tick_s = 1 / os.sysconf("SC_CLK_TCK")
        if not self._stat.exists():
            why = "no such process" if Path("/proc/self").exists() else "this system has no /proc"
            raise SetupError(f"--pid {pid}: {why}")
        self._first = self._last = (time.monotonic(), self._cpu_s())
        self.rss_bytes_max = self._rss_bytes()

    def _cpu_s(self) -> float:
        try:
            fields = self._stat.read_text().rpartition(")")[2].split()
        except OSError:
            return self._last[1]  # it is gone: it uses no more
        return (int(fields[11]) + int(fields[12])) * self._tick_s

    def _rss_bytes(self) -> int:
        with contextlib.suppress(OSError):
            for line in self._status.read_text().splitlines():
                if line.startswith("VmRSS:"):
                    return int(line.split()[1]) * 1024
        return 0

    def look(self) -> tuple[float, int]:
        """Return the cores used since the last look, and the resident bytes now."""
        before_at, before = self._last
        now = self._last = (time.monotonic(), self._cpu_s())
        rss_bytes = self._rss_bytes()
        self.rss_bytes_max = max(self.rss_bytes_max, rss_bytes)
        return (now[1] - before) / max(0.001, now[0] - before_at), rss_bytes

    @property
    def cores(self) -> float:
        first_at, first = self._first
        return (self._cpu_s() - first) / max(0.001, time.monotonic() - first_at)


class Board:
    """Puts the seconds of all processes together, each as soon as all have told theirs."""

    def __init__(
        self, workers: int, watch: Watch | None, on_second: Callable[[Sample], None]
    ) -> None:
        self._workers = workers
        self._watch = watch
        self._on_second = on_second
        self._open: dict[int, list[Sample]] = {}
        self.series: list[Sample] = []

    def put(self, sample: Sample) -> None:
        told = self._open.setdefault(sample.second, [])
        told.append(sample)
        if len(told) < self._workers:
            return
        whole = Sample(sample.second)
        for one in self._open.pop(sample.second):
            whole.add(one)
        if self._watch is not None:
            whole.broker_cpu, whole.broker_rss_bytes = self._watch.look()
        self.series.append(whole)
        self._on_second(whole)


def run(
    scenario: Scenario,
    broker: Broker,
    *,
    workers: int = 1,
    pid: int | None = None,
    on_second: Callable[[Sample], None] = lambda sample: None,
) -> Outcome:
    """Run it to its end. Raises SetupError before anything is sent, RunError later."""
    try:
        check_rate(scenario, workers)
    except ScenarioError as error:
        raise SetupError(str(error)) from None
    if workers > scenario.device_count:
        raise SetupError(
            f"--workers: {scenario.device_count} or fewer, one device for each, not {workers}"
        )
    allow_connections(-(-scenario.device_count // workers))
    target = broker.target()
    address = reach(broker)
    watch = None if pid is None else Watch(pid)
    board = Board(workers, watch, on_second)
    run_id = secrets.token_hex(4)
    if workers == 1:
        outcome = _run_here(scenario, target, address, run_id, board)
    else:
        outcome = _Crew(scenario, broker, address, run_id, board, workers).run()
    outcome.series = board.series
    if watch is not None:
        outcome.broker_cpu_cores = watch.cores
        outcome.broker_rss_bytes_max = watch.rss_bytes_max
    return outcome


@contextlib.contextmanager
def _on_interrupt(act: Callable[[], None]) -> Iterator[None]:
    """Call `act` on Ctrl-C and SIGTERM; do nothing outside of the main thread."""

    def on_signal(number: int, frame: FrameType | None) -> None:
        act()

    try:
        before = [(one, signal.signal(one, on_signal)) for one in (signal.SIGINT, signal.SIGTERM)]
    except ValueError:  # another thread: its owner decides
        yield
        return
    try:
        yield
    finally:
        for number, handler in before:
            signal.signal(number, handler)


def _run_here(
    scenario: Scenario, target: Target, address: tuple[int, Any], run_id: str, board: Board
) -> Outcome:
    one = ProcessRun(scenario, target, address, run_id=run_id, on_sample=board.put)
    with _on_interrupt(one.interrupt):
        try:
            return one.run()
        except NotReady as error:
            raise SetupError(f"the broker is there and does not let us work: {error}") from None


# Several processes.

# A worker is a Python of its own, told what to do over a socket: no copy of what the parent is.
_WORKER: Final = "from iot_sim.run.processes import work; work({fd})"
Order = tuple[Scenario, Broker, tuple[int, Any], str, Part, int]


class _Crew:
    """The worker processes of a run."""

    def __init__(
        self,
        scenario: Scenario,
        broker: Broker,
        address: tuple[int, Any],
        run_id: str,
        board: Board,
        workers: int,
    ) -> None:
        self._board = board
        self._processes: dict[Connection, subprocess.Popen[bytes]] = {}
        base_us = Clock().base_us
        for index in range(workers):
            pipe, process = _start_worker()
            self._processes[pipe] = process
            order: Order = (scenario, broker, address, run_id, Part(index, workers), base_us)
            pipe.send(order)

    def run(self) -> Outcome:
        try:
            with _on_interrupt(self._interrupt):
                return self._gather()
        finally:
            for pipe, process in self._processes.items():
                pipe.close()
                try:
                    process.wait(2.0)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()

    def _interrupt(self) -> None:
        for pipe in self._processes:
            with contextlib.suppress(OSError):
                pipe.send("interrupt")

    def _gather(self) -> Outcome:
        whole: Outcome | None = None
        working = dict(self._processes)
        while working:
            ready = wait(list(working), SILENCE_S)
            if not ready:
                raise RunError(f"{len(working)} workers have said nothing for {SILENCE_S:g} s")
            for pipe in ready:
                assert isinstance(pipe, Connection)
                process = working[pipe]
                try:
                    told = pipe.recv()
                except (EOFError, ConnectionResetError):
                    raise RunError(
                        f"worker {process.pid} ended with {process.wait()} before its time"
                    ) from None
                if isinstance(told, Sample):
                    self._board.put(told)
                elif isinstance(told, Outcome):
                    del working[pipe]
                    if whole is None:
                        whole = told
                    else:
                        whole.add(told)
                else:
                    raise SetupError(f"the broker is there and does not let us work: {told}")
        assert whole is not None
        return whole


def _start_worker() -> tuple[Connection, subprocess.Popen[bytes]]:
    ours, theirs = socket.socketpair()
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-c", _WORKER.format(fd=theirs.fileno())],
            pass_fds=[theirs.fileno()],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path or "." for path in sys.path)},
            # Ctrl-C in a terminal reaches every process of a group; the parent alone decides.
            process_group=0,
        )
    return Connection(ours.detach()), process


def work(fd: int) -> None:
    """Run in a worker process, from its order to its outcome."""
    pipe = Connection(fd)
    order: Order = pipe.recv()
    scenario, broker, address, run_id, part, base_us = order
    allow_connections(-(-scenario.device_count // part.count))
    one = ProcessRun(
        scenario,
        broker.target(),
        address,
        run_id=run_id,
        part=part,
        clock=Clock(base_us),
        on_sample=lambda sample: _tell(one, pipe, sample),
    )
    with contextlib.suppress(BrokenPipeError, ConnectionResetError, EOFError):
        try:
            pipe.send(one.run())
        except NotReady as error:
            pipe.send(str(error))
    # The parent has ended: there is no one to report to.


def _tell(one: ProcessRun, pipe: Connection, sample: Sample) -> None:
    pipe.send(sample)
    while pipe.poll():
        pipe.recv()
        one.interrupt()
