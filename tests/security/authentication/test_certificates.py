"""User names from client certificates: exactly one name of the kind, and no other certificate."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mqtt_broker.codec import reasons
from mqtt_broker.core.interfaces.access import ConnectRequest, PeerCertificate
from mqtt_broker.security.authentication.certificates import SOURCES, CertificateMethod
from mqtt_broker.security.authentication.chain import Denied, Proof

ROLES = frozenset({"device"})
CERTIFICATE = PeerCertificate(
    common_name="pump-1",
    names=("DNS:pump.example", "email:pump@example", "URI:urn:pump:1", "IP Address:192.0.2.1"),
)


def prove(source: str, certificate: PeerCertificate | None) -> Proof | Denied | None:
    request = ConnectRequest("c", "claimed", b"secret", 5, "192.0.2.1:1", certificate=certificate)
    found = CertificateMethod(source, roles=ROLES, name="x509").prove(request, 0.0)
    assert found is None or isinstance(found, Proof | Denied)
    return found


@pytest.mark.parametrize(
    ("source", "name"),
    [("cn", "pump-1"), ("dns", "pump.example"), ("email", "pump@example"), ("uri", "urn:pump:1")],
)
def test_each_source_takes_its_own_kind(source: str, name: str) -> None:
    assert prove(source, CERTIFICATE) == Proof(name, ROLES, method="x509")


def test_there_is_a_case_for_every_source() -> None:
    assert SOURCES == ("cn", "dns", "email", "uri")


@pytest.mark.parametrize("source", SOURCES)
def test_who_shows_no_certificate_is_left_to_the_next_method(source: str) -> None:
    assert prove(source, None) is None


@pytest.mark.parametrize("source", SOURCES)
def test_a_certificate_without_such_a_name_is_denied(source: str) -> None:
    found = prove(source, replace(CERTIFICATE, common_name="", names=("IP Address:192.0.2.1",)))
    assert isinstance(found, Denied) and found.reason == reasons.NOT_AUTHORIZED
    assert source in found.why


@pytest.mark.parametrize("source", ["dns", "email", "uri"])
def test_of_two_names_none_is_chosen(source: str) -> None:
    kind = {"dns": "DNS:", "email": "email:", "uri": "URI:"}[source]
    names = (*CERTIFICATE.names, f"{kind}admin")
    assert isinstance(prove(source, replace(CERTIFICATE, names=names)), Denied)
    assert prove("cn", replace(CERTIFICATE, names=names)) == Proof("pump-1", ROLES, method="x509")


@pytest.mark.parametrize("source", ["dns", "email", "uri"])
def test_an_empty_name_is_none(source: str) -> None:
    kind = {"dns": "DNS:", "email": "email:", "uri": "URI:"}[source]
    assert isinstance(prove(source, replace(CERTIFICATE, names=(kind,))), Denied)
