"""Processes of `python -c PROGRAM`, forked from one that has imported the product.

    with forked.Popen([sys.executable, "-c", MAIN, "broker"], cwd=ROOT) as process: ...
    done = forked.run([sys.executable, "-c", MAIN, "sub"], cwd=ROOT, capture_output=True, text=True)

A process is a true one, as `subprocess` starts it: our child, with its exit code, its signals, its
environment and its standard files. But most of what a new interpreter takes, 100 to 700 ms of CPU
time, it takes for the same imports.

What a fork cannot be, `subprocess` starts: a command in another directory, with other options of
Python's or other variables that an interpreter or a library reads when it starts. Tests of that
start, of what is imported, of memory and of the installed command begin with `subprocess`.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import io
import json
import os
import resource
import signal
import socket
import struct
import subprocess
import sys
import threading
import warnings
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from types import CodeType
from typing import Any, AnyStr, Final, TypedDict

from tests.fault.tether import tie, tied

ROOT: Final = Path(__file__).parents[1]
# What brokers and clients import until they serve, as far as it is installed.
_PRODUCT: Final = (
    "mqtt_broker.cli.main",
    "mqtt_broker.cli.bench",
    "mqtt_broker.cli.broker",
    "mqtt_broker.cli.ctl",
    "mqtt_broker.cli.pub",
    "mqtt_broker.cli.rr",
    "mqtt_broker.cli.sim",
    "mqtt_broker.cli.stream",
    "mqtt_broker.cli.sub",
    "mqtt_broker.http_api.connection",
    "mqtt_broker.http_api.log.ranges",
    "mqtt_broker.http_api.pages.health",
    "mqtt_broker.http_api.pages.metrics",
    "mqtt_broker.http_api.v1.documents",
    "mqtt_broker.http_api.v1.listeners",
    "mqtt_broker.server.services.backups",
    "mqtt_broker.server.services.flight_recorder",
    "mqtt_broker.server.services.security",
    "mqtt_broker.server.services.storage",
    "encodings.idna",
    "psycopg",
    "sqlalchemy.dialects.postgresql.psycopg",
    "sqlalchemy.dialects.sqlite.pysqlite",
)
# Variables that are read when an interpreter starts or a library is loaded.
_READ_AT_START: Final = (
    "PYTHON", "LD_", "LC_", "LANG", "TZ", "MALLOC_", "GLIBC_", "SSL_", "OPENSSL_",
    "SQLALCHEMY_", "DISABLE_SQLALCHEMY_", "AIOHTTP_", "MULTIDICT_", "PROMETHEUS_", "PSYCOPG_",
)  # fmt: skip
_SERVER: Final = "exec(__import__('tests.forked', fromlist=['serve']).serve())"
_PR_SET_CHILD_SUBREAPER: Final = 36
_LENGTH: Final = struct.Struct("!I")


class _Start(TypedDict):
    """How a process begins."""

    program: str
    argv: list[str]
    warns: list[str]  # -W
    environment: dict[str, str]
    has_session: bool
    is_tied: bool
    parent: int
    limits: list[tuple[int, int]]
    umask: int


class Popen(subprocess.Popen[AnyStr]):
    """`args` as a process; with `is_tied` it is killed when we end."""

    def __init__(
        self,
        args: Sequence[str],
        *,
        cwd: Path,
        env: Mapping[str, str] | None = None,
        start_new_session: bool = False,
        is_tied: bool = False,
        **files: Any,
    ) -> None:
        args = list(map(str, args))
        self._start = _start_of(args, cwd, dict(os.environ if env is None else env))
        self.is_forked = self._start is not None
        if self._start is not None:
            self._start |= {"has_session": start_new_session, "is_tied": is_tied}
        elif is_tied:
            args = tied(args)
        super().__init__(args, cwd=cwd, env=env, start_new_session=start_new_session, **files)

    def _execute_child(self, *given: Any) -> None:
        """Start it: `subprocess` has made the pipes."""
        if self._start is None:
            super()._execute_child(*given)  # type: ignore[misc]
            return
        pipes = given[10:16]
        theirs = (pipes[0], pipes[3], pipes[5])
        files = [ours if file == -1 else file for ours, file in enumerate(theirs)]
        self.pid = _server().fork(self._start, files)
        self._child_created = True
        self._close_pipe_fds(*pipes)  # type: ignore[attr-defined]


def run(
    args: Sequence[str],
    *,
    input: Any = None,
    capture_output: bool = False,
    timeout: float | None = None,
    check: bool = False,
    **options: Any,
) -> subprocess.CompletedProcess[Any]:
    """`subprocess.run`."""
    if capture_output:
        options |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    if input is not None:
        options["stdin"] = subprocess.PIPE
    process: Popen[Any]
    with Popen(args, **options) as process:
        try:
            out, errors = process.communicate(input, timeout)
        except BaseException:
            process.kill()
            raise
    if check and process.returncode:
        raise subprocess.CalledProcessError(process.returncode, args, out, errors)
    return subprocess.CompletedProcess(args, process.returncode, out, errors)


def _start_of(args: list[str], cwd: Path, environment: dict[str, str]) -> _Start | None:
    """How a fork begins that is what a new interpreter would be, if one can be that."""
    python, *options = args
    warns = []
    while options[:1] == ["-W"]:
        warns.append(options[1])
        del options[:2]
    if python != sys.executable or options[:1] != ["-c"] or cwd != ROOT or not _can_adopt():
        return None
    if _read_at_start(environment) != _server().read_at_start:
        return None
    return {
        "program": options[1],
        "argv": ["-c", *options[2:]],
        "warns": warns,
        "environment": environment,
        "has_session": False,
        "is_tied": False,
        "parent": os.getpid(),
        "limits": [resource.getrlimit(number) for number in _limits()],
        "umask": _umask(),
    }


def _read_at_start(environment: Mapping[str, str]) -> dict[str, str]:
    """Variables that are the same in all forks.

    PYTHONPATH is none of them when it leads where programs of `-c` find their modules anyway.
    """
    return {
        name: text
        for name, text in environment.items()
        if name.startswith(_READ_AT_START)
        and (name, text) not in (("PYTHONPATH", ""), ("PYTHONPATH", str(ROOT)))
    }


def _limits() -> list[int]:
    return sorted({getattr(resource, name) for name in dir(resource) if name[:7] == "RLIMIT_"})


def _umask() -> int:
    """Return it without the moment of another one that `os.umask` takes."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("\nUmask:")[2].split(maxsplit=1)[0], 8)


