"""The manifest of a backup is read as it was written, and knows when it was changed."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqtt_broker.backup.manifest import FILE, BackupError, FileSum, Manifest, explain_error, read
from mqtt_broker.streams.write.log_copy import CopiedStream

NAMES = st.from_regex(r"[a-z0-9é]{1,8}(/[a-z0-9é]{1,8}){0,2}", fullmatch=True)
SUMS = st.builds(FileSum, st.integers(0, 1 << 60), st.from_regex(r"[0-9a-f]{64}", fullmatch=True))
OFFSETS = st.lists(st.integers(0, 1 << 60), max_size=3).map(tuple)
MANIFESTS = st.builds(
    Manifest,
    version=st.text(),
    created_at=st.floats(0, 1e10),
    state=st.sampled_from(["sqlite", "lines"]),
    streams=st.dictionaries(NAMES, st.builds(CopiedStream, st.text(), OFFSETS, OFFSETS)),
    files=st.dictionaries(NAMES, SUMS),
)


@given(MANIFESTS)
def test_there_and_back(tmp_path_factory: pytest.TempPathFactory, manifest: Manifest) -> None:
    directory = tmp_path_factory.mktemp("backup")
    (directory / FILE).write_text(manifest.encode(), "utf-8")
    assert read(directory) == manifest


@given(MANIFESTS, st.data())
def test_a_changed_character_is_noticed(
    tmp_path_factory: pytest.TempPathFactory, manifest: Manifest, data: st.DataObject
) -> None:
    text = manifest.encode()
    at = data.draw(st.integers(0, len(text.rstrip()) - 1))
    directory = tmp_path_factory.mktemp("backup")
    (directory / FILE).write_text(text[:at] + "7" + text[at + 1 :], "utf-8")
    if text[at] == "7":
        assert read(directory) == manifest
    else:
        with pytest.raises(BackupError, match=FILE):
            read(directory)


def test_errors_name_the_file_or_the_target() -> None:
    assert explain_error(OSError(28, "No space left", "/a"), Path("/b")) == "/a: disk full"
    assert explain_error(OSError(13, "Permission denied"), Path("/b")) == "/b: Permission denied"
