"""Read a scenario from a TOML file. Each error is one line that names the key."""

from __future__ import annotations

import contextlib
import re
import string
from collections.abc import Collection, Iterator, Mapping
from datetime import UTC, datetime
from importlib import resources
from pathlib import Path
from typing import Any, Final

from iot_sim.devices.device import Device
from iot_sim.judge.verdict import LIMITS
from iot_sim.models.catalogue import ModelError, find, make
from iot_sim.scenarios import faults, load_shapes
from iot_sim.scenarios.faults import Fault
from iot_sim.scenarios.load_shapes import LoadShape
from iot_sim.scenarios.scenario import (
    VERSIONS,
    Command,
    Fleet,
    Observers,
    Qos,
    Scenario,
    ScenarioError,
    check_rate,
)
from mqtt_broker.codec.constants import V5
from mqtt_broker.server.config.tables import (
    ConfigError,
    Table,
    did_you_mean,
    read_toml,
    rows,
    tables,
)
from mqtt_broker.topics.names import name_problem, text_problem


def ready_scenarios() -> dict[str, Path]:
    """Return the scenarios that come with the simulator, by name."""
    folder = resources.files("iot_sim") / "scenarios"
    found = [Path(str(one)) for one in folder.iterdir() if one.name.endswith(".toml")]
    return {path.stem: path for path in sorted(found)}


def load(name: str) -> Scenario:
    """Load a scenario by the path of its file or by the name of a built-in one."""
    path = Path(name)
    ready = ready_scenarios()
    if not name.endswith(".toml") and "/" not in name:
        if name not in ready:
            raise ScenarioError(
                f"no scenario {name!r}{did_you_mean(name, ready)}; expected a path to a .toml file"
                f" or one of {', '.join(ready)}"
            )
        path = ready[name]
    try:
        data = read_toml(str(path))
    except ConfigError as error:
        raise ScenarioError(str(error)) from None
    try:
        return read(data, path.stem, str(path))
    except ScenarioError as error:
        raise ScenarioError(f"{path}: {error}") from None


DEVICES_MAX: Final = 1_000_000
START_DEFAULT: Final = "2026-01-01T00:00:00Z"
CLIENT_ID_DEFAULT: Final = "{fleet}-{number}"
PLACEHOLDERS: Final = ("fleet", "number", "client_id", "model")
SCENARIO_KEYS: Final = (
    "name", "summary", "duration_s", "seed", "start", "speed", "drain_s", "connect_rate_per_s",
    "keep_retained", "fleets", "faults", "commands", "observers", "limits",
)  # fmt: skip


def read(data: Mapping[str, Any], name: str, source: str = "") -> Scenario:
    """Make a scenario from its data. Raises ScenarioError."""
    try:
        return _read(Table(data, "", SCENARIO_KEYS), name, source)
    except ConfigError as error:
        raise ScenarioError(str(error)) from None


def _read(table: Table, name: str, source: str) -> Scenario:
    fleets = [_fleet(row, where) for where, row in rows("fleets", table.data.get("fleets", []))]
    if not fleets:
        raise table.error("fleets is missing: write at least one [[fleets]] table")
    names = [fleet.name for fleet in fleets]
    for place, fleet in enumerate(fleets):
        if fleet.name in names[:place]:
            raise ScenarioError(f"fleets {place + 1}: name {fleet.name!r} is used twice")
    duration_s = table.number("duration_s", None, 1.0, 31 * 86_400.0)
    limits, late_after_ms = _limits(table.table("limits", ("late_after_ms", *LIMITS)))
    scenario = Scenario(
        table.text("name", name),
        table.text("summary", ""),
        duration_s,
        table.whole("seed", 1, 0, 2**63 - 1),
        _start(table),
        table.number("speed", 1.0, 0.01, 100_000.0),
        table.number("drain_s", 15.0, 0.0, 3600.0),
        table.number("connect_rate_per_s", 1000.0, 0.1, 100_000.0),
        tuple(fleets),
        tuple(_fault(one, names) for one in _tables(table, "faults", FAULT_KEYS)),
        tuple(_command(one, fleets) for one in _tables(table, "commands", COMMAND_KEYS)),
        _observers(table.table("observers", OBSERVER_KEYS)),
        limits,
        late_after_ms,
        source,
        table.flag("keep_retained", False),
    )
    _check_times(scenario)
    check_rate(scenario, None)
    return scenario


