"""`/api/v1/streams`: show, create and change streams and consumer groups, as JSON.

Numbers come from the snapshot; changes go through `BrokerInterface`. Offsets given as a time,
earliest or latest are looked up in the files, without the broker.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Final, TypedDict

from mqtt_broker.http_api.request.bodies import check_keys, checked_settings
from mqtt_broker.http_api.request.broker_interface import StreamFigures
from mqtt_broker.http_api.request.json_types import Limits
from mqtt_broker.http_api.request.middleware import Site
from mqtt_broker.http_api.request.open_streams import partition_map
from mqtt_broker.http_api.request.operations import (
    Call,
    Operation,
    Reply,
    delete,
    get,
    patch,
    post,
)
from mqtt_broker.http_api.request.problems import bad_request
from mqtt_broker.streams.format import file_names
from mqtt_broker.streams.format import offsets as offset_texts
from mqtt_broker.streams.format.errors import Invalid, UnknownStream
from mqtt_broker.streams.format.figures import GroupFigures
from mqtt_broker.streams.format.offsets import EARLIEST, LATEST, Offsets
from mqtt_broker.streams.format.stream_settings import StreamSettings

ROOT: Final = "/api/v1/streams"


_Whole = Annotated[int, Limits(0)]
_Position = str | dict[str, int]


@dataclass(frozen=True, slots=True)
class NewStreamSettings:
    """Settings of a stream that may be changed; seconds and bytes, 0: no limit."""

    filter: Annotated[str, Limits(text="the Topic Filter of its messages")] = ""
    partition_by: str = "client"
    retain_s: _Whole = 0
    max_bytes: _Whole = 0
    compact: bool = False
    tombstone_s: _Whole = 86_400
    segment_bytes: _Whole = 134_217_728
    segment_s: _Whole = 86_400
    event_time: str = ""
    sent_time: str = ""
    schema: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class NewStream:
    """A stream to create."""

    name: Annotated[str, Limits(chars_min=1, chars_max=100)]
    partitions: Annotated[int, Limits(1, 256)] = 1
    filter: Annotated[str, Limits(text="the Topic Filter of its messages")] = ""
    partition_by: str = "client"
    retain_s: _Whole = 0
    max_bytes: _Whole = 0
    compact: bool = False
    tombstone_s: _Whole = 86_400
    segment_bytes: _Whole = 134_217_728
    segment_s: _Whole = 86_400
    event_time: str = ""
    sent_time: str = ""
    schema: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class TruncateRequest:
    """Where to truncate: `earliest`, `latest`, a time or offsets; by default all."""

    before: _Position | None = None


@dataclass(frozen=True, slots=True)
class ResetRequest:
    """Where to go on: `earliest`, `latest`, a time or offsets."""

    to: _Position


class StreamItem(TypedDict):
    """A stream."""

    name: str
    epoch: str
    settings: dict[str, Any]
    schema: dict[str, Any] | None
    starts: dict[str, int]
    ends: dict[str, int]
    bytes: int
    segments: int
    appended: int
    refused: int
    groups: list[str]


class TruncatedStream(StreamItem):
    """A stream after it was truncated."""

    segments_removed: int


class StreamList(TypedDict):
    """The streams."""

    streams: list[StreamItem]


class GroupItem(TypedDict):
    """A consumer group of a stream."""

    name: str
    members: dict[str, list[str]]
    committed: dict[str, int]
    lag: dict[str, int]


class GroupList(TypedDict):
    """The consumer groups of a stream."""

    groups: list[GroupItem]


class ResetGroup(TypedDict):
    """A consumer group after its offsets were set."""

    group: str
    committed: dict[str, int]


class Deleted(TypedDict):
    """The name of what was deleted."""

    deleted: str


def operations(site: Site) -> list[Operation]:
    """Return the operations of streams and groups."""
    api = _Api(site)
    one = ROOT + "/{name}"
    group = one + "/groups/{group}"
    gone = (404, 409, 500)
    return [
        get(ROOT, api.list),
        post(ROOT, api.create, status=201, body=NewStream, errors=(409, 500)),
        get(one, api.describe, etag=True),
        patch(one, api.change, etag=True, body=NewStreamSettings, errors=gone),
        delete(one, api.delete, errors=gone),
        post(one + "/truncate", api.truncate, body=TruncateRequest, errors=(*gone, 410, 416)),
        get(one + "/groups", api.groups, errors=gone),
        post(group + "/reset", api.reset, body=ResetRequest, errors=(*gone, 410, 416)),
        delete(group, api.delete_group, errors=gone),
    ]


class _Api:
    def __init__(self, site: Site) -> None:
        self._site = site
        self._broker = site.broker

    # Streams.

    async def list(self) -> StreamList:
        """List the streams."""
        snapshot = await self._site.ask(self._broker.snapshot)
        return {"streams": [stream_json(stream) for stream in snapshot.streams]}

    async def describe(self, name: str) -> StreamItem:
        """Describe a stream: settings, offsets, bytes."""
        return await self._described(name)

    async def create(self, body: dict[str, Any]) -> Reply[StreamItem]:
        """Create a stream."""
        found = checked_settings(body)
        if "name" not in found:
            raise Invalid("name", "it is missing")
        settings = StreamSettings(**found).checked().check_schema()
        await self._site.ask(self._broker.stream_create, settings)
        made = await self._described(settings.name)
        return Reply(made, headers={"Location": f"{ROOT}/{settings.name}"})

    async def change(self, name: str, body: dict[str, Any], call: Call) -> StreamItem:
        """Change settings of a stream."""
        file_names.check_stream(name)
        changes = checked_settings(body)
        if changes.pop("name", name) != name:
            raise Invalid("name", f"it is {name!r} and cannot be changed")
        if not changes:
            raise bad_request("the body holds no setting to change")
        if "If-Match" in call.request.headers:
            call.check_match(await self._described(name))
        await self._site.ask(self._broker.stream_change, name, changes)
        return await self._described(name)

    async def delete(self, name: str) -> Deleted:
        """Delete a stream and its records."""
        file_names.check_stream(name)
        await self._site.ask(self._broker.stream_delete, name)
        return {"deleted": name}

    async def truncate(self, name: str, body: dict[str, Any]) -> TruncatedStream:
        """Remove the records before an offset or a time."""
        file_names.check_stream(name)
        check_keys(body, ["before"])
        found = body.get("before")
        text = LATEST if found is None else _offsets_text(found, "before")
        before = None if text == LATEST else await self._before(name, text)
        removed = await self._site.ask(self._broker.stream_truncate, name, before)
        return {"segments_removed": removed, **await self._described(name)}

    async def _before(self, name: str, text: str) -> Offsets:
        """Return the offsets to truncate before; those of removed messages are allowed."""
        site = self._site
        if not text.startswith("{"):
            return await site.in_thread(site.streams().resolve, name, text)
        about = await site.in_thread(site.streams().about, name)
        return offset_texts.parse(text, name, about["epoch"], len(about["ends"]))

    async def _described(self, name: str) -> StreamItem:
        snapshot = await self._site.ask(self._broker.snapshot)
        for stream in snapshot.streams:
            if stream.settings.name == name:
                return stream_json(stream)
        raise UnknownStream(file_names.check_stream(name))

    # Consumer groups.

    async def groups(self, name: str) -> GroupList:
        """List the consumer groups of a stream."""
        file_names.check_stream(name)
        groups = await self._site.ask(self._broker.groups, name)
        return {"groups": [group_json(group) for group in groups]}

    async def reset(self, name: str, group: str, body: dict[str, Any]) -> ResetGroup:
        """Set the offsets of a consumer group."""
        file_names.check_stream(name)
        check_keys(body, ["to"])
        if "to" not in body:
            raise bad_request("to is missing: earliest, latest, a time or offsets")
        text = _offsets_text(body["to"], "to")
        offsets = await self._site.in_thread(self._site.streams().resolve, name, text)
        await self._site.ask(self._broker.group_reset, group, name, offsets)
        return {"group": group, "committed": partition_map(offsets.ends)}

    async def delete_group(self, name: str, group: str) -> Deleted:
        """Delete a consumer group."""
        file_names.check_stream(name)
        await self._site.ask(self._broker.group_delete, group, name)
        return {"deleted": group}


def _offsets_text(found: object, key: str) -> str:
    """Return a position as text: earliest, latest, a time, or offsets (text or an object)."""
    if isinstance(found, dict):
        return json.dumps(found)
    if isinstance(found, str) and found:
        return found.strip()
    raise bad_request(f"invalid {key}: expected {EARLIEST}, {LATEST}, an ISO 8601 time, or offsets")


def stream_json(stream: StreamFigures) -> StreamItem:
    """Return a stream as the API shows it."""
    settings = asdict(stream.settings)
    name, epoch, schema = settings.pop("name"), settings.pop("epoch"), settings.pop("schema")
    return {
        "name": name,
        "epoch": epoch,
        "settings": settings,
        "schema": schema,
        "starts": partition_map(stream.starts),
        "ends": partition_map(stream.ends),
        "bytes": stream.bytes,
        "segments": stream.segments,
        "appended": stream.appended,
        "refused": stream.refused,
        "groups": [group.name for group in stream.groups],
    }


def group_json(group: GroupFigures) -> GroupItem:
    """Return a consumer group as the API shows it."""
    return {
        "name": group.name,
        "members": {
            member: [f"p{number}" for number in partitions]
            for member, partitions in group.members.items()
        },
        "committed": partition_map(group.committed),
        "lag": partition_map(group.lag),
    }
