"""Translate the lines of a mosquitto.conf into keys and tables of our configuration.

`Translation.read` translates line by line; the result of each is a `Fate`: its new key, or why it
has none. `finish` combines the listeners, users and rules.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from mqtt_broker.cli.errors import Failure
from mqtt_broker.cli.mosquitto_acl import AclRule, read_acl
from mqtt_broker.server.config.config import load_values
from mqtt_broker.server.config.tables import ConfigError

# Keys with the same meaning: FleetMQ's name, and whether 0 means no limit.
_SAME: Final[dict[str, tuple[str, bool]]] = {
    "allow_zero_length_clientid": ("allow_zero_length_clientid", False),
    "auto_id_prefix": ("auto_id_prefix", False),
    "max_inflight_messages": ("inflight_max", True),
    "max_inflight_bytes": ("inflight_bytes_max", True),
    "max_queued_messages": ("queue_messages_max", True),
    "max_queued_bytes": ("queue_bytes_max", True),
    "max_packet_size": ("packet_bytes_max", True),
    "message_size_limit": ("packet_bytes_max", True),
    "max_keepalive": ("max_keepalive", True),
    "max_qos": ("maximum_qos", False),
    "max_topic_alias": ("topic_alias_maximum", False),
    "queue_qos0_messages": ("queue_qos0", False),
    "retain_available": ("retain_available", False),
    "sys_interval": ("sys_interval_s", False),
}
_UNITS: Final = {"h": 3_600, "d": 86_400, "w": 604_800, "m": 2_592_000, "y": 31_536_000}
_SERVICE: Final = "the service manager does that (deploy/fleetmq.service)"
_LOG: Final = "the log goes to standard error; see log_level, and [security] audit_file"
_STORED: Final = "not needed: what is acknowledged is on disk"
_BRIDGE: Final = "bridges are not supported; `fleetmq spark bridge` copies messages into a stream"
_PLUGIN: Final = "plugins of mosquitto are not supported; see [[auth]], or Access in a program"
_PSK: Final = "TLS with pre-shared keys is not supported; use certificates or passwords"
# Keys without a counterpart, and why.
_NOT_TAKEN: Final[dict[str, str]] = {
    **dict.fromkeys(("user", "pid_file"), _SERVICE),
    **dict.fromkeys(
        ("log_dest", "log_type", "log_facility", "log_timestamp", "log_timestamp_format",
         "websockets_log_level", "connection_messages"),
        _LOG,
    ),
    **dict.fromkeys(("autosave_interval", "autosave_on_changes", "persistence_file"), _STORED),
    **dict.fromkeys(("psk_file", "psk_hint"), _PSK),
    "persistence_location": "mosquitto's state is not read; data_dir is for a new one",
    "memory_limit": "each kind of state has a limit: queue_total_bytes_max and others",
    "check_retain_source": "the rules for the reader decide about retained messages",
    "upgrade_outgoing_qos": "not supported: a message keeps the QoS of its publisher at most",
    "retain_expiry_interval": "not supported; publishers set a Message Expiry Interval",
    "allow_duplicate_messages": "one copy for each subscription, as MQTT 5 wants",
    "set_tcp_nodelay": "answers leave at once; see tcp_nodelay of [[listeners]]",
    "clientid_prefixes": "not supported; see clients in [[acl]]",
    "mount_point": "not supported; see [[acl]] with %u",
    "use_username_as_clientid": "not supported; see %u in [[acl]], and connections_max",
    "use_subject_as_username": "not supported; the common name or an alternative name can be used",
    "bind_interface": "not supported; host of [[listeners]] is the address",
    "http_dir": "not supported; a web server serves files",
    "websockets_headers_size": "not needed",
    "dhparamfile": "not needed: OpenSSL chooses the parameters",
    "ciphers_tls1.3": "OpenSSL's choice",
    "tls_engine": "not supported", "tls_engine_kpass_sha1": "not supported",
    "tls_keyform": "not supported: keys are files in PEM",
    "capath": "a directory is not read; give one file as ca",
    "accept_protocol_versions": "not supported: MQTT 3.1, 3.1.1 and 5 are spoken",
    "auth_plugin_deny_special_chars": _PLUGIN, "plugin": _PLUGIN, "auth_plugin": _PLUGIN,
    "global_plugin": _PLUGIN,
    **dict.fromkeys(
        ("address", "addresses", "topic", "cleansession", "clientid", "idle_timeout",
         "keepalive_interval", "local_clientid", "local_cleansession", "local_password",
         "local_username", "notifications", "notifications_local_only", "notification_topic",
         "password", "remote_clientid", "remote_password", "remote_username", "restart_timeout",
         "round_robin", "start_type", "threshold", "try_private", "username", "connection"),
        _BRIDGE,
    ),
}  # fmt: skip
_PREFIXES: Final = {"bridge_": _BRIDGE, "auth_opt_": _PLUGIN, "plugin_opt_": _PLUGIN}
_SECRET: Final = re.compile(r"(\w*password|auth_opt_\S+|plugin_opt_\S+|bridge_psk)\s+\S")
_TLS_FILES: Final = {"certfile": "cert", "keyfile": "key", "cafile": "ca", "crlfile": "crl"}
_TLS_VERSIONS: Final = {"tlsv1.2": "1.2", "tlsv1.3": "1.3"}
_OPEN: Final = "0.0.0.0"
UNKNOWN_KEY: Final = "unknown: no key of mosquitto 2"


@dataclass(slots=True)
class Fate:
    """The result of a line: its new key, or why it has none."""

    place: str  # mosquitto.conf:12
    line: str
    became: str = ""  # empty: nothing
    why: str = ""


@dataclass(slots=True)
class MosquittoListener:
    """A listener with the lines that belong to it."""

    place: str
    table: dict[str, Any]
    tls: dict[str, Any] = field(default_factory=dict)
    access: dict[str, Any] = field(default_factory=dict)  # keys of mosquitto, with their values

    @property
    def name(self) -> str:
        return str(self.table["name"])

    @property
    def needs_certificate(self) -> bool:
        return bool(self.access.get("require_certificate"))

    @property
    def is_named_by_certificate(self) -> bool:
        return bool(self.access.get("use_identity_as_username"))


class Translation:
    """The translation of a mosquitto configuration."""

    def __init__(self) -> None:
        self.fates: list[Fate] = []
        self.values: dict[str, tuple[Any, str]] = {}  # key: value and place
        self.listeners: list[MosquittoListener] = []
        self.password_files: dict[str, list[str]] = {}  # path: the listeners it is for; []: all
        self.password_places: dict[str, str] = {}
        self.rules: list[AclRule] = []
        self.has_rules = False
        self._default = MosquittoListener("", {"name": "default", "host": "", "port": 1883})
        self._default_is_used = False
        self._current = self._default
        self._is_per_listener = False
        self._allow_anonymous: bool | None = None
        self._acl_file: tuple[str, str] = ("", "")  # path, place

    def report(self, place: str, line: str, became: str, why: str) -> None:
        self.fates.append(Fate(place, _without_secret(line), became, why))

    def read(self, path: str, *, is_included: bool = False) -> None:
        """Read a file, and those of its include_dir."""
        for place, line in read_lines(path):
            key, _, value = line.partition(" ")
            value = value.strip()
            if key == "include_dir" and not is_included:
                self.report(place, line, "its *.conf files follow", "")
                for one in sorted(_directory(value, place), key=str):
                    self.read(str(one), is_included=True)
            else:
                self._read_line(place, line, key, value)

    def _read_line(self, place: str, line: str, key: str, value: str) -> None:
        act: Callable[[str, str], str] | None = getattr(self, f"_on_{key.replace('.', '_')}", None)
        try:
            if not value and (act is not None or key in _SAME):
                raise ValueError("it has no value")
            if act is not None:
                self.report(place, line, act(value, place), "")
            elif key in _SAME:
                self._same(place, line, key, value)
            else:
                self.report(place, line, "", _why_not(key))
        except ValueError as error:
            self.report(place, line, "", str(error))

    def _set(self, key: str, value: Any, place: str) -> str:
        try:
            load_values({key: value})
        except ConfigError as error:
            raise ValueError(str(error)) from None
        self.values[key] = value, place
        return f"{key} = {_shown(value)}"

    def _same(self, place: str, line: str, key: str, text: str) -> None:
        name, zero_is_open = _SAME[key]
        value: Any = text
        if text in ("true", "false"):
            value = text == "true"
        elif text.isascii() and text.isdecimal() and name != "auto_id_prefix":
            value = int(text)
        if value == 0 and zero_is_open and value is not False:
            self.report(place, line, "", f"no limit there; here {name} has one, see its default")
            return
        self.report(place, line, self._set(name, value, place), "")

    # Lines of their own kind.

    def _on_per_listener_settings(self, value: str, place: str) -> str:
        self._is_per_listener = _flag(value)
        return (
            "allow_anonymous and [[auth]] by listener" if self._is_per_listener else "the default"
        )

    def _on_persistence(self, value: str, place: str) -> str:
        return self._set("durability", "commit" if _flag(value) else "memory", place)

    def _on_persistent_client_expiration(self, value: str, place: str) -> str:
        count, unit = value[:-1], value[-1:]
        if not count.isdecimal() or unit not in _UNITS:
            raise ValueError(f"not a number with h, d, w, m or y: {value!r}")
        seconds = min(int(count) * _UNITS[unit], 0xFFFF_FFFE)
        return self._set("session_expiry_s_max", seconds, place)

    def _on_port(self, value: str, place: str) -> str:
        self._default.table["port"] = _number(value)
        return self._use_default(place)

    def _on_bind_address(self, value: str, place: str) -> str:
        self._default.table["host"] = value
        return self._use_default(place)

    def _use_default(self, place: str) -> str:
        if not self._default_is_used:
            self._default_is_used = True
            self.listeners.insert(0, self._default)
        return "[[listeners]] default"

    def _on_listener(self, value: str, place: str) -> str:
        port, _, host = value.partition(" ")
        host = host.strip()
        name = f"listener-{1 + len(self.listeners)}"
        if _number(port) == 0 and host.startswith("/"):
            table: dict[str, Any] = {"name": name, "path": host}
        else:
            table = {"name": name, "host": host, "port": _number(port)}
        self._current = MosquittoListener(place, table)
        self.listeners.append(self._current)
        return f"[[listeners]] {name}"

    def _on_protocol(self, value: str, place: str) -> str:
        if value == "websockets":
            self._current.table["websocket"] = True
            return "websocket = true, at the path /mqtt alone"
        if value not in ("mqtt", "mqttv311"):
            raise ValueError(f"not a protocol of MQTT: {value!r}")
        return "the default"

    def _on_websockets_origin(self, value: str, place: str) -> str:
        found = self._current.table.get("websocket")
        origins = [*(found["origins"] if isinstance(found, dict) else []), value]
        self._current.table["websocket"] = {"origins": origins}
        return f"websocket.origins has {value}"

    def _on_socket_domain(self, value: str, place: str) -> str:
        if value == "ipv6" and not self._current.table.get("host"):
            self._current.table["host"] = "::"
            return "host = '::'"
        return "the default"

    def _on_max_connections(self, value: str, place: str) -> str:
        count = _number(value.removeprefix("-"))
        if value.startswith("-"):
            return "the default"
        self._current.table["max_connections"] = count
        return f"max_connections = {count}"

    def _on_enable_proxy_protocol(self, value: str, place: str) -> str:
        self._current.table["proxy_protocol"] = True
        return "proxy_protocol = true"

    def _tls_file(self, key: str, value: str) -> str:
        self._current.tls[_TLS_FILES[key]] = value
        return f"tls.{_TLS_FILES[key]}"

    def _on_certfile(self, value: str, place: str) -> str:
        return self._tls_file("certfile", value)

    def _on_keyfile(self, value: str, place: str) -> str:
        return self._tls_file("keyfile", value)

    def _on_cafile(self, value: str, place: str) -> str:
        return self._tls_file("cafile", value) + ", if certificates are required"

    def _on_crlfile(self, value: str, place: str) -> str:
        return self._tls_file("crlfile", value)

    def _on_ciphers(self, value: str, place: str) -> str:
        self._current.tls["ciphers"] = value
        return "tls.ciphers"

    def _on_tls_version(self, value: str, place: str) -> str:
        if value not in _TLS_VERSIONS:
            raise ValueError(f"{value} is not spoken; TLS 1.2 and 1.3 are")
        self._current.tls["min_version"] = _TLS_VERSIONS[value]
        return f"tls.min_version = {_TLS_VERSIONS[value]}"

    def _on_require_certificate(self, value: str, place: str) -> str:
        self._current.access["require_certificate"] = _flag(value)
        return "tls.verify = required" if _flag(value) else "the default"

    def _on_use_identity_as_username(self, value: str, place: str) -> str:
        self._current.access["use_identity_as_username"] = _flag(value)
        return "[[auth]] type = certificate" if _flag(value) else "the default"

    def _on_allow_anonymous(self, value: str, place: str) -> str:
        if self._is_per_listener:
            self._current.access["allow_anonymous"] = _flag(value)
        else:
            self._allow_anonymous = _flag(value)
        return f"allow_anonymous = {value} of [[listeners]]"

    def _on_password_file(self, value: str, place: str) -> str:
        if self._is_per_listener:
            self._current.access["password_file"] = value
        self.password_files.setdefault(value, [])
        self.password_places[value] = place
        return "[[auth]] type = password_file, with a copy of the file"

    def _on_acl_file(self, value: str, place: str) -> str:
        if self._acl_file[0] not in ("", value):
            raise ValueError(
                f"rules are for all listeners here: those of {self._acl_file[1]} count"
            )
        self._acl_file = value, place
        return "[[acl]], for all listeners; subscriptions that they do not cover are refused whole"

    # The end.

    def finish(self) -> None:
        """Put listeners, users and rules together. Called once, after all lines."""
        has_default_only = not self.listeners
        if has_default_only:
            self._default.table["host"] = "127.0.0.1"
            self.listeners.append(self._default)
        for one in self.listeners:
            if path := one.access.get("password_file"):
                self.password_files[path].append(one.name)
            self._finish_tls(one)
        if self._is_per_listener:  # some may be for no listener
            self.password_files = {path: one for path, one in self.password_files.items() if one}
        for one in self.listeners:
            self._finish_access(one, is_local_default=has_default_only)
        path, place = self._acl_file
        if path:
            self.has_rules = True
            names_users = any(one.is_named_by_certificate for one in self.listeners)
            has_users = bool(self.password_files) or names_users
            lines = read_lines(path, f"{place}: acl_file ")
            self.rules = read_acl(lines, has_users=has_users, report=self.report)

    def _finish_tls(self, one: MosquittoListener) -> None:
        tls = one.tls
        if not one.needs_certificate:
            tls.pop("ca", None)
            tls.pop("crl", None)
        if "cert" in tls and "key" in tls:
            one.table["tls"] = tls
        elif "cert" in tls or "key" in tls:
            raise Failure(f"{one.place or one.name}: TLS needs certfile and keyfile")
        if one.needs_certificate and "ca" not in tls:
            raise Failure(f"{one.place or one.name}: require_certificate needs cafile")

    def _finish_access(self, one: MosquittoListener, *, is_local_default: bool) -> None:
        allow = self._allow_anonymous
        if self._is_per_listener:
            allow = one.access.get("allow_anonymous")
        if allow or (is_local_default and allow is None):
            one.table["allow_anonymous"] = True
        has_users = bool(self.password_files) or any(
            o.is_named_by_certificate for o in self.listeners
        )
        if "host" in one.table and not one.table["host"]:
            one.table["host"] = _OPEN
        is_guarded = allow or has_users or one.needs_certificate
        if not is_guarded and "host" in one.table and not is_local_default:
            one.table["host"] = "127.0.0.1"
            self.report(
                one.place, f"listener {one.name}", "host = '127.0.0.1'",
                "there are neither users nor allow_anonymous, and mosquitto refuses everybody",
            )  # fmt: skip


def read_lines(path: str, about: str = "") -> list[tuple[str, str]]:
    """Return the lines of a file of mosquitto that say something, each with its place.

    `about` says in an error where the file is named.
    """
    try:
        text = Path(path).read_text("utf-8-sig", errors="replace")
    except (OSError, ValueError) as error:  # ValueError: a null byte in the name
        why = getattr(error, "strerror", None) or error
        raise Failure(f"{about}{path!a}: {why}") from None
    return [
        (f"{path}:{number}", line.strip())
        for number, line in enumerate(text.splitlines(), 1)
        if line.strip() and not line.startswith("#")
    ]


def _directory(path: str, place: str) -> list[Path]:
    try:
        return [one for one in Path(path).iterdir() if one.name.endswith(".conf")]
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise Failure(f"{place}: include_dir {path!a}: {why}") from None


def _why_not(key: str) -> str:
    for prefix, why in _PREFIXES.items():
        if key.startswith(prefix):
            return why
    return _NOT_TAKEN.get(key, UNKNOWN_KEY)


def _without_secret(line: str) -> str:
    found = _SECRET.match(line)
    return f"{found[1]} ***" if found else line


def _flag(value: str) -> bool:
    if value not in ("true", "false", "1", "0"):
        raise ValueError(f"true or false, not {value!r}")
    return value in ("true", "1")


def _number(value: str) -> int:
    if not (value.isascii() and value.isdecimal() and len(value) < 10):
        raise ValueError(f"not a number: {value!r}")
    return int(value)


def _shown(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else repr(value)
