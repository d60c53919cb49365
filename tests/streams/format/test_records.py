"""Records as tools show them: times, payloads that are no text, properties by their names."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqtt_broker.codec import properties as prop
from mqtt_broker.codec.properties import NO_PROPERTIES, Properties, encode_properties
from mqtt_broker.codec.strings import decode_varint
from mqtt_broker.streams.format.batch import NULL
from mqtt_broker.streams.format.records import Record, as_dict, time_text

START_US = 1_700_000_000_000_000
PLAIN = Record(7, START_US, NULL, NULL, "a/b", "pump", b"21.5", 1, False, b"")


def section_of(properties: Properties) -> bytes:
    """The properties as the log keeps them: without the length in front."""
    data = encode_properties(properties)
    _, start = decode_varint(data, 0, len(data))
    return data[start:]


@pytest.mark.parametrize(
    ("at_us", "text"),
    [
        (0, "1970-01-01T00:00:00Z"),
        (1, "1970-01-01T00:00:00.000001Z"),
        (START_US, "2023-11-14T22:13:20Z"),
        (-1, "1969-12-31T23:59:59.999999Z"),
        (253_402_300_799_999_999, "9999-12-31T23:59:59.999999Z"),
        (NULL, None),
    ],
)
def test_times(at_us: int, text: str | None) -> None:
    assert time_text(at_us) == text


def test_a_plain_record_says_what_it_has_and_nothing_else() -> None:
    assert as_dict(PLAIN, 3) == {
        "partition": 3, "offset": 7, "received": "2023-11-14T22:13:20Z", "topic": "a/b",
        "client_id": "pump", "qos": 1, "retain": False, "payload": "21.5",
    }  # fmt: skip
    assert PLAIN.properties() is NO_PROPERTIES


def test_other_times_are_there_when_they_are_known() -> None:
    found = as_dict(PLAIN._replace(event_us=0, sent_us=START_US, retain=True), 0)
    assert found["event"] == "1970-01-01T00:00:00Z" and found["sent"] == found["received"]
    assert found["retain"] is True


@given(st.binary(max_size=30))
def test_a_payload_is_text_or_base64_and_comes_back(payload: bytes) -> None:
    found = json.loads(json.dumps(as_dict(PLAIN._replace(payload=payload), 0)))
    assert ("payload" in found) is not ("payload_base64" in found)
    if "payload" in found:
        assert found["payload"].encode() == payload
    else:
        assert base64.b64decode(found["payload_base64"]) == payload
        with pytest.raises(UnicodeDecodeError):
            payload.decode()


def test_properties_have_the_names_of_the_specification() -> None:
    properties = Properties(
        {
            prop.PAYLOAD_FORMAT_INDICATOR: 1,
            prop.MESSAGE_EXPIRY_INTERVAL: 0,
            prop.CONTENT_TYPE: "text/plain",
            prop.RESPONSE_TOPIC: "answers",
            prop.CORRELATION_DATA: b"\x00\xff",
            prop.USER_PROPERTY: [("a", "1"), ("a", "2")],
        }
    )
    found: dict[str, Any] = as_dict(PLAIN._replace(section=section_of(properties)), 0)
    told = {key: value for key, value in found.items() if key not in as_dict(PLAIN, 0)}
    assert told == {
        "payload_format_indicator": 1,
        "message_expiry_interval": 0,
        "content_type": "text/plain",
        "response_topic": "answers",
        "correlation_data_base64": "AP8=",
        "user_properties": [["a", "1"], ["a", "2"]],
    }
