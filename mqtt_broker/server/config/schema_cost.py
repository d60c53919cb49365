"""Refuse a JSON Schema that takes too long to compile or to apply.

Payloads come from clients and are checked on the event loop. The time of a check grows with the
payload. References that multiply make it grow exponentially: with thirty definitions, each
referring twice to the next, a payload of seven bytes took 26 s.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from mqtt_broker.streams.format.nesting import LEVELS_MAX, VALUES_MAX, json_problem

STEPS_MAX: Final = 100_000  # schemas that one value may be checked against: about 4 ms
_REFERENCES: Final = ("$ref", "$dynamicRef", "$recursiveRef")
_NAMES: Final = ("$anchor", "$dynamicAnchor", "$id", "id")
_DEFINITIONS: Final = ("$defs", "definitions")


def schema_problem(definition: Any) -> str:
    """Return why a schema is refused, or "" if it is accepted."""
    return json_problem(definition, LEVELS_MAX, VALUES_MAX) or _reference_problem(definition)


def _reference_problem(root: Any) -> str:
    if _steps(root, names_of(root)) > STEPS_MAX:
        return (
            f"its references multiply: a value would be checked against more than {STEPS_MAX:,} "
            "schemas"
        )
    return ""


def names_of(root: Any) -> dict[str, Any]:
    """Return the definitions of a schema by name."""
    found: dict[str, Any] = {}
    waiting = [root]
    while waiting:
        node = waiting.pop()
        if isinstance(node, dict):
            for key in _NAMES:
                if isinstance(node.get(key), str):
                    found.setdefault(node[key].rpartition("#")[2] or node[key], node)
            waiting += node.values()
        elif isinstance(node, list):
            waiting += node
    return found


def _steps(root: Any, names: dict[str, Any]) -> int:
    """Count the schemas applied to one value, each as often as it is referred to.

    A recursive schema counts once: each further application needs a deeper payload.
    """
    steps: dict[int, int] = {}  # of each node, by identity; 0 while it is being counted
    path: list[tuple[Any, Iterator[Any]]] = [(root, _applied(root, root, names))]
    steps[id(root)] = 0
    sums = [1]
    while path:
        node, rest = path[-1]
        child = next(rest, None)
        if child is None:
            path.pop()
            total = steps[id(node)] = min(sums.pop(), STEPS_MAX + 1)
            if not path:
                return total
            sums[-1] += total
        elif id(child) in steps:
            sums[-1] += steps[id(child)] or 1
        else:
            steps[id(child)] = 0
            path.append((child, _applied(child, root, names)))
            sums.append(1)
    return 0


def _applied(node: Any, root: Any, names: dict[str, Any]) -> Iterator[Any]:
    """Yield the schemas that a schema applies: its subschemas, and those it refers to."""
    if isinstance(node, list):
        yield from (inner for inner in node if isinstance(inner, dict | list))
    elif isinstance(node, dict):
        for key, inner in node.items():
            if key in _REFERENCES and isinstance(inner, str):
                target = target_of(inner, root, names)
                if isinstance(target, dict):
                    yield target
            elif key not in _DEFINITIONS and isinstance(inner, dict | list):
                yield inner


def target_of(reference: str, root: Any, names: dict[str, Any]) -> Any:
    """Return the schema that a reference points to, or None if it does not exist."""
    base, _, pointer = reference.partition("#")
    found = names.get(base, root) if base else root
    if pointer and not pointer.startswith("/"):
        return names.get(pointer)
    for step in pointer.split("/")[1:]:
        step = step.replace("~1", "/").replace("~0", "~")
        if isinstance(found, dict) and step in found:
            found = found[step]
        elif isinstance(found, list) and step.isdecimal() and int(step) < len(found):
            found = found[int(step)]
        else:
            return None
    return found
