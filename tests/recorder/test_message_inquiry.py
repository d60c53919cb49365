"""Why did this client not get this one message?"""

from __future__ import annotations

from typing import Any

from mqtt_broker.core.client_views import inquire
from mqtt_broker.recorder.inquiry import Answer
from mqtt_broker.recorder.message_ids import name_of, parse_name
from mqtt_broker.recorder.message_inquiry import MessageInquiry
from tests.core.peers import World, publish
from tests.recorder.test_inquiry import Access, at_noon, pump


def ask(world: World, message: str, topic: str = "", client_id: str = "pump-7") -> Answer:
    recorder = world.broker.recorder
    assert recorder is not None
    name = parse_name(message, world.now)
    question = inquire(world.broker.state, recorder, client_id, topic, 0.0, world.now, name)
    assert isinstance(question, MessageInquiry)
    for _ in question.steps():
        pass
    assert question.answer is not None
    return question.answer


def published(text: str = "plant/+/cmd", **options: Any) -> World:
    """Three messages of two publishers, to three topics, at 12:00:05, :10 and :15."""
    world = at_noon(**options)
    pump(world).subscribe(text, qos=1)
    world.peers[-1].drop()
    for number, by in enumerate(("app-3", "app-4", "app-3")):
        world.now += 5
        sender = world.client(by)
        sender.send(publish(f"plant/{number}/cmd", b"x", qos=1, packet_id=1))
        sender.drop()
    return world


def test_by_publisher_and_time() -> None:
    answer = ask(published(), "app-3@12:00:15")
    assert answer.sentence.startswith("published to `plant/2/cmd` by `app-3` at 12:00:15, QoS 1")
    assert answer.sentence.endswith("still in its queue")
    assert len(answer.sentences) == 1


def test_by_the_name_that_facts_show() -> None:
    world = published()
    fact = next(one for one in ask(world, "app-4@12:00:10").facts if name_of(one))
    assert name_of(fact) == "app-4@1970-01-01T12:00:10.000Z"
    assert "`plant/1/cmd`" in ask(world, name_of(fact)).sentence


def test_by_time_and_topic() -> None:
    world = published()
    assert "by `app-4`" in ask(world, "@12:00:10").sentence
    assert "by `app-4`" in ask(world, "@12:00:10", "plant/#").sentence
    assert "by `app-4`" in ask(world, "app-4@12:00:10", "plant/1/cmd").sentence


def test_the_nearest_is_named() -> None:
    world = published()
    assert ask(world, "app-3@12:00:13").sentence == (
        "no message `app-3@12:00:13` is recorded; nearest is "
        "`app-3@1970-01-01T12:00:15.000Z`, to `plant/2/cmd`"
    )
    answer = ask(world, "nobody@12:00:13")
    assert answer.sentence == "no message `nobody@12:00:13` is recorded"
    assert answer.sentences == [] and answer.advice
    recorder = world.broker.recorder
    assert recorder is not None
    recorder.started_ms = 43_260_000
    assert ask(world, "app-3@12:00:13").sentence.endswith("the recorder sees back to 12:01:00")


def test_no_subscription_matched() -> None:
    world = published("plants/#")
    answer = ask(world, "app-3@12:00:15")
    assert answer.sentence == (
        "no subscription of `pump-7` matches `plant/2/cmd`; nearest is `plants/#`"
    )
    assert answer.sentences[0].endswith("no subscription of `pump-7` matched")


def test_several_topics_at_once() -> None:
    world = at_noon()
    pump(world).subscribe("b/#")
    app = world.client("app")
    for topic in ("a/1", "a/2"):
        app.send(publish(topic, b"x"))
    assert ask(world, "app@12:00:00").sentence.endswith("no subscription of `pump-7` matched")


def test_the_publish_was_denied() -> None:
    world = at_noon(access=Access())
    pump(world).subscribe("#", qos=1)
    world.client("app-3").send(publish("secret/7", b"x", qos=1, packet_id=1))
    said = "`app-3` was denied to publish to `secret/7` at 12:00:00 by rule 12 of acl.toml"
    for message, topic in (("app-3@12:00:00", ""), ("@12:00:00", "secret/7")):
        assert ask(world, message, topic).sentence == said


def test_it_came_as_retained() -> None:
    world = at_noon()
    world.client("app").send(publish("a/b", b"x", retain=True))
    world.now += 30
    pump(world).subscribe("a/+")
    answer = ask(world, "app@12:00:00")
    assert "delivered as retained at the SUBSCRIBE of 12:00:30" in answer.sentence
