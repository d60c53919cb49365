"""Why did this client not get it? The questions, and their answers in words."""

from __future__ import annotations

from typing import Any

from mqtt_broker.codec import reasons
from mqtt_broker.codec.constants import PUBACK
from mqtt_broker.codec.encode import encode_ack
from mqtt_broker.core.interfaces.access import Allow, ConnectRequest, OpenAccess
from mqtt_broker.recorder.inquiry import SENTENCES_MAX
from mqtt_broker.recorder.kinds import KIND_NAMES, TAKEN_OVER
from mqtt_broker.recorder.recorder import Recorder
from mqtt_broker.recorder.runs import ClientRuns, TopicRuns
from mqtt_broker.recorder.sentences import clock_for, connection_sentence
from tests.core.peers import V311, Peer, World, connect, publish, unsubscribe
from tests.recorder.histories import ask


class Rules:
    """A guard that names the rule by which it refuses."""

    is_welcome = True

    def may_publish(self, topic: str) -> bool:
        return not topic.startswith("secret/")

    def may_subscribe(self, text: str, qos: int) -> bool:
        return not text.startswith("secret/")

    def why_not(self, text: str, *, is_publish: bool) -> str:
        return "rule 12 of acl.toml"


class Access(OpenAccess):
    guards_topics = True

    def connect(self, request: ConnectRequest) -> Allow:
        return Allow(request.username, guard=Rules())


def pump(world: World) -> Peer:
    return world.client("pump-7", clean=False, expiry=10_000)


def at_noon(**options: Any) -> World:
    world = World(**options)
    world.now = 43_200.0
    return world


def test_queued_delivered_with_dup_and_never_acknowledged() -> None:
    world = at_noon()
    pump(world).subscribe("plant/+/cmd", qos=1)
    world.peers[-1].drop()
    app = world.client("app-3")
    world.now += 60
    app.send(publish("plant/7/cmd", b"x", qos=1, packet_id=1))
    world.now += 60
    pump(world).drop()
    world.now += 60
    device = pump(world)
    answer = ask(world, "pump-7", "plant/7/cmd")
    assert answer.sentence == (
        "published to `plant/7/cmd` by `app-3` at 12:01:00, QoS 1, matched `plant/+/cmd` of "
        "`pump-7` granted QoS 1, queued (away since 12:00:00), delivered 12:03:00 with DUP, "
        "never acknowledged"
    )
    assert answer.advice
    world.now += 5
    device.send(encode_ack(PUBACK, 1))
    assert ask(world, "pump-7", "plant/7/cmd").sentence.endswith("with DUP, acknowledged 12:03:05")


def test_denied_by_a_rule() -> None:
    world = at_noon(access=Access())
    pump(world).subscribe("+/7", qos=1)
    world.client("app-3").send(publish("secret/7", b"x", qos=1, packet_id=1))
    assert ask(world, "pump-7", "secret/7").sentence == (
        "`app-3` was denied to publish to `secret/7` at 12:00:00 by rule 12 of acl.toml"
    )
    world.now += 1
    world.peers[0].subscribe("secret/#", qos=1)
    assert (
        "`pump-7` was denied to subscribe to `secret/#`"
        in ask(world, "pump-7", "secret/7").sentence
    )


def test_no_subscription_matches() -> None:
    world = at_noon()
    pump(world).subscribe("plants/7/#", qos=1)
    answer = ask(world, "pump-7", "plant/7/cmd")
    assert answer.sentence == (
        "no subscription of `pump-7` matches `plant/7/cmd`; nearest is `plants/7/#`"
    )
    world.client("app-3").send(publish("plant/7/cmd"))
    assert ask(world, "pump-7", "plant/7/cmd").sentence == answer.sentence


def test_nothing_was_published() -> None:
    world = at_noon()
    pump(world).subscribe("plant/#", qos=1)
    assert "nothing was published to `plant/7/cmd`" in ask(world, "pump-7", "plant/7/cmd").sentence


def test_there_is_no_such_client() -> None:
    world = at_noon()
    assert ask(world, "pump-8", "a").sentence == "there is no session of `pump-8`"
    world.client("pump-8", expiry=5).drop()
    world.now += 60
    world.broker.tick(world.now)
    said = ask(world, "pump-8", "a").sentence
    assert said == "the session of `pump-8` ended at 12:01:00 (expired)"


def test_a_subscription_that_has_ended() -> None:
    world = at_noon()
    device = pump(world)
    device.subscribe("a/b", qos=1)
    device.send(unsubscribe(5, "a/b"))
    world.client("app").send(publish("a/b"))
    answer = ask(world, "pump-7", "a/b")
    assert answer.sentence.startswith("no subscription of `pump-7` matches `a/b`")
    assert "unsubscribed" in {KIND_NAMES[fact.kind] for fact in answer.facts}


