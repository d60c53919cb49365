"""Load tests with Locust: `locust -f iot_sim/locustfile.py --host mqtt://127.0.0.1:1883`.

    Publisher   a device of the scenario: publishes its reports and responds to commands
    Subscriber  subscribes to all devices: end-to-end latency, repeats and wrong order
    Commander   sends commands to devices and waits for the responses
    Churner     connects, publishes, disconnects or drops the connection, resumes its session

`--sim-scenario` selects the scenario. With `,iot_sim/locust_users/shape.py` after the file's name,
the load shapes of the scenario set the number of users. Locust patches the standard library for
gevent, so no other module of the simulator imports this one.
"""

from __future__ import annotations

import itertools
import math
import random
import secrets
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

from locust import User, between, constant, events, task
from locust.argument_parser import LocustArgumentParser
from locust.env import Environment

from iot_sim.devices.device import Publication
from iot_sim.judge import stamps
from iot_sim.judge.filters import disjoint
from iot_sim.locust_users.client import ConnectFailed, Connection
from iot_sim.locust_users.shape import SCENARIO_DEFAULT
from iot_sim.models.catalogue import command as make_command
from iot_sim.scenarios.file import device_of, load
from iot_sim.scenarios.scenario import Fleet, Scenario

RESPONSE_S: Final = 10.0
TASK_S_MAX: Final = 0.2  # the longest wait in a task, so that users stop soon
WORKERS_MAX: Final = 1000
RUN: Final = secrets.token_hex(4)


def add_arguments(parser: LocustArgumentParser, **_: Any) -> None:
    parser.add_argument(
        "--sim-scenario",
        default=SCENARIO_DEFAULT,
        env_var="FLEETMQ_SIM_SCENARIO",
        include_in_web_ui=True,
        help=f"file of a scenario, or name of a built-in one (default {SCENARIO_DEFAULT})",
    )


events.init_command_line_parser.add_listener(add_arguments)  # type: ignore[no-untyped-call]


class SharedState:
    """The state that all users of a process share, created with the first of them."""

    def __init__(self, environment: Environment) -> None:
        options = environment.parsed_options
        name = getattr(options, "sim_scenario", SCENARIO_DEFAULT)
        self.scenario: Scenario = load(name)
        self._worker = max(0, getattr(environment.runner, "worker_index", 0))
        self._numbers = itertools.count()
        count = self.scenario.device_count
        self._stride = next(
            n for n in range(int(count * 0.618) or 1, 2 * count + 1) if math.gcd(n, count) == 1
        )
        self.devices: dict[str, Publisher] = {}

    def next_device(self) -> tuple[Fleet, int]:
        """Return a fleet and a device number: fleets in proportion, each device once overall."""
        count = self.scenario.device_count
        lap, place = divmod(next(self._numbers), count)
        place = place * self._stride % count  # a few users already come from all fleets
        for fleet in self.scenario.fleets:
            if place < fleet.count:
                return fleet, place + fleet.count * (lap * WORKERS_MAX + self._worker)
            place -= fleet.count
        raise AssertionError("a place beyond the last device")

    def filters(self) -> list[str]:
        """Return filters for all devices, including those beyond the scenario's count."""
        fleets = (replace(one, count=max(2, one.count)) for one in self.scenario.fleets)
        return disjoint(text for fleet in fleets for text in fleet.filters())


_shared_states: dict[int, SharedState] = {}


def shared_state(environment: Environment) -> SharedState:
    found = _shared_states.get(id(environment))
    if found is None:
        found = _shared_states[id(environment)] = SharedState(environment)
    return found


class SimUser(User):
    """A user with one MQTT 5 connection."""

    abstract = True

    def __init__(self, environment: Environment) -> None:
        super().__init__(environment)
        self.shared = shared_state(environment)
        self.connection: Connection | None = None

    def open(self, client_id: str, **options: Any) -> Connection:
        self.connection = Connection(self.environment, self.host or "", client_id, **options)
        self.connection.connect()
        return self.connection

    def on_stop(self) -> None:
        if self.connection is not None:
            self.connection.disconnect()