def _tables(table: Table, key: str, keys: Collection[str]) -> Iterator[Table]:
    return tables(key, table.data.get(key, []), "", keys)


def _check_times(scenario: Scenario) -> None:
    for place, fault in enumerate(scenario.faults, 1):
        if fault.at_s >= scenario.duration_s:
            raise ScenarioError(
                f"faults {place}: at_s must be before the end of the run (duration_s ="
                f" {scenario.duration_s:g}), not {fault.at_s:g}"
            )
    for place, command in enumerate(scenario.commands, 1):
        if command.at_s >= scenario.duration_s:
            raise ScenarioError(
                f"commands {place}: at_s must be before the end of the run (duration_s ="
                f" {scenario.duration_s:g}), not {command.at_s:g}"
            )
    needed = scenario.device_count / scenario.connect_rate_per_s
    if needed > scenario.duration_s:
        raise ScenarioError(
            f"connect_rate_per_s must be {scenario.device_count / scenario.duration_s:,.3g} or"
            f" more, not {scenario.connect_rate_per_s:g}: {scenario.device_count:,} devices would"
            f" need {needed:,.0f} s to connect, and the run takes {scenario.duration_s:g} s"
        )


def _start(table: Table) -> float:
    value = table.data.get("start", START_DEFAULT)
    if value == "now":
        return datetime.now(UTC).timestamp()
    if isinstance(value, str):
        with contextlib.suppress(ValueError):
            value = datetime.fromisoformat(value)
    if not isinstance(value, datetime):
        raise table.error(f'start must be "now" or a time such as {START_DEFAULT}, not {value!r}')
    if value.tzinfo is None:
        value = value.replace(tzinfo=UTC)
    return value.timestamp()


# Fleets.

FLEET_KEYS: Final = (
    "name", "model", "count", "interval_s", "topic", "client_id", "qos", "payload", "mqtt",
    "options", "keep_alive_s", "session_expiry_s", "topic_alias", "backoff_min_s",
    "backoff_max_s", "jitter", "observe", "load",
)  # fmt: skip


def _fleet(data: Mapping[str, Any], where: str) -> Fleet:
    if isinstance(data.get("name"), str):
        where = f"fleets.{data['name']}"
    table = Table(data, where, FLEET_KEYS)
    name = table.text("name")
    if not re.fullmatch(r"[\w-]{1,64}", name, re.ASCII) or name == faults.OBSERVERS:
        raise table.error(
            f'name must be 1 to 64 letters, digits, _ and -, and not "observers", not {name!r}'
        )
    model = table.text("model")
    try:
        find(model)
    except ModelError as error:
        raise table.error(f"model: {error.text}") from None
    fleet = Fleet(
        name,
        model,
        table.whole("count", None, 1, DEVICES_MAX),
        table.number("interval_s", None, 0.001, 31 * 86_400.0),
        table.text("topic", "sim/{fleet}/{client_id}"),
        table.text("client_id", CLIENT_ID_DEFAULT),
        _qos(table),
        table.text("payload", ""),
        VERSIONS[table.choice("mqtt", VERSIONS, "5")],
        table.mapping("options"),
        table.whole("keep_alive_s", 60, 0, 65_535),
        table.whole("session_expiry_s", 300, 0, 0xFFFF_FFFF),
        table.flag("topic_alias", True),
        table.number("backoff_min_s", 1.0, 0.01, 3600.0),
        table.number("backoff_max_s", 60.0, 0.01, 86_400.0),
        table.number("jitter", 0.5, 0.0, 1.0),
        table.flag("observe", True),
        tuple(_shape(one, place) for place, one in _loads(table)),
    )
    if fleet.backoff_max_s < fleet.backoff_min_s:
        raise table.error(
            f"backoff_max_s must be at least backoff_min_s ({fleet.backoff_min_s:g}),"
            f" not {fleet.backoff_max_s:g}"
        )
    _check_templates(fleet, table)
    try:
        device_of(fleet, 0, 1, 0.0)
    except ModelError as error:
        raise table.error(str(error)) from None
    return fleet


