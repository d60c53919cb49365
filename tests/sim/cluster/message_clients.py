"""Clients of the world of messages: publishers, and sessions, stored or not."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from mqtt_broker.topics.names import matches
from tests.sim.cluster.core import Core, Message, Reply
from tests.sim.cluster.faults import FaultyWorld
from tests.sim.cluster.process import Process

if TYPE_CHECKING:
    from tests.sim.cluster.messages import MessagesWorld

TOPICS: Final = ("a/1", "a/2", "b/1", "c/1", "c/2", "d/1")
FILTERS_ASKED: Final = ("a/1", "a/#", "+/1", "b/1", "#", "c/1", "c/+", "d/1")
WINDOW: Final = 3


class Client:
    """Asks the host of its number, again and again until it is answered."""

    def __init__(self, world: FaultyWorld, name: str, number: int) -> None:
        self.world = world
        self.name = name
        self.number = number
        self._attempt = 0
        world.events.after(world.rng.random() * 5, self._try)

    def ask(self, content: Core) -> None:
        """Send what is not answered yet."""

    def retry_soon(self, seconds: float = 0.3) -> None:
        self.world.events.after(self.world.rng.random() * seconds, self._try)

    def _try(self) -> None:
        self._attempt += 1
        attempt, rng = self._attempt, self.world.rng
        for process in self.world.processes.values():
            process.call(lambda process=process: self._reach(process, attempt))  # type: ignore[misc]
        self.world.events.after(rng.choice([0.3, 1.0]), lambda: self._again(attempt))

    def _again(self, attempt: int) -> None:
        if attempt == self._attempt:
            self._try()

    def _reach(self, process: Process, attempt: int) -> None:
        host = process.hosts.get(self.number)
        if host is None or attempt != self._attempt:
            return
        assert isinstance(host.content, Core)
        if host.content.is_served:
            self.ask(host.content)
            process.wake(self.number)

    def answered(self, action: Callable[[], None]) -> Reply:
        """Do this when the answer has come back."""
        return lambda: self.world.events.after(0.0005, action)


class Sent:
    """A message, and when it was sent first and acknowledged."""

    __slots__ = ("acknowledged_at", "message", "sent_at")

    def __init__(self, message: Message, sent_at: float) -> None:
        self.message = message
        self.sent_at = sent_at
        self.acknowledged_at = 0.0

    def acknowledge(self, now: float) -> None:
        self.acknowledged_at = self.acknowledged_at or now


class Publisher(Client):
    def __init__(self, world: MessagesWorld, name: str, number: int) -> None:
        super().__init__(world, name, number)
        self.sent: list[Sent] = []
        self.goal = 0
        self._topics = world.rng.sample(TOPICS, world.rng.randint(1, len(TOPICS)))
        self._probes: list[str] = []  # topics that somebody has just subscribed to
        self._qos = world.rng.choice([(1,), (1, 2), (0, 1, 2)])

    @property
    def unacknowledged(self) -> list[Sent]:
        return [one for one in self.sent if not one.acknowledged_at]

    def ask(self, content: Core) -> None:
        rng = self.world.rng
        while len(self.sent) < self.goal and len(self.unacknowledged) < WINDOW:
            topic = self._probes.pop() if self._probes else rng.choice(self._topics)
            self.send(content, topic, rng.choice(self._qos))
        for one in self.unacknowledged:
            content.publish(one.message, self.answered(lambda one=one: self._on_ack(one)))  # type: ignore[misc]

    def send(self, content: Core, topic: str, qos: int) -> Sent:
        """Make a message; one of QoS 0 is sent now, and not again."""
        one = Sent(Message(self.name, len(self.sent) + 1, topic, qos), self.world.events.now)
        self.sent.append(one)
        if qos == 0:
            one.acknowledge(one.sent_at)
            content.publish(one.message, _nothing)
        return one

    def probe(self, text: str) -> None:
        """Publish at once to a topic that somebody has subscribed to."""
        topics = [topic for topic in TOPICS if matches(text, topic)]
        self._probes.append(self.world.rng.choice(topics))
        self.goal += 1
        self.retry_soon(0.001)

    def _on_ack(self, one: Sent) -> None:
        is_first = not one.acknowledged_at
        one.acknowledge(self.world.events.now)
        if is_first and not self.unacknowledged:
            self.retry_soon()


class Subscription:
    """A filter of a session, from when to when it certainly held."""

    __slots__ = ("acknowledged_at", "asked_at", "ended_at", "is_over", "text")

    def __init__(self, text: str, now: float) -> None:
        self.text = text
        self.asked_at = now
        self.acknowledged_at = 0.0  # SUBACK has come
        self.ended_at = 0.0  # UNSUBSCRIBE was sent
        self.is_over = False  # UNSUBACK has come

    def acknowledge(self, now: float) -> None:
        self.acknowledged_at = self.acknowledged_at or now

    def end(self, now: float) -> None:
        self.ended_at = self.ended_at or now

    def on_over(self) -> None:
        self.is_over = True

    def holds(self, one: Sent) -> bool:
        """Tell whether a session with it must have this message."""
        is_before = 0 < self.acknowledged_at < one.sent_at and one.message.qos > 0
        return is_before and not self.ended_at and matches(self.text, one.message.topic)


class Subscriber(Client):
    """Subscribes and unsubscribes, one after the other."""

    world: MessagesWorld

    def __init__(self, world: MessagesWorld, name: str, number: int) -> None:
        super().__init__(world, name, number)
        self.history: list[Subscription] = []

    def change(self) -> None:
        """Subscribe to something else, or end a subscription."""
        rng = self.world.rng
        if self.current is not None:
            return
        held = [one for one in self.history if not one.ended_at]
        if held and rng.random() < 0.4:
            rng.choice(held).end(self.world.events.now)
        else:
            wanted = [text for text in FILTERS_ASKED if text not in [one.text for one in held]]
            if wanted:
                self.history.append(Subscription(rng.choice(wanted), self.world.events.now))

    @property
    def current(self) -> Subscription | None:
        """The subscription that is not answered yet."""
        for one in self.history:
            if not one.acknowledged_at or (one.ended_at and not one.is_over):
                return one
        return None

    def on_suback(self, one: Subscription) -> None:
        if not one.acknowledged_at:
            one.acknowledge(self.world.events.now)
            self.world.on_suback(self, one)


class Session(Subscriber):
    """A stored session."""

    def ask(self, content: Core) -> None:
        one = self.current
        if one is None:
            return
        if one.ended_at:
            content.unsubscribe(self.name, one.text, self.answered(one.on_over))
        else:
            content.subscribe(self.name, one.text, self.answered(lambda: self.on_suback(one)))


class Visitor(Subscriber):
    """A client without a stored session: what it has ends with its connection."""

    def __init__(self, world: MessagesWorld, name: str, number: int) -> None:
        super().__init__(world, name, number)
        self.content: Core | None = None  # the broker that it is connected to
        self.received: list[tuple[float, Message]] = []

    @property
    def is_connected(self) -> bool:
        return self.content is not None and self.content.is_served

    def ask(self, content: Core) -> None:
        if not self.is_connected:
            self._connect(content)
        one = self.current
        if one is None or content is not self.content:
            return
        history = self.history
        if one.ended_at:
            content.leave(self.name, one.text, self.answered(one.on_over))
        else:
            reply = self.answered(lambda: self._on_suback(history, one))
            content.visit(self.name, one.text, self._receiver(history), reply)

    def _connect(self, content: Core) -> None:
        """Begin anew: subscribe again to what was not ended."""
        self.content = content
        held = [one.text for one in self.history if not one.ended_at]
        self.history = [Subscription(text, self.world.events.now) for text in held]
        self.received = []

    def _receiver(self, history: list[Subscription]) -> Callable[[Message], None]:
        """Take messages as long as the connection is this one."""

        def receive(message: Message) -> None:
            if self.history is history:
                self.received.append((self.world.events.now, message))

        return receive

    def _on_suback(self, history: list[Subscription], one: Subscription) -> None:
        if self.history is history:
            self.on_suback(one)


def _nothing() -> None:
    """Await no answer."""
