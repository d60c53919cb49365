"""Count the processor's instructions of a Python script, by valgrind.

Seconds depend on what else the machine does; instructions do not.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys

import pytest

needs_valgrind = pytest.mark.skipif(
    shutil.which("valgrind") is None, reason="valgrind is not installed"
)


def instructions(script: str, *arguments: object) -> int:
    """Run the script with this interpreter and return how many instructions it took in all."""
    command = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null", sys.executable]
    done = subprocess.run(
        [*command, "-c", script, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONHASHSEED": "0", "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    found = re.search(r"Collected : (\d+)", done.stderr)
    assert done.returncode == 0 and found is not None, done.stderr[-2_000:]
    return int(found[1])
