"""Let links of docs/ that lead to files of the repository stand as text on the site.

In the repository, `[tests/spec](../tests/spec)` leads to a folder; the site has none. A link that
leads nowhere in the repository either is an error. Anchors are made as code hosts make them.
"""

from __future__ import annotations

import logging
import os
import pathlib
import re
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
_LINK = re.compile(r"\[([^\]]+)\]\(([^)#\s]+)(#[^)\s]*)?\)")
_log = logging.getLogger("mkdocs.plugins.links")


def slugify(text: str, separator: str) -> str:
    """The anchor of a heading: lower case, without punctuation, blanks as separators."""
    kept = re.sub(r"[^\w\s-]", "", text.lower())
    return re.sub(r"\s", separator, kept.strip())


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Replace links that leave docs/."""
    folder = (DOCS / page.file.src_uri).parent

    def replaced(found: re.Match[str]) -> str:
        text, target = found[1], found[2]
        if re.match(r"[a-z]+:", target):
            return found[0]
        path = pathlib.Path(os.path.normpath(folder / target))
        if path.is_relative_to(DOCS):
            return found[0]
        if not path.exists():
            _log.warning("%s: the link %s leads nowhere", page.file.src_uri, target)
        return text

    return _LINK.sub(replaced, markdown)
