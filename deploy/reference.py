"""Write docs/reference from the code: settings, commands, HTTP, metrics, `$SYS` and the Python API.

    python deploy/reference.py            write the pages
    python deploy/reference.py --check    exit with 1 if one is not what the code says
    python deploy/reference.py --walks    write walks.md alone, by following messages

A page that differs is listed. What a setting, an option or a class means stands beside it in the
code; only the meaning of `$SYS` topics comes from the table in docs/PROTOCOL.md.
"""

from __future__ import annotations

import argparse
import ast
import asyncio
import dataclasses
import importlib
import pathlib
import re
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
PAGES = ROOT / "docs" / "reference"
NOTE = "<!-- Written by deploy/reference.py: change the code, then run `make docs`. -->\n"


NOTE_OF_WALKS = "<!-- Written by `python deploy/reference.py --walks`. -->\n"


def main() -> int:
    parser = argparse.ArgumentParser(
        allow_abbrev=False, description=str(__doc__).partition("\n")[0]
    )
    parser.add_argument("--check", action="store_true", help="write nothing, list what differs")
    parser.add_argument("--walks", action="store_true", help="write walks.md alone")
    args = parser.parse_args()
    if args.walks:
        (PAGES / "walks.md").write_text(f"{NOTE_OF_WALKS}\n{walks().strip()}\n")
        return 0
    is_current = True
    for name, text in pages().items():
        path = PAGES / name
        if path.exists() and path.read_text() == text:
            continue
        is_current = False
        if args.check:
            print(f"{path.relative_to(ROOT)}: not what the code says; run make docs")
        else:
            PAGES.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            print(f"{path.relative_to(ROOT)}: written")
    return int(args.check and not is_current)


def pages() -> dict[str, str]:
    """The name of each page and its text."""
    made = {
        "settings.md": settings(),
        "memory.md": memory(),
        "commands.md": commands(),
        "http.md": http(),
        "metrics.md": metrics(),
        "sys-topics.md": sys_topics(),
        "api.md": api(),
    }
    return {name: f"{NOTE}\n{text.strip()}\n" for name, text in made.items()}


def table(head: str, rows: list[tuple[str, ...]]) -> str:
    columns = head.count("|") + 1
    lines = [f"| {head} |", "|" + "---|" * columns]
    lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return "\n".join(lines)


# Settings.


def settings() -> str:
    from mqtt_broker.core.limits.settings import UNLIMITED, Settings

    rows = []
    for field in dataclasses.fields(Settings):
        default, meta = field.default, field.metadata
        shown = f'"{default}"' if isinstance(default, str) else str(default)
        if isinstance(default, bool):
            shown, span = shown.lower(), "true, false"
        elif isinstance(default, str):
            span = ""
        else:
            high = "" if meta["high"] == UNLIMITED else f"{meta['high']:,}"
            span = f"{meta['low']:,} to {high}" if high else f"{meta['low']:,} or more"
        rows.append((f"`{field.name}`", f"`{shown}`", span, meta["help"]))
    return f"""# Settings

The limits and choices of the broker: keys of the TOML file, `FLEETMQ_<KEY>` in the environment,
and keywords of `mqtt_broker.Broker`. [CONFIGURATION.md](../CONFIGURATION.md) explains them, and has
the other keys and the tables of the file.

{table("Key | Default | Range | Meaning", rows)}
"""


# Memory.


