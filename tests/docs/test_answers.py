"""The commands in documents run, and print what is shown; HTTP requests are understood.

A block runs in a directory with the configuration of `CONFIG`, unless the comment in front of it
says why not. Requests of `curl` are sent to a broker in the order of the document. README and the
tutorial are in `test_first_steps`, and those with a recorder in `test_why`.
"""

from __future__ import annotations

import argparse
import http.client
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Final
from urllib.parse import quote_plus, urlsplit

import pytest

from tests.docs.blocks import IN_ORDER, ROOT, Block, of
from tests.docs.test_shell_blocks import commands, curl_parser
from tests.server.broker_process import Process, http_address

CONFIG: Final = """\
[[auth]]
type = "anonymous"

[[acl]]
permit = "allow"
topics = ["fleet/pump-7/#"]
"""
RUN_IN_ORDER: Final = tuple(ROOT / name for name in IN_ORDER)


def _runnable() -> list[Block]:
    known: dict[str, str] = {}
    return [
        block
        for block in of("sh", "console")
        if block.path not in RUN_IN_ORDER
        and block.key not in ("not run", "with")
        and not any(words[0] == "curl" for words in commands(block, known))
    ]


def test_blocks_of_the_first_steps_that_are_no_console_say_why() -> None:
    blocks = [block for block in of("sh") if block.path in RUN_IN_ORDER]
    assert [block.where for block in blocks if block.key != "not run"] == []


@pytest.mark.parametrize("block", _runnable(), ids=lambda block: block.where)
def test_a_block_runs(block: Block, tmp_path: Path) -> None:
    """Line by line, each with what is shown behind it; one that shows an error may fail."""
    (tmp_path / "fleetmq.toml").write_text(f'{CONFIG}[security]\nbans_file = "bans"\n')
    (tmp_path / "mosquitto.conf").write_text("listener 1883\n")
    program = f"{sys.executable} -c 'from mqtt_broker.cli.main import *; sys.exit(main())'"
    runs: list[tuple[str, list[str]]] = []
    for line in block.text.replace("\\\n", " ").splitlines():
        if block.language == "sh" or line.startswith("$ "):
            runs.append((line.removeprefix("$ "), []))
        else:
            runs[-1][1].append(line)
    for command, shown in runs:
        ours = re.sub(r"(^|[ |])fleetmq ", rf"\1{program} ", command)
        ours = re.sub(r"(^|[ |])python deploy/", rf"\1{sys.executable} {ROOT}/deploy/", ours)
        done = subprocess.run(
            ["bash", "-c", ours],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=False,
        )
        said = done.stdout + done.stderr
        if shown:
            assert said.splitlines() == shown, command
        else:
            assert done.returncode == 0, f"{command}: {said}"


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
