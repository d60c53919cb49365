"""What the telemetry log costs beside live delivery: the same load with a stream and without.

    python tests/bench/stream_write.py                  QoS 0, and QoS 1 with windows of 20 and 100
    python tests/bench/stream_write.py --only qos1-100        one of them
    python tests/bench/stream_write.py --rounds 1 --seconds 2 a quick look

Every message is delivered to its subscriber and, in the mode `logged`, kept by a stream over `#`
in four partitions. Both modes run with `durability = commit` and take turns, each in a broker
process and on a store of its own; figures are medians of the rounds. In the end the log is read:
what was acknowledged has to be in it. The CPU time is that of the broker's process, all threads.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).parents[2]))  # the working tree, installed or not

from mqtt_broker.streams.format.stream_settings import StreamSettings
from mqtt_broker.streams.read.source import Source
from mqtt_broker.streams.write.log import Log
from tests.bench import flows
from tests.bench.durable import Rounds, fsync_ms, show, verdict
from tests.bench.password_check import answers
from tests.bench.password_check import options as asked
from tests.bench.peers import Flow, Target, Wrong
from tests.bench.places import PAYLOAD_BYTES, Broker, Place, Places, in_child

PAIRS: Final = 50
STREAM: Final = StreamSettings("all", "#", partitions=4)


@dataclass(frozen=True, slots=True)
class Case:
    """One load, and how much of its rate has to be left when all of it is logged."""

    qos: int
    window: int
    ratio_min: float

    def load(self, target: Target, seconds: float) -> Flow:
        if self.qos:
            return in_child(
                flows.online, target, self.qos, PAIRS, self.window, PAYLOAD_BYTES, seconds
            )
        return in_child(flows.plain, target, PAIRS, 0.0, self.window, PAYLOAD_BYTES, seconds)


CASES: Final = {
    "qos0": Case(0, 100, 0.75),
    "qos1-20": Case(1, 20, 0.6),
    "qos1-100": Case(1, 100, 0.6),
}


def make_stream(place: Place) -> None:
    """The broker finds it at its start."""
    place.data_dir.mkdir()
    log = Log.open(place.data_dir / "streams", report=print)
    log.create(STREAM)
    log.close()


def kept(place: Place) -> int:
    """Messages that readers of the log find."""
    with Source.open(place.data_dir / "streams", STREAM.name) as source:
        return sum(source.ends().ends)


def measure(case: Case, program: Path, places: Places, rounds: Rounds, seconds: float) -> None:
    for mode in ("plain", "logged"):
        place = places.fresh()
        if mode == "logged":
            make_stream(place)
        with Broker(program, place, "commit", {"FLEETMQ_HTTP": "off"}) as broker:
            flow = case.load(broker.target, seconds)
            rounds.add(mode, rate=flow.rate, cpu=flow.cpu_us, peak=broker.memory_mb("VmHWM"))
        if mode == "logged":
            found = kept(place)
            if case.qos and found < flow.messages:
                raise Wrong(f"{found:,} messages are in the log, {flow.messages:,} were taken")
            rounds.add(mode, kept=found)
        places.drop(place)


def run(name: str, program: Path, places: Places, count: int, seconds: float) -> None:
    case = CASES[name]
    rounds = Rounds()
    for _ in range(count):
        measure(case, program, places, rounds, seconds)
    show(
        f"{name}: {PAIRS} publishers, a subscriber each, window {case.window}",
        ("", "messages/s", "CPU us", "peak MB", "in the log"),
        rounds.rows(("rate", "cpu", "peak", "kept")),
        verdict(
            "messages/s, logged / plain",
            rounds.of("logged", "rate") / rounds.of("plain", "rate"),
            case.ratio_min,
        ),
        f"CPU, plain / logged: {rounds.of('plain', 'cpu') / rounds.of('logged', 'cpu'):.2f}",
    )


def main() -> int:
    options = answers(asked("The telemetry log beside live delivery.", CASES, seconds=6.0), CASES)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    with ExitStack() as stack:
        made = tempfile.TemporaryDirectory(prefix="fleetmq-bench-", dir=options.folder)
        folder = Path(stack.enter_context(made))
        p50, p99 = fsync_ms(folder)
        print(
            f"{options.rounds} rounds; {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; "
            f"fdatasync of 4 KB: p50 {p50:.2f} ms, p99 {p99:.2f} ms"
        )
        for name in options.only:
            try:
                run(name, options.fleetmq, Places(folder), options.rounds, options.seconds)
            except Wrong as error:
                print(f"logged: {name}: {error}", file=sys.stderr)
                return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
