"""What every device does: same seed, same bytes; state, commands, buffer, reboot, update."""

from __future__ import annotations

import json
import sys
from itertools import pairwise
from types import FrameType
from typing import Any, Final

import cbor2
import pytest

from iot_sim.devices.device import Publication
from iot_sim.models.camera import read_frame
from iot_sim.models.catalogue import make, models
from iot_sim.payloads.schema import schema_errors
from tests.iot_sim.day import DAY_S, START, Driver, digest, spec, telemetry

# A day of each model, with a link that fails twice; each format where bytes differ by it.
# Whoever changes what a model says changes these, and knows that old runs no longer compare.
DIGESTS: Final = {
    ("environment", "json"): "29fa01dc66f2cc63",
    ("environment", "cbor"): "a69142995bfdca94",
    ("environment", "template"): "911011182a911992",
    ("meter", "json"): "27bd53e9c078ea0d",
    ("tracker", "json"): "42ca5374539524d3",
    ("machine", "json"): "015c66957f1913d1",
    ("machine", "cbor"): "ec5a417b66a97b77",
    ("battery_sensor", "json"): "97517ec7d7f75ac1",
    ("gateway", "json"): "206d6dac4db03dec",
    ("gateway", "cbor"): "a57720427ebd7659",
    ("camera", "json"): "e414d1e342113d7f",
    ("sparkplug_node", "sparkplug"): "8f1a29cc68a11b0b",
}

PLAIN: Final = [model for model in models() if model != "sparkplug_node"]
# Whose reports do not depend on when a link comes and goes.
STEADY: Final = ["environment", "meter", "tracker", "machine", "camera"]


def eventful(model: str, **asked: Any) -> Driver:
    """A day with two losses of the link, commands, and defects where the model has them."""
    known = {option.name for option in models()[model].options}
    options = {
        "stuck_per_day": 10.0, "outliers_per_day": 20.0, "gaps_per_day": 10.0,
        "losses_per_day": 5.0, "fault_every_h": 3.0, "repair_s": 600.0, "tampers_per_day": 5.0,
        "clock_ahead_s": 30.0, "clock_drift_ppm": 50.0, "buffer_max": 30, "solar_share": 1.0,
        "part_bytes": 20_000, "frame_bytes": 30_000, "jitter_s": 5.0,
        **asked.pop("options", {}),
    }  # fmt: skip
    options = {key: value for key, value in options.items() if key in known}
    driver = Driver.of(model, options=options, **asked)
    driver.run(DAY_S / 4)
    driver.lose()
    driver.run(3_600.0)
    driver.cut = False
    driver.run(DAY_S / 4)
    root = driver.device.spec.topic
    if model in PLAIN:
        driver.wait_for_link()
        driver.tell(f"{root}/cmd/reboot", b"")
    driver.run(DAY_S / 4)
    driver.lose()
    driver.run(1_800.0)
    driver.cut = False
    driver.run(DAY_S / 4)
    return driver


def said(driver: Driver) -> list[Publication]:
    return [message for _, message in driver.said]


def read(message: Publication) -> dict[str, Any]:
    if message.content_type == "application/cbor":
        found = cbor2.loads(message.payload)
    else:
        found = json.loads(message.payload)
    assert isinstance(found, dict)
    return found


def last(message: Publication) -> str:
    return message.topic.rpartition("/")[2]


# The same seed, the same bytes.


@pytest.mark.parametrize(("model", "payload"), DIGESTS)
def test_a_day_of_each_model_is_pinned(model: str, payload: str) -> None:
    asked: dict[str, Any] = {"payload": payload}
    if payload == "template":
        asked["options"] = {"template": "{id},{seq},{time_iso}"}
    assert digest(said(eventful(model, **asked))) == DIGESTS[model, payload]


LONG = ("gateway", "camera")  # three quarters of the time of all


@pytest.mark.parametrize(
    "model", [pytest.param(m, marks=pytest.mark.slow) if m in LONG else m for m in models()]
)
def test_another_seed_another_day(model: str) -> None:
    days = {
        digest(said(eventful(model, seed=seed, number=number)))
        for seed, number in ((7, 0), (8, 0), (7, 1), (7, 0))
    }
    assert len(days) == 3


