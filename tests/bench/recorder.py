"""How far back the recorder sees, and how long `why` takes with a full ring.

    python -m tests.bench.recorder [--quick]

prints the tables of docs/WHY.md. For the reach each topic has a publisher of its own, and one
client gets everything at QoS 1 and acknowledges it. Devices publish in turn, so that each message
is a call of its own up to the rate of its topic.

For `why` the ring of 64 MB is filled by a fleet: 10,000 clients publish on topics of their own,
read commands, are away now and then, and acknowledge. Then questions are asked, as the
broker does: a step in a turn of its loop. `longest step` is what a client waits for it at most.
"""

from __future__ import annotations

import random
import sys
import time
from typing import Final, NamedTuple

from mqtt_broker.recorder import kinds
from mqtt_broker.recorder.client_view import ClientView, SubscriptionView
from mqtt_broker.recorder.inquiry import Inquiry
from mqtt_broker.recorder.message_ids import parse_name
from mqtt_broker.recorder.message_inquiry import MessageInquiry
from mqtt_broker.recorder.recorder import Recorder
from mqtt_broker.recorder.runs import ClientRuns, TopicRuns
from mqtt_broker.recorder.segments import Receivers

BYTES: Final = 64 << 20
CASES: Final = (
    (1_000, 1_000), (1_000, 10_000), (10_000, 1_000), (10_000, 10_000), (100_000, 1_000),
    (100_000, 10_000),
)  # fmt: skip
CLIENTS: Final = 10_000
RUNS: Final = 7  # of each question, of which the shortest counts
START: Final = 1_700_000_000.0


