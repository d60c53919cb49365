"""The API keeps what its own document says, whatever it is sent: cases made by schemathesis.

A few for each operation here; `make test-slow SLOW=tests/http_api/test_properties.py` makes many.
Operations that act on the machine, such as those that write backups or open listeners, are left to
the tests of their own.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, Phase, settings

from mqtt_broker.http_api.http_server import all_operations
from mqtt_broker.http_api.request import openapi
from mqtt_broker.http_api.request.http_limits import HttpLimits
from mqtt_broker.http_api.request.middleware import Site
from mqtt_broker.http_api.request.operations import JSON
from tests.core.peers import publish, subscribe
from tests.http_api.operated import Operated, operated
from tests.http_api.v1.test_clients import enter

schemathesis: Any = pytest.importorskip("schemathesis", reason="pip install schemathesis")
openapi_checks: Any = pytest.importorskip("schemathesis.specs.openapi.checks")
NOBODY: Final[Any] = Site  # never asked: only its types are read
CHANGED: Final = (  # beside all that only reads
    "/bans", "/clients", "/login", "/publish", "/retained", "/streams",
)  # fmt: skip
CHECKS: Final = [
    schemathesis.checks.not_a_server_error, openapi_checks.status_code_conformance,
    openapi_checks.content_type_conformance, openapi_checks.response_schema_conformance,
]  # fmt: skip


def _examined() -> dict[str, Any]:
    """The document without what acts on the machine, and what is no JSON."""
    found = openapi.document(all_operations(NOBODY), "1")
    for path, operations in found["paths"].items():
        part = path.removeprefix(openapi.PREFIX)
        for method in list(operations):
            answers = operations[method]["responses"]
            is_json = all(JSON in one["content"] for code, one in answers.items() if code[0] == "2")
            if not is_json or (method != "get" and not part.startswith(CHANGED)):
                del operations[method]
    found["paths"] = {path: known for path, known in found["paths"].items() if known}
    return found


SCHEMA: Final[Any] = schemathesis.openapi.from_dict(_examined())


@pytest.fixture(scope="module")
def site() -> Iterator[Operated]:
    with operated() as found:
        raw = enter(found, "c", expiry=600)
        raw.send(subscribe(5, "a/#", qos=1) + publish("a/b", b"x", qos=1, retain=True))
        yield found
        raw.sock.close()


def _check(site: Operated, case: Any) -> None:
    found = case.call(base_url=site.http.url, timeout=30)
    if len(found.request.path_url) > HttpLimits().line_bytes_max - 100:  # too long to be read
        assert found.status_code == 400
        return
    case.validate_response(found, checks=CHECKS)
    assert "Traceback" not in found.text


_QUIET: Final = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large]
_FEW: Final = settings(
    max_examples=6, derandomize=True, deadline=None, database=None, phases=[Phase.generate],
    suppress_health_check=_QUIET,
)  # fmt: skip
_MANY: Final = settings(
    max_examples=400, derandomize=True, deadline=None, database=None, phases=[Phase.generate],
    suppress_health_check=_QUIET,
)  # fmt: skip


def _keeps_its_word(case: Any, site: Operated) -> None:
    _check(site, case)


def _keeps_its_word_for_long(case: Any, site: Operated) -> None:
    _check(site, case)


test_each_operation = SCHEMA.parametrize()(_FEW(_keeps_its_word))
test_each_operation_for_long = pytest.mark.slow(
    SCHEMA.parametrize()(_MANY(_keeps_its_word_for_long))
)
