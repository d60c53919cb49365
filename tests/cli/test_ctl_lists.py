"""Lists and details of `fleetmq ctl`: what they ask, and what they print."""

from __future__ import annotations

import json
import time

import pytest

from mqtt_broker.cli.ctl_lists import DETAILS, LISTS
from tests.cli.fake_api import Ctl, problem

PUMP = {
    "id": "pump-7", "online": True, "user": "ann", "address": "10.0.0.7", "version": 5,
    "subscriptions": 2, "inflight": 0, "queued": 1_234, "dropped": 3, "unread_bytes": 0,
    "messages_in": 5, "messages_out": 6, "idle_s": 200, "keep_alive_s": 60,
}  # fmt: skip


def test_clients_are_a_table(ctl: Ctl) -> None:
    ctl.api.pages("/clients", [PUMP, PUMP | {"id": "\x1b[2J<b>", "online": False}])
    code, out, _ = ctl("clients")
    assert code == 0
    head, first, second = out.splitlines()
    assert head.split() == [column.title for column in LISTS["clients"].columns]
    assert first.split() == "pump-7 yes ann 10.0.0.7 5 2 0 1,234 3 0 B 5 6 3m20s".split()
    assert second.startswith("\\x1b[2J<b>  no ") and len(first) == len(second) == len(head)


def test_options_become_parameters(ctl: Ctl) -> None:
    ctl.api.pages("/clients", [])
    before = time.time() - 600
    code, out, _ = ctl(
        "clients", "pump", "--user", "ann", "--no-online", "--backlog-min", "5", "--idle-min",
        "2h", "--connected-since", "10m", "--sort", "backlog", "--desc", "--limit", "7",
    )  # fmt: skip
    assert code == 0 and out.startswith("CLIENT")
    query = ctl.api.last().query
    assert abs(float(query.pop("connected_since")) - before) < 60
    assert query == {
        "q": "pump", "user": "ann", "online": "false", "backlog_min": "5", "idle_min_s": "7200.0",
        "sort": "-backlog", "limit": "7",
    }  # fmt: skip


def test_json_is_one_document(ctl: Ctl) -> None:
    ctl.api.pages("/clients", [PUMP] * 3)
    code, out, _ = ctl("clients", "--json", "--limit", "2")
    assert code == 0 and json.loads(out) == {"items": [PUMP] * 2, "total": 3}


def test_what_is_left_out_is_said(ctl: Ctl) -> None:
    ctl.api.pages("/sessions", [PUMP] * 3)
    assert ctl("sessions", "--limit", "2")[1].endswith("2 of 3; --limit 0 shows all\n")
    assert len(ctl("sessions", "--limit", "0")[1].splitlines()) == 4


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["clients", "--sort", "x"], "--sort 'x': expected one of id, backlog"),
        (["clients", "--backlog-min", "-1"], "not a whole number"),
        (["clients", "--idle-min", "5"], "--idle-min is a duration"),
        (["clients", "--limit", "x"], "not a whole number"),
        (["groups"], "STREAM"),
        (["nothing"], "invalid choice"),
        (["client", "a", "--queue", "--inflight"], "not allowed with"),
    ],
)
def test_mistakes(ctl: Ctl, arguments: list[str], said: str) -> None:
    code, out, err = ctl(*arguments)
    assert (code, out) == (2, "") and said in err and err.count("\n") == 1
    assert not ctl.api.asked


@pytest.mark.parametrize("name", [name for name, one in LISTS.items() if one.is_paged])
def test_every_list_has_a_table_and_json(ctl: Ctl, name: str) -> None:
    one = LISTS[name]
    item = {column.key: 1 for column in one.columns} | {"name": "x"}
    ctl.api.pages(one.path, [item])
    code, out, _ = ctl(name)
    assert code == 0 and len(out.splitlines()) == 2
    assert json.loads(ctl(name, "--json")[1])["items"] == [item]
    ctl.api.pages(one.path, [])
    assert ctl(name)[0] == 0
    ctl.api.answers[f"GET {one.path}"] = problem(409, "this broker keeps none")
    assert ctl(name)[::2] == (1, "fleetmq ctl: this broker keeps none\n")


