"""JSON as Python types: check what a request holds, and describe it as JSON Schema.

A `Shape` is made from an annotation: `str`, `int`, `float`, `bool`, `Literal`, `X | None`,
`list[X]`, `dict[str, X]`, `Any`, a dataclass or a TypedDict. `Annotated[int, Limits(0, 9)]` narrows
it. What is checked and what the document says come from the same shape, so that they agree.
"""

from __future__ import annotations

import dataclasses
import math
import re
import types
import typing
from dataclasses import MISSING, dataclass
from functools import cache
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin, get_type_hints

from mqtt_broker.http_api.request.problems import bad_request

WHOLE_MAX: Final = (1 << 53) - 1  # that each JSON parser keeps as it is
_SHOWN: Final = 80  # characters of a wrong value in an error
_WHOLE: Final = re.compile(r"-?[0-9]{1,16}")
_NUMBER: Final = re.compile(r"-?[0-9]{1,16}(\.[0-9]{1,9})?")
_FLAGS: Final = {"true": True, "false": False}

Schema = dict[str, Any]
Components = dict[str, Schema]


@dataclass(frozen=True, slots=True)
class Limits:
    """Narrow an annotation: values of numbers, characters of texts, items of lists."""

    low: float | None = None
    high: float | None = None
    chars_min: int = 0
    chars_max: int | None = None
    items_max: int | None = None
    text: str = ""  # what it is, for the document


class Shape:
    """A type of JSON values: anything."""

    def schema(self, components: Components) -> Schema:
        """Describe it; parts with a name go to `components`."""
        return {}

    def read(self, value: Any, where: str) -> Any:
        """Return a value of a body; a Problem names `where` it is wrong."""
        return value

    def read_text(self, text: str, where: str) -> Any:
        """Return a value of a path or a query string."""
        return self.read(text, where)


def _wrong(where: str, value: object, expected: str) -> Exception:
    shown = value[:_SHOWN] if isinstance(value, str) else value
    return bad_request(f"invalid {where} {repr(shown)[: _SHOWN + 2]}: expected {expected}")


class _Text(Shape):
    def __init__(self, limits: Limits) -> None:
        self._limits = limits

    def schema(self, components: Components) -> Schema:
        found: Schema = {"type": "string"}
        if self._limits.chars_min:
            found["minLength"] = self._limits.chars_min
        if self._limits.chars_max is not None:
            found["maxLength"] = self._limits.chars_max
        return found

    def read(self, value: Any, where: str) -> str:
        if not isinstance(value, str):
            raise _wrong(where, value, "a string")
        limits = self._limits
        if len(value) < limits.chars_min:
            raise bad_request(f"{where} is empty" if not value else f"{where} is too short")
        if limits.chars_max is not None and len(value) > limits.chars_max:
            raise bad_request(f"{where} has more than {limits.chars_max} characters")
        try:
            value.encode()
        except UnicodeEncodeError:  # half a surrogate pair
            raise bad_request(f"{where} is not valid Unicode") from None
        return value


class _Number(Shape):
    def __init__(self, kind: type[int | float], limits: Limits) -> None:
        self._kind = kind
        low = limits.low if limits.low is not None else (-WHOLE_MAX if kind is int else -math.inf)
        high = limits.high if limits.high is not None else (WHOLE_MAX if kind is int else math.inf)
        self._low, self._high = low, high

    def schema(self, components: Components) -> Schema:
        found: Schema = {"type": "integer" if self._kind is int else "number"}
        if self._low > -math.inf:
            found["minimum"] = self._kind(self._low)
        if self._high < math.inf:
            found["maximum"] = self._kind(self._high)
        return found

    @property
    def _expected(self) -> str:
        called = "a whole number" if self._kind is int else "a number"
        if self._low == -math.inf and self._high == math.inf:
            return called
        if self._high in (math.inf, WHOLE_MAX):
            return f"{called} of {self._low:g} or more"
        return f"{called} from {self._low:g} to {self._high:g}"

    def read(self, value: Any, where: str) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise _wrong(where, value, self._expected)
        if self._kind is int:
            if isinstance(value, float) and not value.is_integer():
                raise _wrong(where, value, self._expected)
        elif isinstance(value, int) and abs(value) > WHOLE_MAX:
            raise _wrong(where, value, self._expected)
        if not self._low <= value <= self._high:
            raise _wrong(where, value, self._expected)
        return self._kind(value)

    def read_text(self, text: str, where: str) -> float:
        if not (_WHOLE if self._kind is int else _NUMBER).fullmatch(text):
            raise _wrong(where, text, self._expected)
        return self.read(self._kind(text), where)


