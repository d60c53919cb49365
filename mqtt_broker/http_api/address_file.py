"""`<data-dir>/http.json`: the URL of the HTTP server of the broker that runs there.

`{"url": "http://127.0.0.1:9883", "pid": 1234}`, written when the server listens and removed when
it stops, so that tools on this machine find it. It holds no token.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Final

FILE: Final = "http.json"


class NoAddress(Exception):
    """No running broker was found; the text is one line."""


def url_of(host: str, port: int) -> str:
    """Return the URL for tools on this machine: loopback when the server listens everywhere."""
    if host in ("0.0.0.0", ""):
        host = "127.0.0.1"
    elif host == "::":
        host = "::1"
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def write(data_dir: Path, url: str) -> None:
    """Write the file for this process."""
    part = data_dir / f"{FILE}.new"
    part.write_text(json.dumps({"url": url, "pid": os.getpid()}) + "\n")
    part.replace(data_dir / FILE)


def remove(data_dir: Path) -> None:
    """Remove the file, if it is there."""
    (data_dir / FILE).unlink(missing_ok=True)


def read(data_dir: Path) -> str:
    """Return the URL of the running broker. Raises NoAddress when there is none."""
    path = data_dir / FILE
    try:
        found = json.loads(path.read_text())
        url, pid = str(found["url"]), int(found["pid"])
    except FileNotFoundError:
        raise NoAddress(
            f"no broker with an HTTP server runs on {data_dir}: {path} does not exist"
        ) from None
    except OSError as error:
        raise NoAddress(f"{path}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, RecursionError):
        raise NoAddress(f"{path}: not a JSON object with url and pid") from None
    if not _is_running(pid):
        raise NoAddress(f"the broker of {path} (pid {pid}) is no longer running")
    return url


def _is_running(pid: int) -> bool:
    if not 0 < pid < 1 << 31:
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # it runs as another user
    return True
