"""What waits for the store is bounded in every place it can wait."""

from __future__ import annotations

from sessions.journal.journal import MEMORY
from tests.core.peers import V311, publish
from tests.core.stored import StoredWorld
from tests.core.test_durable import kept


class TestBounds:
    """What waits for the store is bounded, and what does not wait for it holds nobody back."""

    def test_what_was_gathered_counts_before_it_is_packed(self) -> None:
        world = StoredWorld(journal_bytes_max=1 << 16)
        publisher = world.client("p")
        for number in range(100):  # QoS 0 and retained: no acknowledgement slows it down
            publisher.send(publish(f"r/{number}", bytes(1000), retain=True))
        was_paused = publisher.is_paused
        world.commit()
        assert was_paused and not publisher.is_paused

    def test_tables_that_fall_behind_hold_publishers_back(self) -> None:
        world = StoredWorld(queue_memory_bytes_max=1 << 20)
        kept(world, "s", "a").drop()
        publisher = world.client("p", V311)
        for packet_id in range(1, 1200):
            data = publish("a", bytes(1000), qos=1, packet_id=packet_id, version=V311)
            publisher.send(data)
            world.commit()
        was_paused = publisher.is_paused
        world.fold()
        assert was_paused and not publisher.is_paused

    def test_messages_that_only_memory_has_hold_nobody_back(self) -> None:
        """They are dropped like any others when there are too many."""
        world = StoredWorld(durabilities=[("raw", MEMORY)], queue_memory_bytes_max=1 << 20)
        kept(world, "s", "raw").drop()
        publisher = world.client("p", V311)
        for packet_id in range(1, 4000):
            data = publish("raw", bytes(1000), qos=1, packet_id=packet_id, version=V311)
            publisher.send(data)
        assert not publisher.is_paused
        assert world.broker.backlog.memory_bytes <= 2 << 20
        assert world.broker.backlog.dropped["queue_full"] > 0

    def test_a_slow_reader_that_is_there_gives_memory_back_too(self) -> None:
        world = StoredWorld(queue_memory_bytes_max=1 << 20, outbox_bytes_max=1024)
        peer = kept(world, "s", "a")
        peer.is_slow = True
        publisher = world.client("p", V311)
        for packet_id in range(1, 900):
            data = publish("a", bytes(4000), qos=1, packet_id=packet_id, version=V311)
            publisher.send(data)
            if not packet_id % 50:
                world.fold()
        world.fold()
        assert world.broker.backlog.memory_bytes <= 1 << 20
        assert not publisher.is_paused
