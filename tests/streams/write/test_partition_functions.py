"""Functions that choose partitions, imported by the names that the operator gives."""

from __future__ import annotations

import pytest

from mqtt_broker.streams.format.errors import Invalid
from mqtt_broker.streams.write.partition_functions import load_partition_functions

HERE = __name__
VALUE = 5


def by_size(topic: str, payload: bytes) -> int:
    return len(payload)


def test_functions_come_by_their_names() -> None:
    name = f"{HERE}.by_size"
    [(key, function)] = load_partition_functions([name]).items()
    assert key == name and function("t", b"abc") == 3  # type: ignore[call-arg,arg-type]
    assert load_partition_functions([]) == {}


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("no_such_module.function", "ModuleNotFoundError"),
        (f"{HERE}.nothing", "AttributeError"),
        (f"{HERE}.VALUE", "is not a function"),
    ],
)
def test_a_function_that_cannot_be_had_is_said(name: str, says: str) -> None:
    with pytest.raises(Invalid, match=f"^partition function: {name}.*{says}"):
        load_partition_functions([name])
