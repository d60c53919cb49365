"""Telemetry without subscribers is acknowledged by the log alone, and is in it after `kill -9`.

Its groups have nothing for the database, so this is the path on which a crash finds only the
log to ask. `make torture` kills brokers that do everything else at the same time.
"""

from __future__ import annotations

from pathlib import Path

from mqtt_broker.streams.format.records import records
from mqtt_broker.streams.read.reader import Reader
from mqtt_broker.streams.read.source import Source
from tests.core.peers import publish
from tests.server.broker_process import Process

LIVES = 4
BURSTS = 5
BURST = 20
CONFIG = '[[streams]]\nname = "telemetry"\nfilter = "fleet/#"\npartitions = 2\n'


def test_what_was_acknowledged_is_in_the_log_after_a_kill(tmp_path: Path) -> None:
    config = tmp_path / "broker.toml"
    config.write_text(CONFIG)
    options = ("--config", str(config), "--port", "0", "--data-dir", str(tmp_path / "data"))
    acknowledged: list[bytes] = []
    for life in range(LIVES):
        with (
            Process(*options, env={"FLEETMQ_DURABILITY": "commit"}) as broker,
            broker.client(f"device{life}") as device,
        ):
            for burst in range(BURSTS):
                payloads = [b"%d/%d/%d" % (life, burst, row) for row in range(BURST)]
                device.send(
                    *(
                        publish("fleet/1", payload, qos=1, packet_id=number)
                        for number, payload in enumerate(payloads, 1)
                    )
                )
                if (life, burst) == (LIVES - 1, BURSTS - 1):
                    break  # the last are under way when it dies
                answers = [device.packet() for _ in payloads]
                assert {answer[0] for answer in answers} == {0x40}
                acknowledged += payloads
            broker.process.kill()
    with Process(*options, env={"FLEETMQ_DURABILITY": "commit"}) as broker:
        broker.end()
    found, alone = logged(tmp_path / "data" / "streams")
    assert found[: len(acknowledged)] == acknowledged
    assert len(found) <= len(acknowledged) + BURST
    assert alone > 0


def logged(root: Path) -> tuple[list[bytes], int]:
    """The payloads, life by life, and how many batches stand alone."""
    found: list[tuple[str, bytes]] = []
    alone = 0
    with Source.open(root, "telemetry") as source:
        for partition in range(2):
            with Reader(source, partition, 0) as reader:
                while batches := reader.read():
                    for batch in batches:
                        alone += batch.header.stands_alone
                        found += [(one.client_id, one.payload) for one in records(batch)]
    return [payload for _, payload in sorted(found, key=lambda one: one[0])], alone
