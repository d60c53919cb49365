"""Every `pip install` in an error, a document or a build file names something that exists."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from tests.house.sources import ROOT, tracked

PROJECT: Final = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS: Final[dict[str, list[str]]] = PROJECT["optional-dependencies"]
_COMMAND: Final = re.compile(r"pip install(?P<what>[^\n`\"#]*(?:\"[^\n\"]*\")?)")
_EXTRAS: Final = re.compile(r"(?:fleetmq|\.)\[([\w,-]+)\]")
# `... needs the package cbor2: pip install 'fleetmq[sim]'`
_REASON: Final = re.compile(
    r"needs? (?:the package )?(?!the )(?P<package>[a-z][\w-]+)[^\n]{0,40}: "
    r"`?pip install 'fleetmq\[(?P<extra>\w+)\]'"
)
_KINDS: Final = (".py", ".md", ".toml", ".yml", ".yaml", ".sh", "Makefile", "Dockerfile")
_SELF: Final = Path(__file__).name


class Hint(NamedTuple):
    where: str
    text: str


def _files() -> Iterator[tuple[Path, str]]:
    for path in tracked():
        if path.name.endswith(_KINDS) and path.name != _SELF and path.is_file():
            yield path, path.read_text()


def _hints() -> list[Hint]:
    return [
        Hint(f"{path.relative_to(ROOT)}:{text.count(chr(10), 0, match.start()) + 1}", match["what"])
        for path, text in _files()
        for match in _COMMAND.finditer(text)
    ]


@pytest.mark.parametrize("hint", _hints(), ids=lambda hint: hint.where)
def test_its_extras_exist(hint: Hint) -> None:
    named = [extra for group in _EXTRAS.findall(hint.text) for extra in group.split(",")]
    assert [extra for extra in named if extra not in EXTRAS] == []


def test_some_hints_are_found() -> None:
    named = {extra for hint in _hints() for extra in _EXTRAS.findall(hint.text)}
    assert named >= {"postgres", "schemas", "sim", "spark"}


def test_an_extra_brings_the_package_that_is_missing() -> None:
    wrong = []
    for path, text in _files():
        joined = re.sub(r'"\s*\n\s*f?"', "", text)  # a text over several lines
        for match in _REASON.finditer(joined):
            brought = [re.split(r"[\[<>=! ]", one)[0] for one in EXTRAS.get(match["extra"], [])]
            if match["package"] not in brought:
                wrong.append(f"{path.name}: {match['extra']} does not bring {match['package']}")
    assert wrong == []


def test_extras_that_name_others_name_what_exists() -> None:
    text = "\n".join(one for found in EXTRAS.values() for one in found)
    named = [extra for group in _EXTRAS.findall(text) for extra in group.split(",")]
    assert [extra for extra in named if extra not in EXTRAS] == []
