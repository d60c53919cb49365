"""The documents say what the code says: every key with its default, every link to a file."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from mqtt_broker.core.limits.settings import Settings

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / ".github").rglob("*.md")),
]


@pytest.mark.parametrize("key", [field.name for field in dataclasses.fields(Settings)])
def test_every_key_has_its_row_with_its_default(key: str) -> None:
    text = (ROOT / "docs" / "CONFIGURATION.md").read_text()
    rows = [line for line in text.splitlines() if line.startswith(f"| `{key}` |")]
    assert len(rows) == 1
    default = getattr(Settings(), key)
    shown = rows[0].split("|")[2].strip().strip("`").strip('"')
    if isinstance(default, bool):
        assert shown == str(default).lower()
    elif isinstance(default, str):
        assert shown == default
    else:
        assert float(shown) == default


def _anchors(text: str) -> set[str]:
    """The anchors of a document's headings, as code hosts and the site make them."""
    outside = re.sub(r"^ *```.*?^ *```", "", text, flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.*)$", outside, re.MULTILINE)
    plain = [re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading) for heading in headings]
    return {
        re.sub(r"\s", "-", re.sub(r"[^\w\s-]", "", heading.lower()).strip()) for heading in plain
    }


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(document: Path) -> None:
    wrong = []
    for target, anchor in re.findall(r"\]\(([^)#\s]*)(?:#([^)\s]+))?\)", document.read_text()):
        path = document.parent / target if target else document
        if re.match(r"[a-z]+:", target):
            continue
        if not path.exists():
            wrong.append(target)
        elif anchor and path.suffix == ".md" and anchor not in _anchors(path.read_text()):
            wrong.append(f"{target}#{anchor}")
    assert wrong == []
