"""The books: spans, histogram, stamps, flows and wills."""

from __future__ import annotations

import random
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iot_sim.devices.device import TELEMETRY
from iot_sim.judge import stamps
from iot_sim.judge.histogram import Histogram, highest, lowest
from iot_sim.judge.intervals import Intervals
from iot_sim.judge.ledger import DEVICE, NO_RECEIVER, OBSERVER, Flow, Ledger, merge_tallies

NUMBERS = st.lists(st.integers(0, 40), max_size=80)


def spans_of(numbers: list[int]) -> Intervals:
    spans = Intervals()
    for number in numbers:
        spans.add(number)
    return spans


@given(NUMBERS, NUMBERS)
def test_spans_are_a_set(some: list[int], others: list[int]) -> None:
    spans = Intervals()
    known: set[int] = set()
    for number in some:
        assert spans.add(number) is (number not in known)
        known.add(number)
    assert spans.count == len(known)
    assert {n for start, end in spans for n in range(start, end)} == known
    assert all(edge < after for edge, after in zip(spans.edges, spans.edges[1:], strict=False))
    assert all((n in spans) is (n in known) for n in range(42))
    rest = spans.difference(spans_of(others))
    assert [n for start, end in rest for n in range(start, end)] == sorted(known - set(others))
    assert spans.difference_count(spans_of(others)) == len(known - set(others))


def test_spans_in_order_take_no_room() -> None:
    assert spans_of(list(range(100_000))).edges == [0, 100_000]


