"""A wrong command line is one line that names the word and what would be right; help is whole."""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from mqtt_broker.cli.commands import COMMANDS, Parser, parser_of, sentence
from mqtt_broker.cli.main import main

WRONG = {
    "broker --prot 1883": "unrecognized arguments: --prot 1883; did you mean --port?",
    "broker --prot=1883": "unrecognized arguments: --prot=1883; did you mean --port?",
    "broker --dura commit": "unrecognized arguments: --dura commit; did you mean --durability?",
    "broker --xyzzy": "unrecognized arguments: --xyzzy (",
    "broker surplus": "unrecognized arguments: surplus (",
    "pub -t a -m x --usrname u": "did you mean --username?",
    "stream create a --filter b --retian 7d": "did you mean --retain?",
    "broker --port abc": "argument --port: 'abc' is not a whole number",
    "pub -t a -m x --repeat-delay soon": "argument --repeat-delay: 'soon' is not a number",
    "brokr": "no command 'brokr': there are broker, pub, ",
}


@pytest.mark.parametrize("words", WRONG)
def test_a_wrong_command_line_is_one_line(words: str, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(words.split())
    out, err = capfd.readouterr()
    assert (end.value.code, out) == (2, "")
    assert err.count("\n") == 1 and WRONG[words] in err and "--help)" in err


def _below(action: argparse.Action) -> list[Parser]:
    """The parsers of a command's actions, if these are what an argument stands for."""
    choices = action.choices.values() if isinstance(action.choices, dict) else ()
    return [one for one in choices if isinstance(one, Parser)]


@pytest.mark.parametrize("name", COMMANDS)
def test_help_says_what_each_action_and_option_does(name: str) -> None:
    parsers = [parser_of(name)]
    for parser in parsers:
        assert re.fullmatch("[A-Z].+[.]", parser.description or "", re.DOTALL), parser.prog
        for action in parser.actions():
            below = _below(action)
            parsers += below
            assert below or action.help, f"{parser.prog}: {action.option_strings or action.dest}"


def test_a_summary_is_a_sentence_that_keeps_its_names() -> None:
    assert sentence("run Spark jobs on the JSON log") == "Run Spark jobs on the JSON log."


REFUSED = {
    "ctl clients --api broker": "fleetmq ctl clients: invalid URL 'broker': expected http://",
    "ctl role add a b --api broker": "fleetmq ctl role add: invalid URL 'broker': expected http://",
    "stream create a --retain 7days": "fleetmq stream create: --retain: '7days' is not a duration ",
    "sim run nope": "fleetmq sim run: no scenario 'nope'; ",
    "pub -t a/# -m x": "fleetmq pub: -t 'a/#': ",
}


@pytest.mark.parametrize("words", REFUSED)
def test_a_refused_value_points_to_the_help_that_has_the_option(
    words: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        main([*words.split()])
    err = capfd.readouterr().err
    assert (end.value.code, err.count("\n")) == (2, 1)
    command = REFUSED[words].partition(":")[0]
    assert err.startswith(REFUSED[words]) and err.endswith(f"(see {command} --help)\n")


_MAIN = "import sys; from mqtt_broker.cli.main import main; sys.exit(main())"


@pytest.mark.parametrize(
    ("words", "is_buffered"),
    [("config", True), ("config", False), ("completion bash", False), ("broker --check", True)],
)
def test_output_for_which_there_is_no_space_is_one_line(words: str, is_buffered: bool) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full here")
    env = {**os.environ, "PYTHONUNBUFFERED": "" if is_buffered else "1"}
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [sys.executable, "-c", _MAIN, *words.split()],
            cwd=Path(__file__).parents[2],
            env=env,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.returncode == 1
    assert re.fullmatch("fleetmq[a-z ]*: No space left on device\n", done.stderr)


@pytest.mark.parametrize("is_buffered", [True, False])
def test_a_reader_that_has_enough_is_no_error(is_buffered: bool) -> None:
    env = {**os.environ, "PYTHONUNBUFFERED": "" if is_buffered else "1"}
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-c", _MAIN, "config"],
        cwd=Path(__file__).parents[2],
        env=env,
        stdout=writer,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, "")
