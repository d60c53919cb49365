"""Answers to changes that cannot be made: 400 for a wrong value, 404 for an unknown name."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from mqtt_broker.http_api.request.operating import InvalidChange, UnknownName
from mqtt_broker.http_api.request.problems import bad_request, not_found


@contextmanager
def changing() -> Iterator[None]:
    """Answer the errors of a change as problems."""
    try:
        yield
    except InvalidChange as error:
        raise bad_request(str(error)) from None
    except UnknownName as error:
        raise not_found(str(error)) from None
