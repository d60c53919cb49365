"""Output of `fleetmq sub` and `rr` for a message: the payload, -v, --json, or a -F format.

A format is the one of mosquitto_sub: `%` parameters with flags and widths, `@` for strftime,
`\\` escapes. It is compiled once; a message then costs a walk over its parts. Pure: the
time of arrival comes in as nanoseconds since the epoch.
"""

from __future__ import annotations

import argparse
import base64
import json
import re
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

from mqtt_broker.cli.errors import Failure, UsageError
from mqtt_broker.client.protocol import Message
from mqtt_broker.codec import properties as prop
from mqtt_broker.codec.properties import Kind, Properties

Render = Callable[[Message, int], bytes]

_PART: Final = re.compile(
    r"%(?P<flags>[-0]*)(?P<width>\d*)(?:\.(?P<most>\d+))?(?P<percent>.)"
    r"|@(?P<at>.)|\\(?P<escape>.)|(?P<plain>[^%@\\]+)",
    re.DOTALL,
)
_ESCAPES: Final = {
    "\\": b"\\", "0": b"\0", "a": b"\a", "e": b"\x1b", "n": b"\n", "r": b"\r", "t": b"\t",
    "v": b"\v",
}  # fmt: skip
_OF_OTHERS: Final = "CDPRpt"  # the publisher wrote it: any bytes, or any printable text
_NS: Final = 1_000_000_000

# Characters that JSON need not escape but terminals interpret: controls, changes of direction.
_OBEYED: Final = re.compile("[\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")

# In the order mosquitto_sub prints them.
_JSON_PROPERTIES: Final = (
    prop.CONTENT_TYPE,
    prop.CORRELATION_DATA,
    prop.PAYLOAD_FORMAT_INDICATOR,
    prop.MESSAGE_EXPIRY_INTERVAL,
    prop.RESPONSE_TOPIC,
    prop.SUBSCRIPTION_IDENTIFIER,
    prop.TOPIC_ALIAS,
)


def add_output_arguments(parser: argparse.ArgumentParser) -> None:
    output = parser.add_argument_group("output").add_mutually_exclusive_group()
    output.add_argument("-v", "--verbose", action="store_true", help="print topic and payload")
    output.add_argument(
        "-F",
        dest="format",
        metavar="FORMAT",
        help="output format, as of mosquitto_sub: %%t %%p %%q %%r %%j ...",
    )
    output.add_argument("--json", action="store_true", help="print a JSON object for each message")
    parser.add_argument(
        "-N", dest="no_newline", action="store_true", help="no newline after a message"
    )


def renderer(args: argparse.Namespace) -> Render:
    """Return what formats a message as the options say, with the newline at its end."""
    render = _renderer(args, sys.stdout.isatty())
    if args.no_newline:
        return render
    return lambda message, at_ns: render(message, at_ns) + b"\n"


def _renderer(args: argparse.Namespace, is_terminal: bool) -> Render:
    if args.format is not None:
        return compile_format(args.format, is_terminal=is_terminal)
    if args.json:
        return as_json
    if is_terminal:
        return verbose_for_terminal if args.verbose else plain_for_terminal
    return verbose if args.verbose else plain


def plain(message: Message, at_ns: int) -> bytes:
    return message.payload


def verbose(message: Message, at_ns: int) -> bytes:
    return message.topic.encode() + b" " + message.payload


def for_terminal(raw: bytes) -> bytes:
    """Escape what a terminal would obey in bytes that anybody may have published."""
    text = raw.decode(errors="backslashreplace")
    if text.isprintable():
        return raw if text.isascii() else text.encode()
    return "".join(
        one if one.isprintable() or one in "\n\t" else one.encode("unicode_escape").decode()
        for one in text
    ).encode()


def plain_for_terminal(message: Message, at_ns: int) -> bytes:
    return for_terminal(message.payload)


def verbose_for_terminal(message: Message, at_ns: int) -> bytes:
    return for_terminal(message.topic.encode()) + b" " + for_terminal(message.payload)


def as_json(message: Message, at_ns: int) -> bytes:
    """Format a message as a JSON object; a payload that is not UTF-8 as base64."""
    found = _json_head(message, at_ns)
    found["retain"] = message.retain
    try:
        found["payload"] = message.payload.decode()
    except UnicodeDecodeError:
        found["payload"] = base64.b64encode(message.payload).decode()
        found["encoding"] = "base64"
    return _dump(found)


def compile_format(text: str, *, is_terminal: bool = False) -> Render:
    """Return the renderer of a -F format. Raises UsageError for an unknown conversion.

    `is_terminal`: escape characters of the message, not of the format, that a terminal interprets.
    """
    parts: list[Render] = []
    at = 0
    while at < len(text):
        match = _PART.match(text, at)
        if match is None:
            raise UsageError(f"-F ends in the middle of {text[at:]!r}")
        parts.append(_part(match, is_terminal=is_terminal))
        at = match.end()

    def render(message: Message, at_ns: int) -> bytes:
        return b"".join([part(message, at_ns) for part in parts])

    return render


def _part(match: re.Match[str], *, is_terminal: bool) -> Render:
    if match["plain"] is not None:
        return _constant(match["plain"].encode())
    if match["escape"] is not None:
        if match["escape"] not in _ESCAPES:
            raise UsageError(f"-F: no escape {match[0]!r}")
        return _constant(_ESCAPES[match["escape"]])
    if match["at"] is not None:
        return _time_part(match["at"])
    letter = match["percent"]
    if letter == "%":
        return _constant(b"%")
    value = _PARAMETERS.get(letter)
    if value is None:
        raise UsageError(f"-F: no parameter {match[0]!r}")
    if is_terminal and letter in _OF_OTHERS:
        value = _escaped(value)
    if not (match["flags"] or match["width"] or match["most"]):
        return value
    return _padded(value, letter, match["flags"], int(match["width"] or 0), match["most"])


