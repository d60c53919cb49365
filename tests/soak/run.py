"""Fill every limit in bytes of a broker at once by hostile clients, and compare the peak.

    python -m tests.soak.run                          with the defaults
    python -m tests.soak.run --config deploy/hardened.toml
    python -m tests.soak.run --part 16                with a sixteenth of each limit of all clients

It passes when the broker never takes more memory than the limits add up to, no gauge exceeds its
limit, every refusal is counted, and a bystander is served all the time. Where a cgroup v2 can be
made, the broker runs within one that has the documented sum; else its peak is read.
"""

from __future__ import annotations

import argparse
import dataclasses
import resource
import sys
import time
import tomllib
from pathlib import Path
from typing import Any, Final

from mqtt_broker.core.limits.settings import Settings
from tests.soak.hostile import Attacks, Bystander
from tests.soak.shares import memory_shares
from tests.soak.target import Target

SETTLE_S: Final = 15.0  # that everything is full at once
NAMES: Final = {field.name for field in dataclasses.fields(Settings)}
# Limits of all clients, which `--part` divides.
OF_ALL: Final = (
    "connecting_bytes_max",
    "incomplete_bytes_max",
    "aliases_bytes_max",
    "sessions_bytes_max",
    "subscriptions_total_bytes_max",
    "retained_bytes_max",
    "inflight_total_bytes_max",
    "outbox_total_bytes_max",
    "queue_total_bytes_max",
    "queue_memory_bytes_max",
    "journal_bytes_max",
)
GAUGES: Final = {
    "incomplete_bytes": "incomplete_bytes_max",
    "aliases_bytes": "aliases_bytes_max",
    "sessions_bytes": "sessions_bytes_max",
    "subscriptions_bytes": "subscriptions_total_bytes_max",
    "retained_bytes": "retained_bytes_max",
    "inflight_bytes": "inflight_total_bytes_max",
    "unread_bytes": "outbox_total_bytes_max",
    "queued_bytes": "queue_total_bytes_max",
}
# Messages that queues give up are counted until the store has brought them: on disk.
SLACK: Final = {"queued_bytes": 0.05}
REFUSED: Final = (  # metrics that have to count something
    'refused_total{reason="connecting_bytes",what="connect"}',
    'refused_total{reason="incomplete_bytes",what="disconnect"}',
    'refused_total{reason="quota_exceeded",what="disconnect"}',
    'refused_total{reason="sessions_bytes",what="connect"}',
    'refused_total{reason="quota_exceeded",what="subscribe"}',
    'refused_total{reason="quota_exceeded",what="publish"}',
    'messages_dropped_total{reason="queue_full"}',
)
LEFT_OUT: Final = "were too many, and left out"  # lines: then the metrics alone have all
LINES: Final = (  # of the log
    "of a packet that is not complete",
    "Topic Aliases of",
    "refused, Quota exceeded (sessions_bytes)",
    "bytes of subscriptions of",
    "reads slowly",
)


def main() -> int:
    parser = argparse.ArgumentParser(allow_abbrev=False, description="fill every limit at once")
    parser.add_argument("--config", help="take the limits of this file")
    parser.add_argument("--part", type=int, default=1, help="divide the limits of all by this")
    parser.add_argument("--seconds", type=float, default=600, help="by when all must be full")
    parser.add_argument("--command", default="", help="another fleetmq than this tree's")
    args = parser.parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    keys: dict[str, Any] = {}
    if args.config:
        found = tomllib.loads(Path(args.config).read_text())
        keys = {name: found[name] for name in sorted(NAMES & found.keys())}
    base = Settings(**keys)
    if args.part > 1:
        keys |= {name: getattr(base, name) // args.part for name in OF_ALL}
    keys |= {"allow_zero_length_clientid": True, "max_keepalive": 65_535}
    return soak(keys, args.seconds, args.command)


def soak(keys: dict[str, Any], seconds: float, command: str) -> int:
    """Run one soak; return 0 if the limits hold."""
    settings = Settings(**keys)
    documented = sum(share.bytes for share in memory_shares(settings))
    with Target({**keys, "log_level": "info"}, command=command, bytes_max=documented) as target:
        began = time.monotonic()
        before = target.memory_bytes("VmRSS")
        attacks = Attacks(target.port, settings)
        bystander = Bystander(target.port, attacks.stop)
        bystander.start()
        attacks.start()
        highest: dict[str, float] = {}
        full_at = 0.0
        while not target.has_ended:
            time.sleep(1)
            now = time.monotonic()
            for name, value in target.metrics().items():
                highest[name] = max(highest.get(name, 0.0), value)
            if attacks.errors or now - began > seconds:
                break
            if full_at and now - full_at > SETTLE_S:
                break
            if not full_at and all(event.is_set() for event in attacks.filled.values()):
                full_at = now
        problems = list(attacks.errors)
        if target.has_ended:
            problems.append("the broker ended")
        else:
            problems += judge(target, settings, before, highest)
        if bystander.error or not bystander.served:
            problems.append(f"bystander: {bystander.error or 'not served'}")
        problems += [
            f"{name}: not full after {seconds:.0f} s"
            for name, event in attacks.filled.items()
            if not event.is_set()
        ]
        took = time.monotonic() - began
        print(
            f"{took:.0f} s; the bystander was served {bystander.served} times, "
            f"after {bystander.slowest_s:.2f} s at worst"
        )
        log = target.log()
        if LEFT_OUT not in log:
            problems += [f"no line of the log says {one!r}" for one in LINES if one not in log]
        attacks.stop.set()
        if problems:
            print("soak: the end of the log:", *log.splitlines()[-40:], sep="\n", file=sys.stderr)
    for problem in problems:
        print(f"soak: {problem}", file=sys.stderr)
    return int(bool(problems))


def judge(target: Target, settings: Settings, before: int, highest: dict[str, float]) -> list[str]:
    """Print what was used, and return what is wrong."""
    problems = []
    for gauge, limit in GAUGES.items():
        value, most = highest.get(gauge, 0.0), getattr(settings, limit)
        print(f"{gauge:24}{value / 2**20:10.1f} MiB of {most / 2**20:8.1f}")
        if value > most * (1 + SLACK.get(gauge, 0)):
            problems.append(f"{gauge}: {value:,.0f} of {limit} = {most:,}")
        if value < most / 3:
            problems.append(f"{gauge}: only {value:,.0f} of {limit} = {most:,}: not an attack")
    for name in REFUSED:
        print(f"{name:70}{highest.get(name, 0):10.0f}")
        if not highest.get(name):
            problems.append(f"{name}: nothing was counted")
    # Of connections and sessions as many as there were; of limits that nobody used nothing.
    used = dataclasses.replace(
        settings,
        connections_max=int(highest.get("sockets_open", 0)),
        sessions_max=int(highest.get("sessions", 0)),
    )
    shares = [
        share.bytes
        for share in memory_shares(used)
        if share.limit != "stream_bytes_max"
        and "telemetry log" not in share.what
        and "program" not in share.what
    ]
    allowed, peak = sum(shares), target.memory_bytes("VmHWM")
    grown = peak - before
    how = "limited by a cgroup" if target.is_limited else "read from the process"
    print(
        f"peak {peak / 2**20:.0f} MiB ({how}), {grown / 2**20:.0f} above its start; "
        f"the limits allow {allowed / 2**20:.0f}"
    )
    if grown > allowed:
        problems.append(f"memory: {grown:,} bytes above its start, the limits allow {allowed:,}")
    return problems


if __name__ == "__main__":
    sys.exit(main())
