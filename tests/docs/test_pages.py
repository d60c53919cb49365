"""Every page of docs/ is at most two links away from its first page and from README.

`tests/house/test_docs.py` follows each link and its anchor.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Final

import pytest
import yaml  # type: ignore[import-untyped]

from tests.docs.blocks import ROOT

DOCS: Final = ROOT / "docs"
INDEX: Final = DOCS / "index.md"
PAGES: Final = sorted(DOCS.rglob("*.md"))
CLICKS_MAX: Final = 2
QUESTIONS: Final = ("TROUBLESHOOTING.md", "SIZING.md", "BACKUP.md", "UPGRADING.md")


@cache
def _links(page: Path) -> frozenset[Path]:
    """The pages that a page links to, without links that a comment or a block only shows."""
    text = re.sub(r"^ *```.*?^ *```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    targets = re.findall(r"\]\(([^)#\s:]+\.md)(?:#[^)\s]*)?\)", text)
    return frozenset((page.parent / target).resolve() for target in targets)


def within(start: Path, clicks: int) -> set[Path]:
    """Return the pages that `clicks` links or fewer lead to."""
    found = {start}
    for _ in range(clicks):
        found |= {target for page in found for target in _links(page)}
    return found


@pytest.mark.parametrize("start", [INDEX, ROOT / "README.md"], ids=lambda path: path.name)
def test_each_page_is_two_links_away(start: Path) -> None:
    far = set(PAGES) - within(start, CLICKS_MAX) - {INDEX}
    assert sorted(str(page.relative_to(ROOT)) for page in far) == []


def test_links_out_of_docs_count_only_where_they_lead() -> None:
    assert within(INDEX, 0) == {INDEX}
    assert DOCS / "tutorial.md" in within(INDEX, 1)
    assert DOCS / "decisions" / "0001-qos-2-is-delivered-at-publish.md" in within(INDEX, 2)


class _Loader(yaml.SafeLoader):  # type: ignore[misc]
    """Of files that name functions of Python."""


_Loader.add_multi_constructor("tag:yaml.org,2002:python/name:", lambda *_: None)


@pytest.mark.parametrize("name", QUESTIONS)
def test_what_operators_ask_first_is_one_link_away(name: str) -> None:
    assert {DOCS / name} <= within(INDEX, 1) & within(ROOT / "README.md", 1)


def test_each_page_is_in_the_menu_of_the_site_once() -> None:
    site = yaml.load((ROOT / "deploy" / "mkdocs.yml").read_text(), _Loader)
    named = list(_leaves(site["nav"]))
    pages = [str(p.relative_to(DOCS)) for p in PAGES if not re.match(r"\d{4}-", p.name)]
    assert sorted(named) == sorted(pages)


def _leaves(part: object) -> list[str]:
    match part:
        case str():
            return [part]
        case dict():
            return [leaf for value in part.values() for leaf in _leaves(value)]
        case list():
            return [leaf for value in part for leaf in _leaves(value)]
    raise AssertionError(f"{part!r} is no part of a menu")
