"""Bans of client ids, user names and addresses: set by an operator, or earned by flapping.

Operators' bans stand in a file of JSON lines that `fleetmq ctl ban` writes and the broker reloads
when it changes. Bans for flapping are in memory and short.

    {"kind": "client", "value": "pump-7", "until": 0, "why": "sells our data"}
"""

from __future__ import annotations

import hashlib
import ipaddress
import json
import math
import threading
from collections import deque
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from mqtt_broker.security.files.atomic_files import locked, write_whole
from mqtt_broker.security.files.errors import FileError
from mqtt_broker.security.rules.identity import Address

KINDS: Final = ("client", "user", "address")
FLAPPING: Final = "flapping"  # the reason of a ban for connecting too often
_WATCHED_MAX: Final = 50_000  # clients whose connects are remembered, and bans for flapping
_NAME_CHARS_MAX: Final = 256  # longer names are remembered as a digest


# User name and client id; without a user name the address is part of it.
Source = tuple[str | None, str, Address | None]


@dataclass(frozen=True, slots=True)
class Ban:
    """A ban by address, client id or user name, with its end and its reason."""

    kind: str
    value: str
    until: float = 0.0  # 0: until it is lifted
    why: str = ""

    def holds(self, now: float) -> bool:
        """Tell whether the ban is in force."""
        return not self.until or now < self.until


def make_ban(kind: str, value: str, until: float = 0.0, why: str = "") -> Ban:
    """Return a checked ban; FileError says what is wrong with it."""
    if kind not in KINDS:
        raise FileError(f"invalid kind of ban {kind!r}: expected one of {', '.join(KINDS)}")
    if not value:
        raise FileError(f"the ban names no {kind}: its value is empty")
    if not (math.isfinite(until) and until >= 0):
        raise FileError(f"invalid until {until}: expected a Unix time, or 0 for ever")
    if kind == "address":
        try:
            value = str(ipaddress.ip_network(value, strict=False))
        except ValueError:
            raise FileError(f"invalid address or network {value!r}") from None
    return Ban(kind, value, until, why)


def read_bans(path: str) -> list[Ban]:
    """Read the bans of a file; none when there is no file."""
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
            kind, value, why = row["kind"], row["value"], row.get("why", "")
            if not all(isinstance(text, str) for text in (kind, value, why)):
                raise TypeError("kind, value and why are texts")
            ban = make_ban(kind, value, float(row.get("until", 0)), why)
        except FileError as error:
            raise FileError(f"{path}: line {number}: {error}") from None
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise FileError(
                f"{path}: line {number}: not a ban: expected a JSON object with texts kind, value "
                "and why, and a number until"
            ) from None
        found.append(ban)
    return found


def write_bans(path: str, bans: Iterable[Ban]) -> None:
    """Replace the file with these bans."""
    write_whole(path, "".join(json.dumps(asdict(ban)) + "\n" for ban in bans), 0o640)


def add_ban(path: str, ban: Ban, now: float) -> None:
    """Write a ban to the file, in place of one by the same value; remove those that ended."""
    with locked(path):
        write_bans(path, [*_others(read_bans(path), ban, now), ban])


def lift_ban(path: str, kind: str, value: str, now: float) -> bool:
    """Remove a ban from the file; False when there is none in force."""
    wanted = make_ban(kind, value)
    with locked(path):
        found = [ban for ban in read_bans(path) if ban.holds(now)]
        others = _others(found, wanted, now)
        if len(others) == len(found):
            return False
        write_bans(path, others)
    return True


def _others(bans: list[Ban], wanted: Ban, now: float) -> list[Ban]:
    same = wanted.kind, wanted.value
    return [ban for ban in bans if ban.holds(now) and (ban.kind, ban.value) != same]


@dataclass(frozen=True, slots=True)
class Flapping:
    """Ban a client for a while when it connects so often in so short a time."""

    connects: int = 0  # 0: clients may connect as often as they like
    within_s: float = 60.0
    ban_s: float = 300.0


