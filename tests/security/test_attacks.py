"""What was found by attacking authentication, each with the attack."""

from __future__ import annotations

import ipaddress
import json
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text as sql_text

from mqtt_broker.codec import reasons
from mqtt_broker.core.interfaces.access import PeerCertificate, Refuse
from mqtt_broker.security import sql
from mqtt_broker.security.authentication import scram
from mqtt_broker.security.authentication.accounts import Account
from mqtt_broker.security.authentication.certificates import CertificateMethod
from mqtt_broker.security.authentication.chain import ChainEntry, PasswordMethod, ScramMethod
from mqtt_broker.security.authentication.jwt import Claims, TokenMethod
from mqtt_broker.security.files.errors import FileError
from mqtt_broker.security.protection.bans import Bans, Flapping, make_ban, read_bans
from mqtt_broker.security.protection.throttle import ConnectLimits, Throttle
from mqtt_broker.server.services.auth_workers import still_welcome
from tests.core.peers import START
from tests.security.authentication.test_jwt import GOOD, SECRET, token, way
from tests.security.authentication.test_scram import KEYS, data_of
from tests.security.authentication.test_scram import Client as ScramClient
from tests.security.gate import HASHES, Gate, Known, connect, reason_of

BAD = reasons.BAD_USER_NAME_OR_PASSWORD


# One line of IPv6 is not 2^64 strangers.


def test_limits_count_a_line_of_ipv6_as_one() -> None:
    one, two = (ipaddress.ip_address(f"2001:db8:0:1::{n:x}") for n in (1, 0xFFFF))
    other = ipaddress.ip_address("2001:db8:0:2::1")
    throttle, limits = Throttle(), ConnectLimits(connections_per_address=1)
    assert (
        throttle.admit(limits, one, 0.0) == ""
        and throttle.admit(limits, two, 0.0) == "connections_per_address"
    )
    assert throttle.admit(limits, other, 0.0) == ""
    throttle.release(two)
    assert throttle.admit(limits, one, 0.0) == ""
    throttle, limits = Throttle(), ConnectLimits(connects_per_s_per_address=1, burst_s=1)
    assert throttle.admit(limits, one, 0.0) == "" and throttle.admit(limits, two, 0.0) != ""


def test_connections_from_before_a_limit_count_for_it() -> None:
    address = ipaddress.ip_address("192.0.2.1")
    throttle, limits = Throttle(), ConnectLimits()
    for _ in range(3):
        assert throttle.admit(limits, address, 0.0) == ""
    limits = ConnectLimits(connections_per_address=2)
    assert throttle.admit(limits, address, 0.0) == "connections_per_address"
    for _ in range(3):
        throttle.release(address)
    assert throttle.admit(limits, address, 0.0) == ""


# Bans that keep nobody out.


@pytest.mark.parametrize(
    "line",
    [
        '{"kind": "client", "value": 7}',
        '{"kind": "address", "value": 3221225985}',
        '{"kind": "user", "value": "ann", "until": NaN}',
        '{"kind": "user", "value": "ann", "until": -1}',
        '{"kind": "user", "value": "ann", "why": 1}',
    ],
)
def test_a_ban_that_would_never_hold_is_refused(tmp_path: Path, line: str) -> None:
    path = tmp_path / "bans"
    path.write_text(line + "\n")
    with pytest.raises(FileError, match="line 1: "):
        read_bans(str(path))


def test_a_long_list_of_networks() -> None:
    bans = Bans()
    some = [make_ban("address", f"10.{n >> 8}.{n & 255}.0/24") for n in range(20_000)]
    more = [make_ban("address", text) for text in ("2001:db8::/32", "0.0.0.0/8", "2001:db9::7")]
    bans.replace([*some, *more, make_ban("address", "192.0.2.0/25", until=5.0)])
    for text, is_banned in {
        "10.0.0.1": True, "10.78.31.255": True, "10.78.32.1": False, "2001:db8::1": True,
        "2001:db9::1": False, "2001:db9::7": True, "0.0.0.1": True, "192.0.2.1": True,
        "192.0.2.128": False, "::1": False,
    }.items():  # fmt: skip
        assert bool(bans.of_address(ipaddress.ip_address(text), 1.0)) is is_banned, text
    assert bans.of_address(ipaddress.ip_address("192.0.2.1"), 6.0) is None
    assert len(bans.made()) == 20_004


