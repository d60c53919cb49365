"""Logins, sessions and roles over HTTP."""

from __future__ import annotations

from typing import Any, Final

import pytest

from mqtt_broker.http_api.request.access import (
    ADMIN,
    OPERATOR,
    VIEWER,
    ApiToken,
    ApiUser,
    Credentials,
    digest_of,
)
from mqtt_broker.http_api.v1.session import ROOT
from mqtt_broker.security.authentication.password_hasher import hash_password
from tests.http_api.brokers import LogBroker, Serving

HASH: Final = hash_password(b"right")
TOKENS: Final = [
    ApiToken("v", digest_of("viewer"), VIEWER),
    ApiToken("o", digest_of("operator"), OPERATOR),
    ApiToken("a", digest_of("admin"), ADMIN),
]
BAN: Final = {"kind": "client", "value": "x"}


class Guarded:
    """A server with tokens and a user, which a test may withdraw."""

    def __init__(self, broker: LogBroker) -> None:
        self.credentials = Credentials(TOKENS, [ApiUser("ann", HASH, OPERATOR)])
        self.http = Serving(broker, broker.root, credentials=lambda: self.credentials)

    def ask(self, method: str, path: str, body: object = None, **headers: str) -> Any:
        named = {key.replace("_", "-"): value for key, value in headers.items()}
        return self.http.ask(method, path, body, headers=named)

    def bearer(self, token: str, method: str, path: str, body: object = None) -> Any:
        return self.ask(method, path, body, Authorization=f"Bearer {token}")


@pytest.fixture
def guarded(broker: LogBroker) -> Any:
    found = Guarded(broker)
    with found.http:
        yield found
    assert found.http.lines == []


def test_each_role_may_what_it_may(guarded: Guarded, broker: LogBroker) -> None:
    for token, name, may_change in (("viewer", "v", False), ("operator", "o", True)):
        assert guarded.bearer(token, "GET", "/metrics").status == 200
        assert guarded.bearer(token, "GET", f"{ROOT}/me").json() == {
            "name": name, "role": token, "csrf": "",
        }  # fmt: skip
        found = guarded.bearer(token, "POST", "/api/v1/bans", BAN)
        assert found.status == (201 if may_change else 403)
    refused, changed = broker.audited
    assert refused[0] == "api_refused" and refused[1]["by"] == "v"
    assert changed[0] == "api_change"
    assert changed[1] == {
        "by": "o", "role": "operator", "method": "POST", "path": "/api/v1/bans", "status": 201,
        "address": "127.0.0.1",
    }  # fmt: skip


def test_a_session_of_the_page(guarded: Guarded, broker: LogBroker) -> None:
    found = guarded.ask("POST", "/api/v1/login", {"name": "ann", "password": "right"})
    assert found.status == 200 and found.json()["role"] == "operator"
    cookie, *flags = found.headers["Set-Cookie"].split("; ")
    assert {"HttpOnly", "SameSite=Strict", "Path=/"} <= set(flags)
    csrf = found.json()["csrf"]
    assert guarded.ask("GET", "/api/v1/me", Cookie=cookie).json() == found.json()
    for wrong in ({}, {"X_CSRF_Token": "x"}, {"X_CSRF_Token": csrf[:-1]}):
        refused = guarded.ask("POST", "/api/v1/bans", BAN, Cookie=cookie, **wrong)
        assert refused.status == 403 and "CSRF" in refused.json()["text"]
    made = guarded.ask("POST", "/api/v1/bans", BAN, Cookie=cookie, X_CSRF_Token=csrf)
    assert made.status == 201
    out = guarded.ask("POST", "/api/v1/logout", Cookie=cookie, X_CSRF_Token=csrf)
    assert out.status == 200 and "Max-Age=0" in out.headers["Set-Cookie"]
    assert guarded.ask("GET", "/api/v1/me", Cookie=cookie).status == 401
    assert [event for event, _ in broker.audited] == ["api_login", "api_change", "api_change"]


def test_what_is_withdrawn_while_it_is_used_works_no_more(guarded: Guarded) -> None:
    over = guarded.http.connect()
    head = {"Authorization": "Bearer admin"}
    assert guarded.http.get("/api/v1/bans", headers=head, over=over).status == 200
    login = guarded.ask("POST", "/api/v1/login", {"token": "viewer"})
    cookie = login.headers["Set-Cookie"].split(";")[0]
    guarded.credentials = Credentials([TOKENS[1]])
    assert guarded.http.get("/api/v1/bans", headers=head, over=over).status == 401
    assert guarded.ask("GET", "/api/v1/me", Cookie=cookie).status == 401
    over.close()


def test_wrong_logins_are_limited_and_tell_nothing(guarded: Guarded, broker: LogBroker) -> None:
    texts = set()
    for body in (
        {"name": "ann", "password": "wrong"}, {"name": "nobody", "password": "right"},
        {"token": "wrong"}, {"name": "ann"},
    ):  # fmt: skip
        found = guarded.ask("POST", "/api/v1/login", body)
        assert found.status == 401
        texts.add(found.json()["text"])
    assert len(texts) == 1
    for _ in range(6):
        guarded.ask("POST", "/api/v1/login", {"token": "wrong"})
    found = guarded.ask("POST", "/api/v1/login", {"name": "ann", "password": "right"})
    assert found.status == 429 and int(found.headers["Retry-After"]) > 0
    assert {event for event, _ in broker.audited} == {"api_login_failed"}


@pytest.mark.parametrize(
    "body", [{}, {"name": "a", "token": "t"}, {"name": 1}, {"x": 1}, {"name": "x" * 2_000}, b"["]
)
def test_what_is_no_login(guarded: Guarded, body: Any) -> None:
    assert guarded.ask("POST", "/api/v1/login", body).status == 400


def test_too_many_requests_of_one_token_hinder_no_other(broker: LogBroker) -> None:
    found = Serving(
        broker, broker.root, credentials=lambda: Credentials(TOKENS),
        requests_per_s=0.001, requests_burst=3.0,
    )  # fmt: skip
    with found as http:
        head = {"Authorization": "Bearer viewer"}
        statuses = [http.get("/api/v1/me", headers=head).status for _ in range(5)]
        assert statuses == [200, 200, 200, 429, 429]
        assert http.get("/api/v1/me", headers={"Authorization": "Bearer admin"}).status == 200
        assert http.get("/metrics", headers=head).status == 200
