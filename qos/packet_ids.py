"""Packet identifiers 1..65535: the next ones that are not in use."""

from __future__ import annotations

from collections.abc import Container
from typing import Final

PACKET_ID_MAX: Final = 65535


def allocate(last: int, count: int, busy: Container[int], busy_too: Container[int]) -> list[int]:
    """The `count` free ids that follow `last` round the ring. [MQTT-2.2.1-3], [MQTT-2.2.1-4]

    Going round, instead of taking the lowest, lets a freed id rest as long as possible: a
    late, repeated acknowledgement meets another message under its id only after 65,535
    others. The caller sees to it that fewer than 65,535 are in use.
    """
    ids: list[int] = []
    packet_id = last
    for _ in range(count):
        packet_id = packet_id + 1 if packet_id < PACKET_ID_MAX else 1
        while packet_id in busy or packet_id in busy_too:
            packet_id = packet_id + 1 if packet_id < PACKET_ID_MAX else 1
        ids.append(packet_id)
    return ids
