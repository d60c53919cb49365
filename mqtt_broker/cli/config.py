"""`fleetmq config`: print a commented configuration file, or what is in force.

    fleetmq config > fleet.toml
    fleetmq config --show --config fleet.toml

`--show` takes the options of `fleetmq broker`. Each value is printed with its source: the file
and line, the variable, the option, or `default`. Passwords and tokens are not printed.
"""

from __future__ import annotations

import argparse
import dataclasses
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from mqtt_broker.cli.broker import OPTIONS, add_config_arguments, load_config
from mqtt_broker.cli.errors import DONE, UsageError
from mqtt_broker.server.config.config import Config
from mqtt_broker.server.config.located import LocatedTable
from mqtt_broker.server.config.tables import SECRETS, ConfigError, read_toml
from mqtt_broker.server.config.template import OWN, template, toml_value

_DEFAULT: Final = "default"
_PASSWORD: Final = re.compile(r"(://[^:/@]*):[^@]*@")


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
    has_listeners = not {"host", "port"} & config.origins.keys() and any(
        one.place for one in config.endpoints
    )
    for key, (default, _) in OWN.items():
        origin = config.origins.get(key, _DEFAULT)
        if key in ("host", "port") and has_listeners:
            origin += ", not used: there are other listeners"
        yield _line(key, _own(config, key, default), origin)
    for field in dataclasses.fields(config.settings):
        value = getattr(config.settings, field.name)
        yield _line(field.name, value, config.origins.get(field.name, _DEFAULT))


def _own(config: Config, key: str, default: Any) -> Any:
    """Return the value of a key that is not of the settings."""
    first = config.endpoints[0]
    match key:
        case "host" | "port":
            return getattr(first, key) if key in config.origins else default
        case "unix_socket":
            return config.endpoints[-1].path if key in config.origins else default
        case "http":
            return str(config.http) if config.http is not None else "off"
    return getattr(config, key)


def _line(key: str, value: Any, origin: str) -> str:
    return f"{key} = {toml_value(_open(key, value))}  # {origin}"


def _open(key: str, value: Any) -> Any:
    """Return a value as it may be shown: without a password or a token."""
    if key in SECRETS and isinstance(value, str) and value:
        return _PASSWORD.sub(r"\1:***@", value.partition("?")[0]) if "://" in value else "***"
    if isinstance(value, dict):
        return {name: _open(name, one) for name, one in value.items()}
    return value


def _tables(tables: Mapping[str, Any]) -> Iterator[str]:
    """Yield the tables of the file."""
    for key, found in tables.items():
        if isinstance(found, LocatedTable):
            yield from _table(f"[{key}]", found)
        elif isinstance(found, list):
            for row in found:
                if isinstance(row, LocatedTable):
                    yield from _table(f"[[{key}]]", row)


def _table(header: str, table: LocatedTable) -> Iterator[str]:
    yield ""
    yield f"{header}  # {table.file}:{table.line}"
    for key, value in table.items():
        yield _line(key, value, f"{table.file}:{table.lines.get(key, table.line)}")
