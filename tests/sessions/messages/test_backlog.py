"""The backlog: the limits of a queue and of all together, and the count of what was dropped."""

from __future__ import annotations

from sessions.messages.backlog import Backlog, QueueLimits
from sessions.messages.message import Message, single


def test_all_queues_together_hold_bytes_up_to_their_limit() -> None:
    backlog = Backlog(queue_total_bytes_max=1_000, queued_bytes=990)
    assert backlog.has_room(10) and not backlog.has_room(11)
    backlog.owed_bytes = 100  # on their way out
    assert backlog.has_room(110) and not backlog.has_room(111)


def test_a_queue_that_drops_nothing_leaves_as_much_as_it_takes() -> None:
    backlog = Backlog(queue_total_bytes_max=1_000, queued_bytes=600)
    assert backlog.leaves_room(300, 100) and not backlog.leaves_room(301, 100)


def test_a_queue_without_limits_of_its_own_has_those_of_the_settings() -> None:
    backlog = Backlog(queue_messages_max=7, queue_bytes_max=70)
    assert backlog.limits == QueueLimits(7, 70)
    assert backlog.limits is backlog.limits  # one object for all queues


def test_memory_is_limited_only_if_the_settings_say_so() -> None:
    assert Backlog(memory_bytes=1 << 40).has_memory(1 << 40)
    backlog = Backlog(memory_bytes_max=100, memory_bytes=60, queued_bytes=500)
    assert backlog.has_memory(40) and not backlog.has_memory(41)


def test_what_is_lost_is_counted_by_its_reason_and_passed_on() -> None:
    class Sink:
        def __init__(self) -> None:
            self.taken: list[tuple[str, Message, str, str]] = []

        def add(self, reason: str, message: Message, client_id: str, why: str = "") -> None:
            self.taken.append((reason, message, client_id, why))

    backlog, message = Backlog(), single("a", b"1")
    backlog.drop_message("expired", message, "one")  # nobody wants dead letters
    sink = backlog.dead_letters = Sink()
    backlog.drop_message("expired", message, "one")
    backlog.drop_message("queue_full", message, "two")
    backlog.drop("queue_full", 5)  # is only counted
    assert backlog.dropped == {"expired": 2, "queue_full": 6}
    assert sink.taken == [("expired", message, "one", ""), ("queue_full", message, "two", "")]


def test_backlogs_do_not_share_their_counts() -> None:
    Backlog().drop("expired")
    assert Backlog().dropped == {}
