"""Ten thousand segments: opened, searched and followed without a look at each of them."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any, Final

import pytest

from mqtt_broker.streams.format import file_names
from mqtt_broker.streams.format.batch import seed_of
from mqtt_broker.streams.format.batch_builder import BatchBuilder, Run
from mqtt_broker.streams.format.segment_catalog import Catalog, SealedSegment
from mqtt_broker.streams.read.reader import Reader
from mqtt_broker.streams.read.source import Source
from tests.counting import count_calls, count_lines
from tests.streams.logs import NAME, START_US, Writing

SEGMENTS: Final = 3_000
ROWS: Final = 10


def build(root: Path, count: int) -> None:
    """As the log itself makes them, without waiting for a catalog each."""
    with Writing(root) as writing:
        writing.create()
        epoch = writing.log.streams[NAME].epoch
    directory = root / NAME / "p0"
    seed = seed_of(epoch, 0)
    sealed = []
    for number in range(count):
        builder = BatchBuilder()
        at = START_US + number * 1_000_000
        builder.append_run(Run(ROWS, b"t", b"c", b"", 0, at), [b"payload"] * ROWS, 1)
        data = b"".join(builder.encode(seed, number * ROWS))
        (directory / file_names.segment(number * ROWS)).write_bytes(data)
        sealed.append(SealedSegment(number * ROWS, (number + 1) * ROWS, len(data), at, at, 0))
    catalog = Catalog.of(sealed, count * ROWS)
    (directory / file_names.CATALOG).write_bytes(catalog.encode(seed))
    (root / NAME / file_names.COMMITTED).unlink()


class Looks:
    """Notes which files of a log the system is asked for, and how often.

    Other threads of the process may use other files meanwhile, so only paths below the log count.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, root: Path) -> None:
        self._root = str(root)
        self.files: list[str] = []
        for module, name in (
            (os, "open"), (os, "stat"), (os, "listdir"), (os, "scandir"), (os, "unlink"),
            (os, "replace"), (io, "open"),
        ):  # fmt: skip
            monkeypatch.setattr(module, name, self._noted(getattr(module, name)))

    def _noted(self, call: Any) -> Any:
        def noted(path: Any = ".", *arguments: Any, **more: Any) -> Any:
            if not isinstance(path, int) and str(path).startswith(self._root):
                self.files.append(str(path).rpartition("/")[2])
            return call(path, *arguments, **more)

        return noted

    def at_segments(self) -> list[str]:
        """The segments looked at since the last call, each as often as it was."""
        found = [name for name in self.files if name.endswith((".seg", ".idx"))]
        self.files.clear()
        return found


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("many")
    build(root, SEGMENTS)
    with Writing(root):
        pass
    return root


def test_opening_looks_at_no_sealed_segment(many: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = Looks(monkeypatch, many)
    with Writing(many) as writing:
        assert writing.log.streams[NAME].ends().ends == (SEGMENTS * ROWS,)
        active = file_names.segment(SEGMENTS * ROWS)
        assert len(looks.files) < 30, looks.files
        assert set(looks.at_segments()) <= {active, file_names.index(Path(active)).name}
        with Source.open(many, NAME) as source:
            assert source.starts().ends == (0,)
        assert len(looks.files) < 10, looks.files
        assert looks.at_segments() == []


def test_opening_costs_a_name_a_segment(many: Path) -> None:
    """The names of the directory are parsed and compared with the catalog: nothing slower."""
    opened = []
    calls = count_calls(lambda: opened.append(Writing(many)))
    opened[0].log.close()
    assert calls < 3 * SEGMENTS


def test_an_offset_or_a_time_is_found_in_one_segment(
    many: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Source.open(many, NAME) as source:
        looks = Looks(monkeypatch, many)

        def by_offset(offset: int) -> int:
            with Reader(source, 0, offset) as reader:
                [batch] = reader.read(1)
            return batch.base

        def by_time(offset: int) -> int:
            at = START_US + offset // ROWS * 1_000_000
            return source.partitions[0].find_time(at, SEGMENTS * ROWS)

        for offset in range(7, SEGMENTS * ROWS, 7_993):
            base = offset // ROWS * ROWS
            segment = file_names.segment(base)
            its_own = {segment, file_names.index(Path(segment)).name}
            for find in (by_offset, by_time):
                found = []
                lines = count_lines(lambda: found.append(find(offset)))  # noqa: B023
                assert found == [base]
                assert lines < 450, lines
                looked = looks.at_segments()
                assert len(looked) < 4 and set(looked) <= its_own, looked


def test_writing_on_and_sealing_stay_cheap(many: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Writing(many) as writing:
        looks = Looks(monkeypatch, many)
        for _ in range(3):
            writing.now_us += 90_000_000_000
            writing.put(b"next")
        assert len(looks.files) < 60, looks.files
        end = f"{SEGMENTS * ROWS:020d}"
        assert [name for name in looks.at_segments() if name < end] == []
