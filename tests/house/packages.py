"""Which package may import which. `test_imports` holds this rule, and
docs/ARCHITECTURE.md shows it as a table, written by `python -m tests.house.packages`.

A module belongs to the package with the longest name that it begins with. A package may import
itself and the packages named here. Imports for type checking count like all others.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

from tests.house.sources import ROOT, source

TOPS: Final = ("mqtt_broker", "sessions", "qos", "iot_sim", "spark_ingest")

_SESSIONS: Final = "sessions sessions.messages sessions.journal"
_CORE: Final = (
    "core core.limits core.interfaces core.runtime core.routing core.clients core.inbound"
)
_STREAMS: Final = "streams.format streams.read streams.write streams.remote streams.replay"
_SECURITY: Final = (
    "security security.rules security.authentication security.protection security.files"
)
_SERVER: Final = (
    "server server.net server.config server.config.tables server.services server.process"
)
_BROKER: Final = (
    f"qos codec topics {_SESSIONS} sessions.store {_CORE} {_STREAMS} {_SECURITY} {_SERVER}"
)
_HTTP: Final = "http_api http_api.request http_api.v1 http_api.log http_api.pages"
_SIM: Final = (
    "iot_sim.payloads iot_sim.devices iot_sim.models iot_sim.judge iot_sim.scenarios "
    "iot_sim.fleet iot_sim.run iot_sim.report iot_sim.bench"
)
_SPARK: Final = (
    "spark_ingest spark_ingest.contract spark_ingest.source spark_ingest.payloads "
    "spark_ingest.analysis spark_ingest.jobs spark_ingest.sinks spark_ingest.bridge "
    "spark_ingest.run"
)

# In the order in which they stand on each other. Names without a top-level package are those of
# `mqtt_broker`.
RULE: Final[dict[str, str]] = {
    "qos": "",
    "codec": "",
    "topics": "",
    "version": "",
    "lazy": "",
    "interrupts": "",
    "security.files": "",
    "recorder": "topics",
    "sessions.messages": "recorder codec",
    "sessions.journal": "recorder sessions.messages codec",
    "sessions": "recorder sessions.messages sessions.journal qos codec",
    "sessions.store": "sessions.messages sessions.journal",
    "core.limits": "sessions.messages codec",
    "core.interfaces": f"core.limits {_SESSIONS} codec",
    "core.runtime": f"core.limits core.interfaces {_SESSIONS}",
    "core.routing": f"recorder core.limits core.interfaces core.runtime {_SESSIONS} topics codec",
    "core.clients": "recorder core.limits core.interfaces core.runtime core.routing "
    f"{_SESSIONS} qos topics codec",
    "core.inbound": "recorder core.limits core.interfaces core.runtime core.routing core.clients "
    f"{_SESSIONS} qos topics codec",
    "core": f"recorder {_CORE} {_SESSIONS} qos topics codec version",
    "cluster": "topics",
    "cluster.store": "cluster sessions.store sessions.journal",
    "cluster.content": f"cluster cluster.store {_CORE} {_SESSIONS} codec",
    "cluster.bus": "cluster version",
    "streams.format": "topics codec",
    "streams.read": "streams.format",
    "streams.remote": "streams.format streams.read",
    "streams.write": "streams.format streams.read core.interfaces sessions.messages "
    "sessions.journal topics codec",
    "streams.replay": "streams.format streams.read streams.write core.interfaces core.runtime "
    f"{_SESSIONS} topics codec",
    "streams": "lazy streams.format streams.read streams.remote streams.write",
    "backup": "sessions.store streams.format streams.write version",
    "security.rules": "security.files core.limits topics codec",
    "security.protection": "security.files security.rules core.limits",
    "security.authentication": "security.files security.rules core.interfaces codec",
    "security": f"{_SECURITY} core.limits core.interfaces codec",
    "client.url": "",  # a leaf, so that the simulator can read broker URLs too
    "client.other_protocols": "",  # a leaf, for the simulator's clients too
    "client.websocket": "codec",  # the framing alone, so that the simulator can use it
    "client": "client.url client.other_protocols client.websocket qos topics codec",
    "server.config.located": "",
    # Low, so that the simulator can read its scenarios with it.
    "server.config.tables": "server.config.located",
    "server.config": "server.config.tables server.config.located core.limits core.interfaces "
    "core.routing sessions.messages sessions.journal streams.format security.rules "
    "security.protection security.files topics codec",
    "server.process": "core core.clients core.runtime sessions.messages sessions.journal",
    "server.net": f"server.process server.config server.config.tables {_CORE} {_SESSIONS} "
    "security.protection security.authentication codec",
    "server.services": f"server.process server.config server.config.tables {_CORE} {_SESSIONS} "
    f"recorder backup sessions.store {_STREAMS} {_SECURITY} topics codec version",
    "server": f"recorder {_SERVER} {_CORE} {_SESSIONS} sessions.store topics",
    "http_api.request": "recorder backup core.interfaces streams.format streams.read "
    "streams.remote security.protection security.files",
    "http_api.v1": "recorder backup core.interfaces http_api.request streams.format streams.read "
    "streams.remote security.authentication security.protection security.files codec topics "
    "version",
    "http_api.log": "http_api.request streams.format streams.read streams.remote",
    "http_api.pages": "http_api.request streams.format version",
    "http_api": f"{_HTTP} {_SERVER} {_CORE} sessions.messages codec streams.format streams.write "
    "streams.replay recorder backup security.authentication security.files security.protection "
    "version",
    "in_process": "server client core.interfaces topics codec",
    "test_support": "in_process server server.config core.interfaces core.clients core.runtime "
    "topics sessions sessions.messages codec",
    "testing": f"test_support in_process http_api {_SERVER} core.limits core.interfaces codec",
    "pytest_plugin": "testing",
    "mqtt_broker": f"lazy version testing test_support in_process {_SERVER} core.limits "
    "core.interfaces topics",
    "iot_sim.payloads": "",
    "iot_sim.devices": "iot_sim.payloads qos codec",
    "iot_sim.models": "iot_sim.payloads iot_sim.devices codec",
    "iot_sim.judge": "iot_sim.devices codec",
    "iot_sim.scenarios": "iot_sim.payloads iot_sim.devices iot_sim.models iot_sim.judge "
    "server.config.tables topics codec",
    "iot_sim.fleet": "iot_sim.payloads iot_sim.devices iot_sim.models iot_sim.judge "
    "iot_sim.scenarios client.other_protocols client.websocket qos codec",
    "iot_sim.report": "iot_sim.judge iot_sim.scenarios",
    "iot_sim.run": f"{_SIM} interrupts client.url qos codec",
    "iot_sim.bench": "iot_sim.judge iot_sim.fleet iot_sim.run iot_sim.report interrupts "
    "client.other_protocols qos codec",
    "iot_sim.locust_users": f"{_SIM} client.url codec",
    "iot_sim": f"{_SIM} iot_sim.locust_users codec",
    "spark_ingest.contract": "",
    "spark_ingest.sinks": "spark_ingest.contract client client.url topics codec",
    "spark_ingest.analysis": "spark_ingest.contract spark_ingest.payloads topics",
    "spark_ingest.payloads": "streams.format streams.read codec",
    "spark_ingest.source": "spark_ingest.payloads streams.format streams.read streams.remote codec",
    "spark_ingest.jobs": "spark_ingest spark_ingest.contract spark_ingest.analysis",
    "spark_ingest.bridge": "spark_ingest.payloads streams.format streams.read streams.write "
    "streams.remote interrupts client client.url topics codec",
    "spark_ingest.run": "spark_ingest spark_ingest.contract spark_ingest.analysis "
    "spark_ingest.payloads spark_ingest.source spark_ingest.sinks",
    "spark_ingest": f"lazy {_SPARK} streams.format",
    "cli": f"backup {_BROKER} {_HTTP} server.config.located client client.url {_SIM} {_SPARK} "
    "interrupts version",
}


# Imports against the rule that are still to be cut: this list may only become shorter.
TO_CUT: Final = {
    tuple(pair.split(" "))
    for pair in """\
