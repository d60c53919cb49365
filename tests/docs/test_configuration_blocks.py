"""The configuration in README and docs is read by what reads it in earnest."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest
import yaml  # type: ignore[import-untyped]

from iot_sim.scenarios.file import read as read_scenario
from mqtt_broker.server.config.config import Config, load
from tests.docs.blocks import Block, of

_SCHEMA = '{"type": "object", "properties": {"t": {"type": "number"}}}'


@pytest.mark.parametrize("block", of("toml"), ids=lambda block: block.where)
def test_toml(block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a scenario of the simulator, or as the configuration of a broker."""
    table = tomllib.loads(block.text)
    if "fleets" in table:
        assert read_scenario(table, "example").fleets
        return
    monkeypatch.chdir(tmp_path)
    (tmp_path / "telemetry.schema.json").write_text(_SCHEMA)
    text = block.text
    if "acl" in table and "auth" not in table:  # rules are for clients that say who they are
        text += '\n[[auth]]\ntype = "anonymous"\n'
    path = tmp_path / "fleet.toml"
    path.write_text(text)
    assert load(str(path), {}, {"allow_anonymous": True}) != Config()


@pytest.mark.parametrize("block", of("json"), ids=lambda block: block.where)
def test_json(block: Block) -> None:
    assert json.loads(block.text)


@pytest.mark.parametrize("block", of("yaml"), ids=lambda block: block.where)
def test_yaml(block: Block) -> None:
    assert yaml.safe_load(block.text)
