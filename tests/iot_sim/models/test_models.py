"""What each model promises of its own: registers, roads, wear, charge, children, frames."""

from __future__ import annotations

import json
import math
from itertools import pairwise
from statistics import correlation, fmean
from typing import Any

import pytest

from iot_sim.devices.device import Publication
from iot_sim.devices.roads import to_degrees
from iot_sim.devices.signals import HOUR_S
from iot_sim.models.camera import make_frame, read_frame
from iot_sim.models.catalogue import make
from tests.iot_sim.day import DAY_S, START, Driver, spec, telemetry


def reports(driver: Driver) -> list[dict[str, Any]]:
    return [json.loads(m.payload) for m in telemetry(m for _, m in driver.said)]


def events(driver: Driver) -> list[str]:
    return [json.loads(m.payload)["event"] for m in telemetry((m for _, m in driver.said), "event")]


def day_of(model: str, days: float = 1.0, **asked: Any) -> Driver:
    driver = Driver.of(model, **asked)
    driver.run(days * DAY_S)
    return driver


# Environment.


def test_a_room_follows_the_day_and_humidity_falls_with_warmth() -> None:
    rows = reports(day_of("environment", days=4))
    noon = [row for row in rows if 12 <= row["ts"] / 1000 % DAY_S / HOUR_S < 14]
    night = [row for row in rows if row["ts"] / 1000 % DAY_S / HOUR_S < 4]
    for key in ("temperature", "co2", "light"):
        assert fmean(row[key] for row in noon) > fmean(row[key] for row in night) + 1
    assert all(row["light"] == 0 for row in night)
    assert min(row["co2"] for row in rows) >= 415
    warmth = [row["temperature"] for row in rows]
    assert correlation(warmth, [row["humidity"] for row in rows]) < -0.6


def test_the_local_day_is_where_the_device_is() -> None:
    rows = reports(day_of("environment", options={"utc_offset_h": 12.0}))
    assert rows[12 * 60]["light"] == 0
    assert max(rows, key=lambda row: row["light"])["ts"] / 1000 % DAY_S / HOUR_S < 7


def test_a_set_point_is_reached_within_hours() -> None:
    driver = Driver.of("environment", options={"temperature": 18.0})
    driver.run(60.0)
    driver.tell("plant/environment/0/cmd/set_point", b'{"temperature": 40}')
    driver.run(1_200.0)
    part = reports(driver)[-1]["temperature"]
    driver.run(4 * HOUR_S)
    assert 22 < part < 36
    assert reports(driver)[-1]["temperature"] == pytest.approx(40, abs=4)


def test_drift_and_gaps_show() -> None:
    rows = reports(day_of("environment", options={"gaps_per_day": 50.0, "defect_s": 300.0}))
    keys = ("temperature", "humidity", "pressure", "co2", "light")
    assert 50 < sum(row[key] is None for row in rows for key in keys) < 500
    calm = reports(day_of("environment", days=5))
    off = reports(day_of("environment", days=5, options={"drift_per_day": 2.0}))
    assert off[-1]["temperature"] - calm[-1]["temperature"] == pytest.approx(10, abs=0.1)


# Meter.


@pytest.mark.parametrize("interval_s", [pytest.param(1.0, marks=pytest.mark.slow), 60.0, 900.0])
def test_registers_are_the_integral_of_power_and_only_grow(interval_s: float) -> None:
    rows = reports(day_of("meter", days=0.5, interval_s=interval_s, options={"solar_share": 1.0}))
    for key in ("imported", "exported"):
        assert all(a[key] <= b[key] for a, b in pairwise(rows))
    hours = interval_s / 3_600
    drawn = sum(max(0.0, row["power"]) for row in rows[1:]) * hours / 1_000
    fed = sum(max(0.0, -row["power"]) for row in rows[1:]) * hours / 1_000
    assert rows[-1]["imported"] - rows[0]["imported"] == pytest.approx(drawn, abs=0.01)
    assert rows[-1]["exported"] - rows[0]["exported"] == pytest.approx(fed, abs=0.01)
    assert fed > 1


