"""Signals of a program that uses a part of ours: its own handlers come back."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import sys
import threading

import pytest

from mqtt_broker import interrupts


def kill(number: int) -> None:
    os.kill(os.getpid(), number)


@pytest.mark.parametrize("number", interrupts.SIGNALS)
def test_a_flag_is_set_and_can_be_waited_for(number: int) -> None:
    before = signal.getsignal(number)
    with interrupts.flag() as stop:
        assert not stop.wait(0) and not stop.is_set()
        stop.check()
        kill(number)
        assert stop.is_set() and stop.wait(60)
        with pytest.raises(interrupts.Interrupted):
            stop.check()
        assert os.read(stop.fileno(), 1) == bytes((number,))  # written by Python itself
    assert signal.getsignal(number) is before


def test_the_second_signal_raises() -> None:
    asked = []
    with interrupts.asking(lambda: asked.append(1)):
        kill(signal.SIGTERM)
        assert asked == [1]
        with pytest.raises(interrupts.Interrupted):
            kill(signal.SIGINT)
    assert asked == [1]


def test_a_wait_ends_with_the_signal() -> None:
    with interrupts.flag() as stop:
        threading.Timer(0, kill, (signal.SIGTERM,)).start()
        assert stop.wait(60)


def test_other_threads_have_no_signals() -> None:
    before = [signal.getsignal(number) for number in interrupts.SIGNALS]
    found = []

    def run() -> None:
        with interrupts.flag() as stop, interrupts.raising(), interrupts.deferred():
            found.append(stop.is_set())

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert found == [False]
    assert [signal.getsignal(number) for number in interrupts.SIGNALS] == before


def test_ignored_signals_stay_ignored() -> None:
    """As those of a background job of a shell."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with interrupts.flag() as stop:
            kill(signal.SIGINT)
            assert not stop.is_set()
    finally:
        signal.signal(signal.SIGINT, before)


def test_nothing_is_said_of_a_process_that_is_not_a_command(
    capfd: pytest.CaptureFixture[str],
) -> None:
    with interrupts.flag():
        kill(signal.SIGTERM)
    interrupts.rename("other")
    interrupts.finish()
    assert not interrupts.asked() and not interrupts.has_raised()
    assert capfd.readouterr() == ("", "")


class Ended(Exception):
    """The process would have ended here."""


@pytest.mark.parametrize("step", range(1, 21))
def test_a_second_signal_at_any_step_of_the_first_handler(
    step: int, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The line of the first comes first, the line of the second after it, each once."""
    handler = interrupts.Handler("fleetmq")
    ends: list[int] = []
    steps = itertools.count(1)

    def end(code: int) -> None:
        ends.append(code)
        raise Ended

    def on_step(*_: object) -> None:
        if next(steps) == step:
            handler.on_signal(signal.SIGTERM, None)

    monkeypatch.setattr(os, "_exit", end)
    handler.replace(lambda: None)
    sys.setprofile(on_step)
    with contextlib.suppress(Ended):
        handler.on_signal(signal.SIGINT, None)
    sys.setprofile(None)
    with contextlib.suppress(Ended):  # the first handler has fewer steps
        if next(steps) <= step:
            handler.on_signal(signal.SIGTERM, None)
    said = capfd.readouterr().err.splitlines()
    lines = {
        number: (f"fleetmq: SIG{number}, stopping", f"fleetmq: SIG{other} again, stopped at once")
        for number, other in (("INT", "TERM"), ("TERM", "INT"))
    }
    assert tuple(said) in lines.values(), said
    assert ends == [143 if "INT" in said[0] else 130]