def memory() -> str:
    from mqtt_broker.core.limits.settings import DEFAULTS, Settings
    from tests.soak.shares import ELSEWHERE, PARTS, memory_shares

    found = tomllib.loads((ROOT / "deploy" / "hardened.toml").read_text())
    names = {field.name for field in dataclasses.fields(Settings)}
    hardened = Settings(**{name: found[name] for name in names & found.keys()})
    rows: list[tuple[str, ...]] = []
    columns = [memory_shares(DEFAULTS), memory_shares(hardened)]
    for default, hard in zip(*columns, strict=True):
        key = default.limit and f"`{default.limit}`"
        values = [f"`{getattr(one, default.limit)}`" for one in (DEFAULTS, hardened) if key]
        first, second = values or ["", ""]
        rows.append((key, default.what, first, _mib(default.bytes), second, _mib(hard.bytes)))
    sums = [_mib(sum(share.bytes for share in column)) for column in columns]
    rows.append(("", "**sum**", "", f"**{sums[0]}**", "", f"**{sums[1]}**"))
    parts = [
        (f"`{name}`", str(getattr(DEFAULTS, name)), str(getattr(hardened, name)), f"`{whole}`")
        for name, whole in PARTS.items()
    ]
    elsewhere = ", ".join(f"`{name}` ({what})" for name, what in ELSEWHERE.items())
    head = "Limit | Of | Default | MiB | hardened.toml | MiB"
    return f"""# Memory

The memory that all limits allow together, with a store. `make soak` fills every limit in bytes at
once with hostile clients, and fails if the broker takes more. A fleet uses a fraction of it. To run
with less memory, lower the limits that are largest here, `connections_max` and `sessions_max` among
them.

{table(head, rows)}

With `durability = "memory"` there is no store: queued messages are limited by
`queue_total_bytes_max` instead of `queue_memory_bytes_max`, and journal and log take nothing. A
connection with TLS takes 20 KiB more, and one with WebSocket 4 KiB.

These limits are those of one client, within the limit of all:

{table("Limit | Default | hardened.toml | Within", parts)}

Not in the sum: {elsewhere}.
"""


def _mib(size: int) -> str:
    return f"{size / (1 << 20):,.0f}"


# Commands.


def commands() -> str:
    from mqtt_broker.cli.commands import COMMANDS, parser_of, sentence

    parts = [
        "# Commands",
        "Each command has `--help`. Exit code 2 means that the command line is wrong.",
    ]
    for name, command in COMMANDS.items():
        parts.append(f"## fleetmq {name}\n\n{sentence(command.summary)}")
        parts += _parser(parser_of(name), 3)
    return "\n\n".join(parts)


def _parser(parser: argparse.ArgumentParser, level: int) -> Iterator[str]:
    rows: list[tuple[str, ...]] = []
    below: list[tuple[str, argparse.ArgumentParser]] = []
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            below += action.choices.items()
        elif action.help != argparse.SUPPRESS and not isinstance(action, argparse._HelpAction):
            rows.append((_option(action), " ".join((action.help or "").split()).replace("%%", "%")))
    if rows:
        yield table("Argument | Meaning", [(o, _filled(parser, h)) for o, h in rows])
    for name, one in below:
        yield f"{'#' * level} {parser.prog} {name}\n\n{one.description}"
        yield from _parser(one, min(level + 1, 6))


def _option(action: argparse.Action) -> str:
    if action.metavar is not None:
        value = action.metavar if isinstance(action.metavar, str) else " ".join(action.metavar)
    elif action.choices is not None:
        value = "{" + ",".join(map(str, action.choices)) + "}"
    else:
        value = action.dest.upper()
    if not action.option_strings:
        return f"`{value}`"
    names = ", ".join(f"`{name}`" for name in action.option_strings)
    return names if action.nargs == 0 else f"{names} `{value}`"


def _filled(parser: argparse.ArgumentParser, text: str) -> str:
    return text.replace("%(prog)s", parser.prog)


# HTTP.


def _site() -> tuple[Any, ThreadPoolExecutor]:

    from mqtt_broker.http_api.request.access import Access
    from mqtt_broker.http_api.request.http_limits import HttpLimits
    from mqtt_broker.http_api.request.middleware import Site

    pool = ThreadPoolExecutor(1)
    nobody: Any = None
    return Site(nobody, None, pool, HttpLimits(), Access(), True, print), pool


def http() -> str:
    from mqtt_broker.http_api.http_server import all_operations
    from mqtt_broker.http_api.request.access import ROLE_NAMES

    site, pool = _site()
    with pool:
        rows = [
            (
                one.method,
                f"`{one.path}`",
                ROLE_NAMES[one.role] or "nobody",
                ", ".join(f"`{member.name}`" for member in one.query.members) if one.query else "",
                one.summary,
            )
            for one in all_operations(site)
        ]
    rows.sort(key=lambda row: (row[1], row[0]))
    return f"""# HTTP

The paths that `fleetmq broker` serves, the role that a token or a user needs, and the parameters
of the query string. [HTTP.md](../HTTP.md) has requests, answers and errors; a running broker
describes them all at `/api/v1/openapi.json`.

{table("Method | Path | Role | Parameters | Meaning", rows)}
"""


