"""docs/reference is what the code says, and decisions are notes of one form."""

from __future__ import annotations

import importlib.util
import re
from types import ModuleType

import pytest

from tests.docs.blocks import ROOT

DECISIONS = sorted((ROOT / "docs" / "decisions").glob("[0-9]*.md"))


def _generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("reference", ROOT / "deploy" / "reference.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_reference_is_current() -> None:
    generator = _generator()
    pages = generator.pages()
    for name, text in pages.items():
        path = generator.PAGES / name
        current = path.exists() and path.read_text() == text
        assert current, f"docs/reference/{name} is not what the code says: run make docs"
    assert {path.name for path in generator.PAGES.glob("*.md")} == set(pages)


def test_decisions_are_numbered_without_a_gap() -> None:
    assert [int(path.name[:4]) for path in DECISIONS] == list(range(1, len(DECISIONS) + 1))


@pytest.mark.parametrize("path", DECISIONS, ids=lambda path: path.name[:4])
def test_a_decision_says_when_why_what_and_at_which_cost(path: object) -> None:
    text = (ROOT / str(path)).read_text()
    number = int(str(path).rpartition("/")[2][:4])
    assert text.startswith(f"# {number}. ")
    assert re.search(r"^Date: 20\d\d-\d\d-\d\d  $", text, re.MULTILINE)
    status = r"^Status: (accepted|superseded by \[.*\]\(\d{4}-.*\.md\))$"
    assert re.search(status, text, re.MULTILINE)
    headings = re.findall(r"^## (.*)$", text, re.MULTILINE)
    assert [h for h in headings if h != "Alternatives"] == ["Context", "Decision", "Cost"]


@pytest.mark.parametrize("document", ["decisions/README.md", "ARCHITECTURE.md"])
def test_decisions_are_listed(document: str) -> None:
    text = (ROOT / "docs" / document).read_text()
    assert [path.name for path in DECISIONS if f"{path.name})" not in text] == []
