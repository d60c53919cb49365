"""The rules of the house, held by machine: who may import whom, sizes, names, leftovers.

What a rule finds is listed whole, each with its file and line, so that one run shows all.
"""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from mqtt_broker.cli.main import COMMANDS

ROOT: Final = Path(__file__).parents[2]

TOP_LEVEL: Final = {
    "pyproject.toml", "README.md", "mqtt_broker", "sessions", "qos", "iot_sim", "spark_ingest",
    "tests", "deploy", "docs", "Makefile", "LICENSE", "CHANGELOG.md",
}  # fmt: skip
PACKAGES: Final = ("mqtt_broker", "sessions", "qos", "iot_sim", "spark_ingest")

# Imported by the name that somebody says: a job, the scheme of a sink; and what notebooks import.
OPENED_BY_NAME: Final = ("spark_ingest.jobs.", "spark_ingest.sinks.")
FOR_NOTEBOOKS: Final = {"spark_ingest.bridge.bridge", "spark_ingest.rejects"}

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


class Module(NamedTuple):
    name: str
    path: Path
    tree: ast.Module
    text: str

    def at(self, node: ast.AST) -> str:
        return f"{self.path.relative_to(ROOT)}:{getattr(node, 'lineno', 1)}"


@cache
def tracked() -> tuple[Path, ...]:
    """Every file that is, or may be, committed."""
    listed = subprocess.run(
        ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        capture_output=True,
        text=True,
        check=False,
    )
    if listed.returncode == 0:
        found = [ROOT / name for name in listed.stdout.split("\0") if name]
    else:  # an unpacked archive: what is hidden or made by tools does not count
        found = [
            path
            for path in ROOT.rglob("*")
            if not any(
                part.startswith(".") or part == "__pycache__" or part.endswith(".egg-info")
                for part in path.relative_to(ROOT).parts
            )
        ]
    return tuple(sorted(path for path in found if path.is_file()))


@cache
def modules(*tops: str) -> tuple[Module, ...]:
    found = []
    for path in tracked():
        parts = path.relative_to(ROOT).with_suffix("").parts
        if path.suffix == ".py" and parts[0] in tops:
            text = path.read_text()
            name = ".".join(parts).removesuffix(".__init__")
            found.append(Module(name, path, ast.parse(text, str(path)), text))
    return tuple(found)


def product() -> tuple[Module, ...]:
    return modules(*PACKAGES)


def everything() -> tuple[Module, ...]:
    return modules(*PACKAGES, "tests")


def imports(module: Module) -> Iterator[tuple[ast.AST, str]]:
    """Each import, with the full names it may mean: `from a import b` is `a` and `a.b`."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node, alias.name
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{module.at(node)}: a relative import"
            assert node.module is not None
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            known = {one.name for one in product()}
            yield from ((node, name) for name in names & known)
            if not names <= known:
                yield node, node.module


def is_ours(name: str) -> bool:
    return name.partition(".")[0] in PACKAGES


def check(findings: list[str]) -> None:
    if findings:
        pytest.fail("\n".join(findings), pytrace=False)


def test_only_commands_print() -> None:
    check(
        [
            f"{module.at(node)}: print()"
            for module in product()
            if not module.name.startswith("mqtt_broker.cli")
            for node in ast.walk(module.tree)
            if isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id == "print"
        ]
    )


def test_every_module_says_what_it_is() -> None:
    check([f"{m.at(m.tree)}: no docstring" for m in everything() if not ast.get_docstring(m.tree)])


def test_docstrings_begin_with_a_verb_or_name_their_subject() -> None:
    check(
        [
            f"{module.at(node)}: {getattr(node, 'name', 'module')}: {doc.splitlines()[0]}"
            for module in product()
            for node in ast.walk(module.tree)
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
            and (doc := ast.get_docstring(node))
            and re.split(r"\W", doc, maxsplit=1)[0] in RIDDLES
        ]
    )


def test_what_is_long_says_why() -> None:
    findings = []
    for module in everything():
        lines = module.text.count("\n")
        if lines > FILE_LINES_MAX and LONG not in module.text:
            findings.append(f"{module.at(module.tree)}: {lines} lines")
        for node in ast.walk(module.tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                source = ast.get_source_segment(module.text, node) or ""
                if lines > FUNCTION_LINES_MAX and LONG not in source:
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
    """Each is imported by the product, or is a door that something else opens."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    doors = FOR_NOTEBOOKS | {command.module for command in COMMANDS.values()}
    doors |= {m.name for m in product() if m.name.startswith(OPENED_BY_NAME)}
    for group in (project["scripts"], *project.get("entry-points", {}).values()):
        doors |= {target.partition(":")[0] for target in group.values()}
    used = doors | {name for module in product() for _, name in imports(module)}
    check(
        [
            f"{module.at(module.tree)}: nobody imports it"
            for module in product()
            if module.name not in used
            and module.path.name not in ("__init__.py", "__main__.py")
            and ".migrations." not in module.name  # found by their folder
        ]
    )


def test_doors_exist() -> None:
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
            f"{command.module}: fleetmq {name} needs {door}()"
            for door in ("add_arguments", "run")
            if not hasattr(subcommand, door)
        ]
    known = {module.name for module in product()}
    for group in project.get("entry-points", {}).values():
        findings += [
            f"pyproject.toml: no module {target}"
            for target in group.values()
            if target.partition(":")[0] not in known
        ]
    check(findings)


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
