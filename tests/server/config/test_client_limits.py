"""Limits of clients as the file says them: what is wrong, what is none, and the documents."""

from __future__ import annotations

from pathlib import Path

import pytest

from mqtt_broker.core.limits.client_limits import ClientLimits
from mqtt_broker.server.config.client_limits import KEYS
from mqtt_broker.server.config.config import Config, load
from mqtt_broker.server.config.tables import ConfigError
from tests.server.broker_process import document


def read(text: str, tmp_path: Path) -> Config:
    path = tmp_path / "fleetmq.toml"
    path.write_text(text)
    return load(str(path), {}, {"durability": "memory"})


WRONG = {
    "limits = 5": "limits is a table",
    "limits = { pocket_bytes_max = 5 }": "did you mean packet_bytes_max?",
    "limits = { connections_max = 5 }": "unknown key connections_max",
    "limits = { user = 'x' }": "unknown key user",
    "limits = { packet_bytes_max = 19 }": "packet_bytes_max is 20 to 268435460",
    "limits = { receive_maximum = 0 }": "receive_maximum is 1 to 65535",
    "limits = { inflight_max = 65_536 }": "inflight_max is 1 to 65535",
    "limits = { queue_messages_max = -1 }": "queue_messages_max is 0 or more",
    "limits = { topic_levels_max = '3' }": "topic_levels_max is a whole number",
    "limits = { retain_available = 0 }": "retain_available is true or false",
    "limits = { sent_messages_per_s = -1 }": "sent_messages_per_s is 0 to",
    "limits = { messages_per_s = nan }": "messages_per_s is 0 to",
    "connects_per_s = -1": "connects_per_s is 0 to",
    "connects_per_s = inf": "connects_per_s is 0 to",
    "messages_per_s = true": "messages_per_s is a number",
    "bytes_per_s = '1MB'": "bytes_per_s is a number",
}


@pytest.mark.parametrize("text", WRONG)
def test_what_is_wrong_is_named_in_one_line(text: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        read(f"[[listeners]]\n{text}\n", tmp_path)
    assert WRONG[text] in str(caught.value) and "\n" not in str(caught.value)
    if text.startswith("limits = {") and "unknown" not in WRONG[text]:
        row = text.removeprefix("limits = { ").removesuffix(" }")
        with pytest.raises(ConfigError) as other:
            read(f"[[client_limits]]\n{row}\n", tmp_path)
        assert WRONG[text] in str(other.value) or "did you mean" in str(other.value)


def test_zero_and_absence(tmp_path: Path) -> None:
    """0 is no limit of its own for rates and subscriptions; an empty table says nothing."""
    text = "limits = { messages_per_s = 0, sent_bytes_per_s = 0.0, subscriptions_max = 0 }"
    for row in (text, "limits = {}", ""):
        (endpoint,) = read(f"[[listeners]]\n{row}\n", tmp_path).endpoints
        assert endpoint.rules.limits is None
    (endpoint,) = read("[[listeners]]\nlimits = { queue_messages_max = 0 }", tmp_path).endpoints
    assert endpoint.rules.limits == ClientLimits(queue_messages_max=0)
    assert not read("[[client_limits]]\nsubscriptions_max = 0\n", tmp_path).security.is_on


def test_the_documents_name_every_key() -> None:
    text = document("docs/SECURITY.md")
    for key in KEYS:
        assert f"`{key}`" in text, key
