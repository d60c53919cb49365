"""Tables and details for people: widths, colours, numbers, and names that come from clients."""

from __future__ import annotations

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqtt_broker.cli import ctl_output
from mqtt_broker.cli.ctl_output import (
    Column,
    cell,
    columns_of,
    cut,
    moment,
    print_details,
    print_json,
    span,
    table,
    text_width,
)

COLUMNS = [Column("NAME", "name"), Column("COUNT", "count", "count"), Column("WHY", "why")]


def test_numbers_are_right_aligned() -> None:
    items = [{"name": "a", "count": 1_234, "why": "x"}, {"name": "long", "count": 5}]
    assert table(items, COLUMNS) == ["NAME  COUNT  WHY", "a     1,234  x", "long      5  -"]


def test_long_texts_are_cut_where_there_is_no_space() -> None:
    items = [{"name": "n" * 50, "count": 7, "why": "w" * 30}]
    lines = table(items, COLUMNS, width=40)
    assert all(text_width(line) <= 40 for line in lines)
    assert lines[1].count("…") == 2 and " 7 " in lines[1]
    assert "n" * 50 in table(items, COLUMNS)[1]


@given(st.lists(st.text(), min_size=1, max_size=5), st.integers(20, 100))
def test_any_name_is_one_line_of_the_given_width(names: list[str], width: int) -> None:
    lines = table([{"name": name, "count": 1} for name in names], COLUMNS, width=width)
    assert len(lines) == len(names) + 1
    for line in lines:
        assert line.isprintable() and text_width(line) <= max(width, 8 + 8 + 5 + 4)


def test_what_a_terminal_would_obey_is_escaped() -> None:
    [_, line] = table([{"name": "\x1b[31mred\n\u202e", "count": 0}], COLUMNS)
    assert line.startswith(r"\x1b[31mred\n\u202e")


def test_wide_characters_take_two_columns() -> None:
    assert text_width("日本") == 4 and text_width("e\u0301") == 1
    assert cut("日本語", 5) == "日本…" and cut("abc", 3) == "abc"


def test_colours_do_not_move_columns() -> None:
    items = [{"state": "failed", "bad": 3}, {"state": "ok", "bad": 0}]
    columns = [Column("STATE", "state", "state"), Column("BAD", "bad", "bad")]
    lines = table(items, columns, has_colours=True)
    assert "\x1b[31mfailed\x1b[0m" in lines[1] and "\x1b[31m3\x1b[0m" in lines[1]
    plain = [line.replace("\x1b[0m", "") for line in lines]
    for colour in ("1", "31", "32"):
        plain = [line.replace(f"\x1b[{colour}m", "") for line in plain]
    assert plain == table(items, columns)


@pytest.mark.parametrize(
    ("value", "kind", "text"),
    [
        (None, "count", "-"), (True, "text", "yes"), (1_500, "bytes", "1.5 kB"),
        (0.25, "rate", "0.2"), (1234.5, "rate", "1,234"), (["a", "b"], "text", "a, b"),
        ({"a": 1, "late_s": 200}, "text", "a 1, late_s 3m20s"),
        ("x", "bytes", "x"), ([], "text", "-"), (2.0, "text", "2"),
        (12.34, "ms", "12.3"), ("x", "ms", "x"), (1.5, "text", "1.5"),
    ],
)  # fmt: skip
def test_values(value: object, kind: str, text: str) -> None:
    assert cell(value, kind).text == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0s"), (0.25, "0.2s"), (59, "59s"), (200, "3m20s"), (7_500, "2h05m"), (370_000, "4d06h"),
     (0xFFFF_FFFF, "never"),
     ("x", "x")],
)  # fmt: skip
def test_spans(seconds: object, text: str) -> None:
    assert span(seconds) == text


@pytest.mark.parametrize(
    ("at", "text"),
    [
        (0, "-"),
        (None, "-"),
        (1_700_000_000.9, "2023-11-14 22:13:20Z"),
        (1e20, "100,000,000,000,000,000,000"),
        ("x", "x"),
    ],
)
def test_moments(at: object, text: str) -> None:
    assert moment(at) == text


def test_details_have_a_line_for_each_value(capsys: pytest.CaptureFixture[str]) -> None:
    print_details(
        {"id": "pump", "limits": {"inflight": 20}, "idle_s": 200, "will": {}, "held": ["store"],
         "parts": [{"name": "store", "state": "ok"}]}
    )  # fmt: skip
    assert capsys.readouterr().out.splitlines() == [
        "id               pump",
        "limits.inflight  20",
        "idle_s           3m20s",
        "will             -",
        "held             store",
        "",
        "parts",
        "NAME   STATE",
        "store  ok",
    ]


def test_json_of_half_a_character(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"id": "\ud800", "other": "é"})
    assert '"\\ud800"' in capsys.readouterr().out
    print_json({"other": "é"})
    assert "é" in capsys.readouterr().out


def test_colours_need_a_terminal_that_has_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert ctl_output.has_colour()
    monkeypatch.setenv("NO_COLOR", "1")
    assert not ctl_output.has_colour()
    monkeypatch.delenv("NO_COLOR")
    monkeypatch.setenv("TERM", "dumb")
    assert not ctl_output.has_colour()
    monkeypatch.setenv("COLUMNS", "77")
    assert ctl_output.terminal_width() == 77


def test_columns_of_unknown_objects() -> None:
    found = columns_of([{"name": "a", "sent_bytes": 1}, {"name": "b", "expires_at": 1.0}])
    assert [column.kind for column in found] == ["text", "bytes", "time"]