def _adopt(grandchildren: bool) -> None:
    """Become, or no longer be, the parent of what our children leave behind."""
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, int(grandchildren)):
        raise OSError(ctypes.get_errno(), "prctl")


@cache
def _can_adopt() -> bool:
    if not sys.platform.startswith("linux"):
        return False
    try:
        _adopt(False)
    except OSError:
        return False
    return True


# The server, from outside.


class _Server:
    """A process that has imported the product and forks on request. It ends with us."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._channel, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _SERVER, str(theirs.fileno())],
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )
        self.read_at_start = _read_at_start(os.environ)
        self._owner = os.getpid()
        atexit.register(self.close)

    def fork(self, start: _Start, files: list[int]) -> int:
        """Start a child of ours with these standard files; return its number."""
        request = json.dumps(start).encode()
        with self._lock:
            _adopt(True)
            try:
                socket.send_fds(self._channel, [_LENGTH.pack(len(request))], files)
                self._channel.sendall(request)
                answer = self._channel.recv(_LENGTH.size, socket.MSG_WAITALL)
            finally:
                _adopt(False)
        if len(answer) < _LENGTH.size:
            raise RuntimeError(f"the server of forks ended: {self._process.wait()}")
        return int(_LENGTH.unpack(answer)[0])

    def close(self) -> None:
        self._channel.close()
        if os.getpid() == self._owner:
            self._process.wait()


@cache
def _server() -> _Server:
    return _Server()


# The server, from inside.


def serve() -> CodeType:
    """Fork for each request; return, in the child, what it has to run."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal, which sends it to all
    shared: dict[str, object] = {}
    atexit.register(_leave, shared)  # first, and so the last that a child does
    before = set(sys.modules)
    import_product()
    shared |= {name: module for name, module in sys.modules.items() if name not in before}
    if len(os.listdir("/proc/self/task")) > 1:
        raise RuntimeError("an import has started a thread, which no fork would have")
    gc.collect()
    gc.freeze()
    with socket.socket(fileno=int(sys.argv[1])) as channel:
        while True:
            length, files, _, _ = socket.recv_fds(channel, _LENGTH.size, 3)
            if not length:
                raise SystemExit(0)
            start: _Start = json.loads(channel.recv(_LENGTH.unpack(length)[0], socket.MSG_WAITALL))
            child = _fork()
            if not child:
                break
            for file in files:
                os.close(file)
            channel.sendall(_LENGTH.pack(child))
    return _begin(start, files)


