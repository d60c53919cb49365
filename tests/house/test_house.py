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

# The rooms, the longest prefix wins. `sessions` is pure but for the modules that are SQL.
ROOMS: Final = {
    "qos": "qos",
    "mqtt_broker": "mqtt_broker",
    "mqtt_broker.codec": "codec",
    "mqtt_broker.topics": "topics",
    "mqtt_broker.core": "core",
    "mqtt_broker.streams": "streams",
    "mqtt_broker.security": "security",
    "mqtt_broker.server": "server",
    "mqtt_broker.admin": "admin",
    "mqtt_broker.cli": "cli",
    "mqtt_broker.testing": "testing",
    "mqtt_broker.pytest_plugin": "testing",
    "sessions": "sessions",
    **dict.fromkeys(
        (
            "sessions.commits",
            "sessions.engines",
            "sessions.files",
            "sessions.folder",
            "sessions.folding",
            "sessions.loading",
            "sessions.migrations",
            "sessions.paging",
            "sessions.postgres",
            "sessions.recovery",
            "sessions.salvage",
            "sessions.schema",
            "sessions.store",
            "sessions.transfer",
            "sessions.workers",
        ),
        "store",
    ),
    "iot_sim": "iot_sim",
    "spark_ingest": "spark_ingest",
}

# Whom a room may import beside itself. `mqtt_broker` alone is the version.
_WIRE: Final = {"qos", "codec"}
_CORE: Final = {*_WIRE, "topics", "sessions", "core"}
_SERVER: Final = {*_CORE, "mqtt_broker", "streams", "security", "store", "server"}
MAY_IMPORT: Final[dict[str, set[str]]] = {
    "qos": set(),
    "codec": set(),
    "mqtt_broker": set(),
    "topics": _WIRE,
    "sessions": _WIRE,
    "core": _CORE | {"mqtt_broker"},
    "store": {*_WIRE, "sessions"},
    "streams": _CORE,
    "security": _CORE,
    "server": _SERVER,
    "testing": _SERVER,
    "admin": _SERVER,
    "cli": _SERVER | {"admin", "iot_sim", "spark_ingest"},
    "iot_sim": _WIRE,
    "spark_ingest": {"streams", "codec"},
}
PURE: Final = {"qos", "codec", "topics", "sessions", "core"}

# What only some rooms may import from elsewhere. A pure room has no clock, no socket, no
# file and no task.
ONLY_IN: Final = {
    "asyncio": {"server", "admin", "iot_sim", "testing", "cli"},
    "uvloop": {"server", "admin", "iot_sim", "cli"},
    "socket": {"server", "admin", "iot_sim", "testing", "cli"},
    "ssl": {"server", "admin", "iot_sim", "testing", "cli", "spark_ingest"},
    "select": {"server", "iot_sim", "cli"},
    "selectors": {"server", "iot_sim", "cli"},
    "sqlalchemy": {"store", "security", "spark_ingest"},
    "alembic": {"store"},
    "aiohttp": {"admin", "server"},
    "websockets": {"server", "iot_sim"},
    "prometheus_client": {"admin"},
    "pyspark": {"spark_ingest"},
    "pyarrow": {"streams", "spark_ingest"},
    **dict.fromkeys(
        (
            "concurrent", "ctypes", "datetime", "fcntl", "io", "mmap", "multiprocessing", "os",
            "pathlib", "resource", "secrets", "shutil", "signal", "subprocess", "tempfile",
            "threading", "time",
        ),
        set(MAY_IMPORT) - PURE,
    ),
}  # fmt: skip
# Of the command line only the broker runs a loop; `pub` and `sub` start fast without one.
ASYNCIO_IN_CLI: Final = "mqtt_broker.cli.broker"
WEBSOCKET_IN_SERVER: Final = "mqtt_broker.server.websocket"
SQL_IN_SECURITY: Final = "mqtt_broker.security.sql"
ARROW_IN_STREAMS: Final = {"mqtt_broker.streams.arrow", "mqtt_broker.streams.parquet"}

