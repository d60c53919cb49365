"""Types of JSON: what is read agrees with what the schema says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal, NotRequired, TypedDict

import jsonschema_rs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqtt_broker.http_api.request.json_types import Limits, Object, json_default, shape_of
from mqtt_broker.http_api.request.problems import Problem
from tests.property_examples import examples

CHECK: Final = examples()


@dataclass(frozen=True, slots=True)
class Inner:
    """What is inside."""

    flag: bool = False


@dataclass(frozen=True, slots=True)
class Outer:
    number: Annotated[int, Limits(0, 9, text="a digit")]
    name: Annotated[str, Limits(chars_min=1, chars_max=3)] = "x"
    choice: Literal["a", "b"] = "a"
    many: Annotated[list[int] | None, Limits(items_max=2)] = None
    inner: Inner | None = None
    map: dict[str, float] | None = None


class Shown(TypedDict):
    must: int
    may: NotRequired[str]


def test_an_object_is_read_with_its_defaults() -> None:
    shape = shape_of(Outer)
    assert shape.read({"number": 3}, "the body") == Outer(3)
    found = shape.read({"number": 3.0, "inner": {"flag": True}, "map": {"k": 1}}, "the body")
    assert found == Outer(3, inner=Inner(True), map={"k": 1.0})
    assert json_default(found)["inner"] == Inner(True)


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ({}, "number is missing"),
        ({"number": 10}, "invalid number 10: expected a whole number from 0 to 9"),
        ({"number": True}, "invalid number True: expected a whole number"),
        ({"number": 1.5}, "invalid number 1.5"),
        ({"number": 1, "name": ""}, "name is empty"),
        ({"number": 1, "name": "long"}, "more than 3 characters"),
        ({"number": 1, "name": "\ud800"}, "not valid Unicode"),
        ({"number": 1, "choice": "c"}, "invalid choice 'c': expected one of a, b"),
        ({"number": 1, "many": [1, 2, 3]}, "the limit is 2"),
        ({"number": 1, "many": ["x"]}, r"invalid many\[0\] 'x'"),
        ({"number": 1, "inner": {"flag": 1}}, "invalid inner.flag 1: expected true or false"),
        ({"number": 1, "inner": {"x": 1}}, "unknown key 'inner.x': expected flag"),
        ({"number": 1, "map": {"k": "v"}}, "invalid map.k 'v': expected a number"),
        ({"number": 1, "x": 1}, "unknown key 'x': expected choice, inner"),
    ],
)
def test_each_mistake_is_named(body: dict[str, Any], why: str) -> None:
    with pytest.raises(Problem, match=why) as problem:
        shape_of(Outer).read(body, "the body")
    assert problem.value.status == 400 and "\n" not in str(problem.value)


def test_a_query_string_is_read_from_texts() -> None:
    shape = shape_of(Outer)
    assert isinstance(shape, Object)
    assert shape.read_query({"number": "7", "choice": "b"}) == Outer(7, choice="b")
    for text in ("7.0", "x", "", "+7", "1e0", "\u0667"):
        with pytest.raises(Problem, match="invalid number"):
            shape.read_query({"number": text})
    assert shape_of(bool).read_text("true", "f") is True
    with pytest.raises(Problem, match="true or false"):
        shape_of(bool).read_text("1", "f")


def test_the_schema_of_a_typed_dict_and_of_what_refers_to_others() -> None:
    components: dict[str, Any] = {}
    assert shape_of(Shown).schema(components) == {"$ref": "#/components/schemas/Shown"}
    assert components["Shown"]["required"] == ["must"]
    shape_of(Outer).schema(components)
    assert components["Outer"]["properties"]["number"] == {
        "type": "integer", "minimum": 0, "maximum": 9, "description": "a digit",
    }  # fmt: skip
    assert components["Inner"]["description"] == "What is inside."


VALUES: Final = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 12) | st.floats(-2, 2) | st.text("abx", max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["flag", "k"]), inner, max_size=2)
    ),
)
KEYS: Final = ("number", "name", "choice", "many", "inner", "map", "other")


@CHECK
@given(st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=4), st.integers(-1, 10))
def test_what_is_read_is_what_the_schema_allows(body: dict[str, Any], number: int) -> None:
    body = {"number": number, **body}
    components: dict[str, Any] = {}
    schema = {**shape_of(Outer).schema(components), "components": {"schemas": components}}
    try:
        shape_of(Outer).read(body, "the body")
        is_read = True
    except Problem:
        is_read = False
    assert jsonschema_rs.is_valid(schema, body) is is_read, body
