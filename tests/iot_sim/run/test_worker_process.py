"""A worker is a Python process of its own, which talks over a socket and leaves signals alone."""

from __future__ import annotations

import signal

from iot_sim.run.worker_process import start_worker

PROGRAM = (
    "from multiprocessing.connection import Connection\n"
    "from iot_sim.run.worker_process import ignore_signals\n"
    "ignore_signals()\n"
    "pipe = Connection({fd})\n"
    "pipe.send('ready')\n"
    "pipe.send(pipe.recv() * 2)\n"
)


def test_a_worker_answers_in_spite_of_signals() -> None:
    pipe, process = start_worker(PROGRAM)
    with pipe, process:
        assert pipe.recv() == "ready"
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGTERM)
        pipe.send(21)
        assert pipe.recv() == 42
    assert process.returncode == 0
