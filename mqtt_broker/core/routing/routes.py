"""The routes of topics: worked out once, kept until a subscription changes.

A `Route` has one `Target` a session, however many of its subscriptions match: the highest
QoS, all identifiers [MQTT-3.3.4-2], [MQTT-3.3.4-5]. Receivers that take plain bytes, which
are most of them, stand in lists by version, so that QoS 0 fan-out is one loop.
"""

from __future__ import annotations

from typing import Final

from mqtt_broker.core.interfaces.message_log import TopicWriter
from mqtt_broker.core.interfaces.payload_checks import PayloadCheck
from mqtt_broker.core.routing.shared_groups import SharedGroup
from mqtt_broker.topics.cache import MatchCache
from mqtt_broker.topics.trie import Trie
from sessions.messages.message import OptionsByQos, options_by_qos
from sessions.outbound import Outbound
from sessions.session import Subscription

_TOPIC_CHARS_CACHED_MAX: Final = 512  # a topic of 64 KB is not worth keeping


class Target:
    """The delivery of a topic to one session; `own`: of its own messages, None for No Local."""

    __slots__ = ("live", "outbound", "own", "plain", "retained")

    def __init__(self, outbound: Outbound, subscriptions: list[Subscription]) -> None:
        self.outbound = outbound
        qos = max(s.qos for s in subscriptions)
        identifiers = tuple(i for s in subscriptions for i in s.identifiers)
        as_published = any(s.retain_as_published for s in subscriptions)
        self.live: OptionsByQos = options_by_qos(qos, False, identifiers)
        # What is published with RETAIN keeps it only for those who asked. [MQTT-3.3.1-12]
        self.retained: OptionsByQos = options_by_qos(qos, as_published, identifiers)
        self.own: Target | None = self
        if any(s.no_local for s in subscriptions):  # [MQTT-3.8.3-3]
            others = [s for s in subscriptions if not s.no_local]
            self.own = Target(outbound, others) if others else None
        self.plain = self.own is self and not identifiers


class Route:
    __slots__ = (
        "check",
        "durability",
        "groups",
        "is_matched",
        "plain_v3",
        "plain_v5",
        "refusal",
        "rest",
        "targets",
        "writer",
    )

    def __init__(
        self,
        targets: list[Target],
        groups: list[SharedGroup],
        refusal: int,
        durability: int,
        writer: TopicWriter | None,
        check: PayloadCheck | None,
    ) -> None:
        self.targets = targets
        self.groups = groups
        self.refusal = refusal  # a reason code when nobody may publish here
        self.durability = durability  # what an acknowledgement promises here
        self.check = check  # what is asked of payloads
        self.writer = writer  # of the log, if it keeps the topic
        self.plain_v3: list[Outbound] = []
        self.plain_v5: list[Outbound] = []
        self.rest: list[Target] = []
        self.is_matched = len(targets) > 0 or len(groups) > 0
        for target in targets:
            outbound = target.outbound
            if not (target.plain and outbound.is_plain):
                self.rest.append(target)
            elif outbound.version == 5:
                self.plain_v5.append(outbound)
            else:
                self.plain_v3.append(outbound)


class Routes:
    """The subscriptions of every session, and the routes worked out from them."""

    __slots__ = ("_groups", "_trie", "cache", "shared_count")

    def __init__(self) -> None:
        self._trie: Trie[str, Subscription] = Trie()
        self._groups: Trie[str, SharedGroup] = Trie()
        self.cache: MatchCache[Route] = MatchCache()
        self.shared_count = 0

    @property
    def count(self) -> int:
        """The number of subscriptions, shared ones included."""
        return self._trie.count + self.shared_count

    def count_shared(self, change: int) -> None:
        """Count members of shared subscriptions that came or went."""
        self.shared_count += change

    def add(self, subscription: Subscription) -> bool:
        """Add a subscription; False when it replaces one. [MQTT-3.8.4-3]"""
        self.cache.drop(subscription.filter)
        return self._trie.put(subscription.filter, subscription.session.client_id, subscription)

    def remove(self, subscription: Subscription) -> None:
        self.cache.drop(subscription.filter)
        self._trie.remove(subscription.filter, subscription.session.client_id)

    def add_group(self, text: str, name: str, group: SharedGroup) -> None:
        self.cache.drop(text)
        self._groups.put(text, name, group)

    def remove_group(self, text: str, name: str) -> None:
        self.cache.drop(text)
        self._groups.remove(text, name)

    def find(
        self,
        topic: str,
        refusal: int,
        durability: int,
        writer: TopicWriter | None,
        check: PayloadCheck | None,
    ) -> Route:
        """Work out the route of a topic that is not in the cache, and put it there."""
        by_session: dict[int, list[Subscription]] = {}
        for subscription in self._trie.match(topic):
            by_session.setdefault(id(subscription.session), []).append(subscription)
        targets = [Target(found[0].session.outbound, found) for found in by_session.values()]
        route = Route(targets, self._groups.match(topic), refusal, durability, writer, check)
        if len(topic) <= _TOPIC_CHARS_CACHED_MAX:
            self.cache.put(topic, route)
        return route