def metrics() -> str:
    from mqtt_broker.http_api.pages.metrics import MetricsCollector
    from mqtt_broker.http_api.request.broker_interface import (
        ReplayFigures,
        Snapshot,
        StoreFigures,
        WatchFigures,
    )

    names = "waiting hashes reloads reload_failures audit_lines_lost bans"
    access = dict.fromkeys(names.split(), 0)
    found = Snapshot(
        "x", "compiled", 0.0, access=access, store=StoreFigures(), replay=ReplayFigures()
    )
    rows = []
    for family in MetricsCollector(found, WatchFigures()).collect():
        suffix = "_total" if family.type == "counter" else ""
        rows.append((f"`{family.name}{suffix}`", family.type, family.documentation))
    return f"""# Metrics

What `GET /metrics` gives to Prometheus, and in OpenMetrics to those who ask for it.
[HTTP.md](../HTTP.md#metrics) has labels and examples.

{table("Metric | Type | Meaning", sorted(rows))}
"""


# `$SYS`.


def sys_topics() -> str:
    names = asyncio.run(_sys_names())
    meanings = _sys_meanings()
    groups: dict[str, str] = {}
    for name in names:
        found = [row for row, (pattern, _) in meanings.items() if pattern.fullmatch(name)]
        if not found:
            raise SystemExit(f"docs/PROTOCOL.md has no row for $SYS/broker/{name}")
        groups[name] = meanings[found[0]][1].partition("; `<")[0]
    rows = [(f"`$SYS/broker/{name}`", _relinked(text)) for name, text in sorted(groups.items())]
    return f"""# $SYS topics

What a broker publishes, retained, from its start on: one with a store and without streams. More
topics appear with the first event that they count, with streams, and with clients:
[PROTOCOL.md](../PROTOCOL.md#sys) has the patterns.

{table("Topic | Value", rows)}
"""


async def _sys_names() -> list[str]:
    from mqtt_broker import Broker

    names = set()
    with tempfile.TemporaryDirectory() as folder:
        async with (
            Broker(data_dir=folder, sys_interval_s=1) as broker,
            broker.subscribe("$SYS/#") as messages,
        ):
            async for message in messages:
                if not message.retain:  # a value that changed: all that are retained have come
                    break
                names.add(message.topic.removeprefix("$SYS/broker/"))
    return sorted(names)


def _sys_meanings() -> dict[str, tuple[re.Pattern[str], str]]:
    """The rows of the table: their names as a pattern, and their meaning."""
    text = (ROOT / "docs" / "PROTOCOL.md").read_text()
    _, _, text = text.partition("\n## $SYS\n")
    text = text.partition("\n### ")[0]
    found = {}
    for cells, meaning in re.findall(r"^\| (`.+?) \| (.*) \|$", text, re.MULTILINE):
        first, *others = re.findall(r"`([^`]+)`", cells)
        stem = first.rpartition("/")[0]
        # A later name may be whole, or only the last level: `load/<what>/1min`, `/5min`.
        names = [first]
        for other in others:
            level = other.strip("/")
            names.append(other if "/" in level else f"{stem}/{level}")
        pattern = "|".join(re.sub(r"<\w+>", ".+", re.escape(name)) for name in names)
        found[cells] = (re.compile(pattern), meaning)
    return found


def _relinked(text: str) -> str:
    return re.sub(r"\]\((?!http)", "](../", text)


# Walks.


def walks() -> str:
    """List the functions by which a message enters each package. Threads differ between runs."""
    from tests.house.walks import WALKS, entries_of, record, size_of

    parts = [
        "# Walks",
        (
            "The functions by which a message enters each package: `python -m tests.house.walks` "
            "found them in a running broker. [ARCHITECTURE.md](../ARCHITECTURE.md) draws the same."
        ),
    ]
    for name, walk in WALKS.items():
        calls = record(name)
        rows: list[tuple[str, ...]] = []
        for package, functions in sorted(entries_of(calls).items()):
            named = sorted(f"`{one}`" for one in functions if "<" not in one)
            if named:
                rows.append((f"`{package}`", ", ".join(named)))
        about = " ".join((walk.__doc__ or "").split())
        parts.append(f"## {name}\n\n{about} {size_of(calls)}")
        parts.append(table("Package | Entered by", rows))
    return "\n\n".join(parts)


