"""The part of the broker interface by which administrators change users and rules.

All methods but `apply` wait for a disk, a hash or a database: call them in a thread. They raise
InvalidChange and UnknownName; `apply` puts in force what was written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Final, Protocol

from mqtt_broker.http_api.request.broker_interface import Part


@dataclass(frozen=True, slots=True)
class UserFigures:
    """A user, and where it is kept."""

    name: str
    source: str  # the name of its [[auth]] table
    kind: str  # password_file or sql
    roles: list[str]
    has_password: bool
    has_scram: bool
    is_enabled: bool


@dataclass(frozen=True, slots=True)
class RuleFigures:
    """An access rule where it is kept."""

    id: str  # file:N for the N-th [[acl]] table, sql:N for a position, sql:N-M for several
    place: str
    permit: str
    action: str
    topics: list[str]
    users: list[str]
    roles: list[str]
    clients: list[str]
    addresses: list[str]
    anonymous: bool


@dataclass(frozen=True, slots=True)
class RoleFigures:
    """A role and users that have it."""

    role: str
    users: list[str]
    place: str  # of the [[roles]] table that gives it; empty: it is kept with the users


class AccessAdmin(Protocol):
    """Changes users and rules."""

    def users(self) -> list[UserFigures]: ...

    def put_user(
        self,
        name: str,
        *,
        password: str | None,
        scram: bool,
        roles: Sequence[str] | None,
        is_enabled: bool | None,
        source: str,
        is_new: bool,
    ) -> UserFigures: ...

    def remove_user(self, name: str) -> None: ...

    def configured_roles(self) -> list[RoleFigures]: ...

    def rules(self) -> list[RuleFigures]: ...

    def rule(self, where: str) -> RuleFigures: ...

    def put_rule(self, where: str, rule: Mapping[str, Any]) -> str:
        """Write a rule; `where` is file or sql for a new one, or its id. Returns the id."""
        ...

    def remove_rule(self, where: str) -> None: ...

    def apply(self) -> Future[dict[str, str]]:
        """Put what was written in force; return what could not be read, and why."""
        ...


ACCESS_ADMIN: Final[Part[AccessAdmin]] = Part("users and rules that can be changed: set [[auth]]")
