"""`fleetmq broker`: run the broker until SIGINT or SIGTERM."""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import signal
import sys
from collections.abc import Sequence
from functools import partial
from typing import Final

from mqtt_broker import interrupts
from mqtt_broker.cli.errors import FAILED, NO_DATABASE, WRONG_USAGE
from mqtt_broker.http_api.credentials import CredentialFiles
from mqtt_broker.http_api.http_server import HttpServerError
from mqtt_broker.http_api.service import HttpService
from mqtt_broker.server.config.config import (
    DATA_DIR,
    Config,
    DatabaseUnreachable,
    StartError,
    load,
)
from mqtt_broker.server.config.endpoints import Endpoint
from mqtt_broker.server.config.tables import ConfigError
from mqtt_broker.server.net.event_loop import TurnLoop
from mqtt_broker.server.net.listener import check_files
from mqtt_broker.server.process import log_output
from mqtt_broker.server.process.allocator import keep_large_buffers
from mqtt_broker.server.process.systemd import Notifier
from mqtt_broker.server.process.watchdog import Watchdog
from mqtt_broker.server.server import Server, check_telemetry
from mqtt_broker.server.services.extensions import load_strategy, partition_functions
from mqtt_broker.version import __version__

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]


# Options that are keys of the configuration.
OPTIONS: Final = (
    "host port unix_socket data_dir database_url durability recover allow_anonymous "
    "max_keepalive log_level http"
).split()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_config_arguments(parser)
    parser.add_argument("--check", action="store_true", help="check the configuration and exit")


def load_config(args: argparse.Namespace) -> Config:
    """Return the configuration of the file, the environment and the options; ConfigError."""
    return load(args.config, os.environ, {name: getattr(args, name) for name in OPTIONS})


def add_config_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config", metavar="F.toml", help="configuration file")
    parser.add_argument("--host", help="address to listen on (default 127.0.0.1)")
    parser.add_argument("--port", type=int, help="port to listen on (default 1883; 0: a free one)")
    parser.add_argument("--unix-socket", metavar="PATH", help="listen on a Unix socket")
    parser.add_argument(
        "--data-dir", metavar="DIR", help=f"directory of the broker's state (default ./{DATA_DIR})"
    )
    parser.add_argument(
        "--database-url",
        metavar="URL",
        help="keep the state in a database instead: postgresql+psycopg://user@host/name, sqlite:///file",
    )
    parser.add_argument(
        "--durability",
        help="what an acknowledgement promises: commit (the message is on disk or delivered; the "
        "default), relaxed (it is soon) or memory (nothing survives this process)",
    )
    parser.add_argument(
        "--recover",
        action="store_true",
        default=None,
        help="start from the readable part of damaged state; the damaged files are kept aside",
    )
    parser.add_argument(
        "--allow-anonymous",
        action="store_true",
        default=None,
        help="let clients in without a login on addresses that other machines can reach",
    )
    parser.add_argument(
        "--max-keepalive", type=int, metavar="S", help="longest keep alive that a client may have"
    )
    parser.add_argument(
        "--http",
        metavar="HOST:PORT",
        help="address of health, metrics and the API (default 127.0.0.1:8080), or off",
    )
    parser.add_argument("--log-level", help="debug, info, warning or error (default info)")


def run(args: argparse.Namespace) -> int:
    try:
        config = load_config(args)
        load_strategy(config.settings.shared_strategy)
        partition_functions(config)
        check_files(config.endpoints)
        if args.check:
            check_telemetry(config)
            if config.needs_store:
                # Imported here: SQL loads only when state is stored.
                from mqtt_broker.server.services.storage import check_store

                check_store(config)
            if config.security.is_on:
                # Imported here: hashing, keys and SQL load only when the configuration needs them.
                from mqtt_broker.server.services.security import check_access

                check_access(config.security)
            if config.http is not None:
                CredentialFiles(config)
            print(f"configuration ok: {', '.join(one.url for one in config.endpoints)}")
            return 0
        log_output.set_up(config.log_level, config.log_format)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until there is something to reload
        _raise_descriptor_limit()
        keep_large_buffers()
        # Before it serves, a signal ends it at once: files on disk survive that like a crash.
        with interrupts.leaving(), asyncio.Runner(loop_factory=TurnLoop) as runner:
            return 0 if runner.run(_serve(config)) else 1
    except ConfigError as error:
        print(f"fleetmq broker: {error}", file=sys.stderr)
        return WRONG_USAGE
    except StartError as error:
        print(f"fleetmq broker: {error}", file=sys.stderr)
        return NO_DATABASE if isinstance(error, DatabaseUnreachable) else FAILED


async def _serve(config: Config) -> bool:
    loop = asyncio.get_running_loop()
    http_service = HttpService(config)
    try:
        http_service.start()  # first: it says what the start is at
        server = Server(config, on_progress=http_service.say)
        server.keep_log()
        endpoints = server.start()
    except HttpServerError as error:
        raise ConfigError(str(error)) from None
    except BaseException:
        http_service.stop()
        raise
    dead_threads = server.storage.dead_threads if server.storage is not None else list
    watchdog = Watchdog(server.broker, loop, server.now, dead_threads)
    server.watchdog = watchdog
    http = http_service.serve(server)
    loop.add_signal_handler(signal.SIGHUP, server.reload.all)  # also wakes the loop by signals
    stop = asyncio.Event()
    with interrupts.asking(partial(_wake, loop, stop)):
        _announce(config, endpoints, http)
        watchdog.start()
        notifier = Notifier(loop, os.environ, lambda: watchdog.needs_restart)
        notifier.ready(f"listens on {', '.join(endpoint.url for endpoint in endpoints)}")
        await stop.wait()
        notifier.stopping()
        watchdog.stop()
        print("FleetMQ stops", flush=True)
        is_stored = await server.stop()
        http_service.stop()
    signal.set_wakeup_fd(-1)  # the loop's socket, which asyncio closes before it says so
    gc.freeze()  # the process ends: do not search millions of objects for cycles
    interrupts.finish()
    return is_stored


def _wake(loop: asyncio.AbstractEventLoop, stop: asyncio.Event) -> None:
    loop.call_soon_threadsafe(stop.set)


def _announce(config: Config, endpoints: Sequence[Endpoint], http: str) -> None:
    """Print where the broker listens, and settle what it has made for its start."""
    where = ", ".join(endpoint.url for endpoint in endpoints)
    kept = f"durability {config.durability}"
    if config.needs_store:
        kept += f", state in {config.store_name}"
    print(f"FleetMQ {__version__} listens on {where} ({kept})", flush=True)
    if http:
        print(f"HTTP at {http}", flush=True)
    # What exists now stays for good: freeze it, and let the collector run less often over the
    # many small objects of a busy broker, hardly any of which are ever in a cycle. The second
    # number bounds how many it looks at while everybody waits: 250,000.
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 4, 500)


def _raise_descriptor_limit() -> None:
    """Allow as many open files, and so connections, as the system permits."""
    if resource is not None:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft < hard:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
