"""Topic Names and Topic Filters as text: their grammar, their parts, and matching."""

from __future__ import annotations

from sys import getsizeof
from typing import Final

SHARE: Final = "$share"
_RESERVED: Final = frozenset({"$SYS", "$share", "$stream", "$dlq"})
TEXT_BYTES_MAX: Final = 65_535


def filter_problem(text: str) -> str | None:
    """Return what is wrong with the levels of a Topic Filter, or None."""
    if not text:
        return "a Topic Filter cannot be empty"  # [MQTT-4.7.3-1]
    if "#" in text and (text.index("#") != len(text) - 1 or not (text == "#" or text[-2] == "/")):
        return "# must be the last level, alone"  # [MQTT-4.7.1-1]
    if "+" in text:
        for level in text.split("/"):
            if "+" in level and level != "+":
                return "+ must be alone in its level"  # [MQTT-4.7.1-2]
    return None


def name_problem(text: str) -> str | None:
    """Return why a message cannot be published to this Topic Name, or None."""
    if not text:
        return "a Topic Name cannot be empty"  # [MQTT-4.7.3-1]
    if "+" in text or "#" in text:
        return "a Topic Name has no wildcards, + or #"  # [MQTT-3.3.2-2]
    return text_problem(text)


def text_problem(text: str) -> str | None:
    """Return why `text` cannot be sent as an MQTT string, or None."""
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        return "not valid UTF-8"  # [MQTT-1.5.4-1]
    if size > TEXT_BYTES_MAX:
        return f"{size:,} bytes, MQTT allows {TEXT_BYTES_MAX:,}"  # [MQTT-4.7.3-3]
    if "\x00" in text:
        return "a null character is not allowed"  # [MQTT-1.5.4-2]
    return None


def is_wildcard(text: str) -> bool:
    return "+" in text or text.endswith("#")


def level_count(text: str) -> int:
    return text.count("/") + 1


def split_share(text: str) -> tuple[str, str] | None:
    """Split `$share/<name>/<filter>` into (share name, filter); None for any other filter.

    A missing part is empty; the caller refuses it. [MQTT-4.8.2-1]
    """
    if text != SHARE and not text.startswith("$share/"):
        return None
    name, _, rest = text[len(SHARE) + 1 :].partition("/")
    return name, rest


def is_stream_filter(text: str) -> bool:
    """Tell whether a Topic Filter names a stream of the message log; it need not exist."""
    if text.startswith("$share/"):
        shared = split_share(text)
        text = text if shared is None else shared[1]
    return text == "$stream" or text.startswith("$stream/")


def is_reserved(topic: str) -> bool:
    """Tell whether only the broker may publish to the topic.

    `$SYS` is the broker's own, except for the state that bridges report there.
    """
    if topic.startswith("$SYS/broker/connection/") and topic.endswith("/state"):
        return False
    return topic.split("/", 1)[0] in _RESERVED


def literal_prefix(text: str) -> str:
    """Return the levels of a filter before its first wildcard, without the last slash."""
    levels: list[str] = []
    for level in text.split("/"):
        if level in ("+", "#"):
            break
        levels.append(level)
    return "/".join(levels)


def matches(text: str, topic: str) -> bool:
    """Tell whether Topic Filter `text` matches Topic Name `topic`, level by level."""
    if topic.startswith("$") and text[:1] in ("+", "#"):
        return False  # [MQTT-4.7.2-1]
    wanted, levels = text.split("/"), topic.split("/")
    for place, level in enumerate(wanted):
        if level == "#":
            return True
        if place == len(levels) or level not in ("+", levels[place]):
            return False
    return len(wanted) == len(levels)


def text_bytes(text: str) -> int:
    """Return the memory that a string takes. Python shares strings of one character."""
    return getsizeof(text) if len(text) > 1 or text > "\xff" else 0
