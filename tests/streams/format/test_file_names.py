"""Names of the files of a log: there and back, and no other file is taken for one of them."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqtt_broker.streams.format import file_names
from mqtt_broker.streams.format.errors import Invalid


@given(st.integers(0, 10**20 - 1), st.integers(0, 10**9))
def test_a_segment_is_known_by_its_name(base: int, generation: int) -> None:
    name = file_names.segment(base, generation)
    assert file_names.parse_segment(name) == (base, generation)
    index = file_names.index(Path("/log") / name)
    assert index.parent == Path("/log") and index.name == name.removesuffix(".seg") + ".idx"
    assert file_names.parse_segment(index.name) is None


@given(st.integers(0, 10**20 - 1), st.integers(0, 10**20 - 1))
def test_names_sort_as_their_offsets_do(one: int, two: int) -> None:
    assert (file_names.segment(one) < file_names.segment(two)) is (one < two)


@pytest.mark.parametrize(
    "name",
    ["", "catalog", "1.seg", "0" * 19 + ".seg", "0" * 21 + ".seg", "0" * 20 + ".seg.new",
     "0" * 20 + ".idx", "0" * 20 + ".x.seg", "0" * 20 + "..seg", "x" + "0" * 20 + ".seg",
     "-" + "0" * 19 + ".seg", "0" * 20 + ".seg\n", "\uff11" * 20 + ".seg"],
)  # fmt: skip
def test_other_files_are_no_segments(name: str) -> None:
    assert file_names.parse_segment(name) is None


@pytest.mark.parametrize("name", ["a", "A.b-c_9", "0", "_", "x" * 100, "new", "a.newer"])
def test_names_of_streams(name: str) -> None:
    assert file_names.check_stream(name) == name


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", ".a", "-a", "a/b", "a b", "ä", "x" * 101, "a.new", ".new", "a\n", "a\0",
     "lock/", "../a", "$a"],
)  # fmt: skip
def test_names_that_would_leave_the_directory_or_clash_are_refused(name: str) -> None:
    with pytest.raises(Invalid, match="is invalid: expected up to 100 letters"):
        file_names.check_stream(name)


def test_files_of_a_stream_have_names_that_no_partition_has() -> None:
    own = {file_names.METADATA, file_names.COMMITTED, file_names.CATALOG, file_names.LOCK}
    partitions = {file_names.partition(n) for n in range(file_names.PARTITIONS_MAX)}
    assert len(own) == 4 and len(partitions) == file_names.PARTITIONS_MAX
    assert not own & partitions
