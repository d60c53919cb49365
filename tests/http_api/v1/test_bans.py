"""/api/v1/bans: what it takes and answers, and that the broker behind it goes by it."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from urllib.parse import quote

import pytest

from mqtt_broker.cli import main
from mqtt_broker.http_api.server_interface import ServerInterface
from mqtt_broker.security.protection.bans import make_ban, read_bans, write_bans
from mqtt_broker.server.config.config import load
from tests.core.peers import connect
from tests.http_api.brokers import LogBroker, Serving
from tests.server.running import Raw, Running

BANS = "/api/v1/bans"
FLAPPING = {
    "kind": "client", "value": "flaps", "until": 2e9, "why": "flapping", "made_by": "flapping",
    "username": "ann", "address": "",
}  # fmt: skip


def test_ban_list_and_lift(broker: LogBroker, http: Serving) -> None:
    body = {"kind": "address", "value": "203.0.113.7/24", "why": "guesses"}
    made = http.ask("POST", BANS, body)
    assert made.status == 201
    ban = {**body, "value": "203.0.113.0/24", "until": 0.0, "made_by": "hand"}
    assert made.json() == ban
    assert http.get(BANS).json() == {"bans": [ban, FLAPPING]}
    where = f"{BANS}?kind=address&value={quote('203.0.113.9/24', safe='')}"
    assert http.ask("DELETE", where).json() == {
        "lifted": {"kind": "address", "value": "203.0.113.0/24"}
    }
    gone = http.ask("DELETE", where)
    assert (gone.status, gone.json()["error"]) == (404, "UnknownBan")
    assert http.get(BANS).json() == {"bans": [FLAPPING]}


@pytest.mark.parametrize("value", ["..", "a/b", "a b&c=d", "ü\u2028", "%2F", "'\"", "x" * 9_000])
def test_client_ids_of_any_kind(broker: LogBroker, http: Serving, value: str) -> None:
    assert http.ask("POST", BANS, {"kind": "client", "value": value}).status == 201
    assert broker.banned["client", value].until == 0
    assert http.ask("DELETE", f"{BANS}?kind=client&value={quote(value, safe='')}").status == 200
    assert not broker.banned


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ({"kind": "host", "value": "x"}, "invalid kind of ban 'host'"),
        ({"kind": "client"}, "value is missing"),
        ({"value": "x"}, "kind is missing"),
        ({"kind": "client", "value": ""}, "value is missing"),
        ({"kind": "client", "value": 7}, "value is not a string"),
        ({"kind": ["client"], "value": "x"}, "kind is not a string"),
        ({"kind": "client", "value": "\ud800"}, "value is not valid Unicode"),
        ({"kind": "address", "value": "lan"}, "invalid address or network"),
        ({"kind": "user", "value": "x", "for_s": "1"}, "invalid for_s"),
        ({"kind": "user", "value": "x", "for_s": True}, "invalid for_s"),
        ({"kind": "user", "value": "x", "for_s": -1}, "invalid for_s"),
        ({"kind": "user", "value": "x", "for_s": 1e300}, "invalid for_s"),
        ({"kind": "user", "value": "x", "why": "a\nb"}, "printable"),
        ({"kind": "user", "value": "x", "why": "\x1b[2J"}, "printable"),
        ({"kind": "user", "value": "x", "why": "x" * 257}, "256"),
        ({"kind": "user", "value": "x", "why": None}, "why is not a string"),
        ({"kind": "user", "value": "x", "until": 5}, "unknown key 'until'"),
        (b"[1]", "not a JSON object"),
        (b'{"kind": "user", "value": "x", "for_s": NaN}', "not JSON"),
    ],
)
def test_what_is_no_ban(broker: LogBroker, http: Serving, body: object, why: str) -> None:
    if isinstance(body, dict):
        body = json.dumps(body).encode()
    found = http.ask("POST", BANS, body)
    assert (found.status, found.json()["error"]) == (400, "BadRequest")
    assert why in found.json()["text"] and "\n" not in found.json()["text"]
    assert not broker.banned


@pytest.mark.parametrize("query", ["", "?kind=client", "?value=x", "?kind=x&value=y", "?id=1"])
def test_what_can_not_be_lifted(http: Serving, query: str) -> None:
    assert http.ask("DELETE", BANS + query).status == 400


def test_the_token_and_other_sites(broker: LogBroker) -> None:
    with Serving(broker, None, "secret") as http:
        assert http.get(BANS).status == 200
        for method in ("GET", "POST", "DELETE"):
            found = http.ask(method, BANS, headers={"Authorization": "Bearer wrong"})
            assert found.status == 401
        body = {"kind": "user", "value": "x"}
        assert http.ask("POST", BANS, body, headers={"Origin": "http://evil"}).status == 403
        assert http.ask("POST", BANS, body, headers={"Sec-Fetch-Site": "cross-site"}).status == 403
    with Serving(broker, None) as http:
        plain = {"Content-Type": "text/plain"}  # what a form of another site may send
        assert http.ask("POST", BANS, json.dumps(body).encode(), headers=plain).status == 415
    assert not broker.banned


def test_a_disk_that_is_full(broker: LogBroker) -> None:
    broker.ban_error = OSError(28, "No space left on device")
    with Serving(broker, None) as http:
        found = http.ask("POST", BANS, {"kind": "user", "value": "x"})
        assert (found.status, found.json()["error"]) == (500, "DiskError")
        assert len(http.lines) == 1


# With a broker behind it.


def brought_up(tmp_path: Path, text: str) -> Running:
    path = tmp_path / "fleetmq.toml"
    path.write_text(text.replace("DIR", str(tmp_path)))
    return Running(config=load(str(path), {}, {"durability": "memory"}))


def enter(broker: Running, client_id: str) -> tuple[Raw, int]:
    raw = broker.raw()
    raw.send(connect(client_id))
    return raw, raw.packet()[3]


def test_a_ban_is_in_force_when_it_is_answered(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = '[security]\nbans_file = "DIR/bans"\naudit_file = "DIR/audit"\n'
    with brought_up(tmp_path, text) as broker:
        with Serving(ServerInterface(broker.server), None) as http:
            pump, code = enter(broker, "pump")
            other, _ = enter(broker, "other")
            assert code == 0
            ban = {"kind": "client", "value": "pump", "for_s": 900_000, "why": "sells our data"}
            answer = http.ask("POST", BANS, ban)
            assert answer.status == 201
            assert pump.packet()[:1] == b"\xe0"  # thrown out
            again, code = enter(broker, "pump")
            assert code == 0x8A
            assert http.get(BANS).json()["bans"] == [answer.json()]
            # There is one list: the command sees it, and the other way round.
            config = ["--config", str(tmp_path / "fleetmq.toml")]
            assert main.main(["ctl", "bans", *config]) == 0
            assert "client 'pump' for 899" in capsys.readouterr().out
            assert main.main(["ctl", "ban", "user", "bob", *config]) == 0
            broker.ask(broker.server.reload.all)
            broker.wait_until(lambda: broker.server.security.authenticator.bans.count(0) == 2)  # type: ignore[union-attr]
            metrics = http.get("/metrics").body.decode()
            assert "\nfleetmq_bans 2.0\n" in metrics
            assert 'fleetmq_refused_total{reason="banned",what="connect"} 1.0' in metrics
            assert http.ask("DELETE", f"{BANS}?kind=client&value=pump").status == 200
            back, code = enter(broker, "pump")
            assert code == 0
            assert http.ask("DELETE", f"{BANS}?kind=client&value=pump").status == 404
            assert [ban.value for ban in read_bans(str(tmp_path / "bans"))] == ["bob"]
        for raw in (pump, other, again, back):
            raw.sock.close()
    told = [json.loads(line) for line in (tmp_path / "audit").read_text().splitlines()]
    assert [row["event"] for row in told if row["event"] in ("ban", "unban")] == ["ban", "unban"]


def test_many_at_once_are_all_kept(tmp_path: Path) -> None:
    with brought_up(tmp_path, '[security]\nbans_file = "DIR/bans"\n') as broker:
        with Serving(ServerInterface(broker.server), None) as http:

            def ban(number: int) -> None:
                body = {"kind": "client", "value": f"c{number}"}
                assert http.ask("POST", BANS, body).status == 201

            threads = [threading.Thread(target=ban, args=(n,)) for n in range(20)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert len(http.get(BANS).json()["bans"]) == 20
        assert len(read_bans(str(tmp_path / "bans"))) == 20


def test_a_file_that_is_damaged_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "bans"
    write_bans(str(path), [make_ban("client", "x")])
    with (
        brought_up(tmp_path, '[security]\nbans_file = "DIR/bans"\n') as broker,
        Serving(ServerInterface(broker.server), None) as http,
    ):
        path.write_text("rubbish\n")
        found = http.ask("POST", BANS, {"kind": "client", "value": "y"})
        assert (found.status, found.json()["error"]) == (409, "Refused")
        assert "line 1" in found.json()["text"] and path.read_text() == "rubbish\n"
        raw, code = enter(broker, "x")
        assert code == 0x8A  # what was in force stays
        raw.sock.close()


@pytest.mark.parametrize("text", ["", "[security]\nflapping_connects = 2\n"])
def test_a_broker_without_a_list(tmp_path: Path, text: str) -> None:
    with (
        brought_up(tmp_path, text) as broker,
        Serving(ServerInterface(broker.server), None) as http,
    ):
        found = http.ask("POST", BANS, {"kind": "client", "value": "y"})
        assert (found.status, found.json()["error"]) == (409, "Refused")
        assert "bans_file" in found.json()["text"]
        assert http.get(BANS).json() == {"bans": []}


def test_who_flaps_is_listed_and_forgiven(tmp_path: Path) -> None:
    with brought_up(tmp_path, "[security]\nflapping_connects = 2\n") as broker:
        with Serving(ServerInterface(broker.server), None) as http:
            found = [enter(broker, "f") for _ in range(3)]
            assert [code for _, code in found] == [0, 0x8A, 0x8A]
            (ban,) = http.get(BANS).json()["bans"]
            assert (ban["value"], ban["made_by"], ban["address"]) == ("f", "flapping", "127.0.0.1")
            assert "flapping" in http.get("/metrics").body.decode()
            assert http.ask("DELETE", f"{BANS}?kind=client&value=f").status == 200
            found.append(enter(broker, "f"))
            assert found[-1][1] == 0 and http.get(BANS).json() == {"bans": []}
        for raw, _ in found:
            raw.sock.close()
