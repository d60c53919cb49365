"""/api/v1/clients against a running broker."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final
from urllib.parse import quote

import pytest

from mqtt_broker.http_api.v1.clients import PLACES
from tests.core.peers import connect, publish, subscribe
from tests.http_api.operated import Operated, operated
from tests.server.running import Raw

ODD_IDS: Final = (
    "a/b", "%2F", "%", "\U0001f600 \u00fc", "<script>alert(1)</script>", "a b&c=d?e#f", "+/#",
    "x" * 5_000, "...", "'\"",
)  # fmt: skip


@pytest.fixture
def site() -> Iterator[Operated]:
    with operated() as found:
        yield found


def enter(site: Operated, client_id: str, **fields: object) -> Raw:
    raw = site.broker.raw()
    raw.send(connect(client_id, **fields))  # type: ignore[arg-type]
    assert raw.packet()[3] == 0
    return raw


def test_clients_are_listed_searched_and_sorted(site: Operated) -> None:
    raws = [enter(site, f"pump-{n}", keep_alive=30 + n) for n in range(5)]
    gone = enter(site, "gone", expiry=600)
    gone.sock.close()
    site.broker.wait_until(lambda: len(site.broker.server.broker.connections) == 5)
    found = site.get("/clients?limit=3")
    assert [one["id"] for one in found["items"]] == ["gone", "pump-0", "pump-1"]
    assert found["total"] == 6
    rest = site.get(f"/clients?limit=3&cursor={found['next']}")
    assert [one["id"] for one in rest["items"]] == ["pump-2", "pump-3", "pump-4"]
    assert rest["next"] is None
    away = found["items"][0]
    assert not away["online"] and away["idle_s"] is None and away["disconnected_at"] > 0
    assert site.get("/clients?q=PUMP&online=true")["total"] == 5
    assert site.get("/clients?online=false")["total"] == 1
    assert site.get("/clients?id=pump-3")["items"][0]["keep_alive_s"] == 33
    assert site.get("/clients?address=127.0.0.1&version=5")["total"] == 5
    assert site.get("/clients?user=x")["total"] == site.get("/clients?backlog_min=1")["total"] == 0
    for sort in PLACES:
        ids = [one["id"] for one in site.get(f"/clients?sort={sort}")["items"]]
        back = [one["id"] for one in site.get(f"/clients?sort=-{sort}")["items"]]
        assert ids == back[::-1] and len(ids) == 6
    for raw in raws:
        raw.sock.close()


@pytest.mark.parametrize("client_id", ODD_IDS)
def test_an_id_may_be_any_string(site: Operated, client_id: str) -> None:
    raw = enter(site, client_id, expiry=60)
    path = f"/clients/{quote(client_id, safe='')}"
    assert site.get(path)["id"] == client_id
    assert site.get(f"{path}/subscriptions")["total"] == 0
    assert site.ask("POST", f"{path}/kick", {})["done"] == "kicked"
    assert raw.packet()[:1] == b"\xe0"
    raw.sock.close()
    assert site.ask("POST", f"{path}/expire", {})["done"] == "expired"
    site.get(path, 404)


def test_one_client_whole(site: Operated) -> None:
    raw = enter(site, "c", receive_maximum=2, expiry=60)
    raw.send(subscribe(5, "t/#", qos=1))
    raw.packet()
    other = enter(site, "s")
    for number in range(5):
        other.send(publish("t/a", b"xyz", qos=1, packet_id=number + 1))
        other.packet()
    whole = site.get("/clients/c")
    assert (whole["inflight"], whole["queued"], whole["receive_maximum"]) == (2, 3, 2)
    assert whole["messages_out"] == 2 and whole["rates"]["messages_out"] > 0
    assert whole["will"] is None and whole["limits"]["queue_messages_max"] > 0
    flying, _ = site.get("/clients/c/inflight")["items"]
    assert (flying["topic"], flying["payload_bytes"], flying["publisher"]) == ("t/a", 3, "s")
    page = site.get("/clients/c/queue?limit=2")
    assert [one["place"] for one in page["items"]] == [0, 1] and page["total"] == 3
    rest = site.get(f"/clients/c/queue?cursor={page['next']}")
    assert [one["place"] for one in rest["items"]] == [2] and rest["next"] is None
    (row,) = site.get("/clients/c/subscriptions")["items"]
    assert (row["filter"], row["qos"], row["group"]) == ("t/#", 1, None)
    assert site.get("/clients?sort=-backlog")["items"][0]["id"] == "c"
    assert site.ask("POST", "/clients/c/clear-queue") == {"id": "c", "messages": 3}
    site.broker.wait_until(lambda: site.broker.server.broker.backlog.queued_messages == 0)
    assert site.get("/clients/c")["dropped"] == 3
    raw.sock.close()
    other.sock.close()


def test_kicks_have_their_reason_and_end_the_session_if_asked(site: Operated) -> None:
    raw = enter(site, "c", expiry=60)
    site.ask("POST", "/clients/c/expire", {}, 409)
    for body in ({"reason_code": 0}, {"reason_code": 0x81}, {"reason_code": "x"}, {"x": 1}):
        site.ask("POST", "/clients/c/kick", body, 400)
    site.ask("POST", "/clients/c/kick", {"reason_code": 0x89, "remove_session": True})
    assert raw.packet() == b"\xe0\x01\x89"
    raw.sock.close()
    site.get("/clients/c", 404)
    for action in ("kick", "expire", "clear-queue"):
        site.ask("POST", f"/clients/nobody/{action}", {}, 404)


@pytest.mark.parametrize(
    "query",
    ["sort=x", "limit=0", "online=1", "version=9", "cursor=x", "backlog_min=-1", "colour=red",
     "idle_min_s=nan", "limit=1&limit=2"],
)  # fmt: skip
def test_what_is_no_query(site: Operated, query: str) -> None:
    site.get(f"/clients?{query}", 400)
