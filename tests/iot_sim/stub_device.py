"""A device of the tests' own: it counts, and says what it is told to say.

Scenarios name it as `tests.iot_sim.stub_device:Stub`.
"""

from __future__ import annotations

import math

from iot_sim.devices.device import BIRTH, DEATH, RESPONSE, Publication, Spec, Subscription
from iot_sim.devices.model_info import Command
from iot_sim.models.catalogue import ModelInfo, Option


class Stub:
    """Says a number at every interval."""

    INFO: ModelInfo

    def __init__(self, spec: Spec) -> None:
        self.spec = spec
        self.count = 0
        self._due = spec.started_at + spec.interval_s * (spec.seed % 97) / 97
        self._interval_s = spec.interval_s
        self._connected = False
        self.kept: list[Publication] = []

    def will(self, now: float) -> Publication | None:
        if not self.spec.options["will"]:
            return None
        return Publication(self.spec.topic + "/state", b"lost", 1, kind=DEATH)

    def will_delay_s(self) -> int:
        delay: int = self.spec.options["will_delay_s"]
        return delay

    def subscriptions(self) -> list[Subscription]:
        return [Subscription(self.spec.topic + "/cmd/+")]

    def on_connected(self, now: float, *, session_present: bool) -> list[Publication]:
        self._connected = True
        kept, self.kept = self.kept, []
        return [Publication(self.spec.topic + "/state", b"here", 1, True, BIRTH), *kept]

    def on_disconnected(self, now: float) -> None:
        self._connected = False

    def on_message(self, message: Publication, now: float) -> list[Publication]:
        if message.payload == b"fail":
            raise ValueError("told to fail")
        return [
            Publication(
                message.response_topic, b"done", 1, kind=RESPONSE, correlation=message.correlation
            )
        ]

    def next_at(self) -> float:
        return self._due

    def act(self, now: float) -> list[Publication]:
        if now < self._due:
            return []
        self._due += self._interval_s
        self.count += 1
        message = Publication(
            self.spec.topic + "/telemetry", b'{"n":%d}' % self.count, self.spec.qos
        )
        if self._connected:
            return [message]
        self.kept.append(message)
        return []

    def pace(self, factor: float, now: float) -> None:
        self._interval_s = self.spec.interval_s / factor if factor else math.inf
        self._due = min(self._due, now + self._interval_s)

    def wants_link(self, now: float) -> bool:
        return True

    def goodbye(self, now: float) -> list[Publication]:
        return [Publication(self.spec.topic + "/state", b"bye", 1, True, DEATH)]


def _order(spec: Spec, what: str, args: object) -> Publication:
    return Publication(f"{spec.topic}/cmd/{what}", what.encode(), 1)


Stub.INFO = ModelInfo(
    name="stub",
    summary="counts",
    build=Stub,
    options=(
        Option("will", "bool", True, "has a will"),
        Option("will_delay_s", "int", 0, "its delay", 0, 3600),
    ),
    payloads=("json",),
    documents={"telemetry": ()},
    commands={"ping": Command("answers"), "fail": Command("makes it raise")},
    published=lambda spec: (spec.topic + "/#",),
    make_command=_order,
)
