"""The decoder and its stream: cuts, runs, the good before the bad, and limits."""

from __future__ import annotations

import tracemalloc
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqtt_broker.codec import constants as c
from mqtt_broker.codec import encode
from mqtt_broker.codec.decode import RUN_MAX, Decoder
from mqtt_broker.codec.errors import Violation
from mqtt_broker.codec.packets import Ack, Connect, Packet, Pingreq, Publish
from mqtt_broker.codec.topic_names import known_topics
from tests.codec.examples import CHECK, VERSIONS, connects, flat, wires

versions = st.sampled_from(VERSIONS)


def feed_all(decoder: Decoder, chunks: list[bytes]) -> list[object]:
    found: list[Packet | Violation] = []
    for chunk in chunks:
        found += decoder.feed(chunk)
    return flat(found)


def cut(stream: bytes, places: list[int]) -> list[bytes]:
    edges = [0, *sorted(place % (len(stream) + 1) for place in places), len(stream)]
    return [stream[a:b] for a, b in pairwise(edges) if b > a]


@given(versions, st.data(), st.lists(st.integers(0, 2000), max_size=12))
@CHECK
def test_cuts_do_not_matter(version: int, data: st.DataObject, places: list[int]) -> None:
    stream = b"".join(data.draw(st.lists(wires(version), min_size=1, max_size=8)))
    whole = feed_all(Decoder(version=version), [stream])
    assert feed_all(Decoder(version=version), cut(stream, places)) == whole
    assert (
        feed_all(Decoder(version=version), [stream[i : i + 1] for i in range(len(stream))]) == whole
    )


@given(connects(), st.data())
@CHECK
def test_cuts_do_not_matter_from_the_first_byte(connect: Connect, data: st.DataObject) -> None:
    stream = encode.encode_connect(connect)
    stream += b"".join(data.draw(st.lists(wires(connect.version), max_size=3)))
    whole = feed_all(Decoder(), [stream])
    assert whole[0] == connect
    for place in range(1, len(stream)):
        assert feed_all(Decoder(), [stream[:place], stream[place:]]) == whole


@given(versions, st.data())
@CHECK
def test_damage_is_found_wherever_the_cuts_are(version: int, data: st.DataObject) -> None:
    """The same packets and the same refusal, however a broken stream arrives."""
    stream = bytearray(b"".join(data.draw(st.lists(wires(version), min_size=1, max_size=5))))
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(stream) - 1))
        stream[place] = data.draw(st.integers(0, 255))
    # A broken length may promise bytes that never come: then there is nothing to compare yet.
    stream += b"\xc0\x00" * 30
    whole = feed_all(Decoder(version=version), [bytes(stream)])
    single = [bytes([byte]) for byte in stream]
    assert feed_all(Decoder(version=version), single) == whole


@given(st.binary(max_size=200), st.sampled_from([0, *VERSIONS]), st.booleans())
@CHECK
def test_noise_is_refused_and_nothing_else(noise: bytes, version: int, server: bool) -> None:
    decoder = Decoder(version=version, from_server=server)
    found = decoder.feed(noise)
    violations = [packet for packet in found if isinstance(packet, Violation)]
    assert len(violations) <= 1
    if violations:
        assert found[-1] is violations[0]
        assert violations[0].reason >= 0x80
        assert violations[0].rule.startswith("MQTT")
        assert decoder.feed(b"\xc0\x00") == []


BAD = [
    "00 00", "36 05 0001 74 00 78", "38 04 0001 74 00", "30 03 0001 2b", "32 05 0001 74 0000",
    "41 02 0001", "60 02 0001", "c1 00", "30 80 80 80 80 01", "82 02 0001", "d0 00", "20 02 0000",
    "40 02 0000", "30 ff ff ff 7f",
]  # fmt: skip


@pytest.mark.rule("MQTT-4.13.1-1")
@pytest.mark.parametrize("bad", BAD)
@given(version=versions, data=st.data())
@CHECK
def test_the_good_before_the_bad(bad: str, version: int, data: st.DataObject) -> None:
    good = b"".join(data.draw(st.lists(wires(version), max_size=6)))
    decoder = Decoder(version=version, packet_bytes_max=1_000_000)
    found = decoder.feed(good + bytes.fromhex(bad) + good)
    assert isinstance(found[-1], Violation)
    assert flat(found[:-1]) == feed_all(Decoder(version=version), [good])
    assert decoder.feed(good) == []
    assert decoder.feed(b"\xc0\x00") == []


