"""The base of models with plain topics: reports, state and will, commands, firmware updates.

A model inherits `DeviceModel`, implements `measure`, and lists its own commands in `COMMANDS`.
Its topics are below the root that the scenario configures:

    <root>/telemetry   a report every interval
    <root>/state       birth, changes of state and the will; retained
    <root>/firmware    stages of an update; retained
    <root>/event       events, at QoS 1
    <root>/cmd/<name>  commands; responses go to the response topic, with correlation data
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Final

from iot_sim.devices import firmware
from iot_sim.devices.commands import (
    COMMON,
    RESPONSE_FIELDS,
    CommandRefused,
    CommandResult,
    number,
    text,
)
from iot_sim.devices.device import (
    BIRTH,
    DEATH,
    RESPONSE,
    TELEMETRY,
    Publication,
    Spec,
    Subscription,
)
from iot_sim.devices.model_info import (
    BOOL,
    FLOAT,
    INT,
    INTERVAL_S_MAX,
    INTERVAL_S_MIN,
    STR,
    Command,
    ModelError,
    ModelInfo,
    Option,
)
from iot_sim.devices.scheduled_device import OPTIONS, ScheduledDevice
from iot_sim.payloads.layouts import CBOR, JSON, TEMPLATE, PayloadError, make_layout
from iot_sim.payloads.schema import BOOLEAN, DOUBLE, HEADER_FIELDS, LONG, STRING, Field
from iot_sim.payloads.templates import Template, TemplateError

COMMON_OPTIONS: Final = (
    *OPTIONS,
    Option("state_qos", INT, 1, "QoS of births, wills and other state", 0, 2),
    Option("retain_state", BOOL, True, "retain births, wills and other state"),
    Option("commands", BOOL, True, "subscribe to commands"),
    Option("firmware_s", FLOAT, 30.0, "duration of a download", 0, 86_400),
    Option("firmware_steps", INT, 4, "progress reports in a download", 1, 20),
    Option("firmware_fails", FLOAT, 0.0, "share of updates that fail verification", 0, 1),
    Option("template", STR, "", 'text of a report, for payload = "template"'),
)

STATE_FIELDS: Final = (
    Field("id", STRING),
    Field("ts", LONG, "ms"),
    Field("online", BOOLEAN),
    Field("reason", STRING, nullable=True, help="why the device is offline"),
    Field("model", STRING),
    Field("firmware", STRING),
    Field("boots", LONG),
    Field("interval_s", DOUBLE, "s"),
    Field("dropped", LONG, help="messages that did not fit into the buffer"),
)

EVENT_FIELDS: Final = (
    Field("id", STRING),
    Field("ts", LONG, "ms"),
    Field("event", STRING),
    Field("severity", STRING, choices=("info", "warning", "error")),
    Field("value", DOUBLE, nullable=True),
    Field("text", STRING, nullable=True),
)

CommandHandler = Callable[[Any, Mapping[str, Any], float], CommandResult]


class DeviceModel(ScheduledDevice):
    """A device with plain topics; models inherit from it."""

    MODEL: ClassVar[str] = "thing"  # `model` in its state messages
    FIELDS: ClassVar[tuple[Field, ...]] = ()  # of a report, without `id`, `seq` and `ts`
    COMMANDS: ClassVar[Mapping[str, CommandHandler]] = {}  # beside those of every device
    ORDERS: ClassVar[Mapping[str, CommandHandler]] = {}  # deprecated name of COMMANDS

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "ORDERS" in vars(cls):
            warnings.warn(
                f"{cls.__name__}.ORDERS is deprecated: use COMMANDS", DeprecationWarning, 2
            )
            cls.COMMANDS = cls.ORDERS
        cls.ORDERS = cls.COMMANDS

    def __init__(self, spec: Spec) -> None:
        super().__init__(spec)
        self.seq = 0
        self.update: firmware.Update | None = None
        self._root = spec.topic
        self._telemetry = spec.topic + "/telemetry"
        self._command_root = spec.topic + "/cmd/"
        self._layout = make_layout(
            spec.payload, spec.client_id, self.FIELDS, self._make_template(spec)
        )
        self.setup(spec.options)

    # For a model to override.

    def setup(self, options: Mapping[str, Any]) -> None:
        """Create the model's signals and other state; called once, before all other methods."""

    def measure(self, t: float) -> Sequence[Any]:
        """Return the values of `FIELDS` at `t`."""
        return ()

    # The contract with the fleet.

    def will(self, now: float) -> Publication | None:
        return self._state(now, online=False, reason="lost")

    def subscriptions(self) -> list[Subscription]:
        return [Subscription(self._command_root + "+")] if self.spec.options["commands"] else []

    def on_message(self, message: Publication, now: float) -> list[Publication]:
        before = self.catch_up(now)
        name = message.topic.removeprefix(self._command_root)
        if self.down or name == message.topic:
            return before
        value: float | None = None
        text: str | None = None
        error: str | None = None
        publications: list[Publication] = []
        try:
            result = self._execute(name, self._layout.read(message.payload), now)
            value, text, publications = result.value, result.text, result.publications
        except (CommandRefused, PayloadError) as refusal:
            error = str(refusal)
        to = message.response_topic
        if not to or "+" in to or "#" in to:
            return [*before, *self.publish_or_buffer(publications)]
        content = {
            "id": self.spec.client_id,
            "ts": self.clock.read_ms(now),
            "command": name,
            "ok": error is None,
            "error": error,
            "value": value,
            "text": text,
        }
        response = self.document(to, content, RESPONSE, qos=1)
        response.correlation = message.correlation
        return [*before, *self.publish_or_buffer([response, *publications])]

    def goodbye(self, now: float) -> list[Publication]:
        return [self._state(now, online=False, reason="reboot" if self.down else "shutdown")]

    # For models to call.

    def report(self, t: float) -> Publication:
        """Measure at `t`, and return the report."""
        self.seq += 1
        payload = self._layout.report(self.seq, self.clock.read_ms(t), self.measure(t))
        return Publication(
            self._telemetry, payload, self.spec.qos, False, TELEMETRY, self._layout.content_type
        )

    def reports(self, t: float) -> list[Publication]:
        """Return the report that was due at `t`, and the messages that go with it."""
        return [self.report(t)]

    def event(
        self,
        now: float,
        name: str,
        severity: str = "info",
        value: float | None = None,
        text: str | None = None,
    ) -> Publication:
        """Make a message about an event, for `<root>/event`."""
        content = {
            "id": self.spec.client_id,
            "ts": self.clock.read_ms(now),
            "event": name,
            "severity": severity,
            "value": value,
            "text": text,
        }
        return self.document(self._root + "/event", content, TELEMETRY, qos=1)

    def document(
        self,
        topic: str,
        content: Mapping[str, Any],
        kind: str,
        *,
        qos: int,
        retain: bool = False,
    ) -> Publication:
        payload = self._layout.document(content)
        return Publication(topic, payload, qos, retain, kind, self._layout.document_type)

    def births(self, now: float) -> list[Publication]:
        """Return the publications that begin a new connection."""
        out = [self._state(now, online=True)]
        if self.update is not None:
            out.append(self._progress(self.update, now))
            if self.update.over:
                self.update = None
        return out

    def booted(self, now: float) -> list[Publication]:
        self.seq = 0
        if self.update is not None and self.update.stage == firmware.REBOOTING:
            self.firmware = self.update.version
            self.update.step()
        else:
            self.update = None  # interrupted: the old version stays
        return []

    # Internal.

    def _make_template(self, spec: Spec) -> Template | None:
        if spec.payload != TEMPLATE:
            return None
        if not spec.options["template"]:
            raise ModelError("options.template", 'is missing: payload = "template" needs it')
        fixed = {
            "id": spec.client_id,
            "number": str(spec.number),
            "fleet": spec.fleet,
            "model": self.MODEL,
            "topic": spec.topic,
        }
        try:
            return Template(spec.options["template"], self.FIELDS, fixed)
        except TemplateError as error:
            raise ModelError("options.template", str(error)) from None

    def _state(self, now: float, *, online: bool, reason: str | None = None) -> Publication:
        options = self.spec.options
        content = {
            "id": self.spec.client_id,
            "ts": self.clock.read_ms(now),
            "online": online,
            "reason": reason,
            "model": self.MODEL,
            "firmware": self.firmware,
            "boots": self.boots,
            "interval_s": self.interval,
            "dropped": self.dropped,
        }
        return self.document(
            self._root + "/state",
            content,
            BIRTH if online else DEATH,
            qos=options["state_qos"],
            retain=options["retain_state"],
        )

    def _execute(self, name: str, args: Mapping[str, Any], now: float) -> CommandResult:
        if handler := _COMMON_COMMANDS.get(name) or self.COMMANDS.get(name):
            return handler(self, args, now)
        known = ", ".join(sorted({**_COMMON_COMMANDS, **self.COMMANDS}))
        raise CommandRefused(f"no such command; expected one of {known}")

    def _command_ping(self, args: Mapping[str, Any], now: float) -> CommandResult:
        return CommandResult(value=now - self.up_since)

    def _command_set_interval(self, args: Mapping[str, Any], now: float) -> CommandResult:
        self.set_interval(number(args, "interval_s", INTERVAL_S_MIN, INTERVAL_S_MAX), now)
        return CommandResult(value=self.interval, publications=[self._state(now, online=True)])

    def _command_reboot(self, args: Mapping[str, Any], now: float) -> CommandResult:
        self.reboot(now)
        return CommandResult(value=self.spec.options["reboot_s"])

    def _command_firmware(self, args: Mapping[str, Any], now: float) -> CommandResult:
        version = text(args, "version")
        if self.update is not None:
            raise CommandRefused(f"an update to {self.update.version} is in progress")
        if version == self.firmware:
            return CommandResult(text="already installed")
        options = self.spec.options
        fails = options["firmware_fails"] and self.event_rng.random() < options["firmware_fails"]
        self.update = firmware.Update(
            version,
            self.firmware,
            lasts_s=options["firmware_s"],
            steps=options["firmware_steps"],
            fails=bool(fails),
        )
        self.call_at(now + self.update.step_s, self._step_update)
        return CommandResult(text="accepted", publications=[self._progress(self.update, now)])

    def _step_update(self, now: float) -> list[Publication]:
        update = self.update
        assert update is not None
        if update.stage == firmware.DOWNLOADING and not self.connected:
            self.call_at(now + update.step_s, self._step_update)  # the download waits
            return []
        update.step()
        out = self.publish_or_buffer([self._progress(update, now)])
        if update.stage == firmware.REBOOTING:
            self.reboot(now)
        elif update.over:
            self.update = None
        else:
            self.call_at(now + update.step_s, self._step_update)
        return out

    def _progress(self, update: firmware.Update, now: float) -> Publication:
        options = self.spec.options
        content = {
            "id": self.spec.client_id,
            "ts": self.clock.read_ms(now),
            "version": update.version,
            "was": update.was,
            "stage": update.stage,
            "percent": update.percent,
            "error": update.error,
        }
        return self.document(
            self._root + "/firmware",
            content,
            BIRTH,
            qos=options["state_qos"],
            retain=options["retain_state"],
        )