@pytest.mark.parametrize("model", STEADY)
def test_what_is_measured_does_not_depend_on_how_late_the_fleet_asks(model: str) -> None:
    days = []
    for late_s in (0.0, 0.4, 3.0):
        driver = Driver.of(model, interval_s=30.0, options={"jitter_s": 4.0})
        driver.run(DAY_S / 2 + late_s, late_s=late_s)
        days.append(digest(telemetry(said(driver))))
    assert len(set(days)) == 1


def test_a_lost_link_does_not_change_what_is_measured() -> None:
    def values(driver: Driver) -> dict[int, str]:
        return {
            (found := read(message))["seq"]: json.dumps(found)
            for message in telemetry(said(driver))
        }

    quiet = Driver.of("environment")
    quiet.run(DAY_S)
    broken = Driver.of("environment", options={"buffer_max": 1_000})
    for _ in range(12):
        broken.run(3_600.0)
        broken.lose()
        broken.run(3_600.0)
        broken.cut = False
    broken.settle()
    assert values(broken) == values(quiet)


@pytest.mark.parametrize("model", models())
def test_after_a_long_silence_of_the_fleet_there_is_no_burst(model: str) -> None:
    device = make(model, spec(model, interval_s=1.0))
    device.will(START)
    device.on_connected(START, session_present=False)
    out = []
    now = START + 3_600.0
    while device.next_at() <= now:
        out += device.act(now)
    assert len(out) <= 20 * models()[model].per_interval({})


# Every payload fits the schema that is declared.


@pytest.mark.parametrize("model", PLAIN)
@pytest.mark.parametrize("payload", ["json", "cbor"])
def test_every_document_fits_its_schema(model: str, payload: str) -> None:
    driver = eventful(model, payload=payload, interval_s=120.0)
    root = driver.device.spec.topic + "/"
    assert driver.will is not None
    seen = set()
    for message in (driver.will, *said(driver)):
        name = last(message)
        seen.add(name)
        owner = models()[model]
        if message.topic.count("/") > root.count("/"):  # a child's
            owner = models()["environment"]
        if message.kind == "bulk":
            continue
        assert schema_errors(owner.documents[name], read(message)) == [], message
        assert len(message.payload) < 1_000
    assert seen >= set(models()[model].documents) - {"firmware", "event", "response"}


def test_frames_come_whole_or_in_parts() -> None:
    driver = eventful("camera", interval_s=120.0, options={"buffer_max": 1_000})
    parts: dict[str, list[bytes]] = {}
    reports = 0
    for message in said(driver):
        if message.kind == "bulk":
            user = dict(message.user)
            number, _, total = user["part"].partition("/")
            parts.setdefault(user["frame"], []).append(message.payload)
            assert len(parts[user["frame"]]) == int(number)
            if number == total:
                whole = b"".join(parts.pop(user["frame"]))
                frame = read_frame(whole)
        elif last(message) == "telemetry":
            report = read(message)
            assert report["frame"] == frame["frame"]
            assert (report["crc32"], report["bytes"]) == (frame["crc32"], len(whole))
            reports += 1
    assert reports > 600


# Birth, will, state.


@pytest.mark.parametrize("model", PLAIN)
def test_a_will_a_birth_and_a_goodbye(model: str) -> None:
    device = make(model, spec(model, options={"will_delay_s": 12, "state_qos": 2}))
    will = device.will(START)
    assert will is not None
    assert (will.topic, will.qos, will.retain, will.kind) == (
        device.spec.topic + "/state", 2, True, "death",
    )  # fmt: skip
    assert read(will)["online"] is False
    assert read(will)["reason"] == "lost"
    assert device.will_delay_s() == 12
    birth = device.on_connected(START, session_present=False)[0]
    assert (birth.topic, birth.retain, birth.kind) == (will.topic, True, "birth")
    assert read(birth)["online"] is True
    goodbye = device.goodbye(START + 1)[0]
    assert (goodbye.topic, goodbye.retain, goodbye.kind) == (will.topic, True, "death")
    assert read(goodbye)["reason"] == "shutdown"


def test_state_need_not_be_retained_nor_commands_taken() -> None:
    device = make("environment", spec("environment", options={"retain_state": False}))
    assert not device.on_connected(START, session_present=True)[0].retain
    assert [one.filter for one in device.subscriptions()] == ["plant/environment/0/cmd/+"]
    deaf = make("environment", spec("environment", options={"commands": False}))
    assert deaf.subscriptions() == []


# The buffer.


