"""The table of keys that a reload takes up names keys, and the documentation has the same."""

from __future__ import annotations

import dataclasses
import re

from mqtt_broker.core.limits.settings import Settings
from mqtt_broker.server.config.changes import ConfigChange
from mqtt_broker.server.config.config import Config
from mqtt_broker.server.config.live_keys import LIVE, SECURITY_RESTARTS, TABLE_RESTARTS
from mqtt_broker.server.config.security import SecurityConfig
from mqtt_broker.server.config.template import OWN
from tests.server.broker_process import document


def test_they_are_keys() -> None:
    known = {*OWN, *(field.name for field in dataclasses.fields(Settings))}
    assert set(LIVE) <= known
    assert all(hasattr(SecurityConfig(), key) for key in SECURITY_RESTARTS)
    assert all(hasattr(Config(), field) for field in TABLE_RESTARTS.values())


def test_the_documentation_has_them_all() -> None:
    section = document("docs/CONFIGURATION.md").split("## Reloading")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (.+) \| (`.+`) \|$", section, re.MULTILINE)
    found = {key: holds for holds, keys in rows for key in re.findall(r"`(\w+)`", keys)}
    assert found == LIVE


def test_a_change_is_one_sentence() -> None:
    change = ConfigChange("max_keepalive", 60, 100, "f.toml:1", "at once")
    assert change.describe() == "max_keepalive = 60 (was 100) holds at once"
    assert ConfigChange("port", 2, 1, "").describe() == "port = 2 (in force: 1) needs a restart"
