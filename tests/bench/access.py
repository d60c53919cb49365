"""What access rules cost a publisher in the core alone: ours with rules / ours without, QoS 0.

    python tests/bench/access.py

Both are measured in turns in one process, so that a machine that is busy with something else is so
for both; the figure that counts is the ratio of the medians.
"""

from __future__ import annotations

import pathlib
import random
import statistics
import sys
import time
from typing import Final

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))

from mqtt_broker.codec.constants import V5
from mqtt_broker.codec.encode import encode_publish, encode_subscribe
from mqtt_broker.codec.packets import Subscribe, SubscriptionRequest
from mqtt_broker.core import dispatch
from mqtt_broker.core.broker import Broker
from mqtt_broker.core.clients.connection import Connection
from mqtt_broker.core.limits.settings import Settings
from mqtt_broker.security.authenticator import Authenticator, SecurityPolicy
from mqtt_broker.security.protection.audit_log import Audit
from mqtt_broker.security.rules.identity import Identity
from mqtt_broker.security.rules.rule_parser import rule_of
from mqtt_broker.security.rules.ruleset import RuleSet
from tests.bench.core import NOW, join

ROUNDS: Final = 25


def rule_set(count: int) -> RuleSet:
    """So many rules, the one that counts last: of users, of clients and of everybody."""
    rules = [
        rule_of(
            number,
            permit="allow",
            action="all",
            topic=f"fleet/{number}/#",
            users=[f"user{number}"] if number % 3 == 1 else [],
            clients=[f"client{number}"] if number % 3 == 2 else [],
        )
        for number in range(count - 1)
    ]
    return RuleSet([*rules, rule_of(count, permit="allow", action="all", topic="bench/#")])


def publisher(rules: RuleSet | None) -> tuple[Broker, Connection]:
    authenticator = None
    if rules is not None:
        audit = Audit(lambda line: None, lambda: NOW)
        authenticator = Authenticator(SecurityPolicy(None, rules), audit=audit, clock=lambda: NOW)
    broker = Broker(Settings(sys_interval_s=0), now=NOW, rng=random.Random(1), access=authenticator)
    sender, _ = join(broker, "p")
    reader, _ = join(broker, "s")
    dispatch.receive(
        reader, encode_subscribe(V5, Subscribe(1, [SubscriptionRequest("bench/1", 0)])), NOW
    )
    return broker, sender


def cost_us(broker: Broker, sender: Connection, chunk: bytes, count: int) -> float:
    began = time.process_time()
    for _ in range(4_000 // count):
        dispatch.receive(sender, chunk, NOW)
        broker.flush(NOW)
    return (time.process_time() - began) * 1e6 / (4_000 // count * count)


def main() -> None:
    for count in (1_000, 100_000):
        rules = rule_set(count)
        plain, ruled = publisher(None), publisher(rules)
        for burst in (1, 20):
            chunk = encode_publish(V5, "bench/1", b"x" * 64) * burst
            pairs = [
                (cost_us(*plain, chunk, burst), cost_us(*ruled, chunk, burst))
                for _ in range(ROUNDS)
            ]
            without = statistics.median(pair[0] for pair in pairs)
            with_rules = statistics.median(pair[1] for pair in pairs)
            print(
                f"{count:7} rules, bursts of {burst:2}: {without:.3f} us a message without, "
                f"{with_rules:.3f} with: {with_rules / without:.3f}"
            )
        identity = Identity("client5", "user4")
        began = time.process_time()
        for number in range(2_000):
            rules.may_publish(identity, f"bench/{number}")
        print(f"{count:7} rules: {(time.process_time() - began) * 500:.1f} us a first decision")


if __name__ == "__main__":
    main()
