"""The catalogue: what is wrong with a spec is told in one line that begins with the key."""

from __future__ import annotations

import importlib.util
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from iot_sim.devices.device import COMMAND, Publication
from iot_sim.models.catalogue import ModelError, command, find, make, models
from tests.iot_sim.day import DAY_S, START, Driver, spec, telemetry

OWN = "tests.iot_sim.own_models"


def refusal(model: str, **asked: Any) -> str:
    with pytest.raises(ModelError) as found:
        make(model, spec(model, **asked))
    text = str(found.value)
    assert "\n" not in text
    assert text == f"{found.value.key}: {found.value.text}"
    return text


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (
            {"bufer_max": 3},
            "options.bufer_max: environment has no option bufer_max; did you mean buffer_max?",
        ),
        ({"zzz": 3}, "options.zzz: environment has no option zzz; it has temperature, "),
        ({"buffer_max": -1}, "options.buffer_max: must be at least 0, not -1"),
        ({"buffer_max": 10**9}, "options.buffer_max: must be at most 100000, not 1000000000"),
        ({"buffer_max": 1.5}, "options.buffer_max: must be a whole number, not 1.5"),
        ({"buffer_max": True}, "options.buffer_max: must be a whole number, not True"),
        ({"aligned": 1}, "options.aligned: must be true or false, not 1"),
        ({"jitter_s": "2"}, "options.jitter_s: must be a number, not '2'"),
        ({"jitter_s": float("nan")}, "options.jitter_s: must be a finite number, not nan"),
        ({"firmware": 2}, "options.firmware: must be text, not 2"),
    ],
)
def test_options(options: dict[str, Any], says: str) -> None:
    assert refusal("environment", options=options).startswith(says)


@pytest.mark.parametrize(
    ("model", "options", "says"),
    [
        (
            "gateway",
            {"child_model": "camera"},
            "options.child_model: must be one of environment, meter,",
        ),
        ("gateway", {"child_options": 3}, "options.child_options: must be a table, not 3"),
        (
            "gateway",
            {"child_options": {"temprature": 3}},
            "options.child_options.temprature: environment has no option temprature; did you",
        ),
        (
            "gateway",
            {"child_model": "meter", "child_options": {"solar_share": 3}},
            "options.child_options.solar_share: must be at most 1, not 3",
        ),
        ("gateway", {"children": 0}, "options.children: must be at least 1, not 0"),
        (
            "sparkplug_node",
            {"group": "a/b"},
            "options.group: must be a Sparkplug id without /, + and #",
        ),
        ("sparkplug_node", {"retain_state": True}, "options.retain_state: sparkplug_node has no"),
        ("camera", {"frame_bytes": 1}, "options.frame_bytes: must be at least 64, not 1"),
        ("tracker", {"latitude": 91.0}, "options.latitude: must be at most 80, not 91.0"),
    ],
)
def test_options_of_models(model: str, options: dict[str, Any], says: str) -> None:
    assert refusal(model, options=options).startswith(says)


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"interval_s": 0}, "interval_s: must be 0.001 to 2.6784e+06 seconds, not 0"),
        ({"interval_s": float("nan")}, "interval_s: must be 0.001 to"),
        ({"qos": 3}, "qos: must be 0, 1 or 2, not 3"),
        ({"payload": "xml"}, "payload: environment supports json, cbor, template, not 'xml'"),
        ({"payload": "sparkplug"}, "payload: environment supports json, cbor, template, not"),
        ({"payload": "template"}, "options.template: is missing: payload"),
        (
            {"payload": "template", "options": {"template": "{signal.temprature}"}},
            "options.template: unknown name {signal.temprature}; expected one of fleet, id,",
        ),
    ],
)
def test_specs(asked: dict[str, Any], says: str) -> None:
    assert refusal("environment", **asked).startswith(says)


@pytest.mark.parametrize(
    "topic", ["", "a/", "$SYS/a", "a/+/b", "a/#", "a\0b", "x" * 2_000], ids=repr
)
def test_topics(topic: str) -> None:
    with pytest.raises(ModelError, match=r"^topic: "):
        make("environment", replace(spec("environment"), topic=topic))