@pytest.mark.parametrize("interval_s", [pytest.param(10.0, marks=pytest.mark.slow), 900.0])
def test_a_household_uses_what_a_household_uses_at_any_interval(interval_s: float) -> None:
    days = []
    for number in range(12):
        rows = reports(
            day_of("meter", number=number, interval_s=interval_s, options={"solar_share": 0.0})
        )
        days.append(rows[-1]["imported"] - rows[0]["imported"])
        assert all(210 < row["voltage"] < 250 for row in rows)
        assert all(49.8 < row["frequency"] < 50.2 for row in rows)
    assert 5 < fmean(days) < 16


def test_the_relay_cuts_off_and_supplies_again() -> None:
    driver = Driver.of("meter")
    driver.run(600.0)
    driver.tell("plant/meter/0/cmd/relay", b'{"closed": false}')
    driver.run(3_600.0)
    off = reports(driver)[-1]
    driver.tell("plant/meter/0/cmd/relay", b'{"closed": true}')
    driver.run(120.0)
    on = reports(driver)[-1]
    assert (off["relay"], off["power"], off["current"]) == (False, 0.0, 0.0)
    assert on["relay"]
    assert on["power"] > 0
    assert events(driver) == ["relay open", "relay closed"]
    (answer,) = driver.tell("plant/meter/0/cmd/relay", b'{"closed": 1}', "answers")
    assert json.loads(answer.payload)["error"] == "closed must be true or false, not 1"


def test_the_day_is_reported_at_local_midnight() -> None:
    driver = day_of(
        "meter", days=3, options={"utc_offset_h": 2.0, "jitter_s": 20.0, "solar_share": 1.0}
    )
    daily = [(t, json.loads(m.payload)) for t, m in driver.said if m.topic.endswith("/daily")]
    assert len(daily) == 3
    for t, _ in daily:
        assert 0 <= (t + 2 * HOUR_S) % DAY_S <= 20
    (_, before), (_, after), _ = daily
    assert after["imported"] - before["imported"] == pytest.approx(after["day_imported"], abs=1e-3)
    assert after["day_peak"] > 300


# Tracker and its roads.


def test_a_tracker_reports_where_it_drives() -> None:
    rows = reports(day_of("tracker", interval_s=5.0, options={"lost_per_day": 30.0}))
    lost = [row for row in rows if row["lat"] is None]
    assert 0 < len(lost) < len(rows) / 5
    assert all(row["speed"] is None and row["satellites"] == 0 for row in lost)
    assert all(a["odometer"] <= b["odometer"] for a, b in pairwise(rows))
    assert 20 < rows[-1]["odometer"] - rows[0]["odometer"] < 500
    for a, b in pairwise(rows):
        if a["lat"] is None or b["lat"] is None:
            continue
        north = (b["lat"] - a["lat"]) * 111_320
        east = (b["lon"] - a["lon"]) * 111_320 * math.cos(math.radians(a["lat"]))
        assert (
            math.hypot(north, east) < 5 * 60 / 3.6 * 1.1 + 15
        )  # its way, and the receiver's error
    night = [row for row in rows if 1 <= row["ts"] / 1000 % DAY_S / HOUR_S < 4]
    noon = [row for row in rows if 9 <= row["ts"] / 1000 % DAY_S / HOUR_S < 15]
    assert fmean(row["ignition"] for row in noon) > fmean(row["ignition"] for row in night)


def test_vehicles_of_a_fleet_share_a_town_and_locate_answers() -> None:
    driver = Driver.of("tracker", interval_s=3_600.0)
    driver.run(60.0)
    answer, report = driver.tell("plant/tracker/0/cmd/locate", b"", "answers")
    assert json.loads(answer.payload)["text"] == "reported"
    assert report.topic.endswith("/telemetry")
    assert to_degrees(0.0, 111_320.0, 40.0, 10.0) == pytest.approx((41.0, 10.0))


# Machine.


