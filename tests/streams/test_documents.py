"""The examples of docs/STREAMS.md that need no broker run as they stand."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.server.process import document


def test_what_is_written_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    text = document("docs/STREAMS.md")
    write, read, _over_mqtt = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    exec(write, {})
    exec(read, {})
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[1:] for line in lines] == [
        ["fleet/7/telemetry", "b'21.5'"],
        ["fleet/7/telemetry", "b'21.6'"],
    ]
