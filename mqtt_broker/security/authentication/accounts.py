"""User accounts, wherever they are stored: password hash, SCRAM keys, roles."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Protocol, runtime_checkable

from mqtt_broker.security.authentication.scram import StoredKeys

USERNAME_CHARS_MAX: Final = 1024


@dataclass(frozen=True, slots=True)
class Account:
    """A user account as it is stored."""

    username: str
    password_hash: str | None = field(default=None, repr=False)
    scram: StoredKeys | None = field(default=None, repr=False)
    roles: frozenset[str] = frozenset()


class Accounts(Protocol):
    """A store of user accounts."""

    @property
    def is_slow(self) -> bool:
        """Tell whether a look-up may wait for a disk or a network."""

    @property
    def scram_iterations(self) -> int:
        """The iterations of most SCRAM keys here, so that unknown users seem to have as many."""

    def find(self, username: str) -> Account | None:
        """Look the user up; None when unknown, Unavailable when the look-up fails."""

    def has(self, username: str) -> bool:
        """Tell, from memory, whether a user who has authenticated still exists."""

    def roles(self, username: str) -> frozenset[str] | None:
        """Return the roles that a user has now; None: those it had when it authenticated."""


@runtime_checkable
class RenewableAccounts(Protocol):
    """A store of user accounts whose hashes the broker may replace."""

    def renew(self, username: str, stored: str, fresh: str) -> None:
        """Replace a stored hash by another one of the same password. From any thread."""