def test_a_client_id_is_needed() -> None:
    with pytest.raises(ModelError, match=r"^client_id: must not be empty"):
        make("environment", replace(spec("environment"), client_id=""))
    with pytest.raises(ModelError, match=r"^client_id: must be a Sparkplug id"):
        make("sparkplug_node", replace(spec("sparkplug_node"), client_id="a/b"))


def test_models_that_are_not_there() -> None:
    assert refusal("enviroment").startswith(
        "model: no model 'enviroment'; did you mean environment?; write a class of your own as"
    )


def test_cbor_says_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert refusal("environment", payload="cbor") == (
        "payload: cbor needs the package cbor2: pip install 'fleetmq[sim]'"
    )


def test_a_spec_is_completed_and_whole_numbers_do_for_others() -> None:
    device = make("environment", spec("environment", options={"jitter_s": 2}))
    assert device.spec.payload == "json"
    assert device.spec.options["jitter_s"] == 2.0
    assert device.spec.options["buffer_max"] == 100


# A class of the user's own.


def test_a_class_of_ones_own() -> None:
    driver = Driver.of(f"{OWN}:Beacon", interval_s=10.0)
    assert [message.payload for message in driver.run(60.0)] == [b"here"] * 7
    info = find(f"{OWN}:Beacon")
    assert info.summary == "Says that it is there, and nothing else."
    assert info.published(driver.device.spec) == (driver.device.spec.topic + "/#",)
    assert info.per_interval({}) == 1.0


def test_a_class_that_declares_its_options() -> None:
    device = make(f"{OWN}:Loud", spec("loud"))
    assert device.spec.options == {"volume": 3}
    with pytest.raises(ModelError, match=r"^options.volume: must be at most 11, not 12$"):
        make(f"{OWN}:Loud", spec("loud", options={"volume": 12}))


def test_a_class_that_inherits_a_model() -> None:
    name = f"{OWN}:Greenhouse"
    info = find(name)
    assert (info.name, info.summary) == (name, "Inherits one of ours, with a command of its own.")
    assert {"set_point", "vent"} <= set(info.commands)
    asked = spec("own", options={"temperature": 30.0})
    driver = Driver(make(name, asked))
    state, report = driver.run(60.0)
    assert b'"model":"greenhouse"' in state.payload
    assert b'"temperature":' in report.payload
    order = command(name, asked, "vent", {})
    assert b'"text":"open"' in driver.tell(order.topic, order.payload, "answers")[0].payload


def test_a_class_that_inherits_what_all_models_share() -> None:
    driver = Driver.of(f"{OWN}:Counter", interval_s=10.0)
    reports = list(telemetry(driver.run(100.0)))
    assert [json.loads(report.payload)["count"] for report in reports] == list(range(1, 11))


@pytest.mark.parametrize(
    ("name", "says"),
    [
        (
            "no_such_package.x:Y",
            "model: no_such_package.x:Y: no module no_such_package; add its folder",
        ),
        (
            "tests.iot_sim.nothing:Y",
            "model: tests.iot_sim.nothing:Y: no module tests.iot_sim.nothing",
        ),
        (f"{OWN}:Beacn", f"model: {OWN} has no class 'Beacn'; did you mean Beacon?"),
        (f"{OWN}:not_a_class", f"model: {OWN} has no class 'not_a_class'"),
        (f"{OWN}:", f"model: {OWN} has no class ''"),
        (":Beacon", "model: :Beacon cannot be imported: ValueError: Empty module name"),
        (f"{OWN}:Incomplete", f"model: {OWN}:Incomplete has no will, will_delay_s, subscriptions,"),
        (f"{OWN}:Failing", f"model: {OWN}:Failing cannot be made: RuntimeError: no luck"),
        (f"{OWN}:Misdeclared", f"model: {OWN}:Misdeclared.INFO must be a ModelInfo, not str"),
    ],
)
def test_classes_that_cannot_be_used(name: str, says: str) -> None:
    assert refusal(name).startswith(says)


def test_a_module_that_fails_at_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "fails_at_import.py").write_text("1 / 0\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    assert refusal("fails_at_import:X") == (
        "model: fails_at_import:X cannot be imported: ZeroDivisionError: division by zero"
    )


