"""Users, roles and rules over HTTP: written where they are kept, and in force at once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from mqtt_broker.http_api.server_interface import ServerInterface
from mqtt_broker.security import sql
from mqtt_broker.server.config import acl_edit
from mqtt_broker.server.config.config import load
from mqtt_broker.server.config.tables import ConfigError
from tests.http_api.brokers import Serving
from tests.security.gate import HASHES
from tests.server.running import Running
from tests.server.services.test_security import code, enter, suback

API = "/api/v1"
FILE = """
durability = "memory"
[[listeners]]
port = 0
[[auth]]
type = "password_file"
file = "DIR/users"
# what ops may
[[acl]]
permit = "allow"   # everything of theirs
# they asked for it
topics = ["ops/#"]
roles = ["ops"]

[[acl]]
permit = "allow"
topics = ["d/%c/#"]
"""
TABLES = """
durability = "memory"
[[listeners]]
port = 0
[[auth]]
type = "sql"
database_url = "URL"
cache_s = 60.0
[[acl]]
database_url = "URL"
"""


@contextmanager
def serving(tmp_path: Path, text: str) -> Iterator[tuple[Running, Serving]]:
    path = tmp_path / "f.toml"
    path.write_text(text.replace("DIR", str(tmp_path)))
    config = load(str(path), {}, {})
    with (
        Running(*config.endpoints, config=config) as broker,
        Serving(ServerInterface(broker.server), None) as http,
    ):
        yield broker, http
        assert http.lines == []


@pytest.fixture
def users(tmp_path: Path) -> Path:
    path = tmp_path / "users"
    path.write_text(f"# the staff\nann:{HASHES['ann']}:ops\n\n# the others\nbob:{HASHES['bob']}\n")
    path.chmod(0o600)
    return path


def test_users_of_a_password_file(tmp_path: Path, users: Path) -> None:
    with serving(tmp_path, FILE) as (broker, http):
        found = http.get(f"{API}/users").json()
        assert [(u["name"], u["roles"], u["has_password"]) for u in found["items"]] == [
            ("ann", ["ops"], True), ("bob", [], True),
        ]  # fmt: skip
        assert "argon2" not in http.get(f"{API}/users").body.decode()
        new = {"name": "eve", "password": "eve's", "roles": ["guests"]}
        assert http.ask("POST", f"{API}/users", new).status == 201
        assert http.ask("POST", f"{API}/users", new).status == 400
        assert code(broker, "x", "eve", password=b"eve's") == 0
        bob = enter(broker, "b", "bob")
        assert suback(bob, "ops/x") == 0x87
        changed = http.ask("PATCH", f"{API}/users/bob", {"roles": ["ops"]})
        assert changed.json()["roles"] == ["ops"]
        assert suback(bob, "ops/x") == 0
        assert http.ask("PATCH", f"{API}/users/bob", {"is_enabled": False}).status == 400
        assert http.ask("DELETE", f"{API}/users/bob").status == 200
        assert bob.packet()[0] == 0xE0
        bob.sock.close()
        assert http.ask("DELETE", f"{API}/users/bob").status == 404
        text = users.read_text()
        assert text.startswith("# the staff\nann:") and "\n\n# the others\neve:" in text
        assert http.get(f"{API}/users?q=a&limit=1").json()["total"] == 1


@pytest.mark.parametrize(
    "wrong",
    [
        {"name": "a:b", "password": "x"},
        {"name": "eve", "password": ""},
        {"name": "eve"},
        {"name": "eve", "password": "x" * 1_025},
        {"name": "eve", "password": "x", "roles": ["a,b"]},
        {"name": "eve", "password": "x", "source": "nowhere"},
        {"name": "a\nb", "password": "x"},
    ],
)
def test_a_user_that_cannot_be(tmp_path: Path, users: Path, wrong: dict[str, Any]) -> None:
    before = users.read_text()
    with serving(tmp_path, FILE) as (_, http):
        assert http.ask("POST", f"{API}/users", wrong).status == 400
    assert users.read_text() == before


def test_roles_are_those_of_users(tmp_path: Path, users: Path) -> None:
    with serving(tmp_path, FILE) as (_, http):
        ops = {"role": "ops", "users": ["ann"], "place": ""}
        assert http.get(f"{API}/roles").json()["items"] == [ops]
        made = http.ask("POST", f"{API}/roles", {"role": "night", "users": ["ann", "bob"]})
        assert made.json() == {"role": "night", "users": ["ann", "bob"], "place": ""}
        assert http.ask("PATCH", f"{API}/roles/night", {"users": ["bob"]}).status == 200
        assert http.ask("DELETE", f"{API}/roles/ops").status == 200
        night = {"role": "night", "users": ["bob"], "place": ""}
        assert http.get(f"{API}/roles").json()["items"] == [night]
        assert http.ask("POST", f"{API}/roles", {"role": "x", "users": ["nobody"]}).status == 404
        assert http.ask("DELETE", f"{API}/roles/ops").status == 404


def test_roles_of_the_configuration_are_edited_there(tmp_path: Path, users: Path) -> None:
    roles = '[[roles]]\nrole = "ops"\nusers = ["bob"]\n[[roles]]\nrole = "x"\nusers = ["eve"]\n'
    path = tmp_path / "f.toml"
    with serving(tmp_path, FILE + roles) as (_, http):
        line = path.read_text().splitlines().index("[[roles]]") + 1
        assert http.get(f"{API}/roles").json()["items"] == [
            {"role": "ops", "users": ["ann"], "place": ""},
            {"role": "ops", "users": ["bob"], "place": f"{path}:{line}"},
            {"role": "x", "users": ["eve"], "place": f"{path}:{line + 3}"},
        ]
        for method, body in (("PATCH", {"users": ["ann"]}), ("DELETE", None)):
            refused = http.ask(method, f"{API}/roles/ops", body)
            assert refused.status == 409
            assert f"edit [[roles]] at {path}:{line}, and reload" in refused.json()["text"]
        assert http.ask("POST", f"{API}/roles", {"role": "ops", "users": ["bob"]}).status == 201
        path.write_text("nonsense")
        for name in ("roles", "rules"):
            assert http.get(f"{API}/{name}").status == 409


def test_rules_of_the_file_keep_its_comments(tmp_path: Path, users: Path) -> None:
    with serving(tmp_path, FILE) as (broker, http):
        bob = enter(broker, "b", "bob")
        assert suback(bob, "new/x") == 0x87
        rule = {"permit": "allow", "topics": ["new/#"], "action": "subscribe", "users": ["bob"]}
        made = http.ask("POST", f"{API}/rules", rule)
        assert (made.status, made.json()["id"]) == (201, "file:3")
        assert suback(bob, "new/x") == 0
        shown = http.get(f"{API}/rules/file:3")
        changed = http.ask(
            "PATCH", f"{API}/rules/file:3", {"topics": ["other/#"]},
            headers={"If-Match": shown.headers["ETag"]},
        )  # fmt: skip
        assert changed.json()["topics"] == ["other/#"] and changed.json()["users"] == ["bob"]
        assert bob.packet()[0] == 0xE0  # it lost its subscription
        bob.sock.close()
        stale = {"If-Match": shown.headers["ETag"]}
        assert http.ask("DELETE", f"{API}/rules/file:3", headers=stale).status == 412
        assert http.ask("PATCH", f"{API}/rules/file:1", {"roles": ["staff"]}).status == 200
        assert http.ask("DELETE", f"{API}/rules/file:2").status == 200
        text = (tmp_path / "f.toml").read_text()
        assert "# what ops may\n[[acl]]\n# they asked for it\n" in text
        assert 'roles = ["staff"]' in text and "d/%c" not in text
        bad = http.ask("POST", f"{API}/rules", {"permit": "allow", "topics": ["a/#/b"]})
        assert bad.status == 400
        assert http.ask("DELETE", f"{API}/rules/file:2").status == 200
        last = http.ask("DELETE", f"{API}/rules/file:1")
        assert last.status == 400 and "the last rule stays" in last.json()["text"]
        for id in ("file:9", "sql:1", "nothing", "file:x"):
            assert http.ask("DELETE", f"{API}/rules/{id}").status == 404


def check_lists_in_sql(http: Serving, rule: dict[str, Any]) -> None:
    """A rule with lists is a row for each combination, in one transaction, with one id."""
    lists = {**rule, "topics": ["a", "b"], "users": ["ann", "eve", "eve"], "permit": "deny"}
    made = http.ask("POST", f"{API}/rules", lists)
    assert (made.status, made.json()["id"]) == (201, "sql:20-23"), made.body
    shown = http.get(f"{API}/rules/sql:20-23").json()
    assert (shown["topics"], shown["users"]) == (["a", "b"], ["ann", "eve"])
    rows = http.get(f"{API}/rules").json()["items"]
    assert [row["id"] for row in rows] == ["sql:10", "sql:20", "sql:21", "sql:22", "sql:23"]
    assert [row["topics"] + row["users"] for row in rows[1:]] == [
        ["a", "ann"], ["a", "eve"], ["b", "ann"], ["b", "eve"],
    ]  # fmt: skip
    changed = http.ask("PATCH", f"{API}/rules/sql:20-23", {"users": [], "topics": ["a", "b", "c"]})
    assert (changed.status, changed.json()["id"]) == (200, "sql:20-22"), changed.body
    assert http.ask("POST", f"{API}/rules", {**rule, "position": 23}).status == 201
    grown = http.ask("PATCH", f"{API}/rules/sql:20-22", {"users": ["ann", "eve"]})
    assert grown.status == 400 and "position 23 is taken" in grown.json()["text"]
    assert http.get(f"{API}/rules/sql:20-22").json()["users"] == []
    assert http.ask("PATCH", f"{API}/rules/sql:21", {"action": "publish"}).status == 200
    other = http.get(f"{API}/rules/sql:20-22")
    assert other.status == 404 and "changed one by one" in other.json()["text"]
    many = http.ask("POST", f"{API}/rules", {**rule, "clients": [str(n) for n in range(1_000)],
                                             "topics": ["a", "b"]})  # fmt: skip
    assert many.status == 400 and "2000 rows" in many.json()["text"]
    for id in ("20-22", "23-20", "20-", "-", "1-999999999", "20-24", "²"):
        assert http.ask("DELETE", f"{API}/rules/sql:{quote(id)}").status == 404, id
    for id in ("sql:20", "sql:21", "sql:22", "sql:23"):
        assert http.ask("DELETE", f"{API}/rules/{id}").status == 200
    assert http.ask("POST", f"{API}/rules", lists).json()["id"] == "sql:20-23"
    assert http.ask("DELETE", f"{API}/rules/sql:20-23").status == 200


def test_users_and_rules_in_sql(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/accounts.db"
    engine = sql.open_engine(url)
    sql.put_user(engine, "ann", "password", HASHES["ann"], ["ops"])
    with serving(tmp_path, TABLES.replace("URL", url)) as (broker, http):
        assert http.get(f"{API}/rules").json() == {"items": [], "total": 0}
        rule = {"permit": "allow", "topics": ["ops/#"], "roles": ["ops"], "source": "sql"}
        made = http.ask("POST", f"{API}/rules", rule)
        assert (made.status, made.json()["id"]) == (201, "sql:10"), made.body
        ann = enter(broker, "a", "ann")
        assert suback(ann, "ops/x") == 0
        check_lists_in_sql(http, rule)
        taken = http.ask("POST", f"{API}/rules", {**rule, "position": 10})
        assert taken.status == 400 and "is taken" in taken.json()["text"]
        off = http.ask("PATCH", f"{API}/users/ann", {"is_enabled": False})
        assert not off.json()["is_enabled"]
        assert ann.packet()[0] == 0xE0  # at once, although accounts are remembered for a minute
        ann.sock.close()
        assert code(broker, "a", "ann") == 0x86
        assert http.ask("PATCH", f"{API}/users/ann", {"is_enabled": True}).status == 200
        assert code(broker, "a", "ann") == 0
        new = {"name": "eve", "password": "eve's", "scram": True}
        assert http.ask("POST", f"{API}/users", new).json()["has_scram"]
        assert http.ask("DELETE", f"{API}/users/eve").status == 200
        assert http.ask("DELETE", f"{API}/rules/sql:10").status == 200
    engine.dispose()


def test_without_access_control_there_is_nothing_to_change(tmp_path: Path) -> None:
    with serving(tmp_path, 'durability = "memory"\n[[listeners]]\nport = 0\n') as (_, http):
        for path in ("users", "roles", "rules"):
            assert http.get(f"{API}/{path}").status == 409


def test_an_edit_of_the_text_finds_its_table() -> None:
    text = '[[acl]]\npermit = "allow"\n\n# last\n[[acl]]\ndatabase_url = "x"\n\n[security]\n'
    rule = {"permit": "deny", "topics": ["a"]}
    assert acl_edit.add_rule(text, rule).index('"deny"') < text.index("# last") + 60
    assert acl_edit.add_rule("", rule) == '[[acl]]\npermit = "deny"\ntopics = ["a"]\n'
    assert "[security]" in acl_edit.remove_rule(text, 1)
    with pytest.raises(ConfigError, match="table 3"):
        acl_edit.change_rule(text, 3, rule)