def test_a_machine_wears_until_it_fails_and_says_so_before() -> None:
    driver = day_of(
        "machine", days=2, options={"fault_every_h": 6.0, "repair_s": 900.0, "maintenance_s": 300.0}
    )
    rows = reports(driver)
    states = {row["state"] for row in rows}
    assert states == {"starting", "running", "idle", "fault", "maintenance"}
    faults = [n for n, (a, b) in enumerate(pairwise(rows), 1) if b["fault"] and not a["fault"]]
    assert len(faults) >= 4
    for n in faults:
        running = [
            row["vibration_x"] for row in rows[max(0, n - 20) : n] if row["state"] == "running"
        ]
        if running and n > 200:
            assert max(running) > 4  # against about 2 after a repair
        assert rows[n]["rpm"] < 3_000
    said = events(driver)
    assert said.count("fault") >= 4
    assert said.count("repaired") >= 3
    assert all(a["parts"] <= b["parts"] for a, b in pairwise(rows))
    hot = fmean(row["temperature"] for row in rows if row["state"] == "running")
    assert 35 < hot < 75


def test_shifts_end_and_start_by_the_clock() -> None:
    rows = reports(day_of("machine", days=2, options={"shifts": 1, "fault_every_h": 1e6}))
    for row in rows[10:]:
        hour = row["ts"] / 1000 % DAY_S / HOUR_S
        if 6.1 < hour < 13.9:
            assert row["state"] in ("running", "idle")
        elif hour < 5.9 or hour > 14.1:
            assert row["state"] == "off"
            assert row["rpm"] == 0


def test_a_machine_does_what_it_is_told() -> None:
    driver = Driver.of("machine", options={"shifts": 1, "fault_every_h": 1e6})

    def tell(command: str, payload: bytes = b"") -> dict[str, Any]:
        answer = driver.tell(f"plant/machine/0/cmd/{command}", payload, "answers")[0]
        found = json.loads(answer.payload)
        assert isinstance(found, dict)
        return found

    driver.run(HOUR_S)  # one in the night
    assert reports(driver)[-1]["state"] == "off"
    assert tell("start")["text"] == "starting"
    driver.run(600.0)
    assert reports(driver)[-1]["state"] == "running"
    assert tell("set_speed", b'{"rpm": 1200}')["value"] == 1_200
    driver.run(120.0)
    assert reports(driver)[-1]["rpm"] == pytest.approx(1_200, abs=2)
    assert tell("set_speed", b'{"rpm": 7000}')["error"] == "rpm must be 0 to 6000, not 7000"
    assert tell("stop")["text"] == "idle"
    driver.run(2 * HOUR_S)
    assert reports(driver)[-1]["state"] == "idle"
    assert tell("start")["text"] == "running"
    assert tell("reset")["error"] == "the machine has no fault"


def test_a_fault_is_reset_by_command() -> None:
    driver = Driver.of("machine", options={"fault_every_h": 0.1, "repair_s": 1e5})
    while "fault" not in events(driver):
        driver.run(60.0)
    (refused,) = driver.tell("plant/machine/0/cmd/start", b"", "answers")
    assert "the machine has a fault (" in json.loads(refused.payload)["error"]
    answer, event = driver.tell("plant/machine/0/cmd/reset", b"", "answers")
    assert json.loads(answer.payload)["text"] == "starting"
    assert json.loads(event.payload)["event"] == "reset"
    driver.run(61.0)
    assert reports(driver)[-1]["fault"] is None


def test_a_machine_reboots_and_stands_meanwhile() -> None:
    driver = Driver.of("machine", options={"reboot_s": 60.0})
    driver.run(HOUR_S)
    parts = reports(driver)[-1]["parts"]
    driver.tell("plant/machine/0/cmd/reboot", b"")
    driver.run(130.0)
    assert reports(driver)[-1]["state"] in ("starting", "running")
    assert reports(driver)[-1]["parts"] <= parts + 60


# Battery sensor.


def test_a_sleeper_is_awake_for_moments_and_loses_nothing() -> None:
    driver = day_of("battery_sensor", interval_s=60.0, options={"report_every": 10})
    rows = reports(driver)
    assert [row["seq"] for row in rows] == list(range(1, len(rows) + 1))
    assert len(rows) >= 1_430
    bursts = {round(t) for t, m in driver.said}
    assert 140 <= len(bursts) <= 150
    assert len([m for _, m in driver.said if m.topic.endswith("/state")]) == 1
    awake = 0.0
    probe = Driver.of("battery_sensor", interval_s=60.0, options={"report_every": 10})
    for _ in range(3_600):
        probe.run(1.0)
        awake += probe.linked
    assert 6 <= awake <= 25


