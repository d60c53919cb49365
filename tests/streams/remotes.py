"""What tests of reading over HTTP share."""

from __future__ import annotations

from typing import Any, Final

from mqtt_broker.streams.format.records import Record, records
from mqtt_broker.streams.read.reader import Reader
from mqtt_broker.streams.remote.remote_source import RemoteReader, RemoteSource
from tests.http_api.brokers import LogBroker, Serving
from tests.streams.logs import NAME, put_many

TOKEN: Final = "s3cret-token"
PATIENCE_S: Final = 120.0


def opened(http: Serving, **more: Any) -> RemoteSource:
    return RemoteSource(http.url, NAME, TOKEN, **{"patience_s": PATIENCE_S, **more})


def fill(broker: LogBroker, batches: int, **more: Any) -> list[bytes]:
    return broker.do(lambda: put_many(broker.writing, batches, **more))


def drain(reader: Reader | RemoteReader, bytes_max: int = 1 << 20) -> list[Record]:
    found: list[Record] = []
    while batches := reader.read(bytes_max):
        for batch in batches:
            found += records(batch)
    return found
