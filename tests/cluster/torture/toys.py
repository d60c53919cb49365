"""What the numbers of a torture hold: the toys of a broker that the model has."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final, Protocol

from mqtt_broker.cluster.host import Content
from mqtt_broker.cluster.node import Node
from tests.sim.cluster.broker import CONNECT_WAIT_S, UNAVAILABLE, Broker
from tests.sim.cluster.hosts import Lists

TICK_S: Final = 0.1


class Program(Protocol):
    """The process, as a toy needs it."""

    node: Node

    def clock(self) -> float: ...

    def tell(self, *words: Any) -> None:
        """Tell the harness."""

    def wake(self, number: int) -> None:
        """Let the host of a number look for something to do."""

    def on_served(self, number: int, epoch: str) -> None: ...

    def on_lost(self, number: int, epoch: str) -> None: ...


class Toy(Protocol):
    """What a process does besides hosting; its methods `on_...` are the orders of the harness."""

    def new_content(self, number: int, epoch: str) -> Content:
        """Make what is hosted with a number."""

    def tick(self, now: float) -> None:
        """Do what it is time for."""

    def report(self, content: Content) -> Any:
        """Return what the memory of a number has."""


class _Served:
    """What a number holds, which tells when it is served, and when no more."""

    _told: tuple[Program, int, str]

    def on_loaded(self) -> None:
        super().on_loaded()  # type: ignore[misc]
        program, number, epoch = self._told
        program.on_served(number, epoch)

    def on_stopped(self) -> None:
        super().on_stopped()  # type: ignore[misc]
        program, number, epoch = self._told
        program.on_lost(number, epoch)


class ServedLists(_Served, Lists):
    """Lists that tell when they are served, and when no more."""

    def __init__(self, program: Program, number: int, epoch: str) -> None:
        super().__init__(number)
        self._told = (program, number, epoch)


class ListsToy:
    """Each number has a list for each writer."""

    def __init__(self, program: Program) -> None:
        self.program = program

    def tick(self, now: float) -> None:
        """Nothing here depends on time."""

    def new_content(self, number: int, epoch: str) -> Content:
        return ServedLists(self.program, number, epoch)

    def on_write(self, number: int, writer: str, value: int, now: float) -> None:
        host = self.program.node.hosts.get(number)
        if host is not None and isinstance(host.content, Lists) and host.content.is_served:
            host.content.write(writer, value, lambda: self.program.tell("ack", writer, value))
            host.wake(now)

    def report(self, content: Content) -> Any:
        assert isinstance(content, Lists)
        return content.lists


class Surroundings:
    """The process and the bus, as the broker of one number sees them."""

    def __init__(self, program: Program, number: int) -> None:
        self._program = program
        self._number = number

    def clock(self) -> float:
        return self._program.clock()

    def wake(self, number: int) -> None:
        self._program.wake(number)

    def ask(self, owner: int, client: str, tenure: int) -> None:
        self._program.tell("bus", owner, "ask", client, tenure, self._number)

    def tell_offered(self, number: int, client: str) -> None:
        self._program.tell("bus", number, "offered", client, 0, self._number)


class ServedBroker(_Served, Broker):
    """A broker that tells when it is served, and when no more."""

    def __init__(self, program: Program, number: int, epoch: str) -> None:
        surroundings = Surroundings(program, number)
        super().__init__(number, surroundings, surroundings)
        self._told = (program, number, epoch)


class RemoteConnection:
    """A client's connection, whose other end is in the harness."""

    def __init__(
        self,
        tell: Callable[..., None],
        key: int,
        client: str,
        *,
        clean: bool,
        expiry: float,
        will: str,
        will_delay: float,
    ) -> None:
        self.key = key
        self.client = client
        self.clean = clean
        self.expiry = expiry
        self.will = will
        self.will_delay = will_delay
        self.is_over = self.has_accepted = False
        self._tell = tell

    def accept(self, present: bool, values: list[int]) -> None:
        if not self.is_over:
            self.has_accepted = True
            self._tell("accepted", self.key, present, values)

    def close(self, reason: int) -> None:
        if not self.is_over:
            self.is_over = True
            self._tell("closed", self.key, reason)

    def on_over(self, *, is_normal: bool) -> None:
        self._tell("over", self.key, is_normal)


class SessionsToy:
    """Each number has sessions, which move to where their clients connect."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self._connections: dict[int, RemoteConnection] = {}
        self._waiting: list[RemoteConnection] = []  # for a broker
        self._unanswered: list[tuple[float, RemoteConnection]] = []  # and until when

    def new_content(self, number: int, epoch: str) -> Content:
        return ServedBroker(self.program, number, epoch)

    def _broker(self, number: int | None = None) -> Broker | None:
        node = self.program.node
        host = node.hosts.get(node.membership.own if number is None else number)
        if host is None:
            return None
        assert isinstance(host.content, Broker)
        return host.content if host.content.is_served else None

    def tick(self, now: float) -> None:
        waiting, self._waiting = self._waiting, []
        for connection in waiting:
            self._hand_to_broker(connection)
        late = [connection for until, connection in self._unanswered if until <= now]
        self._unanswered = [one for one in self._unanswered if one[0] > now]
        for connection in late:
            self._refuse(connection)
        for number in list(self.program.node.hosts):
            if (broker := self._broker(number)) is not None:
                broker.tick()
                self.program.wake(number)

    def on_connect(self, key: int, client: str, how: dict[str, Any], now: float) -> None:
        connection = RemoteConnection(self.program.tell, key, client, **how)
        self._connections[key] = connection
        self._unanswered.append((now + CONNECT_WAIT_S, connection))
        self._hand_to_broker(connection)

    def _hand_to_broker(self, connection: RemoteConnection) -> None:
        if connection.is_over:
            return
        broker = self._broker()
        if broker is None:
            self._waiting.append(connection)
        else:
            broker.connect(connection)

    def _refuse(self, connection: RemoteConnection) -> None:
        """Answer a CONNECT that could not be executed for long."""
        if connection.is_over or connection.has_accepted:
            return
        if (broker := self._broker()) is not None:
            broker.disconnect(connection, is_normal=False)
        connection.close(UNAVAILABLE)

    def on_append(self, key: int, value: int, now: float) -> None:
        connection, broker = self._connections.get(key), self._broker()
        if broker is not None and connection is not None and not connection.is_over:
            broker.append(connection, value, partial(self.program.tell, "appended", key, value))

    def on_disconnect(self, key: int, is_normal: bool, now: float) -> None:
        connection, broker = self._connections.get(key), self._broker()
        if connection is not None:
            if broker is not None and not connection.is_over:
                broker.disconnect(connection, is_normal=is_normal)
            connection.is_over = True
        self.program.tell("ended", key)

    def on_bus(
        self, number: int, kind: str, client: str, tenure: int, sender: int, now: float
    ) -> None:
        broker = self._broker(number)
        if broker is None:
            return
        if kind == "ask":
            broker.claims.on_ask(client, tenure, sender)
        else:
            broker.claims.on_offered(client)
        self.program.wake(number)

    def report(self, content: Content) -> Any:
        assert isinstance(content, Broker)
        online = {client: getattr(one, "key", 0) for client, one in content.online.items()}
        sessions = [session.row() for session in content.sessions.values()]
        return {"online": online, "owned": content.claims.owned, "sessions": sessions}


TOYS: Final[dict[str, Callable[[Program], Toy]]] = {"hosts": ListsToy, "owners": SessionsToy}
