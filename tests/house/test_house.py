"""The rules of the house, held by machine: who may import whom, sizes, names, leftovers.

What a rule finds is listed whole, each with its file and line, so that one run shows all.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import re
import tomllib
from collections.abc import Iterator
from typing import Final

import pytest

from mqtt_broker.cli.commands import COMMANDS, parser_of
from tests.house.sources import ROOT, Source, modules, tracked

TOP_LEVEL: Final = {
    "pyproject.toml", "README.md", "mqtt_broker", "sessions", "qos", "iot_sim", "spark_ingest",
    "tests", "deploy", "docs", "Makefile", "LICENSE", "CHANGELOG.md",
}  # fmt: skip
PACKAGES: Final = ("mqtt_broker", "sessions", "qos", "iot_sim", "spark_ingest")

# Imported by the name that somebody says: a job, the scheme of a sink; and what notebooks import.
OPENED_BY_NAME: Final = ("spark_ingest.jobs.", "spark_ingest.sinks.")
# Modules that only programs of users import.
FOR_USERS: Final = {"spark_ingest.bridge.bridge", "spark_ingest.rejects", "iot_sim.devices.thing"}

# Rules that the simulation in `tests/sim/cluster` drives; no part of the broker uses them yet.
SIMULATED: Final = ("mqtt_broker.cluster.",)

BANNED_NAMES: Final = {"util", "helper", "common", "misc"}
# A docstring names its subject or begins with the verb: these words do neither.
RIDDLES: Final = frozenset(
    "What Who Whom Whose It They That This Those These Whether How There One".split()
)
FILE_LINES_MAX: Final = 600
FUNCTION_LINES_MAX: Final = 100
FILE_BYTES_MAX: Final = 1_000_000
LONG: Final = "why long:"
LEFTOVERS: Final = re.compile(r"\b(TO[D]O|FIXM[E]|XX[X]|NotImplemente[d]Error)\b")
# Places of one machine or one network. The brackets keep this line from finding itself.
ELSEWHERE: Final = re.compile(
    r"pytho[n]hosted|py[p]i\.org|registr[y]\.npm|deb\.debia[n]|/roo[t]/|/wor[k]/(main|shared|\.)"
    r"|/tm[p]/(bash|w/)|\.pyen[v]",
    re.IGNORECASE,
)


def product() -> tuple[Source, ...]:
    return modules(*PACKAGES)


def everything() -> tuple[Source, ...]:
    return modules(*PACKAGES, "tests")


def imports(module: Source) -> Iterator[tuple[ast.AST, str]]:
    """Each import, with the full names it may mean: `from a import b` is `a` and `a.b`."""
    known = {one.name for one in product()}
    for plain in module.each(ast.Import):
        yield from ((plain, alias.name) for alias in plain.names)
    for node in module.each(ast.ImportFrom):
        assert not node.level, f"{module.at(node)}: a relative import"
        assert node.module is not None
        names = {f"{node.module}.{alias.name}" for alias in node.names}
        yield from ((node, name) for name in names & known)
        if not names <= known:
            yield node, node.module


def check(findings: list[str]) -> None:
    if findings:
        pytest.fail("\n".join(findings), pytrace=False)


def test_only_commands_print() -> None:
    check(
        [
            f"{module.at(node)}: print()"
            for module in product()
            if not module.name.startswith("mqtt_broker.cli")
            for node in module.each(ast.Call)
            if isinstance(node.func, ast.Name) and node.func.id == "print"
        ]
    )


def test_every_module_says_what_it_is() -> None:
    check([f"{m.at(m.tree)}: no docstring" for m in everything() if not ast.get_docstring(m.tree)])


def test_docstrings_begin_with_a_verb_or_name_their_subject() -> None:
    check(
        [
            f"{module.at(node)}: {getattr(node, 'name', 'module')}: {doc.splitlines()[0]}"
            for module in product()
            for node in (module.tree, *module.each(ast.ClassDef), *module.functions)
            if (doc := ast.get_docstring(node)) and re.split(r"\W", doc, maxsplit=1)[0] in RIDDLES
        ]
    )


def test_what_is_long_says_why() -> None:
    findings = []
    for module in everything():
        lines = module.text.count("\n")
        if lines > FILE_LINES_MAX and LONG not in module.text:
            findings.append(f"{module.at(module.tree)}: {lines} lines")
        for node in module.functions:
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if lines > FUNCTION_LINES_MAX:
                if LONG not in (ast.get_source_segment(module.text, node) or ""):
                    findings.append(f"{module.at(node)}: {node.name} has {lines} lines")
    check(findings)


def test_names_say_what_is_inside() -> None:
    check(
        [
            f"{module.at(module.tree)}: a module named {part}"
            for module in everything()
            for part in module.name.split(".")
            for word in part.split("_")
            if word in BANNED_NAMES or word.removesuffix("s") in BANNED_NAMES
        ]
    )


def test_no_module_is_an_orphan() -> None:
    """Each is imported by the product, or is an entry point."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    entered = FOR_USERS | {command.module for command in COMMANDS.values()}
    entered |= {m.name for m in product() if m.name.startswith((*OPENED_BY_NAME, *SIMULATED))}
    for group in (project["scripts"], *project.get("entry-points", {}).values()):
        entered |= {target.partition(":")[0] for target in group.values()}
    used = entered | {name for module in product() for _, name in imports(module)}
    check(
        [
            f"{module.at(module.tree)}: nobody imports it"
            for module in product()
            if module.name not in used
            and module.path.name not in ("__init__.py", "__main__.py")
            and ".migrations." not in module.name  # found by their folder
        ]
    )