class _Flag(Shape):
    def schema(self, components: Components) -> Schema:
        return {"type": "boolean"}

    def read(self, value: Any, where: str) -> bool:
        if not isinstance(value, bool):
            raise _wrong(where, value, "true or false")
        return value

    def read_text(self, text: str, where: str) -> bool:
        if text not in _FLAGS:
            raise _wrong(where, text, "true or false")
        return _FLAGS[text]


class _Choice(Shape):
    def __init__(self, choices: tuple[Any, ...]) -> None:
        self._choices = choices

    def schema(self, components: Components) -> Schema:
        return {"enum": list(self._choices)}

    def read(self, value: Any, where: str) -> Any:
        if isinstance(value, bool) or value not in self._choices:
            listed = ", ".join(str(choice) for choice in self._choices)
            raise _wrong(where, value, f"one of {listed}")
        return value


class Nullable(Shape):
    """A value or null."""

    def __init__(self, inner: Shape) -> None:
        self._inner = inner

    def schema(self, components: Components) -> Schema:
        return {"anyOf": [self._inner.schema(components), {"type": "null"}]}

    def read(self, value: Any, where: str) -> Any:
        return None if value is None else self._inner.read(value, where)

    def read_text(self, text: str, where: str) -> Any:
        return self._inner.read_text(text, where)

    @property
    def inner(self) -> Shape:
        """The shape of a value that is there."""
        return self._inner


class _OneOf(Shape):
    """A choice of shapes, of which each takes another kind of JSON value."""

    def __init__(self, shapes: list[Shape]) -> None:
        self._shapes = shapes

    def schema(self, components: Components) -> Schema:
        return {"anyOf": [shape.schema(components) for shape in self._shapes]}


class _List(Shape):
    def __init__(self, inner: Shape, limits: Limits) -> None:
        self._inner = inner
        self._most = limits.items_max

    def schema(self, components: Components) -> Schema:
        found: Schema = {"type": "array", "items": self._inner.schema(components)}
        if self._most is not None:
            found["maxItems"] = self._most
        return found

    def read(self, value: Any, where: str) -> list[Any]:
        if not isinstance(value, list):
            raise _wrong(where, value, "a list")
        if self._most is not None and len(value) > self._most:
            raise bad_request(f"{where} has {len(value)} items; the limit is {self._most}")
        return [self._inner.read(item, f"{where}[{n}]") for n, item in enumerate(value)]


class _Mapping(Shape):
    def __init__(self, inner: Shape) -> None:
        self._inner = inner

    def schema(self, components: Components) -> Schema:
        return {"type": "object", "additionalProperties": self._inner.schema(components)}

    def read(self, value: Any, where: str) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise _wrong(where, value, "an object")
        return {key: self._inner.read(item, f"{where}.{key[:40]}") for key, item in value.items()}


@dataclass(frozen=True, slots=True)
class Member:
    """A member of an object, or a parameter of a query string."""

    name: str
    shape: Shape
    is_required: bool
    default: Any
    text: str

    def schema(self, components: Components) -> Schema:
        found = self.shape.schema(components)
        if not self.is_required and self.default is not None:
            found = {**found, "default": self.default}
        return {**found, "description": self.text} if self.text else found


