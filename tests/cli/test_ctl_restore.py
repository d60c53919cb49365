"""`fleetmq ctl restore`, from the command line."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from mqtt_broker.cli.main import main
from tests.backup.loads import backup, broker, check
from tests.backup.test_take import service_of


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("backup")

    async def make() -> None:
        async with broker(root / "data") as running:
            await running.publish("plant/1", b"1", qos=1)
            await backup(service_of(running), str(root / "copy"))

    asyncio.run(make())
    return root / "copy"


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str]:
    """Return the exit code, and what it said on stderr."""
    try:
        code = main(["ctl", "restore", *map(str, arguments)])
    except SystemExit as end:
        code = int(str(end.code))
    return code, capsys.readouterr().err


def test_a_backup_becomes_a_data_directory(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, said = run(capsys, made, "--data-dir", tmp_path / "new")
    assert code == 0
    assert said.startswith("restored the state of 2") and "--data-dir" in said
    asyncio.run(check(tmp_path / "new", []))
    code, said = run(capsys, made, "--data-dir", tmp_path / "new")
    assert code == 1 and "is not empty: name a new directory" in said
    assert run(capsys, made, "--data-dir", tmp_path / "second", "--quiet") == (0, "")


def test_checksums_are_compared(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, said = run(capsys, made, "--check")
    assert code == 0 and "is whole" in said
    code, said = run(capsys, tmp_path, "--check")
    assert code == 1 and "is not a backup" in said


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        ([], 2, "no place given"),
        (["--database-url", "mysql://x/y"], 2, "--database-url: not a database|unsupported"),
        (["--database-url", "sqlite:///x.db"], 2, "--data-dir is missing: 1 stream and"),
        (["--check", "--data-dir", "x"], 2, "--check restores nothing"),
        (["--data-dir", "/proc/x/y"], 1, "/proc/x"),
        (
            ["--data-dir", "{}/new", "--database-url", "postgresql+psycopg://127.0.0.1:1/x"],
            3,
            "cannot be reached",
        ),
    ],
)
def test_mistakes(
    made: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    code: int,
    said: str,
) -> None:
    found, text = run(capsys, made, *(one.format(tmp_path) for one in arguments))
    assert found == code
    assert any(part in text for part in said.split("|")) and text.count("\n") == 1
    assert not list(tmp_path.iterdir())
