"""Sources are told which of their messages left the window: in order, each source its own."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from sessions.journal.transaction import Delivery
from sessions.messages.message import DeliveryOptions, single
from sessions.sources import NO_SOURCE, SourcedMessage, end_sourced

OPTIONS = DeliveryOptions(1)


class Told:
    """A source that keeps what it is told."""

    def __init__(self, log: list[tuple[Told, list[SourcedMessage], int, float]]) -> None:
        self.log = log

    def on_room(self, now: float) -> None:
        raise AssertionError("nobody said that there is room")

    def on_done(self, messages: list[SourcedMessage], reason: int, now: float) -> None:
        self.log.append((self, messages, reason, now))


@given(st.lists(st.sampled_from(["one", "two", "live"]), max_size=12))
def test_each_run_of_a_source_is_told_once(owners: list[str]) -> None:
    log: list[tuple[Told, list[SourcedMessage], int, float]] = []
    sources = {"one": Told(log), "two": Told(log)}
    envelope = single("t", b"").envelope
    done: list[Delivery] = []
    for offset, owner in enumerate(owners):
        message = (
            single("t", b"")
            if owner == "live"
            else SourcedMessage(envelope, b"", sources[owner], 3, offset, b"p")
        )
        done.append((message, OPTIONS, 0, None))
    end_sourced(done, 0x83, 7.0)
    told = [(source, m.offset) for source, messages, _, _ in log for m in messages]
    assert told == [(sources[o], n) for n, o in enumerate(owners) if o != "live"]
    assert all((reason, now) == (0x83, 7.0) for _, _, reason, now in log)
    # A live message between two of one source does not part them; another source does.
    assert all(one[0] is not two[0] for one, two in itertools.pairwise(log))
    assert all(messages for _, messages, _, _ in log)


def test_a_message_of_a_source_that_has_gone_is_of_nobody() -> None:
    message = SourcedMessage(single("t", b"").envelope, b"x", NO_SOURCE, 1, 9, b"p")
    assert (message.partition, message.offset, message.properties) == (1, 9, b"p")
    NO_SOURCE.on_room(0.0)
    end_sourced([(message, OPTIONS, 0, None)], 0, 0.0)
