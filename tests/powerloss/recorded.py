"""A broker that is traced while clients make it promise things: what it wrote, in all its lives.

The clients say one thing after the other, from a seed. A life ends by SIGKILL, between two calls
that are drawn from its trace: what it did after that is forgotten, and the next life goes on with
the files as the page cache has them then, synced or not.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from mqtt_broker.codec.constants import PUBACK, PUBCOMP, PUBREC, PUBREL
from mqtt_broker.codec.encode import encode_ack
from tests.fault.lives import PATIENCE_S, free_port
from tests.fault.talk import Message, Silence, Talker
from tests.fault.tether import tied
from tests.powerloss.disks import Disk
from tests.powerloss.traces import Call, read, traced
from tests.server.broker_process import ROOT, environment

CONFIG: Final = """
[[streams]]
name = "load"
filter = "load/#"
partitions = 2
segment_bytes = "4KiB"
"""
_PROGRAM: Final = (
    "import os, sys; from tests.fault.tether import tie; tie(os.getppid()); "
    "from tests.sabotage import put_in; put_in(sys.argv.pop(1)); "
    "from mqtt_broker.cli.main import main; sys.exit(main())"
)
PUBLISHERS: Final = ("gauge", "press")  # one a partition
# Every second life ends before a directory is synced: names are made rarely, and lost easily.
_DEATHS: Final = ("names", "names", "names", "bytes", "packets", "changes")
_GONE: Final = (OSError, EOFError, Silence, AssertionError)


@dataclass(slots=True)
class Recorded:
    """`base` is there and safe; the broker makes `base/new/data`."""

    base: Path
    calls: list[Call] = field(default_factory=list)


class Life:
    """One broker under strace."""

    def __init__(self, where: Path, base: Path, number: int, sabotage: str) -> None:
        self.prefix = where / f"trace-{number}"
        self.data = base / "new" / "data"
        self.port = free_port()
        config = where / "broker.toml"
        config.write_text(CONFIG)
        command = [sys.executable, "-c", _PROGRAM, sabotage, "broker", "--port", str(self.port)]
        command += ["--data-dir", str(self.data), "--config", str(config)]
        env = environment({"FLEETMQ_DURABILITY": "commit", "PYTHONDONTWRITEBYTECODE": "1"})
        with (where / "broker.log").open("ab") as log:
            self.process = subprocess.Popen(
                tied(traced(self.prefix, command)),
                cwd=ROOT,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
            )

    def listens(self) -> bool:
        """When it does; False when it died before."""
        assert self.process.stdout is not None
        return b"listens on" in self.process.stdout.readline()

    def kill(self) -> None:
        """Kill the broker; strace, its parent, ends with it."""
        parent = self.process.pid
        with contextlib.suppress(OSError):
            for child in Path(f"/proc/{parent}/task/{parent}/children").read_text().split():
                os.kill(int(child), signal.SIGKILL)
        try:
            self.process.wait(PATIENCE_S)
        finally:
            self.process.kill()
            self.process.wait()
            assert self.process.stdout is not None
            self.process.stdout.close()


def record(
    where: Path, seed: int, *, lives: int = 3, steps: int = 40, sabotage: str = ""
) -> Recorded:
    """Trace so many lives of a broker, with so many steps of its clients in each."""
    rng = random.Random(f"{seed}/recorded")
    recorded = Recorded(where / "base")
    recorded.base.mkdir()
    for number in range(lives):
        trace_life(where, recorded, seed, number, steps=steps, sabotage=sabotage)
        if number < lives - 1:
            found = deaths(recorded)
            kind = rng.choice([kind for kind in _DEATHS if kind in found])
            recorded.calls = until(recorded.calls, rng.choice(found[kind]))
            rebuild(recorded)
    return recorded


def trace_life(
    where: Path, recorded: Recorded, seed: int, number: int, *, steps: int, sabotage: str
) -> None:
    """Add the calls of one more life to `recorded`."""
    life = Life(where, recorded.base, number, sabotage)
    try:
        if life.listens():
            play = _Play(life.port, random.Random(f"{seed}/{number}"), number)
            with contextlib.suppress(*_GONE), contextlib.closing(play):
                play.run(steps)
    finally:
        life.kill()
    recorded.calls += read(life.prefix, number)


def deaths(recorded: Recorded) -> dict[str, list[int]]:
    """When the last life may die, just before a call, by the kind of the call."""
    moments: dict[str, list[int]] = defaultdict(list)
    disk = Disk(recorded.base)
    for call, _ in disk.play(recorded.calls):
        kind = disk.kind(call)
        if kind and call.life == recorded.calls[-1].life:
            moments[kind].append(call.start)
    return moments


def until(calls: list[Call], moment: int) -> list[Call]:
    """Keep what had begun by then; a call that had not returned never does."""
    return [
        replace(call, end=None) if call.end is not None and call.end >= moment else call
        for call in calls
        if call.start < moment
    ]


def rebuild(recorded: Recorded) -> None:
    """Put the files back as they were when the calls end, unsynced changes included."""
    disk = Disk(recorded.base)
    for _ in disk.play(recorded.calls):
        pass
    shutil.rmtree(recorded.base)
    disk.image(recorded.base, "everything", random.Random(0))


class _Play:
    """The clients of one life."""

    def __init__(self, port: int, rng: random.Random, life: int) -> None:
        self.address = "127.0.0.1", port
        self.rng = rng
        self.serial = 10_000 * life
        self.unreleased: set[int] = set()  # PUBREC has left, PUBREL is waited for
        self._talkers: dict[str, Talker] = {}

    def _client(self, name: str, *, clean: bool = False) -> Talker:
        self._talkers[name] = talker = Talker(self.address, name, clean=clean)
        return talker

    def close(self) -> None:
        for talker in self._talkers.values():
            talker.drop()

    def run(self, steps: int) -> None:
        self.near = self._client("near")
        self.publishers = [self._client(name) for name in PUBLISHERS]
        self.near.subscribe("t/#", 2)
        self._far()
        acts: list[Callable[[], None]] = [
            self._publish, self._publish, self._publish, self._burst, self._retain, self._half,
            self._take, self._take, self._far, self._renew, self._pause,
        ]  # fmt: skip
        for _ in range(steps):
            self.rng.choice(acts)()

    def _payload(self) -> bytes:
        size = self.rng.choice((0, 50, 50, 700, 3_000))
        return b"%d " % self.serial + bytes([self.serial & 0xFF]) * size

    def _topic(self) -> str:
        return self.rng.choice(("t/a", "t/b", "load/a", "load/b", "load/c"))

    def _send(self, talker: Talker, topic: str, qos: int, *, retain: bool = False) -> int:
        """The next message, under an id that no life of the client has used."""
        self.serial += 1
        payload = self._payload()
        talker.start_publish(topic, payload, qos=qos, retain=retain, packet_id=self.serial)
        return self.serial

    def _publish(self) -> None:
        talker = self.rng.choice(self.publishers)
        qos = self.rng.choice((1, 1, 2))
        talker.finish_publish(self._send(talker, self._topic(), qos), qos)

    def _burst(self) -> None:
        """Sent at once, so that groups of the journal hold more than one."""
        talker = self.rng.choice(self.publishers)
        waiting = {self._send(talker, self._topic(), 1) for _ in range(self.rng.randint(2, 8))}
        while waiting:
            waiting.difference_update(talker.ack(PUBACK).packet_ids)

    def _retain(self) -> None:
        talker = self.publishers[0]
        topic = self.rng.choice(("r/a", "r/b"))
        talker.finish_publish(self._send(talker, topic, 1, retain=True), 1)

    def _half(self) -> None:
        """A QoS 2 exchange that stops after PUBREC."""
        talker = self.publishers[1]
        self._send(talker, self._topic(), 2)
        talker.ack(PUBREC)

    def _take(self) -> None:
        """Some of what came, at times only up to PUBREC."""
        came: list[Message] = []
        with contextlib.suppress(Silence):
            while len(came) < 6:
                came += self.near.take(1, 0.01)
        for message in came:
            packet_type = PUBREC if message.qos == 2 else PUBACK
            self.near.send(encode_ack(packet_type, message.packet_id))
            if message.qos == 2:
                self.unreleased.add(message.packet_id)
        if self.rng.random() < 0.7:
            while self.unreleased:
                ids = self.near.ack(PUBREL).packet_ids
                self.unreleased.difference_update(ids)
                self.near.send(*(encode_ack(PUBCOMP, packet_id) for packet_id in ids))

    def _far(self) -> None:
        """It comes, subscribes, takes little, and goes."""
        far = self._client("far")
        for text in self.rng.sample(("t/a", "load/#", "t/+"), 2):
            far.subscribe(text, 1)
        if self.rng.random() < 0.3:
            far.subscribe("load/c", 1)
            far.unsubscribe("load/c")
        with contextlib.suppress(Silence):
            far.accept(far.take(self.rng.randrange(4), 0.02))
        far.drop()

    def _renew(self) -> None:
        """Its session ends by Clean Start, or goes on."""
        renew = self._client("renew", clean=self.rng.random() < 0.5)
        if self.rng.random() < 0.7:
            renew.subscribe(self.rng.choice(("t/a", "load/a")), 2)
        renew.drop()

    def _pause(self) -> None:
        """Long enough that the folder may have its turn."""
        time.sleep(self.rng.choice((0.0, 0.01, 0.3)))
