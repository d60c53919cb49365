"""Entry point of the `fleetmq` command.

It handles signals before it imports anything else: from its first line on they end the command with
one line and an exit code, and never in the middle of an import.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Sequence
from typing import Any, Final, cast

from mqtt_broker import interrupts

# Python's 700 searches for garbage dozens of times while modules are imported, of which all
# stays: a tenth of the time of a start.
GARBAGE_THRESHOLD: Final = 50_000


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command. Without `argv` it is the process's own, whose signals are handled then."""
    if argv is not None:
        return _run(list(argv))
    interrupts.handle("fleetmq")
    gc.set_threshold(GARBAGE_THRESHOLD)
    try:
        try:
            code: Any = _run(sys.argv[1:])
        except SystemExit as end:
            code = end.code
        code = _finish_output(code)
        interrupts.finish()
    except interrupts.Interrupted as stop:
        code = interrupts.exit_code(stop.number)
    return cast(int, code)


def _finish_output(code: Any) -> Any:
    """Write what is still to be printed, and return the exit code.

    Python would do so when it ends, and a full disk would be an exception that nobody handles.
    """
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError as error:
        from mqtt_broker.cli import errors

        if not code:
            return errors.cannot_print("fleetmq", error)
        errors.drop_output()  # the command has said what is wrong
    return code


def _run(arguments: list[str]) -> int:
    from mqtt_broker.cli.commands import run_command

    return run_command(arguments)
