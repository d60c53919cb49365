"""A run of the load generator: in this process, or in several that each have a share."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from typing import Any, Final

from iot_sim.bench.counts import Counts, Sample
from iot_sim.bench.load import Load
from iot_sim.bench.plan import Plan
from iot_sim.fleet.engine import Clock
from iot_sim.run.processes import Broker, RunError, raise_file_limit, resolve_address
from iot_sim.run.worker_process import ignore_signals, start_worker
from mqtt_broker import interrupts

WORKER_PROGRAM: Final = "from iot_sim.bench.run import run_worker; run_worker({fd})"
_END: Final = "end"
SILENCE_S: Final = 60.0  # without a sample for so long, the run fails
_Task = tuple[Plan, Broker, tuple[int, Any], tuple[int, int], int]


class Merger:
    """Adds up the samples of all processes, second by second."""

    def __init__(self, workers: int, on_second: Callable[[Sample], None]) -> None:
        self.total = Counts()
        self.online_max = 0
        self.late_us_max = 0
        self._workers = workers
        self._on_second = on_second
        self._open: dict[int, tuple[int, Sample]] = {}

    def put(self, sample: Sample) -> None:
        self.total.add(sample.counts)
        self.late_us_max = max(self.late_us_max, sample.late_us)
        seen, whole = self._open.get(sample.second, (0, Sample(sample.second, 0, Counts())))
        whole.counts.add(sample.counts)
        whole = Sample(
            sample.second,
            whole.online + sample.online,
            whole.counts,
            max(whole.late_us, sample.late_us),
        )
        if seen + 1 < self._workers:
            self._open[sample.second] = seen + 1, whole
            return
        self._open.pop(sample.second, None)
        self.online_max = max(self.online_max, whole.online)
        self._on_second(whole)

    def close(self) -> None:
        """Report the seconds that not every process has reached."""
        for second in sorted(self._open):
            self._on_second(self._open[second][1])
        self._open.clear()


def run(plan: Plan, broker: Broker, workers: int, on_second: Callable[[Sample], None]) -> Merger:
    """Run until the plan is done or a signal comes. Raises SetupError, and RunError later."""
    raise_file_limit(-(-plan.clients // workers))
    target, address = broker.target(), resolve_address(broker)
    merger = Merger(workers, on_second)
    if workers == 1:
        load = Load(plan, target, address, merger.put)
        with interrupts.asking(load.stop):
            load.run()
    else:
        _Workers(plan, broker, address, workers).run(merger)
    merger.close()
    return merger


class _Workers:
    """The processes of a run."""

    def __init__(self, plan: Plan, broker: Broker, address: tuple[int, Any], workers: int) -> None:
        self._processes: dict[Connection, subprocess.Popen[bytes]] = {}
        base_us = Clock().base_us
        for index in range(workers):
            pipe, process = start_worker(WORKER_PROGRAM)
            self._processes[pipe] = process
            task: _Task = (plan, broker, address, (index, workers), base_us)
            pipe.send(task)

    def run(self, merger: Merger) -> None:
        interrupts.before_exit(self._kill)
        try:
            with interrupts.asking(self._stop):
                self._gather(merger)
        finally:
            for pipe, process in self._processes.items():
                pipe.close()
                try:
                    process.wait(2.0)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()

    def _gather(self, merger: Merger) -> None:
        working = dict(self._processes)
        while working:
            ready = wait(list(working), SILENCE_S)
            if not ready:
                raise RunError(f"{len(working)} processes have sent nothing for {SILENCE_S:g} s")
            for pipe in ready:
                assert isinstance(pipe, Connection)
                try:
                    told = pipe.recv()
                except (EOFError, ConnectionResetError):
                    code = working[pipe].wait()
                    raise RunError(f"a process ended early, with exit code {code}") from None
                if isinstance(told, Sample):
                    merger.put(told)
                else:
                    del working[pipe]

    def _stop(self) -> None:
        for pipe in self._processes:
            with contextlib.suppress(OSError):
                pipe.send(_END)

    def _kill(self) -> None:
        for process in self._processes.values():
            process.kill()


def run_worker(fd: int) -> None:
    """Run the share of one process: receive the task, send samples, and say when it is done."""
    ignore_signals()
    pipe = Connection(fd)
    task: _Task = pipe.recv()
    plan, broker, address, share, base_us = task
    raise_file_limit(-(-plan.clients // share[1]))

    def send(sample: Sample) -> None:
        pipe.send(sample)
        if pipe.poll():
            pipe.recv()
            load.stop()

    load = Load(plan, broker.target(), address, send, share, Clock(base_us))
    with contextlib.suppress(BrokenPipeError, ConnectionResetError, EOFError):
        load.run()
        pipe.send(_END)
    # A closed pipe means that the parent has ended.
