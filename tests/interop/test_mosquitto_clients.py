"""mosquitto's own command-line clients against our broker."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from mqtt_broker.testing import ThreadedBroker
from tests.interop.clients import Paho, properties
from tests.interop.commands import ended, find, run, start

pytestmark = pytest.mark.skipif(
    not (find("mosquitto_pub") and find("mosquitto_sub")),
    reason="mosquitto_pub and mosquitto_sub are not installed",
)
any_version = pytest.mark.parametrize("version", ["mqttv31", "mqttv311", "mqttv5"])
any_qos = pytest.mark.parametrize("qos", ["0", "1", "2"])


@pytest.fixture
def broker() -> Iterator[ThreadedBroker]:
    """One that says when a client has subscribed: mosquitto_sub itself keeps it to itself."""
    with ThreadedBroker(client_events=True) as running:
        yield running


@contextlib.contextmanager
def watching(broker: ThreadedBroker, client_id: str) -> Iterator[Paho]:
    with Paho(broker, "watcher") as watcher:
        watcher.subscribe(f"$SYS/broker/clients/{client_id}/subscribed")
        yield watcher


@any_qos
@any_version
def test_a_message_goes_round(broker: ThreadedBroker, version: str, qos: str) -> None:
    with watching(broker, "s") as watcher:
        sub = start(
            "mosquitto_sub", "-V", version, "-i", "s", "-t", "a/+", "-q", qos, "-C", "3",
            "-F", "%t %q %r %p", broker=broker,
        )  # fmt: skip
        watcher.receive()
        code, _, err = run(
            "mosquitto_pub", "-V", version, "-t", "a/b", "-q", qos, "-l",
            broker=broker, given=b"1\n2\n3\n",
        )  # fmt: skip
        assert (code, err) == (0, b"")
        expected = b"".join(b"a/b %s 0 %d\n" % (qos.encode(), number) for number in (1, 2, 3))
        assert ended(sub)[:2] == (0, expected)


@any_version
def test_a_session_keeps_what_its_client_misses(broker: ThreadedBroker, version: str) -> None:
    session = ["-V", version, "-i", "logger", "-c", "-q", "2", "-t", "log"]
    if version == "mqttv5":
        session += ["-x", "3600"]
    assert run("mosquitto_sub", *session, "-E", broker=broker)[0] == 0
    lines = b"".join(b"%d\n" % number for number in range(500))
    assert run(
        "mosquitto_pub", "-V", version, "-t", "log", "-q", "2", "-l", broker=broker, given=lines
    )[0] == 0  # fmt: skip
    assert run("mosquitto_sub", *session, "-C", "500", broker=broker)[:2] == (0, lines)


@any_version
def test_a_retained_message(broker: ThreadedBroker, version: str) -> None:
    kept = ("-V", version, "-t", "kept", "-q", "1")
    assert run("mosquitto_pub", *kept, "-r", "-m", "x", broker=broker)[0] == 0
    found = run("mosquitto_sub", *kept, "-C", "1", "-F", "%r %p", broker=broker)
    assert found[:2] == (0, b"1 x\n")


def test_properties(broker: ThreadedBroker) -> None:
    with watching(broker, "s") as watcher:
        sub = start(
            "mosquitto_sub", "-V", "5", "-i", "s", "-t", "a", "-q", "1", "-C", "1",
            "-F", "%C|%R|%D|%P|%p", broker=broker,
        )  # fmt: skip
        watcher.receive()
        properties = (
            ("content-type", "text"), ("response-topic", "answers"), ("correlation-data", "7"),
            ("user-property", "k", "v"), ("topic-alias", "1"),
        )  # fmt: skip
        options = [word for one in properties for word in ("-D", "publish", *one)]
        code, _, _ = run(
            "mosquitto_pub", "-V", "5", "-t", "a", "-q", "1", "-m", "x", *options, broker=broker
        )
        assert code == 0
        assert ended(sub)[1] == b"text|answers|7|k:v|x\n"


def test_a_shared_subscription(broker: ThreadedBroker) -> None:
    with watching(broker, "+") as watcher:
        crew = [
            start("mosquitto_sub", "-V", "5", "-i", f"w{number}", "-q", "1", "-C", "5",
                  "-t", "$share/crew/jobs", broker=broker)
            for number in range(2)
        ]  # fmt: skip
        watcher.receive()
        watcher.receive()
        lines = b"".join(b"%d\n" % number for number in range(10))
        run("mosquitto_pub", "-t", "jobs", "-q", "1", "-l", broker=broker, given=lines)
        dealt = [ended(worker)[1].split() for worker in crew]
        assert sorted(int(job) for jobs in dealt for job in jobs) == list(range(10))


def test_a_killed_client_leaves_its_will(broker: ThreadedBroker) -> None:
    with watching(broker, "s") as watcher:
        watcher.subscribe("gone", qos=1)
        sub = start(
            "mosquitto_sub", "-V", "5", "-i", "s", "-t", "a", "--will-topic", "gone",
            "--will-payload", "bye", "--will-qos", "1", broker=broker,
        )  # fmt: skip
        watcher.receive()
        sub.kill()
        ended(sub)
        assert watcher.payloads(1) == [b"bye"]


def test_a_request_and_its_response(broker: ThreadedBroker) -> None:
    if find("mosquitto_rr") is None:
        pytest.skip("mosquitto_rr is not installed")
    with Paho(broker, "service") as service:
        service.subscribe("ask", qos=1)
        asker = start(
            "mosquitto_rr", "-V", "5", "-t", "ask", "-e", "answer", "-q", "1", "-m", "6*7",
            "-W", "10", broker=broker,
        )  # fmt: skip
        assert properties(service.receive()).ResponseTopic == "answer"
        service.publish("answer", b"42", 1)
        assert ended(asker)[:2] == (0, b"42\n")
