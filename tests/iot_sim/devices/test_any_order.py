"""Whatever happens to a device, in any order: it goes on, within its limits, and time moves.

A fleet may be late, twice told, or wrong; a broker may deliver anything. None of it may stop
a device, make it turn in a circle, or let it say what it should have kept.
"""

from __future__ import annotations

import json
import math
from random import Random
from typing import Final

import pytest

from iot_sim.devices.device import CLASSES, Publication
from iot_sim.models.catalogue import command, make, models
from tests.iot_sim.day import START, spec

ROUNDS: Final = 400
_STEPS_S: Final = (0.0, 0.001, 0.5, 3.0, 40.0, 700.0, 20_000.0)
OPTIONS: Final = {
    "buffer_max": 20, "losses_per_day": 200.0, "loss_s": 60.0, "fault_every_h": 0.5,
    "children": 3, "battery_mah": 20.0, "report_every": 3, "part_bytes": 500, "frame_bytes": 2_000,
    "tampers_per_day": 50.0, "firmware_fails": 0.3, "shifts": 1, "jitter_s": 20.0,
    "clock_drift_ppm": 1e4, "clock_sync": True, "deadband": 0.5,
}  # fmt: skip


def garbage(chance: Random, model: str) -> Publication:
    """A message that no sane host sends; some are nearly right."""
    topics = [
        f"plant/{model}/0/cmd/firmware", f"plant/{model}/0/cmd/", f"plant/{model}/0/cmd/a/b",
        f"plant/{model}/0/c001/cmd/ping", f"plant/{model}/0/c001/cmd/reboot", "x",
        f"spBv1.0/plant/NCMD/{model}-0", f"spBv1.0/plant/DCMD/{model}-0/device1",
        f"spBv1.0/plant/DCMD/{model}-0/", "spBv1.0/plant", f"plant/{model}/0/cmd/set_interval",
    ]  # fmt: skip
    payloads = [
        b"", b"{}", b"\xff", b"[]", b'{"interval_s": 1e308}', b'{"version": "\\u0000"}',
        b'{"interval_s": 0.5}', chance.randbytes(20), b"\x12\x02\x10\x01",
        b"\x12\x04\x10\x03\x58\x05",
    ]  # fmt: skip
    to = chance.choice(["", "answers", "#", "a/+/b"])
    return Publication(chance.choice(topics), chance.choice(payloads), response_topic=to)


@pytest.mark.parametrize("model", models())
@pytest.mark.parametrize(
    "seed", [*range(4), *(pytest.param(n, marks=pytest.mark.slow) for n in range(4, 12))]
)
def test_a_device_survives_anything(model: str, seed: int) -> None:
    chance = Random(f"{model} {seed}")
    info = models()[model]
    known = {option.name for option in info.options}
    options = {key: value for key, value in OPTIONS.items() if key in known}
    asked = spec(model, seed=seed, interval_s=30.0, options=options)
    device = make(model, asked)
    now = START
    connected = False
    for _ in range(ROUNDS):
        now += chance.choice(_STEPS_S) * chance.random()
        out: list[Publication] = []
        match chance.randrange(8):
            case 0 | 1:
                now = max(now, min(device.next_at(), now + 5_000.0))
                out = device.act(now)
            case 2:
                device.will(now)
                out = device.on_connected(now, session_present=chance.random() < 0.5)
                connected = True
            case 3:
                device.on_disconnected(now)
                connected = False
            case 4:
                what = chance.choice(list(info.commands))
                order = command(model, asked, what, info.commands[what].example)
                order.response_topic = "answers"
                out = device.on_message(order, now) if connected else []
            case 5:
                out = device.on_message(garbage(chance, model), now) if connected else []
            case 6:
                device.pace(chance.choice([0.0, 0.5, 1.0, 8.0]), now)
            case _:
                if connected and not device.wants_link(now):
                    out = device.goodbye(now)
                    device.on_disconnected(now)
                    connected = False
        assert connected or not out or out[0].kind == "death"
        check(out)
        for _ in range(1_000):  # whoever is asked as often as he wants comes to an end
            if device.next_at() > now:
                break
            check(device.act(now))
        else:
            pytest.fail("it wants to act at the same time for ever")
    assert not math.isnan(device.next_at())


def check(messages: list[Publication]) -> None:
    for message in messages:
        assert message.kind in CLASSES
        assert message.topic
        assert not set(message.topic) & {"+", "#"}
        assert message.qos in (0, 1, 2)
        if message.content_type == "application/json":
            assert json.loads(message.payload)