def _escaped(value: Render) -> Render:
    return lambda message, at_ns: for_terminal(value(message, at_ns))


def _constant(raw: bytes) -> Render:
    return lambda message, at_ns: raw


def _time_part(letter: str) -> Render:
    if letter == "@":
        return _constant(b"@")
    if letter == "N":
        return lambda message, at_ns: b"%09d" % (at_ns % _NS)
    return lambda message, at_ns: _local(at_ns).strftime(f"%{letter}").encode()


def _padded(value: Render, letter: str, flags: str, width: int, most: str | None) -> Render:
    fill = b"0" if "0" in flags and "-" not in flags and letter in "AEFlmSXx" else b" "
    left = "-" in flags
    longest = int(most) if most is not None and letter in "CIRt" else None

    def padded(message: Message, at_ns: int) -> bytes:
        raw = value(message, at_ns)[:longest]
        return raw.ljust(width, fill) if left else raw.rjust(width, fill)

    return padded


def _property(key: int) -> Render:
    def value(message: Message, at_ns: int) -> bytes:
        found = message.properties.get(key)
        if found is None:
            return b""
        return found if isinstance(found, bytes) else str(found).encode()

    return value


def _user_properties(message: Message, at_ns: int) -> bytes:
    return " ".join(f"{name}:{value}" for name, value in message.properties.user).encode()


def _subscription_ids(message: Message, at_ns: int) -> bytes:
    return " ".join(map(str, message.properties.subscription_ids)).encode()


def _iso(message: Message, at_ns: int) -> bytes:
    return _local(at_ns).strftime("%Y-%m-%dT%H:%M:%S%z").encode()


def _unix_time(message: Message, at_ns: int) -> bytes:
    return b"%d.%09d" % divmod(at_ns, _NS)


def _json_quoted(message: Message, at_ns: int) -> bytes:
    """Format %j: bytes that are not UTF-8 become U+FFFD, as the format has no other way."""
    found = _mosquitto_json(message, at_ns)
    found["payload"] = message.payload.decode(errors="replace")
    return _dump(found)


def _json_nested(message: Message, at_ns: int) -> bytes:
    """Format %J: the payload is JSON itself."""
    found = _mosquitto_json(message, at_ns)
    try:
        found["payload"] = json.loads(message.payload)
        return _dump(found)
    except (ValueError, RecursionError):
        raise Failure(f"the payload on {message.topic} is not JSON, as %J needs it") from None


def _mosquitto_json(message: Message, at_ns: int) -> dict[str, object]:
    found = _json_head(message, at_ns)
    found["retain"] = int(message.retain)
    found["payloadlen"] = len(message.payload)
    return found


def _json_head(message: Message, at_ns: int) -> dict[str, object]:
    found: dict[str, object] = {
        "tst": _local(at_ns).isoformat(timespec="microseconds"),
        "topic": message.topic,
        "qos": message.qos,
        "retain": 0,  # here for its place; each form says it in its own type
    }
    if message.qos:
        found["mid"] = message.packet_id
    if message.properties:
        found["properties"] = _json_properties(message.properties)
    return found


def _json_properties(properties: Properties) -> dict[str, object]:
    """Return properties for JSON; user properties as pairs: names repeat, their order counts."""
    found: dict[str, object] = {}
    if properties.user:
        found["user-properties"] = [list(pair) for pair in properties.user]
    for key in _JSON_PROPERTIES:
        value = properties.get(key)
        if value is None:
            continue
        row = prop.TABLE[key]
        if isinstance(value, bytes):
            assert row.kind is Kind.BINARY
            try:
                found[row.name] = value.decode()
            except UnicodeDecodeError:
                found[row.name] = base64.b64encode(value).decode()
                found[f"{row.name}-encoding"] = "base64"
        else:
            found[row.name] = value
    return found


def _dump(found: dict[str, object]) -> bytes:
    text = json.dumps(found, ensure_ascii=False, separators=(",", ":"))
    return _OBEYED.sub(lambda one: f"\\u{ord(one[0]):04x}", text).encode()


def _local(at_ns: int) -> datetime:
    """Convert to local time in whole microseconds: a float of seconds would lose some."""
    seconds, rest = divmod(at_ns, _NS)
    return datetime.fromtimestamp(seconds, UTC).astimezone().replace(microsecond=rest // 1_000)


_PARAMETERS: Final[dict[str, Render]] = {
    "A": _property(prop.TOPIC_ALIAS),
    "C": _property(prop.CONTENT_TYPE),
    "D": _property(prop.CORRELATION_DATA),
    "E": _property(prop.MESSAGE_EXPIRY_INTERVAL),
    "F": _property(prop.PAYLOAD_FORMAT_INDICATOR),
    "I": _iso,
    "J": _json_nested,
    "P": _user_properties,
    "R": _property(prop.RESPONSE_TOPIC),
    "S": _subscription_ids,
    "U": _unix_time,
    "X": lambda message, at_ns: message.payload.hex().upper().encode(),
    "j": _json_quoted,
    "l": lambda message, at_ns: str(len(message.payload)).encode(),
    "m": lambda message, at_ns: str(message.packet_id).encode(),
    "p": lambda message, at_ns: message.payload,
    "q": lambda message, at_ns: str(message.qos).encode(),
    "r": lambda message, at_ns: str(int(message.retain)).encode(),
    "t": lambda message, at_ns: message.topic.encode(),
    "x": lambda message, at_ns: message.payload.hex().encode(),
}
