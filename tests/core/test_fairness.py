"""What one client asks for, however much it is, keeps nobody else waiting for long.

Each attack stays within the default limits. While it lasts a bystander sends PINGREQs, and each
has to be answered within a bounded amount of work; see `tests.core.fairness`.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Final

import pytest

from mqtt_broker.codec import properties as prop
from mqtt_broker.codec.constants import PUBACK
from mqtt_broker.codec.encode import PINGREQ_BYTES, encode_ack
from mqtt_broker.codec.packets import Will
from mqtt_broker.codec.properties import NO_PROPERTIES, Properties
from mqtt_broker.core import dispatch
from sessions.messages.message import single
from tests.core.fairness import READ_BYTES, WAIT_CALLS_MAX, Arena, crowd, small
from tests.core.peers import V5, World, disconnect, publish, subscribe, unsubscribe
from tests.core.stored import StoredWorld

pytestmark = pytest.mark.skipif(
    not dispatch.__file__.endswith(".py"), reason="calls of compiled code are not seen"
)

CROWD: Final = 5_000
HOUR_S: Final = 3_600

Attack = Callable[[], Arena]
ATTACKS: Final[dict[str, Attack]] = {}


def attack(name: str) -> Callable[[Attack], Attack]:
    def register(make: Attack) -> Attack:
        ATTACKS[name] = make
        return make

    return register


def ids(first: int, count: int) -> range:
    return range(first, first + count)


def pieces_of(size: int, *packets: bytes) -> bytes:
    """As many of these packets, in turn, as make so many bytes."""
    data = b"".join(packets)
    return data * (size // len(data))


# Messages to very many.


@attack("publishes of all lengths to a crowd")
def all_lengths() -> Arena:
    arena = Arena(World(work=small()))
    crowd(arena.world.broker, arena.world.now, CROWD, subscribe(V5, "t"))
    chunk = b"".join(publish("t", b"x" * (number % 50)) for number in range(READ_BYTES // 30))
    arena.send(arena.world.client("attacker"), chunk)
    return arena


@attack("QoS 1 to a crowd")
def qos_1() -> Arena:
    arena = Arena(World(work=small()))
    crowd(arena.world.broker, arena.world.now, CROWD, subscribe(V5, "t", qos=1))
    packets = [publish("t", b"x" * n, qos=1, packet_id=n) for n in ids(1, 20)]
    arena.send(arena.world.client("attacker"), *packets)
    return arena


@attack("QoS 1 to a crowd that is away")
def qos_1_away() -> Arena:
    arena = Arena(StoredWorld(work=small()))
    world = arena.world
    for member in crowd(world.broker, world.now, CROWD, subscribe(V5, "t", qos=1), expiry=HOUR_S):
        member.lose(world.now)
    packets = [publish("t", b"x" * n, qos=1, packet_id=n) for n in ids(1, 20)]
    arena.send(world.client("attacker"), *packets)
    return arena


@attack("QoS 2 to a crowd")
def qos_2() -> Arena:
    arena = Arena(StoredWorld(work=small()))
    world = arena.world
    crowd(world.broker, world.now, CROWD, subscribe(V5, "t", qos=2), expiry=HOUR_S)
    packets = [publish("t", b"x" * n, qos=2, packet_id=n) for n in ids(1, 20)]
    arena.send(world.client("attacker"), *packets)
    return arena


@attack("a retained message to a crowd")
def retained() -> Arena:
    """QoS 0, to receivers that each want an identifier of their own."""
    arena = Arena(World(work=small()))
    world = arena.world
    for number, member in enumerate(crowd(world.broker, world.now, CROWD)):
        member.receive(subscribe(V5, "t", identifier=1 + number), world.now)
    packets = [publish("t", b"x" * n, retain=True) for n in ids(1, 20)]
    arena.send(world.client("attacker"), *packets)
    return arena


@attack("a will to a crowd")
def will() -> Arena:
    arena = Arena(World(work=small()))
    world = arena.world
    crowd(world.broker, world.now, CROWD, subscribe(V5, "t", qos=1))
    attacker = world.client("attacker", will=Will("t", b"gone", 1))
    packets = [publish("t", b"x" * n, qos=1, packet_id=n) for n in ids(1, 5)]
    arena.send(attacker, *packets, disconnect(reason=4))
    return arena


@attack("$SYS to a crowd")
def sys_topics() -> Arena:
    arena = Arena(World(work=small(), sys_interval_s=10))
    world = arena.world
    for number, member in enumerate(crowd(world.broker, world.now, CROWD)):
        member.receive(subscribe(V5, "$SYS/#", identifier=1 + number), world.now)
    world.broker.flush(world.now)
    world.now += 10
    return arena


@attack("QoS 0 to a large crowd")
def large_crowd() -> Arena:
    """Each message is one append a receiver, and one write."""
    arena = Arena(World(work=small()))
    crowd(arena.world.broker, arena.world.now, 3 * CROWD, subscribe(V5, "t"))
    while arena.world.broker.has_more or arena.world.broker.has_output:
        arena.world.broker.flush(arena.world.now)
    arena.world.client("another").send(publish("t", b"x"))  # all receivers are found once
    arena.send(arena.world.client("attacker"), *[publish("t", b"x" * n) for n in ids(1, 20)])
    return arena


# Packets that are many, or large.


@attack("SUBSCRIBE with many filters")
def subscribes() -> Arena:
    arena = Arena(World(work=small()))
    filters = [f"{number}/+" for number in range(10_000)]
    arena.send(arena.world.client("attacker"), subscribe(V5, *filters))
    return arena


@attack("UNSUBSCRIBE with many filters")
def unsubscribes() -> Arena:
    arena = Arena(World(work=small()))
    filters = [f"{number}/+" for number in range(10_000)]
    attacker = arena.world.client("attacker")
    attacker.send(subscribe(V5, *filters))
    arena.send(attacker, unsubscribe(V5, *filters))
    return arena


@attack("a flood of PINGREQ")
def pings() -> Arena:
    arena = Arena(World(work=small()))
    arena.send(arena.world.client("attacker"), pieces_of(3 * READ_BYTES, PINGREQ_BYTES))
    return arena


@attack("many clients that send much")
def many_clients() -> Arena:
    """Each has its share, and those that the turn does not come to are served first in the next."""
    arena = Arena(World(work=small()))
    chunk = pieces_of(READ_BYTES // 4, PINGREQ_BYTES, publish("a", b"x"), publish("b", b"xy"))
    for number in range(10):
        arena.send(arena.world.client(f"attacker {number}"), chunk)
    return arena


@attack("a flood of SUBSCRIBE and UNSUBSCRIBE")
def changes() -> Arena:
    """Each takes back what is known of the routes of all topics."""
    arena = Arena(World(work=small()))
    packets = subscribe(V5, "#"), unsubscribe(V5, "#")
    arena.send(arena.world.client("attacker"), pieces_of(READ_BYTES, *packets))
    return arena


# Sessions that hold much.


def much(arena: Arena, *, expiry: int = HOUR_S, receive_maximum: int = 65_535) -> None:
    """Leave a session with 10,000 subscriptions and 100,000 messages behind."""
    world = arena.world
    owner = world.client("much", clean=False, expiry=expiry, receive_maximum=receive_maximum)
    owner.subscribe(*[f"{number}/+" for number in range(9_999)])
    owner.subscribe("t", qos=1)
    owner.drop()
    publisher = world.client("publisher")
    burst = [publish("t", b"x", qos=1, packet_id=packet_id) for packet_id in ids(1, 50_000)]
    for _ in range(2):
        publisher.send(*burst)
    publisher.send(disconnect())


@attack("Clean Start over much")
def clean_start() -> Arena:
    arena = Arena(World(work=small()))
    much(arena)
    arena.come_back("much", clean=True)
    return arena


@attack("a session with much expires")
def expiry() -> Arena:
    arena = Arena(World(work=small()))
    much(arena, expiry=60)
    arena.world.now += 61
    return arena


@attack("a session with much resumes")
def resume() -> Arena:
    arena = Arena(World(work=small()))
    much(arena)
    arena.come_back("much", clean=False, expiry=HOUR_S)
    return arena


@attack("acknowledgements of much")
def acknowledgements() -> Arena:
    """Each lets the next of the queue go."""
    arena = Arena(World(work=small(), inflight_max=30_000))
    much(arena)
    owner = arena.world.client("much", clean=False, expiry=HOUR_S)
    arena.send(owner, *[encode_ack(PUBACK, packet_id) for packet_id in ids(1, 30_000)])
    return arena


# What is due at once.


@attack("keep alives of a crowd")
def keep_alives() -> Arena:
    arena = Arena(World(work=small()))
    crowd(arena.world.broker, arena.world.now, CROWD, keep_alive=10)
    arena.world.now += 15
    return arena


@attack("sessions of a crowd expire")
def expiries() -> Arena:
    arena = Arena(World(work=small()))
    world = arena.world
    for member in crowd(world.broker, world.now, CROWD, subscribe(V5, "t"), expiry=10):
        member.lose(world.now)
    world.now += 10
    return arena


@attack("wills of a crowd are due")
def wills() -> Arena:
    arena = Arena(World(work=small()))
    world = arena.world
    delayed = Will("t", b"gone", 1, properties=Properties({prop.WILL_DELAY_INTERVAL: 10}))
    for member in crowd(world.broker, world.now, CROWD, will=delayed, expiry=HOUR_S):
        member.lose(world.now)
    world.now += 10
    return arena


@attack("a sweep of retained messages")
def sweep() -> Arena:
    arena = Arena(World(work=small(), retained_sweep_s=60))
    world = arena.world
    retain(world, 200_000, expiry=30)
    world.now += 60
    return arena


# Retained messages.


def retain(world: World, count: int, *, qos: int = 0, expiry: int = 0) -> None:
    """Leave so many retained messages behind."""
    found = Properties({prop.MESSAGE_EXPIRY_INTERVAL: expiry}) if expiry else NO_PROPERTIES
    for number in range(count):
        message = single(f"r/{number}", b"x", qos=qos, retain=True, properties=found, now=world.now)
        world.broker.retained.put(message, None)


@attack("SUBSCRIBE to many retained messages")
def retained_messages() -> Arena:
    """Twenty times, and one client sees nothing of it for as long as it does not read."""
    arena = Arena(World(work=small()))
    retain(arena.world, 50_000)
    for number in range(20):
        attacker = arena.world.client(f"attacker {number}")
        attacker.is_slow = number == 0
        arena.send(attacker, subscribe(V5, "#"))
    return arena


@attack("SUBSCRIBE to retained messages that are stored for it")
def retained_stored() -> Arena:
    arena = Arena(StoredWorld(work=small()))
    retain(arena.world, 50_000, qos=1)
    for number in range(5):
        attacker = arena.world.client(f"attacker {number}", expiry=HOUR_S)
        arena.send(attacker, subscribe(V5, "#", qos=1))
    return arena


@attack("a search of many retained messages that finds none")
def retained_search() -> Arena:
    arena = Arena(World(work=small()))
    retain(arena.world, 100_000)
    arena.send(arena.world.client("attacker"), subscribe(V5, "+/+/+", "#", "r/+/x", "+/1"))
    return arena


# What is looked up.


@attack("wildcards and new topics")
def wildcards() -> Arena:
    arena = Arena(World(work=small()))
    attacker = arena.world.client("attacker")
    filters = ["/".join(levels) for levels in product("a+", repeat=13)]
    for at in range(0, len(filters), 500):
        attacker.send(subscribe(V5, *filters[at : at + 500]))
    topics = ["/".join(["a"] * 12 + [str(number)]) for number in range(5_000)]
    arena.send(attacker, *[publish(topic) for topic in topics])
    return arena


# Shared subscriptions.


@attack("members that come and go")
def members() -> Arena:
    """The group works out anew who is online for each message behind a change."""
    arena = Arena(World(work=small()))
    world = arena.world
    crowd(world.broker, world.now, CROWD, subscribe(V5, "$share/g/t"))
    change = subscribe(V5, "$share/g/t"), publish("t", b"x"), unsubscribe(V5, "$share/g/t")
    arena.send(world.client("attacker"), pieces_of(READ_BYTES, *change, publish("t", b"x")))
    return arena


@attack("a member that leaves with much")
def leaving_member() -> Arena:
    arena = Arena(World(work=small()))
    world = arena.world
    world.client("member").subscribe("$share/g/t", qos=1)
    attacker = world.client("attacker")
    burst = [publish("t", b"x", qos=1, packet_id=packet_id) for packet_id in ids(1, 30_000)]
    attacker.send(*burst)
    other = world.client("other")
    other.subscribe("$share/g/t", qos=1)
    arena.send(world.peers[1], disconnect())
    return arena


# Seconds each, of calls that are counted one by one.
LONG: Final = (
    "$SYS to a crowd", "a retained message to a crowd", "a sweep of retained messages",
    "QoS 0 to a large crowd", "QoS 1 to a crowd that is away", "QoS 2 to a crowd",
    "publishes of all lengths to a crowd", "a will to a crowd", "wills of a crowd are due",
    "keep alives of a crowd", "sessions of a crowd expire", "members that come and go",
    "Clean Start over much", "a session with much expires", "acknowledgements of much",
    "SUBSCRIBE to many retained messages", "a search of many retained messages that finds none",
    "SUBSCRIBE to retained messages that are stored for it", "a session with much resumes",
    "QoS 1 to a crowd",
)  # fmt: skip


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.slow) if name in LONG else name for name in ATTACKS],
)
def test_a_bystander_is_answered(name: str) -> None:
    arena = ATTACKS[name]()
    arena.run(turns=10)
    assert arena.worst < WAIT_CALLS_MAX
