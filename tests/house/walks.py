"""Follow a message through the running, interpreted broker, and list what it passes.

    python -m tests.house.walks                      each walk: its modules counted, its entries
    python -m tests.house.walks --functions commit   one walk, function by function in their order

Each walk runs once to fill the caches, and once more under a profiler that sees the calls of every
thread but the client's. A walk enters a package by the functions that another package calls: their
list is what a newcomer reads first.
"""

from __future__ import annotations

import argparse
import socket
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, Final, NamedTuple, TypeVar

import argon2

from mqtt_broker.codec.constants import PUBACK, V5
from mqtt_broker.codec.decode import Decoder
from mqtt_broker.codec.encode import PINGREQ_BYTES, encode_ack, encode_from_client, encode_publish
from mqtt_broker.codec.packets import (
    Ack,
    Connack,
    Connect,
    Pingresp,
    Publish,
    Suback,
    Subscribe,
    SubscriptionRequest,
)
from mqtt_broker.codec.properties import SESSION_EXPIRY_INTERVAL, Properties
from mqtt_broker.server.config.config import load
from tests.house import packages
from tests.server.running import PATIENCE_S, Running

Received = TypeVar("Received")
_NOT_FUNCTIONS: Final = {"<listcomp>", "<genexpr>", "<dictcomp>", "<setcomp>", "<module>"}
# Threads that do their work beside the message's way, whenever their time has come.
_BESIDE: Final = {
    "fleetmq-tables",
    "fleetmq-pages",
    "fleetmq-alive",
    "fleetmq-watchdog",
    "fleetmq-maintenance",
}
# They note what passes and decide nothing: a reader of the way goes by them.
INSTRUMENTS: Final = ("mqtt_broker.recorder.", "sessions.messages.timings")
_CONFIG: Final = """
durability = "{durability}"
data_dir = "{data_dir}"
http = "off"
sys_interval_s = 0
[[listeners]]
host = "127.0.0.1"
port = 0
{more}
"""


class Call(NamedTuple):
    """A call that the profiler saw."""

    caller: str  # the module that called, or nothing where it is not one of the product
    module: str
    function: str


class Recorder:
    """The calls of the product's functions while it is on."""

    def __init__(self) -> None:
        self._names = {str(path): name for name, path in packages.modules().items()}
        self._calls: list[Call] | None = None

    def __call__(self, frame: FrameType, event: str, arg: Any) -> None:
        calls = self._calls
        if event != "call" or calls is None or threading.current_thread().name in _BESIDE:
            return
        module = self._names.get(frame.f_code.co_filename)
        if module is None or frame.f_code.co_name in _NOT_FUNCTIONS:
            return
        above = frame.f_back
        caller = ""
        while above is not None and not caller:
            caller = self._names.get(above.f_code.co_filename, "")
            above = above.f_back
        calls.append(Call(caller, module, frame.f_code.co_qualname))

    def record(self, action: Callable[[], None]) -> list[Call]:
        """What the product calls from the beginning of an action to its end."""
        calls: list[Call] = []
        self._calls = calls
        action()
        self._calls = None
        return calls[:]


class Client:
    """A blocking MQTT 5 client that does nothing by itself."""

    def __init__(self, port: int, client_id: str, expiry_s: int = 0) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), PATIENCE_S)
        self._decoder = Decoder(from_server=True, version=V5)
        self._packets: list[Any] = []
        self._client_id = client_id
        self._properties = Properties({SESSION_EXPIRY_INTERVAL: expiry_s} if expiry_s else {})

    def connect(self, username: str | None = None, password: bytes | None = None) -> None:
        packet = Connect(
            V5,
            self._client_id,
            properties=self._properties,
            username=username,
            password=password,
        )
        self._socket.sendall(encode_from_client(V5, packet))
        answer = self.receive(Connack)
        assert answer.reason == 0, answer

    def receive(self, kind: type[Received]) -> Received:
        """The next packet, which has to be of this kind."""
        while not self._packets:
            data = self._socket.recv(65_536)
            assert data, "the broker closed the connection"
            self._packets += self._decoder.feed(data)
        packet = self._packets.pop(0)
        assert isinstance(packet, kind), packet
        return packet

    def publish(self, topic: str, packet_id: int) -> int:
        """Publish at QoS 1, and return the reason code of the PUBACK."""
        self._socket.sendall(encode_publish(V5, topic, b"payload", qos=1, packet_id=packet_id))
        return self.receive(Ack).reason

    def subscribe(self, topic_filter: str) -> None:
        packet = Subscribe(1, [SubscriptionRequest(topic_filter, 1)])
        self._socket.sendall(encode_from_client(V5, packet))
        assert self.receive(Suback).reasons[0] < 0x80

    def take(self) -> None:
        """Receive a PUBLISH at QoS 1 and acknowledge it."""
        for packet_id in self.receive(Publish).packet_ids():
            self._socket.sendall(encode_ack(PUBACK, packet_id))

    def ping(self) -> None:
        """Let the broker end what it was about to do."""
        for _ in range(3):
            self._socket.sendall(PINGREQ_BYTES)
            self.receive(Pingresp)

    def close(self) -> None:
        self._socket.close()


def _unseen(act: Callable[[], object]) -> None:
    """Do what a client does in a thread of its own, which the profiler is not to see."""
    sys.setprofile(None)
    act()


