"""Where log lines go: JSON, the ring of the last lines, `$SYS`."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator

import pytest

from mqtt_broker.server.process import log_output
from mqtt_broker.server.process.log_output import JsonFormatter, LogRing, SysLog
from tests.server.broker_process import Process


@pytest.fixture
def logger() -> Iterator[logging.Logger]:
    logger = logging.getLogger("fleetmq")
    before = logger.level, list(logger.handlers)
    logger.setLevel(logging.DEBUG)
    yield logger
    logger.setLevel(before[0])
    logger.handlers[:] = before[1]


def record(text: str, **more: object) -> logging.LogRecord:
    made = logging.LogRecord("fleetmq", logging.INFO, "f.py", 1, text, (), None)
    vars(made).update(more)
    return made


def test_json_is_one_line_with_the_facts() -> None:
    found = JsonFormatter().format(record("a\nb", fields={"client": "pump-7"}))
    assert "\n" not in found
    assert json.loads(found) | {"at": 0} == {
        "at": 0,
        "level": "info",
        "text": "a\nb",
        "client": "pump-7",
    }
    try:
        raise ValueError("bad")
    except ValueError as error:
        broken = record("x", exc_info=(ValueError, error, error.__traceback__), name="other")
    found = json.loads(JsonFormatter().format(broken))
    assert found["logger"] == "other" and "ValueError: bad" in found["error"]


def test_the_ring_keeps_the_last_lines(logger: logging.Logger) -> None:
    ring = LogRing(3)
    logger.addHandler(ring)
    for number in range(5):
        logger.info("line %d", number)
    logger.warning("Slow reader")
    assert [line.text for line in ring.lines()] == ["line 3", "line 4", "Slow reader"]
    assert [line.number for line in ring.lines()] == [4, 5, 6]
    assert [line.text for line in ring.lines("warning")] == ["Slow reader"]
    assert [line.text for line in ring.lines(text="slow")] == ["Slow reader"]
    assert [line.text for line in ring.lines(after=5)] == ["Slow reader"]
    logger.info("x" * 100_000)
    assert len(ring.lines()[-1].text) < 5_000


def test_lines_for_sys_are_limited_and_do_not_feed_themselves(logger: logging.Logger) -> None:
    seen: list[tuple[str, str]] = []

    def publish(letter: str, text: str) -> None:
        logger.error("about the publishing")
        seen.append((letter, text))

    handler = SysLog(publish)
    logger.addHandler(handler)
    logger.warning("one")
    assert seen == [("W", "one")]
    for _ in range(1_000):
        logger.info("more")
    assert len(seen) <= 201  # of two seconds at most


def test_the_level_is_that_of_the_broker(logger: logging.Logger) -> None:
    for level in log_output.LEVELS:
        log_output.set_level(level)
        assert log_output.level_in_force() == level


def test_the_form_of_lines_changes() -> None:
    handler = logging.StreamHandler()
    logging.getLogger().addHandler(handler)
    try:
        log_output.set_format("json")
        assert isinstance(handler.formatter, JsonFormatter)
        log_output.set_format("text")
        assert not isinstance(handler.formatter, JsonFormatter)
    finally:
        logging.getLogger().removeHandler(handler)


def test_a_process_writes_json() -> None:
    settings = {"FLEETMQ_LOG_FORMAT": "json", "FLEETMQ_LOG_LEVEL": "debug"}
    with Process("--port", "0", env=settings) as broker:
        broker.client("pump-7").sock.close()
        line = json.loads(broker.wait_for('"disconnected"'))
        assert (line["client"], line["reason"]) == ("pump-7", "connection lost")
        broker.end()
