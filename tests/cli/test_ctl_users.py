"""`fleetmq ctl user`, `role` and `rule`: what they send to the broker."""

from __future__ import annotations

import io
import json
import sys
from types import SimpleNamespace

import pytest

from mqtt_broker.cli.ctl_users import add_actions
from tests.cli.fake_api import Ctl, problem


@pytest.fixture(autouse=True)
def stdin(monkeypatch: pytest.MonkeyPatch) -> None:
    """A password in a pipe."""
    assert add_actions.__doc__
    pipe = SimpleNamespace(buffer=io.BytesIO(b"secret\n"), isatty=lambda: False)
    monkeypatch.setattr(sys, "stdin", pipe)


def test_a_user_is_added(ctl: Ctl) -> None:
    ctl.api.answers["POST /users"] = {"name": "ann"}
    code, out, _ = ctl("user", "add", "ann", "--role", "operator", "--scram", "--source", "main")
    assert (code, out) == (0, "added user 'ann'\n")
    assert ctl.api.last().body == {
        "name": "ann", "password": "secret", "roles": ["operator"], "scram": True, "source": "main",
    }  # fmt: skip


def test_a_user_is_changed_and_removed(ctl: Ctl) -> None:
    ctl.api.answers |= {"PATCH /users/a%2Fb": {"name": "a/b"}, "DELETE /users/a%2Fb": {}}
    assert ctl("user", "change", "a/b", "--no-roles", "--no-enable")[0] == 0
    assert ctl.api.last().body == {"roles": [], "is_enabled": False}
    assert json.loads(ctl("user", "change", "a/b", "--password", "--json")[1]) == {"name": "a/b"}
    assert ctl.api.last().body == {"password": "secret"}
    assert ctl("user", "remove", "a/b")[1] == "removed user 'a/b'\n"
    ctl.api.answers["DELETE /users/x"] = problem(404, "there is no user 'x'")
    assert ctl("user", "remove", "x")[::2] == (1, "fleetmq ctl: there is no user 'x'\n")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["user", "change", "a"], "nothing to change"),
        (["user", "change", "a", "--role", "x", "--no-roles"], "contradict each other"),
        (["user"], "CHANGE"),
        (["rule", "add", "allow"], "a rule needs --topic"),
        (["rule", "add", "maybe"], "invalid choice"),
        (["rule", "change", "sql:1"], "nothing to change"),
        (["role", "add", "night"], "USER"),
    ],
)
def test_mistakes(ctl: Ctl, arguments: list[str], said: str) -> None:
    code, _, err = ctl(*arguments)
    assert code == 2 and said in err and not ctl.api.asked


def test_a_password_that_is_no_text(ctl: Ctl, monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = SimpleNamespace(buffer=io.BytesIO(b"\xff\n"), isatty=lambda: False)
    monkeypatch.setattr(sys, "stdin", pipe)
    assert "not UTF-8" in ctl("user", "add", "ann")[2]
    assert not ctl.api.asked


def test_rules(ctl: Ctl) -> None:
    ctl.api.answers |= {"POST /rules": {"id": "file:2"}, "DELETE /rules/file%3A2": {}}
    assert ctl("rule", "add", "deny", "--topic", "a/#", "--topic", "b/%u", "--role", "x",
               "--action", "publish", "--anonymous")[:2] == (0, "id  file:2\n")  # fmt: skip
    assert ctl.api.last().body == {
        "permit": "deny", "action": "publish", "source": "file", "topics": ["a/#", "b/%u"],
        "roles": ["x"], "anonymous": True,
    }  # fmt: skip
    assert ctl("rule", "remove", "file:2")[1] == "removed rule file:2\n"
    ctl.api.answers |= {"PATCH /rules/sql%3A10-13": {"id": "sql:10-13"}}
    assert ctl("rule", "change", "sql:10-13", "--permit", "allow", "--user", "ann")[0] == 0
    assert ctl.api.last().body == {"permit": "allow", "users": ["ann"]}


def test_roles(ctl: Ctl) -> None:
    both = {"role": "night", "users": ["ann", "bob"]}
    ctl.api.answers |= {
        "POST /roles": both, "PATCH /roles/night": {**both, "users": ["bob"]},
        "DELETE /roles/night": {},
    }  # fmt: skip
    assert ctl("role", "add", "night", "ann", "bob")[:2] == (0, "role 'night': ann, bob\n")
    assert ctl.api.last().body == both
    assert ctl("role", "change", "night", "bob")[1] == "role 'night': bob\n"
    assert ctl.api.last().body == {"users": ["bob"]}
    assert ctl("role", "remove", "night")[1] == "removed role 'night'\n"
