"""Broker URLs: what they become, and what is said of those that are wrong."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqtt_broker.client.url import PORTS, BrokerUrl, InvalidUrl, parse_url, without_password


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("mqtt://host", BrokerUrl("mqtt", "host", 1883)),
        ("MQTTS://host", BrokerUrl("mqtts", "host", 8883)),
        ("ws://host/x?y", BrokerUrl("ws", "host", 80, rest="/x?y")),
        ("wss://[::1]:9", BrokerUrl("wss", "::1", 9)),
        ("mqtt://h?topic=a", BrokerUrl("mqtt", "h", 1883, rest="?topic=a")),
        ("mqtt://us%40r:p%3Aw@h/+?c#d", BrokerUrl("mqtt", "h", 1883, "us@r", "p:w", "/+?c#d")),
        ("mqtt://:p@h", BrokerUrl("mqtt", "h", 1883, "", "p")),
    ],
)  # fmt: skip
def test_what_a_url_says(text: str, found: BrokerUrl) -> None:
    assert parse_url(text) == found


@pytest.mark.parametrize("text", ["unix:/run/mqtt", "unix:///run/mqtt"])
def test_a_unix_socket(text: str) -> None:
    found = parse_url(text, ("mqtt", "unix"))
    assert (found.unix_path, str(found)) == ("/run/mqtt", "unix:/run/mqtt")


def test_its_text_has_no_secret() -> None:
    assert str(parse_url("mqtt://u:p@[::1]/a")) == "mqtt://[::1]:1883"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("host/a", "its scheme is not mqtt or mqtts"),
        ("localhost:1883", "its scheme is not mqtt or mqtts"),
        ("http://host", "its scheme is not mqtt or mqtts"),
        ("mqtt:host", "// is missing after mqtt:"),
        ("mqtt://", "the host is missing or malformed"),
        ("mqtt://[::1", "the host is missing or malformed"),
        ("mqtt://h:x/a", "the port is not a number from 1 to 65535"),
        ("mqtt://h:0", "the port is not a number from 1 to 65535"),
        ("mqtt://h:65536", "the port is not a number from 1 to 65535"),
    ],
)
def test_a_wrong_url_is_named_with_what_would_be_right(text: str, says: str) -> None:
    with pytest.raises(InvalidUrl) as found:
        parse_url(text, ("mqtt", "mqtts"), "/topic")
    assert str(found.value) == (
        f"{text!r} is not a broker URL: {says}; "
        "expected mqtt://[user[:password]@]host[:port]/topic (or mqtts://)"
    )


def test_a_relative_unix_path_is_refused() -> None:
    with pytest.raises(InvalidUrl, match="absolute path"):
        parse_url("unix:mqtt", ("mqtt", "unix"))


@pytest.mark.parametrize(
    "text", ["mqtt://u:secret@h:x", "http://u:secret@h", "u:secret@h", "mqtt://u:se/cr:secret@h:x"]
)
def test_an_error_shows_no_password(text: str) -> None:
    with pytest.raises(InvalidUrl) as found:
        parse_url(text)
    assert "secret" not in str(found.value)
    assert "secret" not in without_password(text)


@given(st.text())
def test_no_text_ends_in_another_error(text: str) -> None:
    for scheme in ("", *PORTS):
        with contextlib.suppress(InvalidUrl):
            parse_url(f"{scheme}://{text}" if scheme else text)
