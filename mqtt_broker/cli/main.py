"""Entry point: imports the subcommand that was given, and turns errors into exit codes."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from typing import Final, NamedTuple, NoReturn

from mqtt_broker.cli.errors import FAILED, INTERRUPTED, TIMED_OUT, WRONG_USAGE, Failure, UsageError
from mqtt_broker.client.errors import ClientError, TimedOut
from mqtt_broker.version import __version__


class Command(NamedTuple):
    module: str
    summary: str
    # `pub` and `sub` keep -h for the host, as mosquitto's clients do.
    help_flags: tuple[str, ...] = ("-h", "--help")


COMMANDS: Final = {
    "broker": Command("mqtt_broker.cli.broker", "run a broker"),
    "pub": Command("mqtt_broker.cli.pub", "publish messages", ("--help",)),
    "sub": Command("mqtt_broker.cli.sub", "subscribe and print messages", ("--help",)),
    "sim": Command(
        "mqtt_broker.cli.sim", "load a broker with simulated devices and judge the result"
    ),
    "spark": Command("mqtt_broker.cli.spark", "run Spark jobs on the telemetry log"),
    "stream": Command("mqtt_broker.cli.stream", "show and change streams"),
    "demo": Command(
        "mqtt_broker.cli.demo",
        "run broker, devices and Spark jobs for a minute, and check the counts",
    ),
    "passwd": Command("mqtt_broker.cli.passwd", "add, change and remove users"),
    "ctl": Command("mqtt_broker.cli.ctl", "maintain the state, rules and bans of a broker"),
}


class Parser(argparse.ArgumentParser):
    """Argument parser that prints an error as one line, without the usage."""

    def error(self, message: str) -> NoReturn:
        hint = f" (see {self.prog} --help)"
        self.exit(WRONG_USAGE, f"{self.prog}: {message}{hint}\n")


def main(argv: Sequence[str] | None = None) -> int:
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments or arguments[0] not in COMMANDS:
        return _without_command(arguments)
    parser = parser_of(arguments[0])
    args = parser.parse_args(arguments[1:])
    try:
        code: int = importlib.import_module(COMMANDS[arguments[0]].module).run(args)
    except UsageError as error:
        parser.error(str(error))
    except Failure as failure:
        print(f"{parser.prog}: {failure}", file=sys.stderr)
        return failure.code
    except ClientError as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return TIMED_OUT if isinstance(error, TimedOut) else FAILED
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:  # the reader has closed the pipe, as `| head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    return code


def parser_of(name: str) -> Parser:
    """Return the parser of a subcommand's arguments."""
    command = COMMANDS[name]
    parser = Parser(
        prog=f"fleetmq {name}", description=f"{command.summary.capitalize()}.", add_help=False
    )
    parser.add_argument(*command.help_flags, action="help", help="show this help and exit")
    importlib.import_module(command.module).add_arguments(parser)
    return parser


def _without_command(arguments: list[str]) -> int:
    """Handle `fleetmq`, `--help`, `--version`, and a subcommand that does not exist."""
    width = max(map(len, COMMANDS))
    parser = Parser(
        prog="fleetmq",
        description="An MQTT 5 broker for IoT fleets.",
        epilog="commands:\n"
        + "\n".join(f"  {name:{width}}  {command.summary}" for name, command in COMMANDS.items())
        + "\n\nUse fleetmq COMMAND --help for its options.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        usage="%(prog)s [-h] [--version] COMMAND ...",
    )
    parser.add_argument("--version", action="version", version=f"fleetmq {__version__}")
    parser.add_argument("command", help=argparse.SUPPRESS)
    args, _ = parser.parse_known_args(arguments)
    parser.error(f"no command {args.command!r}: there are {', '.join(COMMANDS)}")
