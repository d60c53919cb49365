"""What only MQTT 5 has, with paho-mqtt as the client."""

from __future__ import annotations

import time

import pytest
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.reasoncodes import ReasonCode

from mqtt_broker.testing import ThreadedBroker
from tests.interop.clients import V311, Paho, Will, properties


def test_properties_go_from_end_to_end(broker: ThreadedBroker) -> None:
    pairs = [("unit", "°C"), ("unit", "K"), ("", "")]
    with Paho(broker, "s") as subscriber, Paho(broker, "p") as publisher:
        subscriber.subscribe("a", qos=2)
        for qos in (0, 1, 2):
            publisher.publish(
                "a", b"{}", qos,
                UserProperty=pairs,
                ResponseTopic="answers/1",
                CorrelationData=b"\0\xff7",
                ContentType="application/json",
                PayloadFormatIndicator=1,
            )  # fmt: skip
            found = properties(subscriber.receive())
            assert found.UserProperty == pairs
            assert found.ResponseTopic == "answers/1"
            assert found.CorrelationData == b"\0\xff7"
            assert found.ContentType == "application/json"
            assert found.PayloadFormatIndicator == 1


def test_a_request_finds_its_answer(broker: ThreadedBroker) -> None:
    with Paho(broker, "service") as service, Paho(broker, "asker") as asker:
        service.subscribe("ask", qos=1)
        asker.subscribe("answers/asker", qos=1)
        asker.publish("ask", b"6*7", 1, ResponseTopic="answers/asker", CorrelationData=b"1")
        found = properties(service.receive())
        service.publish(found.ResponseTopic, b"42", 1, CorrelationData=found.CorrelationData)
        answer = asker.receive()
        assert answer.payload == b"42"
        assert properties(answer).CorrelationData == b"1"


def test_311_gets_the_message_without_its_properties(broker: ThreadedBroker) -> None:
    with Paho(broker, "s", V311) as subscriber, Paho(broker, "p") as publisher:
        subscriber.subscribe("a", qos=1)
        publisher.publish("a", b"x", 1, UserProperty=("k", "v"))
        assert subscriber.payloads(1) == [b"x"]


def test_a_shared_subscription_is_dealt_out(broker: ThreadedBroker) -> None:
    with (
        Paho(broker, "w0") as first,
        Paho(broker, "w1") as second,
        Paho(broker, "w2") as third,
        Paho(broker, "all") as everything,
        Paho(broker, "p") as publisher,
    ):
        workers = first, second, third
        for worker in workers:
            worker.subscribe("$share/crew/jobs/+", qos=1)
        everything.subscribe("jobs/#", qos=1)
        sent = [b"%d" % number for number in range(30)]
        for payload in sent:
            publisher.publish("jobs/1", payload, 1)
        assert everything.payloads(30) == sent
        dealt = [worker.payloads(10) for worker in workers]
        assert sorted(int(job) for jobs in dealt for job in jobs) == list(range(30))
        assert all(worker.messages.empty() for worker in workers)


def test_a_crew_goes_on_without_who_left(broker: ThreadedBroker) -> None:
    with Paho(broker, "w0") as stays, Paho(broker, "p") as publisher:
        stays.subscribe("$share/crew/jobs", qos=1)
        with Paho(broker, "w1") as leaves:
            leaves.subscribe("$share/crew/jobs", qos=1)
            leaves.unsubscribe("$share/crew/jobs")
        for _ in range(10):
            publisher.publish("jobs", b"x", 1)
        assert len(stays.payloads(10)) == 10


def test_topic_aliases_of_the_client(broker: ThreadedBroker) -> None:
    with Paho(broker, "s") as subscriber, Paho(broker, "p") as publisher:
        subscriber.subscribe("#", qos=2)
        assert publisher.connack.TopicAliasMaximum >= 2
        steps = [
            ("a", 1, "a"), ("", 1, "a"), ("b", 2, "b"), ("", 2, "b"), ("", 1, "a"),
            ("c", 1, "c"), ("", 1, "c"),
        ]  # fmt: skip
        for qos in (0, 1, 2):
            for topic, alias, meant in steps:
                publisher.publish(topic, b"x", qos, TopicAlias=alias)
                assert subscriber.receive().topic == meant


def test_an_alias_too_high_ends_with_its_reason(broker: ThreadedBroker) -> None:
    with Paho(broker, "p") as publisher:
        too_high = publisher.connack.TopicAliasMaximum + 1
        publisher.publish("a", b"x", TopicAlias=too_high)
        assert publisher.reason() == 0x94


def test_a_message_expires_and_another_tells_what_is_left(broker: ThreadedBroker) -> None:
    with Paho(broker, "s", stays=True) as subscriber:
        subscriber.subscribe("a", qos=1)
    with Paho(broker, "p") as publisher:
        publisher.publish("a", b"short", 1, MessageExpiryInterval=1)
        publisher.publish("a", b"long", 1, MessageExpiryInterval=1000)
        publisher.publish("a", b"last", 1)
    time.sleep(1.1)  # the second has to pass
    with Paho(broker, "s", stays=True) as subscriber:
        long, last = subscriber.receive(), subscriber.receive()
        assert (long.payload, last.payload) == (b"long", b"last")
        assert 900 < properties(long).MessageExpiryInterval < 1000
        assert not hasattr(properties(last), "MessageExpiryInterval")


def test_a_will_waits_for_its_delay(broker: ThreadedBroker) -> None:
    will = Will("gone", b"bye", 1, delay_s=1)
    with Paho(broker, "watcher") as watcher:
        watcher.subscribe("gone", qos=1)
        with Paho(broker, "c", stays=True, will=will) as client:
            start = time.monotonic()
            client.drop()
        assert watcher.payloads(1) == [b"bye"]
        assert time.monotonic() - start >= 1.0