def test_nobody_has_anothers_client_banned_without_a_name_either() -> None:
    gate = Gate(asks=False, flapping=Flapping(3, 60.0, 300.0))
    for _ in range(4):
        found = gate.come("victim", address="203.0.113.9:5")
    assert reason_of(found) == reasons.BANNED
    assert reason_of(gate.come("victim", address="192.0.2.1:1")) == 0


def test_long_client_ids_fill_no_memory() -> None:
    bans, flapping = Bans(), Flapping(10, 60.0, 300.0)
    for n in range(100):
        bans.on_connect(flapping, "u" * 60_000, f"{n}" + "x" * 60_000, 0.0)
    assert sum(len(str(who)) for who in bans.connects) < 100 * 1_000
    assert [bool(bans.on_connect(flapping, None, "y" * 60_000, 0.0)) for _ in range(10)].count(
        True
    ) == 1


# Accounts.


def test_a_database_that_ignores_case_lets_nobody_be_somebody_else(tmp_path: Path) -> None:
    engine = sql.open_engine(f"sqlite:///{tmp_path}/accounts.db")
    with engine.begin() as connection:
        connection.execute(
            sql_text(
                "CREATE TABLE fleetmq_users (username TEXT COLLATE NOCASE PRIMARY KEY, "
                "password TEXT, scram TEXT, is_enabled BOOLEAN NOT NULL DEFAULT 1)"
            )
        )
        connection.execute(
            sql_text("CREATE TABLE fleetmq_user_roles (username TEXT COLLATE NOCASE, role TEXT)")
        )
    sql.put_user(engine, "ann", "password", HASHES["ann"], ["ops"])
    accounts = sql.SqlAccounts(engine, lambda: 0.0)
    assert accounts.find("ann") is not None
    assert accounts.find("ANN") is None  # rules and bans about ann would not be about her
    engine.dispose()


def test_names_of_strangers_are_not_remembered_at_any_length(tmp_path: Path) -> None:
    engine = sql.open_engine(f"sqlite:///{tmp_path}/accounts.db")
    sql.create_tables(engine)
    accounts = sql.SqlAccounts(engine, lambda: 0.0)
    for n in range(50):
        assert accounts.find(f"{n}" + "x" * 60_000) is None
    assert sum(map(len, accounts.found)) == 0
    engine.dispose()


def test_a_role_that_was_taken_away_is_gone_for_who_is_connected() -> None:
    known = Known(Account("ann", HASHES["ann"], roles=frozenset({"ops"})))
    rules: list[dict[str, Any]] = [
        {"permit": "allow", "action": "all", "topic": "ops/#", "roles": ["ops"]},
        {"permit": "allow", "action": "all", "topic": "t"},
    ]
    gate = Gate(ChainEntry(PasswordMethod("file", known)), rules=rules)
    ann, also = gate.enter("a", "ann"), gate.enter("b", "ann")
    ann.subscribe("ops/#", qos=0)
    also.subscribe("t", qos=0)

    known.by_name["ann"] = Account("ann", HASHES["ann"])
    gate.world.broker.reauthorize(gate.world.now)
    gate.world.settle()
    assert ann.is_closed and not also.is_closed
    guard = gate.world.broker.state.authorizer.guards["b"]
    assert not guard.may_publish("ops/x") and guard.may_publish("t")


def test_tables_tell_that_roles_changed(tmp_path: Path) -> None:
    engine = sql.open_engine(f"sqlite:///{tmp_path}/accounts.db")
    sql.put_user(engine, "ann", "password", HASHES["ann"], ["ops", "dev"])
    now = [0.0]
    accounts = sql.SqlAccounts(engine, lambda: now[0])
    accounts.find("ann")
    assert not accounts.refresh(["ann"]) and accounts.roles("ann") == frozenset({"ops", "dev"})
    sql.put_user(engine, "ann", "password", HASHES["ann"], ["dev"])
    assert accounts.refresh(["ann"]) and accounts.roles("ann") == frozenset({"dev"})
    assert not accounts.refresh(["ann"])
    # Seen first by another client of hers: those who were there have to be looked at all the same.
    sql.put_user(engine, "ann", "password", HASHES["ann"], [])
    now[0] = 60.0
    accounts.find("ann")
    assert accounts.refresh(["ann"]) and accounts.roles("ann") == frozenset()
    assert accounts.refresh([]) is False and accounts.roles("ann") is None
    engine.dispose()


# Tokens and certificates.