class Object(Shape):
    """An object with known members: a dataclass or a TypedDict."""

    def __init__(self, kind: type[Any], of: tuple[Any, ...] = ()) -> None:
        self.kind = kind
        self.members = _members(kind, of)
        self._prefix = "".join(getattr(one, "__name__", str(one)) for one in of)

    def schema(self, components: Components) -> Schema:
        name = (self._prefix + self.kind.__name__).replace("_", "")
        if name not in components:
            components[name] = {}  # it may refer to itself
            components[name] = self._described(components)
        return {"$ref": f"#/components/schemas/{name}"}

    def _described(self, components: Components) -> Schema:
        found: Schema = {
            "type": "object",
            "properties": {m.name: m.schema(components) for m in self.members},
        }
        if needed := [m.name for m in self.members if m.is_required]:
            found["required"] = needed
        if dataclasses.is_dataclass(self.kind):
            found["additionalProperties"] = False
        if text := _first_line(self.kind):
            found["description"] = text
        return found

    def read(self, value: Any, where: str) -> Any:
        if not isinstance(value, dict):
            raise _wrong(where, value, "an object")
        inside = "" if where == "the body" else f"{where}."
        known = {member.name for member in self.members}
        for key in value:
            if key not in known:
                listed = ", ".join(sorted(known)) or "nothing"
                raise bad_request(f"unknown key {(inside + key)[:_SHOWN]!r}: expected {listed}")
        found = {}
        for member in self.members:
            if member.name in value:
                found[member.name] = member.shape.read(value[member.name], inside + member.name)
            elif member.is_required:
                raise bad_request(f"{inside}{member.name} is missing")
        return self.kind(**found)

    def read_query(self, given: dict[str, str]) -> Any:
        """Return the object that a query string stands for; its keys are known."""
        found = {}
        for member in self.members:
            if member.name in given:
                found[member.name] = member.shape.read_text(given[member.name], member.name)
            elif member.is_required:
                raise bad_request(f"{member.name} is missing")
        return self.kind(**found)


def _members(kind: type[Any], of: tuple[Any, ...]) -> tuple[Member, ...]:
    hints = get_type_hints(kind, include_extras=True)
    if not dataclasses.is_dataclass(kind):
        return tuple(
            Member(name, shape_of(_bare(hint)), _is_needed(hint), None, _text_of(_bare(hint)))
            for name, hint in hints.items()
        )
    found = []
    for field in dataclasses.fields(kind):
        is_required = field.default is MISSING and field.default_factory is MISSING
        default = None if field.default is MISSING else field.default
        hint = hints[field.name]
        if of and getattr(hint, "__parameters__", ()):
            hint = hint[of]
        found.append(Member(field.name, shape_of(hint), is_required, default, _text_of(hint)))
    return tuple(found)


def _is_needed(hint: Any) -> bool:
    """Tell whether a member of a TypedDict is always there."""
    return get_origin(hint) is not typing.NotRequired


def _bare(hint: Any) -> Any:
    """Return what stands in NotRequired or Required."""
    return get_args(hint)[0] if get_origin(hint) in (typing.NotRequired, typing.Required) else hint


def _text_of(hint: Any) -> str:
    return _limits(hint).text if get_origin(hint) is Annotated else ""


def _limits(hint: Any) -> Limits:
    return next((one for one in get_args(hint)[1:] if isinstance(one, Limits)), Limits())


def _first_line(kind: type[Any]) -> str:
    text = kind.__doc__ or ""
    if text.startswith(f"{kind.__name__}("):  # a dataclass makes its own
        return ""
    return text.partition("\n")[0]


def shape_of(annotation: Any) -> Shape:
    """Return the shape of an annotation."""
    if get_origin(annotation) is Annotated:
        return _made(get_args(annotation)[0], _limits(annotation))
    return _made(annotation, Limits())


def _made(kind: Any, limits: Limits) -> Shape:
    origin = get_origin(kind)
    if kind is str:
        return _Text(limits)
    if kind is bool:
        return _Flag()
    if kind is int or kind is float:
        return _Number(kind, limits)
    if kind is Any or kind is object:
        return Shape()
    if origin is Literal:
        return _Choice(get_args(kind))
    if origin in (Union, types.UnionType):
        return _union([one for one in get_args(kind) if one is not type(None)], kind, limits)
    if origin is list:
        return _List(shape_of(get_args(kind)[0]), limits)
    if origin is dict or kind is dict:
        return _Mapping(shape_of(get_args(kind)[1]) if get_args(kind) else Shape())
    if dataclasses.is_dataclass(kind) or typing.is_typeddict(kind):
        return _object(kind)
    if isinstance(origin, type) and dataclasses.is_dataclass(origin):
        return Object(origin, get_args(kind))
    raise TypeError(f"no JSON type for {kind!r}")


def _union(parts: list[Any], kind: Any, limits: Limits) -> Shape:
    inner = _made(parts[0], limits) if len(parts) == 1 else _OneOf([shape_of(p) for p in parts])
    return Nullable(inner) if type(None) in get_args(kind) else inner


@cache
def _object(kind: type[Any]) -> Object:
    return Object(kind)


def json_default(value: object) -> Any:
    """Return a dataclass as a dict, for `json.dumps`."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    raise TypeError(f"{type(value).__name__} is no JSON")
