"""http.json: found, and not believed when its broker is gone."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from mqtt_broker.http_api import address_file


def test_it_is_written_read_and_removed(tmp_path: Path) -> None:
    address_file.write(tmp_path, "http://127.0.0.1:9883")
    assert address_file.read(tmp_path) == "http://127.0.0.1:9883"
    assert [path.name for path in tmp_path.iterdir()] == [address_file.FILE]
    address_file.remove(tmp_path)
    address_file.remove(tmp_path)
    with pytest.raises(address_file.NoAddress, match="no broker with an HTTP server runs on "):
        address_file.read(tmp_path)


def test_a_broker_that_was_killed_is_not_believed(tmp_path: Path) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    for pid in (gone.pid, 0, -1, 1 << 40):
        (tmp_path / address_file.FILE).write_text(json.dumps({"url": "http://x", "pid": pid}))
        with pytest.raises(address_file.NoAddress, match="is no longer running"):
            address_file.read(tmp_path)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"url": "x"}', '{"url": "x", "pid": "y"}', "\0"])
def test_another_file_of_that_name(tmp_path: Path, text: str) -> None:
    (tmp_path / address_file.FILE).write_text(text)
    with pytest.raises(address_file.NoAddress, match="not a JSON object with url and pid"):
        address_file.read(tmp_path)


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:80"),
        ("0.0.0.0", "http://127.0.0.1:80"),
        ("::", "http://[::1]:80"),
        ("fe80::1", "http://[fe80::1]:80"),
        ("localhost", "http://localhost:80"),
    ],
)
def test_urls(host: str, url: str) -> None:
    assert address_file.url_of(host, 80) == url
