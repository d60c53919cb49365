"""A client as it is now: what a question needs to know beside what was recorded."""

from __future__ import annotations


class SubscriptionView:
    """A subscription in force."""

    __slots__ = ("filter", "no_local", "qos")

    def __init__(self, text: str, qos: int, *, no_local: bool) -> None:
        self.filter = text  # whole: with `$share/<name>/`
        self.qos = qos
        self.no_local = no_local


class RetainedView:
    """The retained message of a topic."""

    __slots__ = ("expires_ms", "publisher", "qos", "received_ms")

    def __init__(self, publisher: str, qos: int, received_ms: int, expires_ms: int) -> None:
        self.publisher = publisher
        self.qos = qos
        self.received_ms = received_ms
        self.expires_ms = expires_ms  # 0: never


MessageKey = tuple[str, int]  # a topic, and when the message was received, in milliseconds


class ClientView:
    """A client, its subscriptions, and the messages that it has not acknowledged."""

    __slots__ = (
        "client_id",
        "expires",
        "in_flight",
        "is_known",
        "is_online",
        "is_whole",
        "queues_qos0",
        "retained",
        "retained_filters",
        "subscriptions",
        "waiting",
        "waiting_elsewhere",
    )

    def __init__(
        self,
        client_id: str,
        *,
        is_known: bool = False,
        is_online: bool = False,
        queues_qos0: bool = False,
        subscriptions: list[SubscriptionView] | None = None,
        waiting_elsewhere: int = 0,
        is_whole: bool = True,
        retained: RetainedView | None = None,
        retained_filters: list[str] | None = None,
    ) -> None:
        self.client_id = client_id
        self.is_known = is_known  # it has a session
        self.is_online = is_online
        self.queues_qos0 = queues_qos0
        self.subscriptions = subscriptions or []
        self.in_flight: dict[MessageKey, int] = {}  # sent, and not acknowledged
        self.waiting: dict[MessageKey, int] = {}  # in the queue
        self.expires: dict[MessageKey, int] = {}  # of those: when, in milliseconds
        self.waiting_elsewhere = waiting_elsewhere  # in the queue, but in the store only
        self.is_whole = is_whole  # else there are too many messages to look at
        self.retained = retained  # of the topic that is asked about
        self.retained_filters = retained_filters or []  # that still bring retained messages

    def add_in_flight(self, topic: str, received_ms: int) -> None:
        """Add a message that was sent and is not acknowledged."""
        key = (topic, received_ms)
        self.in_flight[key] = self.in_flight.get(key, 0) + 1

    def add_waiting(self, topic: str, received_ms: int, expires_ms: int = 0) -> None:
        """Add a message that waits in the queue; one that never expires has `expires_ms` 0."""
        key = (topic, received_ms)
        if expires_ms:
            self.expires[key] = expires_ms
        self.waiting[key] = self.waiting.get(key, 0) + 1
