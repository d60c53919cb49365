"""`<data-dir>/http.json`: where the HTTP server of the broker that runs there is.

`{"url": "http://127.0.0.1:9883", "pid": 1234}`, written when it listens and removed when it
stops, so that tools on this machine need not be told. It holds no token.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Final

FILE: Final = "http.json"


class NoAddress(Exception):
    """There is no such broker, as far as the file knows; one line."""


def url_of(host: str, port: int) -> str:
    """For a tool on this machine: a server that listens everywhere is reached at loopback."""
    if host in ("0.0.0.0", ""):
        host = "127.0.0.1"
    elif host == "::":
        host = "::1"
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def write(data_dir: Path, url: str) -> None:
    aside = data_dir / f"{FILE}.new"
    aside.write_text(json.dumps({"url": url, "pid": os.getpid()}) + "\n")
    aside.replace(data_dir / FILE)


def remove(data_dir: Path) -> None:
    (data_dir / FILE).unlink(missing_ok=True)


def read(data_dir: Path) -> str:
    """The URL, of a process that still runs."""
    path = data_dir / FILE
    try:
        found = json.loads(path.read_text())
        url, pid = str(found["url"]), int(found["pid"])
    except FileNotFoundError:
        raise NoAddress(f"no broker with an HTTP server runs on {data_dir}: no {path}") from None
    except OSError as error:
        raise NoAddress(f"{path}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, RecursionError):
        raise NoAddress(f"{path} is not what a broker writes") from None
    if not _runs(pid):
        raise NoAddress(f"the broker of {path} (pid {pid}) does not run any more")
    return url


def _runs(pid: int) -> bool:
    if not 0 < pid < 1 << 31:
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # it is somebody else's
    return True
