"""Options that `pub`, `sub` and `rr` share: address, credentials, session, will and properties.

Names and meanings are those of mosquitto's clients, so that existing scripts work.
"""

from __future__ import annotations

import argparse
import os
import secrets
from collections.abc import Iterable
from typing import Final, cast

from mqtt_broker.cli import client_tls
from mqtt_broker.cli.errors import UsageError
from mqtt_broker.cli.numbers import real, whole
from mqtt_broker.client.blocking import Address
from mqtt_broker.client.url import PORTS, BrokerUrl, InvalidUrl, parse_url
from mqtt_broker.codec import properties as prop
from mqtt_broker.codec.constants import (
    CONNECT,
    NEVER_EXPIRES,
    PACKET_NAMES,
    PUBLISH,
    REMAINING_LENGTH_MAX,
    STRING_BYTES_MAX,
    V5,
    V31,
    V311,
    WILL,
)
from mqtt_broker.codec.packets import Connect, Will
from mqtt_broker.codec.properties import Kind, Properties, Property
from mqtt_broker.topics.names import name_problem, text_problem

VERSIONS: Final = {
    "5": V5, "311": V311, "31": V31, "mqttv5": V5, "mqttv311": V311, "mqttv31": V31,
}  # fmt: skip
WEBSOCKET_PATH: Final = "/mqtt"
_PORT: Final = whole(1, 65_535, "a port from 1 to 65535")
_KEEP_ALIVE: Final = whole(0, 65_535, "seconds from 0 to 65535")
_EXPIRY: Final = whole(0, NEVER_EXPIRES, f"seconds from 0 to {NEVER_EXPIRES}, or -1")
_SECONDS: Final = real(0.000_001, 1e9, "a number of seconds")


def add_connection_arguments(
    parser: argparse.ArgumentParser, timeout_s: float | None = None
) -> None:
    group = parser.add_argument_group("connection")
    group.add_argument("-h", "--host", help="host of the broker (localhost)")
    group.add_argument(
        "-p",
        "--port",
        type=_PORT,
        help=f"port of the broker ({PORTS['mqtt']}, with TLS {PORTS['mqtts']})",
    )
    group.add_argument("--unix", metavar="PATH", help="connect to this Unix socket instead")
    group.add_argument(
        "-L",
        "--url",
        help="host, port, credentials and topic as mqtt://[user[:password]@]host[:port]/topic; "
        "mqtts:// for TLS; ws:// and wss:// for WebSocket, with the path in place of the topic",
    )
    group.add_argument("-A", "--bind", metavar="ADDRESS", help="local address to connect from")
    group.add_argument("-u", "--username", metavar="USER", help="user name")
    group.add_argument("-P", "--pw", metavar="PASSWORD", help="password")
    group.add_argument("-i", "--id", help="client id (MQTT 5: the broker assigns one)")
    group.add_argument(
        "-I", "--id-prefix", metavar="PREFIX", help="client id from PREFIX and the process id"
    )
    group.add_argument(
        "-V",
        "--protocol-version",
        choices=VERSIONS,
        default="5",
        metavar="{5,311,31}",
        help="MQTT version (5)",
    )
    group.add_argument(
        "-k",
        "--keepalive",
        type=_KEEP_ALIVE,
        default=60,
        metavar="SECONDS",
        help="keep alive; 0: none (60)",
    )
    group.add_argument(
        "-c",
        "--disable-clean-session",
        action="store_true",
        help="resume the session of the client id, and keep it afterwards",
    )
    group.add_argument(
        "-x",
        "--session-expiry-interval",
        type=_session_expiry,
        metavar="SECONDS",
        help="how long the broker keeps the session; -1: for ever (default: 0, with -c -1)",
    )
    group.add_argument(
        "-W",
        dest="timeout_s",
        type=_SECONDS,
        default=timeout_s,
        metavar="SECONDS",
        help="exit with code 27 after this time"
        + ("" if timeout_s is None else f" ({timeout_s:g})"),
    )
    group.add_argument(
        "-d", "--debug", action="store_true", help="print the name of every packet to stderr"
    )
    group.add_argument(
        "--quiet", action="store_true", help="print no errors, except those of the command line"
    )
    client_tls.add_tls_arguments(parser)
    will = parser.add_argument_group("will")
    will.add_argument("--will-topic", metavar="TOPIC", help="topic of the will")
    will.add_argument("--will-payload", metavar="TEXT", help="payload of the will (empty)")
    will.add_argument(
        "--will-qos", type=int, choices=(0, 1, 2), metavar="QOS", help="0, 1 or 2 (0)"
    )
    will.add_argument("--will-retain", action="store_true", help="retain the will")
    parser.add_argument(
        "-D",
        "--property",
        dest="properties",
        action="append",
        nargs="+",
        default=[],
        metavar="WORD",
        help="MQTT 5 property: PACKET NAME VALUE, or PACKET user-property KEY VALUE",
    )


