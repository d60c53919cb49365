"""`/api/v1/login`, `/logout`, `/me`: sessions of the page, in a cookie.

The cookie is sent to this server alone, and no script reads it. A change with it has to repeat the
`csrf` of `/me`. Logins that fail are limited for each address, and a password is hashed whether the
user is known or not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final, TypedDict

from mqtt_broker.http_api.request import access
from mqtt_broker.http_api.request.access import ANYBODY, COOKIE, Caller
from mqtt_broker.http_api.request.json_types import Limits
from mqtt_broker.http_api.request.middleware import Site, too_many
from mqtt_broker.http_api.request.operations import Call, Operation, Reply, get, post
from mqtt_broker.http_api.request.problems import Problem, bad_request
from mqtt_broker.security.authentication.password_hasher import Passwords

ROOT: Final = "/api/v1"
_CHARS_MAX: Final = 1_024


@dataclass(frozen=True, slots=True)
class Login:
    """A user's name and password, or a token."""

    name: Annotated[str, Limits(chars_max=_CHARS_MAX)] = ""
    password: Annotated[str, Limits(chars_max=_CHARS_MAX)] = ""
    token: Annotated[str, Limits(chars_max=_CHARS_MAX)] = ""


class Me(TypedDict):
    """Name and role of the caller."""

    name: str
    role: Annotated[str, Limits(text="viewer, operator or admin")]
    csrf: Annotated[str, Limits(text="what changes with the cookie send as X-CSRF-Token")]


class Done(TypedDict):
    """Confirmation."""

    status: str


def operations(site: Site) -> list[Operation]:
    """Return the operations of sessions."""
    page = _Session(site)
    return [
        post(ROOT + "/login", page.login, is_open=True),
        post(ROOT + "/logout", page.logout, role=access.VIEWER),
        get(ROOT + "/me", page.me),
    ]


class _Session:
    def __init__(self, site: Site) -> None:
        self._site = site
        self._passwords: Passwords | None = None

    async def me(self, call: Call) -> Me:
        """Show who makes the request, and their role."""
        return _me(call.caller)

    async def login(self, body: Login, call: Call) -> Reply[Me]:
        """Open a session: the answer sets its cookie."""
        site = self._site
        if site.access.is_open:
            return Reply(_me(ANYBODY))
        if bool(body.token) == bool(body.name):
            raise bad_request("send name and password, or token")
        address = str(call.request.remote)
        wait_s = site.login_rates.take(address)
        if wait_s:
            raise too_many("logins that failed", wait_s)
        opened = self._by_token(body.token) if body.token else await self._by_password(body)
        if opened is None:
            site.broker.audit("api_login_failed", by=body.name, address=address)
            raise Problem(401, "Unauthorized", "the name, the password or the token is wrong")
        site.login_rates.take(address, -1.0)
        cookie, caller = opened
        site.broker.audit("api_login", by=caller.name, role=caller.role_name, address=address)
        return Reply(_me(caller), headers={"Set-Cookie": _cookie(cookie, site.limits.session_s)})

    def _by_token(self, token: str) -> tuple[str, Caller] | None:
        found = self._site.access.by_token(token)
        return None if found is None else self._site.access.open_session(found.name, token=token)

    async def _by_password(self, body: Login) -> tuple[str, Caller] | None:
        user = self._site.access.user(body.name)
        stored = None if user is None else user.password_hash
        if not await self._site.in_thread(self._is_right, stored, body.name, body.password):
            return None
        assert stored is not None
        return self._site.access.open_session(body.name, password_hash=stored)

    def _is_right(self, stored: str | None, name: str, password: str) -> bool:
        if self._passwords is None:
            self._passwords = Passwords()
        return self._passwords.verify(stored, name, password.encode(), 0.0)

    async def logout(self, call: Call) -> Reply[Done]:
        """End the session of the cookie."""
        cookie = call.request.cookies.get(COOKIE)
        if cookie:
            self._site.access.close_session(cookie)
        return Reply({"status": "ok"}, headers={"Set-Cookie": _cookie("", 0.0)})


def _me(caller: Caller) -> Me:
    return {"name": caller.name, "role": caller.role_name, "csrf": caller.csrf}


def _cookie(value: str, seconds: float) -> str:
    return f"{COOKIE}={value}; Path=/; Max-Age={seconds:.0f}; HttpOnly; SameSite=Strict"
