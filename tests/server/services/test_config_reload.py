"""A configuration that is read again: live keys hold, the others are reported as waiting."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from mqtt_broker.server.config.changes import ListenerOutcome, changes_between
from mqtt_broker.server.config.config import Config, load
from mqtt_broker.server.config.endpoints import Endpoint
from mqtt_broker.server.config.tables import ConfigError
from mqtt_broker.server.process.reload import Reload, ReloadReport
from mqtt_broker.server.services.config_reload import ConfigReload
from tests.core.peers import V5, subscribe
from tests.server.running import PATIENCE_S, Running

FILE = """
durability = "memory"
max_keepalive = 100
[[listeners]]
port = 0
"""


def no_listeners(endpoints: Sequence[Endpoint]) -> ListenerOutcome:
    return ListenerOutcome(in_force=tuple(endpoints))


def read(path: Path, text: str, **environment: str) -> Config:
    path.write_text(text)
    return load(str(path), environment, {})


def test_what_holds_and_what_waits(tmp_path: Path) -> None:
    path = tmp_path / "f.toml"
    config = read(path, FILE)
    applied: list[Config] = []
    reload = ConfigReload(config, applied.append, no_listeners)
    assert reload.read_again().found == () and not applied
    path.write_text(FILE.replace("100", "60") + '[[topics]]\nfilter = "a"\ndurability = "memory"\n')
    found = reload.read_again().found
    assert [change.describe() for change in found] == [
        "max_keepalive = 60 (was 100) holds for clients that connect from then on",
        "[[topics]] needs a restart",
    ]
    assert [one.settings.max_keepalive for one in applied] == [60]
    assert reload.config.durabilities == ()  # the file says otherwise
    # It goes on to be said, until it is in force.
    assert [change.key for change in reload.read_again().found] == ["[[topics]]"]
    assert [change.key for change in reload.waiting] == ["[[topics]]"]
    path.write_text(FILE)
    assert [change.key for change in reload.read_again().found] == ["max_keepalive"]
    assert reload.waiting == () and reload.config.settings.max_keepalive == 100


def test_a_mistake_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "f.toml"
    reload = ConfigReload(
        read(path, FILE), lambda config: pytest.fail("nothing is applied"), no_listeners
    )
    path.write_text(FILE.replace("100", "60") + "port = 'x'\n")
    with pytest.raises(ConfigError):
        reload.read_again()
    assert reload.config.settings.max_keepalive == 100


def test_the_environment_comes_first_again(tmp_path: Path) -> None:
    path = tmp_path / "f.toml"
    config = read(path, FILE, FLEETMQ_MAX_KEEPALIVE="50")
    reload = ConfigReload(config, lambda config: pytest.fail("nothing is applied"), no_listeners)
    path.write_text(FILE.replace("100", "60"))
    assert reload.read_again().found == ()


def test_a_key_that_is_left_out_is_the_default_again(tmp_path: Path) -> None:
    path = tmp_path / "f.toml"
    applied: list[Config] = []
    reload = ConfigReload(read(path, FILE), applied.append, no_listeners)
    path.write_text(FILE.replace("max_keepalive = 100", ""))
    [change] = reload.read_again().found
    assert (change.origin, applied[0].settings.max_keepalive) == ("default", 65_535)
    assert "max_keepalive" not in reload.config.origins


@pytest.mark.parametrize(
    ("before", "after", "keys"),
    [
        ("port = 1\n", "port = 2\n", ["port"]),
        ("", "port = 2\n[[listeners]]\nport = 3\n", ["port", "[[listeners]]"]),
        ("", "packet_bytes_max = 100\n", ["packet_bytes_max"]),
        ("", '[security]\naudit_file = "a"\n', ["[security] audit_file"]),
        ("", "[security]\npoll_s = 3.0\n", []),  # which the security service takes up
        ("", '[[streams]]\nname = "s"\nfilter = "a"\n', ["[[streams]]"]),
    ],
)
def test_what_needs_a_restart(tmp_path: Path, before: str, after: str, keys: list[str]) -> None:
    path = tmp_path / "f.toml"
    found = changes_between(read(path, before), read(path, after))
    assert [(change.key, change.holds) for change in found] == [(key, "") for key in keys]


def test_secrets_are_not_shown(tmp_path: Path) -> None:
    path = tmp_path / "f.toml"
    found = changes_between(
        read(path, 'http_token = "hunter1"\n'), read(path, 'http_token = "hunter2"\n')
    )
    assert [change.key for change in found] == ["http_token"]
    assert "hunter" not in repr(found) + found[0].describe()
    url = 'database_url = "postgresql+psycopg://ann:pass@host/db"\n'
    [change] = changes_between(read(path, url), read(path, url.replace("host", "other")))
    assert "pass@" not in repr(change) and "other" in str(change.value)


def test_a_running_broker_takes_it_up(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "f.toml"
    with Running(config=read(path, FILE), max_keepalive=100) as broker:
        server = broker.server
        path.write_text(
            FILE.replace("100", "60").replace("max", 'log_level = "warning"\nmax')
            + 'packet_bytes_max = 100\n[[auth]]\ntype = "anonymous"\n'
        )
        path.write_text(
            'packet_bytes_max = 100\nlog_level = "warning"\n' + FILE.replace("100", "60")
        )
        caplog.set_level(logging.INFO)
        complete = threading.Event()
        reports: list[ReloadReport] = []

        def done(report: ReloadReport) -> None:
            reports.append(report)
            complete.set()

        broker.ask(lambda: server.reload.report(done))
        assert complete.wait(PATIENCE_S)
        [report] = reports
        assert (report.pending, report.failed) == (set(), {})
        assert report.reloaded == [f"configuration {path}"]
        assert {change.key: bool(change.holds) for change in report.changes} == {
            "log_level": True,
            "max_keepalive": True,
            "packet_bytes_max": False,
        }
        assert server.broker.settings.max_keepalive == 60
        assert server.broker.settings.packet_bytes_max == 2_000_000
        assert logging.getLogger("fleetmq").level == logging.WARNING
        said = [record.getMessage() for record in caplog.records]
        assert any("packet_bytes_max = 100" in line and "needs a restart" in line for line in said)
        path.write_text("not TOML")
        broker.ask(lambda: server.reload.report(done))
        assert list(reports[1].failed) == [f"configuration {path}"]
        assert server.broker.settings.max_keepalive == 60
    logging.getLogger("fleetmq").setLevel(logging.NOTSET)


def test_a_report_waits_for_every_part() -> None:
    import asyncio

    from mqtt_broker.server.process.reload import LATER

    async def act() -> None:
        reload = Reload(asyncio.get_running_loop())
        reports: list[ReloadReport] = []
        reload.report(reports.append)
        assert len(reports) == 1  # there is nothing to wait for
        for name in ("slow", "gone"):
            reload.add(name, [], lambda: LATER)
        report = reload.report(reports.append)
        assert len(reports) == 1 and report.pending == {"slow", "gone"}
        reload.on_failed("slow", "no disk")
        reload.remove("gone")
        assert reports[1] is report and report.failed == {"slow": "no disk"}
        reload.close()

    asyncio.run(act())


def test_an_embedded_configuration_is_never_read_again() -> None:
    reload = ConfigReload(replace(Config()), lambda config: None, no_listeners)
    watched: list[str] = []

    class Watching(Reload):
        def __init__(self) -> None:
            pass

        def add(self, name: str, *more: object) -> None:
            watched.append(name)

    reload.watch(Watching())
    assert watched == []


def test_the_log_changes_while_it_runs(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "f.toml"
    caplog.set_level(logging.INFO, "fleetmq")
    with Running(config=read(path, FILE)) as broker:
        watcher = broker.client("w")
        watcher.send(subscribe(V5, "$SYS/broker/log/#"))
        watcher.packet()
        path.write_text('log_connections = false\nsys_log = "warning"\n' + FILE)
        broker.ask(broker.server.reload.look)
        broker.ask(broker.server.reload.look)
        before = len(caplog.messages)
        broker.client("quiet").sock.close()
        broker.ask(lambda: logging.getLogger("fleetmq").warning("something is wrong"))
        found = watcher.packet()
        assert b"$SYS/broker/log/W" in found and b"something is wrong" in found
        assert not [line for line in caplog.messages[before:] if "quiet" in line]
        watcher.sock.close()