class Publisher(SimUser):
    """A device of the scenario."""

    weight = 20
    wait_time = constant(0)

    def on_start(self) -> None:
        scenario = self.shared.scenario
        self.fleet, number = self.shared.next_device()
        self.device = device_of(self.fleet, number, scenario.seed, time.time())
        self.flows: dict[tuple[str, str, int], tuple[str, Iterator[int]]] = {}
        self.shared.devices[self.device.spec.client_id] = self
        self.connect()

    def on_stop(self) -> None:
        self.shared.devices.pop(self.device.spec.client_id, None)
        self.disconnect()

    def connect(self) -> None:
        """Connect with the device's will, subscribe, and publish its births."""
        connection = self.open(
            self.device.spec.client_id,
            will=self.device.will(time.time()),
            session_expiry_s=self.fleet.session_expiry_s,
            keep_alive_s=self.fleet.keep_alive_s,
        )
        connection.on_message = self.on_message
        for one in self.device.subscriptions():
            connection.subscribe(one.filter, one.qos)
        self.publish(self.device.on_connected(time.time(), session_present=False))

    def disconnect(self) -> None:
        """Publish the device's last messages and disconnect."""
        if self.connection is not None:
            self.publish(self.device.goodbye(time.time()))
            self.connection.settle()
            self.connection.disconnect()
            self.connection = None
            self.device.on_disconnected(time.time())

    @task
    def act(self) -> None:
        """Wait until the device is due, and let it act."""
        due = self.device.next_at()
        wait_s = due - time.time()
        if wait_s > 0:
            time.sleep(min(wait_s, TASK_S_MAX))
        if due <= time.time():
            self.publish(self.device.act(time.time()))
        wants_link = self.device.wants_link(time.time())
        if wants_link and self.connection is None:
            self.connect()
        elif not wants_link:
            self.disconnect()

    def can_receive(self, command: str) -> bool:
        """Tell whether the device can receive a command now."""
        connection = self.connection
        return (
            command in self.fleet.info.commands
            and connection is not None
            and connection.is_subscribed
            and self.device.wants_link(time.time())
        )

    def on_message(self, message: Publication) -> None:
        self.publish(self.device.on_message(message, time.time()))

    def publish(self, publications: list[Publication]) -> None:
        for one in publications:
            if self.connection is None:
                return
            key = (one.topic, one.kind, one.qos)
            flow = self.flows.get(key)
            if flow is None:
                client_id = self.device.spec.client_id
                name = stamps.flow_key(RUN, client_id, one.kind, one.qos, len(self.flows))
                flow = self.flows[key] = (name, itertools.count())
            text = stamps.stamp(flow[0], next(flow[1]), time.time_ns() // 1000, one.payload)
            self.connection.publish(one, text.decode())


class Subscriber(SimUser):
    """A user that subscribes to the topics of all devices."""

    weight = 1
    fixed_count = 1
    wait_time = constant(TASK_S_MAX)

    def on_start(self) -> None:
        self.seen: dict[str, int] = {}
        connection = self.open(f"locust-{RUN}-subscriber-{secrets.token_hex(3)}")
        connection.on_stamped = self.measure
        for text in self.shared.filters():
            connection.subscribe(text, 2)

    def measure(self, text: str, topic: str, qos: int, dup: bool, size: int) -> None:
        """Report a message's latency, as a failure if it is repeated or out of order."""
        parts = stamps.split(text)
        if parts is None:
            return
        key, sequence, sent_us, _, _ = parts
        highest = self.seen.get(key, -1)
        problem: Exception | None = None
        if sequence > highest:
            self.seen[key] = sequence
        elif not (dup and qos == 1):
            problem = AssertionError(f"{text} arrived after {highest}, or twice")
        self.environment.events.request.fire(
            request_type="MQTT",
            name=f"deliver qos {qos}",
            response_time=time.time_ns() / 1e6 - sent_us / 1000,
            response_length=size,
            exception=problem,
            context={"topic": topic},
        )

    @task
    def listen(self) -> None:
        """Do nothing: messages are measured as they arrive."""


class Commander(SimUser):
    """Sends `ping` to one device after the other."""

    weight = 1
    wait_time = between(0.5, 1.5)

    def on_start(self) -> None:
        client_id = f"locust-{RUN}-commander-{secrets.token_hex(3)}"
        self.reply_to = f"sim/{RUN}/replies/{client_id}"
        connection = self.open(client_id)
        connection.subscribe(self.reply_to, 1)

    @task
    def ping(self) -> None:
        reachable = [one for one in self.shared.devices.values() if one.can_receive("ping")]
        if not reachable or self.connection is None:
            return
        target = random.choice(reachable)
        command = make_command(target.fleet.model, target.device.spec, "ping", {})
        command.response_topic = self.reply_to
        command.correlation = secrets.token_bytes(8)
        self.connection.request(command, RESPONSE_S)


class Churner(SimUser):
    """Connects and disconnects, every second time without DISCONNECT; checks its session."""

    weight = 1
    wait_time = between(0.2, 1.0)

    def on_start(self) -> None:
        self.client_id = f"locust-{RUN}-churner-{secrets.token_hex(3)}"
        self.turn = 0
        self.expects_session = False

    @task
    def reconnect(self) -> None:
        self.turn += 1
        try:
            connection = self.open(
                self.client_id, session_expiry_s=300, is_clean=not self.expects_session
            )
        except ConnectFailed:
            self.connection = None
            return  # counted as a failure by `connect`
        connection.check_session(self.expects_session)
        self.expects_session = True
        connection.publish(Publication(f"sim/{RUN}/churn/{self.client_id}", b"here", 1), "")
        connection.settle()
        if self.turn % 2:
            connection.drop()
        else:
            connection.disconnect()
        self.connection = None