@contextmanager
def _running(durability: str = "memory", more: str = "") -> Iterator[int]:
    """A broker in a thread of its own, by its port."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "fleetmq.toml"
        text = _CONFIG.format(durability=durability, data_dir=f"{folder}/data", more=more)
        path.write_text(text)
        config = load(str(path), {}, {})
        with Running(*config.endpoints, config=config) as broker:
            yield broker.bound[0].port


@contextmanager
def _client(port: int, client_id: str, expiry_s: int = 0) -> Iterator[Client]:
    client = Client(port, client_id, expiry_s)
    try:
        yield client
    finally:
        client.close()


def _publish(recorder: Recorder, durability: str) -> list[Call]:
    """QoS 1 from one client to another, until it is acknowledged."""
    with ExitStack() as stack:
        port = stack.enter_context(_running(durability))
        publisher = stack.enter_context(_client(port, "publisher"))
        subscriber = stack.enter_context(_client(port, "subscriber", expiry_s=600))
        publisher.connect()
        subscriber.connect()
        subscriber.subscribe("t/#")

        def walk() -> None:
            reply = threading.Thread(target=_unseen, args=(subscriber.take,))
            # Under `commit` the PUBLISH is acknowledged by the commit alone: nobody takes it.
            if durability == "memory":
                reply.start()
            assert publisher.publish("t/1", 1) == 0
            if durability == "memory":
                reply.join()

        walk()
        return recorder.record(walk)


def in_memory(recorder: Recorder) -> list[Call]:
    """A QoS 1 PUBLISH without a store, until both acknowledgements."""
    return _publish(recorder, "memory")


def under_commit(recorder: Recorder) -> list[Call]:
    """A QoS 1 PUBLISH to a stored session, until its acknowledgement."""
    return _publish(recorder, "commit")


def with_password(recorder: Recorder) -> list[Call]:
    """CONNECT with a password, one PUBLISH that the rules allow and one that they deny."""
    with tempfile.TemporaryDirectory() as folder:
        hasher = argon2.PasswordHasher(time_cost=1, memory_cost=8_192, parallelism=1)
        users = Path(folder) / "users"
        users.write_text(f"ann:{hasher.hash('secret')}\n")
        users.chmod(0o600)
        more = f"""
[[auth]]
type = "password_file"
file = "{users}"
[[acl]]
permit = "allow"
action = "publish"
topics = ["t/#"]
"""
        with _running("memory", more) as port:

            def walk() -> None:
                with _client(port, "ann") as client:
                    client.connect("ann", b"secret")
                    assert client.publish("t/1", 1) < 0x80
                    assert client.publish("u/1", 2) >= 0x80

            walk()
            return recorder.record(walk)


_STREAM: Final = """
[[streams]]
name = "s"
filter = "t/#"
partitions = 2
"""


def into_a_stream(recorder: Recorder) -> list[Call]:
    """A QoS 1 PUBLISH into a stream, until its acknowledgement."""
    with _running("commit", _STREAM) as port, _client(port, "publisher") as publisher:
        publisher.connect()
        publisher.publish("t/1", 1)
        return recorder.record(lambda: _publish_one(publisher))


def _publish_one(publisher: Client) -> None:
    publisher.publish("t/1", 2)


def replay(recorder: Recorder) -> list[Call]:
    """A record of a stream, read by an MQTT client from its beginning."""
    with _running("commit", _STREAM) as port:
        with _client(port, "publisher") as publisher:
            publisher.connect()
            publisher.publish("t/1", 1)

        def walk() -> None:
            with _client(port, "reader") as reader:
                reader.connect()
                reader.subscribe("$stream/s/@earliest")
                reader.take()

        walk()
        with _client(port, "reader") as reader:
            reader.connect()
            reader.ping()

            def read() -> None:
                reader.subscribe("$stream/s/@earliest")
                reader.take()

            return recorder.record(read)


WALKS: Final[dict[str, Callable[[Recorder], list[Call]]]] = {
    "memory": in_memory,
    "commit": under_commit,
    "connect": with_password,
    "stream": into_a_stream,
    "replay": replay,
}


def modules_of(calls: list[Call]) -> list[str]:
    """The modules that a walk passes, in its order, without the instruments."""
    passed = dict.fromkeys(call.module for call in calls)
    return [module for module in passed if not module.startswith(INSTRUMENTS)]


def size_of(calls: list[Call]) -> str:
    """Tell how many modules a walk passes, and how many instruments note it."""
    passed = len(modules_of(calls))
    noting = len({call.module for call in calls}) - passed
    return f"{passed} modules, and {noting} that note what passes (the recorder and the timings)."


def entries_of(calls: list[Call]) -> dict[str, list[str]]:
    """For each package the functions that a walk enters it by, from another package."""
    found: dict[str, dict[str, None]] = {}
    for call in calls:
        package = packages.package_of(call.module)
        if not call.caller or packages.package_of(call.caller) != package:
            name = f"{call.module.rpartition('.')[2]}.{call.function}"
            found.setdefault(package, {})[name] = None
    return {package: list(names) for package, names in found.items()}


def record(name: str) -> list[Call]:
    """Go one walk, in a broker of its own."""
    recorder = Recorder()
    threading.setprofile(recorder)
    try:
        return WALKS[name](recorder)
    finally:
        threading.setprofile(None)


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(allow_abbrev=False, description=__doc__)
    parser.add_argument("walk", nargs="*", metavar="WALK", help=", ".join(WALKS))
    parser.add_argument("--functions", action="store_true", help="every function, in its order")
    args = parser.parse_args(arguments)
    for name in args.walk or WALKS:
        calls = record(name)
        doc = (WALKS[name].__doc__ or "").strip()
        print(f"## {name}\n\n{doc} {size_of(calls)}\n")
        if args.functions:
            for call in dict.fromkeys(calls):
                print(f"{call.module}  {call.function}")
        else:
            for package, functions in entries_of(calls).items():
                print(f"- `{package}`: " + ", ".join(f"`{one}`" for one in functions))
        print()


if __name__ == "__main__":
    main(sys.argv[1:])
