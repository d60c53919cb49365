"""The one reader of TOML tables: types, limits, and errors that name key, value and remedy."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mqtt_broker.server.config.tables import ConfigError, Table, read_toml, rows, tables


def table(**data: Any) -> Table:
    return Table(data, "f.toml: t", data)


@pytest.mark.parametrize(
    ("read", "says"),
    [
        (lambda: Table({"prot": 1}, "", ("host", "port")), "unknown key prot; did you mean port?"),
        (lambda: Table({"x": 1}, "t", ("a", "b")), "t: unknown key x; it has a, b"),
        (lambda: Table({"\n": 1}, "t", ("a",)), r"t: unknown key '\n'; it has a"),
        (lambda: Table([], "t", ()), "t is a table, not []"),
        (lambda: table().text("k"), "f.toml: t: k is missing; it is a string"),
        (lambda: table(k="").text("k"), "f.toml: t: k is empty"),
        (lambda: table(k=1).text("k", ""), "f.toml: t: k is a string, not 1"),
        (lambda: table(k=1).flag("k", True), "f.toml: t: k is true or false, not 1"),
        (lambda: table(k=True).whole("k", 0, 0), "f.toml: t: k is a whole number, not True"),
        (lambda: table(k=9).whole("k", 0, 1, 8), "f.toml: t: k is 1 to 8, not 9"),
        (lambda: table(k=-1).whole("k", 0, 0), "f.toml: t: k is 0 or more, not -1"),
        (lambda: table(k=0).number("k", 1.0, 0.5, 2), "f.toml: t: k is 0.5 to 2, not 0"),
        (lambda: table(k=1e400).number("k", 1.0, 0), "f.toml: t: k is 0 or more, not inf"),
        (lambda: table(k="on").choice("k", ("one", "two")),
         "f.toml: t: k is one of one, two, not 'on'; did you mean one?"),
        (lambda: table().choice("k", ("one",)), "f.toml: t: k is missing; it is one of one"),
        (lambda: table(k=["a", 1]).texts("k"),
         "f.toml: t: k is a list of strings, not ['a', 1]"),
        (lambda: table(k=1).mapping("k"), "f.toml: t: k is a table { ... }, not 1"),
        (lambda: table(k={"x": 1}).table("k", ("y",)), "f.toml: t: k: unknown key x; it has y"),
        (lambda: table(database_url=["secret"]).text("database_url"),
         "f.toml: t: database_url is a string"),
        (lambda: list(rows("t", {}, "f")), "f: t is written [[t]], once for each"),
        (lambda: list(rows("t", [1])), "t is written [[t]], once for each"),
        (lambda: list(tables("t", [{}, {"x": 1}], "f", ("y",))),
         "f: t 2: unknown key x; it has y"),
    ],
)  # fmt: skip
def test_a_mistake_is_named(read: Callable[[], object], says: str) -> None:
    with pytest.raises(ConfigError) as found:
        read()
    assert str(found.value) == says


def test_values() -> None:
    found = table(a="x", b=2, c=3, d=["y"], e=False, f={"g": 1})
    assert (found.text("a"), found.whole("b", None, 0), found.number("c", None, 0)) == ("x", 2, 3.0)
    assert (found.texts("d"), found.flag("e", True)) == (("y",), False)
    assert found.table("f", ("g",)).whole("g", 0, 0) == 1
    assert "a" in found and "z" not in found
    assert (found.text("z", "-"), found.number("z", -1.0, 0), found.texts("z")) == ("-", -1.0, ())
    assert not found.table("z", ()).data


def test_long_values_are_cut() -> None:
    with pytest.raises(ConfigError) as found:
        table(k="x" * 1_000).whole("k", 0, 0)
    assert len(str(found.value)) < 120


@pytest.mark.parametrize("text", ["a = ", "a = " + "9" * 5_000, "a = 1\na = 2"])
def test_what_is_not_toml_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "f.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"f\.toml: not TOML"):
        read_toml(str(path))
    with pytest.raises(ConfigError, match="No such file"):
        read_toml(str(tmp_path / "none.toml"))


@pytest.mark.parametrize("text", ["a = " + "[" * 5_000, "a = " + "{b = " * 5_000, "[" * 5_000])
def test_a_file_that_is_nested_without_end(tmp_path: Path, text: str) -> None:
    path = tmp_path / "f.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"f\.toml: not TOML") as caught:
        read_toml(str(path))
    assert "\n" not in str(caught.value)
