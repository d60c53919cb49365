"""Names that resemble each other are different names, in memory and in every store.

A name of a client is never part of a statement, a path or another name; docs/SECURITY.md says of
which brokers that was not so.
"""

from __future__ import annotations

from typing import Final

import pytest

from mqtt_broker.codec.constants import PUBACK
from mqtt_broker.codec.encode import encode_ack
from tests.core.peers import publish
from tests.sessions.store.lives import kept
from tests.sessions.store.test_extremes import Worlds, worlds

__all__ = ["worlds"]

NAMES: Final = [
    # Case, width, ways to write one letter, letters that look alike.
    "a", "A", "\N{FULLWIDTH LATIN SMALL LETTER A}", "\N{CYRILLIC SMALL LETTER A}",
    "\N{LATIN SMALL LETTER E WITH ACUTE}", "e\N{COMBINING ACUTE ACCENT}", "ss",
    "\N{LATIN SMALL LETTER SHARP S}", "i", "\N{LATIN SMALL LETTER DOTLESS I}",
    # Blanks and what nobody sees.
    " ", "a ", " a", "a  ", "a\N{NO-BREAK SPACE}", "a\N{ZERO WIDTH SPACE}", "\N{ZERO WIDTH SPACE}",
    "\N{BYTE ORDER MARK}a", "\N{RIGHT-TO-LEFT OVERRIDE}a",
    # Numbers and words that mean something to somebody.
    "0", "00", "1", "-1", "1e0", "null", "None", "true", "rowid", "sid", "meta", "retained",
    "__proto__", "constructor", "__class__", "__dict__",
    # What a statement, a pattern, a path, a format or a shell would obey.
    "a'", "a''", "a' OR '1'='1", "a\"", "a;DROP TABLE sessions;--", "a%", "a_", "%", "_", "a*",
    "a.", ".", "..", "../a", "a/b", "a\\b", "a:b", "a,b", "a|b", "a\\", "{a}", "%s", "%(a)s",
    "${a}", "$a", "`a`", "[a]", "(a)", "^a", "a-z", "client:a", "group:a", "$share", "a $stream",
    "<a>", "&a",
    # As long as may be in a topic, and different in the last letter alone.
    "x" * 65_532 + "y", "x" * 65_532 + "z", "x" * 65_533,
]  # fmt: skip


def short(name: str) -> str:
    """Shorten a name for people, and keep it another than the rest."""
    return name if len(name) < 60 else f"{name[:9]}...{name[-9:]} ({len(name)})"


@pytest.mark.parametrize("is_folded", [False, True])
def test_names_that_resemble_each_other_stay_apart(worlds: Worlds, is_folded: bool) -> None:
    """Each session, each topic that has a retained message, each filter of one client."""
    world = worlds()
    publisher = kept(world, "publisher", packet_bytes_max=2_000_000)
    topics = [f"r/{name}" for name in NAMES]
    for number, name in enumerate(NAMES):
        kept(world, name, f"q/{number}").drop()
    kept(world, "reader", *topics, packet_bytes_max=2_000_000)
    world.commit()
    for number, topic in enumerate(topics):
        publisher.send(publish(f"q/{number}", b"%d" % number, qos=1, packet_id=1))
        publisher.send(publish(topic, topic.encode(), qos=1, packet_id=2, retain=True))
        world.commit()
    world = worlds.crash(is_folded=is_folded)
    assert not world.broker.runtime.repaired
    for number, name in enumerate(NAMES):
        peer = kept(world, name)
        world.page()
        assert peer.payloads() == [b"%d" % number], short(name)
        peer.drop()
    for topic in topics:
        kept_message = world.broker.retained.get(topic)
        assert kept_message is not None and kept_message.payload == topic.encode()
    reader = kept(world, "reader", packet_bytes_max=2_000_000)
    got: list[str] = []
    for _ in range(9):
        world.page()
        world.commit()
        packets = reader.publishes()
        assert all(packet.payload == packet.topic.encode() for packet in packets)
        got += [short(packet.topic) for packet in packets]
        reader.send(*(encode_ack(PUBACK, packet.packet_id) for packet in packets))
    assert sorted(got) == sorted(map(short, topics))
    subscriptions = world.broker.sessions.get("reader")
    assert subscriptions is not None and len(subscriptions.subscriptions) == len(set(topics))
    for name in NAMES[::2]:
        world.client(name, clean=True).drop()
    world.commit()
    world = worlds.crash(is_folded=is_folded)
    for number, name in enumerate(NAMES):
        assert (world.broker.sessions.get(name) is not None) == (number % 2 == 1), short(name)
