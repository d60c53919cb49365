"""/api/v1/publish against a running broker."""

from __future__ import annotations

import pytest

from mqtt_broker.http_api.v1.publish import MESSAGES_MAX
from tests.core.peers import subscribe
from tests.http_api.operated import operated
from tests.http_api.v1.test_clients import enter


def test_one_message_and_many() -> None:
    with operated() as site:
        raw = enter(site, "c")
        raw.send(subscribe(5, "t/#", qos=1))
        raw.packet()
        body = {"topic": "t/a", "payload": "h\u00e9", "qos": 1, "properties": {"content_type": "x"}}
        assert site.ask("POST", "/publish", body)["results"] == [
            {"topic": "t/a", "reason_code": 0, "matches": 1, "error": None}
        ]
        assert raw.packet().endswith("h\u00e9".encode())
        many = [{"topic": f"t/{n}", "payload_base64": "AAE="} for n in range(50)]
        found = site.ask("POST", "/publish", {"messages": [*many, {"topic": "none"}]})["results"]
        assert [one["matches"] for one in found] == [1] * 50 + [0]
        assert found[-1]["reason_code"] == 16
        assert raw.packet().endswith(b"t/0\x00\x00\x01")
        refused = site.ask("POST", "/publish", {"topic": "$SYS/x"})["results"][0]
        assert refused["reason_code"] == 0x87 and refused["error"]
        site.ask("POST", "/publish", {"topic": "r", "payload": "x", "retain": True})
        assert site.get("/retained/message?topic=r")["publisher"] == "$api/anonymous"
        raw.sock.close()


@pytest.mark.parametrize(
    "body",
    [
        {}, {"topic": ""}, {"topic": "a/+"}, {"topic": "a\u0000"}, {"topic": "a\u0001"},
        {"topic": "t", "qos": 3}, {"topic": "t", "payload": "x", "payload_base64": "eA=="},
        {"topic": "t", "payload_base64": "%"}, {"topic": "t", "payload": 1},
        {"topic": "t", "messages": []}, {"messages": [{}]}, {"messages": {"topic": "t"}},
        {"qos": 1, "messages": [{"topic": "t"}]}, {"topic": "t", "x": 1},
        {"messages": [{"topic": "t"}] * (MESSAGES_MAX + 1)},
        {"topic": "t", "properties": {"user_properties": [["a"]]}},
        {"topic": "t", "properties": {"response_topic": "a/#"}},
        {"topic": "t", "properties": {"message_expiry_interval": -1}},
        {"topic": "t", "payload_base64": "/w==", "properties": {"payload_format_indicator": 1}},
        {"topic": "t", "properties": {"correlation_data_base64": "?"}},
        {"topic": "t", "properties": {"content_type": "x" * 70_000}},
    ],
)  # fmt: skip
def test_what_is_no_message(body: object) -> None:
    with operated() as site:
        found = site.ask("POST", "/publish", body, 400)
        assert "\n" not in found["detail"]
