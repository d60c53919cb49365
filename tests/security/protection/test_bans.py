"""The list of bans in its file: added to, lifted from, by several at once; bans for flapping."""

from __future__ import annotations

import ipaddress
import stat
import threading
from pathlib import Path

import pytest

from mqtt_broker.security.files.errors import FileError
from mqtt_broker.security.protection.bans import (
    Bans,
    Flapping,
    add_ban,
    lift_ban,
    make_ban,
    read_bans,
    write_bans,
)


def test_add_and_lift(tmp_path: Path) -> None:
    path = str(tmp_path / "bans")
    add_ban(path, make_ban("client", "a", 5.0), 1.0)
    add_ban(path, make_ban("address", "10.0.0.1", why="x"), 1.0)
    add_ban(path, make_ban("client", "a", 9.0, "longer"), 1.0)  # in place of the first
    assert read_bans(path) == [
        make_ban("address", "10.0.0.1", why="x"),
        make_ban("client", "a", 9.0, "longer"),
    ]
    assert not lift_ban(path, "user", "a", 1.0)
    assert lift_ban(path, "address", "10.0.0.1/32", 1.0)  # however it is written
    assert not lift_ban(path, "client", "a", 9.0)  # it is over
    assert lift_ban(path, "client", "a", 8.0) and read_bans(path) == []


def test_those_that_have_ended_go(tmp_path: Path) -> None:
    path = str(tmp_path / "bans")
    write_bans(path, [make_ban("client", "old", 5.0), make_ban("client", "kept")])
    add_ban(path, make_ban("client", "new"), 6.0)
    assert [ban.value for ban in read_bans(path)] == ["kept", "new"]


def test_what_cannot_be_read_is_not_written_over(tmp_path: Path) -> None:
    path = tmp_path / "bans"
    path.write_text("rubbish\n")
    for change in (
        lambda: add_ban(str(path), make_ban("client", "x"), 0.0),
        lambda: lift_ban(str(path), "client", "x", 0.0),
    ):
        with pytest.raises(FileError, match="line 1"):
            change()
    assert path.read_text() == "rubbish\n"


def test_its_mode_stays(tmp_path: Path) -> None:
    path = tmp_path / "bans"
    path.touch(0o600)
    add_ban(str(path), make_ban("client", "x"), 0.0)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def _add_some(path: str, name: str) -> None:
    for number in range(10):
        add_ban(path, make_ban("client", f"{name} {number}"), 0.0)


def test_several_at_once(tmp_path: Path) -> None:
    """Each opens the directory for itself, as the command and the broker do."""
    path = str(tmp_path / "bans")
    others = [threading.Thread(target=_add_some, args=(path, name)) for name in "ab"]
    for other in others:
        other.start()
    _add_some(path, "c")
    for other in others:
        other.join()
    assert len(read_bans(path)) == 30


def test_who_flapped_is_forgiven() -> None:
    bans, flapping = Bans(), Flapping(2, 10.0, 50.0)
    address = ipaddress.ip_address("192.0.2.1")
    for name in ("ann", None):
        for at in (1.0, 2.0):
            bans.on_connect(flapping, name, "c", at, address)
    assert [(who[:2], until) for who, until in bans.flapped(2.0)] == [
        (("ann", "c"), 52.0), ((None, "c"), 52.0)
    ]  # fmt: skip
    assert bans.count(2.0) == 2 and bans.count(60.0) == 0
    assert not bans.forgive("d", 2.0) and bans.forgive("c", 2.0) and not bans.forgive("c", 2.0)
    assert bans.flapped(2.0) == [] and bans.on_connect(flapping, "ann", "c", 3.0, address) is None
    long = "x" * 60_000
    for at in (1.0, 2.0):
        bans.on_connect(flapping, "ann", long, at)
    assert bans.forgive(long, 2.0)


def test_a_line_that_is_nested_without_end(tmp_path: Path) -> None:
    path = tmp_path / "bans"
    path.write_text("[" * 100_000 + "\n")
    with pytest.raises(FileError, match="line 1: not a ban"):
        read_bans(str(path))


# The list itself, and its file.


def test_flapping_forgets() -> None:
    bans, flapping = Bans(), Flapping(2, 10.0, 5.0)
    for n in range(60_000):
        assert bans.on_connect(flapping, "ann", f"c{n}", n / 100) is None
    assert len(bans.connects) <= 50_000
    assert [bans.on_connect(flapping, "ann", "x", at) is None for at in (1000.0, 1011.0)] == [
        True,
        True,
    ]
    assert [bans.on_connect(flapping, "ann", "x", at) is None for at in (1012.0, 1016.0)] == [
        False,
        False,
    ]
    assert bans.on_connect(flapping, "bob", "x", 1016.0) is None  # not his to answer for
    assert bans.on_connect(flapping, "ann", "x", 1018.0) is None


def test_the_bans_file(tmp_path: Path) -> None:
    path = str(tmp_path / "bans")
    assert read_bans(path) == []
    found = [make_ban("client", 'a"\n', 5.0, "why"), make_ban("address", "10.1.2.3/8")]
    write_bans(path, found)
    assert read_bans(path) == found and found[1].value == "10.0.0.0/8"
    assert [p.name for p in tmp_path.iterdir()] == ["bans"]


@pytest.mark.parametrize(
    "line",
    ["x", "[]", "1", '{"kind": "client"}', '{"kind": "x", "value": "y"}', '{"kind": 1, "value": 2}',
     '{"kind": "address", "value": "lan"}', '{"kind": "user", "value": "a", "until": "x"}',
     '{"kind": "user", "value": ""}'],
)  # fmt: skip
def test_bad_bans(tmp_path: Path, line: str) -> None:
    path = tmp_path / "bans"
    path.write_text('{"kind": "user", "value": "ok"}\n\n' + line + "\n")
    with pytest.raises(FileError, match="line 3"):
        read_bans(str(path))


def test_networks_and_addresses() -> None:
    bans = Bans()
    bans.replace(
        [make_ban("address", text) for text in ("192.0.2.0/24", "2001:db8::/32", "198.51.100.7")]
    )
    for text, is_banned in (
        ("192.0.2.1", True), ("192.0.3.1", False), ("2001:db8::9", True), ("198.51.100.7", True),
        ("198.51.100.8", False),
    ):  # fmt: skip
        assert bool(bans.of_address(ipaddress.ip_address(text), 0.0)) is is_banned