def test_what_is_kept_comes_in_order_and_the_oldest_goes() -> None:
    driver = Driver.of("environment", interval_s=10.0, qos=1, options={"buffer_max": 25})
    driver.run(95.0)
    driver.lose()
    before = len(driver.said)
    driver.run(1_000.0)
    driver.cut = False
    driver.run(30.0)
    birth, *rest = [message for _, message in driver.said[before:]]
    assert read(birth)["online"]
    assert read(birth)["dropped"] == 75
    numbers = [read(message)["seq"] for message in rest]
    assert numbers == list(range(numbers[0], numbers[0] + 28))
    assert all(message.qos == 1 for message in rest)
    stamps = [read(message)["ts"] for message in rest]
    assert {b - a for a, b in pairwise(stamps)} <= {9_999, 10_000, 10_001}


def test_the_buffer_is_bounded_in_bytes_too() -> None:
    options = {"buffer_bytes_max": 100_000, "frame_bytes": 30_000}
    driver = Driver.of("camera", interval_s=1.0, options=options)
    driver.run(1.0)
    driver.lose()
    driver.run(60.0)
    driver.cut = False
    before = len(driver.said)
    driver.run(0.0)
    kept = [message for _, message in driver.said[before:]]
    assert 50_000 < sum(len(message.payload) for message in kept[1:]) <= 100_000


def test_nothing_is_kept_without_a_buffer() -> None:
    driver = Driver.of("environment", interval_s=1.0, options={"buffer_max": 0})
    driver.lose()
    driver.run(60.0)
    driver.cut = False
    assert len(driver.run(0.0)) == 1


# Commands.


VERSION: Final = "version must be a string of 1 to 64 printable characters"
DANCE: Final = "no such command; expected one of firmware, ping, reboot, set_interval, set_point"


@pytest.mark.parametrize(
    ("command", "payload", "says"),
    [
        ("set_interval", b"{}", "interval_s must be a number, not None"),
        ("set_interval", b'{"interval_s": 0}', "interval_s must be 0.001 to 2.6784e+06, not 0"),
        ("set_interval", b'{"interval_s": true}', "interval_s must be a number, not True"),
        (
            "set_interval",
            b'{"interval_s": 1e999}',
            "interval_s must be 0.001 to 2.6784e+06, not inf",
        ),
        ("set_interval", b'{"interval_s": NaN}', "not JSON: NaN"),
        ("set_interval", b"[]", "not a JSON object"),
        ("set_point", b'{"temperature": 400}', "temperature must be -40 to 60, not 400"),
        ("firmware", b"", VERSION),
        ("firmware", b'{"version": "a\\nb"}', VERSION),
        ("dance", b"", DANCE),
    ],
)
def test_refusals(command: str, payload: bytes, says: str) -> None:
    driver = Driver.of("environment")
    driver.run(10.0)
    due = driver.device.next_at()
    (answer,) = driver.tell(f"plant/environment/0/cmd/{command}", payload, "answers/7", b"x" * 40)
    assert (answer.topic, answer.correlation, answer.kind) == ("answers/7", b"x" * 40, "response")
    found = read(answer)
    assert (found["ok"], found["error"]) == (False, says)
    assert driver.device.next_at() == due


def test_answers_fit_their_schema_and_go_only_where_they_can() -> None:
    driver = Driver.of("environment")
    driver.run(90.0)
    (answer,) = driver.tell("plant/environment/0/cmd/ping", b"", "answers")
    assert schema_errors(models()["environment"].documents["response"], read(answer)) == []
    assert read(answer)["value"] == 90.0
    for to in ("", "a/+", "#"):
        assert driver.tell("plant/environment/0/cmd/ping", b"", to) == []
    assert driver.tell("somewhere/else", b"", "answers") == []


def test_the_interval_is_set_and_said() -> None:
    driver = Driver.of("environment", interval_s=60.0)
    driver.run(600.0)
    answer, state = driver.tell(
        "plant/environment/0/cmd/set_interval", b'{"interval_s": 2.5}', "answers"
    )
    assert read(answer)["value"] == 2.5
    assert (state.retain, read(state)["interval_s"]) == (True, 2.5)
    assert len(driver.run(100.0)) == 40


def test_a_report_that_is_due_comes_before_the_answer() -> None:
    driver = Driver.of("environment", interval_s=60.0)
    driver.run(30.0)
    driver.now = driver.device.next_at() + 0.5
    report, answer = driver.tell("plant/environment/0/cmd/ping", b"", "answers")
    assert (last(report), answer.kind) == ("telemetry", "response")


