"""Publications as the fleet encodes them, read back by the broker's decoder."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from iot_sim.devices.device import TELEMETRY, Publication
from iot_sim.fleet.encoding import Message, encode_message, encode_will, properties_of
from iot_sim.judge import stamps
from iot_sim.judge.ledger import Flow, Ledger
from mqtt_broker.codec import properties as prop
from mqtt_broker.codec.constants import V5, V311
from mqtt_broker.codec.decode import Decoder
from mqtt_broker.codec.packets import Publish
from tests.property_examples import examples

CHECK = examples(200)
SENT_US = 1_700_000_000_000_000
TEXT = st.text(st.characters(codec="utf-8", exclude_categories=["C"]), max_size=8)
PUBLICATIONS = st.builds(
    Publication,
    topic=st.sampled_from(["a/b", "ä", "x" * 300]),
    payload=st.binary(max_size=300),
    qos=st.integers(0, 2),
    retain=st.booleans(),
    kind=st.just(TELEMETRY),
    content_type=TEXT,
    response_topic=st.sampled_from(["", "answers"]),
    correlation=st.binary(max_size=8),
    user=st.lists(st.tuples(TEXT, TEXT), max_size=3).map(tuple),
)


def flow_of(publication: Publication) -> Flow:
    ledger = Ledger("run", 1_000)
    return ledger.open("dev", TELEMETRY, publication.topic, publication.qos, 0, "observer")


def decoded(data: bytes, version: int) -> Publish:
    [packet] = Decoder(version=version).feed(data)
    assert isinstance(packet, Publish)
    return packet


def own_of(packet: Publish) -> tuple[dict[int, Any], list[tuple[str, str]]]:
    """The properties without the alias, and the user properties apart."""
    found = dict(packet.properties.items())
    found.pop(prop.TOPIC_ALIAS, None)
    found.pop(prop.USER_PROPERTY, None)
    return found, packet.properties.user


@CHECK
@given(PUBLICATIONS, st.booleans(), st.integers(0, 1 << 40), st.sampled_from([0, 1, 300]))
def test_mqtt_5_has_the_stamp_behind_the_publications_own(
    publication: Publication, dup: bool, sequence: int, alias: int
) -> None:
    flow = flow_of(publication)
    message = Message(flow, sequence, SENT_US, publication, V5, publication.retain)
    dup = dup and publication.qos > 0
    packet = decoded(encode_message(message, 77, dup, alias, False), V5)
    assert (packet.topic, packet.qos, packet.retain) == (
        publication.topic, publication.qos, publication.retain
    )  # fmt: skip
    assert packet.dup is dup and (not publication.qos or packet.packet_ids() == [77])
    assert packet.payloads() == [publication.payload]
    assert packet.properties.get(prop.TOPIC_ALIAS, 0) == alias
    found, user = own_of(packet)
    wanted = properties_of(publication)
    assert user == [*wanted.user, (stamps.PROPERTY, user[-1][1])]
    assert found == {key: v for key, v in wanted.items() if key != prop.USER_PROPERTY}
    assert stamps.split(user[-1][1]) == stamps.split(
        stamps.stamp(flow.key, sequence, SENT_US, publication.payload).decode()
    )
    if alias:  # the second time without the topic
        again = decoded(encode_message(message, 77, dup, alias, True), V5)
        assert again.topic == "" and again.properties == packet.properties


@CHECK
@given(PUBLICATIONS, st.integers(0, 1 << 40))
def test_mqtt_3_has_the_stamp_behind_the_payload(publication: Publication, sequence: int) -> None:
    flow = flow_of(publication)
    message = Message(flow, sequence, SENT_US, publication, V311, publication.retain)
    packet = decoded(encode_message(message, 5, False, 0, False), V311)
    assert (packet.topic, packet.qos) == (publication.topic, publication.qos)
    [payload] = packet.payloads()
    found = stamps.from_payload(payload)
    assert found is not None and found[1] == publication.payload
    key, number, sent_us, _, _ = stamps.split(found[0]) or ("", 0, 0, "", 0)
    assert (key, number, sent_us) == (flow.key, sequence, SENT_US)


@CHECK
@given(PUBLICATIONS, st.integers(0, 100), st.sampled_from([V5, V311]))
def test_a_will_has_its_stamp_and_its_delay(
    publication: Publication, delay_s: int, version: int
) -> None:
    flow = Ledger("run", 1_000).open_will("dev")
    will = encode_will(version, publication, delay_s, flow, 3, SENT_US)
    assert (will.topic, will.qos, will.retain) == (
        publication.topic, publication.qos, publication.retain
    )  # fmt: skip
    if version == V5:
        assert will.payload == publication.payload
        assert will.properties.get(prop.WILL_DELAY_INTERVAL, 0) == delay_s
        text = stamps.from_properties(will.properties)
        assert will.properties.user[:-1] == list(publication.user) or text is None
    else:
        assert not will.properties
        text, payload = stamps.from_payload(will.payload) or ("", b"")
        assert payload == publication.payload
    if not any(name == stamps.PROPERTY for name, _ in publication.user):
        assert text is not None
        assert (stamps.split(text) or ("", -1))[:2] == (flow.key, 3)
