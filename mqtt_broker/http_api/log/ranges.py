"""`/streams/...`: the log for readers on other machines.

A range is a run of whole batches, sent from the file by the kernel without passing through Python.
A reader that has reached the end may wait for more. While at least one reader of a stream waits,
one task reads a small file 40 times a second to see whether the stream has grown.
"""

from __future__ import annotations

import asyncio
from typing import Final

from aiohttp import web

from mqtt_broker.http_api.request.bodies import Query
from mqtt_broker.http_api.request.middleware import CALLER, Site, json_answer
from mqtt_broker.http_api.request.open_streams import Answer, OpenStreams, Piece
from mqtt_broker.http_api.request.operations import Operation, get
from mqtt_broker.http_api.request.problems import unauthorized
from mqtt_broker.streams.format.batch import NEVER
from mqtt_broker.streams.format.errors import EndBeforeStart
from mqtt_broker.streams.format.offsets import LATEST
from mqtt_broker.streams.remote import http_protocol

ROOT: Final = "/streams"
_LOOK_S: Final = 0.025
_TYPE: Final = "application/vnd.fleetmq.batches"


def operations(site: Site) -> list[Operation]:
    """Return the operations of the log."""
    ranges = _Ranges(site)
    one = ROOT + "/{name}"
    return [
        get(ROOT, ranges.list),
        get(one, ranges.about),
        get(one + "/describe", ranges.describe),
        get(one + "/offsets", ranges.offsets),
        get(one + "/{partition:p[0-9]+}", ranges.range, media_type=_TYPE),
    ]


class _Ranges:
    def __init__(self, site: Site) -> None:
        self._site = site
        self._ends: dict[tuple[str, str], _Ends] = {}
        self._describing = asyncio.Lock()  # one at a time: a lookup may scan a whole segment

    async def list(self, request: web.Request) -> web.Response:
        """List the names of the streams."""
        Query(request)
        streams = self._site.streams()
        return json_answer({"streams": await self._site.in_thread(streams.names)})

    async def about(self, request: web.Request) -> web.Response:
        """Describe a stream to a reader: epoch, settings, partitions."""
        query = Query(request, "epoch")
        streams, name = self._site.streams(), request.match_info["name"]
        return json_answer(await self._site.in_thread(streams.about, name, query.text("epoch")))

    async def describe(self, request: web.Request) -> web.Response:
        """Describe the files of a stream."""
        query = Query(request, "epoch")
        streams, name = self._site.streams(), request.match_info["name"]
        async with self._describing:
            found = await self._site.in_thread(streams.describe, name, query.text("epoch"))
        return json_answer(found)

    async def offsets(self, request: web.Request) -> web.Response:
        """Return the offsets for a time, earliest or latest."""
        query = Query(request, "at", "epoch")
        streams, name = self._site.streams(), request.match_info["name"]
        found = await self._site.in_thread(
            streams.resolve, name, query.text("at", LATEST), query.text("epoch")
        )
        return web.Response(text=found.text() + "\n", content_type="application/json")

    async def range(self, request: web.Request) -> web.StreamResponse:
        """Send batches of a partition, starting with the one that holds an offset."""
        query = Query(request, "offset", "until", "max_bytes", "wait_s", "epoch")
        offset = query.whole("offset")
        until = query.whole("until", NEVER)
        bytes_max = min(
            max(1, query.whole("max_bytes", http_protocol.BYTES)), http_protocol.BYTES_MAX
        )
        wait_s = query.seconds("wait_s", http_protocol.WAIT_S_MAX)
        epoch = query.text("epoch")
        name, partition = request.match_info["name"], request.match_info["partition"]
        if until < offset:
            raise EndBeforeStart(name, int(partition[1:10]), offset, until)
        streams = self._site.streams()

        async def look(epoch: str) -> Answer:
            return await self._site.in_thread(
                streams.extent, name, partition, offset, until, bytes_max, epoch
            )

        answer = await look(epoch)
        if answer.piece is None and wait_s and offset < until:
            if await self._wait_for(streams, name, answer, offset, wait_s):
                answer = await look(answer.epoch)
        if answer.piece is None:
            return web.Response(status=204, headers=_headers(answer, offset))
        with answer.piece.file:
            if not self._site.access.still_allows(request[CALLER]):
                raise unauthorized()  # the token was withdrawn while the reader waited
            return await self._send(request, answer, answer.piece)

    async def _wait_for(
        self, streams: OpenStreams, name: str, answer: Answer, offset: int, wait_s: float
    ) -> bool:
        """Wait until there is a message at this offset. Return False after the timeout."""
        key = (name, answer.epoch)
        ends = self._ends.get(key)
        if ends is None or ends.is_over:
            ends = self._ends[key] = _Ends(self._site, streams, *key)
        try:
            return await ends.wait(answer.partition, offset, wait_s)
        finally:
            if not ends.waiting:
                ends.stop()
                if self._ends.get(key) is ends:
                    del self._ends[key]

    async def _send(self, request: web.Request, answer: Answer, piece: Piece) -> web.StreamResponse:
        headers = _headers(answer, piece.end)
        headers |= {
            "Content-Type": _TYPE,
            http_protocol.BASE: str(piece.base),
            http_protocol.START: str(piece.start),
            http_protocol.SEGMENT: piece.segment,
            http_protocol.POSITION: str(piece.position),
        }
        response = web.StreamResponse(headers=headers)
        response.content_length = piece.length
        await response.prepare(request)
        transport = request.transport
        if request.method == "HEAD" or transport is None:
            return response
        limits = self._site.limits
        loop = asyncio.get_running_loop()
        sent = 0
        try:
            async with asyncio.timeout(limits.send_s + piece.length / limits.send_bytes_per_s_min):
                sent = await loop.sendfile(transport, piece.file, piece.position, piece.length)
        except (TimeoutError, OSError, RuntimeError):
            pass  # a slow or closed client, or a disk error: the answer is cut short
        finally:
            if sent < piece.length:
                transport.abort()
        return response


def _headers(answer: Answer, end: int) -> dict[str, str]:
    return {
        http_protocol.EPOCH: answer.epoch,
        http_protocol.END: str(end),
        http_protocol.EARLIEST: str(answer.earliest),
        http_protocol.LATEST: str(answer.latest),
    }


class _Ends:
    """The readers that wait for a stream to grow, and the task that polls it for them."""

    def __init__(self, site: Site, streams: OpenStreams, name: str, epoch: str) -> None:
        self._site = site
        self._streams = streams
        self._name = name
        self._epoch = epoch
        self.waiting: dict[asyncio.Future[None], tuple[int, int]] = {}  # partition, offset
        self.is_over = False  # the task has ended
        self._task = asyncio.create_task(self._look())

    async def wait(self, partition: int, offset: int, wait_s: float) -> bool:
        moved = asyncio.get_running_loop().create_future()
        self.waiting[moved] = partition, offset
        try:
            async with asyncio.timeout(wait_s):
                await moved
        except TimeoutError:
            return False
        finally:
            self.waiting.pop(moved, None)
        return True

    def stop(self) -> None:
        self._task.cancel()

    async def _look(self) -> None:
        try:
            while True:
                await asyncio.sleep(_LOOK_S)
                ends = await self._site.in_thread(self._streams.ends, self._name, self._epoch)
                for moved, (partition, offset) in self.waiting.items():
                    if ends[partition] > offset and not moved.done():
                        moved.set_result(None)
        except Exception as error:  # the stream is gone, or a disk error: raised to the readers
            self.is_over = True
            for moved in self.waiting:
                if not moved.done():
                    moved.set_exception(error)