def device_of(fleet: Fleet, number: int, seed: int, started_at: float) -> Device:
    return make(fleet.model, fleet.spec(number, seed, started_at))


def _check_templates(fleet: Fleet, table: Table) -> None:
    for key, template in (("topic", fleet.topic), ("client_id", fleet.client_id)):
        try:
            parts = list(string.Formatter().parse(template))
        except ValueError as error:
            raise table.error(f"{key} {template!r}: {error}") from None
        names = {name for _, name, _, _ in parts if name is not None}
        allowed = [one for one in PLACEHOLDERS if (key, one) != ("client_id", "client_id")]
        for name in sorted(names):
            if name not in allowed:
                raise table.error(
                    f"{key}: no placeholder {{{name}}}; expected {', '.join(allowed)}"
                )
        if any(spec or conversion for _, _, spec, conversion in parts):
            raise table.error(
                f"{key}: a placeholder is a name alone, without ! and :, not {template!r}"
            )
        if fleet.count > 1 and not names & {"number", "client_id"}:
            raise table.error(
                f"{key} must contain {{number}}, which is different for each device of a fleet,"
                f" not {template!r}"
            )
    spec = fleet.spec(fleet.count - 1, 0, 0.0)
    if problem := _topic_problem(spec.topic):
        raise table.error(f"topic {spec.topic!r}: {problem}")
    if "/" in spec.client_id or not spec.client_id.isprintable() or len(spec.client_id) > 200:
        raise table.error(
            f"client_id must be up to 200 printable characters without /, not {spec.client_id!r}"
        )


def _topic_problem(topic: str) -> str | None:
    if problem := name_problem(topic):
        return problem
    if topic.startswith("$"):
        return "topics that begin with $ are reserved for the broker"
    return None if topic.isprintable() else "it must not contain control characters"


def _qos(table: Table) -> Qos:
    value = table.data.get("qos", 0)
    if type(value) is int:
        if value not in (0, 1, 2):
            raise table.error(f"qos must be 0, 1 or 2, not {value}")
        return Qos((float(value == 0), float(value == 1), float(value == 2)))
    if not isinstance(value, Mapping) or not value:
        raise table.error(
            f"qos must be 0, 1, 2 or shares such as {{ 0 = 0.7, 1 = 0.3 }}, not {value!r}"
        )
    shares = Table(value, f"{table.where}: qos", ("0", "1", "2"))
    found = tuple(shares.number(key, 0.0, 0.0, 1.0) for key in ("0", "1", "2"))
    if abs(sum(found) - 1) > 0.001:
        raise table.error(f"the shares of qos must add up to 1, not {sum(found):g}")
    return Qos((found[0], found[1], found[2]))


