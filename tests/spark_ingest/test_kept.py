"""That what the proofs rest on sees what it is there to see; no Spark here."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.spark_ingest import devices
from tests.spark_ingest.kept import BrokerLog
from tests.spark_ingest.telemetry import STREAM, Message, Writing

SENT = "1.0 S 0 1 [5000,20.5,null,false]\n1.1 S 0 2 [6000,21.5,null,false]\n"
TAKEN = "1.2 A 0 1\n1.3 A 0 2\n"
TOLD = [Message("d0", 1, 5_000, 0, 20.5), Message("d0", 2, 6_000, 0, 21.5)]


def ledger(directory: Path, text: str) -> Path:
    path = directory / "devices.ledger"
    path.write_text(text)
    return path


def test_a_ledger_is_what_was_sent(tmp_path: Path) -> None:
    assert devices.read(ledger(tmp_path, SENT + TAKEN)) == TOLD


@pytest.mark.parametrize(
    "text",
    [
        SENT + "1.2 A 0 1\n",  # one is not acknowledged
        SENT + TAKEN + "1.4 A 0 2\n",  # one twice
        SENT + TAKEN + "1.4 A 0 3\n",  # one that was never sent
        SENT + TAKEN + "1.4 L d0\n",  # a session was lost
        SENT + TAKEN + "1.4 E d0 PUBCOMP\n",
        SENT + "1.2 A 0 1\n1.3 X 0 2 0x87\n",  # refused
    ],
)
def test_a_broker_that_breaks_its_word_is_found(tmp_path: Path, text: str) -> None:
    with pytest.raises(AssertionError):
        devices.read(ledger(tmp_path, text))


@pytest.mark.parametrize(
    ("kept", "why"),
    [
        ([0, 1], ""),
        ([0], "1 are not in the log"),
        ([0, 1, 1], "twice in the log"),
        ([1, 0], "out of order"),
        ([0, 1, 2], "never sent"),
    ],
)
def test_a_log_that_is_not_what_was_sent_is_found(
    tmp_path: Path, kept: list[int], why: str
) -> None:
    broker = BrokerLog(tmp_path, seed=1)
    ledger(tmp_path, SENT + TAKEN)
    there = [*TOLD, Message("d0", 3, 7_000, 0, None)]
    log = Writing(tmp_path / "data" / "streams")
    for number in kept:
        one = there[number]
        log.put(one.topic, one.device, one.payload, 9_000 + number)
    log.commit()
    log.close()
    if why:
        with pytest.raises(AssertionError, match=why):
            broker.told()
    else:
        assert [one.received_us for one in broker.told()] == [9_000, 9_001]


def test_devices_and_a_broker_that_dies_under_them(tmp_path: Path) -> None:
    with BrokerLog(tmp_path, seed=2, pauses_s=(0.5, 0.8)) as broker:
        broker.wait_for_kills(2)
        told = broker.finish()
    assert broker.kills == 3
    assert len(told) > 100 and {one.device for one in told} == {f"d{n}" for n in range(20)}
    assert STREAM in broker.options
