"""Seeds of retained messages in several numbers, and rules taken out."""

from __future__ import annotations

import pytest

import tests.sim.cluster.retained_ablations  # noqa: F401
from tests.sim.cluster.ablation import search
from tests.sim.cluster.core import Core, Message, Reply
from tests.sim.cluster.retained import Published, RetainedWorld, play


class Broker(Core):
    """Keeps the replies to what it takes."""

    def __init__(self) -> None:
        super().__init__(1, lambda *frame: True)
        self.replies: list[Reply] = []

    def publish(self, message: Message, reply: Reply) -> None:
        self.replies.append(reply)


def test_seeds() -> None:
    for seed in range(3):
        play(seed)


def test_a_seed_plays_the_same_again() -> None:
    one, two = play(7), play(7)
    assert (one.events.order, one.taken) == (two.events.order, two.taken)
    assert one.database.rows("retained") == two.database.rows("retained")


def test_a_rule_that_is_taken_out_is_missed() -> None:
    assert search("requests-stay-open", 20) is not None


def test_an_answer_of_an_earlier_connection_comes_to_nobody() -> None:
    world = RetainedWorld(1)
    publisher = world.publishers[0]
    publisher.goal = 1
    brokers = [Broker(), Broker()]
    for broker in [*brokers, brokers[0]]:
        publisher.ask(broker)
    answers = [brokers[0].replies[0], brokers[1].replies[0], brokers[0].replies[1]]
    counts = []
    for answer in answers:
        answer()
        world.events.run_until(world.events.now + 0.001)
        counts.append(len(publisher.unacknowledged))
    assert counts == [1, 1, 0]


def test_what_was_sent_long_ago_may_be_what_was_retained_last() -> None:
    world = RetainedWorld(1)
    one, other = world.publishers[:2]
    removal = Published(Message(one.name, 1, "a/1", 1), 1.0, True, True, 0)
    one.sent.append(removal)
    for value in range(1, 101):
        message = Message(other.name, value, "a/1", 1)
        other.sent.append(Published(message, 10.0 + value, True, False, 0, 10.5 + value))
    assert world.ends_of("a/1") == [removal]


@pytest.mark.slow
@pytest.mark.parametrize("start", range(1_000, 2_000, 100))
def test_many_seeds(start: int) -> None:
    for seed in range(start, start + 100):
        try:
            play(seed)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
