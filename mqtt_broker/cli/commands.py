"""Import the subcommand that was given, and turn its errors into exit codes."""

from __future__ import annotations

import argparse
import difflib
import importlib
import signal
import sys
from typing import Any, Final, NamedTuple, NoReturn

from mqtt_broker import interrupts
from mqtt_broker.cli.errors import (
    DONE,
    FAILED,
    INTERRUPTED,
    OUTPUT_ERRORS,
    TIMED_OUT,
    WRONG_USAGE,
    Failure,
    UsageError,
    cannot_print,
)
from mqtt_broker.client.errors import ClientError, TimedOut
from mqtt_broker.version import __version__, build_kind


class Command(NamedTuple):
    module: str
    summary: str
    # `pub`, `sub` and `rr` keep -h for the host, as mosquitto's clients do.
    help_flags: tuple[str, ...] = ("-h", "--help")


COMMANDS: Final = {
    "broker": Command("mqtt_broker.cli.broker", "run a broker"),
    "pub": Command("mqtt_broker.cli.pub", "publish messages", ("--help",)),
    "sub": Command("mqtt_broker.cli.sub", "subscribe and print messages", ("--help",)),
    "rr": Command("mqtt_broker.cli.rr", "publish a request and print the response", ("--help",)),
    "sim": Command(
        "mqtt_broker.cli.sim", "load a broker with simulated devices and judge the result"
    ),
    "bench": Command(
        "mqtt_broker.cli.bench", "load a broker with connections, publishers or subscribers"
    ),
    "spark": Command("mqtt_broker.cli.spark", "run Spark jobs on the telemetry log"),
    "stream": Command("mqtt_broker.cli.stream", "show and change streams"),
    "demo": Command(
        "mqtt_broker.cli.demo",
        "run broker, devices and Spark jobs for a minute, and check the counts",
    ),
    "passwd": Command("mqtt_broker.cli.passwd", "add, change and remove users"),
    "ctl": Command(
        "mqtt_broker.cli.ctl", "see and change a running broker, and maintain its state"
    ),
    "config": Command(
        "mqtt_broker.cli.config", "print a commented configuration file, or what is in force"
    ),
    "completion": Command(
        "mqtt_broker.cli.completion", "print a completion script for bash or zsh"
    ),
    "migrate": Command(
        "mqtt_broker.cli.migrate", "write a configuration from the files of mosquitto"
    ),
}


_HELP: Final = "show this help and exit"

# Packages that only some commands need, and the extra of the distribution that brings them.
_EXTRAS: Final = {
    "cbor2": "spark",
    "google": "spark",
    "jsonschema_rs": "schemas",
    "locust": "sim",
    "paho": "sim",
    "pandas": "spark",
    "psycopg": "postgres",
    "pyarrow": "spark",
    "pyspark": "spark",
}


def sentence(summary: str) -> str:
    """Return a summary as a sentence; names keep their capitals."""
    return f"{summary[0].upper()}{summary[1:]}."


class _Actions(argparse._SubParsersAction):  # type: ignore[type-arg]
    """Actions of a command, whose help begins with the summary by which they are listed."""

    def add_parser(self, name: str, **options: Any) -> Any:
        options.setdefault("description", sentence(options["help"]))
        return super().add_parser(name, **options)


