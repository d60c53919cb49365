"""How much one client may do, by who it is: its user, its role, or like everybody."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from mqtt_broker.core.limits.client_limits import ClientLimits


@dataclass(frozen=True, slots=True)
class ClientLimitRule:
    """Of one client, beside those of its listener and of the settings; the strictest holds."""

    limits: ClientLimits | None = None
    connections_per_user: int = 0  # 0: any number


@dataclass(frozen=True, slots=True)
class ClientLimitRules:
    """Limits for everybody, and for those who have a role or a name."""

    everybody: ClientLimitRule = field(default_factory=ClientLimitRule)
    by_role: Mapping[str, ClientLimitRule] = field(default_factory=dict)
    by_user: Mapping[str, ClientLimitRule] = field(default_factory=dict)

    def of(self, username: str | None, roles: frozenset[str]) -> ClientLimitRule:
        """The user's own, else those of the first of its roles by name, else everybody's."""
        if username is not None and username in self.by_user:
            return self.by_user[username]
        for role in sorted(roles):
            if role in self.by_role:
                return self.by_role[role]
        return self.everybody
