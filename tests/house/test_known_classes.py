"""The classes of faults that docs/SECURITY.md lists, each with tests that exist."""

from __future__ import annotations

import ast
import re
from functools import cache
from typing import Final

import pytest

from tests.house import packages
from tests.house.sources import ROOT, source

# A class, and words of its row.
CLASSES: Final = (
    "ends before its packet id or an options byte",
    "Variable Byte Integer of five bytes",
    "beyond the WebSocket frame",
    "only a server sends",
    "Empty topics, topics that begin with `$`",
    "Memory before CONNECT",
    "never freed: repeated QoS 2 packet ids",
    "never freed: wills",
    "never freed: sessions that expired",
    "Races of subscription and disconnect",
    "Rules evaded",
    "`%c` and `%u`",
    "Regular expressions fed by clients",
    "session of somebody else",
    "Configuration that fails open",
    "File modes of secrets",
    "Arithmetic of limits",
    "HTML from client ids",
    "The HTTP API",
    "Names in certificates",
)
WAYS: Final = (
    "retained", "replay", "shared", "aliases", "wills", "rewritten filters", "revoked rights",
    "unfinished QoS 2",
)  # fmt: skip
# Programs that run as their user, who writes what they read.
AS_THEIR_USER: Final = ("mqtt_broker.cli.", "mqtt_broker.client.", "spark_ingest.", "iot_sim.")
_TEST: Final = re.compile(r"`(tests/[\w/]+\.py)::([\w:]+)(?:\[([^`]*)\])?`")
_CVE: Final = re.compile(r"CVE-\d{4}-\d{4,}")


@cache
def tables() -> tuple[list[list[str]], list[list[str]]]:
    """The rows of both tables, without their heads, each as its cells."""
    text = (ROOT / "docs" / "SECURITY.md").read_text()
    section = text.partition("## Known classes of faults\n")[2].partition("\n## ")[0]
    found = re.findall(r"(?:^\|.*\n)+", section, re.MULTILINE)
    classes, ways = (
        [[cell.strip() for cell in line.strip("|").split("|")] for line in one.splitlines()[2:]]
        for one in found
    )
    return classes, ways


@cache
def names_of(path: str) -> frozenset[str]:
    """The tests of a file, as `name` and `Class::name`."""
    found = set()
    for node in source(ROOT / path).tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.ClassDef):
            found |= {f"{node.name}::{one.name}" for one in node.body if hasattr(one, "name")}
    return frozenset(found)


def test_every_class_has_its_row() -> None:
    classes, ways = ([row[0] for row in table] for table in tables())
    assert [one for one in CLASSES if sum(one in row for row in classes) != 1] == []
    assert [one for one in WAYS if sum(one in row for row in ways) != 1] == []


@pytest.mark.parametrize("row", [*tables()[0], *tables()[1]], ids=lambda row: row[0][:40])
def test_every_row_names_tests_that_exist(row: list[str]) -> None:
    if row[-1] == "the next table":
        return
    named = _TEST.findall(row[-1])
    assert named, "name a test: `tests/path.py::name`"
    assert _TEST.sub("", row[-1]).strip(", ") == ""
    for path, name, _ in named:
        assert (ROOT / path).is_file(), path
        assert name.rpartition("::")[2].startswith("test_") and name in names_of(path), name


@pytest.mark.parametrize("row", tables()[0], ids=lambda row: row[0][:40])
def test_examples_are_numbers_of_cves(row: list[str]) -> None:
    assert len(row) == 4 and row[2]
    rest = re.sub(r"\([A-Za-z][\w -]*\)", "", _CVE.sub("", row[1]))
    assert rest.strip(", ") == ""


def test_expressions_are_written_in_the_code() -> None:
    """What a client sends is never made into a regular expression, nor into a part of one."""
    made = ("compile", "match", "search", "fullmatch", "findall", "finditer", "split", "sub")
    found = []
    for module, path in packages.modules().items():
        if module.startswith(AS_THEIR_USER):
            continue
        for call in source(path).each(ast.Call):
            function = call.func
            if not (isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name)):
                continue
            if function.value.id in ("re", "fnmatch") and function.attr in made:
                if not isinstance(call.args[0], ast.Constant):
                    found.append(f"{module}:{call.lineno}")
    assert found == []