class Parser(argparse.ArgumentParser):
    """Argument parser that prints an error as one line, without the usage.

    Options are written in full: an abbreviation would change its meaning with the next option.
    """

    def __init__(self, *, add_help: bool = True, **options: Any) -> None:
        super().__init__(allow_abbrev=False, add_help=False, **options)
        if add_help:
            self.add_argument("-h", "--help", action="help", help=_HELP)
        self.register("action", "parsers", _Actions)
        self.register("type", int, _whole_number)  # argparse would say "invalid int value"
        self.register("type", float, _number)

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse the arguments; an unknown one is an error that suggests the nearest option."""
        found, unknown = self.parse_known_args(args, namespace)
        if unknown:
            self.error(
                f"unrecognized arguments: {' '.join(unknown)}{self._nearest(unknown, found)}"
            )
        return found

    def _nearest(self, unknown: list[str], found: argparse.Namespace) -> str:
        option = next((one.partition("=")[0] for one in unknown if one.startswith("--")), "")
        near = difflib.get_close_matches(option, self._options(found), 1)
        return f"; did you mean {near[0]}?" if near else ""

    def _options(self, found: argparse.Namespace) -> list[str]:
        """Return the long options of this command, and of the action that was given."""
        names = [name for action in self._actions for name in action.option_strings]
        chosen = self._chosen(found)
        return [*names, *(chosen._options(found) if chosen else [])]

    def _chosen(self, found: argparse.Namespace) -> Parser | None:
        """Return the parser of the action that was given."""
        for action in self._actions:
            if isinstance(action, _Actions):
                return action.choices.get(str(getattr(found, action.dest, None)))
        return None

    def refuse(self, found: argparse.Namespace, message: str) -> NoReturn:
        """End with an error of arguments that were parsed, of the action that has them."""
        chosen = self._chosen(found)
        if chosen is not None:
            chosen.refuse(found, message)
        self.error(message)

    def actions(self) -> list[argparse.Action]:
        """Return the options and arguments; subcommands have parsers as choices."""
        return self._actions

    def error(self, message: str) -> NoReturn:
        hint = f" (see {self.prog} --help)"
        self.exit(WRONG_USAGE, f"{self.prog}: {message}{hint}\n")


def _whole_number(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number") from None


def run_command(arguments: list[str]) -> int:
    """Run a subcommand; return its exit code."""
    if not arguments or arguments[0] not in COMMANDS:
        return _without_command(arguments)
    try:
        return _run(arguments)
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in _EXTRAS:
            raise
        extra = arguments[0] if arguments[0] in _EXTRAS.values() else _EXTRAS[package]
        print(
            f"fleetmq {arguments[0]}: there is no Python package {package}: "
            f"pip install 'fleetmq[{extra}]'",
            file=sys.stderr,
        )
        return WRONG_USAGE


def _run(arguments: list[str]) -> int:
    parser = parser_of(arguments[0])
    interrupts.rename(parser.prog)
    args = parser.parse_args(arguments[1:])
    run = importlib.import_module(COMMANDS[arguments[0]].module).run
    try:
        with interrupts.raising():
            code: int = run(args)
    except KeyboardInterrupt:
        interrupts.notice(signal.SIGINT)
        return interrupts.exit_code(interrupts.asked()) if interrupts.asked() else INTERRUPTED
    except Exception as error:
        if interrupts.has_raised():
            return interrupts.exit_code(interrupts.asked())
        return _failed(parser, args, error)
    return code


def _failed(parser: Parser, args: argparse.Namespace, error: Exception) -> int:
    """Print an error as one line, if it is one of those that commands raise."""
    match error:
        case UsageError():
            parser.refuse(args, str(error))
        case Failure():
            _say(args, f"{parser.prog}: {error}")
            return error.code
        case ClientError():
            _say(args, f"{parser.prog}: {error}")
            return TIMED_OUT if isinstance(error, TimedOut) else FAILED
        case OSError() if error.errno in OUTPUT_ERRORS and error.filename is None:
            return cannot_print(parser.prog, error)
    raise error


def _say(args: argparse.Namespace, text: str) -> None:
    if not getattr(args, "quiet", False):  # an option of the client's commands
        print(text, file=sys.stderr)


def parser_of(name: str) -> Parser:
    """Return the parser of a subcommand's arguments."""
    command = COMMANDS[name]
    parser = Parser(
        prog=f"fleetmq {name}",
        description=sentence(command.summary),
        add_help=False,
    )
    parser.add_argument(*command.help_flags, action="help", help=_HELP)
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
    parser.add_argument(
        "--version", action="version", version=f"fleetmq {__version__} ({build_kind()})"
    )
    if not arguments:
        parser.print_help()
        return DONE
    parser.add_argument("command", help=argparse.SUPPRESS)
    args, _ = parser.parse_known_args(arguments)
    return parser.error(f"no command {args.command!r}: there are {', '.join(COMMANDS)}")
