"""Inject a fault into a client, and lift it."""

from __future__ import annotations

from iot_sim.fleet.client import Client
from iot_sim.scenarios import faults
from iot_sim.scenarios.faults import Fault


def inject(client: Client, fault: Fault) -> bool:
    """Inject a fault; return False where the client has no connection that could have it."""
    link, kind = client.link, fault.kind
    if not client.is_online or link is None:
        return False
    counters, engine = client.context.counters, client.context.engine
    if kind in (faults.LINK_LOSS, faults.STORM):
        counters["link_losses"] += 1
        client.lose_link(fault.for_s, at_once=kind == faults.STORM)
    elif kind == faults.KILL:
        counters["kills"] += 1
        client.kill(fault.for_s)
    elif kind == faults.TAKEOVER:
        client.take_over()
    elif link.is_deaf or link.is_held:
        return False  # it is out of order already
    else:
        client.is_provoked = True
        if kind == faults.HALF_OPEN:
            counters["half_opens"] += 1
            link.deafen()
            engine.after(fault.for_s, lambda: client.end_half_open(link))
        elif kind == faults.STALL:
            counters["stalls"] += 1
            link.hold()
            engine.after(fault.for_s, link.release)
        else:
            counters["slow_readers"] += 1
            link.slow(fault.bytes_per_s)
            engine.after(fault.for_s, lambda: link.slow(0))
    return True


def lift_all(client: Client) -> None:
    """End every fault of a client when the run is over."""
    client.away_until = 0.0
    link = client.link
    if link is None:
        return
    link.slow(0)
    if link.is_deaf:
        client.end_half_open(link)
    elif link.is_held:
        link.release()
