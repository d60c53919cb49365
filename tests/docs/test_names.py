"""Modules and their names that documents mention exist."""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import Final

import pytest

from tests.docs.blocks import ROOT, documents
from tests.house import packages

_TOPS: Final = (
    "qos|sessions|codec|topics|core|streams|security|client|server|http_api|cli|iot_sim"
    "|spark_ingest|mqtt_broker"
)
# In the text: with backticks. In a drawing: a word of two dots or more, or at the line's beginning.
_NAME: Final = re.compile(rf"(?<![\w./$-])((?:{_TOPS})(?:\.[A-Za-z_]\w*)+)(?![\w/(-]|\.\w)")
_NO_MODULES: Final = {"core.prof", "streams.toml"}  # files


def _names(path: Path) -> list[str]:
    text = path.read_text()
    drawn = "".join(re.findall(r"^```text\n(.*?)^```", text, re.MULTILINE | re.DOTALL))
    quoted = " ".join(f" {word} " for word in re.findall(r"`([^`\n]+)`", text))
    return [name for part in (drawn, quoted) for name in _NAME.findall(part)]


def _exists(name: str) -> bool:
    known = packages.modules()
    words = name.removeprefix("mqtt_broker.").split(".")
    for count in range(len(words), 0, -1):
        stem = ".".join(words[:count])
        for module in (stem, f"mqtt_broker.{stem}"):
            if module in known:
                source = known[module].read_text()
                return all(re.search(rf"\b{word}\b", source) for word in words[count:])
    return False


@pytest.mark.parametrize(
    "path",
    [path for path in documents() if "decisions" not in path.parts],
    ids=lambda path: str(path.relative_to(ROOT)),
)
def test_a_name_of_a_module_exists(path: Path) -> None:
    assert [name for name in _names(path) if not _exists(name) and name not in _NO_MODULES] == []


def test_names_are_found() -> None:
    assert len(_names(ROOT / "docs" / "ARCHITECTURE.md")) > 50
    assert _exists("core.interfaces.access.Access")
    assert not _exists("core.interfaces.access.Door")
    assert not _exists("core.doors")


# In guides a word with underscores is a key, an argument or a column; metrics have their own test.
_WORD: Final = re.compile(r"`([a-z][a-z0-9]*(?:_[a-z0-9]+)+)`")
_GUIDES: Final = (
    ROOT / "README.md",
    *(ROOT / "docs").glob("how-to/*.md"),
    *(
        ROOT / "docs" / f"{name}.md"
        for name in (
            "tutorial DEPLOY EMBEDDING SIMULATOR SIZING SPARK STREAMS TESTING UPGRADING"
        ).split()
    ),
)


@pytest.mark.parametrize("path", _GUIDES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_key_in_a_guide_exists(path: Path) -> None:
    found = {word for word in _WORD.findall(path.read_text()) if not word.startswith("fleetmq_")}
    assert found - _words_of_the_product() == set()


@functools.cache
def _words_of_the_product() -> set[str]:
    folders = "mqtt_broker sessions qos iot_sim spark_ingest deploy".split()
    files = [
        path for folder in folders for path in (ROOT / folder).rglob("*")
        if path.suffix in {".py", ".toml", ".yaml"}
    ]  # fmt: skip
    return {word for path in files for word in re.findall(r"[a-z][a-z0-9_]*", path.read_text())}


def test_keys_are_found() -> None:
    assert "session_expiry_s_max" in _words_of_the_product()
    assert "client_ca" not in _words_of_the_product()
