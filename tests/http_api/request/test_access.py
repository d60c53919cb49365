"""Tokens, users and sessions: what is withdrawn works no more."""

from __future__ import annotations

from mqtt_broker.http_api.request.access import (
    ADMIN,
    SESSIONS_MAX,
    VIEWER,
    Access,
    ApiToken,
    ApiUser,
    Credentials,
    credentials_of,
    digest_of,
)


class World:
    def __init__(self) -> None:
        self.now = 1_000.0
        self.credentials = Credentials(
            [ApiToken("app", digest_of("t"), VIEWER)], [ApiUser("ann", "hash", ADMIN)]
        )
        self.access = Access(lambda: self.credentials, lambda: self.now, 100.0)


def test_a_token_has_its_role_until_it_is_withdrawn() -> None:
    world = World()
    caller = world.access.by_token("t")
    assert caller is not None and (caller.name, caller.role) == ("app", VIEWER)
    assert world.access.by_token("T") is None and world.access.by_token("") is None
    assert world.access.still_allows(caller)
    world.credentials = Credentials([], world.credentials.users)
    assert world.access.by_token("t") is None and not world.access.still_allows(caller)


def test_a_session_ends_with_its_time_its_user_or_its_password() -> None:
    world = World()
    for withdrawn in (
        Credentials(world.credentials.tokens),
        Credentials(world.credentials.tokens, [ApiUser("ann", "other", ADMIN)]),
    ):
        before = world.credentials
        cookie, caller = world.access.open_session("ann", password_hash="hash")
        assert world.access.by_cookie(cookie) == caller and caller.role == ADMIN
        world.credentials = withdrawn
        assert not world.access.still_allows(caller)
        assert world.access.by_cookie(cookie) is None
        world.credentials = before
        assert world.access.by_cookie(cookie) is None  # it does not come back
    cookie, caller = world.access.open_session("app", token="t")
    world.now += 101
    assert world.access.by_cookie(cookie) is None


def test_a_role_that_becomes_less_counts_at_once() -> None:
    world = World()
    cookie, caller = world.access.open_session("ann", password_hash="hash")
    world.credentials = Credentials([], [ApiUser("ann", "hash", VIEWER)])
    now = world.access.by_cookie(cookie)
    assert now is not None and now.role == VIEWER and not world.access.still_allows(caller)


def test_sessions_are_bounded_and_the_oldest_goes() -> None:
    world = World()
    first, _ = world.access.open_session("ann", password_hash="hash")
    last = first
    for _ in range(SESSIONS_MAX):
        last, _ = world.access.open_session("ann", password_hash="hash")
    assert world.access.by_cookie(first) is None and world.access.by_cookie(last) is not None
    world.access.close_session(last)
    assert world.access.by_cookie(last) is None


def test_one_token_is_the_admin_and_none_is_open() -> None:
    assert Access(lambda: credentials_of("")).is_open
    access = Access(lambda: credentials_of("x"))
    caller = access.by_token("x")
    assert not access.is_open and caller is not None and caller.role == ADMIN
    assert "x" not in repr(credentials_of("x").tokens[0]).split("name=")[1].split(",")[1]
