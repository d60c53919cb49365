"""The sentences of docs/WHY.md are those of a broker, and its commands run.

Each sentence is that of a history below: word for word, with its times.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Final

import pytest
from paho.mqtt.client import Client
from paho.mqtt.enums import CallbackAPIVersion

from mqtt_broker.testing import ThreadedBroker
from tests import forked
from tests.core.peers import World, publish
from tests.docs.blocks import ROOT, Block, of
from tests.recorder.histories import ask
from tests.recorder.test_inquiry import Access, at_noon, pump

PAGE: Final = ROOT / "docs" / "WHY.md"


def _queued(world: World) -> str:
    pump(world).subscribe("plant/+/cmd", qos=1)
    world.peers[-1].drop()
    world.now += 60
    world.client("app-3").send(publish("plant/7/cmd", b"x", qos=1, packet_id=1))
    world.now += 60
    pump(world).drop()
    world.now += 60
    pump(world)
    return ask(world, "pump-7", "plant/7/cmd").sentence


def _denied(world: World) -> str:
    pump(world).subscribe("+/7", qos=1)
    world.client("app-3").send(publish("secret/7", b"x", qos=1, packet_id=1))
    return ask(world, "pump-7", "secret/7").sentence


def _misspelt(world: World) -> str:
    pump(world).subscribe("plants/7/#", qos=1)
    return ask(world, "pump-7", "plant/7/cmd").sentence


def _retained(world: World) -> str:
    world.client("app-3").send(publish("plant/7/mode", b"x", retain=True))
    world.now += 60
    pump(world).subscribe("plant/+/mode", retain_handling=2)
    return ask(world, "pump-7", "plant/7/mode").sentence


HISTORIES: Final[tuple[Callable[[World], str], ...]] = (_queued, _denied, _misspelt, _retained)


def _sentences() -> list[str]:
    (block,) = (block for block in of("text") if block.path == PAGE)
    return [" ".join(part.split()) for part in block.text.split("\n\n")]


def test_each_sentence_has_a_history() -> None:
    assert len(_sentences()) == len(HISTORIES)


@pytest.mark.parametrize(("sentence", "history"), list(zip(_sentences(), HISTORIES, strict=False)))
def test_a_sentence(sentence: str, history: Callable[[World], str]) -> None:
    assert history(at_noon(access=Access())) == sentence


def test_all_blocks_are_run() -> None:
    found = [(block.language, block.value) for block in _blocks()]
    assert found == [("text", ""), ("sh", "recorder")]


def _blocks() -> list[Block]:
    return [block for block in of("text", "sh", "console", "python") if block.path == PAGE]


def test_its_commands_run() -> None:
    commands = [
        line for block in _blocks() if block.language == "sh" for line in block.text.splitlines()
    ]
    with ThreadedBroker(http="127.0.0.1:0") as broker:
        clients = []
        for name in ("pump-7", "app-3"):
            client = Client(CallbackAPIVersion.VERSION2, name)
            client.connect(broker.host, broker.port)
            client.loop_start()
            clients.append(client)
        try:
            clients[0].subscribe("plant/+/cmd", 1)
            broker.wait_for_subscription("plant/+/cmd")
            clients[1].publish("plant/7/cmd", b"on", 1).wait_for_publish(10)
            for command in commands:
                program, *arguments = command.split()
                assert program == "fleetmq"
                said = _run(arguments, broker.http_url)
                assert said.startswith(("published to `plant/7/cmd`", "no message `app-3@")), said
                assert "The recorder sees back to" in said
        finally:
            for client in clients:
                client.disconnect()
                client.loop_stop()


def _run(arguments: list[str], url: str) -> str:
    program = "import sys; from mqtt_broker.cli.main import main; sys.exit(main())"
    done = forked.run(
        [sys.executable, "-c", program, *arguments, "--api", url],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return str(done.stdout)