@given(
    versions,
    st.lists(
        st.tuples(
            st.sampled_from(["t", "u", "tt"]),
            st.integers(0, 2),
            st.sampled_from([b"", b"x", b"y"]),
            st.booleans(),
            st.integers(1, 4),
        ),
        min_size=1,
        max_size=12,
    ),
)
@CHECK
def test_runs_of_publish_say_the_same(
    version: int, messages: list[tuple[str, int, bytes, bool, int]]
) -> None:
    packets = [
        encode.encode_publish(version, topic, payload, qos=qos, retain=retain, packet_id=number)
        for topic, qos, payload, retain, number in messages
    ]
    apart = feed_all(Decoder(version=version), packets)
    assert len(apart) == len(messages)
    together = Decoder(version=version).feed(b"".join(packets))
    assert flat(together) == apart
    for one, other in pairwise(together):  # a run is as long as it may be
        assert isinstance(one, Publish)
        assert isinstance(other, Publish)
        same = (one.topic, one.qos, one.retain, one.size) == (
            other.topic, other.qos, other.retain, other.size
        )  # fmt: skip
        assert not same


@given(
    st.lists(st.tuples(st.sampled_from([0x40, 0x50, 0x62, 0x70]), st.integers(1, 9)), max_size=20)
)
@CHECK
def test_runs_of_acks_say_the_same(acks: list[tuple[int, int]]) -> None:
    packets = [bytes([first, 2, 0, number]) for first, number in acks]
    apart = feed_all(Decoder(version=c.V311), packets)
    together = Decoder(version=c.V311).feed(b"".join(packets))
    assert flat(together) == apart
    kinds = [packet.packet_type for packet in together if isinstance(packet, Ack)]
    assert all(a != b for a, b in pairwise(kinds))


def test_a_run_is_one_object() -> None:
    wire = encode.encode_publish(c.V5, "t", b"payload", qos=1, packet_id=1)
    (run,) = Decoder(version=c.V5).feed(wire * 1000)
    assert isinstance(run, Publish)
    assert run.count == 1000
    (acks,) = Decoder(version=c.V5).feed(b"\x40\x02\x00\x07" * 1000)
    assert acks == Ack(c.PUBACK, [7] * 1000)


@pytest.mark.parametrize("first", [0x40, 0x50, 0x62, 0x70])
def test_id_0_ends_a_run_of_acks(first: int) -> None:
    wire = b"".join(bytes([first, 2, 0, number]) for number in (1, 2, 0, 3))
    found = Decoder(version=c.V5).feed(wire)
    assert found[0] == Ack(first >> 4, [1, 2])
    assert isinstance(found[1], Violation)
    assert len(found) == 2


@pytest.mark.parametrize("qos", [1, 2])
def test_id_0_ends_a_run_of_publish(qos: int) -> None:
    wire = b"".join(
        encode.encode_publish(c.V5, "t", b"x", qos=qos, packet_id=number) for number in (1, 2, 0, 3)
    )
    found = Decoder(version=c.V5).feed(wire)
    assert isinstance(found[0], Publish)
    assert found[0].packet_ids() == [1, 2]
    assert isinstance(found[1], Violation)
    assert found[1].reason == 0x82


def test_ids_that_look_like_packets() -> None:
    """A run is cut by lengths, not by what the bytes in it look like."""
    wire = b"\x40\x02\x40\x02" * 3 + b"\x62\x02\x62\x02" * 2 + b"\x40\x02\x62\x02"
    found = Decoder(version=c.V311).feed(wire)
    assert found == [
        Ack(c.PUBACK, [0x4002] * 3),
        Ack(c.PUBREL, [0x6202] * 2),
        Ack(c.PUBACK, [0x6202]),
    ]


def test_a_topic_that_begins_like_the_last() -> None:
    one = encode.encode_publish(c.V311, "a", b"bc")
    other = encode.encode_publish(c.V311, "ab", b"c")
    assert len(one) == len(other)
    assert flat(Decoder(version=c.V311).feed(one + other)) == feed_all(
        Decoder(version=c.V311), [one, other]
    )


def test_an_alias_without_a_topic_makes_runs_too() -> None:
    wire = bytes.fromhex("3007 0000 03 23 0001 78") * 3
    (run,) = Decoder(version=c.V5).feed(wire)
    assert isinstance(run, Publish)
    assert (run.topic, run.count) == ("", 3)


# Limits.


@pytest.mark.rule("MQTT-3.2.2-15")
@pytest.mark.parametrize("first", [0x30, 0x32, 0x82, 0xE0])
def test_too_large_is_known_from_the_length(first: int) -> None:
    decoder = Decoder(version=c.V5, packet_bytes_max=1000)
    (found,) = decoder.feed(bytes([first]) + b"\xe6\x07")  # 998 more bytes: 1,001 in all
    assert isinstance(found, Violation)
    assert found.reason == 0x95
    assert not found.silent
    assert decoder.buffered_bytes == 0


def test_just_large_enough() -> None:
    wire = encode.encode_publish(c.V5, "t", b"x" * 993)
    assert len(wire) == 1000
    (packet,) = Decoder(version=c.V5, packet_bytes_max=1000).feed(wire)
    assert isinstance(packet, Publish)
    (refused,) = Decoder(version=c.V5, packet_bytes_max=999).feed(wire)
    assert isinstance(refused, Violation)


