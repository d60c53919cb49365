"""URLs of sinks: which module opens them, and what is said of those that nobody opens."""

from __future__ import annotations

import pytest

pytest.importorskip("pyspark")

from spark_ingest.contract.sink import Batch, SinkError, is_sql, open_sink, scheme_of


class Own:
    """A sink of somebody else's."""

    def __init__(self, query: str) -> None:
        self.query = query

    def write(self, batch: Batch) -> None:
        raise AssertionError("nobody writes")

    def close(self) -> None:
        pass


@pytest.mark.parametrize(
    ("url", "scheme", "sql"),
    [
        ("console:", "console", False), ("MQTT://h", "mqtt", False), ("mqtts://h", "mqtts", False),
        ("parquet:/x", "parquet", False), ("python:a:b", "python", False),
        ("sqlite:///x", "sqlite", True), ("postgresql+psycopg://h/d", "postgresql+psycopg", True),
    ],
)  # fmt: skip
def test_schemes(url: str, scheme: str, sql: bool) -> None:
    assert scheme_of(url) == scheme and is_sql(url) is sql


@pytest.mark.parametrize("query", ["", "a=1&b=2", "a=b?c"])
def test_a_sink_of_ones_own_gets_what_follows_the_question_mark(query: str) -> None:
    sink = open_sink(f"python:{__name__}:Own" + (f"?{query}" if query else ""))
    assert isinstance(sink, Own) or type(sink).__name__ == "Own"
    assert sink.query == query  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("nonsense", "'nonsense' is no URL"),
        ("", "'' is no URL"),
        ("python:", "python:"),
        ("python:no_such_module:X", "python:no_such_module:X: No module named"),
        (f"python:{__name__}:Nothing", "has no attribute 'Nothing'"),
        (f"python:{__name__}", "python:"),
    ],
)
def test_what_nobody_opens(url: str, why: str) -> None:
    with pytest.raises(SinkError, match=why) as error:
        open_sink(url)
    assert "\n" not in str(error.value)
