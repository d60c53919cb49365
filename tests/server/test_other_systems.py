"""Systems that lack a part of Linux: Windows has no fcntl, resource and epoll, macOS has no epoll.

A fresh interpreter loses these before it imports anything of ours.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[2]
PATIENCE_S: Final = 120.0
# Windows: sockets are waited for with select(), which has no descriptor that could be watched.
WINDOWS: Final = """\
import sys, select, selectors
sys.modules["fcntl"] = sys.modules["resource"] = None
for name in ("epoll", "poll"):
    delattr(select, name)
selectors.DefaultSelector = selectors.SelectSelector
"""
# macOS: kqueue has a descriptor, and is used through `selectors`; epoll's class stands for it.
MACOS: Final = """\
import os, select, selectors
del select.epoll, os.fdatasync, os.posix_fadvise
"""
EVERY_MODULE: Final = """\
import importlib, pkgutil
for name in ("mqtt_broker", "sessions", "qos", "iot_sim"):
    package = importlib.import_module(name)
    for found in pkgutil.walk_packages(package.__path__, f"{name}."):
        if "locust" not in found.name and "migrations" not in found.name:
            importlib.import_module(found.name)
print("done")
"""
TALK: Final = """\
import asyncio, socket
from mqtt_broker import Broker, ThreadedBroker
from mqtt_broker.codec.constants import V5
from tests.core.peers import connect, subscribe
from tests.server.running import Raw

with ThreadedBroker({options}) as broker:
    peer = Raw(socket.create_connection((broker.host, broker.port)))
    peer.send(connect("c"))
    assert peer.packet()[3] == 0
    peer.send(subscribe(V5, "pump/+", qos=1))
    peer.packet()
    for number in range(50):
        broker.publish("pump/1", str(number), qos=1)
        assert peer.packet().endswith(str(number).encode())
    peer.sock.close()
print("done")
"""


def run(system: str, script: str, folder: Path) -> subprocess.CompletedProcess[str]:
    path = f"import sys\nsys.path.insert(0, {str(ROOT)!r})\n"
    return subprocess.run(
        [sys.executable, "-c", path + system + script],
        cwd=folder, input="secret\n", capture_output=True, text=True, timeout=PATIENCE_S,
    )  # fmt: skip


@pytest.mark.parametrize("system", [WINDOWS, MACOS], ids=["windows", "macos"])
def test_every_module_is_imported(system: str, tmp_path: Path) -> None:
    done = run(system, EVERY_MODULE, tmp_path)
    assert done.stdout == "done\n", done.stderr


@pytest.mark.parametrize(
    ("system", "options"),
    [(WINDOWS, ""), (MACOS, ""), (MACOS, "data_dir='data'")],
    ids=["windows", "macos", "macos-data_dir"],
)
def test_a_broker_in_a_test_talks(system: str, options: str, tmp_path: Path) -> None:
    done = run(system, TALK.replace("{options}", options), tmp_path)
    assert done.stdout == "done\n", done.stderr


def test_a_data_directory_without_file_locks_is_refused_in_a_line(tmp_path: Path) -> None:
    script = """\
from mqtt_broker import StartError, ThreadedBroker
try:
    ThreadedBroker(data_dir="data").start()
except StartError as error:
    print(error)
"""
    done = run(WINDOWS, script, tmp_path)
    assert done.stdout == (
        "data_dir cannot be used here: this system has no fcntl, which locks its files; "
        "keep the state in memory (durability memory, and no streams)\n"
    ), done.stderr
    assert not list(tmp_path.iterdir())


def test_a_loop_that_cannot_watch_the_poller_is_refused_in_a_line(tmp_path: Path) -> None:
    script = """\
import asyncio
from mqtt_broker import Broker, StartError, TurnLoop

async def main():
    async with Broker() as broker:
        print(broker.port > 0)

try:
    asyncio.run(main())
except StartError as error:
    print(error)
with asyncio.Runner(loop_factory=TurnLoop) as runner:
    runner.run(main())
"""
    done = run(WINDOWS, script, tmp_path)
    assert done.stdout == (
        "a broker cannot run on _UnixSelectorEventLoop here: this system has neither epoll nor "
        "kqueue; run it on TurnLoop, or use ThreadedBroker\nTrue\n"
    ), done.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["broker", "--port", "0", "--http", "off"], 1, "data_dir cannot be used here: "),
        (["passwd", "users", "ada"], 1, "this system has no fcntl"),
    ],
)
def test_commands_say_what_is_missing(
    arguments: list[str], code: int, said: str, tmp_path: Path
) -> None:
    script = f"from mqtt_broker.cli.main import main\nsys.exit(main({arguments!r}))\n"
    done = run(WINDOWS, script, tmp_path)
    assert done.returncode == code, done.stderr
    assert said in done.stderr
    assert done.stderr.count("\n") == 1
