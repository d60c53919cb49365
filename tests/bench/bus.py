"""Measure the bus: messages of 128 bytes from node to node, in frames of 32 KB and in small ones.

    python tests/bench/bus.py [--seconds 3] [--bytes 128]

A process sends, another receives, and a NATS server of its own is between them. The CPU time of
each is counted apart: what it costs to encode and to decode is in theirs.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import os
import random
import sys
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).parents[2]))

from mqtt_broker.cluster.bus.nats_bus import NatsBus
from mqtt_broker.cluster.bus.settings import NatsSettings
from mqtt_broker.cluster.frames.batches import Batches
from mqtt_broker.cluster.frames.layout import MESSAGES, FrameKey
from mqtt_broker.cluster.frames.reader import Frame
from mqtt_broker.server.net.event_loop import TurnLoop
from tests.cluster.bus.nats_server import NatsServer

HOSTS: Final = {1: "a", 2: "b"}
QUEUED_BYTES: Final = 1_000_000
TICKS_A_SECOND: Final = os.sysconf("SC_CLK_TCK")
KEY: Final = FrameKey("bench", bytes(32))


class Counted:
    """A receiver: messages that came, and when the first and the last did."""

    def __init__(self) -> None:
        self.messages = 0

    def take(self, frame: Frame) -> None:
        self.messages += len(frame.body)


def bus(loop: TurnLoop, url: str, number: int, counted: Counted) -> NatsBus:
    settings = NatsSettings("bench", [url])
    found = NatsBus(settings, KEY, counted.take, loop.poller, loop, random.Random(number))
    loop.poller.end_turn = found.flush
    found.set_hosts(HOSTS, [number])
    found.start()
    return found


async def connected(one: NatsBus) -> None:
    while not one.is_connected:
        await asyncio.sleep(0.01)


def receive(url: str, pipe: Connection) -> None:
    loop = TurnLoop()
    counted = Counted()
    one = bus(loop, url, 2, counted)

    async def run() -> None:
        await connected(one)
        pipe.send("ready")
        began = time.process_time()
        while not pipe.poll():
            await asyncio.sleep(0.05)
        pipe.send((counted.messages, time.process_time() - began, one.reader.missing))

    loop.run_until_complete(run())


def send(url: str, pipe: Connection, seconds: float, size: int, in_turn: int) -> None:
    """Send as fast as NATS takes it, so many messages in each turn."""
    loop = TurnLoop()
    one = bus(loop, url, 1, Counted())
    batches = Batches(lambda to, body: _send(one, to, body))
    message = bytes(size)

    async def run() -> None:
        await connected(one)
        began, cpu = time.monotonic(), time.process_time()
        sent = 0
        while (now := time.monotonic()) < began + seconds:
            if one.queued_bytes < QUEUED_BYTES:
                for _ in range(in_turn):
                    batches.add(2, message)
                sent += in_turn
                batches.flush()
                one.flush()
                if sent % (in_turn * 16) == 0:
                    await asyncio.sleep(0)
            else:
                await asyncio.sleep(0.001)
        passed = now - began
        while one.queued_bytes:
            await asyncio.sleep(0.001)
        pipe.send((sent, one.frames_out, time.process_time() - cpu, passed))

    loop.run_until_complete(run())


def _send(one: NatsBus, to: int, body: bytes) -> bool:
    return one.send(1, to, MESSAGES, body)


def cpu_s(pid: int) -> float:
    """The CPU time of another process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_A_SECOND


def measure(server: NatsServer, seconds: float, size: int, in_turn: int) -> str:
    context = multiprocessing.get_context("spawn")
    (mine, theirs), (my_end, senders) = context.Pipe(), context.Pipe()
    receiver = context.Process(target=receive, args=(server.url, theirs))
    receiver.start()
    mine.recv()
    server_cpu = cpu_s(server.pid)
    sender = context.Process(target=send, args=(server.url, senders, seconds, size, in_turn))
    sender.start()
    sent, frames, sender_cpu, passed = my_end.recv()
    time.sleep(0.5)  # what NATS still has
    mine.send("end")
    came, receiver_cpu, missing = mine.recv()
    server_cpu = cpu_s(server.pid) - server_cpu
    for process in (sender, receiver):
        process.join()
    us = [1e6 * one / sent for one in (sender_cpu, server_cpu, receiver_cpu)]
    return (
        f"{in_turn:>8} {sent / passed / 1e3:>9.0f} k/s {us[0]:>8.2f} {us[1]:>8.2f} {us[2]:>8.2f}"
        f" {sum(us) * sent / frames:>12.1f} {sent - came:>8} {missing:>8}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--bytes", type=int, default=128, help="of a message")
    args = parser.parse_args()
    print(f"messages of {args.bytes} bytes; CPU in us a message")
    print("  a turn  messages       send   server  receive   us a frame  missing   frames")
    with tempfile.TemporaryDirectory() as folder, NatsServer(Path(folder)) as server:
        for in_turn in (2_000, 248, 4, 1):
            print(measure(server, args.seconds, args.bytes, in_turn))
    return 0


if __name__ == "__main__":
    sys.exit(main())
