"""Names behind Topic Aliases are counted in bytes, of all connections together."""

from __future__ import annotations

from mqtt_broker.topics.aliases import AliasBytes, InboundAliases, OutboundAliases


def test_inbound_names_hold_to_a_part_of_what_is_free() -> None:
    shared = AliasBytes(1_000_000)
    one, two = InboundAliases(10, shared), InboundAliases(10, shared)
    assert one.put(1, "x" * 50_000) and not one.put(2, "x" * 50_000)
    assert one.put(1, "y" * 50_000), "it replaces one of this size"
    assert one.get(1) == "y" * 50_000 and one.get(2) is None
    assert two.put(1, "small") and shared.bytes == one.bytes + two.bytes > 50_000
    one.close()
    assert shared.bytes == two.bytes < 300 and one.get(1) is None
    two.close()
    assert shared.bytes == 0


def test_outbound_topics_without_room_get_no_alias() -> None:
    shared = AliasBytes(100_000)
    aliases = OutboundAliases(10, shared)
    assert aliases.get("x" * 10_000) == (0, False)
    assert aliases.get("a") == (1, False)
    aliases.learn("a", 1)
    assert aliases.get("a") == (1, True) and aliases.get("b") == (2, False)
    assert shared.bytes == aliases.bytes > 100
    aliases.close()
    assert shared.bytes == 0
