"""A whole run: in this process, or in several that each run a share of the devices.

Every process has observers for its own devices, so its ledger is complete, and the ledgers add up.
The parent starts the processes, gives them one clock, adds up their samples for the progress
display, measures the broker's process, and adds up their outcomes.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import ssl
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Final

from iot_sim.fleet.engine import Clock, Target
from iot_sim.judge.outcome import Outcome, Sample
from iot_sim.run.process import ALL_DEVICES, NotReady, ProcessRun, WorkerShare
from iot_sim.run.worker_process import ignore_signals, start_worker
from iot_sim.scenarios.scenario import Scenario, ScenarioError, check_rate
from mqtt_broker import interrupts
from mqtt_broker.client.url import InvalidUrl, parse_url

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

WEBSOCKET_PATH: Final = "/mqtt"  # where a URL has none
CONNECT_S: Final = 5.0
OTHER_FILES: Final = 64  # descriptors that a process needs besides its connections
WORKER_TIMEOUT_S: Final = 60.0  # without a sample or the outcome for so long, the run fails


class SetupError(Exception):
    """The run could not start; nothing was sent, and the text says what to change."""


class RunError(Exception):
    """The run started and could not be finished."""


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
    cert_file: str = ""  # of every client
    key_file: str = ""  # empty: the key is in the file of the certificate
    websocket_path: str = ""  # empty: MQTT without WebSocket

    def target(self) -> Target:
        tls = None
        if self.is_tls:
            try:
                tls = ssl.create_default_context(cafile=self.ca_file or None)
            except (OSError, ssl.SSLError) as error:
                raise SetupError(f"--cafile {self.ca_file}: {error}") from None
            if self.cert_file:
                self._load_certificate(tls)
            if self.is_insecure:
                tls.check_hostname = False
                tls.verify_mode = ssl.CERT_NONE
        url = f"{self}{self.websocket_path}" if self.websocket_path else ""
        return Target(self.host, self.port, tls, self.username, self.password, url)

    def _load_certificate(self, tls: ssl.SSLContext) -> None:
        try:
            tls.load_cert_chain(self.cert_file, self.key_file or None)
        except (OSError, ssl.SSLError) as error:
            key = f", --key {self.key_file}" if self.key_file else ""
            raise SetupError(f"--cert {self.cert_file}{key}: {error}") from None

    def __str__(self) -> str:
        scheme = "ws" if self.websocket_path else "mqtt"
        scheme += "s" if self.is_tls else ""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{scheme}://{host}:{self.port}"


def parse_broker(
    url: str,
    *,
    ca_file: str = "",
    is_insecure: bool = False,
    cert_file: str = "",
    key_file: str = "",
) -> Broker:
    """Parse `mqtt://[user[:password]@]host[:port]`, or the same with mqtts, ws or wss.

    The URL of a WebSocket may have a path. Raises SetupError.
    """
    try:
        found = parse_url(url)
    except InvalidUrl as error:
        raise SetupError(f"--broker: {error}") from None
    if not found.is_websocket and found.rest not in ("", "/"):
        raise SetupError(f"--broker: {found} has no path: remove {found.rest!r}")
    if key_file and not cert_file:
        raise SetupError("--key needs --cert")
    given = {"--cert": cert_file, "--cafile": ca_file, "--insecure": is_insecure}
    for option, value in given.items():
        if value and not found.is_tls:
            raise SetupError(f"{option} needs TLS: write mqtts:// or wss:// instead of {found}")
    return Broker(
        found.host,
        found.port,
        found.is_tls,
        found.username,
        None if found.password is None else found.password.encode(),
        ca_file,
        is_insecure,
        cert_file,
        key_file,
        (found.rest or WEBSOCKET_PATH) if found.is_websocket else "",
    )


def resolve_address(broker: Broker) -> tuple[int, Any]:
    """Connect once, and return the address family and the broker's address. Raises SetupError."""
    try:
        with socket.create_connection((broker.host, broker.port), CONNECT_S) as sock:
            return sock.family, sock.getpeername()
    except socket.gaierror as error:
        raise SetupError(f"--broker {broker}: no such host: {error.strerror}") from None
    except OSError as error:
        why = error.strerror or str(error)
        raise SetupError(f"--broker {broker}: {why}; is a broker listening there?") from None


