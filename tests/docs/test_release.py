"""`make release` refuses a version that is not ready, and says why."""

from __future__ import annotations

import importlib.util
from types import ModuleType

import pytest

from tests.docs.blocks import ROOT


@pytest.fixture(scope="module")
def release() -> ModuleType:
    spec = importlib.util.spec_from_file_location("release", ROOT / "deploy" / "release.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


CHANGES = "# Changes\n\n## Unreleased\n\n## 1.2.3 (2026-11-19)\n\n- One.\n\n## 1.2.2\n"


def test_a_version_that_is_ready(release: ModuleType) -> None:
    assert release.problems_of("1.2.3", CHANGES, {"v1.2.2"}, []) == []


@pytest.mark.parametrize(
    ("version", "tags", "changed", "said"),
    [
        ("1.2", set(), [], "has version 1.2: set it to MAJOR.MINOR.PATCH"),
        ("1.2.4", set(), [], 'no section "## 1.2.4 ('),
        ("1.2.4", set(), [], 'rename "## Unreleased" to it'),
        ("1.2.2", set(), [], 'rename "## 1.2.2" to it'),  # without a date
        ("1.2.3", {"v1.2.3"}, [], "there is a tag v1.2.3; set the next"),
        ("1.2.3", set(), ["README.md"], "uncommitted files: README.md; commit or stash them"),
    ],
)
def test_a_version_that_is_not(
    release: ModuleType, version: str, tags: set[str], changed: list[str], said: str
) -> None:
    problems = release.problems_of(version, CHANGES, tags, changed)
    assert any(said in problem for problem in problems)


def test_the_version_of_this_tree_is_found(release: ModuleType) -> None:
    from mqtt_broker.version import __version__

    text = (ROOT / "mqtt_broker" / "version.py").read_text()
    assert release.version_of(text) == __version__
