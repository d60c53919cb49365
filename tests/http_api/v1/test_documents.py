"""openapi.json over HTTP: whole, the same each time, and not fetched twice."""

from __future__ import annotations

from mqtt_broker.http_api.v1.documents import PATH
from tests.http_api.brokers import Serving


def test_the_document_describes_itself_and_has_an_etag(http: Serving) -> None:
    found = http.get(PATH)
    document = found.json()
    assert document["openapi"].startswith("3.1") and PATH in document["paths"]
    assert "/api/v1/streams/{name}" in document["paths"] and "/metrics" not in document["paths"]
    assert http.get(PATH, headers={"If-None-Match": found.headers["ETag"]}).status == 304
