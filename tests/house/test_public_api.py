"""The public API: each name is kept, documented, typed and importable, and imports stay light.

A name that is removed or renamed breaks other people's programs: docs/RELEASING.md says how that
is done. A new one is added here.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import subprocess
import sys
import typing
from pathlib import Path
from typing import Any, Final

import pytest

ROOT: Final = Path(__file__).parents[2]

PUBLIC: Final = {
    "mqtt_broker": """
        Access Allow Broker Challenge ClientLimits Config ConfigError ConnectRequest
        ConnectedClient Disconnected Endpoint Guard InProcessError Later Member Message
        MessageLog NotConnected NotPublished NotSubscribed OpenAccess PENDING PayloadCheck
        PayloadChecks PeerCertificate PublishRefused PublishedMessage Refusal Refuse Reply
        Server Settings StartError Strategy StrategyFactory StreamSubscriptions SubscribeRefused
        Subscription ThreadedBroker TopicWriter TurnLoop Verdict __version__
    """,
    "mqtt_broker.streams": """
        Batch CorruptBatch Damaged EndBeforeStart Invalid JournalBehind Locked Log LogWriter
        LostTail MissingSegment NotAllowed OffsetAhead OffsetGone Offsets Reader Record Rejected
        RemoteReader RemoteSource Source StreamError StreamGone StreamSettings UnknownPartition
        UnknownStream Unreachable UnreadableFile WrongEpoch list_streams open_reader open_source
        record_batches records verify
    """,
    "spark_ingest": """
        Batch Context Job OptionError Output Registry Sink SinkError load open_sink option
        register split
    """,
}
# Modules that programs import by their own names.
MODULES: Final = ("mqtt_broker.topics.shared", "spark_ingest.jobs.job", "spark_ingest.rejects")
# Modules that device models of users import: docs/SIMULATOR.md, "A model of your own".
MODEL_MODULES: Final = (
    "iot_sim.devices.commands", "iot_sim.devices.device", "iot_sim.devices.device_model",
    "iot_sim.devices.model_info", "iot_sim.devices.signals", "iot_sim.models.environment",
    "iot_sim.payloads.schema",
)  # fmt: skip
# Loaded by no `import` of a public package, but by the names that need them.
HEAVY: Final = (
    "asyncio ssl sqlalchemy alembic aiohttp websockets cryptography pyarrow pyspark pandas "
    "mqtt_broker.server mqtt_broker.core mqtt_broker.codec sessions"
).split()

NAMES: Final = [(package, name) for package, names in PUBLIC.items() for name in names.split()]


def _value(package: str, name: str) -> Any:
    return getattr(importlib.import_module(package), name)


@pytest.mark.parametrize("package", PUBLIC)
def test_the_list_is_declared_everywhere_alike(package: str) -> None:
    """In `__all__`, for type checkers, and for `__getattr__`."""
    module = importlib.import_module(package)
    wanted = set(PUBLIC[package].split())
    assert set(module.__all__) == wanted
    assert wanted <= set(dir(module))
    tree = ast.parse(Path(module.__file__ or "").read_text())
    [checking] = [node for node in tree.body if isinstance(node, ast.If)]
    typed = {
        alias.name: node.module
        for node in checking.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if alias.name in wanted
    }
    places = {name: place for place, names in module._PLACES.items() for name in names.split()}
    assert typed == places
    assert wanted - places.keys() <= set(vars(module))


@pytest.mark.parametrize(("package", "name"), NAMES)
def test_each_name_is_there_and_documented(package: str, name: str) -> None:
    value = _value(package, name)
    if inspect.isclass(value) or inspect.isroutine(value):
        own = value.__dict__.get("__doc__") if inspect.isclass(value) else value.__doc__
        assert own, f"{package}.{name} has no docstring"
        assert not own.startswith(f"{name}("), f"{name}: the docstring is a dataclass's own"


def _signatures() -> list[Any]:
    found = []
    for package, name in NAMES:
        value = _value(package, name)
        if inspect.isclass(value):
            members = [m for key, m in vars(value).items() if not key.startswith("_")]
            found += [pytest.param(m, id=f"{name}.{m.__name__}") for m in members if _is_typed(m)]
        elif inspect.isfunction(value):
            found.append(pytest.param(value, id=name))
    return found


def _is_typed(member: object) -> bool:
    return inspect.isfunction(member)


@pytest.mark.parametrize("function", _signatures())
def test_each_function_is_typed(function: Any) -> None:
    signature = inspect.signature(function)
    assert signature.return_annotation is not inspect.Signature.empty
    for parameter in signature.parameters.values():
        if parameter.name not in ("self", "cls"):
            assert parameter.annotation is not inspect.Parameter.empty, parameter


@pytest.mark.parametrize("package", PUBLIC)
def test_unknown_names_are_attribute_errors(package: str) -> None:
    with pytest.raises(AttributeError, match="no_such_name"):
        _value(package, "no_such_name")


@pytest.mark.parametrize("package", [*PUBLIC, "mqtt_broker.streams.format.records"])
def test_an_import_stays_light(package: str) -> None:
    heavy = HEAVY
    if package.count(".") > 1:  # a module of ours loads what it needs and no server
        heavy = [name for name in HEAVY if not name.startswith("mqtt_broker.codec")]
    script = f"import {package}, sys; print(*(n for n in {heavy!r} if n in sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT, check=True
    )
    assert done.stdout.split() == []


@pytest.mark.parametrize("package", ["mqtt_broker", "spark_ingest", "sessions", "qos", "iot_sim"])
def test_types_are_for_everybody(package: str) -> None:
    assert (ROOT / package / "py.typed").exists()


@pytest.mark.parametrize("module", MODULES)
def test_modules_that_programs_import_stay(module: str) -> None:
    assert importlib.import_module(module).__doc__


def test_documented_types_resolve() -> None:
    """A type checker's view: annotations of `Broker` name what exists."""
    broker = _value("mqtt_broker", "Broker")
    for name in ("publish", "subscribe", "__init__"):
        assert typing.get_type_hints(getattr(broker, name))