def test_a_reboot_goes_away_in_order_and_comes_back() -> None:
    driver = Driver.of("environment", interval_s=10.0, options={"reboot_s": 20.0})
    driver.run(100.0)
    root = "plant/environment/0"
    answer, goodbye = driver.tell(f"{root}/cmd/reboot", b"{}", "answers")
    assert read(answer)["ok"]
    assert (last(goodbye), read(goodbye)["reason"]) == ("state", "reboot")
    assert not driver.linked
    assert driver.run(19.0) == []
    birth, *reports = driver.run(11.5)
    assert (read(birth)["online"], read(birth)["boots"]) == (True, 2)
    assert [read(report)["seq"] for report in reports] == [1]


def test_a_device_that_reboots_hears_and_says_nothing() -> None:
    device = make("environment", spec("environment", interval_s=1.0))
    device.on_connected(START, session_present=False)
    order = Publication("plant/environment/0/cmd/reboot", b"")
    device.on_message(order, START + 1)
    assert not device.wants_link(START + 2)
    ping = Publication("plant/environment/0/cmd/ping", b"", response_topic="a")
    assert device.on_message(ping, START + 2) == []
    assert device.act(START + 3) == []
    # A fleet that does not care and leaves it connected hears the birth after the boot.
    assert read(device.act(START + 6)[0])["boots"] == 2
    assert device.wants_link(START + 6)


def test_a_link_that_comes_during_the_boot_is_too_early() -> None:
    device = make("environment", spec("environment"))
    device.on_connected(START, session_present=False)
    device.on_message(Publication("plant/environment/0/cmd/reboot", b""), START)
    device.on_disconnected(START)
    assert device.on_connected(START + 1, session_present=False) == []
    assert read(device.act(START + 5)[0])["boots"] == 2


def stages(messages: list[Publication]) -> list[tuple[str, int]]:
    found = [read(message) for message in messages if last(message) == "firmware"]
    assert all(schema_errors(models()["meter"].documents["firmware"], one) == [] for one in found)
    return [(one["stage"], one["percent"]) for one in found]


def test_an_update_reports_its_stages_and_ends_in_a_new_version() -> None:
    driver = Driver.of("meter", options={"firmware_s": 40.0, "firmware_steps": 4})
    root = driver.device.spec.topic
    driver.run(10.0)
    order = f"{root}/cmd/firmware"
    answer, first = driver.tell(order, b'{"version": "2.1.0"}', "answers")
    assert read(answer)["text"] == "accepted"
    assert first.retain
    (busy,) = driver.tell(order, b'{"version": "3"}', "answers")
    assert read(busy)["error"] == "an update to 2.1.0 is in progress"
    out = driver.run(70.0)
    assert stages([first, *out]) == [
        ("downloading", 0), ("downloading", 25), ("downloading", 50), ("downloading", 75),
        ("verifying", 100), ("installing", 100), ("rebooting", 100), ("done", 100),
    ]  # fmt: skip
    states = [read(message) for message in out if last(message) == "state"]
    assert [(one["online"], one["firmware"], one["reason"]) for one in states] == [
        (False, "1.0.0", "reboot"),
        (True, "2.1.0", None),
    ]
    (done,) = driver.tell(order, b'{"version": "2.1.0"}', "answers")
    assert read(done)["text"] == "already installed"


def test_a_download_stands_still_without_a_link() -> None:
    driver = Driver.of("meter", options={"firmware_s": 40.0, "buffer_max": 0})
    driver.run(10.0)
    driver.tell(f"{driver.device.spec.topic}/cmd/firmware", b'{"version": "2"}')
    driver.run(15.0)
    driver.lose()
    driver.run(3_600.0)
    driver.cut = False
    out = driver.run(100.0)
    assert stages(out)[:2] == [("downloading", 25), ("downloading", 50)]
    assert stages(out)[-1] == ("done", 100)


def test_an_update_that_fails_leaves_the_old_version() -> None:
    driver = Driver.of("meter", options={"firmware_fails": 1.0})
    order = f"{driver.device.spec.topic}/cmd/firmware"
    driver.run(10.0)
    driver.tell(order, b'{"version": "2"}')
    out = driver.run(100.0)
    assert stages(out)[-1] == ("failed", 100)
    assert read([m for m in out if last(m) == "firmware"][-1])["error"]
    (again,) = driver.tell(order, b'{"version": "1.0.0"}', "answers")
    assert read(again)["text"] == "already installed"


