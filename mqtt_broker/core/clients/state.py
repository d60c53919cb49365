"""The services that the connections of one broker share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, cast

from mqtt_broker.codec.packets import Publish
from mqtt_broker.core.clients.ack_queue import Unanswered
from mqtt_broker.core.clients.authorization import Authorizer
from mqtt_broker.core.clients.events import ClientEvents
from mqtt_broker.core.clients.lifecycle import Lifecycle
from mqtt_broker.core.clients.registry import ClientRegistry
from mqtt_broker.core.clients.unacknowledged import Receiver, UnacknowledgedWatch
from mqtt_broker.core.clients.wills import Wills
from mqtt_broker.core.interfaces.access import Access
from mqtt_broker.core.interfaces.owners import Owners
from mqtt_broker.core.interfaces.payload_checks import PayloadChecks
from mqtt_broker.core.limits import client_limits
from mqtt_broker.core.limits.incomplete_packets import IncompletePackets
from mqtt_broker.core.limits.preconnect_limits import PreconnectLimits
from mqtt_broker.core.limits.settings import Settings
from mqtt_broker.core.routing.retained import RetainedMessages
from mqtt_broker.core.routing.retained_delivery import RetainedDeliveries
from mqtt_broker.core.routing.router import Router
from mqtt_broker.core.routing.routes import Route, Routes
from mqtt_broker.core.routing.subscriptions import Subscriptions
from mqtt_broker.core.runtime.backpressure import Backpressure
from mqtt_broker.core.runtime.runtime import Runtime
from mqtt_broker.core.runtime.slow_readers import SlowReaders
from mqtt_broker.recorder.recorder import Recorder
from mqtt_broker.topics.aliases import AliasBytes
from mqtt_broker.topics.shared import StrategyFactory
from sessions.journal.journal import Journal
from sessions.messages.backlog import Backlog, QueueFull
from sessions.registry import SessionRegistry


class Tracer(Protocol):
    """Shows packets to the traces that run."""

    def attach(self, connection: Any) -> None:
        """Show the packets of a connection, if a trace wants them."""

    def published(
        self, connection: Any, packet: Publish, topic: str, route: Route, now: float
    ) -> None:
        """Show a run of PUBLISH, if a trace wants its topic."""


class BrokerState:
    """Holds the services and decides nothing. `Broker` makes it, once."""

    __slots__ = (
        "agenda",
        "aliases",
        "authorizer",
        "backlog",
        "backpressure",
        "checks_qos",
        "clients",
        "counters",
        "events",
        "incomplete",
        "journal",
        "known_limits",
        "lifecycle",
        "log",
        "outboxes",
        "owners",
        "preconnect_limits",
        "recorder",
        "retained",
        "retained_deliveries",
        "router",
        "routes",
        "runtime",
        "sessions",
        "settings",
        "slow_readers",
        "subscriptions",
        "timers",
        "timings",
        "tracer",
        "unacknowledged",
        "unanswered",
        "wills",
        "work",
    )

    def __init__(
        self,
        settings: Settings,
        runtime: Runtime,
        access: Access,
        journal: Journal | None,
        durabilities: Sequence[tuple[str, int]],
        checks: PayloadChecks | None,
        strategy: StrategyFactory,
        recorder: Recorder | None,
        now: float,
    ) -> None:
        self.settings = settings
        self.checks_qos = settings.maximum_qos < 2  # of each PUBLISH
        self.journal = journal  # None: everything is in memory
        self.runtime = runtime
        self.tracer: Tracer | None = None  # None: no trace runs
        self.owners: Owners | None = None  # None: the sessions are shared with no other broker
        self.recorder = recorder  # None: nothing is recorded
        self.counters = runtime.counters
        self.outboxes = runtime.outboxes
        self.timers = runtime.timers
        self.work = runtime.work
        self.agenda = runtime.agenda
        self.log = runtime.log
        self.known_limits = client_limits.KnownLimits(client_limits.of_settings(settings))
        self.preconnect_limits = PreconnectLimits(settings.connecting_bytes_max)
        self.aliases = AliasBytes(settings.aliases_bytes_max)  # of all connections
        self.incomplete = IncompletePackets(settings.incomplete_bytes_max)
        self.backlog = Backlog(
            settings.queue_messages_max,
            settings.queue_bytes_max,
            settings.queue_total_bytes_max,
            QueueFull(settings.queue_full),
            settings.queue_qos0,
            settings.inflight_max,
            0 if journal is None else 2 * settings.queue_memory_bytes_max,
            inflight_bytes_max=settings.inflight_bytes_max,
            inflight_total_bytes_max=settings.inflight_total_bytes_max,
            dead_letters=runtime.dead_letters,
            work=runtime.work,
            agenda=runtime.agenda,
            recorder=recorder,
            tracer=runtime.message_tracer,
        )
        self.timings = self.backlog.timings
        self.timings.count_with(runtime.counters)
        self.unanswered = Unanswered(self.timings)  # acknowledgements that wait for the store
        self.sessions = SessionRegistry(
            self.backlog, settings.receive_maximum, journal, settings.sessions_bytes_max
        )
        self.routes = Routes(runtime.work)
        self.retained = RetainedMessages(settings, runtime, journal, now)
        self.retained_deliveries = RetainedDeliveries(
            runtime, self.retained, self.sessions, journal
        )
        self.router = Router(
            runtime,
            self.backlog,
            journal,
            self.routes,
            self.retained,
            durabilities=durabilities,
            checks=checks,
        )
        self.subscriptions = Subscriptions(
            settings, self.backlog, journal, self.routes, strategy, runtime.rng
        )
        self.clients = ClientRegistry()
        self.backpressure = Backpressure(settings, runtime, journal)
        self.slow_readers = SlowReaders(settings, runtime)
        receivers = cast(dict[str, Receiver], self.clients.connections)
        self.unacknowledged = UnacknowledgedWatch(settings, runtime, self.backlog, receivers)
        self.authorizer = Authorizer(
            access, runtime, self.sessions, self.subscriptions, self.clients
        )
        self.wills = Wills(runtime, self.router, self.authorizer, self.backlog)
        self.lifecycle = Lifecycle(
            runtime,
            self.sessions,
            self.subscriptions,
            self.wills,
            self.authorizer,
            self.clients,
        )
        self.events = ClientEvents(self.router, is_wanted=settings.client_events)

    def change_settings(self, settings: Settings) -> None:
        """Use other settings where they are looked up; see `Broker.change_settings`."""
        self.settings = settings
        self.events.want(is_wanted=settings.client_events)

    def share_with(self, owners: Owners) -> None:
        """Share the sessions with other brokers: each client is claimed before its CONNACK."""
        self.owners = owners
        self.lifecycle.share_with(owners)

    def trace_with(self, tracer: Tracer | None) -> None:
        """Show packets to traces from now on; None: no trace runs."""
        self.tracer = tracer
