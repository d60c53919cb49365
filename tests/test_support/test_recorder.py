"""What was published: recorded once whoever subscribes, and waited for."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from mqtt_broker.codec.constants import V5
from mqtt_broker.test_support import recorder
from mqtt_broker.test_support.recorder import NotPublished, PublishedMessage
from mqtt_broker.testing import Broker, ThreadedBroker
from mqtt_broker.topics.names import matches
from tests.core.peers import publish, subscribe
from tests.test_support.peers import connected


def test_a_message_is_recorded_as_it_was_published() -> None:
    async def main() -> list[PublishedMessage]:
        async with Broker(record=10) as broker:
            await broker.publish(
                "pump/1", "on", qos=1, retain=True, expiry_s=60, content_type="text/plain",
                response_topic="r", correlation_data=b"\0", user_properties=[("a", "b")],
            )  # fmt: skip
            return broker.published()

    [message] = asyncio.run(main())
    assert message.client_id.startswith("in-process-publisher-")
    assert message == PublishedMessage(
        "pump/1", b"on", 1, True, message.client_id, 60, "text/plain", "r", b"\0", (("a", "b"),)
    )


@pytest.mark.parametrize("options", [{}, {"data_dir": "state"}, {"streams": {"s": "pump/#"}}])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_each_accepted_message_is_recorded_once(
    options: dict[str, Any], qos: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with ThreadedBroker(**options) as broker:
        for number in range(20):
            broker.publish("pump/1", str(number), qos=qos)
            broker.publish("tank/1", str(number), qos=qos)
        found = broker.wait_for_messages(20, "pump/+")
        assert [one.payload for one in found] == [str(n).encode() for n in range(20)]
        assert {one.qos for one in found} == {qos}
        assert len(broker.published()) == 40


def test_a_burst_of_qos_0_is_recorded_message_by_message() -> None:
    with ThreadedBroker() as broker, connected(broker, "c") as peer:
        peer.send(*[publish("t", b"%d" % n) for n in range(500)])
        found = broker.wait_for_messages(500, "t")
        assert [one.payload for one in found] == [b"%d" % n for n in range(500)]
        assert found[0].client_id == "c"


def test_a_refused_message_is_not_recorded() -> None:
    with ThreadedBroker(maximum_qos=2) as broker, connected(broker, "c") as peer:
        peer.send(publish("$SYS/mine", b"no", qos=1), publish("t", b"yes", qos=1, packet_id=2))
        assert [one.topic for one in broker.wait_for_messages(1)] == ["t"]


def test_the_error_shows_what_came_instead() -> None:
    with ThreadedBroker() as broker:
        broker.publish("pump/1", "on")
        broker.publish("tank/1", "x" * 100, qos=1, retain=True)
        with pytest.raises(NotPublished) as caught:
            broker.wait_for_messages(2, "pump/+", timeout_s=0.05)
        publishers = [one.client_id for one in broker.published()]
    assert str(caught.value) == (
        "expected 2 messages to 'pump/+' within 0.05 s, got 1\n"
        f"  pump/1 b'on' (QoS 0, from {publishers[0]!r})\n"
        "other messages: 1\n"
        f"  tank/1 {b'x' * 60!r}... (100 bytes) (QoS 1, retain, from {publishers[1]!r})"
    )


def test_the_error_of_very_many_shows_the_last_ones() -> None:
    with ThreadedBroker() as broker:
        for number in range(25):
            broker.publish("t", str(number))
        with pytest.raises(NotPublished, match=r"\(15 before\)") as caught:
            broker.wait_for_messages(26, "t", timeout_s=0.05)
    assert str(caught.value).endswith("no other messages")


def test_it_keeps_the_last_ones_and_forgets_when_told() -> None:
    with ThreadedBroker(record=3) as broker:
        for number in range(5):
            broker.publish("t", str(number))
        assert [one.payload for one in broker.published()] == [b"2", b"3", b"4"]
        with pytest.raises(ValueError, match="invalid count 4: expected 1 to 3"):
            broker.wait_for_messages(4)
        broker.clear()
        assert broker.published() == []


def test_waiting_looks_at_each_message_once() -> None:
    async def main() -> list[int]:
        found = []
        async with Broker(record=1_000, sys_interval_s=0) as broker:
            for count in (50, 400):
                found.append(await _looks(broker, count))
        return found

    assert asyncio.run(main()) == [50, 400]


async def _looks(broker: Broker, count: int) -> int:
    """How often a filter is matched while messages arrive one by one."""
    looks = 0

    def counted(text: str, topic: str) -> bool:
        nonlocal looks
        looks += 1
        return matches(text, topic)

    broker.clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recorder, "matches", counted)
        waiting = asyncio.create_task(broker.wait_for_messages(count, "t"))
        for _ in range(count):
            await broker.publish("t", qos=1)
        await waiting
    return looks


def test_what_is_cleared_while_somebody_waits_does_not_count() -> None:
    async def main() -> list[bytes]:
        async with Broker(record=10) as broker:
            await broker.publish("t", "1", qos=1)
            waiting = asyncio.create_task(broker.wait_for_messages(2, "t"))
            await asyncio.sleep(0)
            broker.clear()
            for payload in ("2", "3"):
                await broker.publish("t", payload, qos=1)
            return [one.payload for one in await waiting]

    assert asyncio.run(main()) == [b"2", b"3"]


def test_a_wrong_filter_and_a_broker_that_records_nothing() -> None:
    with ThreadedBroker() as broker, pytest.raises(ValueError, match="invalid Topic Filter 'a#'"):
        broker.published("a#")
    with ThreadedBroker(record=0) as broker, pytest.raises(ValueError, match="record=1000"):
        broker.published()


def test_streams_are_read_and_written_behind_it() -> None:
    async def main() -> bytes:
        async with Broker(record=10, streams={"s": "pump/#"}) as broker:
            await broker.publish("pump/1", "on", qos=1)
            async with broker.subscribe("$stream/s/@earliest", qos=1) as messages:
                return (await anext(messages)).payload

    assert asyncio.run(main()) == b"on"


def test_without_streams_a_stream_is_refused_as_before() -> None:
    answers = []
    for record in (0, 10):
        with ThreadedBroker(record=record) as broker, connected(broker, "c") as peer:
            peer.send(subscribe(V5, "$stream/s"))
            answers.append(peer.packet())
    assert answers[0] == answers[1]
