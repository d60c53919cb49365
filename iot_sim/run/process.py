"""Run a share of the fleets in one process, and keep its ledger.

1. Observers and commander connect and subscribe.
2. Devices connect at the scenario's rate, act when they are due, and get faults and commands.
3. At the end faults are ended, and devices finish their handshakes and disconnect. Once all
   acknowledged messages have arrived, the observers disconnect.
"""

from __future__ import annotations

import heapq
import itertools
import random
import time
import zlib
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from iot_sim.fleet.context import ClientOptions, FleetContext
from iot_sim.fleet.device_runner import DeviceRunner
from iot_sim.fleet.engine import Clock, Engine, Target
from iot_sim.fleet.fault_injection import end_faults, inject
from iot_sim.fleet.observers import BACKOFF_MAX_S, BACKOFF_MIN_S, Commander, Observer
from iot_sim.fleet.retained import RetainedCleaner
from iot_sim.judge.filters import FilterSet, disjoint
from iot_sim.judge.histogram import Histogram
from iot_sim.judge.ledger import Ledger
from iot_sim.judge.outcome import Outcome, Sample
from iot_sim.scenarios import faults
from iot_sim.scenarios.faults import PlannedFault, plan
from iot_sim.scenarios.file import device_of
from iot_sim.scenarios.scenario import Command, Fleet, Scenario

START_LATE_S: Final = 0.5  # how much later than the common time a share may start
READY_S: Final = 15.0  # timeout of the observers' connections and subscriptions
ACTS_A_TURN: Final = 64  # keeps a turn short, so that arrivals are timed correctly
LOAD_CHECK_S: Final = 0.25  # interval at which the load shapes are applied
FILTERS_A_CLIENT: Final = 500  # brokers limit the subscriptions of a client
RATE_STEP: Final = 0.05  # smaller changes of the rate are not passed on to the devices
RATE_CHANGES_A_TURN: Final = 256
CLEAR_S: Final = 10.0  # maximum time to clear what was retained
QUIET_S: Final = 1.0  # QoS 0 messages that are missing after so long without arrivals are lost
DISCONNECTS_A_TURN: Final = 64
DRAIN_POLL_S: Final = 0.05


class NotReady(Exception):
    """The simulator's own clients could not connect or subscribe; nothing was published."""


@dataclass(frozen=True, slots=True)
class WorkerShare:
    """The share of the devices that one process runs."""

    index: int = 0
    count: int = 1

    def numbers(self, count: int) -> range:
        return range(self.index, count, self.count)


ALL_DEVICES: Final = WorkerShare()


