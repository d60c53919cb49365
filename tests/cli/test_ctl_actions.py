"""Actions and questions of `fleetmq ctl`: what they send, and what they say."""

from __future__ import annotations

import io
import json
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from mqtt_broker.cli import ctl_actions
from tests.cli.fake_api import Asked, Ctl, problem

DONE: dict[str, Any] = {
    "id": "monday", "state": "done", "directory": "/data/backups/monday", "bytes": 1_500,
    "created_at": 1_700_000_000.0, "error": "", "phase": "", "bytes_done": 5, "bytes_total": 5,
}  # fmt: skip


def test_a_message_is_published(ctl: Ctl) -> None:
    ctl.api.answers["POST /publish"] = {"results": [{"reason_code": 0, "matches": 3}]}
    assert ctl("publish", "a/b", "on", "--qos", "1", "--retain", "--expiry", "2h", "--content-type",
                 "text/plain", "--user-property", "a=b=c") == (
        0, "published; 3 subscriptions matched\n", ""
    )  # fmt: skip
    assert ctl.api.last().body == {
        "topic": "a/b", "qos": 1, "retain": True, "payload": "on",
        "properties": {
            "message_expiry_interval": 7200, "content_type": "text/plain",
            "user_properties": [["a", "b=c"]],
        },
    }  # fmt: skip


def test_bytes_from_stdin_are_base64(ctl: Ctl, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(b"\xff\0")))
    ctl.api.answers["POST /publish"] = {"results": [{"reason_code": 0x10, "matches": 1}]}
    assert ctl("publish", "a", "-")[1] == "published; 1 subscription matched\n"
    assert ctl.api.last().body["payload_base64"] == "/wA="


def test_a_refused_message_is_an_exit_code(ctl: Ctl) -> None:
    ctl.api.answers["POST /publish"] = {
        "results": [{"reason_code": 0x90, "matches": 0, "error": "clients may not publish there"}]
    }
    code, out, _ = ctl("publish", "a")
    assert code == 1
    assert out == "refused with reason code 0x90: clients may not publish there\n"


def test_retained_messages(ctl: Ctl) -> None:
    item = {"topic": "a/b", "qos": 1, "payload_bytes": 2, "received_at": 1_700_000_000.0}
    ctl.api.pages("/retained", [item])
    assert "a/b" in ctl("retained", "a/#")[1]
    assert ctl.api.last().query["filter"] == "a/#"
    ctl.api.pages("/retained/tree", [{"level": "b", "count": 3}])
    assert "b" in ctl("retained", "a", "--tree")[1]
    assert ctl.api.last().query["prefix"] == "a"
    ctl.api.answers["GET /retained/message"] = {"payload_base64": "b24b"}
    assert ctl("retained", "a/b", "--show")[1] == "on\\x1b\n"
    ctl.api.answers["GET /retained/message"] = {"payload_base64": "/wA="}
    assert ctl("retained", "a/b", "--show")[1] == "0xff00\n"
    assert json.loads(ctl("retained", "a/b", "--show", "--json")[1])
    ctl.api.answers["DELETE /retained"] = {"removed": 1_200}
    assert ctl("retained", "a/#", "--clear")[1] == "cleared 1,200 retained messages\n"
    assert ctl.api.last().query == {"filter": "a/#"}


def test_a_client_is_kicked(ctl: Ctl) -> None:
    ctl.api.answers["POST /clients/a%2Fb/kick"] = {"kicked": True}
    assert ctl("kick", "a/b") == (0, "client 'a/b' is disconnected\n", "")
    assert ctl.api.last().body == {"reason_code": 0x98, "remove_session": False}
    ctl("kick", "a/b", "--reason-code", "0x97", "--remove-session")
    assert ctl.api.last().body == {"reason_code": 0x97, "remove_session": True}
    assert ctl("kick", "a/b", "--reason-code", "256")[0] == 2
    assert ctl("kick", "a/b", "--reason-code", "x")[0] == 2
    assert ctl("kick", "nobody")[0] == 1


