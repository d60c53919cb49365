"""The throttle of connections by address, and of all: pure, so that a storm takes no time."""

from __future__ import annotations

import ipaddress

from mqtt_broker.security.protection.throttle import ConnectLimits, Throttle

ONE, TWO = ipaddress.ip_address("192.0.2.1"), ipaddress.ip_address("2001:db8::1")


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
    assert len(throttle.buckets) <= 50_000 and not throttle.open_connections
