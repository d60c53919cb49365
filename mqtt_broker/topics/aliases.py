"""Topic Aliases: one table per direction and connection, which ends with the connection.

A peer may give each of its aliases a name of 64 KB, so all tables together are limited in bytes.
"""

from __future__ import annotations

from typing import Final

from mqtt_broker.topics.names import text_bytes

_ALIAS_BYTES: Final = 120  # of an alias, beside its name
_PART: Final = 16  # of what is free, that one table may have: so a small one always finds room


class AliasBytes:
    """Counts the bytes of all tables against a limit."""

    __slots__ = ("bytes", "bytes_max")

    def __init__(self, bytes_max: int = 1 << 62) -> None:
        self.bytes = 0
        self.bytes_max = bytes_max

    def allows(self, own: int, more: int) -> bool:
        """Tell whether a table of `own` bytes may have `more` of them."""
        return more <= 0 or (own + more) * _PART <= self.bytes_max - self.bytes

    def count(self, change: int) -> None:
        """Count bytes that are kept from now on, or (below 0) no longer are."""
        self.bytes += change


class InboundAliases:
    """The aliases that the peer set; `limit` is the Topic Alias Maximum that we announced."""

    __slots__ = ("_shared", "_topics", "bytes", "limit")

    def __init__(self, limit: int, shared: AliasBytes | None = None) -> None:
        self.limit = limit
        self.bytes = 0
        self._shared = AliasBytes() if shared is None else shared
        self._topics: dict[int, str] = {}

    def put(self, alias: int, topic: str) -> bool:
        """Set an alias; False if there is no room for the name."""
        before = self._topics.get(alias)
        change = _ALIAS_BYTES + text_bytes(topic)
        if before is not None:
            change -= _ALIAS_BYTES + text_bytes(before)
        if not self._shared.allows(self.bytes, change):
            return False
        self._topics[alias] = topic
        self.bytes += change
        self._shared.count(change)
        return True

    def get(self, alias: int) -> str | None:
        return self._topics.get(alias)

    def close(self) -> None:
        """Forget the aliases: the connection has ended."""
        self._topics.clear()
        self._shared.count(-self.bytes)
        self.bytes = 0


class OutboundAliases:
    """The aliases that we set towards one peer: the first `limit` topics get one, and keep it.

    If aliases were reassigned, topics would be sent in full again and again.
    """

    __slots__ = ("_aliases", "_shared", "bytes", "limit")

    def __init__(self, limit: int, shared: AliasBytes | None = None) -> None:
        self.limit = limit
        self.bytes = 0
        self._shared = AliasBytes() if shared is None else shared
        self._aliases: dict[str, int] = {}

    def get(self, topic: str) -> tuple[int, bool]:
        """Return an alias, or 0 if none is left, and whether the peer knows it already.

        Aliases do not exceed what the peer allows. [MQTT-3.1.2-26], [MQTT-3.3.2-11]
        """
        alias = self._aliases.get(topic)
        if alias is not None:
            return alias, True
        if len(self._aliases) >= self.limit:
            return 0, False
        if not self._shared.allows(self.bytes, _ALIAS_BYTES + text_bytes(topic)):
            return 0, False
        return len(self._aliases) + 1, False

    def learn(self, topic: str, alias: int) -> None:
        """Remember an alias once the PUBLISH that introduces it is queued."""
        size = _ALIAS_BYTES + text_bytes(topic)
        self._aliases[topic] = alias
        self.bytes += size
        self._shared.count(size)

    def close(self) -> None:
        """Forget the aliases: the connection has ended."""
        self._aliases.clear()
        self._shared.count(-self.bytes)
        self.bytes = 0
