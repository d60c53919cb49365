"""Imports follow the rule in `tests.house.packages`, and outside modules stay where they belong."""

from __future__ import annotations

import ast
from typing import Final

import pytest

from tests.house import packages
from tests.house.sources import ROOT, source

# Packages without clock, socket, file, task or chance of their own: `now` is an argument.
PURE: Final = {
    name
    for name in packages.RULE
    if name.partition(".")[0] in ("qos", "codec", "topics", "core")
    or name in ("sessions", "sessions.messages", "sessions.journal", "cluster")
}
_ANY_BUT_PURE: Final = set(packages.RULE) - PURE

# Which packages, or modules, may import what is not ours. A name stands for all that is below it.
ONLY_IN: Final[dict[str, str]] = {
    "asyncio": "server cluster.bus http_api iot_sim in_process test_support testing cli.broker",
    "uvloop": "server http_api iot_sim cli.broker",
    "socket": "cluster.store server cluster.bus http_api client streams.remote iot_sim testing cli",
    "ssl": "server cluster.bus http_api client streams.remote iot_sim testing cli spark_ingest",
    "select": "cluster.store server.net client iot_sim cli interrupts",
    "selectors": "server.net client iot_sim cli",
    "sqlalchemy": "sessions.store cluster.store security.sql spark_ingest",
    "alembic": "sessions.store cluster.store",
    "aiohttp": "http_api server.net.websocket server.net.websocket_aiohttp "
    "server.net.websocket_fallback",
    "websockets": "client.websocket server.net.websocket server.net.websocket_library "
    "server.net.websocket_fallback iot_sim",
    "prometheus_client": "http_api.pages",
    "pyspark": "spark_ingest",
    **dict.fromkeys(("pickle", "marshal", "shelve", "yaml"), ""),  # reading them may run code
    "pyarrow": "streams.read.arrow streams.remote.parquet_export spark_ingest",
}
# Which modules import by a name that is not written in them: names that the configuration, a
# scenario or the command line gives. A request, a payload and a stored row name no code.
BY_NAME: Final = {
    "mqtt_broker.cli.commands": "subcommands",
    "mqtt_broker.lazy": "names of the public API",
    "mqtt_broker.server.services.extensions": "shared_strategy",
    "mqtt_broker.streams.write.partition_functions": "partition_functions",
    "iot_sim.models.catalogue": "models of a scenario",
    "spark_ingest.contract.sink": "--sink",
    "spark_ingest.jobs": "JOB of the command line",
}
_RUNS_CODE: Final = {"eval", "exec", "compile", "__import__", "import_module", "run_path"}
CLOCKS_AND_FILES: Final = (
    "concurrent ctypes datetime fcntl io mmap multiprocessing os pathlib resource secrets shutil "
    "signal subprocess tempfile threading time"
).split()


def check(findings: list[str]) -> None:
    if findings:
        pytest.fail("\n".join(findings), pytrace=False)


def at(module: str, line: int) -> str:
    return f"{packages.modules()[module].relative_to(ROOT)}:{line}"


def test_packages_import_only_what_is_below_them() -> None:
    findings = []
    for module, path in packages.modules().items():
        package = packages.package_of(module)
        allowed = packages.allowed(package)
        for line, name in packages.imports_of(path):
            other = packages.package_of(name)
            if other not in allowed and (module, name) not in packages.TO_CUT:
                findings.append(f"{at(module, line)}: {package} imports {name} ({other})")
    check(findings)


def test_no_ring_of_imports() -> None:
    rings = [ring for ring in packages.rings(packages.graph()) if not packages.is_known(ring)]
    check(["a ring: " + " ".join(ring) for ring in rings])


def test_the_rule_names_no_package_that_is_gone() -> None:
    real = {packages.package_of(module) for module in packages.modules()}
    findings = [f"{name}: no such package" for name in packages.RULE.keys() - real]
    for package in packages.RULE:
        unknown = packages.allowed(package) - packages.RULE.keys()
        findings += [f"{package} may import {name}, which is no package" for name in unknown]
    check(findings)


