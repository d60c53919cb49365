"""Decide by all rules: the first that applies wins, and a topic without a rule is denied.

A PUBLISH names one topic. A SUBSCRIBE names all topics that its filter matches: it is allowed when
an allowing rule covers them all and no rule before that denies one of them (except topics that a
still earlier rule allows). So a message on its way to a subscriber needs no decision.

Rules are indexed by the clients they are for and then by topic level, so that a decision looks at
few of them, however many there are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from mqtt_broker.security.rules.identity import Identity
from mqtt_broker.security.rules.rule import Rule, authorized_filter
from mqtt_broker.topics.filter_sets import Levels, common, covers, levels_of

_FEW: Final = 16  # rules that are faster to walk than to look up in an index


@dataclass(frozen=True, slots=True)
class Decision:
    """The decision on a topic, and the rule that made it."""

    is_allowed: bool
    rule: Rule | None  # None: no rule applies
    why: str


class _Node:
    """A node of the index: one level of the rules' topics."""

    __slots__ = ("children", "here", "plus", "rest")

    def __init__(self) -> None:
        self.children: dict[str, _Node] = {}
        self.plus: _Node | None = None
        self.here: list[Rule] = []
        self.rest: list[Rule] = []  # whose next level is `#`, or not known yet

    def put(self, rule: Rule) -> None:
        node = self
        for level in levels_of(rule.topic):
            if level == "#" or "%" in level:  # a denying template may spread from here
                node.rest.append(rule)
                return
            if level == "+":
                node.plus = node.plus or _Node()
                node = node.plus
            else:
                node = node.children.setdefault(level, _Node())
        node.here.append(rule)

    def near(self, levels: Levels) -> Iterator[Rule]:
        """Yield every rule that could match a topic that the filter matches, and a few more."""
        nodes = [self]
        for level in levels:
            following: list[_Node] = []
            for node in nodes:
                yield from node.rest
                if level == "#":
                    yield from node._all_below()
                elif level == "+":
                    following += node.children.values()
                else:
                    child = node.children.get(level)
                    if child is not None:
                        following.append(child)
                if node.plus is not None and level != "#":
                    following.append(node.plus)
            if level == "#":
                return
            nodes = following
        for node in nodes:
            yield from node.here
            yield from node.rest

    def _all_below(self) -> Iterator[Rule]:
        """Yield all rules below this node, except `rest`, which the caller has yielded."""
        yield from self.here
        stack = [*self.children.values()]
        if self.plus is not None:
            stack.append(self.plus)
        while stack:
            node = stack.pop()
            yield from node.here
            yield from node.rest
            stack += node.children.values()
            if node.plus is not None:
                stack.append(node.plus)


class _RuleList:
    """The rules for the same clients, with an index when there are many."""

    __slots__ = ("_index", "rules")

    def __init__(self) -> None:
        self.rules: list[Rule] = []
        self._index: _Node | None = None

    def put(self, rule: Rule) -> None:
        self.rules.append(rule)
        if self._index is not None:
            self._index.put(rule)
        elif len(self.rules) > _FEW:
            self._index = _Node()
            for one in self.rules:
                self._index.put(one)

    def near(self, levels: Levels) -> Iterable[Rule]:
        return self.rules if self._index is None else self._index.near(levels)


class RuleSet:
    """All rules of a policy. `is_on` without a rule denies everything; off allows everything."""

    __slots__ = ("_by_client", "_by_role", "_by_user", "_general", "count", "is_on")

    def __init__(self, rules: Iterable[Rule] = (), *, is_on: bool | None = None) -> None:
        self._by_user: dict[str, _RuleList] = {}
        self._by_client: dict[str, _RuleList] = {}
        self._by_role: dict[str, _RuleList] = {}
        self._general = _RuleList()  # for all users, clients and roles
        self.count = 0
        for rule in rules:
            self.count += 1
            if rule.users:
                self._add(self._by_user, rule.users, rule)
            elif rule.clients:
                self._add(self._by_client, rule.clients, rule)
            elif rule.roles:
                self._add(self._by_role, rule.roles, rule)
            else:
                self._general.put(rule)
        self.is_on = bool(self.count) if is_on is None else is_on

    @staticmethod
    def _add(lists: dict[str, _RuleList], names: Iterable[str], rule: Rule) -> None:
        for name in names:
            found = lists.get(name)
            if found is None:
                found = lists[name] = _RuleList()
            found.put(rule)

    def may_publish(self, identity: Identity, topic: str) -> Decision:
        """Decide on a PUBLISH to this topic."""
        return self._decide(identity, levels_of(topic), is_publish=True)

    def may_subscribe(self, identity: Identity, text: str) -> Decision:
        """Decide on a SUBSCRIBE to this filter."""
        return self._decide(identity, authorized_filter(text), is_publish=False)

    def _decide(self, identity: Identity, wanted: Levels, *, is_publish: bool) -> Decision:
        if not self.is_on and identity.token_rules is None:
            return Decision(True, None, "there are no rules")
        allowed_parts: list[Levels] = []
        for rule in self._candidates(identity, wanted):
            if not (rule.publishes if is_publish else rule.subscribes):
                continue
            if not rule.applies_to(identity):
                continue
            levels = rule.levels_for(identity)
            if levels is None:
                continue
            if rule.is_allowed:
                if covers(levels, wanted):
                    return Decision(True, rule, "allowed")
                shared = common(levels, wanted)
                if shared is not None:
                    allowed_parts.append(shared)
                continue
            shared = common(levels, wanted)
            if shared is None and levels == ("#",) and rule.is_template:
                shared = wanted  # it denies all topics, also those that begin with `$`
            if shared is not None and not any(covers(part, shared) for part in allowed_parts):
                return Decision(False, rule, f"denied for {'/'.join(shared)}")
        if allowed_parts:
            parts = ", ".join("/".join(part) for part in allowed_parts[:5])
            return Decision(False, None, f"only allowed in part: {parts}")
        return Decision(False, None, "no rule applies")

    def _candidates(self, identity: Identity, wanted: Levels) -> list[Rule]:
        """Return rules that may apply, in order and each once; those of a token come first."""
        found: dict[int, Rule] = {rule.number: rule for rule in self._general.near(wanted)}
        lists = [self._by_client.get(identity.client_id)]
        if identity.username is not None:
            lists.append(self._by_user.get(identity.username))
        lists += [self._by_role.get(role) for role in identity.roles]
        for one in lists:
            if one is not None:
                found.update((rule.number, rule) for rule in one.near(wanted))
        rules = [found[number] for number in sorted(found)]
        if identity.token_rules:
            rules = [
                Rule(
                    -1, one.is_allowed, one.publishes, one.subscribes, one.topic, where="its token"
                )
                for one in identity.token_rules
            ] + rules
        return rules