def _loads(table: Table) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the load shapes of a file: one as a table, or several as an array."""
    found = table.data.get("load", [])
    if isinstance(found, Mapping):
        return iter([(f"{table.where}: load", found)])
    return rows("load", found, table.where)


def _shape(data: Mapping[str, Any], where: str) -> LoadShape:
    kind = Table(data, where, data).choice("shape", load_shapes.KINDS)
    allowed = load_shapes.KINDS[kind]
    for key in data:
        if key not in ("shape", "drives", *allowed):
            raise ScenarioError(
                f"{where}: the shape {kind} has no key {key}{did_you_mean(key, allowed)};"
                f" expected {', '.join(('drives', *allowed))}"
            )
    table = Table(data, where, data)
    drives = table.choice("drives", load_shapes.DRIVES, "rate")
    top = 1.0 if drives == "devices" else 1000.0
    shape = LoadShape(
        kind,
        drives,
        table.number("low", 1.0 if kind == "spike" and drives == "rate" else 0.0, 0.0, top),
        table.number("high", 1.0, 0.0, top),
        table.number("start_s", 0.0, 0.0),
        table.number("end_s", None if "end_s" in allowed else 0.0, 0.0),
        table.number("for_s", None if "for_s" in allowed else 0.0, 0.0),
        table.number("every_s", 0.0, 0.0),
        table.number("period_s", 86_400.0, 1.0),
        table.number("peak_s", 0.0, 0.0),
        table.whole("steps", 5 if kind == "steps" else 1, 1, 10_000),
    )
    if "end_s" in allowed and shape.end_s <= shape.start_s:
        raise table.error(
            f"end_s must be greater than start_s ({shape.start_s:g}), not {shape.end_s:g}"
        )
    return shape


# Faults, commands, observers, limits.


FAULT_KEYS: Final = (
    "kind", "fleet", "share", "at_s", "every_s", "spread_s", "for_s", "bytes_per_s",
)  # fmt: skip
COMMAND_KEYS: Final = (
    "fleet", "command", "arguments", "at_s", "every_s", "share", "spread_s", "qos", "timeout_s",
)  # fmt: skip
OBSERVER_KEYS: Final = ("connections", "shared", "session_expiry_s", "receive_maximum", "mqtt")


def _fault(table: Table, fleets: list[str]) -> Fault:
    kind = table.choice("kind", faults.KINDS)
    fleet = table.text("fleet", "")
    if fleet and fleet not in (*fleets, faults.OBSERVERS):
        raise table.error(_no_fleet(fleet, [*fleets, faults.OBSERVERS]))
    storm = kind == faults.STORM
    every_s = table.number("every_s", 0.0, 0.0)
    if 0 < every_s < 0.1:
        raise table.error(f"every_s must be 0 (once), or 0.1 or more, not {every_s:g}")
    return Fault(
        kind,
        fleet,
        table.number("share", 1.0 if storm else 0.1, 0.000_001, 1.0),
        table.number("at_s", 0.0, 0.0),
        every_s,
        table.number("spread_s", 0.0, 0.0),
        table.number("for_s", 0.0 if storm else 5.0, 0.0, 86_400.0),
        table.whole("bytes_per_s", 1000, 1, 1_000_000_000),
    )


def _command(table: Table, fleets: list[Fleet]) -> Command:
    name = table.text("fleet")
    fleet = next((one for one in fleets if one.name == name), None)
    if fleet is None:
        raise table.error(_no_fleet(name, [one.name for one in fleets]))
    if fleet.version != V5:
        raise table.error(f"fleet: {name} uses MQTT 3.1.1, which has no response topics")
    command = table.text("command")
    known = fleet.info.commands
    if command not in known:
        near = did_you_mean(command, known)
        listed = ", ".join(known) or "no commands"
        raise table.error(f"command: {fleet.model} has {listed}, not {command!r}{near}")
    return Command(
        name,
        command,
        table.mapping("arguments") if "arguments" in table else dict(known[command].example),
        table.number("at_s", 0.0, 0.0),
        table.number("every_s", 0.0, 0.0),
        table.number("share", 1.0, 0.000_001, 1.0),
        table.number("spread_s", 0.0, 0.0),
        table.whole("qos", 1, 0, 2),
        table.number("timeout_s", 10.0, 0.1, 86_400.0),
    )


def _no_fleet(name: str, fleets: list[str]) -> str:
    near = did_you_mean(name, fleets)
    return f"no fleet {name!r}{near}; expected {', '.join(fleets)}"


def _observers(table: Table) -> Observers:
    shared = table.text("shared", "")
    if text_problem(shared) or not shared.isprintable() or set(shared) & {"/", "+", "#"}:
        raise table.error(f"shared must be a share name without /, + and #, not {shared!r}")
    return Observers(
        table.whole("connections", 1, 1, 64),
        shared,
        table.whole("session_expiry_s", 3600, 0, 0xFFFF_FFFF),
        table.whole("receive_maximum", 65_535, 1, 65_535),
        VERSIONS[table.choice("mqtt", VERSIONS, "5")],
    )


def _limits(table: Table) -> tuple[dict[str, float], float]:
    found: dict[str, float] = {}
    for key, limit in LIMITS.items():
        if key in table:
            found[key] = table.number(key, None, 0.0, 1.0 if "share" in key else 1e15)
        elif limit.default is not None:
            found[key] = limit.default
    return found, table.number("late_after_ms", 1000.0, 0.0)
