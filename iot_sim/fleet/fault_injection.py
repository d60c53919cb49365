"""Inject a fault into a client, and lift it."""

from __future__ import annotations

from iot_sim.fleet.client import Client
from iot_sim.scenarios import faults
from iot_sim.scenarios.faults import Fault


def inject(client: Client, fault: Fault) -> bool:
    """Inject a fault; return False if the client has no connection to inject it into."""
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
    elif link.is_half_open or link.is_stalled:
        return False  # already disturbed by another fault
    else:
        client.is_fault_injected = True
        if kind == faults.HALF_OPEN:
            counters["half_opens"] += 1
            link.make_half_open()
            engine.after(fault.for_s, lambda: client.end_half_open(link))
        elif kind == faults.STALL:
            counters["stalls"] += 1
            link.stall()
            engine.after(fault.for_s, link.resume)
        else:
            counters["slow_readers"] += 1
            link.limit_read_rate(fault.bytes_per_s)
            engine.after(fault.for_s, lambda: link.limit_read_rate(0))
    return True


def end_faults(client: Client) -> None:
    """End all faults of a client, at the end of the run."""
    client.away_until = 0.0
    link = client.link
    if link is None:
        return
    link.limit_read_rate(0)
    if link.is_half_open:
        client.end_half_open(link)
    elif link.is_stalled:
        link.resume()
