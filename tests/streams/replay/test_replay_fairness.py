"""What one client asks of streams keeps nobody else waiting for long; see `tests.core.fairness`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import pytest

from mqtt_broker.core import dispatch
from tests.core.fairness import READ_BYTES, WAIT_CALLS_MAX, Arena
from tests.core.peers import disconnect, subscribe, unsubscribe
from tests.streams.replaying import NAME, STREAM, V5, Replays, numbers

pytestmark = pytest.mark.skipif(
    not dispatch.__file__.endswith(".py"), reason="calls of compiled code are not seen"
)

MEMBERS: Final = [f"$share/g/{STREAM}/@{2000 + n}-01-01T00:00:00Z" for n in range(900)]


def members() -> bytes:
    """Come all, and go."""
    return subscribe(V5, *MEMBERS, qos=1) + unsubscribe(V5, *MEMBERS)


ATTACKS: Final[dict[str, Callable[[], bytes]]] = {
    "many in one packet": lambda: subscribe(
        V5, *[f"{STREAM}/@{2000 + n}-01-01T00:00:00Z" for n in range(5_000)]
    ),
    "the same again and again": lambda: subscribe(V5, STREAM, qos=1) * 5_000,
    "from the beginning again and again": lambda: subscribe(V5, f"{STREAM}/@earliest") * 5_000,
    "from a time again and again": lambda: subscribe(V5, f"{STREAM}/@2000-01-01T00:00:00Z") * 5_000,
    "many members of a group": lambda: members() * 8,
    "there and gone": lambda: (subscribe(V5, STREAM) + unsubscribe(V5, STREAM)) * 5_000,
}


@pytest.mark.parametrize("name", ATTACKS)
def test_a_bystander_is_answered(world: Replays, name: str) -> None:
    world.put(*numbers(0, 5))
    world.holds_reads = True  # they are the threads' work
    arena = Arena(world)
    data = ATTACKS[name]()
    assert len(data) > READ_BYTES // 4
    arena.send(world.client("attacker"), data)
    arena.run(turns=10)
    assert arena.worst < WAIT_CALLS_MAX


def test_a_crowd_of_members_that_is_lost_at_once(world: Replays) -> None:
    """The partitions are assigned anew for all of them together."""
    world.put(*numbers(0, 5))
    world.holds_reads = True
    arena = Arena(world)
    crowd = [world.client(f"c{n}") for n in range(400)]
    for peer in crowd:
        peer.send(subscribe(V5, f"$share/g/{STREAM}", qos=1))
    for peer in crowd:
        arena.send(peer, disconnect())
    arena.run(turns=5)
    assert arena.worst < WAIT_CALLS_MAX
    assert not world.replay.groups(NAME)[0].members
