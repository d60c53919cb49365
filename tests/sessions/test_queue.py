"""A queue whose middle is on disk, against a list: order, counts and bytes, whatever happens."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from sessions.journal.transaction import Delivery, JournalNumbers, PublishTransaction
from sessions.messages.backlog import Backlog, QueueFull, QueueLimits
from sessions.messages.message import DeliveryOptions, single
from sessions.queue import MessageQueue
from tests.property_examples import examples

LIVE, SHARED = DeliveryOptions(1), DeliveryOptions(1, group=object())  # type: ignore[arg-type]


def delivery(place: int, *, group: int = 0, options: DeliveryOptions = LIVE) -> Delivery:
    """A delivery at this place of the store (0: it is not there), written with this group."""
    message = single("a", bytes(place % 7))
    txn = None
    if group:
        txn = PublishTransaction(JournalNumbers(group - 1, 0, 0), [message], awaits_commit=False)
    return message, options, place, txn


def filled(queue: MessageQueue, *places: int) -> list[Delivery]:
    items = [delivery(place) for place in places]
    for item in items:
        queue.append(item)
    return items


def size_of(items: list[Delivery]) -> int:
    return sum(item[0].envelope.size for item in items)


class Owner:
    """Takes what its queue gives up, and asks for nothing."""

    def __init__(self) -> None:
        self.shed: list[Delivery] = []
        self.pages = 0

    def on_shed(self, items: list[Delivery], now: float) -> None:
        self.shed += items

    def want_page(self, queue: MessageQueue) -> None:
        self.pages += 1
        queue.load_later()


class QueueMachine(RuleBasedStateMachine):
    """`store` has every delivery that waits and has a place; `expected` is all that waits."""

    def __init__(self) -> None:
        super().__init__()
        self.backlog = Backlog()
        self.queue = MessageQueue(self.backlog, Owner())
        self.expected: list[Delivery] = []
        self.place = 0

    @rule(
        count=st.integers(1, 8),
        is_stored=st.sampled_from([True] * 9 + [False]),
        group=st.sampled_from([0, 0, 1, 2, 5]),
        is_shared=st.sampled_from([False] * 9 + [True]),
    )
    def append(self, count: int, is_stored: bool, group: int, is_shared: bool) -> None:
        options = SHARED if is_shared else LIVE
        for _ in range(count):
            self.place += 1
            item = delivery(self.place if is_stored else 0, group=group, options=options)
            self.queue.append(item)
            self.expected.append(item)

    @precondition(lambda self: self.queue.head)
    @rule()
    def popleft(self) -> None:
        assert self.queue.popleft()[0] is self.expected.pop(0)[0]

    @rule(folded=st.integers(2, 5), keep=st.integers(0, 4))
    def unload(self, folded: int, keep: int) -> None:
        before = len(self.queue.head)
        self.queue.unload(folded, keep)
        in_memory = {id(item[0]) for item in self.queue.items()}
        assert len(self.queue.head) >= min(keep, before)
        for item in self.expected:
            if id(item[0]) not in in_memory:
                assert item[2], "it is in no table"

    @precondition(lambda self: self.queue.wants_page)
    @rule(count=st.integers(1, 4))
    def load(self, count: int) -> None:
        self.queue.load_later()
        assert not self.queue.wants_page
        after = self.queue.stored_after
        page = [item for item in self.expected if item[2] > after][:count]
        self.queue.load(page)

    @rule(wanted=st.integers(1, 3))
    def take(self, wanted: int) -> None:
        in_memory = self.queue.items()
        taken = self.queue.take(lambda item: item[2] % 4 == wanted)
        assert taken == [item for item in in_memory if item[2] % 4 == wanted]
        gone = {id(item[0]) for item in taken}
        self.expected = [item for item in self.expected if id(item[0]) not in gone]

    @precondition(lambda self: len(self.expected) > 12)
    @rule()
    def clear(self) -> None:
        self.queue.clear()
        self.expected = []

    @invariant()
    def counts_are_those_of_the_list(self) -> None:
        queue = self.queue
        assert len(queue) == len(self.expected) == self.backlog.queued_messages
        assert queue.bytes == size_of(self.expected) == self.backlog.queued_bytes
        assert queue.in_memory == len(queue.items())
        assert queue.memory_bytes == size_of(queue.items()) == self.backlog.memory_bytes

    @invariant()
    def memory_has_the_ends_in_order(self) -> None:
        order = {id(item[0]): number for number, item in enumerate(self.expected)}
        numbers = [order[id(item[0])] for item in self.queue.items()]
        assert numbers == sorted(numbers)
        head = len(self.queue.head)
        assert numbers[:head] == list(range(head)), "something that waits longer is not in memory"


TestQueueMachine = QueueMachine.TestCase
TestQueueMachine.settings = examples(150, stateful_step_count=40)


@pytest.fixture
def queue() -> MessageQueue:
    return MessageQueue(Backlog(), Owner())


@pytest.mark.parametrize(
    ("item", "folded", "may_go"),
    [
        (delivery(9), 0, True),
        (delivery(0), 9, False),  # in no table
        (delivery(9, group=4), 4, True),
        (delivery(9, group=4), 3, False),  # its group is not in the tables yet
        (delivery(9, options=SHARED), 9, False),  # moves on when its client goes
    ],
)
def test_memory_is_freed_of_what_the_tables_hold(
    queue: MessageQueue, item: Delivery, folded: int, may_go: bool
) -> None:
    queue.append(item)
    queue.unload(folded, 0)
    assert queue.in_memory == (not may_go) and len(queue) == 1
    assert queue.wants_page is may_go


def test_a_shared_subscriptions_own_queue_frees_its_messages() -> None:
    queue = MessageQueue(Backlog(), Owner(), is_shared=True)
    queue.append(delivery(9, options=SHARED))
    queue.unload(0, 0)
    assert queue.in_memory == 0 and len(queue) == 1


def test_the_front_stays_and_what_comes_later_waits_behind_what_is_stored(
    queue: MessageQueue,
) -> None:
    items = filled(queue, 1, 2, 3, 4)
    queue.unload(0, 2)
    assert queue.items() == items[:2] and queue.stored_messages == 2
    assert (queue.stored_after, queue.stored_last) == (2, 4)
    late = filled(queue, 5)
    assert list(queue.head) == items[:2]
    queue.load(items[2:3])
    assert queue.items() == [*items[:3], *late] and list(queue.head) == items[:3]
    queue.load(items[3:] + late)  # the page has one more than is stored
    assert list(queue.head) == [*items, *late] and queue.stored_messages == 0


def test_what_the_store_has_lost_is_no_longer_counted() -> None:
    backlog = Backlog()
    queue = MessageQueue(backlog, Owner())
    items = filled(queue, 1, 2, 3)
    queue.unload(0, 0)
    queue.load([items[0]])
    assert len(queue) == 3
    queue.load([])
    assert len(queue) == backlog.queued_messages == 1
    assert queue.bytes == backlog.queued_bytes == size_of(items[:1])
    assert not queue.wants_page


def test_a_queue_that_begins_in_the_store_is_loaded_page_by_page(queue: MessageQueue) -> None:
    items = [delivery(place) for place in (3, 5, 8)]
    queue.restore(3, size_of(items), 8)
    assert (queue.wants_page, queue.in_memory, len(queue)) == (True, 0, 3)
    late = filled(queue, 9)
    queue.load_later()
    wanted = [queue.wants_page]  # not while a page is on its way
    queue.load(items[:2])
    wanted.append(queue.wants_page)
    assert wanted == [False, True] and queue.stored_after == 5
    queue.load(items[2:])
    assert list(queue.head) == [*items, *late]


def test_limits_count_what_is_stored_too(queue: MessageQueue) -> None:
    items = filled(queue, 1, 2)
    queue.unload(0, 0)
    owner = Owner()
    full = size_of(items)
    for limits, has_room in (
        (QueueLimits(2, 1 << 20), False),
        (QueueLimits(3, 1 << 20), True),
        (QueueLimits(9, full + 1), True),
        (QueueLimits(9, full), False),
    ):
        queue = MessageQueue(Backlog(queue_full=QueueFull.DROP_NEW), owner)
        queue.restore(2, full, 2)
        assert queue.make_room(limits, 1, [], 0.0, is_stored=True) is has_room


# The room of all queues.


LARGE = 100_000
UNLIMITED = QueueLimits(1 << 30, 1 << 30)


def large(place: int = 0) -> Delivery:
    return single("a", bytes(LARGE)), LIVE, place, None


def fill(queue: MessageQueue, count: int) -> None:
    for _ in range(count):
        queue.append(large())


def put(queue: MessageQueue) -> bool:
    """Let one more message come, as an owner does."""
    item = large()
    dropped: list[Delivery] = []
    if not queue.make_room(UNLIMITED, item[0].envelope.size, dropped, 0.0, is_stored=False):
        return False
    queue.append(item)
    return True


def test_the_largest_gives_up_for_those_that_have_less() -> None:
    size = large()[0].envelope.size
    backlog = Backlog(queue_total_bytes_max=100 * size)
    owners = [Owner() for _ in range(5)]
    queues = [MessageQueue(backlog, owner) for owner in owners]
    for queue, count in zip(queues, (50, 30, 15, 5, 0), strict=True):
        fill(queue, count)
    for _ in range(300):
        assert put(queues[3]) and put(queues[4])
        assert backlog.queued_bytes <= 100 * size
    # Within a factor of four, which is how well they are sorted.
    counts = [len(queue) for queue in queues]
    assert sum(counts) == 100 and min(counts) >= 5 and max(counts) <= 40
    assert sum(len(owner.shed) for owner in owners[:3]) == 95 - sum(counts[:3])


def test_what_only_the_store_has_is_owed_until_it_comes() -> None:
    size = large()[0].envelope.size
    backlog = Backlog(queue_total_bytes_max=10 * size)
    owner = Owner()
    stored = MessageQueue(backlog, owner)
    stored.restore(10, 10 * size, 10)
    other = MessageQueue(backlog, Owner())
    assert put(other) and put(other)
    assert (backlog.owed_bytes, stored.claimed_bytes, owner.pages) == (2 * size, 8 * size, 1)
    stored.load([large(place) for place in range(1, 4)])
    stored.pay_owed(0.0)
    assert [item[2] for item in owner.shed] == [1, 2]
    assert backlog.owed_bytes == 0 and backlog.queued_bytes == 10 * size
    assert put(other)
    assert [item[2] for item in owner.shed] == [1, 2, 3]


def test_who_comes_for_it_meanwhile_pays_by_that() -> None:
    size = large()[0].envelope.size
    backlog = Backlog(queue_total_bytes_max=10 * size)
    stored = MessageQueue(backlog, Owner())
    stored.restore(10, 10 * size, 10)
    assert put(MessageQueue(backlog, Owner()))
    stored.load([large(place) for place in range(1, 11)])
    stored.popleft()
    assert backlog.owed_bytes == 0
    fill(stored, 3)
    assert put(MessageQueue(backlog, Owner()))
    stored.clear()
    assert backlog.owed_bytes == 0 and backlog.queued_bytes == 2 * size
    assert backlog.large.largest() is not stored


def test_a_queue_that_is_gone_is_no_large_queue() -> None:
    backlog = Backlog()
    queue = MessageQueue(backlog, Owner())
    fill(queue, 500)
    assert backlog.large.largest() is queue
    for _ in range(500):
        queue.popleft()
    assert backlog.large.largest() is None


def test_without_old_ones_to_drop_each_leaves_as_much_as_it_takes() -> None:
    size = large()[0].envelope.size
    backlog = Backlog(queue_total_bytes_max=64 * size, queue_full=QueueFull.DROP_NEW)
    counts = []
    for _ in range(5):
        queue = MessageQueue(backlog, Owner())
        while put(queue):
            pass
        counts.append(len(queue))
    assert counts == [32, 16, 8, 4, 2]


def test_memory_that_no_store_relieves_is_shared_as_well() -> None:
    size = large()[0].envelope.size
    backlog = Backlog(memory_bytes_max=20 * size)
    hog, other = MessageQueue(backlog, Owner()), MessageQueue(backlog, Owner())
    fill(hog, 20)
    for _ in range(5):
        assert put(other)
    assert (len(hog), len(other)) == (15, 5) and backlog.memory_bytes == 20 * size
    stored = MessageQueue(backlog, Owner())
    stored.restore(1_000, 1_000 * size, 1_000)  # the largest, and none of it in memory
    assert put(other)
    assert (len(hog), len(other), len(stored)) == (14, 6, 1_000)
