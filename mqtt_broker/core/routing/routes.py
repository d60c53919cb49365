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
from mqtt_broker.recorder.runs import TopicRuns
from mqtt_broker.recorder.segments import NOBODY, SEPARATOR, Receivers
from mqtt_broker.topics.cache import MatchCache
from mqtt_broker.topics.names import text_bytes
from mqtt_broker.topics.trie import Trie
from sessions.messages.message import OptionsByQos, options_by_qos
from sessions.messages.work import MATCHED, ROUTE, Work
from sessions.outbound import Outbound
from sessions.session import Session, Subscription

_TOPIC_CHARS_CACHED_MAX: Final = 512  # a topic of 64 KB is not worth keeping
_RECEIVER_BYTES: Final = 18  # of a route: two references in lists, which have some to spare
_TARGET_BYTES: Final = 700  # of a session with several subscriptions, which no other route has
_IDENTIFIER_BYTES: Final = 16  # of each of these subscriptions
_GROUP_BYTES: Final = 1_300  # of a shared group without its members


class Target:
    """The delivery of a topic to one session.

    `own` is that of the session's own messages where it differs; None: it gets none of them.
    """

    __slots__ = ("filters", "has_own", "live", "outbound", "own", "plain", "retained")

    def __init__(self, outbound: Outbound, subscriptions: list[Subscription]) -> None:
        self.outbound = outbound
        self.filters = subscriptions[0].filter  # that match, for people
        self.own: Target | None = None
        self.has_own = False
        if len(subscriptions) == 1:
            only = subscriptions[0]
            if not (only.no_local or only.identifier):  # most are like this, in crowds above all
                self.live: OptionsByQos = options_by_qos(only.qos, False, ())
                self.retained: OptionsByQos = options_by_qos(only.qos, only.retain_as_published, ())
                self.plain = True
                return
        if len(subscriptions) > 1:
            self.filters = SEPARATOR.join(s.filter for s in subscriptions)
        qos = max(s.qos for s in subscriptions)
        identifiers = tuple(i for s in subscriptions for i in s.identifiers)
        as_published = any(s.retain_as_published for s in subscriptions)
        self.live = options_by_qos(qos, False, identifiers)
        # What is published with RETAIN keeps it only for those who asked. [MQTT-3.3.1-12]
        self.retained = options_by_qos(qos, as_published, identifiers)
        if any(s.no_local for s in subscriptions):  # [MQTT-3.8.3-3]
            others = [s for s in subscriptions if not s.no_local]
            self.own = Target(outbound, others) if others else None
            self.has_own = True
        self.plain = not (self.has_own or identifiers)


class Route(TopicRuns):
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
        topic: str,
        targets: list[Target],
        groups: list[SharedGroup],
        refusal: int,
        durability: int,
        writer: TopicWriter | None,
        check: PayloadCheck | None,
    ) -> None:
        super().__init__(topic)
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

    def receivers(self) -> Receivers:
        """Describe for the recorder who gets what is published here."""
        targets = self.targets
        if not self.is_matched:
            return NOBODY
        return Receivers(
            tuple([target.outbound.client_id for target in targets]),
            tuple([target.filters for target in targets]),
            bytes([target.live[2].qos | (4 if target.has_own else 0) for target in targets]),
            tuple([group.name for group in self.groups]),
        )


class Routes:
    """The subscriptions of every session, and the routes worked out from them."""

    __slots__ = ("_group_bytes", "_work", "cache", "groups", "shared_count", "trie")

    def __init__(self, work: Work) -> None:
        self._work = work
        self.trie: Trie[Session, Subscription] = Trie()
        self.groups: Trie[str, SharedGroup] = Trie()
        self._group_bytes = 0
        self.cache: MatchCache[Route] = MatchCache()
        self.shared_count = 0

    @property
    def count(self) -> int:
        """The number of subscriptions, shared ones included."""
        return self.trie.count + self.shared_count

    @property
    def bytes(self) -> int:
        """About the bytes that are kept to find subscriptions, without themselves."""
        return self.trie.bytes + self.groups.bytes + self._group_bytes

    def count_shared(self, change: int) -> None:
        """Count members of shared subscriptions that came or went."""
        self.shared_count += change

    def add(self, subscription: Subscription) -> bool:
        """Add a subscription; False when it replaces one. [MQTT-3.8.4-3]"""
        self.cache.drop(subscription.filter)
        if subscription.identifier or subscription.no_local:
            # Its target takes more to make than others: the work is the subscriber's, not that of
            # the first message to a crowd of such.
            _target([subscription])
        return self.trie.put(subscription.filter, subscription.session, subscription)

    def remove(self, subscription: Subscription) -> None:
        self.cache.drop(subscription.filter)
        self.trie.remove(subscription.filter, subscription.session)

    def add_group(self, text: str, name: str, group: SharedGroup) -> None:
        self.cache.drop(text)
        if self.groups.put(text, name, group):
            self._group_bytes += _GROUP_BYTES + text_bytes(text)

    def remove_group(self, text: str, name: str) -> None:
        self.cache.drop(text)
        if self.groups.remove(text, name) is not None:
            self._group_bytes -= _GROUP_BYTES + text_bytes(text)

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
        matched = self.trie.match(topic)
        for subscription in matched:
            session = subscription.session
            if session.outbound.is_over:  # it is about to be removed
                continue
            key = id(session)
            found = by_session.get(key)
            if found is None:
                by_session[key] = [subscription]
            else:
                found.append(subscription)
        targets = [_target(found) for found in by_session.values()]
        weight = 2 * text_bytes(topic) + _RECEIVER_BYTES * len(targets)
        if len(matched) > len(targets):
            weight += _overlap_bytes(by_session)
        route = Route(topic, targets, self.groups.match(topic), refusal, durability, writer, check)
        self._work.spent += ROUTE + self.trie.steps + self.groups.steps
        self._work.spent += MATCHED * len(matched)
        if len(topic) <= _TOPIC_CHARS_CACHED_MAX:
            self.cache.put(topic, route, weight)  # its name stands in the index as well
        return route


def _overlap_bytes(by_session: dict[int, list[Subscription]]) -> int:
    """Return the bytes of the targets that a route shares with no other."""
    sizes = [len(found) for found in by_session.values() if len(found) > 1]
    return _TARGET_BYTES * len(sizes) + _IDENTIFIER_BYTES * sum(sizes)


def _target(subscriptions: list[Subscription]) -> Target:
    """Make the target of a session, or find that of its only subscription: routes share it."""
    only = subscriptions[0]
    if len(subscriptions) > 1:
        return Target(only.session.outbound, subscriptions)
    known = only.target
    if isinstance(known, Target):
        return known
    target = Target(only.session.outbound, subscriptions)
    only.deliver_to(target)
    return target
