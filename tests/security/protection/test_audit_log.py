"""The audit file: every line whole, in order, whatever becomes of the disk."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

import pytest

from mqtt_broker.security.protection.audit_log import Audit, AuditFile


def test_lines_from_many_threads(tmp_path: Path) -> None:
    file = AuditFile(str(tmp_path / "audit"))
    audit = Audit(file, lambda: 1.0, lines_per_s=10**6)

    def tell() -> None:
        for number in range(100):
            audit.note("refused", "x", client_id="c" * 1_000, number=number)

    threads = [threading.Thread(target=tell) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    file.close()
    lines = [json.loads(line) for line in (tmp_path / "audit").read_text().splitlines()]
    assert len(lines) == 400 and {len(line["client_id"]) for line in lines} == {256}
    assert audit.counts == {"refused/x": 400} and not file.lost


def test_a_file_that_was_moved_away(tmp_path: Path) -> None:
    path = tmp_path / "audit"
    file = AuditFile(str(path))
    file("one")
    file.close()
    file = AuditFile(str(path))
    os.rename(path, tmp_path / "old")
    file.reopen()
    file("two")
    file.close()
    assert (tmp_path / "old").read_text() == "one\n" and path.read_text() == "two\n"


def test_a_full_disk_costs_lines(caplog: pytest.LogCaptureFixture) -> None:
    file = AuditFile("/dev/full")
    file("one")
    file("two")
    file.close()
    assert file.lost == 2
    assert caplog.text.count("No space left") == 1, "a line a second says so"


def test_a_file_that_cannot_be_opened_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines go on into the old one until it can."""
    path = tmp_path / "audit"
    file = AuditFile(str(path))
    opened = AuditFile._open

    def fail(self: AuditFile) -> int:
        monkeypatch.setattr(AuditFile, "_open", opened)
        raise OSError(24, "Too many open files")

    os.rename(path, tmp_path / "old")
    monkeypatch.setattr(AuditFile, "_open", fail)
    file.reopen()
    file("one")
    file("two")
    file.close()
    assert ((tmp_path / "old").read_text(), path.read_text()) == ("one\n", "two\n")
    assert not file.lost


def test_what_clients_say_stays_inside_its_line(tmp_path: Path) -> None:
    lines: list[str] = []
    audit = Audit(lines.append, lambda: 1.0)
    audit.note("refused", "x", client_id='a"}\n{"event": "forged"', topic="\u2028\x1b[31m\ud800")
    (line,) = lines
    assert "\n" not in line and line.isascii() and line.isprintable()
    assert json.loads(line)["client_id"] == 'a"}\n{"event": "forged"'
