"""`mqtt_broker.testing`: the broker of other people's tests, and its mistakes."""

from __future__ import annotations

import asyncio
import gc
import socket
import threading
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from mqtt_broker.core.interfaces.access import Allow, ConnectRequest, OpenAccess, Refuse, Verdict
from mqtt_broker.in_process import Disconnected
from mqtt_broker.server.config.tables import ConfigError
from mqtt_broker.testing import Broker, ThreadedBroker
from sessions.session import Session
from tests.core.peers import connect
from tests.server.running import Raw


def answer(broker: Broker | ThreadedBroker, client_id: str) -> bytes:
    """CONNACK to a client of this name."""
    with socket.create_connection((broker.host, broker.port)) as sock:
        raw = Raw(sock)
        raw.send(connect(client_id))
        return raw.packet()


def test_two_brokers_have_nothing_to_do_with_each_other() -> None:
    with ThreadedBroker() as one, ThreadedBroker(receive_maximum=7) as two:
        assert one.port != two.port
        assert b"\x21\x00\x14" in answer(one, "c")
        assert b"\x21\x00\x07" in answer(two, "c")
    assert not [thread for thread in threading.enumerate() if thread.name == "fleetmq"]


def test_its_port_is_free_afterwards() -> None:
    with ThreadedBroker() as broker:
        port = broker.port
    with pytest.raises(OSError):
        socket.create_connection(("127.0.0.1", port)).close()


def test_stopping_it_early_is_no_mistake() -> None:
    with ThreadedBroker() as broker:
        broker.stop()


def test_an_unknown_setting_is_raised_where_it_is_written() -> None:
    with pytest.raises(ConfigError, match="no_such_setting"):
        ThreadedBroker(no_such_setting=1).start()
    with pytest.raises(ConfigError, match="no_such_setting"):
        Broker(no_such_setting=1)


def test_a_port_in_use() -> None:
    async def main(port: int) -> None:
        async with Broker(port=port):
            pass

    with ThreadedBroker() as broker, pytest.raises(ConfigError, match=str(broker.port)):
        asyncio.run(main(broker.port))


class _OnlyPumps(OpenAccess):
    def connect(self, request: ConnectRequest) -> Verdict:
        return Allow() if request.client_id.startswith("pump") else Refuse()


def test_an_access_of_your_own() -> None:
    with ThreadedBroker(access=_OnlyPumps()) as broker:
        assert answer(broker, "pump-1")[3] == 0
        assert answer(broker, "tank-1")[3] == 0x87


def test_on_the_running_loop() -> None:
    async def main() -> None:
        async with Broker() as broker:
            reader, writer = await asyncio.open_connection(broker.host, broker.port)
            writer.write(connect("c"))
            assert (await reader.readexactly(4))[3] == 0
            assert broker.server.broker.counters.connections == 1
            assert broker.url == f"mqtt://127.0.0.1:{broker.port}"
            writer.close()
            await writer.wait_closed()

    asyncio.run(main())


def test_who_waits_when_the_broker_stops_is_told() -> None:
    with ThreadedBroker() as broker, ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(broker.wait_for_messages, 1, timeout_s=60)
        while not waiting.running():
            pass
        broker.clear()  # it is on the loop behind what waits
        broker.stop()
        with pytest.raises(Disconnected):
            waiting.result()


def test_a_call_from_its_own_thread_is_refused() -> None:
    caught: list[BaseException] = []

    class Calls(OpenAccess):
        def connect(self, request: ConnectRequest) -> Verdict:
            try:
                broker.published()
            except RuntimeError as error:
                caught.append(error)
            return Allow()

    with ThreadedBroker(access=Calls()) as broker:
        assert answer(broker, "c")[3] == 0
    assert "own thread" in str(caught[0])


@pytest.mark.parametrize("options", [{}, {"http": "127.0.0.1:0"}])
def test_nothing_is_left_of_it(options: dict[str, Any]) -> None:
    """A program that runs a thousand of them needs the memory of one."""
    with ThreadedBroker(**options) as broker:
        with socket.create_connection((broker.host, broker.port)) as sock:
            raw = Raw(sock)
            raw.send(connect("left by nobody", expiry=100))
            assert raw.packet()
        if broker.http_url:
            with urllib.request.urlopen(broker.http_url + "/healthz") as page:
                assert page.status == 200
    del broker
    gc.collect()
    left = [found for found in gc.get_objects() if isinstance(found, Session)]
    assert "left by nobody" not in {session.client_id for session in left}
