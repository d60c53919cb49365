"""The recorder of a running broker: questions from other threads, and events on disk."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from mqtt_broker.recorder import kinds
from mqtt_broker.recorder.figures import TooManyQuestions
from mqtt_broker.server.services.flight_recorder import QUESTIONS_MAX, FlightRecorder
from mqtt_broker.testing import Broker


def recorder_of(broker: Broker) -> FlightRecorder:
    assert broker.server.flight_recorder is not None
    return broker.server.flight_recorder


def test_a_question_is_answered() -> None:
    async def run() -> None:
        async with Broker() as broker, broker.subscribe("plants/7/#") as subscription:
            await broker.publish("plants/7/cmd", b"x")
            await anext(aiter(subscription))
            client_id = next(
                one.client_id for one in broker.server.broker.sessions if one.subscriptions
            )
            found = await asyncio.wrap_future(
                recorder_of(broker).why(client_id, "plant/7/cmd", 600.0)
            )
            assert "nearest is `plants/7/#`" in found.sentence
            found = await asyncio.wrap_future(recorder_of(broker).why(client_id, "", 600.0))
            assert any(fact.received_at is not None for fact in found.facts)
            assert len(found.sentences) == 1

    asyncio.run(run())


def test_events_outlive_the_process(tmp_path: Path) -> None:
    async def run() -> None:
        for _ in range(2):
            options: dict[str, Any] = {"data_dir": tmp_path, "durability": "commit"}
            async with Broker(**options) as broker, broker.subscribe("a"):
                pass
        async with Broker(data_dir=tmp_path, durability="commit") as broker:
            found = await asyncio.wrap_future(recorder_of(broker).events("", 600.0))
            assert [fact.kind for fact in found].count("connected") == 2
            assert found == sorted(found, key=lambda fact: -fact.at)

    asyncio.run(run())


def test_a_gap_on_the_disk_is_an_event(tmp_path: Path) -> None:
    async def run() -> None:
        options: dict[str, Any] = {"data_dir": tmp_path, "durability": "commit"}
        async with Broker(**options) as broker:
            files = recorder_of(broker).event_files
            assert files is not None
            (tmp_path / "events").write_text("a file")
            began = broker.now
            files.write([("c", kinds.CONNECTED, 0, "", "", int(began * 1000), 1)], began)
            found = await asyncio.wrap_future(recorder_of(broker).events("somebody", 600.0))
            (lost,) = (fact for fact in found if fact.kind == "events_lost")
            assert (lost.count, int(lost.at * 1000)) == (1, int(began * 1000))
            assert "events" in lost.reason

    asyncio.run(run())


def test_too_many_questions_are_refused() -> None:
    async def run() -> None:
        async with Broker() as broker:
            asked = [recorder_of(broker).slow(5) for _ in range(QUESTIONS_MAX + 1)]
            for answer in asked[:-1]:
                assert await asyncio.wrap_future(answer) == []
            with pytest.raises(TooManyQuestions):
                await asyncio.wrap_future(asked[-1])

    asyncio.run(run())


def test_a_recorder_may_be_off() -> None:
    async def run() -> None:
        async with Broker(recorder_bytes_max=0) as broker:
            assert broker.server.flight_recorder is None
            await broker.publish("a", b"x")

    asyncio.run(run())
