"""axe-core, which examines a page for what keeps people with disabilities out."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

import pytest

from tests.page.webdriver import Browser


@cache
def _script() -> str | None:
    for folder in os.environ.get("NODE_PATH", "").split(os.pathsep):
        path = Path(folder) / "axe-core" / "axe.min.js"
        if folder and path.is_file():
            return path.read_text()
    return None


def findings(browser: Browser) -> list[str]:
    """What axe-core finds in the page as it is now; skips where it is not installed."""
    script = _script()
    if script is None:
        pytest.skip("axe-core: npm install axe-core, and NODE_PATH where it is")
    browser.run(script)
    found = browser.run_async(
        "const done = arguments[0];"
        "axe.run(document, { resultTypes: ['violations'] }).then("
        "(result) => done(result.violations.flatMap((one) => one.nodes.map("
        "(node) => `${one.id}: ${node.target.join(' ')}: ${node.failureSummary}`))),"
        "(error) => done([`axe: ${error}`]))"
    )
    assert isinstance(found, list)
    return found
