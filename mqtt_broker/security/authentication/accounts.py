"""What is stored of a user, wherever: a password's hash, SCRAM keys, roles."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Protocol

from mqtt_broker.security.authentication.scram import StoredKeys

USERNAME_CHARS_MAX: Final = 1024


@dataclass(frozen=True, slots=True)
class Account:
    username: str
    password_hash: str | None = field(default=None, repr=False)
    scram: StoredKeys | None = field(default=None, repr=False)
    roles: frozenset[str] = frozenset()


class Accounts(Protocol):
    """Where users are looked up."""

    @property
    def is_slow(self) -> bool:
        """Whether a look-up may wait for a disk or a network."""

    @property
    def scram_iterations(self) -> int:
        """What most SCRAM keys here have, so that unknown users seem to have as many."""

    def find(self, username: str) -> Account | None:
        """The user, or None; Unavailable when nobody can tell."""

    def has(self, username: str) -> bool:
        """Whether a user who was let in would still be found; asked from memory."""

    def roles(self, username: str) -> frozenset[str] | None:
        """Those that a user who was let in has now; None: as far as is known those it came with."""