_COMMON_COMMANDS: Final[Mapping[str, CommandHandler]] = {
    "ping": DeviceModel._command_ping,
    "set_interval": DeviceModel._command_set_interval,
    "reboot": DeviceModel._command_reboot,
    "firmware": DeviceModel._command_firmware,
}


def describe(
    model: type[DeviceModel],
    summary: str,
    options: tuple[Option, ...],
    *,
    documents: Mapping[str, tuple[Field, ...]] | None = None,
    commands: Mapping[str, Command] | None = None,
    payloads: tuple[str, ...] = (JSON, CBOR, TEMPLATE),
    per_interval: Callable[[Mapping[str, Any]], float] = lambda options: 1.0,
) -> ModelInfo:
    """Describe a model for the catalogue, with what every `DeviceModel` has."""
    return ModelInfo(
        name=model.MODEL,
        summary=summary,
        build=model,
        options=(*options, *COMMON_OPTIONS),
        payloads=payloads,
        documents={
            "telemetry": (*HEADER_FIELDS, *model.FIELDS),
            "state": STATE_FIELDS,
            "firmware": firmware.FIELDS,
            "response": RESPONSE_FIELDS,
            **(documents or {}),
        },
        commands={**COMMON, **(commands or {})},
        published=lambda spec: tuple(
            f"{spec.topic}/{name}"
            for name in ("telemetry", "state", "firmware", *(documents or {}))
        ),
        per_interval=per_interval,
    )


def inherit(
    model: type[DeviceModel], name: str, summary: str, known: Iterable[ModelInfo]
) -> ModelInfo:
    """Describe a class that inherits from a model and has no description of its own."""
    of_class = {info.build: info for info in known}
    base = next((of_class[cls] for cls in model.__mro__ if cls in of_class), None)
    if base is None:
        base = describe(model, summary, ())
    own = {
        name: Command("a command of this class")
        for name in model.COMMANDS
        if name not in base.commands
    }
    return replace(
        base,
        name=name,
        summary=summary,
        build=model,
        documents={**base.documents, "telemetry": (*HEADER_FIELDS, *model.FIELDS)},
        commands={**base.commands, **own},
    )
