"""docs/UPGRADING.md has the numbers of the formats, and the lines that an older program says."""

from __future__ import annotations

import re
from typing import Final

import pytest

from iot_sim.report import report
from mqtt_broker.streams.format import batch, stream_settings
from mqtt_broker.streams.format.errors import Invalid
from sessions.journal import records
from sessions.store import export_import, schema
from tests.docs.blocks import ROOT

TEXT: Final = (ROOT / "docs" / "UPGRADING.md").read_text()
NOW: Final = {
    "schema of the store": schema.HEAD,
    "groups of the journal": records.FORMAT,
    "exported state": export_import.FORMAT,
    "batches of a stream": batch.VERSION,
    "settings of a stream": stream_settings.FORMAT,
    "report of the simulator": report.FORMAT,
}


@pytest.mark.parametrize("part", NOW)
def test_each_format_is_named(part: str) -> None:
    assert f"| {part} | {NOW[part]} |" in TEXT


def test_each_step_of_the_schema_has_a_row() -> None:
    folder = ROOT / "sessions" / "store" / "migrations" / "versions"
    steps = sorted(path.name[1:5] for path in folder.glob("s0*.py"))
    assert re.findall(r"^\| (\d{4}) \|", TEXT, re.MULTILINE) == steps


def test_settings_of_a_newer_program_are_refused_as_shown() -> None:
    told = []
    for text in ('{"format": 1, "name": "s", "setting": 1}', '{"format": 2, "name": "s"}'):
        with pytest.raises(Invalid) as refused:
            stream_settings.StreamSettings.parse(text)
        told.append(str(refused.value))
    assert all(f"| `{line}` |" in TEXT for line in told), told


def test_a_newer_group_is_refused_as_shown() -> None:
    blob = records.seal([])
    with pytest.raises(records.Corrupt) as refused:
        records.unseal(b"\x04" + blob[1:])
    assert f"`{refused.value}`" in TEXT


def test_a_newer_batch_is_refused_as_shown() -> None:
    assert (
        "which this program is too old for"
        in (ROOT / "mqtt_broker" / "streams" / "format" / "batch.py").read_text()
    )
    assert f"`a batch has format {batch.VERSION + 1} and flags 0, which" in TEXT
