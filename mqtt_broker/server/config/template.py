"""A commented configuration file with every key, its meaning and its default.

    template()      the text; a line `#key = value` becomes a setting without its `#`

The help of keys of `Settings` is in its fields, that of all others here. A test compares the keys
with those that the modules of this package read.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from typing import Any, Final

from mqtt_broker.core.limits.settings import UNLIMITED, Settings

# Top-level keys that are not in `Settings`: default, meaning.
OWN: Final[dict[str, tuple[Any, str]]] = {
    "host": ("127.0.0.1", "address to listen on; except on loopback, clients have to log in"),
    "port": (1883, "port to listen on; 0: a free one"),
    "unix_socket": ("", "path of a Unix socket to listen on as well"),
    "allow_anonymous": (False, "admit clients without a login on addresses that others can reach"),
    "data_dir": ("fleetmq-data", "directory of the broker's state"),
    "database_url": (
        "", "keep the state in a database instead: postgresql+psycopg://user:password@host/name"
    ),
    "durability": (
        "commit", "what an acknowledgement guarantees: commit, relaxed or memory"
    ),
    "recover": (False, "start with the readable part of damaged state"),
    "http": ("127.0.0.1:8080", "address of health, metrics and the API, or off"),
    "http_token": ("", "token of the HTTP server; required except on loopback"),
    "log_level": ("info", "debug, info, warning or error"),
    "log_format": ("text", "form of the lines on standard error: text or json"),
    "log_connections": (True, "log a line for each client that connects or disconnects"),
    "otel_endpoint": ("", "URL of an OTLP collector that gets traces of messages; empty: none"),
    "otel_sample": (0.0, "share of messages that are traced without a sampled parent, 0 to 1"),
    "sys_log": (
        "off", "lowest level of log lines that are published under $SYS/broker/log/, or off"
    ),
    "partition_functions": (
        [], "dotted names of functions that streams may name in partition_by"
    ),
}  # fmt: skip
_PLAIN_MAX: Final = 99_999  # larger numbers are written with underscores
_LIMITS: Final = {
    "packet_bytes_max": (65_536, "as above, for these clients"),
    "receive_maximum": (10, ""),
    "retain_available": (False, ""),
    "topic_levels_max": (10, ""),
    "inflight_max": (100, ""),
    "queue_messages_max": (1_000, ""),
    "queue_bytes_max": (1_000_000, ""),
    "retained_messages_max": (10, ""),
    "subscriptions_max": (100, ""),
    "subscriptions_bytes_max": (65_536, ""),
    "messages_per_s": (50.0, "received from the client; 0: no limit"),
    "bytes_per_s": (50_000.0, ""),
    "sent_messages_per_s": (500.0, "sent to the client; 0: no limit"),
    "sent_bytes_per_s": (500_000.0, ""),
}
# Tables by header: example, meaning. Each table is valid as a whole.
TABLES: Final[dict[str, tuple[str, dict[str, tuple[Any, str]]]]] = {
    "[[listeners]]": (
        "an address to listen on, with its own layers and limits",
        {
            "name": ("devices", "for rules and logs"),
            "host": ("127.0.0.1", ""),
            "port": (8883, "1883; 8883 with TLS, 8083 with WebSocket, 8084 with both"),
            "max_connections": (10_000, "0: only the broker's own limit"),
            "connects_per_s": (100.0, "of all its clients together; 0: no limit"),
            "messages_per_s": (20_000.0, ""),
            "bytes_per_s": (1e7, ""),
            "handshake_timeout_s": (10.0, "seconds from accept until MQTT can begin"),
            "connect_timeout_s": (10.0, "seconds from then to a complete CONNECT"),
            "allow_anonymous": (False, "let clients in without a login here"),
            "tcp_nodelay": (True, "false: small answers may wait for the peer's next packet"),
        },
    ),
    "[listeners.tls]": (
        "TLS; the files are read again when they change",
        {
            "cert": ("server.pem", "certificate with its chain"),
            "key": ("server.key", ""),
            "ca": ("clients.pem", "of the certificates of clients"),
            "crl": ("revoked.pem", "certificates that are revoked"),
            "verify": ("required", "none, optional or required"),
            "min_version": ("1.2", "1.2 or 1.3"),
            "ciphers": ("ECDHE+AESGCM", "of TLS 1.2, in OpenSSL's notation"),
        },
    ),
    "[listeners.websocket]": (
        "WebSocket",
        {
            "path": ("/mqtt", ""),
            "origins": (["https://example.org"], "of pages that may connect; none: all"),
            "compression": (False, ""),
            "message_bytes_max": (0, "0: what the largest packet needs"),
        },
    ),
    "[listeners.proxy_protocol]": (
        "the PROXY protocol of a load balancer",
        {"trusted": (["10.0.0.0/8"], "peers that may name the client's address")},
    ),
    "[listeners.limits]": ("limits of each client of the listener", _LIMITS),
    "[[topics]]": (
        "the durability of some topics",
        {"filter": ("fast/#", "Topic Filter"), "durability": ("memory", "the first that matches")},
    ),
    "[[streams]]": (
        "a stream of the telemetry log",
        {
            "name": ("telemetry", ""),
            "filter": ("fleet/+/telemetry", "Topic Filter of the messages to store"),
            "partitions": (4, "cannot change later"),
            "partition_by": ("client", "client, topic, level:N, property:NAME or round-robin"),
            "retain": ("7d", "how long messages are kept"),
            "max_bytes": ("10GB", "of all partitions together"),
            "compact": (False, "keep only the last message of each topic"),
            "tombstone": ("1d", "how long an empty payload is kept then"),
            "segment": ("1d", "age at which a new segment begins"),
            "segment_bytes": ("128MiB", "size at which a new segment begins"),
            "event_time": ("json:$.at", "where the event time is in a message"),
            "sent_time": ("property:sent", "where the time of sending is"),
            "schema": ("telemetry.json", "file with the JSON Schema of payloads"),
        },
    ),
    "[[schemas]]": (
        "the JSON Schema of payloads",
        {
            "filter": ("fleet/+/telemetry", "Topic Filter"),
            "file": ("telemetry.json", "beside this file"),
            "mode": ("reject", "off, warn or reject"),
        },
    ),
    "[[http_tokens]]": (
        "a token of the HTTP server",
        {
            "name": ("grafana", "for the audit log"),
            "role": ("viewer", "viewer, operator or admin"),
            "file": ("grafana.token", "the file that holds it"),
        },
    ),
    "[[http_users]]": (
        "a user of the HTTP server and its page",
        {
            "name": ("ann", "also for the audit log"),
            "role": ("operator", "viewer, operator or admin"),
            "file": ("people", "a password file, by fleetmq passwd"),
        },
    ),
    "[[auth]]": (
        "a method of authentication; methods are tried in order",
        {
            "type": ("password_file", "password_file, sql, jwt, certificate, scram or anonymous"),
            "name": ("people", "for logs"),
            "listeners": (["devices"], "none: all"),
            "file": ("users", "of password_file, by fleetmq passwd"),
        },
    ),
    '[[auth]] # type = "sql"': (
        "users in the tables of a database",
        {
            "type": ("sql", ""),
            "database_url": ("sqlite:///users.db", ""),
            "cache_s": (5.0, "seconds that an account is cached"),
        },
    ),
    '[[auth]] # type = "jwt"': (
        "tokens as passwords",
        {
            "type": ("jwt", ""),
            "key_file": ("jwks.json", "a JWKS, a public key in PEM or a secret"),
            "username_claim": ("sub", ""),
            "roles_claim": ("roles", ""),
            "acl_claim": ("acl", ""),
            "client_id_claim": ("client", "the client id must be this claim's value"),
            "issuer": ("https://example.org", ""),
            "audience": ("mqtt", ""),
            "leeway_s": (0.0, "seconds by which clocks may differ"),
            "require_expiry": (True, ""),
        },
    ),
    '[[auth]] # type = "certificate"': (
        "certificates of TLS clients",
        {
            "type": ("certificate", ""),
            "username_from": ("cn", "cn, dns, email or uri"),
            "roles": (["device"], "the roles of these clients"),
        },
    ),
    "[[acl]]": (
        "a rule; the first that applies decides, and with any rule everything else is denied",
        {
            "permit": ("allow", "allow or deny"),
            "action": ("publish", "publish, subscribe or all"),
            "topics": (["fleet/%u/#"], "Topic Filters; %c is the client id, %u the user name"),
            "users": (["ann"], "optional conditions"),
            "roles": (["device"], ""),
            "clients": (["pump-7"], ""),
            "addresses": (["10.0.0.0/8"], ""),
            "anonymous": (False, "true: clients without a user name"),
        },
    ),
    "[[roles]]": (
        "a role and its users",
        {"role": ("device", ""), "users": (["pump-7", "pump-8"], "")},
    ),
    "[[client_limits]]": (
        "limits of one client: of a user, of a role, or of everybody without either",
        {
            "user": ("pump-7", "or role"),
            **_LIMITS,
            "connections_max": (1, "of the user; 0: no limit"),
        },
    ),
    "[security]": (
        "bans, the audit log, rates",
        {
            "bans_file": ("bans.json", "bans by fleetmq ctl ban"),
            "audit_file": ("audit.log", "who was admitted, refused, denied; default: the log"),
            "audit_connects": (False, "connects too"),
            "remember_passwords_s": (300.0, "seconds a correct password is not hashed again"),
            "hash_threads": (0, "0: one per core, up to four"),
            "waiting_max": (20_000, "clients that wait for authentication"),
            "poll_s": (10.0, "seconds between two reads of the tables"),
            "connections_per_address": (0, "0: no limit"),
            "connects_per_s": (0.0, "0: no limit"),
            "connects_per_s_per_address": (0.0, "0: no limit"),
            "flapping_connects": (0, "connects within the time below that lead to a ban; 0: never"),
            "flapping_within_s": (60.0, ""),
            "flapping_ban_s": (300.0, ""),
        },
    ),
}


def template() -> str:
    """Return the file, with every setting as a comment."""
    lines = [
        "# FleetMQ: every key with its default, and the tables with examples.",
        "# Remove the # of `#key = value` to set one. FLEETMQ_<KEY> in the environment and options",
        "# of the command line override the keys at the top of this file.",
        "# Check it with: fleetmq broker --check --config FILE",
    ]
    for key, (default, meaning) in OWN.items():
        lines += ["", f"# {_sentence(meaning)}", f"#{key} = {toml_value(default)}"]
    for field in dataclasses.fields(Settings):
        span = _span(field.default, field.metadata)
        meaning = f"{_sentence(field.metadata['help'])}{f' ({span})' if span else ''}"
        lines += ["", f"# {meaning}", f"#{field.name} = {toml_value(field.default)}"]
    for header, (meaning, keys) in TABLES.items():
        lines += ["", f"# {_sentence(meaning)}", f"#{header}"]
        lines += _keys(keys)
    return "\n".join(lines) + "\n"


def _keys(keys: dict[str, tuple[Any, str]]) -> Iterator[str]:
    for key, (example, meaning) in keys.items():
        about = f"  # {meaning}" if meaning else ""
        yield f"#{key} = {toml_value(example)}{about}"


def _span(default: Any, meta: Any) -> str:
    """Return the range of a number."""
    if isinstance(default, bool | str):
        return ""
    low, high = f"{meta['low']:,}", f"{meta['high']:,}"
    return f"{low} or more" if meta["high"] == UNLIMITED else f"{low} to {high}"


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def toml_value(value: Any) -> str:
    """Write a value as TOML does."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {toml_value(one)}" for key, one in value.items()) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(toml_value, value)) + "]"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:_}" if abs(value) > _PLAIN_MAX else str(value)
    return json.dumps(value, ensure_ascii=False, default=str).replace("\x7f", "\\u007f")