def test_a_sleeper_gives_up_when_no_connect_succeeds() -> None:
    driver = Driver.of("battery_sensor", options={"report_every": 5, "connect_s": 20.0})
    driver.cut = True
    wanted = 0
    for _ in range(3_600):
        driver.run(1.0)
        wanted += driver.device.wants_link(driver.now)
    assert 11 * 18 <= wanted <= 13 * 22
    driver.cut = False
    driver.run(400.0)
    numbers = [row["seq"] for row in reports(driver)]
    assert numbers == list(range(1, len(numbers) + 1))


def test_commands_keep_it_awake_and_an_update_until_it_is_done() -> None:
    driver = Driver.of("battery_sensor", options={"report_every": 2, "firmware_s": 30.0})
    driver.run(200.0)
    driver.wait_for_link()
    order = "plant/battery_sensor/0/cmd/firmware"
    driver.tell(order, b'{"version": "2"}', "answers")
    out = driver.run(40.0)
    stages = [json.loads(m.payload)["stage"] for m in out if m.topic.endswith("/firmware")]
    assert stages[-1] == "rebooting"
    driver.run(60.0)
    assert (
        '"done"'
        in [m for _, m in driver.said if m.topic.endswith("/firmware")][-1].payload.decode()
    )


def test_it_announces_itself_when_it_is_asked_to() -> None:
    driver = Driver.of("battery_sensor", options={"report_every": 10, "announce": True})
    driver.run(HOUR_S)
    states = [json.loads(m.payload) for _, m in driver.said if m.topic.endswith("/state")]
    assert [(s["online"], s["reason"]) for s in states[:4]] == [
        (True, None),
        (False, "sleep"),
        (True, None),
        (False, "sleep"),
    ]


def test_a_battery_runs_down_warns_and_falls_silent_for_good() -> None:
    driver = Driver.of("battery_sensor", options={"battery_mah": 3.0, "report_every": 1})
    driver.run(3 * DAY_S)
    assert events(driver).count("battery low") == 1
    charge = [row["charge"] for row in reports(driver)]
    assert charge == sorted(charge, reverse=True)
    assert charge[-1] < 5
    assert json.loads(driver.said[-1][1].payload)["reason"] == "battery"
    assert driver.device.next_at() == math.inf
    driver.device.pace(10.0, driver.now)
    assert driver.device.next_at() == math.inf
    assert not driver.device.wants_link(driver.now)


# Gateway.


def test_children_speak_through_the_gateway() -> None:
    driver = Driver.of("gateway", interval_s=10.0, options={"children": 5, "losses_per_day": 0.0})
    driver.run(100.0)
    topics = {m.topic for _, m in driver.said}
    assert topics == {
        "plant/gateway/0/telemetry",
        "plant/gateway/0/state",
        *(f"plant/gateway/0/c00{n}/{name}" for n in range(5) for name in ("telemetry", "state")),
    }
    stamps = [json.loads(m.payload)["ts"] for m in telemetry(m for _, m in driver.said)]
    assert stamps == sorted(stamps)


def test_a_child_takes_commands() -> None:
    driver = Driver.of(
        "gateway", options={"children": 3, "child_model": "meter", "losses_per_day": 0.0}
    )
    driver.run(10.0)
    out = driver.tell("plant/gateway/0/c001/cmd/relay", b'{"closed": false}', "answers", b"7")
    answer, event = out
    assert (json.loads(answer.payload)["id"], answer.correlation) == ("gateway-0-c001", b"7")
    assert event.topic == "plant/gateway/0/c001/event"
    out = driver.tell("plant/gateway/0/c002/cmd/reboot", b"", "answers")
    assert json.loads(out[-1].payload)["reason"] == "reboot"
    out = driver.run(30.0)
    birth = next(m for m in out if m.topic == "plant/gateway/0/c002/state")
    assert json.loads(birth.payload)["boots"] == 2
    for topic in ("plant/gateway/0/c009/cmd/ping", "plant/gateway/0/x", "elsewhere/cmd/ping"):
        assert driver.tell(topic, b"", "answers") == []
    assert [one.filter for one in driver.device.subscriptions()] == [
        "plant/gateway/0/cmd/+",
        "plant/gateway/0/+/cmd/+",
    ]


