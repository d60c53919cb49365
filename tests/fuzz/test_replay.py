"""The fuzz targets without a fuzzer: what was found before, and some thousand new inputs."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fuzz import exchanges, grammar
from tests.fuzz.cluster_frames import frame_input, frame_once
from tests.fuzz.exchanges import scram_once
from tests.fuzz.targets import (
    UPGRADE,
    changed,
    connection_once,
    decode_once,
    frames,
    mutate_script,
    proxy_once,
    script,
    upgrade_once,
    websocket_once,
)
from tests.property_examples import examples

CHECK = examples(300)
TARGETS = {
    "decode": decode_once,
    "frames": frame_once,
    "connection": connection_once,
    "proxy": proxy_once,
    "scram": scram_once,
    "upgrade": upgrade_once,
    "websocket": websocket_once,
}


def corpus() -> list[object]:
    found: list[object] = []
    for line in (Path(__file__).parent / "corpus.txt").read_text().splitlines():
        if line and not line.startswith("#"):
            target, data, why = line.split(" ", 2)
            found.append(pytest.param(target, bytes.fromhex(data), id=why))
    return found


@pytest.mark.parametrize(("target", "data"), corpus())
def test_corpus(target: str, data: bytes) -> None:
    TARGETS[target](data)


@CHECK
@given(st.binary(max_size=60))
def test_decode_bytes(data: bytes) -> None:
    decode_once(data)


@CHECK
@given(st.binary(max_size=80))
def test_connection_bytes(data: bytes) -> None:
    connection_once(data)


@contextlib.contextmanager
def seeded(seed: int) -> Iterator[random.Random]:
    """What fails says by which seed it is repeated."""
    try:
        yield random.Random(seed)
    except Exception as error:
        raise AssertionError(f"seed {seed}") from error


@pytest.mark.parametrize("start", range(0, 4_000, 400))
def test_decode_streams(start: int) -> None:
    for seed in range(start, start + 400):
        with seeded(seed) as rng:
            data = grammar.stream(rng)
            if seed % 2:
                data = grammar.mutate(data, rng)
            decode_once(bytes([rng.randrange(256) & 0xFC]) + data)
            decode_once(bytes([rng.randrange(256)]) + data)


# The fuzzer itself takes such scripts for as long as it is given.
@pytest.mark.parametrize(
    "start", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in (100, 200, 300))]
)
def test_connection_scripts(start: int) -> None:
    for seed in range(start, start + 100):
        with seeded(seed) as rng:
            data = script(rng)
            if seed % 3 == 0:
                data = mutate_script(data, rng)
            connection_once(data)


@pytest.mark.slow
def test_many_scripts() -> None:
    for seed in (*range(400, 1_000), *range(10_000, 30_000)):
        with seeded(seed) as rng:
            data = script(rng)
            if seed % 3 == 0:
                data = mutate_script(data, rng)
            connection_once(data)


@pytest.mark.parametrize("start", range(0, 1_000, 250))
def test_websocket_frames(start: int) -> None:
    """Good frames, cut, changed and put together anew."""
    for seed in range(start, start + 250):
        with seeded(seed) as rng:
            data = frames(rng)
            if seed % 2:
                data = data[:1] + grammar.mutate(data[1:], rng)
            websocket_once(data)


def test_websocket_requests() -> None:
    for seed in range(300):
        with seeded(seed) as rng:
            change = changed if seed % 2 else grammar.mutate
            upgrade_once(change(UPGRADE, rng) if seed else UPGRADE)


@CHECK
@given(st.binary(max_size=60))
def test_websocket_bytes(data: bytes) -> None:
    websocket_once(data)


@pytest.mark.parametrize("start", range(0, 600, 200))
def test_scram_exchanges(start: int) -> None:
    for seed in range(start, start + 200):
        with seeded(seed) as rng:
            data = exchanges.script(rng)
            if seed % 4 == 3:
                data = grammar.mutate(data, rng)
            scram_once(data)


@CHECK
@given(st.binary(max_size=120))
def test_scram_bytes(data: bytes) -> None:
    scram_once(data)


def test_frames_between_nodes() -> None:
    for seed in range(2_000):
        with seeded(seed) as rng:
            data = frame_input(rng)
            if seed % 4 == 3:
                data = grammar.mutate(data, rng)
            frame_once(data)


@CHECK
@given(st.binary(max_size=120))
def test_frames_bytes(data: bytes) -> None:
    frame_once(data)