def import_product() -> None:
    for name in _PRODUCT:
        with contextlib.suppress(ImportError):
            import_module(name)


def _fork() -> int:
    """Fork a child that is our parent's: one of a child of ours that ends. Return its number."""
    reader, writer = os.pipe()
    middle = os.fork()
    if not middle:
        middle = os.getpid()
        child = os.fork()
        if child:
            os.write(writer, _LENGTH.pack(child))
            os._exit(0)
        os.close(writer)
        while os.getppid() == middle:
            os.sched_yield()
        os.close(reader)
        return 0
    os.waitpid(middle, 0)
    answer = os.read(reader, _LENGTH.size)
    os.close(reader)
    os.close(writer)
    return int(_LENGTH.unpack(answer)[0])


def _begin(start: _Start, files: list[int]) -> CodeType:
    """Become what a new interpreter is before it runs its program."""
    threading.current_thread()._set_native_id()  # type: ignore[attr-defined]
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    for limit, values in zip(_limits(), start["limits"], strict=True):
        resource.setrlimit(limit, values)
    os.umask(start["umask"])
    if start["has_session"]:
        os.setsid()
    os.environ.clear()
    os.environ.update(start["environment"])
    sys.argv[:] = start["argv"]
    if os.environ.get("PYTHONPATH"):
        sys.path.insert(1, str(ROOT))
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        text = _opened(getattr(sys, name), number, mode)
        setattr(sys, name, text)
        setattr(sys, f"__{name}__", text)
    for action in start["warns"]:
        sys.warnoptions.append(action)
        warnings.simplefilter(action)  # type: ignore[arg-type]
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if start["is_tied"]:
        tie(start["parent"])
    return compile(start["program"], "<string>", "exec", dont_inherit=True)


def _opened(before: Any, file: int, mode: str) -> io.TextIOWrapper:
    """Open a standard file as Python does, in the encoding of the one before."""
    is_unbuffered = bool(os.environ.get("PYTHONUNBUFFERED"))
    binary: Any = open(  # noqa: SIM115  # it stays open
        file, f"{mode}b", buffering=0 if is_unbuffered and mode == "w" else -1, closefd=False
    )
    getattr(binary, "raw", binary).name = before.name
    text = io.TextIOWrapper(
        binary,
        encoding=before.encoding,
        errors=before.errors,
        newline="\n" if mode == "w" else None,
        line_buffering=not is_unbuffered and (file == 2 or os.isatty(file)),
        write_through=is_unbuffered,
    )
    text.mode = mode  # type: ignore[misc]
    return text


def _leave(shared: dict[str, object]) -> None:
    """Let the interpreter not take apart what all forks have imported: pages that they share."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(shared))
    for name in shared:
        sys.modules.pop(name, None)
