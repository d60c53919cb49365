"""The version says how the product is built."""

from __future__ import annotations

import importlib.machinery
import importlib.util
from typing import Any

import pytest

from mqtt_broker.version import build_kind


@pytest.mark.parametrize(
    ("origin", "kind"),
    [
        ("/x/decode.py", "interpreted"),
        ("/x/decode.cpython-311-x86_64-linux-gnu.so", "compiled"),
        ("C:/x/decode.cp311-win_amd64.pyd", "compiled"),
    ],
)
def test_the_build_is_that_of_the_decoder(
    monkeypatch: pytest.MonkeyPatch, origin: str, kind: str
) -> None:
    spec = importlib.machinery.ModuleSpec("decode", None, origin=origin)
    found: Any = lambda name: spec  # noqa: E731
    monkeypatch.setattr(importlib.util, "find_spec", found)
    assert build_kind() == kind
