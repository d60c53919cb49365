"""The Sparkplug edge node against what Sparkplug 3.0 asks of one."""

from __future__ import annotations

import math
from typing import Any, Final

import pytest

from iot_sim.devices.device import Publication
from iot_sim.models.catalogue import command, models
from iot_sim.models.sparkplug_node import DEVICE_TAGS, NODE_TAGS, as_document
from iot_sim.payloads import sparkplug as spb
from iot_sim.payloads.schema import schema_errors
from iot_sim.payloads.sparkplug import Metric, Payload
from tests.iot_sim.day import DAY_S, Driver

NODE: Final = "sparkplug_node-0"
ROOT: Final = "spBv1.0/plant"
NCMD: Final = f"{ROOT}/NCMD/{NODE}"


def kind(message: Publication) -> str:
    return message.topic.split("/")[2]


def payloads(messages: list[Publication], *kinds: str) -> list[Payload]:
    return [spb.decode_payload(m.payload) for m in messages if not kinds or kind(m) in kinds]


def named(payload: Payload) -> dict[str, Any]:
    return {metric.name: metric.value for metric in payload.metrics}


def write(*metrics: Metric) -> bytes:
    return spb.encode_payload(1, list(metrics))


def node(**asked: Any) -> Driver:
    return Driver.of("sparkplug_node", **asked)


def test_a_death_certificate_and_the_birth_it_belongs_to() -> None:
    driver = node()
    for session in range(3):
        before = len(driver.said)
        driver.run(10.0)
        will = driver.will
        assert will is not None
        assert (will.topic, will.qos, will.retain) == (f"{ROOT}/NDEATH/{NODE}", 1, False)
        death = spb.decode_payload(will.payload)
        assert (death.seq, named(death)) == (None, {"bdSeq": session})
        birth = driver.said[before][1]
        assert (birth.topic, birth.qos, birth.retain) == (f"{ROOT}/NBIRTH/{NODE}", 0, False)
        said = spb.decode_payload(birth.payload)
        assert said.seq == 0
        assert named(said)["bdSeq"] == session
        assert named(said)["Node Control/Rebirth"] is False
        driver.lose()
        driver.cut = False


def test_bd_seq_goes_round() -> None:
    driver = node()
    for connect in range(300):
        will = driver.device.will(driver.now)
        assert will is not None
        assert named(spb.decode_payload(will.payload))["bdSeq"] == connect % 256


def test_a_birth_declares_every_metric_once_with_type_alias_and_time() -> None:
    births = payloads(node(options={"devices": 3}).run(0.0))
    assert len(births) == 4
    aliases = [m.alias for birth in births for m in birth.metrics if m.alias is not None]
    assert len(aliases) == len(set(aliases)) == 4 + len(NODE_TAGS) + 3 * len(DEVICE_TAGS)
    for birth in births:
        assert all(m.name and m.type and m.timestamp and m.value is not None for m in birth.metrics)
    units = {m.name: m.properties for m in births[1].metrics}
    assert units["Inputs/Temperature"] == {"engUnit": "°C"}


def test_the_sequence_has_no_hole_and_goes_round_at_255() -> None:
    driver = node(interval_s=1.0, options={"losses_per_day": 300.0, "loss_s": 30.0})
    driver.run(3_000.0)
    driver.lose()
    driver.run(50.0)
    driver.cut = False
    driver.run(1_000.0)
    driver.tell(NCMD, write(Metric("Node Control/Rebirth", True, spb.BOOLEAN)))
    driver.run(500.0)
    expected = 0
    kinds = set()
    for _, message in driver.said:
        kinds.add(kind(message))
        if kind(message) == "NBIRTH":
            expected = 0
        assert spb.decode_payload(message.payload).seq == expected
        expected = (expected + 1) % 256
    assert kinds == {"NBIRTH", "NDATA", "DBIRTH", "DDATA", "DDEATH"}


