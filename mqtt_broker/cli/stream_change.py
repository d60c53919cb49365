"""`fleetmq stream create|change|truncate|delete|groups|reset`: asking the broker that runs.

Where its HTTP server is stands in `http.json` in its data directory, unless --api says it.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from mqtt_broker.cli.errors import DONE, Failure, UsageError
from mqtt_broker.cli.stream_read import FROM_HELP, add_token, whole
from mqtt_broker.cli.stream_text import count_text, plain, plural, print_json, table
from mqtt_broker.http_api import address_file
from mqtt_broker.streams.format.errors import Invalid
from mqtt_broker.streams.format.offsets import LATEST
from mqtt_broker.streams.format.stream_settings import StreamSettings, parse_bytes, parse_duration
from mqtt_broker.streams.remote.http_client import HttpClient, Rejected

_ROOT: Final = "/api/v1/streams"


def add_actions(actions: Any, data_dir: str) -> None:
    found = actions.add_parser("create", help="make a stream")
    found.add_argument("stream", metavar="STREAM")
    found.add_argument("--partitions", type=whole, metavar="N", help="which stay as many (1)")
    _add_settings(found)
    _add_api(found, data_dir)

    found = actions.add_parser("change", help="change what a stream is")
    found.add_argument("stream", metavar="STREAM")
    _add_settings(found)
    found.add_argument("--no-schema", action="store_true", help="without a schema from now on")
    _add_api(found, data_dir)

    found = actions.add_parser("truncate", help="remove messages in whole segments")
    found.add_argument("stream", metavar="STREAM")
    found.add_argument("--before", metavar="WHERE", default=LATEST, help=f"(all) or: {FROM_HELP}")
    _add_yes(found)
    _add_api(found, data_dir)

    found = actions.add_parser("delete", help="remove a stream and all in it")
    found.add_argument("stream", metavar="STREAM")
    _add_yes(found)
    _add_api(found, data_dir)

    found = actions.add_parser("groups", help="consumer groups: members, offsets, lag")
    found.add_argument("stream", metavar="STREAM")
    found.add_argument("--delete", metavar="GROUP", help="forget this one")
    found.add_argument("--json", action="store_true", help="for programs")
    _add_api(found, data_dir)

    found = actions.add_parser("reset", help="set where a consumer group goes on")
    found.add_argument("stream", metavar="STREAM")
    found.add_argument("group", metavar="GROUP")
    found.add_argument("--to", required=True, metavar="WHERE", help=FROM_HELP)
    _add_api(found, data_dir)


def _add_settings(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--filter", metavar="FILTER", help="what messages go there, as 'fleet/+/telemetry'")
    add("--partition-by", metavar="HOW", help="client, topic, level:N, property:NAME, round-robin")
    add("--retain", metavar="TIME", help="keep so long: 7d, 12h (0: for ever)")
    add("--max-bytes", metavar="SIZE", help="keep so much: 10GB (0: no limit)")
    add(
        "--compact",
        action=argparse.BooleanOptionalAction,
        help="keep the last message of each topic",
    )
    add("--tombstone", metavar="TIME", help="how long an empty payload is kept (1d)")
    add("--segment-bytes", metavar="SIZE", help="a file has so much (128MiB)")
    add("--segment-age", metavar="TIME", help="or is so old (1d)")
    add("--event-time", metavar="RULE", help="where a device's time is: json:$.at, property:at")
    add("--sent-time", metavar="RULE", help="where its time of sending is")
    add("--schema", metavar="FILE", help="a JSON Schema of the payloads")


def _add_yes(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--yes", action="store_true", help="do not ask")


def _add_api(parser: argparse.ArgumentParser, data_dir: str) -> None:
    parser.add_argument(
        "--api", metavar="URL", help="the broker's HTTP server (what its data directory says)"
    )
    parser.add_argument(
        "--data-dir", default=data_dir, metavar="DIR", help=f"of the broker ({data_dir})"
    )
    add_token(parser)


def _ask(args: argparse.Namespace, method: str, path: str, body: object = None) -> Any:
    url = args.api
    if url is None:
        try:
            url = address_file.read(Path(args.data_dir))
        except address_file.NoAddress as error:
            raise Failure(f"{error}; say --api URL or --data-dir DIR") from None
    with HttpClient(url, args.token, patience_s=0) as connection:
        try:
            return connection.json(connection.ask(method, path, body, tries_again=False))
        except Rejected as error:
            if error.status == 404:
                raise Failure(f"{url}: what answers there is no broker of ours") from None
            raise Failure(error.why) from None
        except Invalid as error:
            if error.what in ("url", "token"):  # said here, not over there
                raise
            raise Failure(str(error)) from None


def _one(args: argparse.Namespace, rest: str = "") -> str:
    StreamSettings(args.stream).checked()  # a name that is none is the command line's mistake
    return f"{_ROOT}/{quote(args.stream, safe='')}{rest}"


# create, change


def _settings(args: argparse.Namespace) -> dict[str, Any]:
    """What was said, as the API wants it."""
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
        raise UsageError(f"--schema: {name} is no JSON: {error}") from None
    if not isinstance(found, dict):
        raise UsageError(f"--schema: {name} is no JSON object")
    return found


def _create(args: argparse.Namespace) -> int:
    body = {"name": args.stream, **_settings(args)}
    if args.partitions is not None:
        body["partitions"] = args.partitions
    StreamSettings(**body).checked()
    made = _ask(args, "POST", _ROOT, body)
    partitions = plural(len(made["ends"]), "partition")
    print(f"made {args.stream}: {partitions}, epoch {made['epoch']}")
    return DONE


def _change(args: argparse.Namespace) -> int:
    changes = _settings(args)
    if args.no_schema:
        if args.schema is not None:
            raise UsageError("--schema and --no-schema: say one")
        changes["schema"] = None
    if not changes:
        raise UsageError("change: say what is to be changed")
    StreamSettings(args.stream, **changes).checked()
    _ask(args, "PATCH", _one(args), changes)
    print(f"changed {args.stream}: {', '.join(sorted(changes))}")
    return DONE


# truncate, delete


def _truncate(args: argparse.Namespace) -> int:
    path = _one(args, "/truncate")
    before = args.before.strip()
    _confirm(args, f"remove what is in {args.stream} before {before}")
    found = _ask(args, "POST", path, {"before": before})
    left = sum(end - found["starts"][key] for key, end in found["ends"].items())
    print(
        f"removed {plural(found['segments_removed'], 'segment')} of {args.stream};"
        f" {plural(left, 'message')} left"
    )
    return DONE


def _delete(args: argparse.Namespace) -> int:
    path = _one(args)
    _confirm(args, f"remove {args.stream} and all in it")
    _ask(args, "DELETE", path)
    print(f"deleted {args.stream}")
    return DONE


def _confirm(args: argparse.Namespace, what: str) -> None:
    """A person is asked; a script knows what it does."""
    if args.yes or not sys.stdin.isatty():
        return
    print(f"{what}? [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise Failure("nothing was changed")


# groups, reset


def _groups(args: argparse.Namespace) -> int:
    path = _one(args, "/groups")
    if args.delete is not None:
        _ask(args, "DELETE", f"{path}/{quote(args.delete, safe='')}")
        print(f"deleted group {plain(args.delete)}")
        return DONE
    groups = _ask(args, "GET", path)["groups"]
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
        rows += [(name, "-", "-", "-", f"{plain(member)} (waits)") for member in idle]
    print(*table(rows, right=(2, 3)), sep="\n")
    return DONE


def _reset(args: argparse.Namespace) -> int:
    path = _one(args, f"/groups/{quote(args.group, safe='')}/reset")
    found = _ask(args, "POST", path, {"to": args.to.strip()})
    offsets = ", ".join(f"{key} {count_text(n)}" for key, n in found["committed"].items())
    print(f"group {plain(args.group)} goes on at {offsets}")
    return DONE


ACTIONS: Final[dict[str, Callable[[argparse.Namespace], int]]] = {
    "create": _create,
    "change": _change,
    "truncate": _truncate,
    "delete": _delete,
    "groups": _groups,
    "reset": _reset,
}
