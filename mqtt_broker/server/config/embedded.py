"""Configure a broker inside a program: keyword arguments named like the keys of the file."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from mqtt_broker.server.config.config import Config, load_values
from mqtt_broker.server.config.tables import ConfigError


def embedded_config(values: dict[str, Any], *, is_guarded: bool) -> Config:
    """Return the configuration; without a place for the state it is kept in memory only.

    `is_guarded`: the program authenticates clients itself. Raises ConfigError.
    """
    has_place = values["data_dir"] or values.get("database_url")
    values.setdefault("durability", "commit" if has_place else "memory")
    if is_guarded:
        values.setdefault("allow_anonymous", True)
    config = load_values(values)
    if has_place:
        return config
    if "streams" not in values:
        config = replace(config, streams=())  # not even one for dead letters
    elif config.durability == "memory":
        return config  # with a directory for as long as it runs
    if config.needs_store:
        key = "topics" if config.durability == "memory" else "durability"
        raise ConfigError(
            f"{key}: the state needs a place: give data_dir, the directory, or database_url"
        )
    return config