def address(args: argparse.Namespace) -> Address:
    """Return the broker's address from `--url`, or from `--host` and `--port`, or from `--unix`."""
    url = _broker_url(args)
    if args.unix is not None and (args.host or args.bind or url):
        raise UsageError("--unix replaces --host, --bind and --url: give one of them")
    has_tls = client_tls.is_tls_wanted(args)
    if has_tls and args.unix is not None:
        raise UsageError("--unix has no TLS, but an option of TLS is given")
    has_tls = has_tls or (url is not None and url.is_tls)
    host = args.host or (url.host if url else "localhost")
    port = args.port or (url.port if url else PORTS["mqtts" if has_tls else "mqtt"])
    return Address(
        host,
        port,
        args.unix,
        client_tls.context(args) if has_tls else None,
        (url.rest or WEBSOCKET_PATH) if url and url.is_websocket else None,
        args.bind,
    )


def url_topic(args: argparse.Namespace) -> str | None:
    """Return the topic in -L, which counts as one more -t."""
    url = _broker_url(args)
    return url.rest.removeprefix("/") or None if url and not url.is_websocket else None


def connect_packet(args: argparse.Namespace, properties: dict[int, Properties]) -> Connect:
    url = _broker_url(args)
    version = VERSIONS[args.protocol_version]
    username, password = (url.username, url.password) if url else (None, None)
    username = args.username if args.username is not None else username
    password = args.pw if args.pw is not None else password
    if password is not None and username is None and version < V5:
        raise UsageError("-P without -u needs MQTT 5")
    requested = properties.get(CONNECT, Properties())
    _put_session_expiry(args, version, requested)
    return Connect(
        version,
        _client_id(args, version),
        not args.disable_clean_session,
        args.keepalive,
        requested,
        _will(args, properties),
        username,
        None if password is None else password.encode(),
    )


def _put_session_expiry(args: argparse.Namespace, version: int, asked: Properties) -> None:
    expiry = args.session_expiry_interval
    if expiry is not None and version < V5:
        raise UsageError("-x needs MQTT 5")
    if expiry is not None and prop.SESSION_EXPIRY_INTERVAL in asked:
        raise UsageError("-x and -D connect session-expiry-interval exclude each other")
    if expiry is None and args.disable_clean_session and version == V5:
        asked.setdefault(prop.SESSION_EXPIRY_INTERVAL, NEVER_EXPIRES)
    elif expiry is not None:
        asked[prop.SESSION_EXPIRY_INTERVAL] = expiry


def _client_id(args: argparse.Namespace, version: int) -> str:
    if args.id is not None and args.id_prefix is not None:
        raise UsageError("-i and -I exclude each other")
    if args.disable_clean_session and not args.id:
        raise UsageError("-c needs -i: a session is found by its client id")
    if args.id is not None:
        return cast(str, args.id)
    if args.id_prefix is not None:
        return f"{args.id_prefix}{os.getpid()}"
    # 3.1 requires 1 to 23 characters, and 3.1.1 brokers may require at least one.
    return "" if version == V5 else f"fleetmq-{secrets.token_hex(6)}"


