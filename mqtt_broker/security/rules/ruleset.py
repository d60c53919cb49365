"""All rules together: the first that fits decides, and what no rule is about is denied.

A PUBLISH is about one Topic Name. A SUBSCRIBE is about all names its filter matches: it is
allowed when a rule that allows covers them all, and no rule before that denies one of them
(but for names that a still earlier rule allows). So nothing has to be asked of a message on its
way to a subscriber.

Rules are found by whom they are about and then by level, so that a decision costs what the
rules cost that are near it, not what all of them cost.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from mqtt_broker.security.rules.identity import Identity
from mqtt_broker.security.rules.rule import Rule, judged
from mqtt_broker.topics.filter_sets import Levels, common, covers, levels_of

_FEW: Final = 16  # rules that are looked at one by one sooner than through an index


@dataclass(frozen=True, slots=True)
class Decision:
    is_allowed: bool
    rule: Rule | None  # None: no rule is about it
    why: str


class _Node:
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
        """Every rule that could match a name that the filter matches, and a few more."""
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
        """All under this node but its own `rest`, which the caller has."""
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


class _Shelf:
    """The rules about the same people."""

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
    """`is_on` without a rule: everything is denied. Not on: everything is allowed."""

    __slots__ = ("_by_client", "_by_role", "_by_user", "_others", "count", "is_on")

    def __init__(self, rules: Iterable[Rule] = (), *, is_on: bool | None = None) -> None:
        self._by_user: dict[str, _Shelf] = {}
        self._by_client: dict[str, _Shelf] = {}
        self._by_role: dict[str, _Shelf] = {}
        self._others = _Shelf()
        self.count = 0
        for rule in rules:
            self.count += 1
            if rule.users:
                self._shelve(self._by_user, rule.users, rule)
            elif rule.clients:
                self._shelve(self._by_client, rule.clients, rule)
            elif rule.roles:
                self._shelve(self._by_role, rule.roles, rule)
            else:
                self._others.put(rule)
        self.is_on = bool(self.count) if is_on is None else is_on

    @staticmethod
    def _shelve(shelves: dict[str, _Shelf], names: Iterable[str], rule: Rule) -> None:
        for name in names:
            shelf = shelves.get(name)
            if shelf is None:
                shelf = shelves[name] = _Shelf()
            shelf.put(rule)

    def may_publish(self, identity: Identity, topic: str) -> Decision:
        return self._decide(identity, levels_of(topic), is_publish=True)

    def may_subscribe(self, identity: Identity, text: str) -> Decision:
        return self._decide(identity, judged(text), is_publish=False)

    def _decide(self, identity: Identity, wanted: Levels, *, is_publish: bool) -> Decision:
        if not self.is_on and identity.grants is None:
            return Decision(True, None, "there are no rules")
        allowed_parts: list[Levels] = []
        for rule in self._candidates(identity, wanted):
            if not (rule.publishes if is_publish else rule.subscribes):
                continue
            if not rule.is_about(identity):
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
                shared = wanted  # it spread over everything, `$` topics too
            if shared is not None and not any(covers(part, shared) for part in allowed_parts):
                return Decision(False, rule, f"denied for {'/'.join(shared)}")
        if allowed_parts:
            parts = ", ".join("/".join(part) for part in allowed_parts[:5])
            return Decision(False, None, f"only a part of it is allowed: {parts}")
        return Decision(False, None, "no rule is about it")

    def _candidates(self, identity: Identity, wanted: Levels) -> list[Rule]:
        """Rules that may fit, in their order, each once; what a token brings comes first."""
        found: dict[int, Rule] = {rule.number: rule for rule in self._others.near(wanted)}
        shelves = [self._by_client.get(identity.client_id)]
        if identity.username is not None:
            shelves.append(self._by_user.get(identity.username))
        shelves += [self._by_role.get(role) for role in identity.roles]
        for shelf in shelves:
            if shelf is not None:
                found.update((rule.number, rule) for rule in shelf.near(wanted))
        rules = [found[number] for number in sorted(found)]
        if identity.grants:
            rules = [
                Rule(
                    -1,
                    grant.is_allowed,
                    grant.publishes,
                    grant.subscribes,
                    grant.topic,
                    where="its token",
                )
                for grant in identity.grants
            ] + rules
        return rules
