"""The list of tokens has names and roles, and nothing to log in with."""

from __future__ import annotations

from mqtt_broker.http_api.request.access import ADMIN, VIEWER, ApiToken, Credentials, digest_of
from mqtt_broker.http_api.v1.tokens import ROOT
from tests.http_api.brokers import LogBroker, Serving


def test_tokens_are_listed_without_their_secrets(broker: LogBroker) -> None:
    known = Credentials(
        [ApiToken("b", digest_of("tb"), ADMIN), ApiToken("a", digest_of("ta"), VIEWER)]
    )
    with Serving(broker, None, credentials=lambda: known) as http:
        found = http.get(f"{ROOT}?limit=1", headers={"Authorization": "Bearer tb"})
        assert found.json()["items"] == [{"name": "a", "role": "viewer"}]
        more = http.get(
            f"{ROOT}?cursor={found.json()['next']}", headers={"Authorization": "Bearer tb"}
        )
        assert more.json() == {
            "items": [{"name": "b", "role": "admin"}], "next": None, "total": 2,
        }  # fmt: skip
        assert digest_of("ta").encode() not in found.body + more.body
        assert http.get(ROOT, headers={"Authorization": "Bearer ta"}).status == 403