def test_entry_points_exist() -> None:
    """Every subcommand and entry point can be imported and has what is called in it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    findings = []
    for target in project["scripts"].values():
        module, _, function = target.partition(":")
        if not hasattr(importlib.import_module(module), function):
            findings.append(f"pyproject.toml: no {target}")
    for name, command in COMMANDS.items():
        subcommand = importlib.import_module(command.module)
        findings += [
            f"{command.module}: fleetmq {name} needs {function}()"
            for function in ("add_arguments", "run")
            if not hasattr(subcommand, function)
        ]
    known = {module.name for module in product()}
    for group in project.get("entry-points", {}).values():
        findings += [
            f"pyproject.toml: no module {target}"
            for target in group.values()
            if target.partition(":")[0] not in known
        ]
    check(findings)


def test_options_are_written_in_full() -> None:
    """Abbreviated, `--seed 7` would be `--seeds 7`: another meaning, and no error."""
    findings = [
        f"{module.at(node)}: argparse.ArgumentParser() without allow_abbrev=False"
        for module in modules(*PACKAGES, "tests", "deploy")
        for node in module.each(ast.Call)
        if getattr(node.func, "attr", getattr(node.func, "id", "")) == "ArgumentParser"
        and "allow_abbrev=False" not in ast.unparse(node)
    ]
    for name in COMMANDS:
        waiting: list[argparse.ArgumentParser] = [parser_of(name)]
        while waiting:
            parser = waiting.pop()
            if parser.allow_abbrev:
                findings.append(f"{parser.prog}: takes abbreviated options")
            for action in parser._actions:
                if isinstance(action, argparse._SubParsersAction):
                    waiting += action.choices.values()
    check(findings)


def test_no_test_asserts_that_something_was_quick() -> None:
    """A busy machine would fail it: count calls, bytes or turns, or wait with a deadline."""
    clocks = ("monotonic()", "perf_counter()", "process_time()", ".time()")
    check(
        [
            f"{module.at(node)}: {ast.unparse(node)}"
            for module in modules("tests")
            if not module.name.startswith("tests.bench.")
            for node in module.each(ast.Compare)
            if isinstance(node.ops[-1], ast.Lt | ast.LtE)
            and any(
                isinstance(side, ast.BinOp)
                and isinstance(side.op, ast.Sub)
                and ast.unparse(side.left).endswith(clocks)
                for side in (node.left, *node.comparators[:-1])
            )
        ]
    )


def test_no_test_measures_cpu_time() -> None:
    """Caches and clock rates change it by half: `tests.instructions` counts instead."""
    clocks = ("process_time", "perf_counter", "thread_time", "getrusage")
    check(
        [
            f"{module.at(node)}: {ast.unparse(node.func)}()"
            for module in modules("tests")
            if not module.name.startswith("tests.bench.")
            for node in module.each(ast.Call)
            if ast.unparse(node.func).rpartition(".")[2].removesuffix("_ns") in clocks
        ]
    )


def test_the_top_level_is_fixed() -> None:
    found = {path.relative_to(ROOT).parts[0] for path in tracked()}
    found = {name for name in found if not name.startswith(".")}
    check([f"{name}: not one of the top-level entries" for name in sorted(found - TOP_LEVEL)])


def test_files_are_small_and_know_no_machine() -> None:
    findings = []
    for path in tracked():
        where = path.relative_to(ROOT)
        raw = path.read_bytes()
        if len(raw) > FILE_BYTES_MAX:
            findings.append(f"{where}: {len(raw)} bytes")
        if b"\0" in raw:
            continue
        for number, line in enumerate(raw.decode(errors="replace").splitlines(), 1):
            findings += [
                f"{where}:{number}: {found[0]}"
                for pattern in (LEFTOVERS, ELSEWHERE)
                for found in pattern.finditer(line)
                if pattern is ELSEWHERE or path.suffix == ".py"
            ]
    check(findings)