@pytest.mark.parametrize("action", ["clear-queue", "expire"])
def test_actions_on_sessions(ctl: Ctl, action: str) -> None:
    ctl.api.answers[f"POST /clients/a/{action}"] = {"removed": 5}
    assert ctl(action, "a")[:2] == (0, "removed  5\n")
    assert json.loads(ctl(action, "a", "--json")[1]) == {"removed": 5}


def test_why(ctl: Ctl) -> None:
    found = {
        "sentence": "denied \x1b by rule 12",
        "sentences": ["published by app", "published again", "denied \x1b by rule 12"],
        "facts": [{"at": 1.0, "kind": "refused", "message": "app@12:00:01"}],
        "sees_back_to": 1_700_000_000.0, "advice": "allow it", "is_cut": False,
    }  # fmt: skip
    ctl.api.answers["GET /why"] = found
    code, out, _ = ctl("why", "--client", "pump", "--topic", "a/b", "--since", "10m")
    assert code == 0 and out.splitlines() == [
        "denied \\x1b by rule 12", "allow it", "",
        "Also, the latest first:", "  published again", "  published by app", "",
        "The recorder sees back to 2023-11-14 22:13:20Z.",
    ]  # fmt: skip
    assert ctl.api.last().query["client"] == "pump"
    out = ctl("why", "--client", "a", "--message", "app@12:00:01", "--facts")[1]
    assert "refused" in out and "app@12:00:01" in out
    assert ctl.api.last().query["message"] == "app@12:00:01"
    assert json.loads(ctl("why", "--client", "a", "--json")[1]) == found
    found |= {"sentence": "x", "sentences": [], "is_cut": True}
    assert ctl("why", "--client", "a")[1].startswith("x\nallow it\n\nThere is more")
    assert ctl("why", "--topic", "a")[0] == 2


def test_a_backup_is_waited_for(ctl: Ctl, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctl_actions, "LOOK_S", 0)
    ctl.api.answers["POST /backups"] = DONE | {"state": "running"}
    looks = iter([DONE | {"state": "running"}, DONE])
    ctl.api.answers["GET /backups/monday"] = lambda _: next(looks)
    assert ctl("backup", "monday") == (
        0, "/data/backups/monday: 1.5 kB, the state of 2023-11-14 22:13:20Z\n", ""
    )  # fmt: skip
    assert ctl.api.asked[0] == Asked("POST", "/backups", {}, {"directory": "monday"}, "")
    assert "running" in ctl("backup", "--no-wait")[1]
    assert ctl.api.last().body == {}


def test_a_backup_that_fails(ctl: Ctl) -> None:
    ctl.api.answers["POST /backups"] = DONE | {"state": "failed", "error": "/data: disk full"}
    assert ctl("backup")[::2] == (1, "fleetmq ctl: /data: disk full\n")
    assert json.loads(ctl("backup", "--json")[1])["state"] == "failed"
    ctl.api.answers["POST /backups"] = problem(409, "a backup is being made")
    assert ctl("backup")[::2] == (1, "fleetmq ctl: a backup is being made\n")


def test_reload_and_the_level_of_the_log(ctl: Ctl) -> None:
    ctl.api.answers["POST /reload"] = {"taken_up": ["max_keepalive"], "needs_restart": []}
    assert ctl("reload")[1] == "taken_up       max_keepalive\nneeds_restart  -\n"
    assert ctl("reload")[0] == 0
    ctl.api.answers["POST /reload"] = {"taken_up": [], "failed": {"listener b": "port in use"}}
    code, out, _ = ctl("reload")
    assert code == 1 and "port in use" in out
    ctl.api.answers["GET /log-level"] = {"level": "info"}
    assert ctl("log-level")[1] == "info\n"
    ctl.api.answers["PUT /log-level"] = lambda asked: asked.body
    assert ctl("log-level", "debug")[1] == "debug\n"
    assert ctl("log-level", "loud")[0] == 2
