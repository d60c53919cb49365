"""Completion of the command, run in the shells themselves."""

from __future__ import annotations

import os
import pty
import shutil
import subprocess
import tty
from pathlib import Path

import pytest

from mqtt_broker.cli.commands import COMMANDS
from mqtt_broker.cli.completion import bash
from mqtt_broker.cli.main import main

BASH = shutil.which("bash")
ZSH = shutil.which("zsh")


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("completion") / "fleetmq.bash"
    path.write_text(bash())
    return path


def complete(script: Path, *words: str) -> list[str]:
    """Return what bash offers for the last word."""
    if BASH is None:
        pytest.skip("no bash")
    shell = (
        'source "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _fleetmq; '
        'printf "%s\\n" "${COMPREPLY[@]}"'
    )
    done = subprocess.run(
        [BASH, "--norc", "-uc", shell, "bash", str(script), "fleetmq", *words],
        capture_output=True, text=True, check=True, cwd=script.parent,
    )  # fmt: skip
    assert done.stderr == ""
    return done.stdout.split()


def test_commands_and_options(script: Path) -> None:
    assert set(complete(script, "")) == {*COMMANDS, "--help", "--version"}
    assert complete(script, "ctl", "cli") == ["clients", "client"]
    assert complete(script, "ctl", "clients", "--back") == ["--backlog-min"]
    assert complete(script, "ctl", "--json", "acl", "ex") == ["explain"]
    assert "--verbose" not in complete(script, "ctl", "acl", "explain", "--")


def test_values(script: Path) -> None:
    assert complete(script, "ctl", "top", "--sort", "messages_") == ["messages_in", "messages_out"]
    assert complete(script, "ctl", "ban", "c") == ["client"]
    assert complete(script, "ctl", "log-level", "d") == ["debug"]
    assert complete(script, "broker", "--config", "fleet") == ["fleetmq.bash"]


def test_words_that_are_no_commands(script: Path) -> None:
    assert complete(script, "nothing", "") == complete(script, "")
    assert complete(script, "$(touch x)", "`touch x`") == []
    assert not (script.parent / "x").exists()


def test_zsh_reads_its_script(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "zsh"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("#compdef fleetmq\n") and text.count("complete -F _fleetmq fleetmq") == 1
    if ZSH is None:
        pytest.skip("no zsh")
    path = tmp_path / "_fleetmq"
    path.write_text(text)
    shell = "autoload -U compinit && compinit -u -d $2; source $1; whence -w _fleetmq"
    done = subprocess.run(
        [ZSH, "-fc", shell, "zsh", str(path), str(tmp_path / "dump")],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "function" in done.stdout


class Zsh:
    """An interactive zsh that completes `fleetmq`, a function which prints its words."""

    def __init__(self, folder: Path, *setup: str) -> None:
        if ZSH is None:
            pytest.skip("no zsh")
        self._screen, inner = pty.openpty()
        tty.setraw(inner)
        self._process = subprocess.Popen(
            [ZSH, "-f", "-i"], stdin=inner, stdout=inner, stderr=inner, cwd=folder,
            env={"TERM": "xterm", "PATH": os.environ["PATH"], "HOME": str(folder)},
            start_new_session=True,
        )  # fmt: skip
        os.close(inner)
        self._seen = ""
        self.do("unsetopt prompt_sp; PS1='' PS2=''; setopt no_beep")
        for line in (*setup, "fleetmq() { print -r -- RAN:$*: }"):
            self.do(line)

    def _wait(self, words: str) -> str:
        """Read until these words; return what stood before them."""
        while words not in self._seen:
            self._seen += os.read(self._screen, 65_536).decode(errors="replace")
        before, _, self._seen = self._seen.partition(words)
        return before

    def do(self, line: str) -> None:
        os.write(self._screen, f"{line}; print DO''NE\n".encode())
        self._wait("DONE")

    def complete(self, typed: str) -> str:
        """Type this, press Tab, press Return; return the command that ran."""
        os.write(self._screen, f"fleetmq {typed}\t\n".encode())
        self._wait("RAN:")
        return self._wait(":").strip()

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._screen)


@pytest.fixture
def zsh_script(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    assert main(["completion", "zsh"]) == 0
    path = tmp_path / "_fleetmq"
    path.write_text(capsys.readouterr().out)
    return path


@pytest.mark.parametrize("way", ["fpath", "sourced"])
def test_zsh_completes_from_the_first_time_on(zsh_script: Path, way: str) -> None:
    """As the file of a folder of completions, and read by a start file."""
    compinit = "autoload -U compinit && compinit -u -d dump"
    setup = ["fpath=($PWD $fpath)", compinit] if way == "fpath" else [compinit, "source ./_fleetmq"]
    zsh = Zsh(zsh_script.parent, *setup)
    try:
        assert zsh.complete("ctl cert") == "ctl certificates"
        assert zsh.complete("ctl acl ex") == "ctl acl explain"
        assert zsh.complete("ctl listener cl") == "ctl listener close"
        assert zsh.complete("ctl clients --back") == "ctl clients --backlog-min"
        assert zsh.complete("ctl log-level deb") == "ctl log-level debug"
        assert zsh.complete("broker --config _flee") == "broker --config _fleetmq"
        assert zsh.complete("nothing xyz") == "nothing xyz"
    finally:
        zsh.close()


def test_other_shells_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["completion", "fish"])
    assert end.value.code == 2 and "'bash', 'zsh'" in capsys.readouterr().err
