"""`fleetmq config`: print a commented configuration file, or what is in force.

    fleetmq config > fleet.toml
    fleetmq config --show --config fleet.toml

`--show` takes the options of `fleetmq broker`. Each value is printed with its source: the file
and line, the variable, the option, or `default`. Passwords and tokens are not printed.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from typing import Any

from mqtt_broker.cli.broker import OPTIONS, add_config_arguments, load_config
from mqtt_broker.cli.errors import DONE, UsageError
from mqtt_broker.server.config.config import Config
from mqtt_broker.server.config.in_force import tables_in_force, values_in_force
from mqtt_broker.server.config.tables import ConfigError, read_toml
from mqtt_broker.server.config.template import template, toml_value


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--show",
        action="store_true",
        help="print what is in force, and where each value comes from",
    )
    add_config_arguments(parser)


def run(args: argparse.Namespace) -> int:
    if not args.show:
        for name in ("config", *OPTIONS):
            if getattr(args, name) is not None:
                raise UsageError(f"--{name.replace('_', '-')} needs --show")
        print(template(), end="")
        return DONE
    try:
        config = load_config(args)
        tables = read_toml(args.config) if args.config is not None else {}
    except ConfigError as error:
        raise UsageError(str(error)) from None
    for line in (*_keys(config), *_tables(tables)):
        print(line)
    return DONE


def _keys(config: Config) -> Iterator[str]:
    """Yield the keys at the top, with their sources."""
    for one in values_in_force(config):
        yield _line(one.key, one.value, one.origin)


def _line(key: str, value: Any, origin: str) -> str:
    return f"{key} = {toml_value(value)}  # {origin}"


def _tables(tables: Mapping[str, Any]) -> Iterator[str]:
    """Yield the tables of the file."""
    for table in tables_in_force(tables):
        yield ""
        yield f"{table.header}  # {table.place}"
        for key, (value, place) in table.values.items():
            yield _line(key, value, place)