""".splitlines()
}
# Modules of rings that are still to be opened: this list may only become shorter.
_IN_RINGS: Final = set(
    """\
""".split()
)


def allowed(package: str) -> set[str]:
    """The packages that a package may import, itself among them."""
    return {package, *RULE.get(package, "").split()}


def is_known(ring: list[str]) -> bool:
    """Tell whether every module of a ring is one of those that are still to be cut."""
    return _IN_RINGS.issuperset(ring)


def _tail(name: str) -> str:
    return name.removeprefix("mqtt_broker.")


@cache
def modules() -> dict[str, Path]:
    """Every module of the product by its name."""
    found = {}
    for top in TOPS:
        for path in sorted((ROOT / top).rglob("*.py")):
            name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
            found[name.removesuffix(".__init__")] = path
    return found


def package_of(module: str) -> str:
    """The package that the rule knows this module by."""
    name = _tail(module)
    while name and name not in RULE:
        name = name.rpartition(".")[0]
    return name


def imports_of(path: Path) -> Iterator[tuple[int, str]]:
    """Line and name of each module of ours that a file imports."""
    known = modules()
    found = source(path)
    for plain in found.each(ast.Import):
        yield from ((plain.lineno, alias.name) for alias in plain.names if alias.name in known)
    for node in found.each(ast.ImportFrom):
        if node.module:
            inside = [f"{node.module}.{alias.name}" for alias in node.names]
            names = [name if name in known else node.module for name in inside]
            yield from ((node.lineno, name) for name in names if name in known)


@cache
def graph() -> dict[str, frozenset[str]]:
    """Each module with the modules that it imports."""
    return {
        name: frozenset(found for _, found in imports_of(path)) - {name}
        for name, path in modules().items()
    }


def rings(edges: dict[str, frozenset[str]]) -> list[list[str]]:
    """Sets of nodes that reach each other: Tarjan's strongly connected components."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for other in sorted(edges.get(node, ())):
            if other not in index:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in stack:
                low[node] = min(low[node], index[other])
        if low[node] == index[node]:
            ring = stack[stack.index(node) :]
            del stack[stack.index(node) :]
            if len(ring) > 1:
                found.append(sorted(ring))

    for node in sorted(edges):
        if node not in index:
            visit(node)
    return found


def table() -> str:
    """The rule as a table for docs/ARCHITECTURE.md."""
    rows = ["| Package | May import |", "|---|---|"]
    for package, allowed in RULE.items():
        names = ", ".join(f"`{name}`" for name in dict.fromkeys(allowed.split()) if name != package)
        rows.append(f"| `{package}` | {names or 'nothing'} |")
    return "\n".join(rows)


if __name__ == "__main__":
    sys.stdout.write(table() + "\n")
