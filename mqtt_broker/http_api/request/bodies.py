"""Read JSON bodies and query strings: every key must be known, every value is checked."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Collection, Mapping
from dataclasses import fields
from typing import Any, Final

from aiohttp import web

from mqtt_broker.http_api.request.http_limits import HttpLimits
from mqtt_broker.http_api.request.problems import Problem, bad_request
from mqtt_broker.streams.format.errors import Invalid
from mqtt_broker.streams.format.nesting import BODY_LEVELS_MAX, json_problem
from mqtt_broker.streams.format.stream_settings import StreamSettings

NUMBER_MAX: Final = (1 << 63) - 1
_WHOLE: Final = re.compile(r"[0-9]{1,19}")
_SECONDS: Final = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?")
_KINDS: Final[dict[str, tuple[type, str]]] = {
    "str": (str, "a string"),
    "int": (int, "a whole number"),
    "bool": (bool, "true or false"),
}


async def read_object(request: web.Request, limits: HttpLimits) -> dict[str, Any]:
    """Return the body, a JSON object; {} when there is none."""
    try:
        async with asyncio.timeout(limits.body_s):
            data = await request.read()
    except TimeoutError:
        raise Problem(
            408, "RequestTimeout", f"the body did not arrive within {limits.body_s:g} s"
        ) from None
    except web.HTTPRequestEntityTooLarge:
        raise Problem(
            413, "TooLarge", f"the body is larger than {limits.body_bytes_max} bytes"
        ) from None
    except web.RequestPayloadError as error:
        raise bad_request(f"the body cannot be read: {error}") from None
    if not data:
        return {}
    try:
        found = json.loads(data, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        raise bad_request("the body is not JSON") from None
    if not isinstance(found, dict):
        raise bad_request("the body is not a JSON object")
    if problem := json_problem(found, BODY_LEVELS_MAX, limits.body_bytes_max):
        raise bad_request(f"the body is refused: {problem}")
    return found


def _no_constant(text: str) -> None:
    raise ValueError(text)


def check_keys(found: Mapping[str, Any], known: Collection[str]) -> None:
    """Refuse a body with an unknown key."""
    for key in found:
        if key not in known:
            raise bad_request(f"unknown key {key[:80]!r}: expected {_listed(known)}")


def _listed(known: Collection[str]) -> str:
    return ", ".join(sorted(known)) or "nothing"


def checked_settings(found: Mapping[str, Any]) -> dict[str, Any]:
    """Check names and types of a stream's settings; StreamSettings checks their values."""
    kinds = {
        field.name: str(field.type) for field in fields(StreamSettings) if field.name != "epoch"
    }
    for key, value in found.items():
        if key not in kinds:
            raise Invalid(key[:80], f"unknown setting: expected one of {_listed(kinds)}")
        if key == "schema":
            if value is not None and not isinstance(value, dict):
                raise Invalid(key, "a JSON Schema must be a JSON object")
            continue
        kind, called = _KINDS[kinds[key]]
        if type(value) is not kind:
            raise Invalid(key, f"{json.dumps(value)[:80]} is not {called}")
        if isinstance(value, int) and not -NUMBER_MAX <= value <= NUMBER_MAX:
            raise Invalid(key, "the number is too large")
    return dict(found)


def check_parameters(request: web.Request, known: Collection[str]) -> dict[str, str]:
    """Return the query string; refuse unknown keys, and a key that is given twice."""
    found: dict[str, str] = {}
    for key, value in request.query.items():
        if key not in known:
            raise bad_request(f"unknown parameter {key[:80]!r}: expected {_listed(known)}")
        if key in found:
            raise bad_request(f"{key} is given twice")
        found[key] = value
    return found


class Query:
    """A query string: only known keys, and each at most once."""

    def __init__(self, request: web.Request, *known: str) -> None:
        self._found = check_parameters(request, known)

    def text(self, key: str, default: str = "") -> str:
        """Return the text of a parameter."""
        return self._found.get(key, default)

    def whole(self, key: str, default: int | None = None) -> int:
        """Return a whole number of 0 or more; without a default it is required."""
        text = self._found.get(key)
        if text is None:
            if default is None:
                raise bad_request(f"{key} is missing")
            return default
        if not _WHOLE.fullmatch(text) or int(text) > NUMBER_MAX:
            raise bad_request(f"invalid {key} {text[:80]!r}: expected a whole number of 0 or more")
        return int(text)

    def seconds(self, key: str, most: float) -> float:
        """Return a number of seconds; 0 when it is missing."""
        text = self._found.get(key, "0")
        if not _SECONDS.fullmatch(text) or float(text) > most:
            raise bad_request(f"invalid {key} {text[:80]!r}: expected a number from 0 to {most:g}")
        return float(text)