def test_the_queue_was_full() -> None:
    world = at_noon(queue_messages_max=1)
    pump(world).subscribe("a/b", qos=1)
    world.peers[-1].drop()
    app = world.client("app")
    for number in range(2):
        world.now += 5
        app.send(publish("a/b", b"x", qos=1, packet_id=1 + number))
    said = ask(world, "pump-7", "a/b").sentence
    assert said.endswith("queued (away since 12:00:00), dropped 12:00:10 (queue full)")


def test_it_reads_slowly() -> None:
    world = at_noon(outbox_bytes_max=1024)
    device = pump(world)
    device.subscribe("a/b")
    device.is_slow = True
    app = world.client("app")
    for _ in range(5):
        app.send(publish("a/b", b"x" * 900))
    assert "(slow reader)" in ask(world, "pump-7", "a/b").sentence


def test_a_filter_and_any_topic() -> None:
    world = at_noon()
    pump(world).subscribe("a/#", qos=1)
    app = world.client("app")
    for topic in ("a/1", "a/2", "b/1"):
        app.send(publish(topic, b"x", qos=1))
    assert len(ask(world, "pump-7", "a/+").sentences) == 2
    assert len(ask(world, "pump-7").sentences) == 2
    world.now += 600
    assert ask(world, "pump-7", since=world.now - 60).sentences == []


def test_shared_subscriptions_say_who_got_it() -> None:
    world = at_noon()
    members = [world.client(name) for name in ("m1", "m2")]
    for member in members:
        member.subscribe("$share/g/a/b", qos=1)
    app = world.client("app")
    for number in range(2):
        world.now += 2
        app.send(publish("a/b", b"x", qos=1, packet_id=1 + number))
    said = ask(world, "m1", "a/b").sentences
    assert len(said) == 2
    assert sum("given to another member" in line for line in said) == 1
    assert sum("never acknowledged" in line for line in said) == 1


def test_no_local_and_wills() -> None:
    world = at_noon()
    device = world.client("echo")
    device.subscribe("a/b", qos=1, no_local=True)
    device.send(publish("a/b", b"x", qos=1))
    assert ask(world, "echo", "a/b").sentence.endswith("the subscription says No Local")


def test_a_refused_connection() -> None:
    world = at_noon(connections_max=1)
    world.client("one", V311)
    world.peer().send(connect("two"))
    said = ask(world, "two", "a").sentence
    assert said.startswith("`two` was refused from 192.0.2.1 at 12:00:00: ")
    assert reasons.name(reasons.SERVER_BUSY) in said


def test_a_full_ring_answers_in_steps() -> None:
    """Each step is small, however much there is."""
    world = at_noon(recorder_bytes_max=2 << 20)
    pump(world).subscribe("a/b", qos=1)
    recorder = world.broker.recorder
    assert isinstance(recorder, Recorder)
    client = ClientRuns("x")
    for number in range(60_000):
        recorder.published(TopicRuns(f"t/{number % 3_000}"), client, 1, 1, 1, world.now)
    assert recorder.traffic.has_lost
    answer = ask(world, "pump-7", "+/5")
    assert answer.sees_back_to_ms == recorder.traffic.begins_ms
    assert all("`t/5`" in line for line in answer.sentences)


def test_only_the_newest_are_told() -> None:
    world = at_noon()
    pump(world).subscribe("a/b", qos=0)
    app = world.client("app")
    for _ in range(SENTENCES_MAX + 5):
        world.now += 2
        app.send(publish("a/b", b"x"))
    answer = ask(world, "pump-7", "a/b")
    assert len(answer.sentences) == SENTENCES_MAX
    assert answer.is_cut


def test_a_takeover_names_both_addresses() -> None:
    world = at_noon()
    for clean, ends in ((False, "continued"), (True, "begun anew")):
        pump(world).drop()
        pump(world)
        other = world.peer()
        other.peer = "192.0.2.7:5123"
        other.send(connect("pump-7", clean=clean, expiry=10))
        facts = ask(world, "pump-7").facts
        taken = [fact for fact in facts if fact.kind == TAKEN_OVER]
        assert connection_sentence(taken[-1], clock_for(43_200_000)) == (
            "`pump-7` at 192.0.2.1:1 was taken over by 192.0.2.7:5123 at 12:00:00 (same client "
            f"id), session {ends}"
        )
        other.drop()
