"""`/api/v1/publish`: publish one message or many, and say of each how far it goes.

The publisher is `$api/` and the name of the token or user. An operator is not bound by the rules of
clients; topics that no client may publish to, schemas and limits hold all the same.
"""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass, fields
from typing import Annotated, Any, Final, TypedDict

from mqtt_broker.codec import properties as prop
from mqtt_broker.codec.errors import Violation
from mqtt_broker.codec.properties import Properties, encode_properties
from mqtt_broker.codec.strings import decode_utf8
from mqtt_broker.core.interfaces.rows import NewMessage, Published
from mqtt_broker.http_api.request.directory_interface import DIRECTORY
from mqtt_broker.http_api.request.json_types import Limits
from mqtt_broker.http_api.request.middleware import Site
from mqtt_broker.http_api.request.operations import Call, Operation, post
from mqtt_broker.http_api.request.problems import bad_request
from mqtt_broker.topics.names import name_problem, text_problem

ROOT: Final = "/api/v1/publish"
MESSAGES_MAX: Final = 1_000
_STRING_BYTES_MAX: Final = 65_535
_PAIRS_MAX: Final = 100
_SECONDS_MAX: Final = 0xFFFF_FFFF


@dataclass(frozen=True, slots=True)
class PublishProperties:
    """Properties of MQTT 5."""

    content_type: str | None = None
    response_topic: str | None = None
    correlation_data_base64: str | None = None
    message_expiry_interval: Annotated[int | None, Limits(0, _SECONDS_MAX)] = None
    payload_format_indicator: Annotated[int | None, Limits(0, 1)] = None
    user_properties: Annotated[
        list[list[str]] | None, Limits(items_max=_PAIRS_MAX, text="pairs of a name and a value")
    ] = None


@dataclass(frozen=True, slots=True)
class MessageToPublish:
    """A message: its payload is a text, or base64."""

    topic: Annotated[str, Limits(chars_min=1, chars_max=_STRING_BYTES_MAX)]
    payload: str | None = None
    payload_base64: str | None = None
    qos: Annotated[int, Limits(0, 2)] = 0
    retain: bool = False
    properties: PublishProperties | None = None


@dataclass(frozen=True, slots=True)
class PublishRequest:
    """A message, or `messages`."""

    topic: Annotated[str | None, Limits(chars_min=1, chars_max=_STRING_BYTES_MAX)] = None
    payload: str | None = None
    payload_base64: str | None = None
    qos: Annotated[int, Limits(0, 2)] = 0
    retain: bool = False
    properties: PublishProperties | None = None
    messages: Annotated[list[MessageToPublish] | None, Limits(items_max=MESSAGES_MAX)] = None


class PublishedItem(TypedDict):
    """The outcome of one message."""

    topic: str
    reason_code: Annotated[int, Limits(text="that PUBACK would have: 0 taken, 16 nobody gets it")]
    matches: Annotated[int, Limits(text="sessions and groups that it goes to")]
    error: Annotated[str | None, Limits(text="what is wrong with it")]


class PublishedList(TypedDict):
    """The outcome of each message, in their order."""

    results: list[PublishedItem]


def operations(site: Site) -> list[Operation]:
    """Return the operation of publishing."""

    async def publish(body: PublishRequest, call: Call) -> PublishedList:
        """Publish one message, or many in their order."""
        wanted = _messages(body)
        messages = [_checked(one, f"messages[{n}]: ") for n, one in enumerate(wanted)]
        directory = site.broker.part(DIRECTORY)
        found = await site.ask(directory.publish, messages, f"$api/{call.caller.name}")
        results = [_shown(one, outcome) for one, outcome in zip(messages, found, strict=True)]
        return {"results": results}

    return [post(ROOT, publish, errors=(409,))]


def _messages(body: PublishRequest) -> list[MessageToPublish]:
    """Return the messages of a body, which has one or a list."""
    if (body.topic is None) is (body.messages is None):
        raise bad_request("send topic for one message, or messages for many")
    if body.messages is None:
        values = {field.name: getattr(body, field.name) for field in fields(MessageToPublish)}
        return [MessageToPublish(**values)]
    if body != PublishRequest(messages=body.messages):
        raise bad_request("payload, qos, retain and properties stand in each of messages")
    return body.messages


def _checked(one: MessageToPublish, where: str) -> NewMessage:
    if problem := _name_problem(one.topic):
        raise bad_request(f"{where}invalid topic {one.topic[:80]!r}: {problem}")
    if one.payload is not None and one.payload_base64 is not None:
        raise bad_request(f"{where}send payload or payload_base64, not both")
    if one.payload_base64 is not None:
        payload = _bytes(one.payload_base64, f"{where}payload_base64")
    else:
        payload = (one.payload or "").encode()
    section = b"" if one.properties is None else _section(one.properties, payload, where)
    return NewMessage(one.topic, payload, one.qos, one.retain, section)


def _bytes(text: str, where: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise bad_request(f"invalid {where}: it is not base64") from None


def _section(given: PublishProperties, payload: bytes, where: str) -> bytes:
    """Return the properties as MQTT encodes them."""
    found: dict[int, Any] = {}
    if given.payload_format_indicator is not None:
        found[prop.PAYLOAD_FORMAT_INDICATOR] = given.payload_format_indicator
        if given.payload_format_indicator:
            _check_text(payload, where)
    if given.message_expiry_interval is not None:
        found[prop.MESSAGE_EXPIRY_INTERVAL] = given.message_expiry_interval
    if given.content_type is not None:
        found[prop.CONTENT_TYPE] = _string(given.content_type, f"{where}content_type")
    if given.response_topic is not None:
        if problem := _name_problem(given.response_topic):
            raise bad_request(f"{where}invalid response_topic: {problem}")
        found[prop.RESPONSE_TOPIC] = given.response_topic
    if given.correlation_data_base64 is not None:
        data = _bytes(given.correlation_data_base64, f"{where}correlation_data_base64")
        if len(data) > _STRING_BYTES_MAX:
            raise bad_request(f"{where}correlation_data has more than {_STRING_BYTES_MAX} bytes")
        found[prop.CORRELATION_DATA] = data
    if given.user_properties:
        found[prop.USER_PROPERTY] = [_pair(pair, where) for pair in given.user_properties]
    return encode_properties(Properties(found)) if found else b""


def _check_text(payload: bytes, where: str) -> None:
    try:
        payload.decode()
    except UnicodeDecodeError:
        raise bad_request(f"{where}payload_format_indicator is 1: payload is not UTF-8") from None


def _pair(pair: list[str], where: str) -> tuple[str, str]:
    if len(pair) != 2:
        raise bad_request(f"{where}user_properties are pairs of a name and a value")
    name, value = (_string(text, f"{where}user_properties") for text in pair)
    return name, value


def _string(text: str, where: str) -> str:
    """Check a text by the rules of MQTT."""
    if problem := text_problem(text) or _refused(text):
        raise bad_request(f"invalid {where}: {problem}")
    return text


def _name_problem(text: str) -> str | None:
    return name_problem(text) or _refused(text)


def _refused(text: str) -> str | None:
    """Say why a broker refuses a string that MQTT could encode: a control character, for one."""
    try:
        decode_utf8(text.encode())
    except Violation as error:
        return error.text
    return None


def _shown(message: NewMessage, outcome: Published) -> PublishedItem:
    return {
        "topic": message.topic,
        "reason_code": outcome.reason_code,
        "matches": outcome.matches,
        "error": outcome.why or None,
    }
