"""Tests use what is public: a private name that one reaches for is listed here, with its reason.

Private is a name that begins with `_`, of another object or of a module of the product. What a
test rightly needs is made public; the rest breaks a part on purpose, or stands in for it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Final

from tests.house import packages
from tests.house.sources import ROOT, Source, modules

# Files below `tests` and names, and why. The list may only become shorter.
REACHES: Final[dict[str, str]] = {
    "bench/spark_latency.py _jvm": "the JVM is pyspark's, and has no other name",
    "core/clients/test_unanswered.py _entries": "the journal loses a group",
    "house/test_public_api.py _PLACES": "the map behind __getattr__ of a package",
    "sabotage.py _decode_will": "a defect is put back",
    "sabotage.py _take_qos2": "a defect is put back",
    "security/protection/test_audit_log.py _open": "the file cannot be opened",
    "server/net/test_poller.py _Epoll": "a system without epoll",
    "server/net/test_poller.py _new_epoll": "a system without epoll",
    "server/net/test_tls.py _outgoing": "TLS answers more than it does",
    "server/process/test_watchdog.py _commit": "commits wait",
    "sessions/journal/test_net_changes.py _end": "a session ends without a record that says so",
    "sessions/store/test_store_outages.py _prepare": "the owner is checked too late",
    "streams/read/test_reader.py _open": "a segment goes while it is opened",
    "streams/write/test_compaction.py _Compaction": "files change while they are swapped",
    "streams/write/test_compaction.py _swap": "files change while they are swapped",
}
_OF_NAMED_TUPLES: Final = {"_asdict", "_fields", "_make", "_replace"}


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name not in _OF_NAMED_TUPLES


def _defined(source: Source) -> set[str]:
    """The names that a file gives to something of its own."""
    found = {node.name for node in (*source.functions, *source.each(ast.ClassDef))}
    found |= {n.id for n in source.each(ast.Name) if isinstance(n.ctx, ast.Store)}
    for node in source.each(ast.Attribute):
        if isinstance(node.ctx, ast.Store) and _is_own(node.value):
            found.add(node.attr)
    return found


def _is_own(value: ast.expr) -> bool:
    if isinstance(value, ast.Call):
        return isinstance(value.func, ast.Name) and value.func.id == "super"
    return isinstance(value, ast.Name) and value.id in ("self", "cls")


def reaches(source: Source) -> Iterator[str]:
    """The private names that a file reaches for."""
    own = _defined(source)
    for node in source.each(ast.Attribute):
        if _is_private(node.attr) and node.attr not in own and not _is_own(node.value):
            yield node.attr
    for call in source.each(ast.Call):  # monkeypatch.setattr(owner, "_name", ...), getattr
        if getattr(call.func, "attr", getattr(call.func, "id", "")) in ("setattr", "getattr"):
            for argument in call.args[:2]:
                if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                    name = argument.value.rpartition(".")[2]
                    if _is_private(name) and not _is_own(call.args[0]):
                        yield name
    for imported in source.each(ast.ImportFrom):
        yield from (alias.name for alias in imported.names if _is_private(alias.name))


def test_private_names_are_left_alone() -> None:
    ours = {name for source in modules(*packages.TOPS) for name in _defined(source)}
    found = {
        f"{source.path.relative_to(ROOT / 'tests')} {name}"
        for source in modules("tests")
        for name in reaches(source)
        if name in ours
    }
    more = sorted(found - REACHES.keys())
    assert not more, "make public what a test needs, or say here why it reaches for it"
    gone = sorted(REACHES.keys() - found)
    assert not gone, "remove these lines"