def test_children_are_lost_and_found_and_flush_what_they_kept() -> None:
    driver = Driver.of(
        "gateway", interval_s=30.0,
        options={"children": 4, "losses_per_day": 20.0, "loss_s": 600.0},
    )  # fmt: skip
    driver.run(DAY_S)
    states = [m for _, m in driver.said if m.topic.endswith("/state") and "/c0" in m.topic]
    deaths = [m for m in states if m.kind == "death"]
    assert 40 < len(deaths) < 120
    assert len([m for m in states if m.kind == "birth"]) >= len(deaths)
    assert all(json.loads(m.payload)["reason"] == "lost" for m in deaths)
    for n in range(4):
        mine = [
            json.loads(m.payload)["seq"]
            for _, m in driver.said
            if m.topic == f"plant/gateway/0/c00{n}/telemetry"
        ]
        assert mine == list(range(1, len(mine) + 1))


def test_while_the_gateway_is_away_its_buffer_is_the_limit() -> None:
    driver = Driver.of(
        "gateway", interval_s=10.0,
        options={"children": 10, "buffer_max": 50, "losses_per_day": 0.0},
    )  # fmt: skip
    driver.run(100.0)
    driver.lose()
    driver.run(600.0)
    driver.cut = False
    out = driver.run(0.0)
    births = [m for m in out if m.topic.endswith("/state")]
    assert len(births) == 11
    assert len(out) - len(births) == 50
    assert json.loads(out[0].payload)["dropped"] == 61 * 11 - 50 - 11


def test_a_gateway_reboot_silences_its_children_for_as_long() -> None:
    driver = Driver.of("gateway", interval_s=10.0, options={"children": 3, "reboot_s": 60.0})
    driver.run(100.0)
    driver.tell("plant/gateway/0/cmd/reboot", b"")
    assert driver.run(59.0) == []
    out = driver.run(30.0)
    assert len([m for m in out if m.topic.endswith("/state")]) == 4
    assert len(list(telemetry(out))) <= 3 * 5 + 3  # of which a few are from just before


# Camera.


def test_a_frame_is_whole_or_refused() -> None:
    frame, checksum = make_frame({"frame": 3}, 1_000_000, 3_000_000)
    assert read_frame(frame) == {"frame": 3, "crc32": checksum}
    for broken in (
        b"",
        b"FMQF",
        frame[:-1],
        frame[:5_000] + b"x" + frame[5_001:],
        b"X" + frame[1:],
    ):
        with pytest.raises(ValueError):
            read_frame(broken)


def test_frames_grow_with_motion_and_are_as_large_as_asked() -> None:
    driver = day_of("camera", options={"frame_bytes": 10_000})
    rows = reports(driver)
    assert correlation([row["motion"] for row in rows], [row["bytes"] for row in rows]) > 0.99
    assert 7_000 < fmean(row["bytes"] for row in rows) < 12_000
    frames = [m for _, m in driver.said if m.kind == "bulk"]
    assert len({frame.payload for frame in frames}) == len(frames) == 1_440


def test_a_snapshot_is_taken_at_once() -> None:
    driver = Driver.of("camera", options={"frame_qos": 1, "part_bytes": 20_000})
    driver.run(90.0)
    answer, *parts, report = driver.tell("plant/camera/0/cmd/snapshot", b"", "answers")
    assert [dict(part.user)["part"] for part in parts] == [
        f"{n}/{len(parts)}" for n in range(1, len(parts) + 1)
    ]
    assert {part.qos for part in parts} == {1}
    frame = read_frame(b"".join(part.payload for part in parts))
    assert frame["frame"] == json.loads(answer.payload)["value"]
    assert frame["crc32"] == json.loads(report.payload)["crc32"]


def test_frames_are_kept_before_their_report() -> None:
    device = make("camera", spec("camera", interval_s=1.0))
    kept: list[Publication] = []
    for n in range(1, 4):
        device.act(START + n)
    kept = device.on_connected(START + 3.5, session_present=False)
    assert [message.kind for message in kept[1:3]] == ["bulk", "telemetry"]
