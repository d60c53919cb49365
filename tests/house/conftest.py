"""Lets the syntax trees of the project go when the last test of this folder is over."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from tests.house import sources

_HERE: Final = Path(__file__).parent


def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """They are 250 MB and millions of objects, which each later search for garbage looks at."""
    if nextitem is None or _HERE not in nextitem.path.parents:
        sources.forget()
