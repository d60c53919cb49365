"""Packets as lines."""

from __future__ import annotations

from mqtt_broker.codec.constants import PUBACK
from mqtt_broker.codec.decode import Decoder
from mqtt_broker.codec.encode import encode_ack
from mqtt_broker.core.clients.tap import RECEIVED, SENT, Tap, lines_of, shown_payload
from mqtt_broker.recorder.traces import Traces
from tests.core.peers import V5, publish


def test_what_is_written_is_passed_on_and_shown() -> None:
    trace = Traces().add(0.0, client_id="c", has_payloads=True)
    written: list[bytes] = []

    def write(data: bytes) -> int:
        written.append(data)
        return 7

    tap = Tap("c", V5, write, [trace], lambda: 5.0)
    data = publish("a/b", "ä".encode(), qos=1, packet_id=3)
    assert tap.write(data[:4]) == 7
    assert tap.write(data[4:] + data) == 7
    assert b"".join(written) == data + data
    lines = trace.take(9, 6.0)
    assert len(lines) == 2
    assert lines[0] == {
        "at": 5.0, "client": "c", "direction": SENT, "packet": "PUBLISH", "topic": "a/b",
        "qos": 1, "retain": False, "dup": False, "bytes": 2, "packet_id": 3, "payload": "ä",
    }  # fmt: skip
    tap.show(Decoder(version=V5).feed(encode_ack(PUBACK, 3)), RECEIVED, 5.0)
    assert trace.take(9, 6.0)[0]["packet"] == "PUBACK"


def test_bytes_that_are_no_packets() -> None:
    trace = Traces().add(0.0, client_id="c")
    tap = Tap("c", V5, len, [trace], lambda: 5.0)
    assert tap.write(b"\x00\xff\xff\xff\xff\xff") == 6
    assert trace.take(9, 6.0)[0]["packet"] == "malformed"
    assert not tap.is_over
    trace.end()
    assert tap.is_over


def test_payloads_are_shown_as_text_or_as_base64() -> None:
    assert shown_payload(b"\xff\x00") == {"payload_base64": "/wA="}
    assert shown_payload("é".encode() * 600) == {"payload": "é" * 512}


def test_many_packet_ids_are_counted() -> None:
    acks = b"".join(encode_ack(PUBACK, number) for number in range(1, 60))
    found = [
        line for one in Decoder(version=V5).feed(acks) for line in lines_of(one, has_payloads=False)
    ]
    assert found[0]["count"] == 59
