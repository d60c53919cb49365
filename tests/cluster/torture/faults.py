"""What goes wrong in a torture: each fault is a coroutine that ends when all is well again.

One fault at a time happens to a process, while others happen to others, and to the database.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable
from random import Random
from typing import Final, Protocol

from mqtt_broker.cluster.membership import LAPSE_S
from tests.cluster.proxy import DOWN, UP
from tests.cluster.torture.members import Member, until
from tests.sim.cluster.oracles import check

LONG_S: Final = LAPSE_S + 2.0
HIT_S: Final = 5.0  # in which a process is to commit something


class Torture(Protocol):
    """The harness, as faults need it."""

    rng: Random
    members: list[Member]
    is_alone: bool  # a fault happens when all is well, and its end is waited for

    def start(self, member: Member) -> None:
        """Start the process of a number."""

    def is_served_elsewhere(self, member: Member) -> bool:
        """Tell whether another process serves the number of this one."""

    def note(self, measure: str, seconds: float) -> None:
        """Keep a time for the table."""

    async def psql(self, statement: str) -> None:
        """Execute a statement as the operator of the database."""

    async def restart_database(self, away_s: float) -> None:
        """Stop the database at once, and start it again."""


OfMember = Callable[[Torture, Member], Awaitable[None]]
OfDatabase = Callable[[Torture], Awaitable[None]]


async def kill(torture: Torture, member: Member) -> None:
    """SIGKILL; it comes back soon, or when another process serves its number."""
    is_serving = member.number in member.serves
    member.signal(signal.SIGKILL)
    await _be_away(torture, member, "taken over after kill -9", is_serving=is_serving)
    await member.ended()
    await _come_back(torture, member)


async def terminate(torture: Torture, member: Member) -> None:
    """SIGTERM; it comes back soon, or when another process serves its number."""
    is_serving = member.number in member.serves
    member.signal(signal.SIGTERM)
    await _be_away(torture, member, "handed over after SIGTERM", is_serving=is_serving)
    code = await member.ended()
    check("rest", code == 0, f"process {member.number} ended with {code} after SIGTERM")
    await _come_back(torture, member)


async def _be_away(torture: Torture, member: Member, measure: str, *, is_serving: bool) -> None:
    loop = asyncio.get_running_loop()
    began_at = loop.time()
    are_others_well = not any(one.is_troubled for one in torture.members if one is not member)
    is_waited_for = torture.is_alone or torture.rng.random() < 0.5
    if is_waited_for and is_serving and are_others_well:
        name = f"another process for number {member.number}"
        await until(lambda: torture.is_served_elsewhere(member), name)
        torture.note(measure, loop.time() - began_at)
    else:
        await asyncio.sleep(torture.rng.choice([0.0, 0.5, 2.0]))


async def _come_back(torture: Torture, member: Member) -> None:
    torture.start(member)
    await until(lambda: member.is_connected, f"the start of process {member.number}")


async def stop(torture: Torture, member: Member) -> None:
    """SIGSTOP, for longer than the lapse or for less; then SIGCONT."""
    member.signal(signal.SIGSTOP)
    await asyncio.sleep(torture.rng.choice([1.0, LONG_S, LONG_S]))
    member.signal(signal.SIGCONT)


async def cut(torture: Torture, member: Member) -> None:
    """All connections of a process to the database are reset."""
    await asyncio.to_thread(member.proxy.disconnect)


async def refuse(torture: Torture, member: Member) -> None:
    """The database cannot be reached by one process."""
    await asyncio.to_thread(member.proxy.refuse)
    await asyncio.sleep(torture.rng.choice([1.0, LONG_S]))
    await asyncio.to_thread(member.proxy.accept)


async def freeze(torture: Torture, member: Member) -> None:
    """Nothing passes between one process and the database: in one direction, or in both."""
    directions = torture.rng.choice([[UP], [DOWN], [UP, DOWN]])
    await asyncio.to_thread(member.proxy.pause, *directions)
    await asyncio.sleep(torture.rng.choice([1.0, LONG_S]))
    await asyncio.to_thread(member.proxy.resume)


async def lose_commit(torture: Torture, member: Member) -> None:
    """The answer to a COMMIT is lost with the connection."""
    member.is_armed = True
    for _ in range(int(HIT_S / 0.05)):
        if not member.is_armed:
            break
        await asyncio.sleep(0.05)
    member.is_armed = False
    await asyncio.to_thread(member.proxy.disconnect)


async def end_backends(torture: Torture) -> None:
    """The operator ends all connections to the database."""
    await torture.psql(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        "WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'"
    )


async def restart(torture: Torture) -> None:
    """The database crashes, and comes back at once or after a while."""
    await torture.restart_database(torture.rng.choice([0.0, 1.0, LONG_S]))


OF_MEMBERS: Final[dict[str, OfMember]] = {
    "kill -9": kill,
    "SIGTERM": terminate,
    "SIGSTOP": stop,
    "connections cut": cut,
    "database not reached": refuse,
    "network frozen": freeze,
    "answer to COMMIT lost": lose_commit,
}
OF_DATABASE: Final[dict[str, OfDatabase]] = {
    "backends ended": end_backends,
    "PostgreSQL restarted": restart,
}
EACH: Final = ("kill -9", *OF_MEMBERS, *OF_DATABASE)  # kill -9 twice as often