def test_who_comes_back_in_time_has_no_will(broker: ThreadedBroker) -> None:
    with Paho(broker, "watcher") as watcher:
        watcher.subscribe("gone/#", qos=1)
        with Paho(broker, "c", stays=True, will=Will("gone/c", b"bye", delay_s=1)) as client:
            client.drop()
        with Paho(broker, "c", stays=True) as client:
            assert client.session_present
            with Paho(broker, "d", stays=True, will=Will("gone/d", b"bye", delay_s=1)) as other:
                other.drop()  # a second from now: after the will of `c` would have come
            assert watcher.receive().topic == "gone/d"


def test_a_will_goes_out_when_the_session_ends_before_its_delay(broker: ThreadedBroker) -> None:
    with Paho(broker, "watcher") as watcher:
        watcher.subscribe("gone", qos=1)
        with Paho(broker, "c", will=Will("gone", b"bye", delay_s=3600)) as client:
            client.drop()
        assert watcher.payloads(1) == [b"bye"]


def test_disconnect_with_will(broker: ThreadedBroker) -> None:
    with Paho(broker, "watcher") as watcher:
        watcher.subscribe("gone")
        with Paho(broker, "c", will=Will("gone", b"bye")) as client:
            client.client.disconnect(ReasonCode(PacketTypes.DISCONNECT, identifier=0x04))
            assert watcher.payloads(1) == [b"bye"]


def test_subscription_identifiers(broker: ThreadedBroker) -> None:
    with Paho(broker, "c") as client:
        client.subscribe("a/b", qos=1, identifier=1)
        client.subscribe("a/#", qos=1, identifier=268_435_455)
        client.subscribe("c", qos=1)
        client.publish("a/b", b"x", 1)
        found = properties(client.receive())
        assert sorted(found.SubscriptionIdentifier) == [1, 268_435_455]
        client.publish("c", b"x", 1)
        found = properties(client.receive())
        assert not hasattr(found, "SubscriptionIdentifier")


def test_subscription_options(broker: ThreadedBroker) -> None:
    with Paho(broker, "c") as client, Paho(broker, "p") as publisher:
        publisher.publish("kept", b"old", 1, retain=True)
        client.subscribe("kept", qos=1, retainHandling=2, retainAsPublished=True)
        publisher.publish("kept", b"new", 1, retain=True)
        message = client.receive()
        assert (message.payload, message.retain) == (b"new", True)
        client.subscribe("mine", qos=1, noLocal=True)
        client.publish("mine", b"own", 1)
        publisher.publish("mine", b"other", 1)
        assert client.payloads(1) == [b"other"]


def test_the_server_says_the_keep_alive() -> None:
    with ThreadedBroker(max_keepalive=30) as broker:
        with Paho(broker, "long", keep_alive=60) as long:
            assert long.connack.ServerKeepAlive == 30
            assert long.client.keepalive == 30
        with Paho(broker, "short", keep_alive=20) as short:
            assert not hasattr(short.connack, "ServerKeepAlive")


def test_a_client_that_only_listens_is_kept_alive_by_its_pings() -> None:
    with (
        ThreadedBroker(max_keepalive=1) as broker,
        Paho(broker, "s", keep_alive=1) as subscriber,
        Paho(broker, "p") as publisher,
    ):
        subscriber.subscribe("a", qos=1)
        time.sleep(2.2)  # more than one and a half times the keep alive
        publisher.publish("a", b"x", 1)
        assert subscriber.payloads(1) == [b"x"]
        assert subscriber.ended.empty()


def test_an_assigned_client_identifier() -> None:
    with ThreadedBroker(auto_id_prefix="plant-") as broker, Paho(broker, "") as client:
        assert client.connack.AssignedClientIdentifier.startswith("plant-")


def test_limits_are_told() -> None:
    with (
        ThreadedBroker(
            receive_maximum=7,
            packet_bytes_max=5000,
            topic_alias_maximum=3,
            maximum_qos=1,
            retain_available=False,
            session_expiry_s_max=60,
        ) as broker,
        Paho(broker, "c", stays=True) as client,
    ):
        told = client.connack
        assert told.ReceiveMaximum == 7
        assert told.MaximumPacketSize == 5000
        assert told.TopicAliasMaximum == 3
        assert told.MaximumQoS == 1
        assert told.RetainAvailable == 0
        assert told.SessionExpiryInterval == 60


@pytest.mark.parametrize("qos", [1, 2])
def test_a_small_receive_maximum_of_the_client_loses_nothing(
    broker: ThreadedBroker, qos: int
) -> None:
    sent = [b"%d" % number for number in range(200)]
    with Paho(broker, "s", ReceiveMaximum=1) as subscriber, Paho(broker, "p") as publisher:
        subscriber.subscribe("a", qos=qos)
        for payload in sent:
            publisher.client.publish("a", payload, qos)
        assert subscriber.payloads(len(sent)) == sent


def test_a_message_larger_than_the_client_takes_is_left_out(broker: ThreadedBroker) -> None:
    with Paho(broker, "s", MaximumPacketSize=100) as subscriber, Paho(broker, "p") as publisher:
        subscriber.subscribe("a", qos=1)
        publisher.publish("a", bytes(200), 1)
        publisher.publish("a", b"small", 1)
        assert subscriber.payloads(1) == [b"small"]


def test_stopping_tells_why() -> None:
    broker = ThreadedBroker().start()
    with Paho(broker, "c") as client:
        broker.stop()
        assert client.reason() == 0x8B
