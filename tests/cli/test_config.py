"""`fleetmq config`: the file of all keys, and what is in force."""

from __future__ import annotations

from pathlib import Path

import pytest

from mqtt_broker.cli import config as command
from mqtt_broker.cli.main import main
from mqtt_broker.server.config.template import template
from tests.server.broker_process import environment

FILE = """\
receive_maximum = 7
http_token = "hunter2"
database_url = "postgresql+psycopg://u:hunter2@h/d?password=hunter2"
[[listeners]]
port = 0
tls = { cert = "a", key = "b" }
[[acl]]
database_url = "sqlite:///x"
[security]
poll_s = 3
"""


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    kept = {key: text for key, text in environment().items() if not key.startswith("FLEETMQ_")}
    monkeypatch.setattr("os.environ", {**kept, "FLEETMQ_MAX_KEEPALIVE": "9"})
    monkeypatch.chdir(tmp_path)
    (tmp_path / "f.toml").write_text(FILE)
    return tmp_path


def test_the_file_of_all_keys(capfd: pytest.CaptureFixture[str]) -> None:
    assert command.__doc__ is not None
    assert main(["config"]) == 0
    assert capfd.readouterr().out == template()


def test_what_is_in_force_and_where_it_comes_from(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "--show", "--config", "f.toml", "--http", "off"]) == 0
    out = capfd.readouterr().out
    for line in (
        "receive_maximum = 7  # f.toml:1",
        'http_token = "***"  # f.toml:2',
        'database_url = "postgresql+psycopg://u:***@h/d"  # f.toml:3',
        "max_keepalive = 9  # FLEETMQ_MAX_KEEPALIVE",
        'http = "off"  # --http',
        "sys_interval_s = 10  # default",
        "port = 1883  # default, not used: there are other listeners",
        "[[listeners]]  # f.toml:4",
        "port = 0  # f.toml:5",
        'tls = { cert = "a", key = "b" }  # f.toml:6',
        'database_url = "sqlite:///x"  # f.toml:8',
        "[security]  # f.toml:9",
        "poll_s = 3  # f.toml:10",
    ):
        assert line in out.splitlines(), line
    assert "hunter2" not in out


def test_options_of_the_command_line_come_last(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "--show", "--port", "12", "--max-keepalive", "8"]) == 0
    lines = capfd.readouterr().out.splitlines()
    assert "port = 12  # --port" in lines and "max_keepalive = 8  # --max-keepalive" in lines
    assert 'host = "127.0.0.1"  # default' in lines


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--port", "1"], "--port needs --show"),
        (["--config", "f.toml"], "--config needs --show"),
        (["--show", "--port", "70000"], "--port: port is 0 to 65535"),
        (["--show", "--config", "none.toml"], "none.toml: No such file"),
    ],
)
def test_mistakes(capfd: pytest.CaptureFixture[str], argv: list[str], said: str) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["config", *argv])
    out, err = capfd.readouterr()
    assert (ended.value.code, out) == (2, "") and said in err and err.count("\n") == 1