def raise_file_limit(devices: int) -> None:
    """Raise the limit of open files for this many devices. Raises SetupError."""
    if resource is not None:
        _raise_file_limit(devices, devices + OTHER_FILES)


def _raise_file_limit(devices: int, needed: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < needed:
        if hard != resource.RLIM_INFINITY and hard < needed:
            raise SetupError(
                f"a process with {devices:,} devices needs {needed:,} open files, and the limit is"
                f" {hard:,}: raise it (ulimit -n), or use more --workers or fewer --devices"
            )
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


class ProcessMonitor:
    """CPU and memory of the broker's process, read from /proc."""

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
            return self._last[1]  # the process has ended
        return (int(fields[11]) + int(fields[12])) * self._tick_s

    def _rss_bytes(self) -> int:
        with contextlib.suppress(OSError):
            for line in self._status.read_text().splitlines():
                if line.startswith("VmRSS:"):
                    return int(line.split()[1]) * 1024
        return 0

    def sample(self) -> tuple[float, int]:
        """Return the cores used since the last sample, and the resident bytes."""
        before_at, before = self._last
        now = self._last = (time.monotonic(), self._cpu_s())
        rss_bytes = self._rss_bytes()
        self.rss_bytes_max = max(self.rss_bytes_max, rss_bytes)
        return (now[1] - before) / max(0.001, now[0] - before_at), rss_bytes

    @property
    def cores(self) -> float:
        first_at, first = self._first
        return (self._cpu_s() - first) / max(0.001, time.monotonic() - first_at)


class SampleMerger:
    """Adds up the samples of all processes, each second once all have sent theirs."""

    def __init__(
        self, workers: int, monitor: ProcessMonitor | None, on_second: Callable[[Sample], None]
    ) -> None:
        self._workers = workers
        self._monitor = monitor
        self._on_second = on_second
        self._open: dict[int, list[Sample]] = {}
        self.series: list[Sample] = []

    def put(self, sample: Sample) -> None:
        samples = self._open.setdefault(sample.second, [])
        samples.append(sample)
        if len(samples) < self._workers:
            return
        total = Sample(sample.second)
        for one in self._open.pop(sample.second):
            total.add(one)
        if self._monitor is not None:
            total.broker_cpu, total.broker_rss_bytes = self._monitor.sample()
        self.series.append(total)
        self._on_second(total)


def run(
    scenario: Scenario,
    broker: Broker,
    *,
    workers: int = 1,
    pid: int | None = None,
    share: WorkerShare = ALL_DEVICES,
    start_at: float | None = None,
    on_second: Callable[[Sample], None] = lambda sample: None,
) -> Outcome:
    """Run a scenario, or the share of it that this machine has, with as many processes.

    `start_at` is the common time at which all shares begin, in seconds since 1970. Raises
    SetupError before anything is sent, RunError later.
    """
    parts = [
        WorkerShare(share.index + share.count * worker, share.count * workers)
        for worker in range(workers)
    ]
    try:
        check_rate(scenario, share.count * workers)
    except ScenarioError as error:
        raise SetupError(str(error)) from None
    largest = max(fleet.count for fleet in scenario.fleets)
    if share.index >= largest:
        raise SetupError(f"--share must be of at most {largest}: the others have no devices")
    if workers > scenario.device_count:
        raise SetupError(
            f"--workers must be at most {scenario.device_count}, the number of devices,"
            f" not {workers}"
        )
    raise_file_limit(-(-scenario.device_count // len(parts) // share.count))
    target = broker.target()
    address = resolve_address(broker)
    monitor = None if pid is None else ProcessMonitor(pid)
    merger = SampleMerger(workers, monitor, on_second)
    run_id = secrets.token_hex(4)
    if workers == 1:
        one = ProcessRun(scenario, target, address, run_id=run_id, on_sample=merger.put,
                         part=share, start_at=start_at)  # fmt: skip
        outcome = _run_here(one)
    else:
        outcome = _Workers(scenario, broker, address, run_id, merger, parts, start_at).run()
    outcome.series = merger.series
    if monitor is not None:
        outcome.broker_cpu_cores = monitor.cores
        outcome.broker_rss_bytes_max = monitor.rss_bytes_max
    return outcome


def _run_here(one: ProcessRun) -> Outcome:
    with interrupts.asking(one.interrupt):
        try:
            return one.run()
        except NotReady as error:
            raise SetupError(f"the observers cannot connect and subscribe: {error}") from None


# Several processes.

_WORKER: Final = "from iot_sim.run.processes import run_worker; run_worker({fd})"
_WorkerTask = tuple[Scenario, Broker, tuple[int, Any], str, WorkerShare, int, float | None]


class _Workers:
    """The worker processes of a run."""

    def __init__(
        self,
        scenario: Scenario,
        broker: Broker,
        address: tuple[int, Any],
        run_id: str,
        merger: SampleMerger,
        parts: list[WorkerShare],
        start_at: float | None,
    ) -> None:
        self._merger = merger
        self._timeout_s = WORKER_TIMEOUT_S
        if start_at is not None:
            self._timeout_s += max(0.0, start_at - time.time())
        self._processes: dict[Connection, subprocess.Popen[bytes]] = {}
        base_us = Clock().base_us
        for part in parts:
            pipe, process = start_worker(_WORKER)
            self._processes[pipe] = process
            task: _WorkerTask = (
                scenario,
                broker,
                address,
                run_id,
                part,
                base_us,
                start_at,
            )
            pipe.send(task)

    def run(self) -> Outcome:
        interrupts.before_exit(self._kill)
        try:
            with interrupts.asking(self._interrupt):
                return self._gather()
        finally:
            for pipe, process in self._processes.items():
                pipe.close()
                try:
                    process.wait(2.0)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()

    def _kill(self) -> None:
        for process in self._processes.values():
            process.kill()

    def _interrupt(self) -> None:
        for pipe in self._processes:
            with contextlib.suppress(OSError):
                pipe.send("interrupt")

    def _gather(self) -> Outcome:
        whole: Outcome | None = None
        working = dict(self._processes)
        while working:
            ready = wait(list(working), self._timeout_s)
            if not ready:
                raise RunError(
                    f"{len(working)} workers have sent nothing for {self._timeout_s:g} s"
                )
            for pipe in ready:
                assert isinstance(pipe, Connection)
                process = working[pipe]
                try:
                    told = pipe.recv()
                except (EOFError, ConnectionResetError):
                    raise RunError(
                        f"worker {process.pid} ended early, with exit code {process.wait()}"
                    ) from None
                if isinstance(told, Sample):
                    self._merger.put(told)
                elif isinstance(told, Outcome):
                    del working[pipe]
                    if whole is None:
                        whole = told
                    else:
                        whole.add(told)
                else:
                    raise SetupError(f"the observers cannot connect and subscribe: {told}")
        assert whole is not None
        return whole


def run_worker(fd: int) -> None:
    """Run a worker process: receive its task, send samples and the outcome."""
    ignore_signals()
    pipe = Connection(fd)
    task: _WorkerTask = pipe.recv()
    scenario, broker, address, run_id, part, base_us, start_at = task
    raise_file_limit(-(-scenario.device_count // part.count))
    one = ProcessRun(
        scenario,
        broker.target(),
        address,
        run_id=run_id,
        part=part,
        clock=Clock(base_us),
        on_sample=lambda sample: _send_sample(one, pipe, sample),
        start_at=start_at,
    )
    with contextlib.suppress(BrokenPipeError, ConnectionResetError, EOFError):
        try:
            pipe.send(one.run())
        except NotReady as error:
            pipe.send(str(error))
    # A closed pipe means that the parent has ended.


def _send_sample(one: ProcessRun, pipe: Connection, sample: Sample) -> None:
    pipe.send(sample)
    while pipe.poll():
        pipe.recv()
        one.interrupt()
