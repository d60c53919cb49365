"""Objects change their own attributes: others call a method that says why.

A write to `x.attribute`, where `x` is not `self` or `cls`, is a foreign write. In the core each of
them is listed here with its reason. The other packages have a number that may only fall.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from typing import Final

from tests.house import packages
from tests.house.sources import source

# Of these objects anybody adds to the numbers, once a burst: a call would cost as much as the rest.
_COUNTERS: Final = {"counters", "_counters", "work", "_work"}
# By module below `mqtt_broker.core`, function and attribute.
CORE: Final[dict[str, str]] = {
    "dispatch receive bytes_in": "once a read, on the hot path",
    "dispatch _take messages_in": "once a run of messages, on the hot path",
    "dispatch receive last_heard_at": "once a read, on the hot path",
    "inbound.connect _name_client client_id": "completes a CONNECT that has no client id",
    "inbound.connect _name_client properties": "completes a CONNECT that has no client id",
    "restore _properties section": "puts a row right that the store has wrong",
    "restore _message message_number": "of a message that was just made",
    "routing.router deliver turn_bytes": "once a receiver or a burst, on the hot path",
    "routing.router fan_out turn_bytes": "once a burst, on the hot path",
    "routing.router fan_out messages_out": "once a receiver of a burst, on the hot path",
    "routing.router fan_out state": "once a receiver, on the hot path",
}
# Of each other package, how many there are: lower a number when it falls.
OTHERS_MAX: Final[dict[str, int]] = {
    "cli": 7,
    "client": 4,
    "codec": 2,
    "http_api.log": 1,
    "interrupts": 1,
    "iot_sim": 4,
    "iot_sim.bench": 10,
    "iot_sim.devices": 1,
    "iot_sim.fleet": 33,
    "iot_sim.judge": 29,
    "iot_sim.locust_users": 10,
    "iot_sim.models": 12,
    "iot_sim.payloads": 9,
    "iot_sim.run": 13,
    "security.rules": 1,
    "server": 1,
    "server.net": 11,
    "server.process": 4,
    "server.services": 1,
    "sessions": 24,
    "sessions.journal": 16,
    "sessions.messages": 3,
    "sessions.store": 3,
    "spark_ingest.analysis": 11,
    "spark_ingest.bridge": 5,
    "spark_ingest.payloads": 1,
    "spark_ingest.run": 17,
    "spark_ingest.sinks": 3,
    "streams.format": 1,
    "streams.read": 7,
    "streams.remote": 3,
    "streams.replay": 41,
    "streams.write": 20,
    "topics": 4,
}


def writes(tree: ast.AST, function: str = "") -> Iterator[tuple[str, str, str]]:
    """Function, object and attribute of each foreign write."""
    for node in ast.iter_child_nodes(tree):
        inside = function
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            inside = node.name
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store | ast.Del):
            if not (isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")):
                yield function, _last_name(node.value), node.attr
        yield from writes(node, inside)


def _last_name(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _foreign(module: str) -> Iterator[tuple[str, str]]:
    tree = source(packages.modules()[module]).tree
    for function, target, attribute in writes(tree):
        if target not in _COUNTERS:
            yield function, attribute


def test_no_module_of_the_core_writes_into_other_objects() -> None:
    start = "mqtt_broker.core."
    found = {
        f"{module.removeprefix(start)} {function} {attribute}"
        for module in packages.modules()
        if module.startswith(start)
        for function, attribute in _foreign(module)
    }
    assert found == CORE.keys()


def test_no_package_has_more_foreign_writes_than_before() -> None:
    found: Counter[str] = Counter()
    for module in packages.modules():
        if not module.startswith("mqtt_broker.core."):
            found[packages.package_of(module)] += len(list(_foreign(module)))
    more = {name: count for name, count in found.items() if count > OTHERS_MAX.get(name, 0)}
    assert not more, "call a method of the object, which says why it changes"


def test_foreign_writes_are_found() -> None:
    code = "def f(self, x):\n    self.a = x.b = 1\n    x.c += 1\n    x.d.e, y = 1, 2\n    del x.g\n"
    assert [attribute for _, _, attribute in writes(ast.parse(code))] == ["b", "c", "e", "g"]
