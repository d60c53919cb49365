"""`/api/v1/listeners` and `/certificates`: listeners of the running broker, and what they show.

What is changed here holds until the broker stops; the configuration file is not written. Each
answer says so: `after_restart`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Final, TypedDict

from cryptography import x509
from cryptography.x509.oid import NameOID

from mqtt_broker.http_api.request import access
from mqtt_broker.http_api.request.changes import changing
from mqtt_broker.http_api.request.json_types import Limits
from mqtt_broker.http_api.request.middleware import Site
from mqtt_broker.http_api.request.operating import (
    OPERATING,
    CertificateFile,
    ListenerFigures,
    UnknownName,
)
from mqtt_broker.http_api.request.operations import Call, Operation, Reply, delete, get, patch, post

ROOT: Final = "/api/v1/listeners"


class Listeners(TypedDict):
    """The listeners that are open."""

    items: list[ListenerFigures]
    total: int


@dataclass(frozen=True, slots=True)
class WithConnections:
    """Options for closing a listener."""

    disconnect: Annotated[bool, Limits(text="disconnect its clients, too")] = False


class Closed(TypedDict):
    """A listener that was closed."""

    closed: str
    connections: Annotated[int, Limits(text="that it had")]
    after_restart: Annotated[str, Limits(text="open if the configuration has it, or gone")]


class CertificateItem(TypedDict):
    """A certificate of a listener, as it was read."""

    listener: str
    key: Annotated[str, Limits(text="cert or ca")]
    file: str
    subject: str
    issuer: str
    serial: str
    names: list[str]
    begins_at: Annotated[float, Limits(text="Unix time")]
    ends_at: Annotated[float, Limits(text="Unix time")]


class Certificates(TypedDict):
    """Certificates of all listeners, those that end first at the top."""

    items: list[CertificateItem]
    total: int


def operations(site: Site) -> list[Operation]:
    """Return the operations of listeners and their certificates."""
    page = _Listeners(site)
    one = f"{ROOT}/{{name}}"
    return [
        get(ROOT, page.list),
        post(ROOT, page.add, role=access.ADMIN, status=201, errors=(409,)),
        get(one, page.show, etag=True, errors=(404,)),
        patch(one, page.change, role=access.ADMIN, etag=True, errors=(404, 409, 412)),
        delete(one, page.close, role=access.ADMIN, errors=(404, 409, 412)),
        get("/api/v1/certificates", page.certificates),
    ]


class _Listeners:
    def __init__(self, site: Site) -> None:
        self._site = site

    async def list(self) -> Listeners:
        """List the listeners that are open."""
        listed = await self._site.ask(self._site.broker.part(OPERATING).listeners)
        found = list(listed)
        return {"items": found, "total": len(found)}

    async def show(self, name: str) -> ListenerFigures:
        """Show a listener, by its name or its address."""
        return await self._find(name)

    async def add(self, body: dict[str, Any]) -> Reply[ListenerFigures]:
        """Listen on another address from now on; the keys are those of `[[listeners]]`."""
        operating = self._site.broker.part(OPERATING)
        with changing():
            made = await self._site.ask(operating.listener_add, body)
        return Reply(made, 201)

    async def change(self, name: str, body: dict[str, Any], call: Call) -> ListenerFigures:
        """Change keys of a listener; null is the default again. Connections stay as they are."""
        call.check_match(await self._find(name))
        operating = self._site.broker.part(OPERATING)
        with changing():
            return await self._site.ask(operating.listener_change, name, body)

    async def close(self, name: str, query: WithConnections, call: Call) -> Closed:
        """Close a listener; its connections stay, unless `disconnect` is true."""
        found = await self._find(name)
        call.check_match(found)
        operating = self._site.broker.part(OPERATING)
        with changing():
            count = await self._site.ask(
                operating.listener_close, name, disconnect=query.disconnect
            )
        after = "open" if found.is_from_file else "gone"
        return {"closed": name, "connections": count, "after_restart": after}

    async def certificates(self) -> Certificates:
        """List the certificates of listeners, and when they end."""
        files = await self._site.ask(self._site.broker.part(OPERATING).certificates)
        found = [item for file in files for item in _items(file)]
        found.sort(key=lambda item: item["ends_at"])
        return {"items": found, "total": len(found)}

    async def _find(self, name: str) -> ListenerFigures:
        for one in await self._site.ask(self._site.broker.part(OPERATING).listeners):
            if one.name == name:
                return one
        with changing():
            raise UnknownName(f"no listener is named {name!r}")


def _items(file: CertificateFile) -> Iterator[CertificateItem]:
    try:
        found = x509.load_pem_x509_certificates(file.pem)
    except ValueError:  # OpenSSL took it, and this library does not
        return
    for one in found:
        yield {
            "listener": file.listener,
            "key": file.key,
            "file": file.file,
            "subject": one.subject.rfc4514_string(),
            "issuer": one.issuer.rfc4514_string(),
            "serial": f"{one.serial_number:X}",
            "names": _names(one),
            "begins_at": one.not_valid_before_utc.timestamp(),
            "ends_at": one.not_valid_after_utc.timestamp(),
        }


def _names(certificate: x509.Certificate) -> list[str]:
    """Return the names of the subject: alternative names, or else the common name."""
    try:
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    except (x509.ExtensionNotFound, ValueError):
        names = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
        return [str(name.value) for name in names]
    return [str(name.value) for name in found.value]