class ProcessRun:
    """A run of a scenario in one process."""

    def __init__(
        self,
        scenario: Scenario,
        target: Target,
        address: tuple[int, Any],
        *,
        run_id: str,
        part: WorkerShare = ALL_DEVICES,
        clock: Clock | None = None,
        on_sample: Callable[[Sample], None] | None = None,
        start_at: float | None = None,
    ) -> None:
        self.scenario = scenario
        self.speed = scenario.speed
        self.part = part
        self._run_id = run_id
        self._on_sample = on_sample
        self._start_at = start_at  # in seconds since 1970; None: as soon as possible
        engine = Engine(clock)
        self.context = FleetContext(
            engine,
            target,
            address,
            Ledger(run_id, scenario.late_after_ms),
            random.Random(f"{scenario.seed}/{part.index}"),
        )
        self.schedule_lag = Histogram()
        self.reply_root = f"sim/{run_id}/replies"
        # Devices that connect at the end to get their queued messages.
        self.collecting: set[DeviceRunner] = set()
        self._started_at = engine.clock.now()
        self._cpu_before = _cpu_s()
        self._heap: list[tuple[float, int, DeviceRunner, int]] = []
        self._order = itertools.count()
        self._waiting: deque[DeviceRunner] = deque()  # devices that want to connect
        self._connect_tokens = 0.0
        self._tokens_at = 0.0
        self._runners: dict[str, list[DeviceRunner]] = {}
        self._targets: dict[str, int] = {}
        self._rate_factors: dict[str, float] = {}
        # Devices that are still to get a new rate.
        self._rate_queue: deque[tuple[DeviceRunner, float]] = deque()
        self._filters: list[str] = []
        self._observed_filters = FilterSet(())
        self._observers: list[Observer] = []
        self._commander: Commander | None = None
        self._faulty = 0
        self._second = 0
        self._before = Sample(0)
        self._buckets: dict[int, int] = {}
        self.is_running = False
        self._has_begun = False
        self.is_interrupted = False
        self.is_aborted = False
        self._create_clients()

    # Creating the clients.

    def _create_clients(self) -> None:
        scenario = self.scenario
        for fleet in scenario.fleets:
            self._runners[fleet.name] = [
                DeviceRunner(
                    self, fleet, n, device_of(fleet, n, scenario.seed, scenario.started_at)
                )
                for n in self.part.numbers(fleet.count)
            ]
            self._targets[fleet.name] = 0
            self._rate_factors[fleet.name] = 1.0
        self._filters = self._filters_to_observe()
        self._observed_filters = FilterSet(self._filters)
        settings = scenario.observers
        count = max(settings.connections, -(-len(self._filters) // FILTERS_A_CLIENT))
        count = count if self._filters else 0
        for place in range(count):
            if settings.shared:
                filters = [f"$share/{settings.shared}/{text}" for text in self._filters]
            else:
                filters = self._filters[place::count]
            if filters:
                options = self._own_options(
                    f"observer-{place}", settings.version, settings.receive_maximum
                )
                self._observers.append(
                    Observer(self.context, options, filters, self._check_observers)
                )
        if scenario.commands:
            options = self._own_options("commander", 5, settings.receive_maximum)
            self._commander = Commander(self.context, options, self.reply_root)
        if not settings.judges_order:
            self.context.ledger.judges_order = False

    def _check_observers(self) -> None:
        self.context.are_observers_online = all(one.client.is_online for one in self._observers)

    def _own_options(self, role: str, version: int, receive_maximum: int) -> ClientOptions:
        return ClientOptions(
            f"sim-{self._run_id}-{role}-{self.part.index}",
            version,
            session_expiry_s=self.scenario.observers.session_expiry_s,
            receive_maximum=receive_maximum,
            backoff_min_s=BACKOFF_MIN_S,
            backoff_max_s=BACKOFF_MAX_S,
        )

    def _filters_to_observe(self) -> list[str]:
        """Return the filters of this process's observers; no two of them overlap."""
        fleets = [fleet for fleet in self.scenario.fleets if fleet.is_observed]
        if self.part.count == 1:
            return disjoint(text for fleet in fleets for text in fleet.filters())
        # Of several processes each observes the topics of its own devices.
        found: dict[str, None] = {}
        for fleet in fleets:
            for runner in self._runners[fleet.name]:
                spec = runner.device.spec
                published = fleet.info.published(spec)
                if all(text.startswith(spec.topic + "/") for text in published):
                    published = (spec.topic + "/#",)  # one subscription instead of several
                found |= dict.fromkeys(published)
        roots = {text[:-2] for text in found if text.endswith("/#")}
        return [text for text in found if not _has_root(text, roots)]

    def is_observed(self, topic: str) -> bool:
        return self._observed_filters.matches(topic)

    # Time.

    def elapsed(self) -> float:
        return self.context.engine.clock.now() - self._started_at

    def sim_now(self) -> float:
        """Return the simulated wall-clock time; it starts to run with the devices."""
        return self.scenario.started_at + (self.elapsed() * self.speed if self._has_begun else 0.0)

    def schedule(self, due: float, runner: DeviceRunner) -> None:
        heapq.heappush(self._heap, (due, next(self._order), runner, runner.version))

    def want_connection(self, runner: DeviceRunner) -> None:
        if not runner.is_queued:
            runner.is_queued = True
            self._waiting.append(runner)

    # The run.

    def run(self) -> Outcome:
        """Run the scenario, from the first connection to the last. Raises NotReady."""
        try:
            self._prepare()
            if self._start_at is not None:
                self._await_start(self._start_at)
            self._start()
            self._run_schedule()
            elapsed = self.elapsed()
            drained = self._finish()
            return self._outcome(elapsed, drained)
        finally:
            self.context.engine.close()

    def interrupt(self) -> None:
        """End the run early but in order; when called again, at once."""
        self.is_aborted = self.is_interrupted
        self.is_interrupted = True

    def _own_clients(self) -> list[Observer | Commander]:
        return [*self._observers, *([self._commander] if self._commander else [])]

    def _prepare(self) -> None:
        own = self._own_clients()
        for one in own:
            one.client.connect()
        clock = self.context.engine.clock
        deadline = clock.now() + READY_S
        while not all(one.is_ready for one in own):
            self.context.engine.turn(clock.now() + 0.2)
            refused = self.context.counters["unsubscribed"]
            failed = self.context.counters["connect_failures"]
            if refused or failed or clock.now() > deadline or self.is_interrupted:
                why = self.context.errors[0] if self.context.errors else "no answer to SUBSCRIBE"
                raise NotReady("interrupted" if self.is_interrupted else why)

    def _await_start(self, start_at: float) -> None:
        """Wait until it is time to start, with all other shares. Raises NotReady."""
        clock = self.context.engine.clock
        start = start_at - clock.base_us / 1e6
        late_s = clock.now() - start
        if late_s > START_LATE_S:
            raise NotReady(f"they were ready {late_s:.1f} s after the time of --start-at")
        while not self.is_interrupted and clock.now() < start:
            self.context.engine.turn(min(start, clock.now() + 0.2))

    def _start(self) -> None:
        engine = self.context.engine
        self._started_at = self._tokens_at = engine.clock.now()
        self.is_running = self._has_begun = True
        for place, fault in enumerate(self.scenario.faults):
            for name in self._fleets_of(fault.fleet):
                seed = self._seed("fault", place, name)
                for planned in plan(fault, self._size(name), self.scenario.duration_s, seed):
                    if (
                        planned.number % self.part.count == self.part.index
                        or name == faults.OBSERVERS
                    ):
                        engine.at(
                            self._started_at + planned.at_s,
                            partial(self._inject_fault, name, planned),
                        )
        for place, command in enumerate(self.scenario.commands):
            drawn = command.as_fault()
            seed = self._seed("command", place, command.fleet)
            count = self._size(command.fleet)
            for planned in plan(drawn, count, self.scenario.duration_s, seed):
                if planned.number % self.part.count == self.part.index:
                    engine.at(
                        self._started_at + planned.at_s,
                        partial(self._send_command, command, planned),
                    )
        self._apply_load()
        engine.after(1.0, self._sample)

    def _seed(self, what: str, place: int, name: str) -> int:
        return zlib.crc32(f"{self.scenario.seed}/{what}/{place}/{name}".encode())

    def _fleets_of(self, fleet: str) -> list[str]:
        return [fleet] if fleet else [one.name for one in self.scenario.fleets]

    def _fleet(self, name: str) -> Fleet:
        return next(fleet for fleet in self.scenario.fleets if fleet.name == name)

    def _size(self, name: str) -> int:
        return len(self._observers) if name == faults.OBSERVERS else self._fleet(name).count

    def _run_schedule(self) -> None:
        engine = self.context.engine
        end = self._started_at + self.scenario.duration_s
        while not self.is_interrupted and engine.clock.now() < end:
            self._act_due()
            until = min(end, self._next_due())
            if self._waiting:
                until = min(until, engine.clock.now() + 0.01)
            engine.turn(until)
        self.is_running = False

    def _next_due(self) -> float:
        if not self._heap:
            return float("inf")
        return self._started_at + (self._heap[0][0] - self.scenario.started_at) / self.speed

    def _act_due(self) -> None:
        """Let due devices act, connect waiting devices, and apply new rates."""
        heap = self._heap
        now = self.sim_now()
        left = ACTS_A_TURN
        while heap and heap[0][0] <= now and left:
            due, _, runner, version = heapq.heappop(heap)
            if version == runner.version:
                runner.act(due, now)
                left -= 1
        if self._waiting:
            self._connect_some()
        for _ in range(min(RATE_CHANGES_A_TURN, len(self._rate_queue))):
            runner, factor = self._rate_queue.popleft()
            runner.pace(factor)

    def _connect_some(self) -> None:
        now = self.context.engine.clock.now()
        rate = self.scenario.connect_rate_per_s / self.part.count
        self._connect_tokens = min(
            max(1.0, rate / 10), self._connect_tokens + (now - self._tokens_at) * rate
        )
        self._tokens_at = now
        while self._waiting and self._connect_tokens >= 1:
            runner = self._waiting.popleft()
            runner.is_queued = False
            if runner.wants_link():
                self._connect_tokens -= 1
                runner.client.connect()

    # The load.

    def _apply_load(self) -> None:
        if not self.is_running:
            return
        t = self.elapsed()
        for fleet in self.scenario.fleets:
            runners = self._runners[fleet.name]
            wanted = round(len(runners) * min(1.0, fleet.factor("devices", t)))
            started = self._targets[fleet.name]
            for runner in runners[started:wanted]:
                runner.start()
            for runner in runners[wanted:started]:
                runner.stop(for_good=False)
            self._targets[fleet.name] = wanted
            factor = fleet.factor("rate", t)
            before = self._rate_factors[fleet.name]
            if abs(factor - before) > RATE_STEP * max(factor, before):
                self._rate_factors[fleet.name] = factor
                self._rate_queue.extend((runner, factor) for runner in runners)
        self.context.engine.after(LOAD_CHECK_S, self._apply_load)

    # Faults and commands.

    def _inject_fault(self, name: str, planned: PlannedFault) -> None:
        if not self.is_running:
            return
        if name == faults.OBSERVERS:
            client = self._observers[planned.number].client
        else:
            client = self._runner(name, planned.number).client
        if inject(client, planned.fault) and planned.fault.for_s:
            self._faulty += 1
            self.context.engine.after(planned.fault.for_s, self._end_fault)

    def _end_fault(self) -> None:
        self._faulty -= 1

    def _runner(self, name: str, number: int) -> DeviceRunner:
        return self._runners[name][number // self.part.count]

    def _send_command(self, command: Command, planned: PlannedFault) -> None:
        if not self.is_running or self._commander is None:
            return
        runner = self._runner(command.fleet, planned.number)
        fleet = runner.fleet
        forgets = any(
            fault.kind == faults.KILL and fault.fleet in ("", fleet.name)
            for fault in self.scenario.faults
        )
        is_kept = runner.client.has_session and not forgets
        self._commander.send(runner, command, is_kept=is_kept)

    # Figures while it runs.

    def _sample(self) -> None:
        ledger = self.context.ledger
        tallies = ledger.tallies.values()
        latency = Histogram()
        for tally in tallies:
            latency.add(tally.latency)
        now = Sample(
            self._second,
            sum(tally.sent for tally in tallies),
            sum(tally.acknowledged for tally in tallies),
            sum(tally.delivered for tally in tallies),
            self.context.online - sum(one.client.is_online for one in self._own_clients()),
            sum(self._targets.values()),
            self._faulty,
            sum(self.context.counters[name] for name in ERRORS),
        )
        before = self._before
        sample = Sample(
            self._second,
            now.sent - before.sent,
            now.acknowledged - before.acknowledged,
            now.delivered - before.delivered,
            now.connected,
            now.wanted,
            now.faulty,
            now.errors - before.errors,
            latency.since(self._buckets),
        )
        self._before = now
        self._buckets = latency.buckets
        self._second += 1
        if self._on_sample is not None:
            self._on_sample(sample)
        self.context.engine.at(self._started_at + self._second + 1, self._sample)

    # The end.

    def _finish(self) -> bool:
        """End the run in order; return whether every acknowledged message has arrived."""
        clock = self.context.engine.clock
        runners = [runner for fleet in self._runners.values() for runner in fleet]
        deadline = clock.now() + (0.5 if self.is_aborted else self.scenario.drain_s)
        self._waiting.clear()
        for runner in runners:
            end_faults(runner.client)
            runner.version += 1  # its entries in the schedule become stale
        for observer in self._observers:
            end_faults(observer.client)
        self._collect(runners)
        while self._is_unsettled(runners) and clock.now() < deadline and not self.is_aborted:
            self.context.engine.turn(clock.now() + DRAIN_POLL_S)
        self._disconnect_all(runners, deadline)
        drained = self._drain(deadline)
        if self._commander is not None:
            self._commander.expire_all()
        for runner in runners:
            runner.client.settle_wills()
        for one in self._own_clients():
            one.leave()
        if not self.scenario.keep_retained:
            self._clear_retained()
        stop = clock.now() + 1.0
        while self.context.engine.links and clock.now() < stop and not self.is_aborted:
            self.context.engine.turn(clock.now() + DRAIN_POLL_S)
        return drained

    def _clear_retained(self) -> None:
        """Clear what the devices retained; the observers have left and do not see it."""
        context, clock = self.context, self.context.engine.clock
        if not context.retained:
            return
        cleaner = RetainedCleaner(context, f"sim-{self._run_id}-cleaner-{self.part.index}")
        cleaner.connect()
        stop = clock.now() + CLEAR_S
        while not cleaner.is_over and clock.now() < stop and not self.is_aborted:
            context.engine.turn(clock.now() + DRAIN_POLL_S)
        if cleaner.left:
            why = cleaner.problem or f"no answer within {CLEAR_S:g} s"
            context.counters["retained_left"] += len(cleaner.left) - 1
            context.error("retained_left", f"{cleaner.left[0]} stays retained: {why}")

    def _collect(self, runners: list[DeviceRunner]) -> None:
        """Reconnect the offline devices that have messages to send or to receive."""
        for runner in runners:
            client = runner.client
            owed = self._commander is not None and self._commander.has_undelivered(runner)
            if not runner.has_failed and (client.unacknowledged or owed):
                self.collecting.add(runner)
                client.connect()

    def _is_unsettled(self, runners: list[DeviceRunner]) -> bool:
        if any(runner.client.unacknowledged for runner in runners):
            return True
        commander = self._commander
        return commander is not None and (
            bool(commander.pending)
            or bool(commander.client.unacknowledged)
            or any(commander.has_undelivered(runner) for runner in self.collecting)
        )

    def _disconnect_all(self, runners: list[DeviceRunner], deadline: float) -> None:
        clock = self.context.engine.clock
        self.collecting.clear()
        staying = deque(runners)
        while staying and clock.now() < deadline:
            for _ in range(min(DISCONNECTS_A_TURN, len(staying))):
                staying.popleft().stop(for_good=True)
            self.context.engine.turn(clock.now() + 0.001)
        while clock.now() < deadline and any(runner.client.unacknowledged for runner in runners):
            self.context.engine.turn(clock.now() + DRAIN_POLL_S)
        for runner in runners:
            runner.is_started = False
            runner.client.disconnect_now()
            if runner.has_failed:  # it stopped before its acknowledgements arrived
                runner.client.outbound.forget()
        self.context.engine.flush()

    def _drain(self, deadline: float) -> bool:
        """Wait until acknowledged messages have arrived, and QUIET_S for QoS 0 messages."""
        ledger, clock = self.context.ledger, self.context.engine.clock
        missing_before = -1
        quiet_at = clock.now() + QUIET_S
        while clock.now() < deadline and not self.is_aborted:
            missing = ledger.missing()
            missing_at_qos0 = ledger.missing_at_qos0()
            if not missing and not missing_at_qos0:
                return True
            if missing + missing_at_qos0 != missing_before:
                missing_before = missing + missing_at_qos0
                quiet_at = clock.now() + QUIET_S
            if not missing and clock.now() > quiet_at:
                return True
            self.context.engine.turn(clock.now() + DRAIN_POLL_S)
        return not ledger.missing()

    def _outcome(self, elapsed: float, drained: bool) -> Outcome:
        context, ledger = self.context, self.context.ledger
        ledger.close()
        return Outcome(
            tallies=list(ledger.tallies.values()),
            wills=ledger.will_counts,
            commands=self._commander.counts if self._commander else Outcome().commands,
            counters=context.counters,
            connect_latency=context.connect_latency,
            schedule_lag=self.schedule_lag,
            examples=ledger.examples,
            errors=context.errors,
            unknown=ledger.unknown,
            retained=ledger.retained,
            unstamped=ledger.unstamped,
            flows=len(ledger.flows),
            devices=sum(len(runners) for runners in self._runners.values()),
            observers=len(self._own_clients()),
            began_at=self._started_at + context.engine.clock.base_us / 1e6,
            is_drained=drained,
            was_interrupted=self.is_interrupted,
            elapsed_s=elapsed,
            drain_s=self.elapsed() - elapsed,
            cpu_s=_cpu_s() - self._cpu_before,
        )


# The counters that the progress display shows as errors.
ERRORS: Final = (
    "connect_failures", "dropped", "protocol_errors", "sessions_lost", "unsubscribed",
    "device_errors", "takeovers_unanswered",
)  # fmt: skip


def _has_root(text: str, roots: set[str]) -> bool:
    """Tell whether another filter of the set matches everything that this one matches."""
    levels = text.removesuffix("/#").split("/")
    return any("/".join(levels[:size]) in roots for size in range(1, len(levels)))


def _cpu_s() -> float:
    return time.process_time()
