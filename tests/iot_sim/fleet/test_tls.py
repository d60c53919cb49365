"""A fleet over TLS: in front of the broker stands a server that takes the TLS off."""

from __future__ import annotations

import asyncio
import shutil
import ssl
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from iot_sim.bench import run as bench
from iot_sim.bench.plan import PUBLISH, Plan
from iot_sim.judge.verdict import judge
from iot_sim.run import processes
from mqtt_broker.testing import ThreadedBroker
from tests.iot_sim.fleets import scenario_of
from tests.server.running import Running
from tests.server.transports import HOST, Files, endpoint

SCENARIO = """
duration_s = 3
[[fleets]]
name = "stubs"
model = "tests.iot_sim.stub_device:Stub"
count = 20
interval_s = 0.1
qos = 1
backoff_min_s = 0.05
backoff_max_s = 0.2
[[faults]]
kind = "link_loss"
share = 0.5
at_s = 2
for_s = 0.1
"""


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A key and a certificate that signs itself, in one file."""
    if shutil.which("openssl") is None:
        pytest.skip("needs openssl to make a certificate")
    folder = tmp_path_factory.mktemp("tls")
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2",
         "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1",
         "-keyout", folder / "key.pem", "-out", folder / "cert.pem"],
        check=True, capture_output=True,
    )  # fmt: skip
    both = folder / "both.pem"
    both.write_bytes((folder / "key.pem").read_bytes() + (folder / "cert.pem").read_bytes())
    return both


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()
    except OSError:
        return  # one side broke off, as the fault wants it
    finally:
        writer.close()


class Terminator:
    """Takes the TLS off, in a thread of its own."""

    def __init__(self, certificate: Path, broker_port: int) -> None:
        self._context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self._context.load_cert_chain(certificate)
        self._broker_port = broker_port
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)
        self._loop: asyncio.AbstractEventLoop
        self._stop: asyncio.Event
        self.port = 0

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        server = await asyncio.start_server(self._meet, "127.0.0.1", 0, ssl=self._context)
        async with server:
            self.port = server.sockets[0].getsockname()[1]
            self._ready.set()
            await self._stop.wait()

    async def _meet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there = await asyncio.open_connection("127.0.0.1", self._broker_port)
        await asyncio.gather(_copy(reader, there[1]), _copy(there[0], writer))

    def start(self) -> None:
        self._thread.start()
        assert self._ready.wait(60)

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(60)


@pytest.fixture
def port(certificate: Path) -> Iterator[int]:
    with ThreadedBroker() as broker:
        terminator = Terminator(certificate, broker.port)
        terminator.start()
        yield terminator.port
        terminator.stop()


def test_a_fleet_over_tls_passes(port: int, certificate: Path) -> None:
    scenario = scenario_of(SCENARIO)
    broker = processes.parse_broker(f"mqtts://localhost:{port}", ca_file=str(certificate))
    outcome = processes.run(scenario, broker)
    verdict = judge(outcome, scenario.limits)
    assert verdict.passed, f"{verdict.broken} {outcome.errors}"
    assert outcome.total("sent") == outcome.total("delivered") > 150
    assert outcome.counters["resumed"] == 10


def test_a_certificate_nobody_knows_is_refused_unless_told(port: int) -> None:
    scenario = scenario_of(SCENARIO)
    with pytest.raises(processes.SetupError, match="certificate verify failed"):
        processes.run(scenario, processes.parse_broker(f"mqtts://localhost:{port}"))
    broker = processes.parse_broker(f"mqtts://localhost:{port}", is_insecure=True)
    assert judge(processes.run(scenario, broker), scenario.limits).passed


def test_a_broker_that_wants_certificates_gets_the_one_that_is_given(tmp_path: Path) -> None:
    files = Files(tmp_path)
    cert, key = files.client("device", files.authority.issue("device"))
    with Running(endpoint(tls=files.mutual())) as running:
        url = f"mqtts://{HOST}:{running.port}"
        plan = Plan(PUBLISH, 2, connect_rate=1e6, topic="a", qos=1, interval_s=0.001, messages=1)
        broker = processes.parse_broker(url, ca_file=files.ca, cert_file=cert, key_file=key)
        assert bench.run(plan, broker, 1, lambda sample: None).total.acknowledged == 2
        broker = processes.parse_broker(url, ca_file=files.ca)
        assert bench.run(plan, broker, 1, lambda sample: None).total.connected == 0


@pytest.mark.parametrize(
    ("url", "cert", "key", "said"),
    [
        ("mqtt://a", "x", "", "--cert needs TLS: write mqtts:// or wss://"),
        ("mqtts://a", "", "x", "--key needs --cert"),
        ("mqtts://a", "none.pem", "k", "--cert none.pem, --key k: "),
    ],
)
def test_a_certificate_that_cannot_be_used_is_told(
    url: str, cert: str, key: str, said: str
) -> None:
    with pytest.raises(processes.SetupError, match=said):
        processes.parse_broker(url, cert_file=cert, key_file=key).target()


@pytest.mark.parametrize("url", ["mqtt://a", "ws://a"])
def test_options_of_tls_without_tls_are_told(url: str) -> None:
    with pytest.raises(processes.SetupError, match="--cafile needs TLS"):
        processes.parse_broker(url, ca_file="ca.pem")
    with pytest.raises(processes.SetupError, match="--insecure needs TLS"):
        processes.parse_broker(url, is_insecure=True)


def test_a_file_that_holds_no_certificates_is_told(tmp_path: Path) -> None:
    path = tmp_path / "ca.pem"
    path.write_text("nothing")
    broker = processes.parse_broker("mqtts://localhost:1", ca_file=str(path))
    with pytest.raises(processes.SetupError, match="--cafile"):
        broker.target()
