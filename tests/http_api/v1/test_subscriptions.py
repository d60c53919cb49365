"""/api/v1/subscriptions against a running broker."""

from __future__ import annotations

from mqtt_broker.http_api.v1.subscriptions import ROOT
from tests.core.peers import subscribe
from tests.http_api.operated import operated
from tests.http_api.v1.test_clients import enter


def test_who_is_subscribed_and_who_would_get_a_topic() -> None:
    with operated() as site:
        raws = []
        for name in ("a", "b"):
            raw = enter(site, name)
            raw.send(subscribe(5, f"plant/+/{name}", "$share/g/plant/#", qos=1))
            raw.packet()
            raws.append(raw)
        assert site.get("/subscriptions")["total"] == 4
        assert site.get("/subscriptions?client=a")["total"] == 2
        assert site.get("/subscriptions?shared=true")["total"] == 2
        assert site.get("/subscriptions?shared=true")["items"][0]["group"] == "g"
        assert site.get("/subscriptions?filter=plant%2F%2B%2Fb")["items"][0]["client"] == "b"
        assert site.get("/subscriptions?q=%2B/A")["total"] == 1
        found = site.get("/subscriptions/match?topic=plant/7/a")
        assert [(one["client"], one["filter"], one["permitted"]) for one in found["items"]] == [
            ("a", "$share/g/plant/#", True), ("a", "plant/+/a", True),
            ("b", "$share/g/plant/#", True),
        ]  # fmt: skip
        assert site.get("/subscriptions/match?topic=none")["items"] == []
        for query in ("", "?topic=", "?topic=a/%23", "?topic=%00", "?topic=a&x=1"):
            found = site.http.get(f"{ROOT}/match{query}")
            assert found.status == 400, query
        for raw in raws:
            raw.sock.close()