@given(st.lists(st.integers(0, 1 << 40), min_size=1, max_size=200))
def test_percentiles_are_right_to_a_hundredth(values: list[int]) -> None:
    histogram = Histogram()
    for value in values:
        histogram.record(value)
    values.sort()
    for percent in (50, 90, 99, 99.9, 100):
        exact = values[max(0, -(-len(values) * percent // 100).__int__() - 1)]
        assert exact <= histogram.percentile(percent) <= max(exact, exact * 1.008)
    assert histogram.max_us == values[-1] and histogram.min_us == values[0]


@given(st.integers(0, 1 << 45))
def test_buckets_hold_their_values(value: int) -> None:
    histogram = Histogram()
    histogram.record(value)
    (bucket,) = histogram.buckets
    assert lowest(bucket) <= value <= highest(bucket)


def test_histograms_add_up_and_tell_what_is_new() -> None:
    chance = random.Random(1)
    whole, parts = Histogram(), [Histogram(), Histogram()]
    for _ in range(1000):
        value = int(chance.expovariate(0.001))
        whole.record(value)
        chance.choice(parts).record(value)
    before = dict(whole.buckets)
    parts[0].add(parts[1])
    assert parts[0].buckets == whole.buckets and parts[0].total_us == whole.total_us
    whole.record(77)
    newer = whole.since(before)
    assert newer.count == 1 and newer.percentile(50) == 77
    assert whole.since(whole.buckets).percentile(99) == 0


def test_negative_times_count_as_none() -> None:
    histogram = Histogram()
    histogram.record(-5)
    assert histogram.percentile(50) == 0 and histogram.count == 1


@pytest.mark.parametrize("payload", [b"", b"{}", bytes(range(256)) * 20])
def test_a_stamp_survives_a_payload(payload: bytes) -> None:
    text = stamps.stamp("run/dev/telemetry.1.0/", 7, 1_700_000_000_000_000, payload)
    found = stamps.from_payload(stamps.append(payload, text))
    assert found == (text.decode(), payload)
    parts = stamps.split(text.decode())
    assert parts == (
        "run/dev/telemetry.1.0/",
        7,
        1_700_000_000_000_000,
        f"{crc32(payload):08x}",
        0,
    )


def test_a_stamp_says_how_much_later_than_due_the_message_was_sent() -> None:
    for late_us, shown in ((0, "5"), (-3, "5"), (1500, "5+1500")):
        text = stamps.stamp("run/dev/telemetry.1.0/", 7, 5, b"", late_us).decode()
        assert text.split("/")[4] == shown
        assert (stamps.split(text) or ())[2:] == (5, "00000000", max(0, late_us))
    assert stamps.split("run/dev/telemetry.1.0/7/5+x/00") is None


def test_latencies_count_from_the_send_and_from_when_it_was_due() -> None:
    ledger = Ledger("run", 1000.0)
    flow = ledger.open("dev", TELEMETRY, "a/b", 1, 0, OBSERVER)
    flow.sent = 1
    text = stamps.stamp(flow.key, 0, 10_000, b"p", 4_000).decode()
    ledger.on_delivered(text, b"p", "a/b", 1, False, OBSERVER, 10_100)
    ledger.on_acked(flow, 0, 50, 4_000)
    tally = flow.tally
    assert (tally.latency.max_us, tally.latency_from_due.max_us) == (100, 4_100)
    assert (tally.ack_latency.max_us, tally.ack_latency_from_due.max_us) == (50, 4_050)


@pytest.mark.parametrize(
    "payload",
    [b"", b"x", b"\x00\x05\x00simstamp", b"\xff\xff\x00simstamp", b"ab\x00\x02\x00simstam"],
)
def test_what_is_no_stamp_is_left_alone(payload: bytes) -> None:
    assert stamps.from_payload(payload) is None


@pytest.mark.parametrize("text", ["", "a", "a/b/c/d/e/f", "run/dev/telemetry.1.0/x/1/00"])
def test_what_is_no_stamp_is_none(text: str) -> None:
    assert stamps.split(text) is None


class Books:
    """A ledger with one flow, told what happens to the messages by number."""

    def __init__(self, qos: int, receiver: str = OBSERVER) -> None:
        self.ledger = Ledger("run", 1000.0)
        self.flow: Flow = self.ledger.open("dev", TELEMETRY, "a/b", qos, 0, receiver)

    def send(self, count: int) -> None:
        self.flow.sent += count
        self.flow.tally.sent += count

    def ack(self, *numbers: int) -> None:
        for number in numbers:
            self.ledger.on_acked(self.flow, number, 100)

    def deliver(
        self,
        *numbers: int,
        payload: bytes = b"p",
        topic: str = "a/b",
        qos: int | None = None,
        dup: bool = False,
        receiver: str = OBSERVER,
        late_us: int = 500,
    ) -> None:
        for number in numbers:
            text = f"{self.flow.key}{number}/1000/{crc32(b'p'):08x}"
            got = self.flow.qos if qos is None else qos
            self.ledger.on_delivered(text, payload, topic, got, dup, receiver, 1000 + late_us)


def test_acknowledged_and_not_delivered_is_lost() -> None:
    books = Books(1)
    books.send(10)
    books.ack(*range(9))
    books.deliver(0, 1, 2, 4, 5, 6, 7)
    assert books.ledger.missing() == 2
    books.ledger.close()
    tally = books.flow.tally
    assert (tally.lost, tally.unconfirmed, tally.delivered) == (2, 1, 7)
    assert books.ledger.examples["lost"] == ["run/dev/telemetry.1.0/3", "run/dev/telemetry.1.0/8"]


def test_at_qos_0_sent_and_not_delivered_is_lost_but_for_what_a_fault_cut() -> None:
    books = Books(0)
    books.send(10)
    books.ledger.on_cut(books.flow, 8)
    books.ledger.on_cut(books.flow, 9)
    books.deliver(*range(6), 9)
    books.ledger.close()
    assert (books.flow.tally.lost, books.flow.tally.cut) == (2, 2)


def test_repeats_are_told_from_redeliveries() -> None:
    books = Books(1)
    books.send(4)
    books.ledger.on_resent(books.flow, 1)
    books.deliver(0, 1, 2, 3)
    books.deliver(1)
    books.deliver(2, dup=True)
    tally = books.flow.tally
    assert (tally.redelivered, tally.repeated) == (2, 0)
    books.deliver(3)
    assert (tally.redelivered, tally.repeated, tally.delivered) == (2, 1, 4)


@pytest.mark.parametrize("qos", [0, 2])
def test_at_qos_0_and_2_nothing_explains_a_repeat(qos: int) -> None:
    books = Books(qos)
    books.send(1)
    books.deliver(0)
    books.deliver(0, dup=True)
    assert books.flow.tally.repeated == 1


def test_order_is_that_of_first_deliveries() -> None:
    books = Books(1)
    books.send(5)
    books.ledger.on_resent(books.flow, 0)
    books.deliver(0, 1, 0, 2, 4, 3)
    assert books.flow.tally.reordered == 1
    books.ledger.judges_order = False
    books.send(2)
    books.deliver(6, 5)
    assert books.flow.tally.reordered == 1


def test_what_was_changed_on_the_way_is_seen() -> None:
    books = Books(1)
    books.send(4)
    books.deliver(0)
    books.deliver(1, payload=b"q")
    books.deliver(2, topic="a/c")
    books.deliver(3, qos=0)
    assert books.flow.tally.altered == 3


def test_late_is_beyond_the_limit() -> None:
    books = Books(1)
    books.send(2)
    books.deliver(0, late_us=1_000_000)
    books.deliver(1, late_us=1_000_001)
    assert books.flow.tally.late == 1


def test_only_the_judge_of_a_flow_counts() -> None:
    books = Books(1, receiver=DEVICE)
    books.send(1)
    books.deliver(0)
    assert books.flow.tally.delivered == 0
    books.deliver(0, receiver=DEVICE)
    assert books.flow.tally.delivered == 1


def test_nobody_listens_nobody_judges() -> None:
    books = Books(1, receiver=NO_RECEIVER)
    books.send(3)
    books.ack(0, 1)
    books.ledger.close()
    tally = books.flow.tally
    assert (tally.unjudged, tally.lost, tally.unconfirmed) == (3, 0, 1)


def test_what_was_never_sent_is_unknown_unless_another_run_sent_it() -> None:
    books = Books(1)
    books.deliver(0)
    assert books.ledger.unknown == 1
    books.ledger.on_delivered("run/x/telemetry.1.0/0/0/00", b"", "a", 1, False, OBSERVER, 0)
    assert books.ledger.unknown == 2
    books.ledger.on_delivered("other/x/telemetry.1.0/0/0/00", b"", "a", 1, False, OBSERVER, 0)
    assert books.ledger.unknown == 2


def test_wills_are_due_or_void() -> None:
    ledger = Ledger("run", 1000)
    flow = ledger.open_will("dev")
    flow.sent = 4
    ledger.will_due(flow, 0, 1.0)
    ledger.will_due(flow, 1, 2.0)
    ledger.will_cancelled(flow, 2)
    assert ledger.missing() == 2
    for number, dup in ((0, False), (0, True), (0, False), (2, False), (3, False)):
        ledger.on_delivered(f"{flow.key}{number}/0/00", b"", "t", 1, dup, OBSERVER, 5)
    ledger.close()
    counts = ledger.will_counts
    assert (counts.registered, counts.due, counts.delivered) == (4, 2, 3)
    assert (counts.missing, counts.unexpected, counts.repeated) == (1, 1, 1)


def test_books_of_two_processes_add_up() -> None:
    here, there = Books(1), Books(1)
    for books in (here, there):
        books.send(3)
        books.ack(0, 1, 2)
        books.deliver(0, 2)
        books.ledger.close()
    (whole,) = merge_tallies([here.ledger.tallies.values(), there.ledger.tallies.values()])
    assert (whole.sent, whole.acknowledged, whole.delivered, whole.lost) == (6, 6, 4, 2)
    assert whole.latency.count == 4


def test_a_long_run_takes_no_more_room_than_a_short_one() -> None:
    books = Books(1)
    books.send(50_000)
    for number in range(50_000):
        books.ledger.on_acked(books.flow, number, 1)
        books.flow.delivered.add(number)
    assert books.flow.acked.edges == books.flow.delivered.edges == [0, 50_000]