def test_data_is_by_alias_and_fits_the_schema() -> None:
    driver = node(interval_s=60.0)
    driver.run(DAY_S)
    info = models()["sparkplug_node"]
    names = {}
    for _, message in driver.said:
        payload = spb.decode_payload(message.payload)
        if kind(message) in ("NBIRTH", "DBIRTH"):
            names.update({m.alias: m.name for m in payload.metrics if m.alias is not None})
            continue
        assert all(not m.name and not m.type and m.timestamp for m in payload.metrics)
        at_node = kind(message) == "NDATA"
        tags = NODE_TAGS if at_node else DEVICE_TAGS
        fields = info.documents["NDATA"] if at_node else info.fields
        assert schema_errors(fields, as_document(payload, names, tags)) == []
    assert len(names) == 4 + len(NODE_TAGS) + 2 * len(DEVICE_TAGS)


def test_reports_by_exception_leave_out_what_did_not_change() -> None:
    every = node(interval_s=10.0)
    seldom = node(interval_s=10.0, options={"deadband": 5.0})
    metrics = []
    for driver in (every, seldom):
        out = driver.run(3_600.0)
        metrics.append(sum(len(p.metrics) for p in payloads(out, "NDATA", "DDATA")))
    assert metrics[1] < metrics[0] / 2
    assert len(seldom.said) < len(every.said)
    assert not any(
        payload.metrics == [] for payload in payloads([m for _, m in seldom.said], "DDATA")
    )


def test_rebirth_says_the_same_bd_seq_and_all_devices() -> None:
    driver = node(options={"devices": 2})
    driver.run(100.0)
    out = driver.tell(NCMD, write(Metric("", True, spb.BOOLEAN, 1)))  # by alias
    assert [kind(m) for m in out] == ["NBIRTH", "DBIRTH", "DBIRTH"]
    assert named(payloads(out)[0])["bdSeq"] == 0
    assert driver.tell(NCMD, write(Metric("Node Control/Rebirth", False, spb.BOOLEAN))) == []


def test_scan_rate_and_reboot() -> None:
    driver = node(interval_s=60.0)
    driver.run(100.0)
    (said,) = driver.tell(NCMD, write(Metric("Node Control/Scan Rate", 2_000, spb.INT64)))
    assert spb.decode_payload(said.payload).metrics[0].value == 2_000
    assert len(payloads(driver.run(20.0), "NDATA")) == 10
    out = driver.tell(NCMD, write(Metric("Node Control/Reboot", True, spb.BOOLEAN)))
    assert [kind(m) for m in out] == ["NDEATH"]
    out = driver.run(10.0)
    assert kind(out[0]) == "NBIRTH"
    assert named(payloads(out)[0])["bdSeq"] == 1
    assert named(payloads(out)[0])["Node Control/Scan Rate"] == 2_000


@pytest.mark.parametrize(
    ("topic", "payload", "says"),
    [
        (
            NCMD,
            write(Metric("Node Control/Scan Rate", 0, spb.INT64)),
            "Node Control/Scan Rate must be 1 ms to 31 days, not 0 ms",
        ),
        (NCMD, write(Metric("Node Control/Scan Rate", "x", spb.STRING)), "a whole number of"),
        (NCMD, write(Metric("Uptime", 3, spb.INT64)), "no writable metric 'Uptime'"),
        (NCMD, write(Metric("", 3, spb.INT64, 77)), "no writable metric 'alias 77'"),
        (NCMD, b"\xff", "cut short"),
        (f"{ROOT}/DCMD/{NODE}/device9", write(), "no device 'device9'"),
        (
            f"{ROOT}/DCMD/{NODE}/device1",
            write(Metric("x", 1.0, spb.DOUBLE)),
            "no writable metric 'x'",
        ),
        (
            f"{ROOT}/DCMD/{NODE}/device1",
            write(Metric("Outputs/Set Point", "hot", spb.STRING)),
            "Outputs/Set Point must be a number",
        ),
        (
            f"{ROOT}/DCMD/{NODE}/device1",
            write(Metric("Outputs/Set Point", math.inf, spb.DOUBLE)),
            "Outputs/Set Point must be -50 to 400, not inf",
        ),
    ],
)
def test_refusals(topic: str, payload: bytes, says: str) -> None:
    driver = node()
    driver.run(10.0)
    (answer,) = driver.tell(topic, payload, "answers", b"c")
    assert (answer.kind, answer.topic, answer.correlation) == ("response", "answers", b"c")
    found = named(spb.decode_payload(answer.payload))
    assert found["ok"] is False
    assert says in found["error"]
    assert driver.tell(topic, payload) == []  # nobody asked for an answer


