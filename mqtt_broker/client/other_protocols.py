"""Recognition of servers that do not speak MQTT, by the first bytes that they send."""

from __future__ import annotations

from typing import Final

_SIGNS: Final = (
    (b"HTTP/", "no MQTT port: it answers in HTTP (a WebSocket is ws://host:port/path)"),
    (b"\x15\x03", "a TLS port: connect to it with TLS"),
    (b"SSH-", "no MQTT port: it answers in SSH"),
)


def other_protocol(first: bytes) -> str:
    """Say what the sender of these first bytes speaks instead of MQTT, or return an empty text."""
    for sign, text in _SIGNS:
        if first.startswith(sign):
            return f"this is {text}"
    return ""
