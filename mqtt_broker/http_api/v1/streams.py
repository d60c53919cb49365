"""`/api/v1/streams`: show, create and change streams and consumer groups, as JSON.

Numbers come from the snapshot; changes go through `BrokerInterface`. Offsets given as a time,
earliest or latest are looked up in the files, without the broker.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any, Final

from aiohttp import web

from mqtt_broker.http_api.request.bodies import Query, check_keys, checked_settings, read_object
from mqtt_broker.http_api.request.broker_interface import StreamFigures
from mqtt_broker.http_api.request.middleware import Site, bad_request, json_answer
from mqtt_broker.http_api.request.open_streams import partition_map
from mqtt_broker.streams.format import file_names
from mqtt_broker.streams.format import offsets as offset_texts
from mqtt_broker.streams.format.errors import Invalid, UnknownStream
from mqtt_broker.streams.format.figures import GroupFigures
from mqtt_broker.streams.format.offsets import EARLIEST, LATEST, Offsets
from mqtt_broker.streams.format.stream_settings import StreamSettings

ROOT: Final = "/api/v1/streams"


def routes(site: Site) -> list[web.RouteDef]:
    """Return the routes of streams and groups."""
    api = _Api(site)
    one = ROOT + "/{name}"
    group = one + "/groups/{group}"
    return [
        web.get(ROOT, api.list),
        web.post(ROOT, api.create),
        web.get(one, api.describe),
        web.patch(one, api.change),
        web.delete(one, api.delete),
        web.post(one + "/truncate", api.truncate),
        web.get(one + "/groups", api.groups),
        web.post(group + "/reset", api.reset),
        web.delete(group, api.delete_group),
    ]


class _Api:
    def __init__(self, site: Site) -> None:
        self._site = site
        self._broker = site.broker

    # Streams.

    async def list(self, request: web.Request) -> web.Response:
        """List the streams."""
        Query(request)
        snapshot = await self._site.ask(self._broker.snapshot)
        return json_answer({"streams": [stream_json(stream) for stream in snapshot.streams]})

    async def describe(self, request: web.Request) -> web.Response:
        """Describe a stream: settings, offsets, bytes."""
        Query(request)
        return json_answer(await self._described(request.match_info["name"]))

    async def create(self, request: web.Request) -> web.Response:
        """Create a stream."""
        Query(request)
        found = checked_settings(await read_object(request, self._site.limits))
        if "name" not in found:
            raise Invalid("name", "it is missing")
        settings = StreamSettings(**found).checked().check_schema()
        await self._site.ask(self._broker.stream_create, settings)
        answer = json_answer(await self._described(settings.name), 201)
        answer.headers["Location"] = f"{ROOT}/{settings.name}"
        return answer

    async def change(self, request: web.Request) -> web.Response:
        """Change settings of a stream."""
        Query(request)
        name = file_names.check_stream(request.match_info["name"])
        changes = checked_settings(await read_object(request, self._site.limits))
        if changes.pop("name", name) != name:
            raise Invalid("name", f"it is {name!r} and cannot be changed")
        if not changes:
            raise bad_request("the body holds no setting to change")
        await self._site.ask(self._broker.stream_change, name, changes)
        return json_answer(await self._described(name))

    async def delete(self, request: web.Request) -> web.Response:
        """Delete a stream and its records."""
        Query(request)
        name = file_names.check_stream(request.match_info["name"])
        await self._site.ask(self._broker.stream_delete, name)
        return json_answer({"deleted": name})

    async def truncate(self, request: web.Request) -> web.Response:
        """Remove the records before an offset or a time."""
        Query(request)
        name = file_names.check_stream(request.match_info["name"])
        body = await read_object(request, self._site.limits)
        check_keys(body, ["before"])
        found = body.get("before")
        text = LATEST if found is None else _offsets_text(found, "before")
        before = None if text == LATEST else await self._before(name, text)
        removed = await self._site.ask(self._broker.stream_truncate, name, before)
        return json_answer({"segments_removed": removed, **await self._described(name)})

    async def _before(self, name: str, text: str) -> Offsets:
        """Return the offsets to truncate before; those of removed messages are allowed."""
        site = self._site
        if not text.startswith("{"):
            return await site.in_thread(site.streams().resolve, name, text)
        about = await site.in_thread(site.streams().about, name)
        return offset_texts.parse(text, name, about["epoch"], len(about["ends"]))

    async def _described(self, name: str) -> dict[str, Any]:
        snapshot = await self._site.ask(self._broker.snapshot)
        for stream in snapshot.streams:
            if stream.settings.name == name:
                return stream_json(stream)
        raise UnknownStream(file_names.check_stream(name))

    # Consumer groups.

    async def groups(self, request: web.Request) -> web.Response:
        """List the consumer groups of a stream."""
        Query(request)
        name = file_names.check_stream(request.match_info["name"])
        groups = await self._site.ask(self._broker.groups, name)
        return json_answer({"groups": [group_json(group) for group in groups]})

    async def reset(self, request: web.Request) -> web.Response:
        """Set the offsets of a consumer group."""
        Query(request)
        name = file_names.check_stream(request.match_info["name"])
        body = await read_object(request, self._site.limits)
        check_keys(body, ["to"])
        if "to" not in body:
            raise bad_request("to is missing: earliest, latest, a time or offsets")
        text = _offsets_text(body["to"], "to")
        offsets = await self._site.in_thread(self._site.streams().resolve, name, text)
        group = request.match_info["group"]
        await self._site.ask(self._broker.group_reset, group, name, offsets)
        return json_answer({"group": group, "committed": partition_map(offsets.ends)})

    async def delete_group(self, request: web.Request) -> web.Response:
        """Delete a consumer group."""
        Query(request)
        name = file_names.check_stream(request.match_info["name"])
        group = request.match_info["group"]
        await self._site.ask(self._broker.group_delete, group, name)
        return json_answer({"deleted": group})


def _offsets_text(found: object, key: str) -> str:
    """Return a position as text: earliest, latest, a time, or offsets (text or an object)."""
    if isinstance(found, dict):
        return json.dumps(found)
    if isinstance(found, str) and found:
        return found.strip()
    raise bad_request(f"invalid {key}: expected {EARLIEST}, {LATEST}, an ISO 8601 time, or offsets")


def stream_json(stream: StreamFigures) -> dict[str, Any]:
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


def group_json(group: GroupFigures) -> dict[str, Any]:
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
