"""What `make load` says of Locust's figures at its end."""

from __future__ import annotations

import re
from pathlib import Path

from tests.bench.load import MEANINGS, explain

CLIENT = Path(__file__).resolve().parents[3] / "iot_sim" / "locust_users" / "client.py"


def row(name: str, count: int, failures: int = 0) -> dict[str, str]:
    return {
        "Name": name, "Request Count": str(count), "Failure Count": str(failures),
        "50%": "2", "99%": "17",
    }  # fmt: skip


def test_each_figure_is_explained() -> None:
    rows = [row("connect", 12), row("deliver qos 1", 3400), row("session", 5), row("Aggregated", 9)]
    text = "\n".join(explain(rows, 100, 60, "fleet_tracking"))
    assert text.startswith("load: 100 users with devices of fleet_tracking for 60 s")
    assert re.search(r"deliver qos 1 +3,400, median 2 ms, 99 % within 17 ms: from the send", text)
    assert re.search(r"session +5: a session that the broker had to have", text)
    assert "Aggregated" not in text
    assert text.endswith(
        "load: passed, no request failed: nothing was refused, repeated or out of order"
    )


def test_failures_are_said_last() -> None:
    lines = explain([row("publish qos 1", 10, 3)], 10, 5, "factory")
    assert "10, 3 FAILED, median" in lines[1]
    assert lines[-1].startswith("load: FAILED, 3 requests failed")


def test_every_request_of_the_users_has_a_meaning() -> None:
    names = set(re.findall(r'_report\("(\w+)"', CLIENT.read_text()))
    assert names and names <= MEANINGS.keys()
