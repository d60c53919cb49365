"""Limits of one client by its user name, its role, or the default for all."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from mqtt_broker.core.limits.client_limits import ClientLimits


@dataclass(frozen=True, slots=True)
class ClientLimitRule:
    """Limits of a client, beside those of its listener and the settings; the strictest holds."""

    limits: ClientLimits | None = None
    connections_per_user: int = 0  # 0: any number


@dataclass(frozen=True, slots=True)
class ClientLimitRules:
    """Limits of clients: the default, by role and by user name."""

    everybody: ClientLimitRule = field(default_factory=ClientLimitRule)
    by_role: Mapping[str, ClientLimitRule] = field(default_factory=dict)
    by_user: Mapping[str, ClientLimitRule] = field(default_factory=dict)

    def of(self, username: str | None, roles: frozenset[str]) -> ClientLimitRule:
        """Return the user's own limits, else those of its first role by name, else the default."""
        if username is not None and username in self.by_user:
            return self.by_user[username]
        for role in sorted(roles):
            if role in self.by_role:
                return self.by_role[role]
        return self.everybody
