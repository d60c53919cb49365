"""The Pythons of this machine that the project supports.

python -m tests.install.pythons      prints the path of each
"""

from __future__ import annotations

import functools
import shutil
import subprocess
from pathlib import Path
from typing import Final

MINORS: Final = range(11, 15)
_ASKED: Final = "import sys, venv, ensurepip, sqlite3, ssl; print('%d.%d' % sys.version_info[:2])"


@functools.cache
def version_of(python: str) -> str:
    """Return "3.12" if that runs, with what an installation needs; else an empty text."""
    done = subprocess.run([python, "-c", _ASKED], capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else ""


@functools.cache
def pyenv_root() -> Path | None:
    """Return the directory of pyenv, if there is one."""
    if shutil.which("pyenv") is None:
        return None
    done = subprocess.run(["pyenv", "root"], capture_output=True, text=True, check=True)
    return Path(done.stdout.strip())


def of_pyenv(name: str) -> list[str]:
    """Return the Pythons of a version that pyenv has, newest first; PATH shows only some."""
    root = pyenv_root()
    if root is None:
        return []
    found = root.glob(f"versions/{name}.*/bin/python")
    return [str(path) for path in sorted(found, reverse=True)]


def versions() -> list[tuple[str, str]]:
    """Return (version, path) of each supported version, as PATH or pyenv has it."""
    found = []
    for minor in MINORS:
        name = f"3.{minor}"
        on_path = [path for path in [shutil.which(f"python{name}")] if path is not None]
        right = next((path for path in on_path + of_pyenv(name) if version_of(path) == name), None)
        if right is not None:
            found.append((name, right))
    return found


if __name__ == "__main__":
    print("\n".join(path for _, path in versions()))
