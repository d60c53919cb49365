"""The commands in README and docs exist, and take the arguments they are given.

`fleetmq` commands are parsed by their own parsers, `make` targets and variables stand in the
Makefile, scripts and modules are there and know the options, and paths of HTTP requests have a
route. Programs of others are named in `OTHERS`. README's first steps are run in `test_first_steps`.
"""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any, Final, cast
from urllib.parse import urlsplit

import pytest
from aiohttp import web

from mqtt_broker.cli.commands import COMMANDS, parser_of
from mqtt_broker.http_api.http_server import make_application
from mqtt_broker.http_api.request.access import Access
from mqtt_broker.http_api.request.http_limits import HttpLimits
from mqtt_broker.http_api.request.middleware import Site
from tests.docs.blocks import ROOT, Block, of

OTHERS: Final = set(
    "cat cd cp cut df docker export find git grep install journalctl kill ln ls mosquitto_pub "
    "mosquitto_sub mv openssl pg_dump pip pip3 pgrep printf psql py-spy python3 rm ss ssh tail "
    "sqlite3 systemctl pre-commit".split()
)
PYTHON: Final = {"python", ".venv/bin/python"}
_BREAKS: Final = {"|", "&", "&&", "||", ";", "(", ")"}
_ASSIGNMENT: Final = re.compile(r"([A-Za-z_]\w*)=(.*)")


_SUBSTITUTION: Final = re.compile(r"\$\([^)]*\)")


def commands(block: Block, known: dict[str, str]) -> Iterator[list[str]]:
    """Each simple command, with the variables that it or an earlier one sets put in."""
    lines = block.text.replace("\\\n", " ").splitlines()
    if block.language == "console":
        lines = [line.strip()[2:] for line in lines if line.strip().startswith("$ ")]
    for line in lines:
        line = _SUBSTITUTION.sub("1", line)
        for name, value in known.items():
            line = re.sub(rf"\${name}\b", value, line)
        lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;")
        lexer.whitespace_split = True
        words: list[str] = []
        for word in [*lexer, ";"]:
            if word in _BREAKS:
                while words and (found := _ASSIGNMENT.fullmatch(words[0])):
                    known[found[1]] = found[2]
                    del words[0]
                if ">" in words:  # into a file
                    del words[words.index(">") :]
                if words:
                    yield words
                words = []
            else:
                words.append(word)


def _all() -> list[Any]:
    known: dict[Path, dict[str, str]] = {}
    return [
        pytest.param(block, words, id=f"{block.where} {' '.join(words[:3])}")
        for block in of("sh", "console")
        for words in commands(block, known.setdefault(block.path, {}))
    ]


@pytest.mark.parametrize(("block", "words"), _all())
def test_a_command(block: Block, words: list[str]) -> None:
    program, *arguments = words
    if program.rpartition("/")[2] == "fleetmq":
        check_fleetmq(arguments)
    elif program == "make":
        check_make(arguments)
    elif program in PYTHON or program.endswith("/bin/python"):
        check_python(arguments)
    elif program == "curl":
        check_curl(arguments)
    elif program == "locust":
        files = arguments[arguments.index("-f") + 1].split(",")
        assert all((ROOT / name).exists() for name in files)
    else:
        assert program.rpartition("/")[2] in OTHERS, f"{block.where}: what is {program}?"


def check_fleetmq(arguments: list[str]) -> None:
    name, *rest = arguments
    if name == "--version":
        return
    assert name in COMMANDS
    try:
        assert isinstance(parser_of(name).parse_args(rest), argparse.Namespace)
    except SystemExit as ended:
        pytest.fail(f"fleetmq {' '.join(arguments)}: exit code {ended.code}", pytrace=False)


def check_make(arguments: list[str]) -> None:
    text = (ROOT / "Makefile").read_text()
    for word in arguments:
        name, is_variable, _ = word.partition("=")
        wanted = rf"^{name} \?=" if is_variable else rf"^{re.escape(name)}:"
        found = re.search(wanted, text, re.MULTILINE) or (is_variable and f"$({name})" in text)
        assert found, f"make {word}"


def check_python(arguments: list[str]) -> None:
    """Its file is there, and holds every long option that is used."""
    if arguments[0] == "-m":
        if arguments[1] in ("venv", "pytest", "pip", "pstats", "cProfile"):
            return
        path = ROOT / f"{arguments[1].replace('.', '/')}.py"
        if not path.exists():
            path = ROOT / arguments[1].replace(".", "/") / "__main__.py"
        options = arguments[2:]
    else:
        path, options = ROOT / arguments[0], arguments[1:]
    assert path.exists(), path
    folder = "".join(one.read_text() for one in path.parent.glob("*.py"))
    for option in options:
        if option.startswith("--"):
            assert f'"{option.partition("=")[0]}"' in folder, option


@cache
def _routes() -> list[tuple[str, re.Pattern[str]]]:
    with ThreadPoolExecutor(1) as pool:
        site = Site(cast(Any, None), None, pool, HttpLimits(), Access(), True, print)
        app = make_application(site)
    found = []
    for route in app.router.routes():
        assert isinstance(route, web.ResourceRoute)
        assert route.resource is not None
        path = re.sub(r"\\?\{\w+\\?\}", "[^/]+", re.escape(route.resource.canonical))
        found.append((route.method, re.compile(path)))
    return found


def curl_parser() -> argparse.ArgumentParser:
    """The options of curl that the documents use."""
    parser = argparse.ArgumentParser(allow_abbrev=False, prog="curl")
    parser.add_argument("-X", dest="method", default="GET")
    for option in ("-H", "-d", "-D", "-o", "--data-urlencode"):
        parser.add_argument(option, action="append")
    for flag in ("-G", "-s", "-f"):
        parser.add_argument(flag, action="store_true")
    parser.add_argument("url")
    return parser


def check_curl(arguments: list[str]) -> None:
    args = curl_parser().parse_args(arguments)
    path = urlsplit(args.url).path
    assert any(method == args.method and p.fullmatch(path) for method, p in _routes()), path