def _will(args: argparse.Namespace, properties: dict[int, Properties]) -> Will | None:
    if args.will_topic is None:
        given = args.will_payload is not None or args.will_qos is not None or args.will_retain
        if given or WILL in properties:
            raise UsageError("a will needs --will-topic")
        return None
    payload = (args.will_payload or "").encode()
    if len(payload) > STRING_BYTES_MAX:
        raise UsageError(f"--will-payload has {len(payload)} bytes, MQTT allows {STRING_BYTES_MAX}")
    return Will(
        check_topic_name(args.will_topic, "--will-topic"),
        payload,
        args.will_qos or 0,
        args.will_retain,
        properties.get(WILL, Properties()),
    )


def check_topic_name(topic: str, option: str) -> str:
    """Return the topic. Raises UsageError if no message can be published to it."""
    if problem := name_problem(topic):
        raise UsageError(f"{option} {topic!r}: {problem}")
    return topic


def check_text(text: str, option: str) -> None:
    """Raise UsageError for a value that cannot be sent as an MQTT string."""
    if problem := text_problem(text):
        raise UsageError(f"{option}: {problem}")


# Properties.


def parse_properties(
    rows: Iterable[list[str]], version: int, allowed: Iterable[int]
) -> dict[int, Properties]:
    """Return the properties of -D by packet."""
    found: dict[int, Properties] = {}
    packets = {PACKET_NAMES.get(packet, "will"): packet for packet in allowed}
    for words in rows:
        if version < V5:
            raise UsageError("-D needs MQTT 5")
        where = "-D " + " ".join(words)
        if len(words) < 3:
            raise UsageError(f"{where}: expected PACKET NAME VALUE")
        packet = packets.get(words[0].lower())
        if packet is None:
            raise UsageError(
                f"{where}: the packet is one of {', '.join(packets)}, not {words[0]!r}"
            )
        _parse_property(words[1], words[2:], packet, where, found.setdefault(packet, Properties()))
    return found


def _parse_property(
    name: str, values: list[str], packet: int, where: str, into: Properties
) -> None:
    key = prop.NAMES.get(name)
    if key is None:
        raise UsageError(f"{where}: there is no property {name!r}")
    if key in (prop.AUTHENTICATION_METHOD, prop.AUTHENTICATION_DATA):
        raise UsageError(f"{where}: this client does not support enhanced authentication")
    row = prop.TABLE[key]
    if packet not in row.packets or (packet, key) == (PUBLISH, prop.SUBSCRIPTION_IDENTIFIER):
        raise UsageError(f"{where}: a client cannot send {name} in this packet")
    if len(values) != (2 if row.kind is Kind.PAIR else 1):
        raise UsageError(
            f"{where}: {name} takes {'KEY VALUE' if row.kind is Kind.PAIR else 'one VALUE'}"
        )
    for value in values:
        check_text(value, where)
    if row.kind is Kind.PAIR:
        into[key] = [*into.user, (values[0], values[1])]
    elif key in into:
        raise UsageError(f"{where}: {name} is given twice")
    elif row.kind is Kind.STRING:
        into[key] = values[0]
    elif row.kind is Kind.BINARY:
        into[key] = values[0].encode()
    else:
        number = _integer(values[0], row, where)
        into[key] = [number] if row.kind is Kind.VARINT else number


def _integer(text: str, row: Property, where: str) -> int:
    low = row.low
    high = REMAINING_LENGTH_MAX if row.kind is Kind.VARINT else 256**row.kind.value - 1
    high = min(row.high, high)
    try:
        number = int(text)
    except ValueError:
        number = -1
    if not low <= number <= high:
        raise UsageError(f"{where}: {row.name} is a number from {low} to {high}")
    return number


# Values of single options.


def _broker_url(args: argparse.Namespace) -> BrokerUrl | None:
    if args.url is None:
        return None
    try:
        return parse_url(args.url, rest="/topic")
    except InvalidUrl as error:
        raise UsageError(f"--url: {error}") from None


def _session_expiry(text: str) -> int:
    return NEVER_EXPIRES if text in ("-1", "∞") else _EXPIRY(text)
