"""Which keys a reload takes up while the broker runs, and from when on each holds.

Every key that is not here needs a restart. `services.config_reload` applies these and names the
others; a test changes each of them and looks for its effect.
"""

from __future__ import annotations

from typing import Final

_AT_ONCE: Final = "at once"
_CONNECTS: Final = "for clients that connect from then on"

# By key: from when on a changed value holds.
LIVE: Final[dict[str, str]] = {
    "log_level": _AT_ONCE,
    "log_format": _AT_ONCE,
    "log_connections": _AT_ONCE,
    "sys_log": _AT_ONCE,
    "sys_interval_s": _AT_ONCE,
    "client_events": _AT_ONCE,
    "unanswered_s_max": _AT_ONCE,
    "loop_late_s_max": _AT_ONCE,
    "redeliveries_max": "for redeliveries from then on",
    "replay_skips_damage": "for damage that is met from then on",
    "max_keepalive": _CONNECTS,
    "session_expiry_s_max": _CONNECTS,
    "connections_max": _CONNECTS,
    "sessions_max": _CONNECTS,
    "allow_zero_length_clientid": _CONNECTS,
    "auto_id_prefix": _CONNECTS,
    "response_information": _CONNECTS,
    "topic_alias_outbound_max": _CONNECTS,
    "connect_bytes_max": _CONNECTS,
    "connect_timeout_s": _CONNECTS,
}
# Keys of `[security]` that are read at the start only; the others of the security tables are live.
SECURITY_RESTARTS: Final = (
    "bans_file", "audit_file", "audit_connects", "remember_passwords_s", "hash_threads",
    "waiting_max",
)  # fmt: skip
# Tables whose change needs a restart, with the field of `Config` that they are read into.
TABLE_RESTARTS: Final[dict[str, str]] = {
    "[[topics]]": "durabilities",
    "[[streams]]": "streams",
    "[[schemas]]": "schemas",
    "partition_functions": "partition_functions",
}
