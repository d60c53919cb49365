"""Estimate what a JSON Schema costs for each value of a payload.

Payloads come from clients and are checked on the event loop. A payload with a million values, each
compared with fifty constants, took ten seconds. So an upper bound of the cost for one value is
computed when the schema is loaded, and multiplied by the number of values when a payload arrives.

A value is checked by the schema for its position, and by all schemas that this one applies to the
same value (`allOf`, `anyOf`, `$ref`, ...). These also name the schemas for its members and items:
of `properties`, only one applies to a member. Costs are in units of 10 ns, measured with
jsonschema-rs.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from mqtt_broker.server.config.schema_cost import STEPS_MAX, names_of, target_of

VALUE_COST_MAX: Final = 5_000_000  # larger costs are not told apart
_LOOKED_FOR: Final = -1  # instead of a cost: the schema is recursive
_APPLIED: Final = 1  # one more schema for the same value
_PATTERN: Final = 6  # matched with a name
_REFERENCES: Final = ("$ref", "$dynamicRef", "$recursiveRef")
# Applied to the same value.
_ALTERNATIVES: Final = ("allOf", "anyOf", "oneOf")
_CONDITIONS: Final = ("not", "if", "then", "else")
_DEPENDENT: Final = ("dependentSchemas", "dependencies")
# Applied to each member or item.
_INNER: Final = (
    "items", "additionalItems", "contains", "additionalProperties", "unevaluatedItems",
    "unevaluatedProperties", "propertyNames",
)  # fmt: skip
# Beside what is applied.
_AMOUNTS: Final = {
    "const": 22, "contains": 2, "multipleOf": 140, "minimum": 1, "maximum": 1,
    "exclusiveMinimum": 1, "exclusiveMaximum": 1, "minLength": 1, "maxLength": 1, "pattern": 5,
    "format": 5, "uniqueItems": 10, "unevaluatedItems": 100, "unevaluatedProperties": 100,
}  # fmt: skip


class ValueCost(NamedTuple):
    most: int  # the cost of one value of a payload
    leads_back: bool  # the schema refers to itself, so that payloads may be of any depth


def value_cost(root: Any) -> ValueCost:
    """Estimate the cost of a schema for one value: the maximum if references nest too deep."""
    costs = _Costs(root)
    try:
        return ValueCost(costs.worst(root), costs.leads_back)
    except RecursionError:  # hundreds of references in a row: nesting is bounded
        return ValueCost(STEPS_MAX, True)


class _Costs:
    def __init__(self, root: Any) -> None:
        self.leads_back = False
        self._root = root
        self._names = names_of(root)
        self._same: dict[int, int] = {}  # of a node, for the value it applies to
        self._inner: dict[int, int] = {}  # for a value inside that one

    def worst(self, node: Any) -> int:
        """Return the highest cost that `node` causes for its value or any value inside it."""
        return max(self.same(node), self.inner(node))

    def same(self, node: Any) -> int:
        """Return the cost of a node and of all that it applies to the same value."""
        known = self._known(self._same, node)
        if known < 0:
            own = _own(node)
            found = own + sum(_APPLIED + self.same(one) for one in self._beside(node))
            known = self._same[id(node)] = min(found, VALUE_COST_MAX)
        return known

    def inner(self, node: Any) -> int:
        """Return the highest cost of a value inside, caused by all that applies to this one."""
        known = self._known(self._inner, node)
        if known < 0:
            found = self._inside(node) + sum(self.inner(one) for one in self._beside(node))
            known = self._inner[id(node)] = min(found, VALUE_COST_MAX)
        return known

    def _known(self, amounts: dict[int, int], node: Any) -> int:
        """Return the cost of a node: 0 while it is being computed, -1 before."""
        known = amounts.get(id(node))
        if known is None:
            amounts[id(node)] = _LOOKED_FOR
            return -1
        self.leads_back |= known == _LOOKED_FOR
        return max(known, 0)

    def _beside(self, node: Any) -> Iterator[Any]:
        if not isinstance(node, dict):
            return
        for key in _REFERENCES:
            if isinstance(node.get(key), str):
                yield target_of(node[key], self._root, self._names)
        for key in _ALTERNATIVES:
            if isinstance(node.get(key), list):
                yield from node[key]
        for key in _CONDITIONS:
            if key in node:
                yield node[key]
        for key in _DEPENDENT:
            if isinstance(node.get(key), dict):
                yield from node[key].values()

    def _inside(self, node: Any) -> int:
        """Return the highest cost of a node for a member or an item."""
        if not isinstance(node, dict):
            return 0
        found = 0
        for key in _INNER:
            inner = node.get(key)
            if isinstance(inner, dict):
                found += _APPLIED + self.worst(inner)
            elif isinstance(inner, list):  # as `prefixItems`, in older drafts
                found += self._largest(inner)
        if isinstance(node.get("prefixItems"), list):
            found += self._largest(node["prefixItems"])
        if isinstance(node.get("properties"), dict):
            found += self._largest(list(node["properties"].values()))
        if isinstance(node.get("patternProperties"), dict):
            found += sum(_PATTERN + self.worst(one) for one in node["patternProperties"].values())
        return found

    def _largest(self, nodes: list[Any]) -> int:
        return max((self.worst(one) for one in nodes), default=0)


def _own(node: Any) -> int:
    if not isinstance(node, dict):
        return 0
    found = sum(amount for key, amount in _AMOUNTS.items() if key in node)
    if isinstance(node.get("enum"), list):  # the simple ones are found at once
        found += 5 + sum(isinstance(one, dict | list) for one in node["enum"])
    for key in ("dependentRequired", *_DEPENDENT):
        if isinstance(node.get(key), dict):
            found += 2 * len(node[key])
    return found