def test_other_topics_are_not_for_it() -> None:
    driver = node()
    driver.run(10.0)
    for topic in (
        "a/b",
        f"{ROOT}/NCMD/other",
        f"{ROOT}/NDATA/{NODE}",
        f"{ROOT}/DCMD/other/device1",
    ):
        assert driver.tell(topic, b"", "answers") == []


def test_a_set_point_heats_the_vessel_and_is_said() -> None:
    driver = node(options={"devices": 1})
    driver.run(60.0)
    order = command("sparkplug_node", driver.device.spec, "set_point", {"device": 1, "value": 300})
    assert order.topic == f"{ROOT}/DCMD/{NODE}/device1"
    (said,) = driver.tell(order.topic, order.payload)
    assert 300.0 in [m.value for m in spb.decode_payload(said.payload).metrics]
    driver.run(7_200.0)
    driver.tell(NCMD, write(Metric("Node Control/Rebirth", True, spb.BOOLEAN)))
    birth = payloads([m for _, m in driver.said], "DBIRTH")[-1]
    assert named(birth)["Inputs/Temperature"] == pytest.approx(300, abs=10)


def test_what_was_measured_without_a_link_is_historical() -> None:
    driver = node(interval_s=10.0, options={"buffer_max": 20})
    driver.run(100.0)
    driver.lose()
    driver.run(300.0)
    driver.cut = False
    before = len(driver.said)
    driver.run(0.0)
    out = [m for _, m in driver.said[before:]]
    assert [kind(m) for m in out[:3]] == ["NBIRTH", "DBIRTH", "DBIRTH"]
    kept = [spb.decode_payload(m.payload) for m in out[3:]]
    assert len(kept) == 20
    assert all(m.historical for payload in kept for m in payload.metrics)
    stamps = [payload.timestamp for payload in kept]
    assert stamps == sorted(stamps, key=lambda stamp: stamp or 0)
    assert [payload.seq for payload in kept] == list(range(3, 23))
    live = payloads(driver.run(30.0))
    assert not any(m.historical for payload in live for m in payload.metrics)


def test_devices_die_and_are_born_again() -> None:
    driver = node(interval_s=30.0, options={"losses_per_day": 20.0, "loss_s": 600.0, "devices": 1})
    driver.run(DAY_S)
    alive = False
    deaths = 0
    for _, message in driver.said:
        if kind(message) == "DBIRTH":
            assert not alive
            alive = True
        elif kind(message) == "DDEATH":
            assert alive
            assert spb.decode_payload(message.payload).metrics == []
            alive = False
            deaths += 1
        elif kind(message) == "DDATA":
            assert alive
    assert 5 < deaths < 40


def test_a_goodbye_is_the_death_certificate() -> None:
    driver = node()
    driver.run(10.0)
    (goodbye,) = driver.device.goodbye(driver.now)
    assert (goodbye.topic, goodbye.kind) == (f"{ROOT}/NDEATH/{NODE}", "death")
    assert [one.filter for one in driver.device.subscriptions()] == [
        NCMD,
        f"{ROOT}/DCMD/{NODE}/+",
    ]


def test_a_group_of_its_own() -> None:
    driver = node(options={"group": "North"})
    assert driver.run(0.0)[0].topic == f"spBv1.0/North/NBIRTH/{NODE}"