def test_the_documented_table_is_the_rule() -> None:
    text = (ROOT / "docs" / "ARCHITECTURE.md").read_text()
    assert packages.table() in text, "python -m tests.house.packages prints the table"


def _is_below(module: str, names: str) -> bool:
    tail = module.removeprefix("mqtt_broker.")
    return any(tail == name or tail.startswith(f"{name}.") for name in names.split())


def test_outside_modules_stay_where_they_belong() -> None:
    findings = []
    for module, path in packages.modules().items():
        for node in source(path).nodes:
            if isinstance(node, ast.Import):
                tops = {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                assert not node.level, f"{at(module, node.lineno)}: a relative import"
                tops = {str(node.module).partition(".")[0]}
            else:
                continue
            for top in tops:
                if top in ONLY_IN and not _is_below(module, ONLY_IN[top]):
                    findings.append(f"{at(module, node.lineno)}: imports {top}")
                if top in CLOCKS_AND_FILES and packages.package_of(module) in PURE:
                    findings.append(f"{at(module, node.lineno)}: imports {top}, but it is pure")
    check(findings)


def test_pure_packages_open_nothing_and_draw_no_chance_of_their_own() -> None:
    """`random.Random` comes in from outside, seeded; the module's own functions do not."""
    findings = []
    for module, path in packages.modules().items():
        if packages.package_of(module) not in PURE:
            continue
        for node in source(path).nodes:
            line = getattr(node, "lineno", 1)
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                if node.func.id == "open":
                    findings.append(f"{at(module, line)}: open()")
            elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                if node.value.id == "random" and node.attr != "Random":
                    findings.append(f"{at(module, line)}: random.{node.attr}")
            elif isinstance(node, ast.ImportFrom) and node.module == "random":
                findings += [
                    f"{at(module, line)}: from random import {alias.name}"
                    for alias in node.names
                    if alias.name != "Random"
                ]
            elif isinstance(node, ast.AsyncFunctionDef | ast.Await):
                findings.append(f"{at(module, line)}: a coroutine")
    check(findings)


def test_code_is_imported_by_name_where_its_name_comes_from_who_runs_the_program() -> None:
    findings = []
    for module, path in packages.modules().items():
        for node in source(path).each(ast.Call):
            if not (node.args and isinstance(node.args[0], ast.Constant)):
                called = node.func
                name = called.id if isinstance(called, ast.Name) else ""
                if isinstance(called, ast.Attribute) and ast.unparse(called.value) != "re":
                    name = called.attr if called.attr not in ("compile", "eval", "exec") else ""
                if name in _RUNS_CODE and module not in BY_NAME:
                    findings.append(f"{at(module, node.lineno)}: {name}()")
    check(findings)


# Reads what we wrote ourselves, or nothing that anybody could nest.
_OWN_JSON: Final = {
    "mqtt_broker.cli.demo": "the report and the address file of processes that it started",
    "spark_ingest.source.data_source": "offsets that it has just encoded",
    "spark_ingest.source.losses": "what the reading process wrote a moment ago",
    "spark_ingest.analysis.keyed": "the state that this job keeps with Spark",
}
_PARSERS: Final = {("json", "loads"), ("json", "load"), ("tomllib", "loads"), ("tomllib", "load")}


def test_a_parser_of_nested_text_expects_text_without_end() -> None:
    """JSON and TOML that are nested deeper than Python goes raise RecursionError."""
    findings = []
    for module, path in packages.modules().items():
        guarded: set[ast.AST] = set()
        for attempt in source(path).each(ast.Try):
            if any(
                handler.type is not None and "RecursionError" in ast.unparse(handler.type)
                for handler in attempt.handlers
            ):
                guarded.update(inner for part in attempt.body for inner in ast.walk(part))
        for node in source(path).each(ast.Call):
            if (
                isinstance(node.func, ast.Attribute)
                and (ast.unparse(node.func.value), node.func.attr) in _PARSERS
                and node not in guarded
                and module not in _OWN_JSON
            ):
                findings.append(f"{at(module, node.lineno)}: RecursionError is not handled")
    check(findings)
