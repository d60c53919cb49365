"""A broker's data directory with a stream of two partitions, and its HTTP server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from mqtt_broker.http_api import address_file
from tests.cli.fake_api import Ctl, FakeApi
from tests.cli.streams import TOKEN, Shell
from tests.http_api.brokers import LogBroker, Serving


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def broker(data_dir: Path) -> Iterator[LogBroker]:
    data_dir.mkdir()
    broker = LogBroker(data_dir / "streams")
    broker.create(2, filter="fleet/+/telemetry", retain_s=36_500 * 86_400, partition_by="level:2")
    yield broker
    broker.close()


@pytest.fixture
def http(broker: LogBroker, data_dir: Path) -> Iterator[Serving]:
    with Serving(broker, broker.root, TOKEN) as serving:
        address_file.write(data_dir, serving.url)
        yield serving
    assert serving.lines == []


@pytest.fixture
def shell(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Shell:
    monkeypatch.delenv("FLEETMQ_DATA_DIR", raising=False)
    monkeypatch.setenv("FLEETMQ_HTTP_TOKEN", TOKEN)
    return Shell(capsys)


@pytest.fixture
def api() -> Iterator[FakeApi]:
    """A server that answers as a broker's HTTP API."""
    with FakeApi() as found:
        yield found


@pytest.fixture
def ctl(api: FakeApi, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Ctl:
    """`fleetmq ctl`, for which that server is the broker."""
    monkeypatch.setenv("FLEETMQ_API", api.url)
    for name in ("FLEETMQ_HTTP_TOKEN", "FLEETMQ_DATA_DIR"):
        monkeypatch.delenv(name, raising=False)
    return Ctl(api, capsys)
