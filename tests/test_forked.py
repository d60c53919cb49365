"""Forked processes are what new interpreters are: the tests that start them prove as much."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest

from tests import forked
from tests.forked import ROOT

PATIENCE_S: Final = 120.0
MAIN: Final = "import sys; from mqtt_broker.cli.main import main; sys.exit(main())"
# What a process can see of itself, of which nothing may differ.
PROBE: Final = """
__import__("tests.forked", fromlist=["forked"]).import_product()
import atexit, asyncio, decimal, gc, json, locale, logging, os, random, resource, signal, socket
import sys, tempfile, threading, time, warnings
open_files = os.listdir("/proc/self/fd")
with open("/proc/self/status") as lines:
    status = dict(line.split(":\\t", 1) for line in lines.read().splitlines())
def standard(text):
    return [
        text.name, text.mode, text.encoding, text.errors, text.line_buffering, text.write_through,
        text.isatty(), text.seekable(), type(text.buffer).__name__, text.closed, text.newlines,
    ]
print(json.dumps({
    "argv": sys.argv,
    "names": sorted(__import__("__main__").__dict__),
    "name": __name__,
    "path": sys.path,
    "flags": list(sys.flags),
    "warnings": [list(map(str, entry)) for entry in warnings.filters],
    "warn options": sys.warnoptions,
    "environment": dict(os.environ),
    "directory": os.getcwd(),
    "files": len(open_files),
    "standard": [standard(text) for text in (sys.stdin, sys.stdout, sys.stderr)],
    "same": [sys.stdin is sys.__stdin__, sys.stdout is sys.__stdout__],
    "same error": sys.stderr is sys.__stderr__,
    "handlers": [str(signal.getsignal(number)) for number in sorted(signal.valid_signals())],
    "blocked": [status[name] for name in ("SigBlk", "SigIgn", "ShdPnd")],
    "umask": status["Umask"],
    "threads": [status["Threads"], threading.active_count()],
    "main": threading.current_thread() is threading.main_thread(),
    "native": threading.main_thread().native_id == threading.get_native_id() == os.getpid(),
    "limits": [resource.getrlimit(number) for number in range(16)],
    "priority": os.getpriority(os.PRIO_PROCESS, 0),
    "processors": sorted(os.sched_getaffinity(0)),
    "parent": os.getppid(),
    "groups": [os.getpgid(0) == os.getpid(), os.getsid(0) == os.getpid(), os.getgroups()],
    "garbage": [gc.isenabled(), gc.get_threshold(), gc.get_debug(), len(gc.callbacks)],
    "logging": [logging.root.level, len(logging.root.handlers), logging.root.manager.disable],
    "loggers": sorted(
        name for name, one in logging.root.manager.loggerDict.items()
        if isinstance(one, logging.Logger) and (one.level or one.handlers or not one.propagate)
    ),
    "locale": [locale.setlocale(category) for category in range(6)],
    "zone": time.tzname,
    "temporary": tempfile.tempdir,
    "timeout": socket.getdefaulttimeout(),
    "decimal": str(decimal.getcontext()),
    "recursion": [sys.getrecursionlimit(), sys.getswitchinterval()],
    "traced": [str(sys.gettrace()), str(sys.getprofile()), sys.is_finalizing()],
    "hooks": [sys.excepthook is sys.__excepthook__, sys.unraisablehook is sys.__unraisablehook__],
    "policy": type(asyncio.get_event_loop_policy()).__name__,
}))
"""


def python(program: str, *arguments: str) -> list[str]:
    return [sys.executable, "-c", program, *arguments]


@pytest.mark.parametrize(
    ("warns", "variables", "has_session"),
    [((), {}, False), (("-W", "error"), {"PYTHONPATH": str(ROOT), "A": "\udcff"}, True)],
    ids=["plain", "with options"],
)
def test_a_process_finds_itself_as_after_a_start(
    warns: tuple[str, ...], variables: dict[str, str], has_session: bool
) -> None:
    command = [sys.executable, *warns, "-c", PROBE, "a", "--b", "\udcfe"]
    seen = []
    for kind in (subprocess.Popen, forked.Popen):
        with kind(
            command,
            cwd=ROOT,
            env={**os.environ, **variables},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=has_session,
        ) as process:
            out, _ = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0
        seen.append(json.loads(out))
    assert getattr(process, "is_forked", False)
    assert seen[1] == seen[0]


@pytest.mark.parametrize(
    "program",
    [
        "pass",
        "import sys; sys.exit(3)",
        "import sys; sys.exit('a word')",
        "import os; os._exit(4)",
        "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
        "import os, signal; os.kill(os.getpid(), signal.SIGTERM)",
        "import os, signal; os.kill(os.getpid(), signal.SIGINT)",
        "import atexit; atexit.register(print, 'at exit'); print('before')",
        "import threading, time; threading.Timer(0.01, print, ['a thread']).start()",
        "import sys; print(sys.stdin.read()); print('error', file=sys.stderr)",
        "import os; print(os.read(0, 10), flush=True); os.write(2, b'raw')",
        "import socket; one = socket.socket(); del one",
    ],
)
def test_a_process_ends_as_it_would(program: str) -> None:
    command = [sys.executable, "-W", "error", "-c", program]
    new = subprocess.run(command, cwd=ROOT, input="given", capture_output=True, text=True)
    fork = forked.run(command, cwd=ROOT, input="given", capture_output=True, text=True)
    # It stands within the server's program, which is one more line of a traceback.
    frame = '  File "<string>", line 1, in <module>\n'
    said = fork.stderr.replace(2 * frame, frame)
    assert (fork.returncode, fork.stdout, said) == (new.returncode, new.stdout, new.stderr)


def test_an_error_ends_it_with_its_traceback() -> None:
    done = forked.run(python("1 / 0"), cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.startswith("Traceback") and "ZeroDivisionError: division" in done.stderr


def test_what_is_random_differs() -> None:
    program = (
        "import random, secrets, ssl, tempfile, uuid; names = tempfile._get_candidate_names(); "
        "print(random.random(), secrets.token_hex(), uuid.uuid4(), ssl.RAND_bytes(9), next(names))"
    )
    said = [
        forked.run(python(program), cwd=ROOT, capture_output=True, text=True).stdout.split()
        for _ in range(3)
    ]
    for column in zip(*said, strict=True):
        assert len(set(column)) == 3


def test_it_is_our_child_and_nobody_else_becomes_one() -> None:
    """A process that another one of ours leaves behind is not ours."""
    with forked.Popen(
        python("import os; print(os.getppid(), flush=True); input()"),
        cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None and process.stdin is not None
        assert int(process.stdout.readline()) == os.getpid()
        assert process.poll() is None
        process.send_signal(signal.SIGSTOP)
        _, status = os.waitpid(process.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        process.send_signal(signal.SIGCONT)
        process.stdin.write("\n")
    assert process.returncode == 0
    leave = (
        "import os; child = os.fork(); child or (os.read(0, 1), print(os.getppid(), flush=True))"
    )
    with subprocess.Popen(python(leave), stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        parent.wait(PATIENCE_S)
        out, _ = parent.communicate(b"x", PATIENCE_S)
    assert int(out) != os.getpid()


def test_limits_and_descriptors() -> None:
    import resource

    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    program = (
        "import os, resource; print(*resource.getrlimit(resource.RLIMIT_NOFILE)); "
        "print(sorted(map(int, os.listdir('/proc/self/fd')))[:3], len(os.listdir('/proc/self/fd')))"
    )
    resource.setrlimit(resource.RLIMIT_NOFILE, (before[0] - 1, before[1]))
    try:
        with socket.socket() as kept:
            kept.set_inheritable(True)
            done = forked.run(python(program), cwd=ROOT, capture_output=True, text=True)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    limits, files = done.stdout.splitlines()
    assert limits == f"{before[0] - 1} {before[1]}"
    assert files == "[0, 1, 2] 4"  # and the directory that is read


@pytest.mark.parametrize("variables", [{"PYTHONHASHSEED": "1"}, {"TZ": "UTC"}, {"LC_ALL": "C"}])
def test_what_an_interpreter_reads_at_its_start_starts_one(variables: dict[str, str]) -> None:
    assert not is_forked(python("pass"), env={**os.environ, **variables})


@pytest.mark.parametrize("options", [["-m", "this"], ["-O", "-c", "pass"], ["-Xdev", "-c", "pass"]])
def test_other_options_start_an_interpreter(options: list[str]) -> None:
    assert not is_forked([sys.executable, *options])


def test_another_directory_starts_an_interpreter(tmp_path: Path) -> None:
    assert is_forked(python("pass"))
    assert not is_forked(python("pass"), cwd=tmp_path)


def is_forked(command: list[str], **options: Any) -> bool:
    options = {"cwd": ROOT, **options}
    started: forked.Popen[Any]
    with forked.Popen(command, stdout=subprocess.DEVNULL, **options) as started:
        assert started.wait(PATIENCE_S) == 0
    return started.is_forked


def test_who_is_tied_ends_with_us_and_so_does_the_server() -> None:
    """Of a process that is killed nothing stays that could keep its standard output open."""
    program = (
        "import os, sys; from tests import forked; "
        "one = forked.Popen([sys.executable, '-c', 'print(1, flush=True); input()'], "
        "cwd=forked.ROOT, stdin=os.pipe()[0], is_tied=True); os.kill(one.pid, 0); "
        "print(one.is_forked, flush=True); one.wait()"
    )
    with subprocess.Popen(
        python(program), cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None
        said = "".join(process.stdout.readline() for _ in range(2))
        process.kill()
        said += process.stdout.read()
    # Unbuffered, each of the two writes a line in two parts.
    assert sorted(said) == sorted("1\nTrue\n")


@pytest.fixture
def said(tmp_path: Path) -> list[str]:
    """What a broker says, new and forked, from its start to its end."""
    found = []
    kinds: tuple[Any, Any] = (subprocess.Popen, forked.Popen)
    for number, kind in enumerate(kinds):
        command = python(MAIN, "broker", "--port", "0", "--http", "127.0.0.1:0", "--data-dir")
        with contextlib.ExitStack() as stack:
            process = stack.enter_context(
                kind([*command, str(tmp_path / str(number))], cwd=ROOT, stdout=subprocess.PIPE,
                     stderr=subprocess.PIPE, text=True)
            )  # fmt: skip
            stack.callback(process.kill)
            assert process.stdout is not None
            first = process.stdout.readline() + process.stdout.readline()  # MQTT and HTTP
            process.send_signal(signal.SIGTERM)
            out, errors = process.communicate(timeout=PATIENCE_S)
        found.append(f"{first}{out}{errors}{process.returncode}")
    return [
        re.sub(r"\d+", "0", text.replace(str(tmp_path / str(number)), "here"))
        for number, text in enumerate(found)
    ]


def test_a_broker_says_the_same(said: list[str]) -> None:
    new, fork = said
    assert "listens on" in new and fork == new
