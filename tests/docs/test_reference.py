"""docs/reference is what the code says, and decisions are notes of one form."""

from __future__ import annotations

import importlib.util
import re
from types import ModuleType

import pytest

from tests.docs.blocks import ROOT
from tests.house import packages

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
    assert {path.name for path in generator.PAGES.glob("*.md")} == {*pages, "walks.md"}


def test_the_functions_of_the_walks_exist() -> None:
    """Which of them a run passes differs with its threads, so they are only looked for."""
    text = (ROOT / "docs" / "reference" / "walks.md").read_text()
    modules = packages.modules().items()
    missing = []
    for package, cell in re.findall(r"^\| `([\w.]+)` \| (.*) \|$", text, re.MULTILINE):
        sources = {
            name.rpartition(".")[2]: path.read_text()
            for name, path in modules
            if packages.package_of(name) == package
        }
        for function in re.findall(r"`([\w.]+)`", cell):
            module, _, name = function.partition(".")
            words = name.split(".")
            source = sources.get(module, "")
            if not all(re.search(rf"(def|class) {word}\b", source) for word in words):
                missing.append(f"{package}: {function}")
    assert missing == [], "run python deploy/reference.py --walks"


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
