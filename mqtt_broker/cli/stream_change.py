"""`fleetmq stream create|change|truncate|delete|groups|reset`: commands to a running broker.

The address of its HTTP server is in `http.json` in its data directory, unless --api gives it.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from mqtt_broker.cli.api_client import escaped
from mqtt_broker.cli.errors import DONE, Failure, UsageError
from mqtt_broker.cli.stream_read import FROM_HELP, add_token, whole_number
from mqtt_broker.cli.stream_text import count_text, plain, plural, print_json, table
from mqtt_broker.http_api import address_file
from mqtt_broker.streams.format.errors import Invalid
from mqtt_broker.streams.format.offsets import LATEST
from mqtt_broker.streams.format.stream_settings import StreamSettings, parse_bytes, parse_duration
from mqtt_broker.streams.remote.http_client import HttpClient, Rejected

_ROOT: Final = "/api/v1/streams"


def add_actions(actions: Any, data_dir: str) -> None:
    found = actions.add_parser("create", help="create a stream")
    found.add_argument("stream", metavar="STREAM", help="name of the stream")
    found.add_argument(
        "--partitions",
        type=whole_number,
        metavar="N",
        help="number of partitions, which cannot change later (1)",
    )
    _add_settings(found)
    _add_api(found, data_dir)

    found = actions.add_parser("change", help="change the settings of a stream")
    found.add_argument("stream", metavar="STREAM", help="name of the stream")
    _add_settings(found)
    found.add_argument("--no-schema", action="store_true", help="remove the schema")
    _add_api(found, data_dir)

    found = actions.add_parser("truncate", help="remove messages in whole segments")
    found.add_argument("stream", metavar="STREAM", help="name of the stream")
    found.add_argument(
        "--before", metavar="WHERE", default=LATEST, help=f"{FROM_HELP} (default: all)"
    )
    _add_yes(found)
    _add_api(found, data_dir)

    found = actions.add_parser("delete", help="delete a stream and its messages")
    found.add_argument("stream", metavar="STREAM", help="name of the stream")
    _add_yes(found)
    _add_api(found, data_dir)

    found = actions.add_parser("groups", help="list consumer groups with members, offsets and lag")
    found.add_argument("stream", metavar="STREAM", help="name of the stream")
    found.add_argument("--delete", metavar="GROUP", help="delete this group")
    found.add_argument("--json", action="store_true", help="print JSON")
    _add_api(found, data_dir)

    found = actions.add_parser("reset", help="set the offsets of a consumer group")
    found.add_argument("stream", metavar="STREAM", help="name of the stream")
    found.add_argument("group", metavar="GROUP", help="name of the group")
    found.add_argument("--to", required=True, metavar="WHERE", help=FROM_HELP)
    _add_api(found, data_dir)


def _add_settings(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--filter",
        metavar="FILTER",
        help="Topic Filter of the messages to store, such as 'fleet/+/telemetry'",
    )
    add(
        "--partition-by",
        metavar="HOW",
        help="partition key: client, topic, level:N, property:NAME, round-robin, or one of the "
        "broker's partition_functions",
    )
    add("--retain", metavar="TIME", help="how long messages are kept: 7d, 12h (0: for ever)")
    add("--max-bytes", metavar="SIZE", help="size limit of the stream: 10GB (0: none)")
    add(
        "--compact",
        action=argparse.BooleanOptionalAction,
        help="keep the last message of each topic",
    )
    add(
        "--tombstone", metavar="TIME", help="with --compact: how long an empty payload is kept (1d)"
    )
    add(
        "--segment-bytes",
        metavar="SIZE",
        help="size at which a new segment file begins at the latest (128MiB)",
    )
    add(
        "--segment-age",
        metavar="TIME",
        help="age at which a new segment file begins at the latest (1d)",
    )
    add(
        "--event-time",
        metavar="RULE",
        help="where the event time is in a message: json:$.at, property:at",
    )
    add("--sent-time", metavar="RULE", help="where the time of sending is in a message")
    add("--schema", metavar="FILE", help="file with the JSON Schema of the payloads")


def _add_yes(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--yes", action="store_true", help="do not ask; needed without a terminal")


def _add_api(parser: argparse.ArgumentParser, data_dir: str) -> None:
    parser.add_argument(
        "--api",
        metavar="URL",
        help="URL of the broker's HTTP server (default: as in its data directory)",
    )
    parser.add_argument(
        "--data-dir",
        default=data_dir,
        metavar="DIR",
        help=f"data directory of the broker ({data_dir})",
    )
    add_token(parser)


def _request(args: argparse.Namespace, method: str, path: str, body: object = None) -> Any:
    url = args.api
    if url is None:
        try:
            url = address_file.read(Path(args.data_dir))
        except address_file.NoAddress as error:
            raise Failure(f"{error}; give --api URL or --data-dir DIR") from None
    with HttpClient(url, args.token, patience_s=0) as connection:
        try:
            return connection.json(connection.ask(method, path, body, tries_again=False))
        except Rejected as error:
            if error.status == 404:
                raise Failure(f"{url} is not the HTTP server of a FleetMQ broker") from None
            raise Failure(error.why) from None
        except Invalid as error:
            if error.what in ("url", "token"):  # an option of ours is wrong, not the request
                raise
            raise Failure(str(error)) from None


def _stream_path(args: argparse.Namespace, rest: str = "") -> str:
    StreamSettings(args.stream).checked()  # a wrong name is a usage error
    return f"{_ROOT}/{escaped(args.stream)}{rest}"


# create, change


def _settings(args: argparse.Namespace) -> dict[str, Any]:
    """Return the settings that were given, as the API takes them."""
    found: dict[str, Any] = {}
    for key in ("filter", "partition_by", "event_time", "sent_time", "compact"):
        value = getattr(args, key)
        if value is not None:
            found[key] = value
    for key, option in (
        ("retain_s", "retain"), ("tombstone_s", "tombstone"), ("segment_s", "segment_age")
    ):  # fmt: skip
        text = getattr(args, option)
        if text is not None:
            found[key] = parse_duration(f"--{option.replace('_', '-')}", text)
    for key in ("max_bytes", "segment_bytes"):
        text = getattr(args, key)
        if text is not None:
            found[key] = parse_bytes(f"--{key.replace('_', '-')}", text)
    if args.schema is not None:
        found["schema"] = _schema(args.schema)
    return found


def _schema(name: str) -> dict[str, Any]:
    try:
        found = json.loads(Path(name).read_text())
    except OSError as error:
        raise UsageError(f"--schema: {name}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise UsageError(f"--schema: {name} is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise UsageError(f"--schema: {name} is not a JSON object")
    return found


def _create(args: argparse.Namespace) -> int:
    body = {"name": args.stream, **_settings(args)}
    if args.partitions is not None:
        body["partitions"] = args.partitions
    StreamSettings(**body).checked().check_schema()
    made = _request(args, "POST", _ROOT, body)
    partitions = plural(len(made["ends"]), "partition")
    print(f"created {args.stream}: {partitions}, epoch {made['epoch']}")
    if not args.filter:
        print(
            f"fleetmq stream: {args.stream} has no filter, so the broker stores no messages in it: "
            f"fleetmq stream change {args.stream} --filter 'TOPIC/#'",
            file=sys.stderr,
        )
    return DONE


def _change(args: argparse.Namespace) -> int:
    changes = _settings(args)
    if args.no_schema:
        if args.schema is not None:
            raise UsageError("--schema and --no-schema exclude each other")
        changes["schema"] = None
    if not changes:
        raise UsageError("change: give at least one setting")
    StreamSettings(args.stream, **changes).checked().check_schema()
    _request(args, "PATCH", _stream_path(args), changes)
    print(f"changed {args.stream}: {', '.join(sorted(changes))}")
    return DONE


# truncate, delete


def _truncate(args: argparse.Namespace) -> int:
    path = _stream_path(args, "/truncate")
    before = args.before.strip()
    _confirm(args, f"remove what is in {args.stream} before {before}")
    found = _request(args, "POST", path, {"before": before})
    left = sum(end - found["starts"][key] for key, end in found["ends"].items())
    print(
        f"removed {plural(found['segments_removed'], 'segment')} of {args.stream};"
        f" {plural(left, 'message')} left"
    )
    return DONE


def _delete(args: argparse.Namespace) -> int:
    path = _stream_path(args)
    _confirm(args, f"remove {args.stream} and all in it")
    _request(args, "DELETE", path)
    print(f"deleted {args.stream}")
    return DONE


def _confirm(args: argparse.Namespace, what: str) -> None:
    """Ask a person at a terminal; a script has to say --yes."""
    if args.yes:
        return
    if not sys.stdin.isatty():
        raise UsageError(f"{args.action}: nobody can be asked here: give --yes to {what}")
    print(f"{what}? [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise Failure("nothing was changed")


# groups, reset


def _groups(args: argparse.Namespace) -> int:
    path = _stream_path(args, "/groups")
    if args.delete is not None:
        _request(args, "DELETE", f"{path}/{escaped(args.delete)}")
        print(f"deleted group {plain(args.delete)}")
        return DONE
    groups = _request(args, "GET", path)["groups"]
    if args.json:
        print_json(groups)
        return DONE
    if not groups:
        print(f"no groups on {args.stream}", file=sys.stderr)
        return DONE
    rows = [("GROUP", "PARTITION", "COMMITTED", "LAG", "MEMBER")]
    for group in groups:
        holders = {
            partition: member
            for member, partitions in group["members"].items()
            for partition in partitions
        }
        name = plain(group["name"])
        for partition, committed in group["committed"].items():
            lag = group["lag"].get(partition, 0)
            rows.append(
                (
                    name,
                    partition,
                    count_text(committed),
                    count_text(lag),
                    plain(holders.get(partition, "-")),
                )
            )
        idle = sorted(member for member, held in group["members"].items() if not held)
        rows += [(name, "-", "-", "-", f"{plain(member)} (idle)") for member in idle]
    print(*table(rows, right=(2, 3)), sep="\n")
    return DONE


def _reset(args: argparse.Namespace) -> int:
    path = _stream_path(args, f"/groups/{escaped(args.group)}/reset")
    found = _request(args, "POST", path, {"to": args.to.strip()})
    offsets = ", ".join(f"{key} {count_text(n)}" for key, n in found["committed"].items())
    print(f"group {plain(args.group)} continues at {offsets}")
    return DONE


ACTIONS: Final[dict[str, Callable[[argparse.Namespace], int]]] = {
    "create": _create,
    "change": _change,
    "truncate": _truncate,
    "delete": _delete,
    "groups": _groups,
    "reset": _reset,
}
