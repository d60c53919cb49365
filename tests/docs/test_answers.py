"""What documents show of answers is what is answered: commands with their output, HTTP requests.

A console block outside of README and the tutorial that shows output is run in a directory with the
configuration of `CONFIG`. Requests of `curl` are sent to a broker in the order of the document.
"""

from __future__ import annotations

import argparse
import http.client
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Final
from urllib.parse import quote_plus, urlsplit

import pytest

from mqtt_broker.cli.main import COMMANDS
from tests.docs.blocks import ROOT, Block, of
from tests.docs.test_shell_blocks import commands, curl_parser
from tests.server.process import Process, http_address

CONFIG: Final = """\
[[auth]]
type = "anonymous"

[[acl]]
permit = "allow"
topics = ["fleet/pump-7/#"]
"""
RUN_IN_ORDER: Final = (ROOT / "README.md", ROOT / "docs" / "tutorial.md")


def _shown() -> list[Block]:
    found = []
    for block in of("console"):
        lines = block.text.replace("\\\n", " ").splitlines()
        if block.path not in RUN_IN_ORDER and block.key != "not run":
            if any(not line.strip().startswith("$ ") for line in lines):
                found.append(block)
    return found


@pytest.mark.parametrize("block", _shown(), ids=lambda block: block.where)
def test_a_command_prints_what_is_shown(block: Block, tmp_path: Path) -> None:
    (tmp_path / "fleetmq.toml").write_text(CONFIG)
    command, *shown = block.text.splitlines()
    program = f"{sys.executable} -c 'from mqtt_broker.cli.main import *; sys.exit(main())'"
    command = command.removeprefix("$ ").replace("fleetmq ", f"{program} ", 1)
    assert any(f" {name} " in f"{command} " for name in COMMANDS)
    done = subprocess.run(
        ["bash", "-c", command.replace("$ ", "", 1)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stdout + done.stderr).splitlines() == shown


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Where a broker with a store serves HTTP."""
    folder = tmp_path_factory.mktemp("broker")
    config = folder / "fleetmq.toml"
    config.write_text(f'{CONFIG}[security]\nbans_file = "{folder}/bans"\n')
    argv = ("--port", "0", "--http", "127.0.0.1:0", "--data-dir", str(folder / "data"))
    with Process(*argv, "--config", str(config), env={"FLEETMQ_DURABILITY": "commit"}) as process:
        yield http_address(process)
        process.end()


def test_requests_are_understood(address: str) -> None:
    """Not refused as malformed: unknown keys, wrong methods and wrong values are."""
    known: dict[str, str] = {}
    requests = [
        (block, curl_parser().parse_args(words[1:]))
        for block in of("sh")
        for words in commands(block, known)
        if words[0] == "curl"
    ]
    assert len(requests) > 15
    with closing(http.client.HTTPConnection(urlsplit(address).netloc, timeout=30)) as connection:
        for block, args in requests:
            body = args.d[0] if args.d else None
            connection.request(args.method, _path(args), body, _head(args))
            answer = connection.getresponse()
            said = answer.read()
            # 404: of a stream, a group or a ban that the document only speaks of
            is_understood = answer.status < 300 or answer.status == 404
            assert is_understood, f"{block.where}: {args.method} {_path(args)}: {said!r}"


def _path(args: argparse.Namespace) -> str:
    split = urlsplit(args.url)
    query = [split.query] if split.query else []
    for pair in args.data_urlencode or []:
        name, _, value = pair.partition("=")
        query.append(f"{name}={quote_plus(value)}")
    return f"{split.path}?{'&'.join(query)}" if query else split.path


def _head(args: argparse.Namespace) -> dict[str, str]:
    return dict(text.split(": ", 1) for text in args.H or [])
