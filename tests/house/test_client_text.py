"""Texts of clients are data: no pattern, no code and no program is made of them.

A pattern, a dotted name or a command line in the product is a constant of its module, or comes from
the configuration by way of the few modules listed here.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Final

from tests.house.sources import Source
from tests.house.test_house import check, product

PATTERNS: Final = frozenset(
    "compile match search fullmatch sub subn split findall finditer".split()
)
# Built in, or of a module: they turn data into code.
CODE: Final = frozenset(
    "eval exec compile __import__ pickle.loads pickle.load marshal.loads marshal.load shelve.open "
    "yaml.load os.system os.popen os.execv os.execvp os.spawnv".split()
)
# What imports by a name: of a command, of the configuration file, of the simulator's command line.
IMPORTERS: Final = frozenset(
    {
        "mqtt_broker.lazy", "mqtt_broker.cli.commands", "mqtt_broker.cli.spark",
        "mqtt_broker.server.services.extensions", "mqtt_broker.streams.write.partition_functions",
    }
)  # fmt: skip
# Programs are started by commands that people give, never by the broker.
STARTERS: Final = ("mqtt_broker.cli.", "iot_sim.", "spark_ingest.")


def calls(module: Source) -> Iterator[tuple[ast.Call, str]]:
    for node in module.each(ast.Call):
        yield node, ast.unparse(node.func)


def is_constant(node: ast.expr) -> bool:
    """Tell whether it is a text that stands there, or is joined of such."""
    if isinstance(node, ast.Constant):
        return isinstance(node.value, str | bytes)
    if isinstance(node, ast.BinOp):
        return is_constant(node.left) and is_constant(node.right)
    return isinstance(node, ast.Name) and node.id.lstrip("_").isupper()


def test_patterns_are_constants() -> None:
    """Those of a module are made when it is imported, before there is a client."""
    found = []
    seen = 0
    for module in product():
        inside = {id(node) for function in module.functions for node in ast.walk(function)}
        for node, name in calls(module):
            owner, _, method = name.rpartition(".")
            if owner == "re" and method in PATTERNS:
                seen += 1
                if id(node) in inside and not is_constant(node.args[0]):
                    found.append(f"{module.at(node)}: a pattern of {ast.unparse(node.args[0])}")
    assert seen > 20
    check(found)


def test_data_is_not_run() -> None:
    check(
        [
            f"{module.at(node)}: {name}"
            for module in product()
            for node, name in calls(module)
            if name in CODE
            or (
                (name.endswith("import_module") and module.name not in IMPORTERS | {"spark_ingest"})
                and not module.name.startswith(("iot_sim.", "spark_ingest."))
            )
        ]
    )


def test_the_broker_starts_no_program_and_no_shell() -> None:
    check(
        [
            f"{module.at(node)}: {name}"
            for module in product()
            for node, name in calls(module)
            if (name.startswith("subprocess.") and not module.name.startswith(STARTERS))
            or any(word.arg == "shell" for word in node.keywords)
        ]
    )
