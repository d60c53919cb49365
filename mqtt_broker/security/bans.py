"""Bans, by client id, user name or address: made by hand, or by a client that flaps.

By hand they stand in a file of JSON lines that `fleetmq ctl ban` writes and the broker reads
again when it changes. Those for flapping are in memory and short.

    {"kind": "client", "value": "pump-7", "until": 0, "why": "sells our data"}
"""

from __future__ import annotations

import ipaddress
import json
import threading
from collections import deque
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from mqtt_broker.security.errors import FileError
from mqtt_broker.security.identity import Address
from mqtt_broker.security.rules import Network
from mqtt_broker.security.whole_files import write_whole

KINDS: Final = ("client", "user", "address")
_WATCHED_MAX: Final = 50_000  # clients whose connects are remembered, and bans for flapping


Who = tuple[str | None, str]  # user name, client id


@dataclass(frozen=True, slots=True)
class Ban:
    kind: str
    value: str
    until: float = 0.0  # 0: until it is lifted
    why: str = ""

    def holds(self, now: float) -> bool:
        return not self.until or now < self.until


def make_ban(kind: str, value: str, until: float = 0.0, why: str = "") -> Ban:
    if kind not in KINDS:
        raise FileError(f"a ban is by {', '.join(KINDS)}, not {kind!r}")
    if not value:
        raise FileError(f"a ban of no {kind}")
    if kind == "address":
        try:
            value = str(ipaddress.ip_network(value, strict=False))
        except ValueError:
            raise FileError(f"not an address or a network: {value!r}") from None
    return Ban(kind, value, until, why)


def read_bans(path: str) -> list[Ban]:
    """Those of the file; none when there is no file."""
    try:
        lines = Path(path).read_text().splitlines()
    except FileNotFoundError:
        return []
    except (OSError, UnicodeDecodeError) as error:
        raise FileError(f"{path}: {getattr(error, 'strerror', 'not UTF-8')}") from None
    found: list[Ban] = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row: dict[str, Any] = json.loads(line)
            ban = make_ban(
                row["kind"], row["value"], float(row.get("until", 0)), row.get("why", "")
            )
        except FileError as error:
            raise FileError(f"{path}: line {number}: {error}") from None
        except (ValueError, KeyError, TypeError, AttributeError):
            raise FileError(f"{path}: line {number}: not a ban") from None
        found.append(ban)
    return found


def write_bans(path: str, bans: Iterable[Ban]) -> None:
    write_whole(path, "".join(json.dumps(asdict(ban)) + "\n" for ban in bans), 0o640)


@dataclass(frozen=True, slots=True)
class Flapping:
    """A client that connects so often in so short a time is not let in for a while."""

    connects: int = 0  # 0: nobody looks
    within_s: float = 60.0
    ban_s: float = 300.0


class Bans:
    def __init__(self, flapping: Flapping = Flapping()) -> None:
        self._names: dict[tuple[str, str], Ban] = {}
        self._addresses: dict[Address, Ban] = {}
        self._networks: list[tuple[Network, Ban]] = []
        self.flapping = flapping
        self._connects: dict[Who, deque[float]] = {}
        self._flapped: dict[Who, float] = {}  # until when
        self._lock = threading.Lock()  # clients are let in from several threads

    def replace(self, bans: Iterable[Ban]) -> None:
        """All those made by hand."""
        self._names, self._addresses, self._networks = {}, {}, []
        for ban in bans:
            if ban.kind != "address":
                self._names[ban.kind, ban.value] = ban
                continue
            network = ipaddress.ip_network(ban.value)
            if network.num_addresses == 1:
                self._addresses[network.network_address] = ban
            else:
                self._networks.append((network, ban))

    def of_address(self, address: Address | None, now: float) -> Ban | None:
        if address is None:
            return None
        ban = self._addresses.get(address)
        if ban is not None and ban.holds(now):
            return ban
        for network, other in self._networks:
            if address in network and other.holds(now):
                return other
        return None

    def of_client(self, client_id: str, now: float) -> Ban | None:
        return self._of("client", client_id, now)

    def of_user(self, username: str | None, now: float) -> Ban | None:
        return None if username is None else self._of("user", username, now)

    def _of(self, kind: str, value: str, now: float) -> Ban | None:
        ban = self._names.get((kind, value))
        return ban if ban is not None and ban.holds(now) else None

    def on_connect(self, username: str | None, client_id: str, now: float) -> Ban | None:
        """Count a client that is let in; the ban it has or earns by this, if it does.

        It is counted under the name it proved: nobody can have another's client banned.
        """
        who = (username, client_id)
        limits = self.flapping
        if not limits.connects:
            return None
        with self._lock:
            until = self._flapped.get(who, 0.0)
            if until > now:
                return Ban("client", client_id, until, "flapping")
            times = self._connects.get(who)
            if times is None:
                if len(self._connects) >= _WATCHED_MAX:
                    self._forget(now)
                times = self._connects[who] = deque(maxlen=limits.connects)
            times.append(now)
            if len(times) < limits.connects or now - times[0] > limits.within_s:
                return None
            del self._connects[who]
            self._flapped[who] = now + limits.ban_s
        return Ban("client", client_id, now + limits.ban_s, "flapping")

    def _forget(self, now: float) -> None:
        """Those who were quiet since; all of them when everybody flaps at once."""
        old = now - self.flapping.within_s
        self._connects = {who: t for who, t in self._connects.items() if t[-1] > old}
        if len(self._connects) >= _WATCHED_MAX:
            self._connects.clear()
        self._flapped = {who: until for who, until in self._flapped.items() if until > now}
