"""The window in bytes: counted as it grows and shrinks, and divided between all of them."""

from __future__ import annotations

import random

import pytest

from qos import WrongAck
from sessions.journal.transaction import Delivery
from sessions.messages.backlog import Backlog
from sessions.messages.message import DeliveryOptions, Message, single
from sessions.window import FREE_BYTES, PLACE_BYTES, RELEASED_BYTES, Window

ONE = DeliveryOptions(1)


def item(size: int) -> Delivery:
    return single("a", bytes(size)), ONE, 0, None


def bytes_of(window: Window) -> int:
    sizes = [entry[0].envelope.size for entry in window.unacked.values()]
    return sum(sizes) + RELEASED_BYTES * len(window.releasing)


def bytes_of_all(windows: list[Window]) -> int:
    """Each message once, and a place for each window more that has it."""
    places: dict[Message, int] = {}
    released = 0
    for window in windows:
        released += len(window.releasing)
        for entry in window.unacked.values():
            places[entry[0]] = places.get(entry[0], 0) + 1
    sizes = sum(m.envelope.size + PLACE_BYTES * (n - 1) for m, n in places.items())
    return sizes + RELEASED_BYTES * released


def test_whatever_happens_the_bytes_are_those_of_what_is_under_way() -> None:
    rng = random.Random(3)
    for _ in range(100):
        backlog = Backlog()
        windows = [Window(backlog) for _ in range(4)]
        for _ in range(150):
            window = rng.choice(windows)
            ids = rng.sample(list(window.unacked), min(len(window.unacked), rng.randrange(4)))
            qos1 = [packet_id for packet_id in ids if packet_id not in window.qos2]
            qos2 = [packet_id for packet_id in ids if packet_id in window.qos2]
            what = rng.randrange(9)
            if what < 3:
                message = item(rng.choice((0, 10, 5_000)))
                for one in rng.sample(windows, rng.randrange(1, 4)):
                    one.admit_one(message, rng.choice((1, 2)))
            elif what == 3:
                window.admit([item(10) for _ in range(rng.randrange(5))], rng.choice((1, 2)))
            elif what == 4:
                window.on_puback(qos1)
            elif what == 5:
                window.on_pubrec(qos2)
            elif what == 6:
                window.on_pubcomp(list(window.releasing)[:2])
            elif what == 7 and ids:
                if qos2:
                    window.on_pubrec_error(qos2[0])
                window.forget(ids[0])
            elif rng.random() < 0.1:
                window.clear()
            for packet_id in window.qos2:
                with pytest.raises(WrongAck):  # and nothing is changed
                    window.on_puback([*[*window.unacked][:3], packet_id])
                break
            assert window.bytes == bytes_of(window)
            assert backlog.inflight_bytes == bytes_of_all(windows)
        for window in windows:
            window.clear()
        assert backlog.inflight_bytes == 0 and not any(window.bytes for window in windows)


def test_what_is_restored_counts() -> None:
    backlog = Backlog()
    window = Window(backlog)
    entry = item(100)
    window.restore(7, entry, 2)
    window.restore_released(9)
    window.restore_released(9)
    assert window.bytes == backlog.inflight_bytes == entry[0].envelope.size + RELEASED_BYTES
    window.on_pubrec([7])
    window.on_pubcomp([7, 9])
    assert window.bytes == backlog.inflight_bytes == 0


def test_a_window_is_limited_in_bytes_beside_messages() -> None:
    window = Window(Backlog(inflight_bytes_max=1_000_000))
    assert window.room_for(1 << 30) == window.limit, "a small window is not looked at"
    entry = item(100_000)
    size = entry[0].envelope.size
    window.admit([entry, entry], 1)
    assert window.room_for(size) == (1_000_000 - 2 * size) // size
    window.limit = 5
    assert window.room_for(size) == 3
    window.limit = 1
    assert window.room_for(size) == 0


def test_windows_divide_what_there_is() -> None:
    """Nobody who comes later finds nothing, and all together hold to the limit."""
    backlog = Backlog(inflight_bytes_max=1 << 30, inflight_total_bytes_max=10_000_000)
    size = item(10_000)[0].envelope.size
    taken = []
    for _ in range(12):
        window = Window(backlog)
        while window.room_for(size):
            window.admit_one(item(10_000), 1)
        taken.append(window.bytes)
    assert backlog.inflight_bytes <= 10_000_000
    assert 1_900_000 < taken[0] < 2_100_000 and taken[-1] >= 100_000
    late = Window(backlog)
    assert late.room_for(500) == late.limit or late.room_for(500) * 500 > FREE_BYTES


def test_a_message_larger_than_a_share_goes_alone() -> None:
    backlog = Backlog(inflight_total_bytes_max=1_000_000)
    other = Window(backlog)
    other.admit([item(60_000)] * 1, 1)
    backlog.inflight_bytes = 700_000
    window = Window(backlog)
    assert window.room_for(290_000) == 1
    window.admit_one(item(290_000), 1)
    assert window.room_for(290_000) == 0
    assert Window(backlog).room_for(290_000) == 0, "there is no room, whoever asks"
    assert Window(Backlog(inflight_total_bytes_max=1_000)).room_for(5_000) == 65_535
