"""The power is cut at moments of a short run; `python -m tests.powerloss.run` cuts it more often.

And the search is shown to see something: each way in which a broker forgets to sync is found.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.powerloss.disks import MODES, Disk
from tests.powerloss.restarts import sweep
from tests.powerloss.run import Outcome, search
from tests.powerloss.traces import Call, read, why_not

TRACED = pytest.mark.skipif(bool(why_not()), reason=f"strace: {why_not()}")
FORGOTTEN = ["synchronous-off", "directories-unsynced", "log-unsynced"]


def found(outcome: Outcome) -> str:
    return "; ".join(outcome.first.values())


@TRACED
def test_what_was_acknowledged_outlives_the_power() -> None:
    outcome = search(1, states=40, lives=2, steps=30)
    assert not outcome.lost, found(outcome)
    assert outcome.states == 40 and outcome.acknowledged > 0


@TRACED
@pytest.mark.parametrize(
    "sabotage",
    [FORGOTTEN[0], *(pytest.param(name, marks=pytest.mark.slow) for name in FORGOTTEN[1:])],
)
def test_what_is_not_synced_is_found_lost(sabotage: str) -> None:
    outcomes = [
        search(seed, states=100, lives=2, steps=20, sabotage=sabotage)
        for seed in range(1, 4 if sabotage in FORGOTTEN[1:] else 2)
    ]
    assert any(outcome.lost for outcome in outcomes)


@TRACED
@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2, 8))
def test_more_runs(seed: int) -> None:
    outcome = search(seed, states=400)
    assert not outcome.lost, found(outcome)


@TRACED
@pytest.mark.slow
def test_a_start_syncs_what_the_process_before_it_left() -> None:
    outcome = sweep(1)
    assert not outcome.lost, found(outcome)
    assert outcome.acknowledged > 50


@TRACED
@pytest.mark.slow
@pytest.mark.parametrize(
    "sabotage",
    ["earlier-segment-unnamed", "earlier-stream-unnamed", "earlier-directory-unnamed"],
)
def test_what_a_start_does_not_sync_is_found_lost(sabotage: str) -> None:
    assert sweep(1, sabotage=sabotage).lost


@pytest.mark.parametrize(
    "end", [")          = ? <unavailable>", " <unfinished ...>", " <detached ...>", ") = ?"]
)
def test_a_call_in_which_the_process_died_has_no_end(tmp_path: Path, end: str) -> None:
    (tmp_path / "trace.7").write_text(
        f"1.000000001 close(3) = 0 <0.000002>\n2.000000001 close(15{end}\n"
    )
    done, died = read(tmp_path / "trace", 0)
    assert done.number(0) == 3 and done.end == 1_000_002_001
    assert died.number(0) == 15 and died.end is None


# The disk itself.


def call(at: int, name: str, args: str, *texts: bytes, result: int = 0) -> Call:
    return Call(0, at, at + 1, name, args, texts, result)


def states(tmp_path: Path, calls: list[Call]) -> set[tuple[tuple[str, bytes], ...]]:
    """All that was found of it, in many tries of every mode."""
    rng = random.Random(1)
    tmp_path.mkdir()
    seen = set()
    disk = Disk(Path("/disk"))
    for _ in disk.play(calls):
        pass
    for number in range(60 * len(MODES)):
        image = tmp_path / str(number)
        disk.image(image, MODES[number % len(MODES)], rng)
        files = [path for path in sorted(image.rglob("*")) if path.is_file()]
        seen.add(tuple((str(path.relative_to(image)), path.read_bytes()) for path in files))
    return seen


def test_a_disk_keeps_what_was_synced_and_may_lose_the_rest(tmp_path: Path) -> None:
    made = [
        call(10, "openat", "AT_FDCWD, , O_RDWR|O_CREAT, 0644", b"/disk/a", result=5),
        call(20, "pwrite64", "5, , 3, 0", b"one", result=3),
    ]
    assert states(tmp_path / "1", made) == {(), (("a", b""),), (("a", b"one"),)}
    synced = [*made, call(30, "fdatasync", "5")]
    assert states(tmp_path / "2", synced) == {(), (("a", b"one"),)}
    opened = call(40, "openat", "AT_FDCWD, , O_RDONLY|O_CLOEXEC", b"/disk", result=6)
    named = [*synced, opened, call(50, "fsync", "6")]
    assert states(tmp_path / "3", named) == {(("a", b"one"),)}
    renamed = [*named, call(60, "rename", ", ", b"/disk/a", b"/disk/b")]
    assert states(tmp_path / "4", renamed) == {(("a", b"one"),), (("b", b"one"),)}
    removed = [*named, call(60, "unlink", "", b"/disk/a")]
    assert states(tmp_path / "5", removed) == {(("a", b"one"),), ()}


def test_a_write_may_be_torn_at_its_sectors(tmp_path: Path) -> None:
    data = b"1" * 512 + b"2" * 512
    written = [
        call(10, "openat", "AT_FDCWD, , O_RDWR|O_CREAT, 0644", b"/disk/a", result=5),
        call(20, "openat", "AT_FDCWD, , O_RDONLY", b"/disk", result=6),
        call(30, "fsync", "6"),
        call(40, "pwrite64", "5, , 1024, 0", data, result=1024),
    ]
    found = {state[0][1] for state in states(tmp_path / "1", written)}
    assert found == {b"", data, data[:512], bytes(512) + data[512:]}