def test_a_run_is_no_packet_that_is_too_large() -> None:
    wire = encode.encode_publish(c.V5, "t", b"x" * 93)
    (run,) = Decoder(version=c.V5, packet_bytes_max=100).feed(wire * 50)
    assert isinstance(run, Publish)
    assert run.count == 50


def test_before_connect_everything_but_connect_is_a_silent_close() -> None:
    for first in range(256):
        if first >> 4 == c.CONNECT:
            continue
        (found,) = Decoder().feed(bytes([first, 2, 0, 1]))
        assert isinstance(found, Violation), hex(first)
        assert found.silent, hex(first)


def test_a_large_packet_in_small_chunks_is_joined_once() -> None:
    """Joined at every chunk, this would copy 2.5 GB."""
    wire = encode.encode_publish(c.V5, "t", b"x" * 1_000_000)
    decoder = Decoder(version=c.V5)
    found = []
    copied = 0
    tracemalloc.start()
    try:
        for at in range(0, len(wire), 200):
            before, _ = tracemalloc.get_traced_memory()
            tracemalloc.reset_peak()
            found += decoder.feed(wire[at : at + 200])
            copied += tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()
    assert len(found) == 1
    assert copied < 8 * len(wire)


def test_what_is_kept_is_what_came() -> None:
    decoder = Decoder(version=c.V5)
    assert decoder.feed(b"\xc0\x00\x30\x64\x00\x01t") == [Pingreq()]
    assert decoder.buffered_bytes == 5
    assert decoder.feed(b"\x00") == []
    assert decoder.buffered_bytes == 6
    decoder.feed(b"x" * 96 + b"\xc0")
    assert decoder.buffered_bytes == 1


def test_the_topic_cache_is_bounded() -> None:
    """However many topics come, and however long they are."""
    decoder = Decoder(version=c.V5)
    for number in range(70_000):
        decoder.feed(encode.encode_publish(c.V5, f"t/{number}", b""))
    assert 0 < len(known_topics) <= 65_536
    decoder.feed(encode.encode_publish(c.V5, "x" * 10_000, b""))
    assert all(len(topic) < 1000 for topic in known_topics)


@pytest.mark.parametrize("version", VERSIONS)
def test_server_packets_in_the_servers_direction_only(version: int) -> None:
    for wire in ("20020000", "9003000100", "b0020001", "d000"):
        (found,) = Decoder(version=version).feed(bytes.fromhex(wire))
        assert isinstance(found, Violation), wire
    for wire in ("82060001000174" + "00", "a2050001000174", "c000"):
        (found,) = Decoder(version=version, from_server=True).feed(bytes.fromhex(wire))
        assert isinstance(found, Violation), wire


# A decoder that stops, for whoever shares a thread with others.


def test_a_decoder_stops_behind_so_many_packets() -> None:
    decoder = Decoder(version=c.V5, packets_max=3)
    data = b"\xc0\x00" * 7
    counts = [len(decoder.feed(data))]
    while decoder.has_more:
        counts.append(len(decoder.feed(b"")))
    assert counts == [3, 3, 1]
    assert len(decoder.feed(b"\xc0\x00")) == 1 and not decoder.has_more


def test_what_is_kept_is_decoded_behind_what_waits() -> None:
    decoder = Decoder(version=c.V5, packets_max=2)
    data = b"".join(encode.encode_publish(c.V5, "t", b"x" * n) for n in range(6))
    found = decoder.feed(data[:20])
    for byte in data[20:]:
        decoder.keep(bytes((byte,)))
    while decoder.has_more:
        found += decoder.feed(b"")
    payloads = [one.payloads() for one in found if isinstance(one, Publish)]
    assert payloads == [[b"x" * n] for n in range(6)]


def test_nothing_is_kept_behind_a_violation() -> None:
    decoder = Decoder(version=c.V5)
    assert isinstance(decoder.feed(b"\x00\x00")[0], Violation)
    decoder.keep(b"\xc0\x00")
    assert [decoder.has_more, decoder.feed(b"")] == [False, []]


@pytest.mark.parametrize(("qos", "longest"), [(0, 4_096), (1, RUN_MAX), (2, RUN_MAX)])
def test_runs_end(qos: int, longest: int) -> None:
    data = b"".join(
        encode.encode_publish(c.V5, "t", b"x", qos=qos, packet_id=1 + n) for n in range(longest + 5)
    )
    found = Decoder(version=c.V5).feed(data)
    assert [one.count for one in found if isinstance(one, Publish)] == [longest, 5]


def test_runs_of_acknowledgements_end() -> None:
    ids = list(range(1, RUN_MAX + 6))
    found = Decoder(version=c.V5).feed(b"".join(encode.encode_ack(c.PUBACK, i) for i in ids))
    assert [one.packet_ids for one in found if isinstance(one, Ack)] == [
        ids[:RUN_MAX],
        ids[RUN_MAX:],
    ]
