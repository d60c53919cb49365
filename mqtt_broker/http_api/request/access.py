"""Tokens, users with passwords, sessions of the page and roles: the access to the HTTP server.

A token or a session is looked up for each request, so one that is withdrawn works no more from the
next request on; an answer that takes long asks `Access.still_allows`. Tokens are kept and compared
as SHA-256 digests: they are random, so nobody finds one by guessing. Sessions are in memory; their
ids are kept as digests, too.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

OPEN: Final = 0  # a path for everybody
VIEWER: Final = 1
OPERATOR: Final = 2
ADMIN: Final = 3
ROLES: Final = {"viewer": VIEWER, "operator": OPERATOR, "admin": ADMIN}
ROLE_NAMES: Final = {OPEN: "", **{number: name for name, number in ROLES.items()}}
COOKIE: Final = "fleetmq_session"
CSRF_HEADER: Final = "X-CSRF-Token"
SESSIONS_MAX: Final = 1_000


def digest_of(token: str) -> str:
    """Return the SHA-256 digest of a token, in hexadecimal digits."""
    return hashlib.sha256(token.encode(errors="surrogateescape")).hexdigest()


@dataclass(frozen=True, slots=True)
class ApiToken:
    """A token by its digest."""

    name: str
    digest: str = field(repr=False)
    role: int


@dataclass(frozen=True, slots=True)
class ApiUser:
    """A user of the page; the hash is argon2id's."""

    name: str
    password_hash: str = field(repr=False)
    role: int


@dataclass(frozen=True, slots=True)
class Credentials:
    """All tokens and users at one moment. A reload replaces the whole."""

    tokens: Sequence[ApiToken] = ()
    users: Sequence[ApiUser] = ()
    must_log_in: bool = False  # even if all tokens and users are withdrawn

    @property
    def are_needed(self) -> bool:
        """Tell whether anybody has to show a token or a password at all."""
        return self.must_log_in or bool(self.tokens or self.users)

    def token(self, digest: str) -> ApiToken | None:
        """Find a token; the time this takes tells nothing about the others."""
        found = None
        for token in self.tokens:
            if hmac.compare_digest(token.digest.encode(), digest.encode()):
                found = token
        return found

    def user(self, name: str) -> ApiUser | None:
        """Find a user by name."""
        return next((user for user in self.users if user.name == name), None)


def credentials_of(token: str) -> Credentials:
    """Return the credentials of a server with one token, `http_token`, or with none."""
    if not token:
        return Credentials()
    return Credentials([ApiToken("http_token", digest_of(token), ADMIN)])


@dataclass(frozen=True, slots=True)
class Caller:
    """The token, user or session that makes a request."""

    name: str
    role: int
    key: str = ""  # of its token or session; empty: nobody has to say who they are
    csrf: str = ""  # of its session; changes have to repeat it

    @property
    def role_name(self) -> str:
        return ROLE_NAMES[self.role]


ANYBODY: Final = Caller("anonymous", ADMIN)  # where nobody has to say who they are
NOBODY: Final = Caller("", OPEN)


@dataclass(slots=True)
class _Session:
    name: str
    token: str  # the digest it was opened with; empty: a user and a password
    password_hash: str
    csrf: str
    expires_at: float


class Access:
    """Finds who makes a request. Used in the HTTP server's thread alone."""

    def __init__(
        self,
        credentials: Callable[[], Credentials] = Credentials,
        clock: Callable[[], float] = lambda: 0.0,
        session_s: float = 86_400.0,
    ) -> None:
        self._credentials = credentials
        self._clock = clock
        self._session_s = session_s
        self._sessions: dict[str, _Session] = {}  # by the digest of the id, oldest first

    @property
    def is_open(self) -> bool:
        """Tell whether nobody has to say who they are."""
        return not self._credentials().are_needed

    def by_token(self, token: str) -> Caller | None:
        """Return the caller that shows a token."""
        return self._of_token(digest_of(token))

    def _of_token(self, digest: str) -> Caller | None:
        found = self._credentials().token(digest)
        return None if found is None else Caller(found.name, found.role, f"token {digest}")

    def by_cookie(self, cookie: str) -> Caller | None:
        """Return the caller of a session of the page."""
        return self._of_session(digest_of(cookie))

    def _of_session(self, key: str) -> Caller | None:
        session = self._sessions.get(key)
        if session is None:
            return None
        role = self._role_now(session)
        if role is None or session.expires_at <= self._clock():
            del self._sessions[key]
            return None
        return Caller(session.name, role, f"session {key}", session.csrf)

    def _role_now(self, session: _Session) -> int | None:
        """Return what the owner of a session may do now; None: nothing, or the password changed."""
        credentials = self._credentials()
        if session.token:
            token = credentials.token(session.token)
            return None if token is None else token.role
        user = credentials.user(session.name)
        is_same = user is not None and user.password_hash == session.password_hash
        return user.role if user is not None and is_same else None

    def still_allows(self, caller: Caller) -> bool:
        """Tell whether what the caller showed is still valid, during an answer that takes long."""
        if not caller.key:
            return self.is_open
        kind, _, digest = caller.key.partition(" ")
        found = self._of_token(digest) if kind == "token" else self._of_session(digest)
        return found is not None and found.role >= caller.role

    def tokens(self) -> Sequence[ApiToken]:
        """Return the tokens in force."""
        return self._credentials().tokens

    def user(self, name: str) -> ApiUser | None:
        """Return a user, whose password is to be checked."""
        return self._credentials().user(name)

    def open_session(
        self, name: str, *, token: str = "", password_hash: str = ""
    ) -> tuple[str, Caller]:
        """Open a session for a token or a user; return its cookie and the caller."""
        while len(self._sessions) >= SESSIONS_MAX:
            del self._sessions[next(iter(self._sessions))]
        cookie = secrets.token_urlsafe(32)
        key = digest_of(cookie)
        self._sessions[key] = _Session(
            name,
            digest_of(token) if token else "",
            password_hash,
            secrets.token_urlsafe(32),
            self._clock() + self._session_s,
        )
        caller = self._of_session(key)
        assert caller is not None
        return cookie, caller

    def close_session(self, cookie: str) -> None:
        """End a session, if it is there."""
        self._sessions.pop(digest_of(cookie), None)