# The Python API.

PACKAGES = ("mqtt_broker", "mqtt_broker.streams", "spark_ingest")


def api() -> str:
    parts = [
        "# Python API",
        (
            "The names that are kept ([how long](../RELEASING.md#what-is-kept)). Everything else "
            "is private, and may change with any version. [EMBEDDING.md](../EMBEDDING.md) shows "
            "them in use."
        ),
    ]
    for package in PACKAGES:
        module = importlib.import_module(package)
        parts.append(f"## {package}\n\n{str(module.__doc__).partition(chr(10))[0]}")
        for name in sorted(module.__all__, key=str.lower):
            if not name.startswith("__"):
                parts.append("\n\n".join(_named(package, name)))
    return "\n\n".join(parts)


def _named(package: str, name: str) -> Iterator[str]:
    """Describe a public name, from the source of the module that has it."""
    module = importlib.import_module(_place(package, name))
    source = pathlib.Path(str(module.__file__)).read_text()
    for node in ast.parse(source).body:
        if isinstance(node, ast.ClassDef) and node.name == name:
            yield f"### {name}"
            yield f"```python\n{_head(node)}\n```"
            yield _doc(node)
            yield from _members(node, source)
            return
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == name:
            yield f"### {name}()"
            yield f"```python\n{_signature(node)}\n```"
            yield _doc(node)
            return
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        if any(isinstance(target, ast.Name) and target.id == name for target in targets):
            yield f"### {name}"
            yield f"```python\n{ast.unparse(node)}\n```"
            return
    raise SystemExit(f"{package}.{name}: not found in {module.__name__}")


def _place(package: str, name: str) -> str:
    places: dict[str, str] = importlib.import_module(package)._PLACES
    for module, names in places.items():
        if name in names.split():
            return module
    return package


def _head(node: ast.ClassDef) -> str:
    bases = ", ".join(ast.unparse(base) for base in node.bases)
    return f"class {node.name}({bases})" if bases else f"class {node.name}"


def _members(node: ast.ClassDef, source: str) -> Iterator[str]:
    if node.name == "Settings":
        yield "[All fields](settings.md)."
        return
    lines = source.splitlines()
    fields = []
    for one in node.body:
        if isinstance(one, ast.AnnAssign) and not ast.unparse(one.target).startswith("_"):
            fields += [line[4:] for line in lines[one.lineno - 1 : one.end_lineno]]
    if fields:
        yield "```python\n" + "\n".join(fields) + "\n```"
    for one in node.body:
        if not isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        decorators = {ast.unparse(decorator) for decorator in one.decorator_list}
        if one.name == "__init__" and not fields:
            yield f"```python\n{_signature(one).replace('def __init__', node.name)}\n```"
        elif not one.name.startswith("_"):
            mark = "@property\n" if "property" in decorators else ""
            mark = "@classmethod\n" if "classmethod" in decorators else mark
            yield f"```python\n{mark}{_signature(one)}\n```"
            if ast.get_docstring(one):
                yield _doc(one)


def _signature(node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    prefix = "async def" if isinstance(node, ast.AsyncFunctionDef) else "def"
    arguments = ast.unparse(node.args)
    arguments = re.sub(r"^(self|cls)(, |$)", "", arguments)
    result = f" -> {ast.unparse(node.returns)}" if node.returns is not None else ""
    if node.name == "__init__":
        result = ""
    return f"{prefix} {node.name}({arguments}){result}"


def _doc(node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    """The docstring; what is indented in it is an example."""
    out: list[str] = []
    is_code = False
    for line in (ast.get_docstring(node) or "").splitlines():
        if line.startswith("    ") and (is_code or (out and not out[-1])):
            if not is_code:
                out.append("```text")
                is_code = True
            out.append(line[4:])
            continue
        if is_code and line:
            out[len(out) - (not out[-1]) :] = ["```", ""]
            is_code = False
        out.append(line)
    if is_code:
        out.append("```")
    return "\n".join(out)


if __name__ == "__main__":
    sys.exit(main())
