"""Fair queue, connection throttle, bans file: pure, so that a storm takes no time."""

from __future__ import annotations

import ipaddress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqtt_broker.security.authentication.fair_queue import FairQueue
from mqtt_broker.security.files.errors import FileError
from mqtt_broker.security.protection.bans import Bans, Flapping, make_ban, read_bans, write_bans
from mqtt_broker.security.protection.throttle import ConnectLimits, Throttle

ONE, TWO = ipaddress.ip_address("192.0.2.1"), ipaddress.ip_address("2001:db8::1")


def test_everybody_in_turn() -> None:
    queue: FairQueue[str] = FairQueue(100_000)
    for n in range(15_000):
        assert queue.put("flood", f"flood {n}")
    for n in range(3):
        assert queue.put("quiet", f"quiet {n}")
    assert [queue.take() for _ in range(6)] == [
        "flood 0", "quiet 0", "flood 1", "quiet 1", "flood 2", "quiet 2"
    ]  # fmt: skip
    assert queue.count == 14_997


def test_who_floods_leaves_room_for_others() -> None:
    queue: FairQueue[int] = FairQueue(100)
    for n in range(50):
        queue.put("flood", n)
    assert queue.put("quiet", 0)
    assert not queue.put("flood", 50)
    for n in range(24):
        assert queue.put("quiet", n)
    assert queue.put("third", 0)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.booleans()), max_size=80))
def test_nothing_is_lost_and_each_key_keeps_its_order(steps: list[tuple[str, bool]]) -> None:
    queue: FairQueue[tuple[str, int]] = FairQueue(20)
    put: dict[str, list[int]] = {key: [] for key in "abc"}
    got: dict[str, list[int]] = {key: [] for key in "abc"}
    for number, (key, is_put) in enumerate(steps):
        if is_put:
            if queue.put(key, (key, number)):
                put[key].append(number)
        elif (item := queue.take()) is not None:
            got[item[0]].append(item[1])
        assert queue.count <= 20
    while (item := queue.take()) is not None:
        got[item[0]].append(item[1])
    assert got == put and queue.count == 0


def test_connections_of_an_address() -> None:
    throttle, limits = Throttle(), ConnectLimits(connections_per_address=2)
    assert [throttle.admit(limits, ONE, 0.0) for _ in range(3)] == [
        "",
        "",
        "connections_per_address",
    ]
    assert throttle.admit(limits, TWO, 0.0) == "" and throttle.admit(limits, None, 0.0) == ""
    throttle.release(ONE)
    assert throttle.admit(limits, ONE, 0.0) == ""
    for _ in range(5):  # more often than it was opened, and for who never was
        throttle.release(ONE)
        throttle.release(None)
    assert throttle.admit(limits, ONE, 0.0) == ""


def test_rates_of_an_address_and_of_all() -> None:
    throttle, limits = Throttle(), ConnectLimits(connects_per_s_per_address=2, burst_s=2)
    assert [throttle.admit(limits, ONE, 0.0) for _ in range(5)].count("") == 4
    assert throttle.admit(limits, TWO, 0.0) == ""
    assert throttle.admit(limits, ONE, 0.4) != "" and throttle.admit(limits, ONE, 0.6) == ""
    throttle, limits = Throttle(), ConnectLimits(connects_per_s=1, burst_s=1)
    assert [throttle.admit(limits, a, 0.0) for a in (ONE, TWO)] == ["", "connects_per_s"]
    assert throttle.admit(limits, TWO, 1.0) == ""


def test_a_scan_from_many_addresses_is_bounded() -> None:
    throttle, limits = (
        Throttle(),
        ConnectLimits(connects_per_s_per_address=1, connections_per_address=1),
    )
    for n in range(60_000):
        address = ipaddress.ip_address(n + (10 << 24))
        throttle.admit(limits, address, n / 1000)
        throttle.release(address)
    assert len(throttle._buckets) <= 50_000 and not throttle._open


def test_flapping_forgets() -> None:
    bans, flapping = Bans(), Flapping(2, 10.0, 5.0)
    for n in range(60_000):
        assert bans.on_connect(flapping, "ann", f"c{n}", n / 100) is None
    assert len(bans._connects) <= 50_000
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
