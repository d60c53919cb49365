"""What a broker of a test costs: modules that are imported once, and lines that each start runs."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest

from mqtt_broker.server.net.event_loop import TurnLoop
from mqtt_broker.testing import Broker
from tests.counting import count_lines

ROOT: Final = Path(__file__).parents[1]
# 198 and 110: with asyncio 160 to 200 ms of CPU time, once; each start then takes 5 ms.
# Where nothing in site-packages imports a module before us, the others are 144.
OUR_MODULES_MAX: Final = 203
OTHER_MODULES_MAX: Final = 160
COLLECTIONS_MAX: Final = 5  # 1; by Python's own threshold 140
# Of a start and a stop: 29,000, nearly all of them for the hundred values of `$SYS`.
LINES_MAX: Final = 36_000
LINES_WITHOUT_SYS_MAX: Final = 5_000
HEAVY: Final = (
    "sqlalchemy alembic aiohttp websockets cryptography argon2 jwt prometheus_client uvloop "
    "mqtt_broker.http_api mqtt_broker.streams.write.log mqtt_broker.server.services.storage "
    "mqtt_broker.server.services.security mqtt_broker.server.net.layered_link sessions.store.store "
    "mqtt_broker.server.services.flight_recorder mqtt_broker.recorder.inquiry "
    "mqtt_broker.recorder.figures mqtt_broker.core.client_views"
).split()
SCRIPT: Final = f"""\
import sys
before = set(sys.modules)
from mqtt_broker.testing import ThreadedBroker
with ThreadedBroker() as broker:
    broker.publish("t", qos=1)
new = set(sys.modules) - before
ours = {{one for one in new if one.partition(".")[0] in ("mqtt_broker", "sessions", "qos")}}
print(len(ours), len(new) - len(ours), *(one for one in {HEAVY!r} if one in sys.modules))
"""


def test_few_modules_are_imported() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, cwd=ROOT, check=True
    )
    ours, others, *heavy = done.stdout.split()
    assert heavy == []
    assert int(ours) <= OUR_MODULES_MAX
    assert int(others) <= OTHER_MODULES_MAX


def test_a_start_of_the_command_hardly_searches_for_garbage() -> None:
    script = (
        "import gc, sys; from mqtt_broker.cli.main import main; before = gc.get_stats(); main(); "
        "print(sum(n['collections'] - b['collections'] for n, b in zip(gc.get_stats(), before)))"
    )
    command = [sys.executable, "-c", script, "broker", "--check"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True)
    assert int(done.stdout.splitlines()[-1]) <= COLLECTIONS_MAX


@pytest.mark.parametrize(
    ("options", "lines_max"), [({}, LINES_MAX), ({"sys_interval_s": 0}, LINES_WITHOUT_SYS_MAX)]
)
def test_a_start_and_a_stop_are_few_lines(options: dict[str, Any], lines_max: int) -> None:
    async def once() -> None:
        async with Broker(**options):
            pass

    with asyncio.Runner(loop_factory=TurnLoop) as runner:
        runner.run(once())  # what is done once in a process
        assert count_lines(lambda: runner.run(once())) <= lines_max
