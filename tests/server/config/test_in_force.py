"""The configuration in force: values with their sources, and no secret among them."""

from __future__ import annotations

from pathlib import Path

from mqtt_broker.server.config.config import load
from mqtt_broker.server.config.in_force import tables_in_force, values_in_force
from mqtt_broker.server.config.live_keys import LIVE

FILE = """max_keepalive = 60
http_token = "a-secret"
database_url = "sqlite:////tmp/x.db"

[[listeners]]
port = 1884

[[auth]]
type = "sql"
database_url = "postgresql+psycopg://ann:a-secret@host/db"
"""


def test_each_value_has_its_source(tmp_path: Path) -> None:
    path = tmp_path / "f.toml"
    path.write_text(FILE)
    config = load(str(path), {"FLEETMQ_SYS_INTERVAL_S": "3"}, {"log_level": "debug"})
    found = {one.key: one for one in values_in_force(config)}
    assert (found["max_keepalive"].value, found["max_keepalive"].origin) == (60, f"{path}:1")
    assert found["sys_interval_s"].origin == "FLEETMQ_SYS_INTERVAL_S"
    assert (found["log_level"].value, found["log_level"].origin) == ("debug", "--log-level")
    assert (found["inflight_max"].value, found["inflight_max"].origin) == (65_535, "default")
    assert "not used" in found["port"].origin
    assert {key for key, one in found.items() if one.is_live} == set(LIVE)
    assert "a-secret" not in repr(found)


def test_tables_have_theirs(tmp_path: Path) -> None:
    path = tmp_path / "f.toml"
    path.write_text(FILE)
    source = load(str(path), {}, {}).source
    assert source is not None
    listeners, auth = tables_in_force(source.tables)
    assert (listeners.header, listeners.values) == ("[[listeners]]", {"port": (1884, f"{path}:6")})
    assert auth.place == f"{path}:8"
    assert "a-secret" not in repr(auth)