def test_a_reboot_in_the_middle_of_an_update_ends_it() -> None:
    driver = Driver.of("meter")
    root = driver.device.spec.topic
    driver.run(10.0)
    driver.tell(f"{root}/cmd/firmware", b'{"version": "2"}')
    driver.tell(f"{root}/cmd/reboot", b"")
    out = driver.run(300.0)
    assert stages(out) == []
    assert read(next(m for m in out if last(m) == "state"))["firmware"] == "1.0.0"


@pytest.mark.parametrize(
    ("model", "calls_max"),
    [("environment", 12), ("meter", 32), ("tracker", 36), ("machine", 34), ("battery_sensor", 18)],
)
def test_a_report_costs_few_calls(model: str, calls_max: int) -> None:
    """Ten thousand devices report once a second each: calls are what that costs in Python."""
    device = make(
        model,
        spec(model, interval_s=1.0, options={"lost_per_day": 0.0} if model == "tracker" else {}),
    )
    device.on_connected(START, session_present=False)
    costs = []
    for n in range(1, 60):
        calls = 0

        def count(frame: FrameType, event: str, arg: object) -> None:
            nonlocal calls
            calls += event == "call"

        sys.setprofile(count)
        try:
            device.act(START + n)
        finally:
            sys.setprofile(None)
        costs.append(calls)
    assert sorted(costs)[30] <= calls_max, sorted(costs)


# Load shapes.


@pytest.mark.parametrize("model", models())
def test_the_pace_changes_how_often_it_measures(model: str) -> None:
    driver = Driver.of(
        model, interval_s=60.0, options={"losses_per_day": 0.0} if model == "gateway" else {}
    )

    def rate(seconds: float) -> float:
        before = len([m for m in said(driver) if m.kind == "telemetry" and last(m) != "daily"])
        driver.run(seconds)
        after = len([m for m in said(driver) if m.kind == "telemetry" and last(m) != "daily"])
        return (after - before) / seconds * 60.0 / models()[model].per_interval({})

    assert rate(3_600.0) == pytest.approx(1.0, rel=0.11)
    driver.device.pace(5.0, driver.now)
    assert rate(3_600.0) == pytest.approx(5.0, rel=0.11)
    driver.device.pace(0.0, driver.now)
    driver.run(600.0)
    assert rate(3_600.0) == 0.0
    driver.device.pace(0.5, driver.now)
    assert rate(7_200.0) == pytest.approx(0.5, rel=0.11)


def test_a_change_of_pace_keeps_devices_spread() -> None:
    devices = [make("environment", spec("environment", number=n)) for n in range(500)]
    for device in devices:
        device.pace(10.0, START)
    dues = sorted(device.next_at() - START for device in devices)
    assert 2.5 < dues[250] < 3.5
    assert dues[-1] <= 6.0
    for device in devices:
        device.pace(0.0, START)
        device.pace(1.0, START + 100)
    dues = sorted(device.next_at() - START - 100 for device in devices)
    assert 25 < dues[250] < 35


def test_aligned_reports_come_at_whole_intervals_and_jitter_spreads_them() -> None:
    device = make("meter", spec("meter", interval_s=900.0, options={"aligned": True}))
    assert device.next_at() == START + 900.0
    late = [
        make(
            "meter",
            spec("meter", number=n, interval_s=900.0, options={"aligned": True, "jitter_s": 30.0}),
        ).next_at()
        - START
        for n in range(300)
    ]
    assert 900 <= min(late) < 902
    assert 928 < max(late) <= 930


def test_the_clock_is_ahead_by_what_is_asked_and_is_set() -> None:
    def ahead(device_number: int, sync: bool) -> float:
        driver = Driver.of(
            "environment",
            number=device_number,
            options={"clock_ahead_s": 600.0, "clock_sync": sync},
        )
        driver.run(120.0)
        sent, message = next((now, m) for now, m in driver.said if last(m) == "telemetry")
        return float(read(message)["ts"]) / 1000 - sent

    wrong = [ahead(number, sync=False) for number in range(20)]
    assert max(wrong) > 200
    assert min(wrong) < -200
    assert all(abs(ahead(number, sync=True)) < 0.01 for number in range(3))