# Imported by the name that somebody says: a job, the scheme of a sink; and what notebooks import.
OPENED_BY_NAME: Final = ("spark_ingest.jobs.", "spark_ingest.sinks.")
FOR_NOTEBOOKS: Final = {"spark_ingest.bridge", "spark_ingest.rejects"}

BANNED_NAMES: Final = {"util", "helper", "manager", "handler", "common", "misc"}
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

    @property
    def room(self) -> str:
        return room_of(self.name)

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


def room_of(name: str) -> str:
    while name not in ROOMS:
        name = name.rpartition(".")[0]
        assert name, "a module outside every room"
    return ROOMS[name]


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


def test_rooms_import_only_what_is_below_them() -> None:
    check(
        [
            f"{module.at(node)}: {module.room} imports {name} ({room_of(name)})"
            for module in product()
            for node, name in imports(module)
            if is_ours(name) and room_of(name) not in MAY_IMPORT[module.room] | {module.room}
        ]
    )


def test_outside_modules_stay_in_their_rooms() -> None:
    findings = []
    for module in product():
        for node, name in imports(module):
            top = name.partition(".")[0]
            allowed = module.room in ONLY_IN.get(top, {module.room})
            if module.room == "cli" and top in ("asyncio", "uvloop"):
                allowed = module.name == ASYNCIO_IN_CLI
            elif module.room == "server" and top in ("aiohttp", "websockets"):
                allowed = module.name.startswith(WEBSOCKET_IN_SERVER)
            elif module.room == "security" and top == "sqlalchemy":
                allowed = module.name.startswith(SQL_IN_SECURITY)
            elif module.room == "streams" and top == "pyarrow":
                allowed = module.name in ARROW_IN_STREAMS
            if not allowed:
                findings.append(f"{module.at(node)}: {module.room} imports {name}")
    check(findings)


def test_pure_rooms_open_nothing_and_draw_no_chance_of_their_own() -> None:
    """`random.Random` comes in from outside, seeded; the module's own functions do not."""
    findings = []
    for module in product():
        if module.room not in PURE:
            continue
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                if node.func.id == "open":
                    findings.append(f"{module.at(node)}: open()")
            elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                if node.value.id == "random" and node.attr != "Random":
                    findings.append(f"{module.at(node)}: random.{node.attr}")
            elif isinstance(node, ast.ImportFrom) and node.module == "random":
                findings += [
                    f"{module.at(node)}: from random import {alias.name}"
                    for alias in node.names
                    if alias.name != "Random"
                ]
            elif isinstance(node, ast.AsyncFunctionDef | ast.Await):
                findings.append(f"{module.at(node)}: a coroutine")
    check(findings)


def test_only_commands_print() -> None:
    check(
        [
            f"{module.at(node)}: print()"
            for module in product()
            if module.room != "cli"
            for node in ast.walk(module.tree)
            if isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id == "print"
        ]
    )


def test_every_module_says_what_it_is() -> None:
    check([f"{m.at(m.tree)}: no docstring" for m in everything() if not ast.get_docstring(m.tree)])


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


def test_commands_in_the_documents_exist() -> None:
    """`make X` and `fleetmq Y` in fenced blocks of README and docs."""
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    findings = []
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        blocks = re.findall(r"^```.*?\n(.*?)^```", path.read_text(), re.MULTILINE | re.DOTALL)
        for block in blocks:
            for words in re.findall(r"(?:^|[|&;$] *)make((?: +[\w-]+)+)", block, re.MULTILINE):
                findings += [
                    f"{path.relative_to(ROOT)}: no make {word}"
                    for word in words.split()
                    if word not in targets
                ]
            for word in re.findall(r"(?:^|[|&;$/(] *)fleetmq +([a-z]\w*)", block, re.MULTILINE):
                if word not in COMMANDS:
                    findings.append(f"{path.relative_to(ROOT)}: no fleetmq {word}")
    check(findings)