class Bans:
    """The bans in force, found by client id, user name and address."""

    def __init__(self) -> None:
        self._names: dict[tuple[str, str], Ban] = {}
        self._addresses: dict[Address, Ban] = {}
        # By version and prefix length, then by the prefix: a long list costs few look-ups.
        self._networks: dict[tuple[int, int], dict[int, Ban]] = {}
        self.connects: dict[Source, deque[float]] = {}
        self._flapped: dict[Source, float] = {}  # until when
        self._lock = threading.Lock()  # clients are authenticated in several threads

    def replace(self, bans: Iterable[Ban]) -> None:
        """Put these bans in force in place of all others set by operators."""
        names: dict[tuple[str, str], Ban] = {}
        addresses: dict[Address, Ban] = {}
        networks: dict[tuple[int, int], dict[int, Ban]] = {}
        for ban in bans:
            if ban.kind != "address":
                names[ban.kind, ban.value] = ban
                continue
            network = ipaddress.ip_network(ban.value)
            if network.num_addresses == 1:
                addresses[network.network_address] = ban
            else:
                prefix = _prefix(network.network_address, network.prefixlen)
                networks.setdefault((network.version, network.prefixlen), {})[prefix] = ban
        self._names, self._addresses, self._networks = names, addresses, networks

    def made(self) -> list[Ban]:
        """Return the bans set by operators, ended or not."""
        of_networks = [ban for some in self._networks.values() for ban in some.values()]
        return [*self._names.values(), *self._addresses.values(), *of_networks]

    def flapped(self, now: float) -> list[tuple[Source, float]]:
        """Return the bans for flapping that are in force: the client, and until when."""
        return [(who, until) for who, until in self._flapped.copy().items() if until > now]

    def forgive(self, client_id: str, now: float) -> bool:
        """Lift the bans of a client id for flapping; False when there are none."""
        name = str(_name(client_id))
        with self._lock:
            found = [w for w, until in self._flapped.items() if w[1] == name and until > now]
            for who in found:
                del self._flapped[who]
        return bool(found)

    def count(self, now: float) -> int:
        """Count operators' bans, and those for flapping that are in force."""
        networks = sum(len(some) for some in self._networks.values())
        flapped = sum(until > now for until in self._flapped.copy().values())
        return len(self._names) + len(self._addresses) + networks + flapped

    def of_address(self, address: Address | None, now: float) -> Ban | None:
        if address is None:
            return None
        ban = self._addresses.get(address)
        if ban is not None and ban.holds(now):
            return ban
        for (version, length), networks in self._networks.items():
            if version == address.version:
                found = networks.get(_prefix(address, length))
                if found is not None and found.holds(now):
                    return found
        return None

    def of_client(self, client_id: str, now: float) -> Ban | None:
        return self._of("client", client_id, now)

    def of_user(self, username: str | None, now: float) -> Ban | None:
        return None if username is None else self._of("user", username, now)

    def _of(self, kind: str, value: str, now: float) -> Ban | None:
        ban = self._names.get((kind, value))
        return ban if ban is not None and ban.holds(now) else None

    def on_connect(
        self,
        flapping: Flapping,
        username: str | None,
        client_id: str,
        now: float,
        address: Address | None = None,
    ) -> Ban | None:
        """Count a client that has authenticated; return its ban for flapping, if it has one now.

        It is counted under the user name it proved, or by its address if it proved none, so that
        no client can have another one's client id banned.
        """
        if not flapping.connects:
            return None
        source = _name(username), str(_name(client_id)), address if username is None else None
        with self._lock:
            until = self._flapped.get(source, 0.0)
            if until > now:
                return Ban("client", client_id, until, FLAPPING)
            times = self.connects.get(source)
            if times is None:
                if len(self.connects) >= _WATCHED_MAX:
                    self._forget(now - flapping.within_s, now)
                times = self.connects[source] = deque(maxlen=flapping.connects)
            elif times.maxlen != flapping.connects:  # the policy has changed
                times = self.connects[source] = deque(times, maxlen=flapping.connects)
            times.append(now)
            if len(times) < flapping.connects or now - times[0] > flapping.within_s:
                return None
            del self.connects[source]
            self._flapped[source] = now + flapping.ban_s
        return Ban("client", client_id, now + flapping.ban_s, FLAPPING)

    def _forget(self, since: float, now: float) -> None:
        """Forget clients that did not connect since then, and all when that is not enough."""
        self.connects = {who: t for who, t in self.connects.items() if t[-1] > since}
        if len(self.connects) >= _WATCHED_MAX:
            self.connects.clear()
        self._flapped = {who: until for who, until in self._flapped.items() if until > now}


def _name(text: str | None) -> str | None:
    """Shorten a long name to its digest: clients choose names, and many are remembered."""
    if text is None or len(text) <= _NAME_CHARS_MAX:
        return text
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _prefix(address: Address, length: int) -> int:
    return int(address) >> address.max_prefixlen - length
