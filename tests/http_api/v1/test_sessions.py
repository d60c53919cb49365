"""/api/v1/sessions against a running broker."""

from __future__ import annotations

from mqtt_broker.http_api.v1.sessions import PLACES
from tests.http_api.operated import operated
from tests.http_api.v1.test_clients import enter


def test_sessions_of_connected_and_absent_clients() -> None:
    with operated() as site:
        here = enter(site, "here")
        for name, expiry in (("soon", 60), ("never", 0xFFFF_FFFF)):
            enter(site, name, expiry=expiry).sock.close()
        site.broker.wait_until(lambda: len(site.broker.server.broker.connections) == 1)
        found = {one["id"]: one for one in site.get("/sessions")["items"]}
        assert found["here"]["online"] and found["here"]["expires_at"] is None
        assert found["soon"]["expires_at"] > found["soon"]["disconnected_at"]
        assert found["never"]["expires_at"] is None and not found["never"]["online"]
        assert site.get("/sessions?online=false&q=SO")["items"][0]["id"] == "soon"
        assert site.get("/sessions?sort=expires_at")["items"][0]["id"] == "soon"
        assert site.get("/sessions?stored=true")["total"] == 0
        for sort in PLACES:
            assert site.get(f"/sessions?sort=-{sort}")["total"] == 3
        here.sock.close()
