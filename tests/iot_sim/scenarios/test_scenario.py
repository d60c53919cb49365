"""Scenarios: what they mean, and that each mistake is told by its key before anything is sent."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from iot_sim.judge.verdict import LIMITS
from iot_sim.scenarios import faults, load_shapes
from iot_sim.scenarios.file import FLEET_KEYS, SCENARIO_KEYS, device_of, load, ready_scenarios
from iot_sim.scenarios.scenario import ScenarioError, check_rate
from tests.iot_sim.fleets import scenario_of

GOOD = """
duration_s = 60
[[fleets]]
name = "pumps"
model = "environment"
count = 10
interval_s = 1
"""


def changed(*lines: str, without: str = "") -> str:
    """GOOD with keys of the fleet replaced or added."""
    kept = [line for line in GOOD.splitlines() if line and not line.startswith(without or "\0")]
    names = [line.partition(" ")[0] for line in lines]
    kept = [line for line in kept if line.partition(" ")[0] not in names or "[" in line]
    return "\n".join([*kept, *lines])


def top(line: str) -> str:
    kept = [one for one in GOOD.splitlines() if not one.startswith(line.partition(" ")[0] + " ")]
    return "\n".join([line, *kept])


def also(text: str) -> str:
    return GOOD + text


MISTAKES = {
    "unknown key": ("durations = 5\n" + GOOD, "unknown key durations; did you mean duration_s?"),
    "unknown fleet key": (
        changed("intervall_s = 5"),
        "fleets.pumps: unknown key intervall_s; did you mean interval_s?",
    ),
    "no fleets": ("duration_s = 60", "fleets is missing"),
    "fleets is no list": ("duration_s = 60\nfleets = 3", r"fleets is written \[\[fleets\]\]"),
    "no duration": (GOOD.replace("duration_s = 60", ""), "duration_s is missing; it is a number"),
    "duration of nothing": (top("duration_s = 0"), "duration_s is 1 to"),
    "duration in words": (top('duration_s = "long"'), "duration_s is a number, not 'long'"),
    "duration without end": (top("duration_s = inf"), "duration_s is 1"),
    "duration that is no number": (top("duration_s = nan"), "duration_s is 1"),
    "no model": (changed(without="model"), "fleets.pumps: model is missing"),
    "unknown model": (
        changed('model = "enviroment"'),
        "fleets.pumps: model: no model 'enviroment'; did you mean environment",
    ),
    "a class that is not there": (
        changed('model = "no.such:Thing"'),
        "fleets.pumps: model: .*no module",
    ),
    "no interval": (changed("interval_s = 0"), "fleets.pumps: interval_s is 0.001"),
    "negative interval": (changed("interval_s = -1"), "fleets.pumps: interval_s is 0.001"),
    "no devices": (changed("count = 0"), "fleets.pumps: count is 1 to 1000000, not 0"),
    "half a device": (changed("count = 1.5"), "fleets.pumps: count is a whole number, not 1.5"),
    "impossible rate": (
        changed("count = 1000000", "interval_s = 0.001").replace(
            "duration_s = 60", "duration_s = 60\nconnect_rate_per_s = 100000"
        ),
        "fleets.pumps.interval_s: the fleets would send 1,000,000,000 messages a second",
    ),
    "too slow to connect": (
        changed("count = 100000"),
        "connect_rate_per_s must be 1.67e",
    ),
    "wildcard in the topic": (
        changed('topic = "a/+/{number}"'),
        "fleets.pumps: topic 'a/.*': a Topic Name has no wildcards",
    ),
    "hash in the topic": (
        changed('topic = "a/{number}/#"'),
        "fleets.pumps: topic 'a/.*': a Topic Name has no wildcards",
    ),
    "topic of the broker's": (
        changed('topic = "$SYS/{number}"'),
        "fleets.pumps: topic '.SYS/9': topics that begin with",
    ),
    "empty topic": (
        changed('topic = ""'),
        "fleets.pumps: topic must contain {number}.* not ''",
    ),
    "one topic for all": (
        changed('topic = "a/b"'),
        "fleets.pumps: topic must contain {number}, which is .* not 'a/b'",
    ),
    "unknown placeholder": (
        changed('topic = "a/{nummer}"'),
        "fleets.pumps: topic: no placeholder {nummer}; expected fleet, number",
    ),
    "open brace": (changed('topic = "a/{number"'), "fleets.pumps: topic 'a/{number': expected"),
    "slash in the client id": (
        changed('client_id = "a/{number}"'),
        "fleets.pumps: client_id must be up to 200 printable",
    ),
    "qos 3": (changed("qos = 3"), "fleets.pumps: qos must be 0, 1 or 2, not 3"),
    "qos shares": (
        changed("qos = { 0 = 0.5, 1 = 0.6 }"),
        "fleets.pumps: the shares of qos must add up to 1, not 1.1",
    ),
    "qos of another kind": (
        changed("qos = { 0 = 0.5, 4 = 0.5 }"),
        "fleets.pumps: qos: unknown key 4",
    ),
    "old protocol": (changed('mqtt = "3.1"'), "fleets.pumps: mqtt is one of 5, 3.1.1, not '3.1'"),
    "bad option": (
        changed("options = { temprature = 3 }"),
        "fleets.pumps: options.temprature: .*did you mean temperature",
    ),
    "bad payload": (changed('payload = "xml"'), "fleets.pumps: payload: "),
    "back-off upside down": (
        changed("backoff_min_s = 9", "backoff_max_s = 3"),
        r"fleets.pumps: backoff_max_s must be at least backoff_min_s \(9\), not 3",
    ),
    "two of one name": (
        GOOD + GOOD.partition("60")[2],
        "fleets 2: name 'pumps' is used twice",
    ),
    "a name with a slash": (changed('name = "a/b"'), "fleets.a/b: name must be 1 to 64 letters"),
    "a shape nobody knows": (
        changed('load = { shape = "rampe", end_s = 5 }'),
        "fleets.pumps: load: shape is one of steady, ramp.*did you mean ramp",
    ),
    "a key of another shape": (
        changed('load = { shape = "ramp", end_s = 5, peak_s = 3 }'),
        "fleets.pumps: load: the shape ramp has no key peak_s",
    ),
    "a ramp that ends first": (
        changed('load = { shape = "ramp", start_s = 5, end_s = 5 }'),
        "fleets.pumps: load: end_s must be greater than start_s",
    ),
    "more devices than there are": (
        changed('load = { shape = "ramp", drives = "devices", high = 2, end_s = 5 }'),
        "fleets.pumps: load: high is 0 to 1",
    ),
    "a fault nobody knows": (
        also('[[faults]]\nkind = "stal"'),
        "faults 1: kind .*did you mean stall",
    ),
    "a fault of no fleet": (
        also('[[faults]]\nkind = "stall"\nfleet = "pump"'),
        "faults 1: no fleet 'pump'; did you mean pumps",
    ),
    "a fault after the end": (
        also('[[faults]]\nkind = "stall"\nat_s = 60'),
        "faults 1: at_s must be before the end .* not 60",
    ),
    "a fault without pause": (
        also('[[faults]]\nkind = "stall"\nevery_s = 0.001'),
        "faults 1: every_s must be 0 .once., or 0.1 or more",
    ),
    "more than everybody": (
        also('[[faults]]\nkind = "stall"\nshare = 1.5'),
        "faults 1: share is 1e-06 to 1, not 1.5",
    ),
    "an order nobody knows": (
        also('[[commands]]\nfleet = "pumps"\ncommand = "pong"'),
        "commands 1: command: environment has ping, .*did you mean ping",
    ),
    "an order to nobody": (
        also('[[commands]]\nfleet = "x"\ncommand = "ping"'),
        "commands 1: no fleet 'x'",
    ),
    "an order in 3.1.1": (
        changed('mqtt = "3.1.1"') + '\n[[commands]]\nfleet = "pumps"\ncommand = "ping"',
        "commands 1: fleet: pumps uses MQTT 3.1.1",
    ),
    "a share name with a slash": (
        also('[observers]\nshared = "a/b"'),
        "observers: shared must be a share name",
    ),
    "no observers": (
        also("[observers]\nconnections = 0"),
        "observers: connections is 1 to 64",
    ),
    "a limit nobody knows": (
        also("[limits]\nlost = 0"),
        "limits: unknown key lost; did you mean lost_max",
    ),
    "a share beyond one": (
        also("[limits]\nlate_share_max = 5"),
        "limits: late_share_max is 0 to 1",
    ),
    "a start that is no time": (top('start = "noon"'), 'start must be "now" or a time such as'),
    "a seed below zero": (top("seed = -1"), "seed is 0"),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_a_mistake_is_one_line_with_its_key(case: str) -> None:
    text, expected = MISTAKES[case]
    tomllib.loads(text)
    with pytest.raises(ScenarioError) as caught:
        scenario_of(text)
    line = str(caught.value)
    assert re.match(expected, line), line
    assert "\n" not in line and len(line) < 400


def test_the_good_one_is_good() -> None:
    scenario = scenario_of(GOOD)
    assert scenario.device_count == 10 and scenario.rate_per_s == 10
    assert scenario.limits["lost_max"] == 0 and "latency_p99_ms_max" not in scenario.limits


def test_files_are_found_by_path_or_name(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(GOOD)
    assert load(str(file)).name == "mine"
    assert load("factory").name == "factory"
    with pytest.raises(ScenarioError, match="no scenario 'factry'; did you mean factory"):
        load("factry")
    with pytest.raises(ScenarioError, match="No such file"):
        load(str(tmp_path / "other.toml"))
    file.write_text("duration_s = ")
    with pytest.raises(ScenarioError, match="not TOML"):
        load(str(file))
    file.write_text(GOOD + "[limits]\nlost = 1")
    with pytest.raises(ScenarioError, match=r"mine\.toml: limits: unknown key lost"):
        load(str(file))


@pytest.mark.parametrize("name", ready_scenarios())
def test_ready_scenarios_are_right(name: str) -> None:
    scenario = load(name)
    assert scenario.name == name and scenario.summary
    small = scenario.resized(max(20, len(scenario.fleets)), 10)
    assert small.duration_s == 10
    assert all(fault.at_s < 10 for fault in small.faults)


@pytest.mark.parametrize("name", ready_scenarios())
def test_n_devices_are_n_in_all(name: str) -> None:
    scenario = load(name)
    fewest = len(scenario.fleets)
    for devices in (*range(fewest, 60), 97, 1000, 2500, scenario.device_count):
        if devices < 2 * scenario.device_count:
            small = scenario.resized(devices, None)
            assert small.device_count == devices
            assert all(fleet.count for fleet in small.fleets)
    whole = scenario.resized(scenario.device_count, None)
    assert [one.count for one in whole.fleets] == [one.count for one in scenario.fleets]
    with pytest.raises(ScenarioError, match=rf"--devices must be at least {fewest}, .* not 0"):
        scenario.resized(0, None)


def test_there_are_the_scenarios_that_were_promised() -> None:
    promised = (
        "smart_home factory fleet_tracking metering_at_midnight reconnect_storm flaky_cellular"
        " firmware_rollout soak"
    )
    assert set(promised.split()) <= set(ready_scenarios())


def test_same_seed_same_devices() -> None:
    fleet = scenario_of(GOOD).fleets[0]

    def day(seed: int) -> list[bytes]:
        device = device_of(fleet, 3, seed, 1.7e9)
        device.on_connected(1.7e9, session_present=False)
        return [one.payload for _ in range(50) for one in device.act(device.next_at())]

    assert day(1) == day(1) != day(2)


def test_qos_shares_hold_for_any_count() -> None:
    for count in (10, 100, 1000):
        fleet = scenario_of(changed(f"count = {count}", "qos = { 0 = 0.5, 1 = 0.3, 2 = 0.2 }"))
        drawn = [fleet.fleets[0].qos.of(number) for number in range(count)]
        assert abs(drawn.count(0) / count - 0.5) <= 0.1
        assert abs(drawn.count(2) / count - 0.2) <= 0.1


def test_a_rate_that_needs_more_processes_says_how_many() -> None:
    scenario = scenario_of(changed("count = 50000", "interval_s = 1"))
    with pytest.raises(ScenarioError, match=r"or use --workers 2"):
        check_rate(scenario, 1)
    check_rate(scenario, 2)


def test_resizing_keeps_the_story() -> None:
    scenario = load("flaky_cellular")
    small = scenario.resized(50, 12)
    assert [fleet.count for fleet in small.fleets] == [40, 10]
    assert [fault.at_s for fault in small.faults] == [
        pytest.approx(fault.at_s / 10) for fault in scenario.faults
    ]
    with pytest.raises(ScenarioError, match=r"--devices must be at least 2, .* not 1"):
        scenario.resized(1, None)


def test_the_document_has_every_key() -> None:
    text = (Path(__file__).resolve().parents[3] / "docs" / "SIMULATOR.md").read_text()
    keys = {
        *FLEET_KEYS,
        *SCENARIO_KEYS,
        *LIMITS,
        *faults.KINDS,
        *load_shapes.KINDS,
        "late_after_ms",
    }
    keys |= {key for allowed in load_shapes.KINDS.values() for key in allowed}
    missing = [key for key in keys if f"`{key}`" not in text and f"[{key}]" not in text]
    assert not missing
