"""Clients of certificates on a real listener: whose name counts, and which certificates do not."""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID as Usage
from cryptography.x509.oid import NameOID

from mqtt_broker.security.rules.rule_parser import rule_of
from mqtt_broker.server.config.config import Config
from mqtt_broker.server.config.security import AuthTable, SecurityConfig
from tests.core.peers import connect, subscribe
from tests.server.certificates import Authority, Issued
from tests.server.running import Running
from tests.server.transports import Files, endpoint, over_tls


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return Files(tmp_path_factory.mktemp("tls"))


def running(files: Files, source: str = "cn", **tls: str) -> Running:
    """A broker whose clients have a topic each, by the name in their certificate."""
    rule = rule_of(0, permit="allow", action="all", topic="fleet/%u/#")
    auth = AuthTable("certificate", "certificate", values={"username_from": source})
    config = Config(durability="memory", security=SecurityConfig(auth=(auth,), rules=(rule,)))
    return Running(endpoint(files.mutual(**tls)), config=config)


def user_of(broker: Running, files: Files, issued: Issued, *topics: str) -> tuple[str | None, int]:
    """The user name that the broker goes by, and how many of the topics are the client's.

    None: it was refused.
    """
    cert = files.client("client", issued)
    with over_tls(broker.port, files.ca, cert) as client:
        client.send(connect("c"))
        if client.packet()[3]:
            return None, 0
        name = broker.ask(lambda: broker.server.broker.connections["c"].username)
        allowed = 0
        for topic in topics:
            client.send(subscribe(5, topic))
            allowed += client.packet()[-1] < 0x80
        return name, allowed


def name_of(*parts: Sequence[str]) -> x509.Name:
    """A subject of relative distinguished names, each of common names."""
    return x509.Name(
        [
            x509.RelativeDistinguishedName(
                [x509.NameAttribute(NameOID.COMMON_NAME, one) for one in part]
            )
            for part in parts
        ]
    )


NUL = "pump-7\0.evil.example"


@pytest.mark.parametrize(
    ("subject", "username"),
    [
        (name_of(["pump-7"]), "pump-7"),
        (name_of([NUL]), None),  # CVE-2013-4238: read up to the null it is another's
        (name_of(["pump-7"], ["evil"]), None),
        (name_of(["pump-7", "evil"]), None),
        (name_of(["pump-7\n"]), None),
        (name_of(["pump-7\x1b[2J"]), None),
        (name_of([" pump-7"]), " pump-7"),
        (name_of(["PUMP-7"]), "PUMP-7"),
        (name_of(["pump-7,CN=admin"]), "pump-7,CN=admin"),
        (x509.Name([]), None),
    ],
    ids=repr,
)
def test_the_common_name_as_it_is(files: Files, subject: x509.Name, username: str | None) -> None:
    with running(files) as broker:
        found = user_of(broker, files, files.authority.issue("", subject=subject), "fleet/pump-7/a")
    assert found == (username, int(username == "pump-7"))


@pytest.mark.parametrize("name", ["+", "#", "*", "*.example", "a/b", "$SYS", "%u", "%c"])
def test_a_name_is_never_a_wildcard(files: Files, name: str) -> None:
    with running(files) as broker:
        found, allowed = user_of(
            broker, files, files.authority.issue(name), "fleet/+/#", "fleet/#", "fleet/pump-7/a",
            "fleet/a/b/c", "#", "$SYS/#", "fleet/c/a",
        )  # fmt: skip
    assert (found, allowed) == (name, 0)


