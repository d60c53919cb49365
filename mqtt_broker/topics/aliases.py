"""Topic Aliases, one table a direction and connection. They die with the connection."""

from __future__ import annotations


class InboundAliases:
    """The aliases that the peer set; `limit` is the Topic Alias Maximum that we announced."""

    __slots__ = ("_topics", "limit")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._topics: dict[int, str] = {}

    def put(self, alias: int, topic: str) -> None:
        self._topics[alias] = topic

    def get(self, alias: int) -> str | None:
        return self._topics.get(alias)


class OutboundAliases:
    """The aliases that we set towards one peer; the first `limit` topics get one.

    They keep it: a peer that allows few aliases wants its busiest topics short, and a table
    that turns over sends the long form again and again.
    """

    __slots__ = ("_aliases", "limit")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._aliases: dict[str, int] = {}

    def get(self, topic: str) -> tuple[int, bool]:
        """Return (alias, whether the peer knows it already); alias 0 when none is left.

        Never above what the peer allows. [MQTT-3.1.2-26], [MQTT-3.3.2-11]
        """
        alias = self._aliases.get(topic)
        if alias is not None:
            return alias, True
        return (len(self._aliases) + 1 if len(self._aliases) < self.limit else 0), False

    def learn(self, topic: str, alias: int) -> None:
        """Remember an alias once the PUBLISH that introduces it is queued."""
        self._aliases[topic] = alias
