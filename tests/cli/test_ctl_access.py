"""`fleetmq ctl acl|ban|unban|bans` without `--config`: the running broker is asked."""

from __future__ import annotations

import json

import pytest

from mqtt_broker.cli.ctl_access import run
from tests.cli.fake_api import Ctl, problem

DENIED = {
    "is_allowed": False, "rule": "acl.toml rule 12", "text": "deny publish plant/#",
    "why": "the rule denies it", "roles": ["operator"],
}  # fmt: skip


def test_decisions_are_those_of_the_broker(ctl: Ctl) -> None:
    ctl.api.answers["POST /rules/explain"] = DENIED
    code, out, _ = ctl("acl", "explain", "pump", "plant/7", "--user", "ann", "--role", "x")
    assert code == 1 and out.splitlines() == [
        "denied", "by acl.toml rule 12: deny publish plant/#", "the rule denies it",
    ]  # fmt: skip
    assert ctl.api.last().body == {
        "client": "pump", "topic": "plant/7", "action": "publish", "user": "ann", "roles": ["x"],
    }  # fmt: skip
    ctl.api.answers["POST /rules/explain"] = DENIED | {"is_allowed": True}
    assert ctl("acl", "explain", "pump", "plant/7")[0] == 0
    assert json.loads(ctl("acl", "explain", "pump", "plant/7", "--json")[1])["is_allowed"]
    ctl.api.answers["POST /rules/explain"] = DENIED | {"rule": "", "why": "no rule applies"}
    assert ctl("acl", "explain", "pump", "a/#", "--action", "subscribe")[1] == (
        "denied\nno rule applies\n"
    )


def test_a_filter_is_not_published_to(ctl: Ctl) -> None:
    code, _, said = ctl("acl", "explain", "pump", "plant/#")
    assert code == 2 and "for a filter use --action subscribe" in said
    assert not ctl.api.asked


def test_bans(ctl: Ctl) -> None:
    ban = {"kind": "client", "value": "p\x1b", "until": 0.0, "why": "", "made_by": "hand"}
    ctl.api.answers |= {"POST /bans": ban, "DELETE /bans": {}, "GET /bans": {"bans": [ban]}}
    assert ctl("ban", "client", "p\x1b", "--for", "2h", "--why", "loud")[1] == (
        "banned client 'p\\x1b'\n"
    )
    assert ctl.api.last().body == {
        "kind": "client", "value": "p\x1b", "for_s": 7200.0, "why": "loud",
    }  # fmt: skip
    assert "p\\x1b" in ctl("bans")[1]
    assert json.loads(ctl("bans", "--json")[1]) == {"bans": [ban]}
    assert ctl("unban", "client", "p\x1b")[1] == "lifted the ban of client 'p\\x1b'\n"
    assert ctl.api.last().query == {"kind": "client", "value": "p\x1b"}
    ctl.api.answers["DELETE /bans"] = problem(404, "there is no ban of client 'x'")
    assert ctl("unban", "client", "x")[::2] == (1, "fleetmq ctl: there is no ban of client 'x'\n")


@pytest.mark.parametrize("option", ["--api=http://x", "--data-dir=x", "--token-file=x", "--json"])
def test_a_file_and_a_broker_are_two_things(ctl: Ctl, option: str) -> None:
    code, _, said = ctl("bans", "--config", "x.toml", option)
    assert code == 2 and "--config asks no broker" in said
    assert run.__doc__
