"""Code of the user's own: named in the configuration, and wrong names are said at the start."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from mqtt_broker.server.config.config import Config, load
from mqtt_broker.server.config.tables import ConfigError
from mqtt_broker.server.services.extensions import load_strategy, partition_functions
from mqtt_broker.streams.format.stream_settings import StreamSettings
from mqtt_broker.topics.shared import STRATEGIES

HERE: Final = "tests.server.services.test_extensions"
MADE: Final = 5


def number(topic: str, client: str, payload: bytes, user: object) -> int:
    return MADE


def test_functions_of_the_list_and_of_streams_count() -> None:
    streams = (StreamSettings("a", partition_by=f"{HERE}.number"), StreamSettings("b"))
    found = partition_functions(Config(partition_functions=("os.getpid",), streams=streams))
    assert list(found) == ["os.getpid", f"{HERE}.number"]
    assert found[f"{HERE}.number"]("t", "c", b"", ()) == MADE


@pytest.mark.parametrize("name", ["no_module:Class", f"{HERE}:Nothing", f"{HERE}:MADE", "alone"])
def test_a_strategy_that_cannot_be_had_is_said(name: str) -> None:
    with pytest.raises(ConfigError, match=f"^shared_strategy {name}: "):
        load_strategy(name)
    assert load_strategy("sticky") is STRATEGIES["sticky"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("partition_functions = 'a.b'", "partition_functions is a list of strings, not 'a.b'"),
        ("partition_functions = ['client']", "partition_functions: 'client' is not the dotted"),
        ("partition_functions = ['a.b()']", "partition_functions: 'a.b()' is not the dotted"),
    ],
)
def test_what_is_no_function_is_refused_in_the_file(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "f.toml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load(str(path), {}, {})
    assert says in str(caught.value)


def test_the_environment_names_no_functions() -> None:
    with pytest.raises(
        ConfigError, match=r"FLEETMQ_PARTITION_FUNCTIONS: set .* in the configuration file"
    ):
        load(None, {"FLEETMQ_PARTITION_FUNCTIONS": "os.system"}, {})


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("no_such_module.function", "ModuleNotFoundError"),
        ("tests.server.services.test_extensions.nothing", "AttributeError"),
        ("tests.server.services.test_extensions.MADE", "is not a function"),
    ],
)
def test_a_function_that_cannot_be_had_is_said_at_the_start(name: str, says: str) -> None:
    with pytest.raises(ConfigError, match=f"^partition function: {name}.*{says}"):
        partition_functions(Config(partition_functions=(name,)))
