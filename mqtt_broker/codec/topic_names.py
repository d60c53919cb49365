"""Decode Topic Names: each is checked once, and then cached."""

from __future__ import annotations

from typing import Final

from mqtt_broker.codec import properties as prop
from mqtt_broker.codec.errors import Violation
from mqtt_broker.codec.properties import Properties
from mqtt_broker.codec.reasons import MALFORMED_PACKET, PROTOCOL_ERROR
from mqtt_broker.codec.strings import decode_utf8

_TOPICS_CACHED_MAX: Final = 65_536
_TOPIC_BYTES_CACHED_MAX: Final = 256
known_topics: dict[bytes, str] = {}  # valid Topic Names by their bytes; cleared when full


def decode_topic(raw: bytes) -> str:
    topic = decode_utf8(raw)
    if "+" in topic or "#" in topic:  # [MQTT-4.7.0-1]
        raise Violation(MALFORMED_PACKET, "MQTT-3.3.2-2", "wildcard in a Topic Name")
    if len(raw) <= _TOPIC_BYTES_CACHED_MAX:
        if len(known_topics) >= _TOPICS_CACHED_MAX:
            known_topics.clear()
        known_topics[raw] = topic
    return topic


def check_response_topic(found: Properties) -> None:
    response = found.text(prop.RESPONSE_TOPIC)
    if response is not None and (not response or "+" in response or "#" in response):
        raise Violation(PROTOCOL_ERROR, "MQTT-3.3.2-14", "Response Topic with wildcards")
