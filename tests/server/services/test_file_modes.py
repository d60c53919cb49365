"""No other account of the machine reads what the broker writes, wherever it writes it."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from mqtt_broker.cli.main import main
from mqtt_broker.http_api import address_file
from mqtt_broker.server.config.config import load
from tests.core.peers import publish, subscribe
from tests.server.running import Running
from tests.server.transports import Files

OTHERS = stat.S_IRWXO
CONFIG = """
data_dir = "DIR/data"
[[auth]]
type = "password_file"
file = "DIR/users"
[[auth]]
type = "scram"
[[auth]]
type = "anonymous"
[[streams]]
name = "all"
filter = "t/#"
segment_bytes = "4KiB"
[security]
audit_file = "DIR/audit.jsonl"
"""


@pytest.fixture(autouse=True)
def open_handed() -> Iterator[None]:
    """The usual mask, under which files are made for everybody to read."""
    before = os.umask(0o022)
    yield
    os.umask(before)


def open_files(folder: Path) -> list[str]:
    """List the files and folders below that others may read, write or enter."""
    return [
        f"{path.relative_to(folder)} {stat.S_IMODE(path.lstat().st_mode):o}"
        for path in sorted(folder.rglob("*"))
        if path.lstat().st_mode & OTHERS
    ]


@pytest.mark.parametrize("is_there", [True, False], ids=["a folder of 755", "a new folder"])
def test_state_is_for_the_owner_and_the_group(tmp_path: Path, is_there: bool) -> None:
    """Retained messages, queues, wills, the log, salts, the audit log."""
    data = tmp_path / "data"
    if is_there:  # as `mkdir` and the images of containers make it
        data.mkdir(0o755)
    (tmp_path / "users").touch(0o600)
    path = tmp_path / "fleetmq.toml"
    path.write_text(CONFIG.replace("DIR", str(tmp_path)))
    path.chmod(0o600)
    for _ in range(2):  # and what a second start makes
        with Running(config=load(str(path), {}, {})) as broker, broker.client("c") as client:
            client.send(subscribe(5, "t/#", qos=1))
            for number in range(1, 20):
                packet = publish(f"t/{number}", bytes(900), qos=1, packet_id=number, retain=True)
                client.send(packet)
            while client.packet()[0] != 0x40:
                pass
            found = [name for name in open_files(tmp_path) if is_there or name != "data 700"]
            while_it_runs = {name.split()[0] for name in found}
    names = {path.name for path in data.rglob("*")}
    assert {"fleetmq.db", "journal.db", "lock", "alive", "scram-salts", "stream.json"} <= names
    assert any(name.endswith(".seg") for name in names)
    assert while_it_runs <= {"data"} and open_files(tmp_path) == (["data 755"] if is_there else [])


def test_an_export_of_the_state_is_for_the_owner(tmp_path: Path) -> None:
    with Running(config=load(None, {}, {"data_dir": str(tmp_path / "data")})) as broker:
        broker.client("c").sock.close()
    target = tmp_path / "all.jsonl"
    target.with_name("all.jsonl.part").touch(0o644)  # left by one that was killed
    arguments = ["export", str(target), "--data-dir", str(tmp_path / "data"), "--quiet"]
    assert main(["ctl", *arguments]) == 0
    assert stat.S_IMODE(target.stat().st_mode) == 0o600


def test_the_address_of_the_api_is_all_that_others_may_read(tmp_path: Path) -> None:
    address_file.write(tmp_path, "http://127.0.0.1:1")
    assert "token" not in (tmp_path / address_file.FILE).read_text()


def said_of(broker: Running, caplog: pytest.LogCaptureFixture) -> set[str]:
    with broker:
        return {
            Path(record.getMessage().partition(":")[0]).name
            for record in caplog.records
            if "every user of this machine" in record.getMessage()
        }


@pytest.mark.parametrize(
    ("text", "holds_one"),
    [
        ('http_token = "abc"', True),
        ('database_url = "postgresql://ann:secret@db/x"', True),
        ('[[auth]]\ntype = "sql"\ndatabase_url = "postgresql://ann:secret@db/x"', True),
        ('[[acl]]\ndatabase_url = "postgresql://ann:secret@db/x"', True),
        ('database_url = "postgresql://db/x"', False),
        ("packet_bytes_max = 1000", False),
    ],
)
def test_which_configuration_files_hold_a_secret(
    tmp_path: Path, text: str, holds_one: bool
) -> None:
    path = tmp_path / "fleetmq.toml"
    path.write_text(text)
    assert load(str(path), {}, {}).secrets_file == (str(path) if holds_one else "")


@pytest.mark.parametrize("token", ['http_token = "abc"\n', ""], ids=["a token", "no token"])
def test_secrets_that_everybody_may_read_are_named(
    tmp_path: Path, token: str, caplog: pytest.LogCaptureFixture
) -> None:
    files = Files(tmp_path)
    listener = f'[[listeners]]\nport = 0\ntls = {{ cert = "{files.cert}", key = "{files.key}" }}\n'
    path = tmp_path / "fleetmq.toml"
    path.write_text(token + listener)
    config = load(str(path), {}, {"durability": "memory"})
    secret = {Path(files.key).name, *(["fleetmq.toml"] if token else [])}
    for mode, expected in ((0o640, set()), (0o644, secret), (0o602, secret)):
        for one in (path, Path(files.key)):
            one.chmod(mode)
        caplog.clear()
        assert said_of(Running(*config.endpoints, config=config), caplog) == expected