# What the catalogue says of a model is true.


@pytest.mark.parametrize("model", models())
def test_defaults_are_within_their_limits(model: str) -> None:
    info = models()[model]
    names = [option.name for option in info.options]
    assert len(names) == len(set(names))
    for option in info.options:
        assert option.check(option.default) == option.default
        assert option.help
        assert option.help[-1] != "."


def matches(filter: str, topic: str) -> bool:
    levels, names = filter.split("/"), topic.split("/")
    if levels[-1] == "#":
        return names[: len(levels) - 1] == levels[:-1]
    return len(levels) == len(names) and all(
        level in ("+", name) for level, name in zip(levels, names, strict=True)
    )


@pytest.mark.parametrize("model", models())
def test_all_that_is_published_is_declared(model: str) -> None:
    info = models()[model]
    asked = spec(model, interval_s=300.0)
    driver = Driver(make(model, asked))
    driver.run(DAY_S / 2)
    for name, said in info.commands.items():
        order = command(model, asked, name, said.example)
        driver.tell(order.topic, order.payload)
        driver.run(DAY_S / 48)
    driver.lose()
    assert driver.will is not None
    filters = info.published(asked)
    for message in (driver.will, *(message for _, message in driver.said)):
        assert any(matches(filter, message.topic) for filter in filters), message.topic


@pytest.mark.parametrize("model", models())
def test_the_rate_is_what_is_declared(model: str) -> None:
    driver = Driver.of(model, interval_s=30.0)
    driver.run(6_000.0)
    reports = [message for _, message in driver.said if message.kind == "telemetry"]
    if model == "sparkplug_node":
        count = len(reports)
    else:
        count = sum(1 for _ in telemetry(reports))
    assert count == pytest.approx(200 * models()[model].per_interval({}), rel=0.01)


@pytest.mark.parametrize("model", models())
@pytest.mark.parametrize("payload", ["json", "cbor"])
def test_every_command_is_understood(model: str, payload: str) -> None:
    """As the catalogue writes it, with its example arguments."""
    info = models()[model]
    if payload not in info.payloads:
        payload = ""
    for name, said in info.commands.items():
        asked = spec(model, payload=payload)
        driver = Driver(make(model, asked))
        driver.run(100.0)
        order = command(model, asked, name, said.example)
        assert order.kind == COMMAND
        driver.wait_for_link()  # if it sleeps, the broker keeps the command until it wakes
        if name == "reset":
            continue  # there is no fault to be reset
        out = driver.tell(order.topic, order.payload, "answers/1", b"\x01\x02")
        answers = [message for message in out if message.kind == "response"]
        assert len(answers) == 1
        assert_success(answers[0], payload)


def assert_success(answer: Publication, payload: str) -> None:
    assert (answer.topic, answer.correlation, answer.qos) == ("answers/1", b"\x01\x02", 1)
    if payload == "json":
        assert b'"ok":true' in answer.payload
    elif payload == "cbor":
        assert b"bok\xf5" in answer.payload
    else:
        assert b"ok" in answer.payload
        assert b"\x38\x01" in answer.payload  # its error is null


def test_commands_that_are_not_there() -> None:
    asked = spec("machine")
    with pytest.raises(
        ModelError, match=r"^command: machine has no command 'rest'; did you mean reset\?$"
    ):
        command("machine", asked, "rest", {})
    with pytest.raises(ModelError, match=r"^arguments.device2: set_point takes device, value$"):
        command("sparkplug_node", spec("sparkplug_node"), "set_point", {"device2": 1})
    with pytest.raises(ModelError, match=r"^arguments: scan_rate takes numbers"):
        command("sparkplug_node", spec("sparkplug_node"), "scan_rate", {"ms": "1"})


def test_devices_start_spread_over_their_interval() -> None:
    firsts = sorted(
        make("environment", spec("environment", number=n, interval_s=100.0)).next_at() - START
        for n in range(1_000)
    )
    assert firsts[0] < 1
    assert 45 < firsts[500] < 55
    assert 99 < firsts[-1] <= 100