def test_streams_and_groups(ctl: Ctl) -> None:
    ctl.api.answers["GET /streams"] = {
        "streams": [
            {
                "name": "t",
                "settings": {"filter": "a/#", "partitions": 2},
                "bytes": 5,
                "ends": {"p0": 7},
            }
        ]
    }
    assert ctl("streams")[1].splitlines()[1].split() == ["t", "a/#", "2", "5", "B", "p0", "7"]
    ctl.api.answers["GET /streams/t%2F1/groups"] = {"groups": [{"name": "g", "lag": {"p0": 9}}]}
    assert ctl("groups", "t/1")[1].splitlines() == ["GROUP  LAG", "g      p0 9"]


@pytest.mark.parametrize("name", DETAILS)
def test_details(ctl: Ctl, name: str) -> None:
    ctl.api.answers[f"GET {DETAILS[name].path}"] = {"health": "ok", "uptime_s": 90}
    assert ctl(name)[:2] == (0, "health    ok\nuptime_s  1m30s\n")
    assert json.loads(ctl(name, "--json")[1])["uptime_s"] == 90


def test_bad_health_is_an_exit_code(ctl: Ctl) -> None:
    parts = [{"name": "disk", "status": "failing", "why": "1 % is free", "figures": {}}]
    ctl.api.answers["GET /health"] = {"status": "failing", "parts": parts}
    code, out, _ = ctl("health")
    assert code == 1 and "disk  failing  1 % is free" in out


def test_lists_that_are_whole(ctl: Ctl) -> None:
    item = {"name": "plain", "url": "mqtt://127.0.0.1:1883", "connections": 5}
    ctl.api.answers["GET /listeners"] = {"items": [item], "total": 1}
    assert ctl("listeners")[1].splitlines()[1].split() == ["plain", "mqtt://127.0.0.1:1883", "5"]
    assert ctl.api.last().query == {}
    line = {"number": 1, "at": 1_700_000_000.0, "level": "info", "text": "a\x1bb", "fields": {}}
    ctl.api.answers["GET /logs"] = {"items": [line], "total": 1, "last": 1}
    out = ctl("logs", "client", "--level", "info", "--limit", "5")[1]
    assert out.splitlines()[1] == "2023-11-14 22:13:20Z  info   a\\x1bb"
    assert ctl.api.last().query == {"q": "client", "level": "info", "limit": "5"}


def test_one_client_and_its_parts(ctl: Ctl) -> None:
    ctl.api.answers["GET /clients/a%2Fb"] = PUMP
    assert "keep_alive_s" in ctl("client", "a/b")[1]
    assert json.loads(ctl("client", "a/b", "--json")[1]) == PUMP
    for part in ("subscriptions", "inflight", "queue", "events"):
        ctl.api.pages(f"/clients/a%2Fb/{part}", [{"topic": "t", "qos": 1}])
        _, row = ctl("client", "a/b", f"--{part}")[1].splitlines()
        assert row.split()[-1] in ("t", "1")
    assert ctl("client", "nobody")[::2] == (1, "fleetmq ctl: nothing at /clients/nobody\n")


def test_who_would_get_a_topic(ctl: Ctl) -> None:
    found = [{"client": "pump", "filter": "a/#", "qos": 1, "permitted": True}]
    ctl.api.pages("/subscriptions/match", found)
    assert "pump" in ctl("subs", "--match", "a/b")[1]
    assert ctl.api.last().query["topic"] == "a/b"
    assert json.loads(ctl("subs", "--match", "a/b", "--json")[1])["items"] == found
    ctl.api.pages("/subscriptions", found)
    assert ctl("subs", "--client", "pump", "--no-shared")[0] == 0
    assert ctl.api.last().query["shared"] == "false"
