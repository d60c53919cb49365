"""The events of the last day on disk."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mqtt_broker.recorder import kinds
from mqtt_broker.recorder.pending_events import Event
from mqtt_broker.server.services import event_files
from mqtt_broker.server.services.event_files import FILES_MAX, FOLDER, KEPT_S, EventFiles


def event(client_id: str, at_ms: int) -> Event:
    return (client_id, kinds.CONNECTED, 0, "192.0.2.1", "MQTT 5", at_ms, 1)


def test_the_newest_come_first(tmp_path: Path) -> None:
    files = EventFiles(tmp_path)
    files.write([event("a", 1), event('b"\n', 2)], 1.0)
    files.write([event("a", 3)], 2.0)
    assert [one[5] for one in files.read("a", 0, 10)] == [3, 1]
    assert files.read('b"\n', 0, 10) == [event('b"\n', 2)]
    assert [one[5] for one in files.read("", 2, 10)] == [3, 2]
    assert [one[5] for one in files.read("a", 0, 1)] == [3]
    assert files.read("nobody", 0, 10) == []


def test_they_are_bounded_and_end_after_a_day(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_files, "FILE_BYTES_MAX", 100)
    files = EventFiles(tmp_path)
    for at in range(50):
        files.write([event("a", at), event("b", at)], 1.0)
    paths = sorted((tmp_path / FOLDER).iterdir())
    assert len(paths) == FILES_MAX
    assert files.read("a", 0, 1)[0][5] == 49
    for path in paths:
        os.utime(path, (1.0, 1.0))
    files.write([event("a", 60)], KEPT_S * 2)
    assert [one[5] for one in files.read("a", 0, 10)] == [60]


def test_a_line_that_is_cut_short_is_left_out(tmp_path: Path) -> None:
    files = EventFiles(tmp_path)
    files.write([event("a", 1)], 1.0)
    path = next((tmp_path / FOLDER).iterdir())
    path.write_bytes(path.read_bytes() + b'["a", 1\n["a"]\n["a", 18, 0,')
    assert files.read("a", 0, 10) == [event("a", 1)]


def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / FOLDER).write_text("a file")
    files = EventFiles(tmp_path)
    files.write([event("a", 1)], 1.0)
    assert files.failed.startswith(str(tmp_path / FOLDER))
    assert files.read("a", 0, 10) == []


def test_what_is_lost_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = tmp_path / FOLDER
    folder.write_text("a file")
    files = EventFiles(tmp_path)
    for at in range(5, 8):
        files.write([event("a", at), event("b", at)], 1.0)
    assert files.lost == 6
    assert files.gap is not None and files.gap[5:] == (5, 6)
    assert [one.levelname for one in caplog.records] == ["ERROR"]  # once
    folder.unlink()
    files.write([event("a", 9)], 1.0, 2, 8)  # two did not fit into memory meanwhile
    assert (files.failed, files.lost) == ("", 8)
    assert caplog.records[-1].getMessage() == f"{folder}: events are written again, 8 were lost"
    again = EventFiles(tmp_path).read("a", 0, 10)  # whoever asks
    assert [(one[1], one[5], one[6]) for one in again] == [
        (kinds.CONNECTED, 9, 1),
        (kinds.EVENTS_LOST, 5, 8),
    ]
    assert again[1][4].startswith(str(folder))


def test_a_line_that_is_cut_spoils_no_other(tmp_path: Path) -> None:
    files = EventFiles(tmp_path)
    files.write([event("a", 1)], 1.0)
    path = next((tmp_path / FOLDER).iterdir())
    path.write_bytes(path.read_bytes() + b'["a", 18, 0,')
    EventFiles(tmp_path).write([event("a", 2)], 1.0)
    assert [one[5] for one in files.read("a", 0, 10)] == [2, 1]
