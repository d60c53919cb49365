"""The lines of the log, the metrics, topics and keys in docs/TROUBLESHOOTING.md are in the code."""

from __future__ import annotations

import re
from functools import cache
from typing import Final

import pytest

from tests.docs.blocks import ROOT

TEXT: Final = (ROOT / "docs" / "TROUBLESHOOTING.md").read_text()
REFERENCE: Final = ROOT / "docs" / "reference"
# Commands, and lines whose words are those of OpenSSL.
_NO_LINES: Final = ("fleetmq", "journalctl ", "ss ", "ulimit ", "--", "GET ", "refused, TLS: ")
WORDS: Final = 2


@cache
def _code() -> str:
    """The code of the broker, with strings that go on in the next line as one."""
    found = [
        path.read_text()
        for top in ("mqtt_broker", "sessions", "qos")
        for path in sorted((ROOT / top).rglob("*.py"))
    ]
    return re.sub(r"\"\s*\n\s*f?\"", "", "\n".join(found)).lower()


def _lines() -> list[str]:
    """Lines of the log: in blocks that are not run, and in the first two columns of tables."""
    blocks = re.findall(r"(?<!broker -->\n)^```text\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)
    rows = re.findall(r"^\| .* \|$", TEXT, re.MULTILINE)
    cells = [quoted for row in rows for quoted in re.findall(r"`([^`]+)`", row)]
    lines = [line for block in blocks for line in block.splitlines()]
    return [
        *lines,
        *(
            cell
            for cell in cells
            if " " in cell and " = " not in cell and not cell.startswith(_NO_LINES)
        ),
    ]


@pytest.mark.parametrize("line", _lines())
def test_a_line_is_in_the_code(line: str) -> None:
    """Two words of it follow each other in a string, and the rest is what differs."""
    words = line.split()
    runs = [" ".join(words[at : at + WORDS]) for at in range(len(words) - WORDS + 1)]
    assert any(run.lower() in _code() for run in runs)


def test_metrics_are_served() -> None:
    served = (REFERENCE / "metrics.md").read_text()
    named = set(re.findall(r"`?\b(fleetmq_[a-z_]+)\b", TEXT))
    assert len(named) > 15
    assert sorted(name for name in named if f"`{name}`" not in served) == []


def test_topics_are_published() -> None:
    text = (ROOT / "docs" / "PROTOCOL.md").read_text()
    known = (REFERENCE / "sys-topics.md").read_text() + text
    wrong = []
    for topic in re.findall(r"`\$SYS/broker/([a-z_/]+[a-z0-9])`", TEXT):
        levels = topic.split("/")
        patterns = (f"$SYS/broker/{topic}`", f"`{topic}`", f"`{'/'.join(levels[:-1])}/<")
        is_refusal = levels[0] == "refused" and f"`{levels[-1]}`" in (
            (ROOT / "docs" / "SECURITY.md").read_text()
        )
        if not is_refusal and not any(pattern in known for pattern in patterns):
            wrong.append(topic)
    assert wrong == []
