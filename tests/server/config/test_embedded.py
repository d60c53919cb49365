"""What a program's configuration assumes; tests/test_embedded_config.py has the rest."""

from __future__ import annotations

import pytest

from mqtt_broker.server.config.config import load_values
from mqtt_broker.server.config.embedded import embedded_config
from mqtt_broker.server.config.tables import ConfigError


def test_durability_follows_the_place_of_the_state() -> None:
    assert embedded_config({"data_dir": ""}, is_guarded=False).durability == "memory"
    assert embedded_config({"data_dir": "d"}, is_guarded=False).durability == "commit"
    url = {"data_dir": "", "database_url": "sqlite:///x"}
    assert embedded_config(url, is_guarded=False).durability == "commit"
    with pytest.raises(ConfigError, match="durability: the state needs a place"):
        embedded_config({"data_dir": "", "durability": "relaxed"}, is_guarded=False)


def test_whoever_asks_clients_may_listen_anywhere() -> None:
    open_to_all = {"data_dir": "", "host": "0.0.0.0"}
    assert embedded_config(dict(open_to_all), is_guarded=True).allow_anonymous
    with pytest.raises(ConfigError, match="can be reached"):
        embedded_config(dict(open_to_all), is_guarded=False)
    assert not load_values({}).allow_anonymous