@pytest.mark.parametrize(
    ("source", "names", "username"),
    [
        ("cn", [x509.DNSName("other")], "pump-7"),
        ("dns", [x509.DNSName("other")], "other"),
        ("dns", [x509.DNSName("a"), x509.DNSName("b")], None),
        ("dns", [x509.RFC822Name("a@b.c")], None),  # not the common name in its place
        ("dns", [x509.DNSName(NUL)], None),
        ("dns", [x509.UniformResourceIdentifier("DNS:other")], None),
        ("uri", [x509.UniformResourceIdentifier("urn:dev:7")], "urn:dev:7"),
        ("uri", [x509.DNSName("URI:urn:dev:7")], None),
        ("email", [x509.RFC822Name("a@b.c")], "a@b.c"),
    ],
)
def test_names_of_one_kind_are_not_taken_for_another(
    files: Files, source: str, names: list[x509.GeneralName], username: str | None
) -> None:
    issued = files.authority.issue("pump-7", extensions=[x509.SubjectAlternativeName(names)])
    with running(files, source) as broker:
        assert user_of(broker, files, issued)[0] == username


def certificates_that_do_not_count(files: Files) -> dict[str, Issued]:
    authority = files.authority
    device = authority.issue("device")
    return {
        "of the same name, by another key": Authority("Test CA").issue("pump-7"),
        "signed by a device": Authority(of=device).issue("pump-7"),
        "for servers": authority.issue(
            "pump-7", extensions=[x509.ExtendedKeyUsage([Usage.SERVER_AUTH])]
        ),
        "for code": authority.issue(
            "pump-7", extensions=[x509.ExtendedKeyUsage([Usage.CODE_SIGNING])]
        ),
        "not valid yet": authority.issue("pump-7", in_days=3),
        "expired": authority.issue("pump-7", days=-1),
    }


WRONG = (
    "of the same name, by another key", "signed by a device", "for servers", "for code",
    "not valid yet", "expired",
)  # fmt: skip


@pytest.mark.parametrize("why", WRONG)
def test_a_certificate_for_something_else(files: Files, why: str) -> None:
    issued = certificates_that_do_not_count(files)[why]
    with running(files) as broker:
        assert is_refused(broker, files, issued)
        assert user_of(broker, files, files.authority.issue("pump-7"))[0] == "pump-7"


def is_refused(broker: Running, files: Files, issued: Issued) -> bool:
    """Tell whether the handshake fails, which a client of TLS 1.3 learns when it reads."""
    cert = files.client("wrong", issued)
    try:
        with over_tls(broker.port, files.ca, cert) as client:
            client.send(connect("c"))
            client.packet()
    except (ssl.SSLError, EOFError, ConnectionError):
        broker.wait_until(lambda: broker.refusals == {"certificate": 1})
        return True
    return False


def test_a_list_of_revoked_certificates_that_is_too_old_lets_nobody_in(files: Files) -> None:
    crl = files.authority.write_crl(files.folder, days=-1)
    with running(files, crl=crl) as broker:
        assert is_refused(broker, files, files.authority.issue("pump-7"))


def test_a_ticket_does_not_outlive_a_certificate(files: Files, tmp_path: Path) -> None:
    """Nothing is remembered of a handshake that would spare the next one the look."""
    crl = files.authority.write_crl(tmp_path)
    issued = files.authority.issue("pump-7")
    cert = files.client("ticket", issued)
    context = ssl.create_default_context(cafile=files.ca)
    context.load_cert_chain(*cert)
    with running(files, crl=crl) as broker:
        with over_tls(broker.port, files.ca, context=context) as client:
            client.send(connect("c"))
            assert client.packet()[3] == 0
            assert isinstance(client.sock, ssl.SSLSocket)
            session = client.sock.session
            assert session is None or not session.has_ticket
        files.authority.write_crl(tmp_path, issued)
        broker.ask(broker.server.reload.all)
        assert is_refused(broker, files, issued)


def test_who_needs_no_certificate_has_no_name_by_one(files: Files) -> None:
    """`optional` without a certificate is nobody, not somebody without rules."""
    with running(files, verify="optional") as broker, over_tls(broker.port, files.ca) as client:
        client.send(connect("pump-7"))
        assert client.packet()[3] == 0x87
