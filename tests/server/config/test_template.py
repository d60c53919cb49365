"""The commented file of all keys: it has every key that is read, and its defaults are true."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable
from pathlib import Path

import pytest

from mqtt_broker.core.limits.settings import Settings
from mqtt_broker.server.config import client_limits, listeners, security, streams
from mqtt_broker.server.config.config import OWN_KEYS, Config, load
from mqtt_broker.server.config.template import OWN, TABLES, template, toml_value

LINES = template().splitlines()
TOP = [line for line in LINES[: LINES.index("#[[listeners]]")] if re.match(r"#\w+ = ", line)]


def keys_of(headers: Iterable[str]) -> set[str]:
    return {key for header in headers for key in TABLES[header][1]}


def test_every_key_is_there() -> None:
    assert set(OWN) == {*OWN_KEYS, "partition_functions"}
    names = {line[1:].partition(" ")[0] for line in TOP}
    assert names == {*OWN, *(field.name for field in dataclasses.fields(Settings))}
    inner = {"tls", "websocket", "proxy_protocol", "limits"}
    assert {*TABLES["[[listeners]]"][1], "path", *inner} == set(listeners.KEYS)
    assert set(TABLES["[listeners.tls]"][1]) == set(listeners.TLS_KEYS)
    assert set(TABLES["[listeners.websocket]"][1]) == set(listeners.WEBSOCKET_KEYS)
    assert set(TABLES["[listeners.proxy_protocol]"][1]) == set(listeners.PROXY_KEYS)
    assert set(TABLES["[listeners.limits]"][1]) == set(client_limits.KEYS)
    assert set(TABLES["[[streams]]"][1]) == set(streams.KEYS)
    assert set(TABLES["[[acl]]"][1]) == set(security.ACL_KEYS)
    assert set(TABLES["[security]"][1]) == set(security.OWN_KEYS)
    methods = {key for keys in security.TYPES.values() for key in keys}
    auth = [header for header in TABLES if header.startswith("[[auth]]")]
    assert keys_of(auth) == {"type", "name", "listeners", *methods}
    limits = {"user", "connections_max", *client_limits.KEYS}
    assert set(TABLES["[[client_limits]]"][1]) == limits


def test_commented_it_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "f.toml"
    path.write_text(template())
    assert load(str(path), {}, {}) == Config()


@pytest.mark.parametrize("line", TOP, ids=lambda line: line.partition(" ")[0])
def test_the_defaults_are_those(tmp_path: Path, line: str) -> None:
    path = tmp_path / "f.toml"
    path.write_text(line.removeprefix("#"))
    found = load(str(path), {}, {})
    assert dataclasses.replace(found, http_is_default=True) == Config()


def test_with_every_key_set_it_is_valid(tmp_path: Path) -> None:
    pytest.importorskip("jsonschema_rs")
    (tmp_path / "telemetry.json").write_text("{}")
    path = tmp_path / "f.toml"
    path.write_text("\n".join(re.sub(r"^#(?! )", "", line) for line in LINES))
    found = load(str(path), {}, {})
    assert len(found.security.auth) == 4 and len(found.streams) == 1 and len(found.schemas) == 1
    assert [one.rules.name for one in found.endpoints] == ["", "devices"]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (True, "true"), (1883, "1883"), (2_000_000, "2_000_000"), (0.5, "0.5"),
        ("a\"\n", '"a\\"\\n"'),
        (["a", 1], '["a", 1]'), ({"a": {"b": []}}, "{ a = { b = [] } }"), ("\x7f", '"\\u007f"'),
    ],
)  # fmt: skip
def test_values(value: object, text: str) -> None:
    assert toml_value(value) == text
