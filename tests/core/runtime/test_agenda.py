"""Items that go on in turn, each for a share of work, and all for a turn's."""

from __future__ import annotations

from mqtt_broker.core.runtime.agenda import Agenda
from sessions.messages.work import DONE, MORE, WAITS, Work


class Item:
    """Takes so many steps, of a share each unless told otherwise."""

    def __init__(self, name: str, steps: int, log: list[str], work: Work, units: int = 10) -> None:
        self.name = name
        self.steps = steps
        self._log = log
        self._work = work
        self._units = units

    def go_on(self, now: float) -> int:
        self._log.append(self.name)
        self._work.spent += self._units
        self.steps -= 1
        return MORE if self.steps else DONE


def raise_it(error: Exception) -> None:
    raise error


def test_items_take_turns_until_each_is_done() -> None:
    work, log = Work(10, 1_000), list[str]()
    agenda = Agenda(work, raise_it)
    for name, steps in (("a", 3), ("b", 1), ("c", 2)):
        agenda.add(Item(name, steps, log, work))
    for left in (2, 1, 0):
        agenda.run(1.0)
        assert len(agenda.items) == left
    assert log == ["a", "b", "c", "a", "c", "a"]
    agenda.run(1.0)
    assert len(log) == 6


def test_a_turn_ends_and_the_next_begins_with_who_had_none() -> None:
    work, log = Work(10, 25), list[str]()
    agenda = Agenda(work, raise_it)
    for name in "abcd":
        agenda.add(Item(name, 2, log, work))
    agenda.run(1.0)
    assert log == ["a", "b", "c"]
    agenda.run(1.0)
    assert log == ["a", "b", "c", "d", "a", "b"]


def test_an_item_sees_where_its_share_ends() -> None:
    work, seen = Work(10, 1_000), list[bool]()

    class Looking:
        def go_on(self, now: float) -> int:
            seen.append(work.is_over)
            work.spent += 10
            seen.append(work.is_over)
            return DONE

    agenda = Agenda(work, raise_it)
    agenda.add(Looking())
    agenda.add(Looking())
    agenda.run(1.0)
    assert seen == [False, True, False, True]
    work.begin()
    assert not work.is_over
    work.stop()
    assert work.is_over


def test_what_waits_is_added_again_by_what_it_waits_for() -> None:
    class Waiting:
        def __init__(self) -> None:
            self.calls = 0

        def go_on(self, now: float) -> int:
            self.calls += 1
            return WAITS if self.calls == 1 else DONE

    agenda, item = Agenda(Work(), raise_it), Waiting()
    agenda.add(item)
    agenda.run(1.0)
    assert len(agenda.items) == 0
    agenda.add(item)
    agenda.run(1.0)
    assert item.calls == 2 and len(agenda.items) == 0


def test_an_error_costs_its_item_only() -> None:
    class Broken:
        def go_on(self, now: float) -> int:
            raise RuntimeError("ours")

    work, log, errors = Work(), list[str](), list[Exception]()
    agenda = Agenda(work, errors.append)
    agenda.add(Broken())
    agenda.add(Item("a", 2, log, work))
    agenda.run(1.0)
    assert [str(error) for error in errors] == ["ours"]
    assert log == ["a"] and len(agenda.items) == 1
    agenda.run(1.0)
    assert log == ["a", "a"] and len(agenda.items) == 0
