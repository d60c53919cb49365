"""The listeners of a broker in a test beside the plain one, and the URLs of all."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from mqtt_broker.server.config.endpoints import Endpoint, ListenerRules, TlsRules, WebSocketRules


def further_endpoints(
    host: str, *, has_tls: bool, has_websocket: bool, folder: Callable[[], Path]
) -> tuple[list[Endpoint], str]:
    """Return endpoints on free ports, and the file of the authority that clients trust.

    The certificate is written to the folder; without TLS the file has no name.
    """
    rules: list[ListenerRules] = []
    ca_file = ""
    if has_websocket:
        rules.append(ListenerRules(websocket=WebSocketRules()))
    if has_tls:
        from mqtt_broker.test_support.certificates import write_certificate  # few need it

        files = write_certificate(folder())
        ca_file = files.ca
        tls = TlsRules(files.cert, files.key)
        rules.append(ListenerRules(tls=tls))
        if has_websocket:
            rules.append(ListenerRules(tls=tls, websocket=WebSocketRules()))
    return [Endpoint(host, 0, rules=one) for one in rules], ca_file


def urls_of(endpoints: Iterable[Endpoint]) -> dict[str, str]:
    """Return the URL of the first endpoint of each scheme."""
    found: dict[str, str] = {}
    for one in endpoints:
        if not one.path:
            scheme, websocket = one.rules.scheme, one.rules.websocket
            path = "" if websocket is None else websocket.path
            found.setdefault(scheme, f"{scheme}://{one}{path}")
    return found