def reach_s(rate: int, topics: int, size: int = BYTES) -> float:
    """Return how many seconds a recorder of so many bytes sees back to."""
    recorder = Recorder(size, 0.0)
    runs = [TopicRuns(f"site/{n % 40}/device/{n}/telemetry") for n in range(topics)]
    publishers = [ClientRuns(f"device-{n:06d}") for n in range(topics)]
    collector = ClientRuns("collector")
    burst = max(1, rate // topics // 2)  # messages of a topic that come together
    now, turn = 0.0, 0
    while not recorder.traffic.has_lost:
        for _ in range(1_000):
            topic = turn % topics
            recorder.published(runs[topic], publishers[topic], burst, 1, 64 * burst, now)
            recorder.acknowledged(collector, burst, now, now, now)
            turn += 1
            now += burst / rate
    return now - recorder.traffic.begins_ms / 1000


class _Route(TopicRuns):
    """A topic with receivers."""

    __slots__ = ("_receivers",)

    def __init__(self, topic: str, receivers: Receivers) -> None:
        super().__init__(topic)
        self._receivers = receivers

    def receivers(self) -> Receivers:
        """Describe who gets what is published here."""
        return self._receivers


def filled_by_a_fleet(size: int = BYTES, clients: int = CLIENTS) -> tuple[Recorder, float]:
    """Return a recorder that has begun to overwrite, and the time."""
    rng = random.Random(1)
    now = START
    recorder = Recorder(size, now)
    runs = [ClientRuns(_client_id(n)) for n in range(clients)]
    collectors = (ClientRuns("collector"), ClientRuns("archive"))
    everybody = tuple(one.client_id for one in collectors)
    telemetry = [
        _Route(
            f"site/{n % 40}/device/{n}/telemetry",
            Receivers(everybody, ("site/#",) * 2, b"\1\1", ()),
        )
        for n in range(clients)
    ]
    commands = [
        _Route(_command(n), Receivers((_client_id(n),), (f"site/+/device/{n}/cmd",), b"\1", ()))
        for n in range(clients)
    ]
    app = ClientRuns("app")
    while not recorder.traffic.has_lost:
        for _ in range(10_000):
            now += 0.000_1
            n = rng.randrange(clients)
            recorder.published(telemetry[n], runs[n], 1, 1, 64, now)
            for collector in collectors:
                recorder.acknowledged(collector, 1, now, now, now)
            if rng.random() < 0.1:
                _command_to(recorder, runs[n], commands[n], app, rng, now)
    return recorder, now


def _command_to(
    recorder: Recorder, device: ClientRuns, route: _Route, app: ClientRuns, rng: random.Random,
    now: float,
) -> None:  # fmt: skip
    recorder.published(route, app, 1, 1, 20, now)
    chance = rng.random()
    if chance < 0.1:
        recorder.queued(device, kinds.AWAY, route.topic, 1, now, now, is_first=True)
        recorder.sent(device, 1, now - 5.0, now - 5.0, now)
    elif chance < 0.12:
        recorder.dropped(device, "queue_full", route.topic, "app", 1, now, now)
        return
    elif chance < 0.13:
        recorder.disconnected(device, 0, "192.0.2.1", "keep alive timeout", now)
        recorder.connected(device, "192.0.2.1", "MQTT 5", now)
    recorder.acknowledged(device, 1, now, now, now)


def _client_id(n: int) -> str:
    return f"device-{n:06d}"


def _command(n: int) -> str:
    return f"site/{n % 40}/device/{n}/cmd"


class Asked(NamedTuple):
    """What a question took."""

    seconds: float
    longest_step_s: float
    steps: int
    sentences: int


def ask(question: Inquiry) -> Asked:
    """Take all steps of a question; the times are of the CPU, so that others do not count."""
    began = last = time.thread_time()
    longest, steps = 0.0, 0
    for _ in question.steps():
        steps += 1
        at = time.thread_time()
        longest, last = max(longest, at - last), at
    ended = time.thread_time()
    assert question.answer is not None
    found = len(question.answer.sentences)
    return Asked(ended - began, max(longest, ended - last), steps, found)


def questions(recorder: Recorder, now: float) -> dict[str, Inquiry]:
    """Return the questions that are timed."""
    device, collector = _client_id(4_321), "collector"
    own, every = _command(4_321), "site/#"
    now_ms = int(now * 1000)

    def question(client_id: str, text: str, topic: str) -> Inquiry:
        view = ClientView(
            client_id,
            is_known=True,
            is_online=True,
            subscriptions=[SubscriptionView(text, 1, no_local=False)],
        )
        return Inquiry(recorder, lambda about: view, topic, 0, now_ms)

    filter_of_device = "site/+/device/4321/cmd"
    view = ClientView(device, is_known=True)
    message = parse_name(f"app@{now - 1:.2f}", now)
    return {
        "a device and its topic": question(device, filter_of_device, own),
        "a device, any topic": question(device, filter_of_device, ""),
        "a device and a filter": question(device, filter_of_device, "site/+/device/4321/#"),
        "who gets everything, one topic": question(collector, every, "site/1/device/1/telemetry"),
        "who gets everything, any topic": question(collector, every, ""),
        "who gets everything, a filter": question(collector, every, "site/7/#"),
        "a device and a topic that nobody uses": question(device, filter_of_device, "no/such"),
        "one message, by publisher and time": MessageInquiry(
            recorder, lambda about: view, "", message, now_ms
        ),
    }


def main() -> None:
    sys.stdout.write("| Messages a second | Topics | Sees back |\n|---|---|---|\n")
    size = BYTES // 16 if "--quick" in sys.argv else BYTES
    for rate, topics in CASES:
        found = reach_s(rate, topics, size)
        sys.stdout.write(f"| {rate:,} | {topics:,} | {found:,.0f} s |\n")
        sys.stdout.flush()
    recorder, now = filled_by_a_fleet(size)
    sys.stdout.write(
        f"\n{recorder.bytes / 1e6:,.0f} MB of {CLIENTS:,} clients and {2 * CLIENTS:,} topics, "
        f"{now - recorder.traffic.begins_ms / 1000:,.0f} s\n\n"
        "| Question | Takes | Longest step | Steps | Sentences |\n|---|---|---|---|---|\n"
    )
    runs = [questions(recorder, now) for _ in range(RUNS)]
    for name in runs[0]:
        asked = [ask(one[name]) for one in runs]
        took = min(asked)
        longest_s = min(one.longest_step_s for one in asked)
        sys.stdout.write(
            f"| {name} | {took.seconds * 1000:,.1f} ms | {longest_s * 1000:,.1f} ms | "
            f"{took.steps} | {took.sentences} |\n"
        )


if __name__ == "__main__":
    main()
