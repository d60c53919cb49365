"""What a broker that comes back still knows, after SIGKILL and after SIGTERM.

Each aspect prepares its own clients and topics before the end and looks after the start; all
aspects share one end and one start. The broker is away for longer than a second and a half.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from mqtt_broker.codec import properties as prop
from mqtt_broker.codec.constants import PUBCOMP, PUBREC, PUBREL
from mqtt_broker.codec.encode import encode_ack
from mqtt_broker.codec.packets import Will
from mqtt_broker.codec.properties import Properties
from tests.fault.lives import Lives
from tests.fault.postgres import PostgreSQL
from tests.fault.talk import HOUR_S, Silence, Talker

AWAY_S: Final = 1.6
LONG_TOPIC: Final = "long/" + "/".join(["x" * 400] * 150)


class Aspect(ABC):
    """`before` the end and `after` the start; what is open stays open until the end."""

    def __init__(self) -> None:
        self.open: list[Talker] = []

    def talker(self, broker: Lives, name: str, **options: object) -> Talker:
        talker = Talker(broker.address, f"{type(self).__name__}/{name}", **options)  # type: ignore[arg-type]
        self.open.append(talker)
        return talker

    def hang_up(self) -> None:
        for talker in self.open:
            talker.drop()
        self.open.clear()

    @abstractmethod
    def before(self, broker: Lives) -> None: ...

    @abstractmethod
    def after(self, broker: Lives) -> None: ...


class SubscriptionsWithOptions(Aspect):
    def before(self, broker: Lives) -> None:
        one = self.talker(broker, "one")
        one.subscribe("options/local/#", 1, no_local=True)
        one.subscribe("options/kept", 2, retain_as_published=True, identifier=7)
        one.subscribe("options/plain", 1, identifier=268_435_455)
        one.subscribe("options/gone", 1)
        one.unsubscribe("options/gone")
        one.subscribe("options/plain", 2, identifier=9)

    def after(self, broker: Lives) -> None:
        one = self.talker(broker, "one")
        assert one.present
        one.publish("options/local/a", b"own")
        other = self.talker(broker, "other")
        other.publish("options/gone", b"not wanted")
        other.publish("options/local/a", b"other's")
        other.publish("options/kept", b"kept", qos=2, retain=True)
        other.publish("options/plain", b"plain", qos=2, retain=True)
        local, kept, plain = one.take(3)
        assert (local.payload, local.qos) == (b"other's", 1)
        assert (kept.payload, kept.qos, kept.retain) == (b"kept", 2, True)
        assert kept.properties.subscription_ids == [7]
        assert (plain.payload, plain.qos, plain.retain) == (b"plain", 2, False)
        assert plain.properties.subscription_ids == [9]


class Retained(Aspect):
    def before(self, broker: Lives) -> None:
        one = self.talker(broker, "one")
        found = Properties(
            {
                prop.CONTENT_TYPE: "text/plain",
                prop.USER_PROPERTY: [("a", "1"), ("b", "2"), ("a", "3")],
                prop.MESSAGE_EXPIRY_INTERVAL: HOUR_S,
            }
        )
        one.publish("retained/full", b"everything", qos=2, retain=True, properties=found)
        one.publish("retained/newer", b"old", retain=True)
        one.publish("retained/newer", b"new", retain=True)
        one.publish("retained/gone", b"gone", retain=True)
        one.publish("retained/gone", b"", retain=True)
        brief = Properties({prop.MESSAGE_EXPIRY_INTERVAL: 1})
        one.publish("retained/brief", b"brief", retain=True, properties=brief)
        one.publish("retained/zero", b"at QoS 0", qos=0, retain=True)
        one.publish("retained/last", b"a barrier: what is before it is kept too", retain=True)

    def after(self, broker: Lives) -> None:
        one = self.talker(broker, "new")
        one.subscribe("retained/#", 2)
        found = {message.topic: message for message in one.take(4)}
        assert found.keys() == {
            "retained/full", "retained/newer", "retained/zero", "retained/last",
        }  # fmt: skip
        full = found["retained/full"]
        assert (full.payload, full.qos, full.retain) == (b"everything", 2, True)
        assert full.properties[prop.CONTENT_TYPE] == "text/plain"
        assert full.properties[prop.USER_PROPERTY] == [("a", "1"), ("b", "2"), ("a", "3")]
        left = full.properties.number(prop.MESSAGE_EXPIRY_INTERVAL)
        assert HOUR_S - 60 < left <= HOUR_S - 1
        assert found["retained/newer"].payload == b"new"
        assert found["retained/zero"].payload == b"at QoS 0"


class Window(Aspect):
    """What was sent and not acknowledged comes again, with DUP, as it was, before the rest."""

    def before(self, broker: Lives) -> None:
        one = self.talker(broker, "one", receive_maximum=4)
        one.subscribe("window/#", 2, identifier=5)
        other = self.talker(broker, "other")
        other.publish("window/a", b"acknowledged", qos=1)
        one.accept(one.take(1))
        for number in range(6):
            other.publish("window/a", b"%d" % number, qos=1 + number % 2)
        self.sent = one.take(4)

    def after(self, broker: Lives) -> None:
        other = self.talker(broker, "other")
        other.publish("window/b", b"new")
        one = self.talker(broker, "one", receive_maximum=4)
        assert one.present
        again = one.take(4)
        assert [m.packet_id for m in again] == [m.packet_id for m in self.sent]
        assert [m.payload for m in again] == [b"0", b"1", b"2", b"3"]
        assert [(m.qos, m.dup) for m in again] == [(1, True), (2, True), (1, True), (2, True)]
        assert all(m.properties.subscription_ids == [5] for m in again)
        one.accept(again)
        rest = one.take(3)
        assert [m.payload for m in rest] == [b"4", b"5", b"new"]
        assert not any(m.dup for m in rest)
        one.accept(rest)


class Released(Aspect):
    """PUBREC came before the end: PUBREL comes again, the PUBLISH does not."""

    def before(self, broker: Lives) -> None:
        one = self.talker(broker, "one")
        one.subscribe("released/#", 2)
        other = self.talker(broker, "other")
        for number in range(3):
            other.publish("released", b"%d" % number, qos=2)
        self.sent = one.take(3)
        self.ids = [message.packet_id for message in self.sent]
        for packet_id in self.ids:
            one.send(encode_ack(PUBREC, packet_id))
            assert one.ack(PUBREL).packet_ids == [packet_id]

    def after(self, broker: Lives) -> None:
        one = self.talker(broker, "one")
        assert one.present
        came: list[int] = []
        while len(came) < 3:
            came += one.ack(PUBREL).packet_ids
        assert came == self.ids
        other = self.talker(broker, "other")
        other.publish("released", b"new", qos=2)
        (new,) = one.take(1)
        assert new.payload == b"new" and new.packet_id not in self.ids
        for packet_id in self.ids:
            one.send(encode_ack(PUBCOMP, packet_id))
        one.accept([new])
        one.disconnect()
        one = self.talker(broker, "one")
        one.has_nothing_more()


class InboundIds(Aspect):
    """A QoS 2 PUBLISH whose PUBREC was lost is taken once, over the end too."""

    def before(self, broker: Lives) -> None:
        taker = self.talker(broker, "taker")
        taker.subscribe("inbound/#", 2)
        taker.disconnect()
        one = self.talker(broker, "one")
        for number in (5, 6):
            one.start_publish("inbound", b"%d" % number, qos=2, packet_id=number)
            assert one.ack(PUBREC).packet_ids == [number]
        one.send(encode_ack(PUBREL, 6))
        assert one.ack(PUBCOMP).packet_ids == [6]

    def after(self, broker: Lives) -> None:
        one = self.talker(broker, "one")
        assert one.present
        one.start_publish("inbound", b"5", qos=2, packet_id=5, dup=True)
        assert one.finish_publish(5, 2) < 0x80
        for packet_id, payload in ((5, b"5 again"), (6, b"6 again")):  # free: a new message
            one.start_publish("inbound", payload, qos=2, packet_id=packet_id)
            assert one.finish_publish(packet_id, 2) < 0x80
        taker = self.talker(broker, "taker")
        assert taker.payloads(4) == [b"5", b"6", b"5 again", b"6 again"]


class Queue(Aspect):
    def before(self, broker: Lives) -> None:
        for name in ("one", "two"):
            away = self.talker(broker, name)
            away.subscribe("queue/#", 2 if name == "one" else 1)
            away.disconnect()
        other = self.talker(broker, "other")
        found = Properties(
            {
                prop.RESPONSE_TOPIC: "answers",
                prop.CORRELATION_DATA: b"\0\1\2",
                prop.PAYLOAD_FORMAT_INDICATOR: 1,
                prop.USER_PROPERTY: [("k", "v"), ("k", "w")],
            }
        )
        other.publish("queue/properties", "ü".encode(), qos=2, properties=found)
        other.publish("queue/large", bytes(range(256)) * 4000, qos=2)
        for seconds in (1, 60):
            expiry = Properties({prop.MESSAGE_EXPIRY_INTERVAL: seconds})
            other.publish("queue/expiry", b"%d" % seconds, qos=2, properties=expiry)
        other.publish("queue/empty", b"")
        for number in range(200):
            other.publish("queue/many", b"%d" % number, qos=1 + number % 2)

    def after(self, broker: Lives) -> None:
        for name, qos in (("one", 2), ("two", 1)):
            one = self.talker(broker, name)
            assert one.present
            # In order for each topic and QoS: what is at QoS 2 waits until its packet id is
            # on disk, and QoS 1 does not wait with it.
            came = one.accept(one.take(204))
            first, large, expiring, empty = (
                next(m for m in came if m.topic == f"queue/{what}")
                for what in ("properties", "large", "expiry", "empty")
            )
            assert (first.payload.decode(), first.qos, first.dup) == ("ü", qos, False)
            assert first.properties[prop.RESPONSE_TOPIC] == "answers"
            assert first.properties[prop.CORRELATION_DATA] == b"\0\1\2"
            assert first.properties[prop.PAYLOAD_FORMAT_INDICATOR] == 1
            assert first.properties[prop.USER_PROPERTY] == [("k", "v"), ("k", "w")]
            assert large.payload == bytes(range(256)) * 4000
            assert expiring.payload == b"60"
            assert 40 < expiring.properties.number(prop.MESSAGE_EXPIRY_INTERVAL) <= 59
            assert empty.payload == b""
            many = [m for m in came if m.topic == "queue/many"]
            for sent in (1, 2):
                numbers = [n for n in range(200) if 1 + n % 2 == sent]
                got = [int(m.payload) for m in many if 1 + int(m.payload) % 2 == sent]
                assert got == numbers
            assert all(m.qos == min(qos, 1 + int(m.payload) % 2) for m in many)


class Names(Aspect):
    """As long and as odd as MQTT allows."""

    NAME: Final = "ключ/" + "n" * 2000

    def before(self, broker: Lives) -> None:
        away = self.talker(broker, self.NAME)
        away.subscribe("long/#", 1)
        away.subscribe("längs/𝄞/+", 1)
        away.disconnect()
        other = self.talker(broker, "other")
        other.publish(LONG_TOPIC, b"long", retain=True)
        other.publish("längs/𝄞/'\"\\%;--", b"odd", retain=True)

    def after(self, broker: Lives) -> None:
        one = self.talker(broker, self.NAME)
        assert one.present
        assert [m.topic for m in one.accept(one.take(2))] == [LONG_TOPIC, "längs/𝄞/'\"\\%;--"]
        new = self.talker(broker, "new")
        new.subscribe(LONG_TOPIC, 0)
        assert new.take(1)[0].payload == b"long"


class SharedQueue(Aspect):
    """What waits with a group whose members are all away."""

    def before(self, broker: Lives) -> None:
        for name in ("one", "two"):
            member = self.talker(broker, name)
            member.subscribe("$share/crew/shared/#", 2)
            if name == "one":
                member.disconnect()
        other = self.talker(broker, "other")
        for number in range(4):  # the second is online: they are under way to it
            other.publish("shared", b"sent %d" % number, qos=1 + number % 2)
        self.sent = member.take(4)
        member.disconnect()
        for number in range(4):
            other.publish("shared", b"%d" % number, qos=1 + number % 2)

    def after(self, broker: Lives) -> None:
        one = self.talker(broker, "one")
        assert one.present
        # QoS 1 under way to the other member may come here; its QoS 2 may not.
        moved = [b"sent 0", b"sent 2"]
        waited = [b"0", b"1", b"2", b"3"]
        assert sorted(one.payloads(6)) == sorted(moved + waited)
        two = self.talker(broker, "two")
        assert two.present
        again = two.accept(two.take(2))
        assert [m.payload for m in again] == [b"sent 1", b"sent 3"]
        assert [m.packet_id for m in again] == [m.packet_id for m in self.sent if m.qos == 2]


class Expiry(Aspect):
    """The time while the broker is away counts, of those who were away before it.

    Those who were connected when it was killed have all of their expiry from the start.
    """

    def before(self, broker: Lives) -> None:
        for name, seconds in (("brief", 1), ("long", 60)):
            self.talker(broker, f"online {name}", expiry=seconds).subscribe("expiry/#", 1)
            away = self.talker(broker, f"away {name}", expiry=seconds)
            away.subscribe("expiry/#", 1)
            away.disconnect()

    def after(self, broker: Lives) -> None:
        for name, expected in (("brief", False), ("long", True)):
            for where in ("online", "away"):
                one = self.talker(broker, f"{where} {name}")
                if (where, name) != ("online", "brief"):
                    assert one.present == expected, (where, name)


class EndedSessions(Aspect):
    """A session that was ended does not come back, nor does what it had."""

    def before(self, broker: Lives) -> None:
        one = self.talker(broker, "one")
        one.subscribe("ended/#", 1)
        one.disconnect()
        other = self.talker(broker, "other")
        other.publish("ended/a", b"for the old session")
        one = self.talker(broker, "one", clean=True)
        assert not one.present
        one.subscribe("ended/b", 1)
        one.disconnect()
        brief = self.talker(broker, "brief", expiry=0)
        brief.subscribe("ended/#", 1)
        other.publish("ended/b", b"for the new one")

    def after(self, broker: Lives) -> None:
        assert not self.talker(broker, "brief").present
        one = self.talker(broker, "one")
        assert one.present
        self.talker(broker, "other").publish("ended/a", b"for nobody")
        self.talker(broker, "other").publish("ended/b", b"last")
        assert one.payloads(2) == [b"for the new one", b"last"]


class Wills(Aspect):
    """A will that came due while nobody was there to send it is sent, once."""

    def before(self, broker: Lives) -> None:
        taker = self.talker(broker, "taker")
        taker.subscribe("wills/#", 2)
        taker.disconnect()
        for name, delay in (("online", 0), ("due", 1), ("later", 4), ("never", 60)):
            found = Properties({prop.WILL_DELAY_INTERVAL: delay, prop.CONTENT_TYPE: name})
            will = Will(f"wills/{name}", name.encode(), 2, name == "due", found)
            one = self.talker(broker, name, will=will)
            one.subscribe("some/thing", 1)  # its answer: the session is kept, and so is its will
            if name == "due":
                one.drop()
        self.ended_at = time.monotonic()

    def after(self, broker: Lives) -> None:
        back = self.talker(broker, "never")
        taker = self.talker(broker, "taker")
        assert taker.present
        wills = taker.accept(taker.take(3))
        assert sorted(will.topic for will in wills[:2]) == ["wills/due", "wills/online"]
        assert wills[2].topic == "wills/later"
        assert time.monotonic() - self.ended_at > 3.0
        assert [m.properties[prop.CONTENT_TYPE] for m in wills] == [m.topic[6:] for m in wills]
        self.talker(broker, "new").subscribe("wills/due", 0)
        assert self.open[-1].take(1)[0].retain
        back.publish("wills/last", b"last", qos=2)
        assert taker.payloads(1) == [b"last"]


ASPECTS: Final[list[type[Aspect]]] = [
    SubscriptionsWithOptions, Retained, Window, Released, InboundIds, Queue, Names, SharedQueue,
    Expiry, EndedSessions, Wills,
]  # fmt: skip


class Restarted:
    """A broker that ended in one way or another and is back, and what was found until then."""

    def __init__(self, broker: Lives, end: str) -> None:
        self.broker = broker
        self.aspects = {kind: kind() for kind in ASPECTS}
        self.failed: dict[type[Aspect], Exception] = {}
        for kind, aspect in self.aspects.items():
            try:
                aspect.before(broker)
            except (AssertionError, Silence, OSError, EOFError, ValueError) as error:
                self.failed[kind] = error
        ended_at = time.monotonic()
        if end == "SIGKILL":
            broker.kill()
        else:
            assert broker.terminate() == 0
        for aspect in self.aspects.values():
            aspect.hang_up()
        time.sleep(max(0.0, ended_at + AWAY_S - time.monotonic()))
        broker.start()


@pytest.fixture(
    scope="module",
    params=[
        ("sqlite", "SIGKILL"),
        ("sqlite", "SIGTERM"),
        pytest.param(("postgresql", "SIGKILL"), marks=pytest.mark.slow),
        pytest.param(("postgresql", "SIGTERM"), marks=pytest.mark.slow),
    ],
    ids="-".join,
)
def restarted(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Restarted]:
    database, end = request.param
    url = ""
    if database == "postgresql":
        server: PostgreSQL = request.getfixturevalue("postgresql")
        url = server.database(f"restart_{end.lower()}")
    settings = {"FLEETMQ_PACKET_BYTES_MAX": "8000000"}
    directory: Path = tmp_path_factory.mktemp(end)
    with Lives(directory, database_url=url, env=settings) as broker:
        broker.start()
        found = Restarted(broker, end)
        yield found
        assert broker.complaints() == []


@pytest.mark.parametrize("kind", ASPECTS)
def test_it_survives(restarted: Restarted, kind: type[Aspect]) -> None:
    if kind in restarted.failed:
        raise restarted.failed[kind]
    aspect = restarted.aspects[kind]
    try:
        aspect.after(restarted.broker)
    finally:
        aspect.hang_up()
