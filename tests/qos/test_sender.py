"""The outbound window against a model that is nothing but a list."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from qos import PACKET_ID_MAX, Sender, WrongAck
from qos.sender import allocate
from tests.property_examples import examples

CHECK = examples(120, stateful_step_count=40)


@dataclass
class Entry:
    packet_id: int
    item: str
    qos: int
    released: bool = False


class SenderMachine(RuleBasedStateMachine):
    """What the peer does to a window of at most six."""

    def __init__(self) -> None:
        super().__init__()
        self.sender: Sender[str] = Sender(6)
        self.entries: list[Entry] = []
        self.serial = 0

    def _find(self, packet_id: int) -> Entry | None:
        return next((entry for entry in self.entries if entry.packet_id == packet_id), None)

    def _ids(self, *, qos: int | None = None, released: bool | None = None) -> list[int]:
        return [
            entry.packet_id
            for entry in self.entries
            if (qos is None or entry.qos == qos)
            and (released is None or entry.released == released)
        ]

    @precondition(lambda self: self.sender.room > 0)
    @rule(count=st.integers(0, 4), qos=st.sampled_from([1, 2]))
    def admit(self, count: int, qos: int) -> None:
        items = [f"item {self.serial + index}" for index in range(min(count, self.sender.room))]
        self.serial += len(items)
        ids = self.sender.admit(items, qos)
        assert len(ids) == len(items)
        assert not set(ids) & set(self._ids())
        self.entries += [Entry(one, item, qos) for one, item in zip(ids, items, strict=True)]

    @rule(data=st.data(), unknown=st.booleans())
    def puback(self, data: st.DataObject, unknown: bool) -> None:
        known = self._ids(qos=1)
        ids = data.draw(st.lists(st.sampled_from(known), max_size=4)) if known else []
        if unknown:
            ids.append(60_000)
        want = [entry.item for one in dict.fromkeys(ids) if (entry := self._find(one))]
        assert self.sender.on_puback(ids) == want
        self.entries = [entry for entry in self.entries if entry.packet_id not in ids]

    @rule(data=st.data(), unknown=st.booleans())
    def pubrec(self, data: st.DataObject, unknown: bool) -> None:
        known = self._ids(qos=2)
        ids = data.draw(st.lists(st.sampled_from(known), max_size=4)) if known else []
        if unknown:
            ids.append(60_000)
        new = [
            entry for one in dict.fromkeys(ids) if (entry := self._find(one)) and not entry.released
        ]
        done, nobody = self.sender.on_pubrec(ids)
        assert done == [entry.item for entry in new]
        assert nobody == ([60_000] if unknown else [])
        for entry in new:
            entry.released = True
            self.entries.remove(entry)  # PUBRELs stand in the order of the PUBRECs
            self.entries.append(entry)

    @rule(data=st.data())
    def pubrec_error(self, data: st.DataObject) -> None:
        known = self._ids(qos=2)
        packet_id = data.draw(st.sampled_from([*known, 60_000]))
        entry = self._find(packet_id)
        item = self.sender.on_pubrec_error(packet_id)
        if entry is None or entry.released:
            assert item is None
        else:
            assert item == entry.item
            self.entries.remove(entry)

    @rule(data=st.data())
    def pubcomp(self, data: st.DataObject) -> None:
        known = self._ids(released=True)
        ids = data.draw(st.lists(st.sampled_from([*known, 60_000]), max_size=4))
        ended = [entry for entry in self.entries if entry.packet_id in ids]
        assert self.sender.on_pubcomp(ids) == len(ended)
        self.entries = [entry for entry in self.entries if entry not in ended]

    @rule(data=st.data())
    def forget(self, data: st.DataObject) -> None:
        packet_id = data.draw(st.sampled_from([*self._ids(released=False), 60_000]))
        entry = self._find(packet_id)
        assert self.sender.forget(packet_id) == (entry.item if entry else None)
        if entry:
            self.entries.remove(entry)

    @precondition(lambda self: self._ids(qos=2, released=False))
    @rule(data=st.data())
    def wrong_for_qos_2(self, data: st.DataObject) -> None:
        packet_id = data.draw(st.sampled_from(self._ids(qos=2, released=False)))
        with pytest.raises(WrongAck):
            self.sender.on_puback([packet_id])
        with pytest.raises(WrongAck):
            self.sender.on_pubcomp([packet_id])

    @precondition(lambda self: self._ids(qos=1))
    @rule(data=st.data())
    def wrong_for_qos_1(self, data: st.DataObject) -> None:
        packet_id = data.draw(st.sampled_from(self._ids(qos=1)))
        with pytest.raises(WrongAck):
            self.sender.on_pubrec([packet_id])
        with pytest.raises(WrongAck):
            self.sender.on_pubrec_error(packet_id)
        with pytest.raises(WrongAck):
            self.sender.on_pubcomp([packet_id])

    @rule()
    def restart(self) -> None:
        """The window is rebuilt from what a store would know."""
        fresh: Sender[str] = Sender(self.sender.limit)
        for packet_id, item, qos in self.sender.resend():
            fresh.restore(packet_id, item, qos)
        for packet_id in self.sender.releasing:
            fresh.restore_released(packet_id)
        self.sender = fresh

    @rule(limit=st.integers(1, 8))
    def reconnect(self, limit: int) -> None:
        """Another Receive Maximum; the window may be over it, and then has no room."""
        self.sender.limit = limit

    @invariant()
    def the_same_is_under_way(self) -> None:
        sender = self.sender
        assert len(sender) == len(self.entries)
        assert sender.room == sender.limit - len(self.entries)
        waiting = [entry for entry in self.entries if not entry.released]
        assert list(sender.resend()) == [(e.packet_id, e.item, e.qos) for e in waiting]
        assert list(sender.releasing) == self._ids(released=True)
        ids = self._ids()
        assert len(set(ids)) == len(ids)
        assert all(1 <= one <= PACKET_ID_MAX for one in ids)
        assert sender.qos2 == {e.packet_id for e in waiting if e.qos == 2}


TestSender = SenderMachine.TestCase
TestSender.settings = CHECK


@pytest.mark.rule("MQTT-2.2.1-4", "MQTT-4.3.2-1", "MQTT-4.3.3-1")
@given(
    last=st.integers(0, PACKET_ID_MAX),
    count=st.integers(0, 50),
    busy=st.sets(st.integers(1, PACKET_ID_MAX), max_size=50),
    busy_too=st.sets(st.integers(1, PACKET_ID_MAX), max_size=50),
)
@CHECK
def test_ids_are_free_and_differ(last: int, count: int, busy: set[int], busy_too: set[int]) -> None:
    ids = allocate(last, count, busy, busy_too)
    assert len(set(ids)) == count
    assert all(1 <= one <= PACKET_ID_MAX for one in ids)
    assert not (busy | busy_too) & set(ids)


@given(st.sets(st.integers(-5, 5), max_size=10), st.integers(1, 10))
@CHECK
def test_ids_go_round_the_ring(around: set[int], count: int) -> None:
    """Near the end of the ring, with ids in use on both sides of it."""
    busy = {one if one > 0 else one + PACKET_ID_MAX for one in around}
    ids = allocate(PACKET_ID_MAX - 3, count, busy, set())
    assert len(set(ids)) == count
    assert not busy & set(ids)
    steps = [(one - (PACKET_ID_MAX - 3)) % PACKET_ID_MAX for one in ids]
    assert steps == sorted(steps)


def test_wrap_around() -> None:
    assert allocate(0, 2, set(), set()) == [1, 2]
    assert allocate(65_534, 3, set(), set()) == [65_535, 1, 2]
    assert allocate(65_535, 1, set(), set()) == [1]
    assert allocate(65_533, 3, {65_534, 1}, {65_535, 2}) == [3, 4, 5]


def test_the_last_free_id_is_found() -> None:
    busy = set(range(1, PACKET_ID_MAX + 1)) - {4711}
    for last in (0, 4710, 4711, 4712, 65_535):
        assert allocate(last, 1, busy, set()) == [4711]


@pytest.mark.rule("MQTT-2.2.1-4")
def test_no_id_is_used_twice_in_a_whole_round() -> None:
    sender: Sender[int] = Sender(10)
    seen: list[int] = []
    for number in range(70_000 // 7):
        ids = sender.admit([number] * 7, 1)
        seen += ids
        assert len(sender.on_puback(ids)) == 7
    assert sorted(seen[:65_535]) == list(range(1, 65_536))
    assert seen[65_535:65_540] == [1, 2, 3, 4, 5]


def test_a_busy_id_is_passed_over_after_a_whole_round() -> None:
    sender: Sender[str] = Sender(10)
    (first,) = sender.admit(["stays"], 2)
    sender.on_pubrec([first])
    assert first == 1
    for _ in range(65_534):
        sender.on_puback(sender.admit(["goes"], 1))
    assert sender.admit(["new"], 1) == [2]


@pytest.mark.rule("MQTT-4.9.0-1", "MQTT-4.9.0-2", "MQTT-3.3.4-9")
def test_room_counts_both_halves_of_qos_2() -> None:
    sender: Sender[str] = Sender(2)
    ids = sender.admit(["a", "b"], 2)
    assert sender.room == 0
    sender.on_pubrec(ids)
    assert sender.room == 0
    sender.on_pubcomp(ids[:1])
    assert sender.room == 1


def test_a_window_that_shrank_has_no_room() -> None:
    sender: Sender[str] = Sender(5)
    sender.admit(["a", "b", "c"], 1)
    sender.limit = 2
    assert sender.room == -1
