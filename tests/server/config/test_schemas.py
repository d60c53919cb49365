"""`[[schemas]]`: what a file may say, and which schema gives a stream its columns."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqtt_broker.server.config.schemas import (
    WHY_CHARS_MAX,
    Schema,
    one_line,
    read_schemas,
    with_columns,
)
from mqtt_broker.server.config.tables import ConfigError
from mqtt_broker.streams.format.stream_settings import StreamSettings

OBJECT: dict[str, Any] = {"type": "object"}
ARRAY: dict[str, Any] = {"type": "array"}


def read(tmp_path: Path, *rows: dict[str, Any]) -> tuple[Schema, ...]:
    (tmp_path / "object.json").write_text(json.dumps(OBJECT))
    (tmp_path / "broken.json").write_text("{")
    (tmp_path / "wrong.json").write_text('{"type": "nothing"}')
    (tmp_path / "far.json").write_text('{"$ref": "https://192.0.2.1/x.json"}')
    return read_schemas([*rows], str(tmp_path / "fleetmq.toml"))


def test_files_are_found_beside_the_configuration(tmp_path: Path) -> None:
    assert read(tmp_path) == ()
    found = read(
        tmp_path,
        {"filter": "a/#", "file": "object.json"},
        {"filter": "b", "file": "object.json", "mode": "off"},
        {"filter": "c", "file": str(tmp_path / "object.json"), "mode": "warn"},
    )
    assert [(one.filter, one.mode) for one in found] == [
        ("a/#", "reject"), ("b", "off"), ("c", "warn")
    ]  # fmt: skip
    assert all(one.definition == OBJECT for one in found)


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ({"file": "object.json"}, "filter"),
        ({"filter": "a/#/b", "file": "object.json"}, "filter 'a/#/b'"),
        ({"filter": "a"}, "file"),
        ({"filter": "a", "file": "none.json"}, "none.json"),
        ({"filter": "a", "file": "broken.json"}, "broken.json"),
        ({"filter": "a", "file": "wrong.json"}, "wrong.json"),
        ({"filter": "a", "file": "far.json"}, "nothing is fetched"),
        ({"filter": "a", "file": "object.json", "mode": "refuse"}, "mode"),
        ({"filter": "a", "file": "object.json", "topic": "a"}, "topic"),
    ],
)
def test_what_is_wrong_is_one_line_that_names_it(
    tmp_path: Path, row: dict[str, Any], why: str
) -> None:
    with pytest.raises(ConfigError) as error:
        read(tmp_path, {"filter": "x", "file": "object.json"}, row)
    said = str(error.value)
    assert why in said and "schemas" in said and "2" in said and "\n" not in said


def test_a_stream_gets_the_first_schema_of_its_very_filter() -> None:
    streams = (
        StreamSettings("own", filter="a", schema=ARRAY),
        StreamSettings("none", filter="a/+"),
        StreamSettings("one", filter="a"),
    )
    schemas = (Schema("a", "off", OBJECT), Schema("a", "reject", ARRAY), Schema("b", "off", ARRAY))
    found = with_columns(streams, schemas)
    assert [one.schema for one in found] == [ARRAY, None, OBJECT]
    assert [one.name for one in found] == ["own", "none", "one"]


@given(st.text(max_size=2 * WHY_CHARS_MAX))
def test_a_text_becomes_one_printable_line(text: str) -> None:
    found = one_line(text)
    assert found.isprintable() and len(found) <= WHY_CHARS_MAX
    if text.isprintable() and len(text) <= WHY_CHARS_MAX:
        assert found == text
    if len(text.split("\n", 1)[0]) > WHY_CHARS_MAX:
        assert found.endswith("...") and len(found) == WHY_CHARS_MAX


def test_only_the_first_line_counts() -> None:
    assert one_line("why\nand a long story") == "why" and one_line("a\tb") == "a?b"
