"""The read-ahead budget: the subscription that waited longest gives up, and the oldest file."""

from __future__ import annotations

from typing import Any

from mqtt_broker.streams.replay.read_ahead import ReadAheadBudget


class Holder:
    """A subscription that reads pages and drops them when it is told to."""

    def __init__(self, budget: ReadAheadBudget) -> None:
        self.budget = budget
        self.buffered_bytes = 0
        self.drops = 0

    def read(self, size: int) -> None:
        self.buffered_bytes += size
        self.budget.add(self, size)

    def send(self, size: int) -> None:
        self.buffered_bytes -= size
        self.budget.add(self, -size)

    def drop_pages(self) -> None:
        self.drops += 1
        self.send(self.buffered_bytes)


class Cursor:
    """The cursor of a partition with a file that is open until it is closed."""

    def __init__(self) -> None:
        self.closed = 0
        self.is_reading = False

    def read(self, budget: ReadAheadBudget) -> None:
        """Begin to read: a thread uses the file until `is_reading` is reset."""
        self.is_reading = True
        budget.open(self)

    @property
    def reader(self) -> Any:
        return self

    def close(self) -> None:
        self.closed += 1


def test_who_waited_longest_gives_its_pages_up() -> None:
    budget = ReadAheadBudget(100, 9)
    one, two, three = (Holder(budget) for _ in range(3))
    for holder in (one, two, three):
        holder.read(30)
    one.read(10)  # exactly at the limit; `two` has waited longest now
    assert [holder.drops for holder in (one, two, three)] == [0, 0, 0]
    three.read(1)
    assert [holder.drops for holder in (one, two, three)] == [0, 1, 0]
    assert budget.bytes == 71 and len(budget) == 2


def test_as_many_give_up_as_it_takes_but_not_the_one_that_reads() -> None:
    budget = ReadAheadBudget(100, 9)
    one, two, three = (Holder(budget) for _ in range(3))
    one.read(40)
    two.read(40)
    three.read(150)  # a page that is larger than all that is allowed
    assert [holder.drops for holder in (one, two, three)] == [1, 1, 0]
    assert budget.bytes == 150
    one.read(1)
    assert three.drops == 1 and budget.bytes == 1


def test_sending_makes_no_younger_and_the_last_page_ends_it() -> None:
    budget = ReadAheadBudget(100, 9)
    one, two, three = (Holder(budget) for _ in range(3))
    one.read(40)
    two.read(40)
    one.send(10)
    three.read(31)
    assert [holder.drops for holder in (one, two, three)] == [1, 0, 0], "sending is not reading"
    two.send(40)
    three.send(31)
    assert len(budget) == 0 and budget.bytes == 0


def test_memory_is_tight_when_more_than_half_is_used() -> None:
    budget = ReadAheadBudget(100, 9)
    holder = Holder(budget)
    holder.read(50)
    assert not budget.is_tight
    holder.read(1)
    assert budget.is_tight


def test_the_file_that_was_read_longest_ago_is_closed() -> None:
    budget = ReadAheadBudget(100, 2)
    one, two, three = Cursor(), Cursor(), Cursor()
    budget.open(one)
    budget.open(two)
    budget.open(one)  # read again: `two` is the oldest
    assert budget.files == 2
    budget.open(three)
    assert (one.closed, two.closed, three.closed) == (0, 1, 0)
    assert budget.files == len(budget) == 2


def test_a_file_that_is_being_read_stays_open() -> None:
    budget = ReadAheadBudget(100, 2)
    one, two, three, four = Cursor(), Cursor(), Cursor(), Cursor()
    for cursor in (one, two, three):
        cursor.read(budget)
    assert budget.files == 3, "more than allowed, until a thread is done"
    budget.close(one)
    assert not one.closed and budget.files == 3
    two.is_reading = three.is_reading = False
    four.read(budget)
    assert [cursor.closed for cursor in (one, two, three, four)] == [0, 1, 0, 0]
    budget.close_all()
    assert [cursor.closed for cursor in (one, two, three, four)] == [1, 1, 1, 1]
    assert len(budget) == 0
