"""One NATS server for the tests that ask nothing special of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.cluster.bus.nats_server import NatsServer, Unavailable
from tests.cluster.bus.nodes import Nodes

StartNats = Callable[..., NatsServer]


@pytest.fixture(scope="session")
def shared_nats(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer | str]:
    """A server, or why there is none."""
    try:
        with NatsServer(tmp_path_factory.mktemp("nats")) as server:
            yield server
    except Unavailable as error:
        yield str(error)


@pytest.fixture
def nats(shared_nats: NatsServer | str) -> NatsServer:
    """A server that others use, too: leave it running."""
    if isinstance(shared_nats, str):
        pytest.skip(f"no NATS: {shared_nats}")
    return shared_nats


@pytest.fixture
def start_nats(tmp_path: Path) -> Iterator[StartNats]:
    """Start a server with this configuration, for one test."""
    with ExitStack() as stack:

        def start(configuration: str = "") -> NatsServer:
            try:
                return stack.enter_context(NatsServer(tmp_path / "nats", configuration))
            except Unavailable as error:
                pytest.skip(f"no NATS: {error}")

        yield start


@pytest.fixture
def nodes() -> Iterator[Nodes]:
    with Nodes() as found:
        yield found
