"""The bytes of frames stay: frames.vec has them, with what comes of each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mqtt_broker.cluster.frames.bodies import Hint, Outbox, Release, Released
from mqtt_broker.cluster.frames.layout import HEADER, OVERHEAD_BYTES, FrameKey
from mqtt_broker.cluster.frames.reader import Frame, FrameReader

VECTORS = Path(__file__).parent / "frames.vec"


def shown(body: Any) -> str:
    if isinstance(body, list):
        return " ".join(map(shown, body)) or "-"
    if isinstance(body, bytes):
        return body.hex() or '""'
    if isinstance(body, Hint):
        return f"{body.committed} {body.filters} {body.settings} {body.outbox} {body.known}"
    if isinstance(body, Outbox):
        return f"{body.turn} {body.filters} {body.first} {shown(body.entries)}"
    if isinstance(body, Released):
        return f"{body.tenure}:{body.outcome}:{body.client_id}"
    if isinstance(body, Release):
        return f"{body.tenure}:{body.client_id}"
    return str(body)


def cases() -> list[object]:
    found: list[object] = []
    setting: dict[str, str] = {}
    name, data = "", ""
    for line in VECTORS.read_text().splitlines():
        word, _, rest = line.partition(" ")
        if word in ("secret:", "cluster:", "host:", "sender:"):
            setting[word] = rest
        elif word == "==":
            name, data = rest, ""
        elif word == ">":
            found.append(pytest.param(dict(setting), bytes.fromhex(data), rest, id=name))
        elif word != "--":
            data += line
    return found


@pytest.mark.parametrize(("setting", "data", "expected"), cases())
def test_vectors(setting: dict[str, str], data: bytes, expected: str) -> None:
    reader = FrameReader(FrameKey(setting["cluster:"], bytes.fromhex(setting["secret:"])))
    host, epoch = setting["host:"].split(" ")
    reader.set_hosted({int(host): epoch})
    number, epoch = setting["sender:"].split(" ")
    reader.set_senders({int(number): epoch})
    found = reader.read(data)
    if isinstance(found, Frame):
        assert f"{found.kind} {found.sender} {found.to} {shown(found.body)}" == expected
    else:
        assert found == expected


def test_the_overhead_of_a_frame() -> None:
    assert HEADER.size == 48 and OVERHEAD_BYTES == 64