def test_tokens_are_judged_by_the_time_of_day(tmp_path: Path) -> None:
    """The broker's clock counts on from its start: it knows nothing of a machine that slept."""
    path = tmp_path / "key"
    path.write_bytes(SECRET)
    day = [START + 3_600.0]  # an hour was slept through
    found = TokenMethod(str(path), Claims(), wall=lambda: day[0])
    gate = Gate(ChainEntry(found))
    assert reason_of(gate.come("c", "u", password=token(GOOD))) == BAD
    fresh = token({"sub": "ann", "exp": START + 3_660})
    peer = gate.enter("c", "u", password=fresh)
    gate.world.wait(59)
    assert not peer.is_closed
    gate.world.wait(2)
    assert peer.is_closed


def test_a_token_without_a_time_says_null(tmp_path: Path) -> None:
    gate = Gate(ChainEntry(way(tmp_path, needs_expiry=False)))
    gate.enter("c", "u", password=token({"sub": "ann", "exp": None}))


def test_claims_that_are_not_listened_to(tmp_path: Path) -> None:
    gate = Gate(ChainEntry(way(tmp_path, acl="", roles="")), rules=[("allow", "all", "t")])
    mine = token({**GOOD, "": {"all": ["secret"]}})
    gate.enter("c", "u", password=mine)
    assert not gate.world.broker.state.authorizer.guards["c"].may_publish("secret")
    gate.enter("d", "u", password=token({**GOOD, "": "ops"}))


@pytest.mark.parametrize("name", ["a\nb", "a\ud800", "a\0", "x" * 70_000, "\x1b[2J"])
def test_names_are_what_mqtt_lets_them_be_whoever_vouches(tmp_path: Path, name: str) -> None:
    """They go to logs and into the store like those of CONNECT."""
    gate = Gate(ChainEntry(way(tmp_path)), ChainEntry(CertificateMethod()))
    if len(name) < 10_000:
        told = gate.come("c", "u", password=token({**GOOD, "sub": name}))
        assert reason_of(told) == reasons.NOT_AUTHORIZED
    told = gate.come("d", certificate=PeerCertificate(name))
    assert reason_of(told) == reasons.NOT_AUTHORIZED
    assert "not valid in MQTT" in gate.lines[-1]


# SCRAM.


def salt_of(gate: Gate, username: str) -> str:
    peer = gate.come("c", method=scram.METHOD, data=ScramClient(username).first)
    fields = dict(part.split("=", 1) for part in data_of(peer.received[0]).decode().split(","))
    return fields["s"] + fields["i"]


def test_salts_do_not_tell_who_exists_when_the_file_changes(tmp_path: Path) -> None:
    """Those of known users stay when somebody else is added; those of strangers have to as well."""
    from mqtt_broker.security.authentication.password_file import PasswordFile

    path = tmp_path / "users"
    path.write_text(f"ann:{KEYS.encode()}\n")
    file = PasswordFile(str(path))
    gate = Gate(ChainEntry(PasswordMethod("file", file)), ChainEntry(ScramMethod()))
    before = salt_of(gate, "ann"), salt_of(gate, "stranger")
    path.write_text(f"ann:{KEYS.encode()}\nbob:{HASHES['bob']}\n")
    file.load()
    assert (salt_of(gate, "ann"), salt_of(gate, "stranger")) == before


# Rates, roles and rules that change while somebody connects.


def test_who_is_banned_while_the_answer_is_on_its_way_does_not_come_in() -> None:
    bans = Bans()
    gate = Gate(bans=bans)
    gate.peer().send(connect("c", "ann"))
    _, work = gate.workers.waiting.pop()
    verdict = work()
    assert still_welcome(verdict) is verdict
    bans.replace([make_ban("user", "ann")])
    assert still_welcome(verdict) == Refuse()


def test_a_remembered_password_is_of_the_file_as_it_is(tmp_path: Path) -> None:
    gate = Gate(remember_s=300.0)
    gate.enter("a", "ann")
    gate.known.by_name["ann"] = Account("ann", HASHES["bob"])
    assert reason_of(gate.come("a", "ann")) == BAD


def test_lines_of_the_audit_log_stay_lines() -> None:
    gate = Gate(rules=[("allow", "subscribe", "x")])
    peer = gate.enter("c\u2028{\u202e", "ann")
    peer.subscribe('a"\u2029/b', qos=0)
    assert all(line.isascii() and "\n" not in line for line in gate.lines)
    told: dict[str, Any] = json.loads(gate.lines[-1])
    assert told["event"] == "denied" and told["client_id"] == "c\u2028{\u202e"
