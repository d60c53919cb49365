"""Bans, by client id, user name or address: made by hand, or by a client that flaps.

By hand they stand in a file of JSON lines that `fleetmq ctl ban` writes and the broker reads
again when it changes. Those for flapping are in memory and short.

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

from mqtt_broker.security.files.atomic_files import alone, write_whole
from mqtt_broker.security.files.errors import FileError
from mqtt_broker.security.rules.identity import Address

KINDS: Final = ("client", "user", "address")
FLAPPING: Final = "flapping"  # why a client that comes all the time is banned
_WATCHED_MAX: Final = 50_000  # clients whose connects are remembered, and bans for flapping
_NAME_CHARS_MAX: Final = 256  # that are remembered of each of them as they are


# User name and client id; without a user name the address is part of it.
Who = tuple[str | None, str, Address | None]


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
    if not (math.isfinite(until) and until >= 0):
        raise FileError("a ban is until a time, or 0")
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
            kind, value, why = row["kind"], row["value"], row.get("why", "")
            if not all(isinstance(text, str) for text in (kind, value, why)):
                raise TypeError("a ban of a number would never meet anybody")
            ban = make_ban(kind, value, float(row.get("until", 0)), why)
        except FileError as error:
            raise FileError(f"{path}: line {number}: {error}") from None
        except (ValueError, KeyError, TypeError, AttributeError):
            raise FileError(f"{path}: line {number}: not a ban") from None
        found.append(ban)
    return found


def write_bans(path: str, bans: Iterable[Ban]) -> None:
    write_whole(path, "".join(json.dumps(asdict(ban)) + "\n" for ban in bans), 0o640)


def add_ban(path: str, ban: Ban, now: float) -> None:
    """Into the file, in place of one of the same; those that have ended go."""
    with alone(path):
        write_bans(path, [*_others(read_bans(path), ban, now), ban])


def lift_ban(path: str, kind: str, value: str, now: float) -> bool:
    """Out of the file; False when there is none that holds."""
    wanted = make_ban(kind, value)
    with alone(path):
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
    """A client that connects so often in so short a time is not let in for a while."""

    connects: int = 0  # 0: nobody looks
    within_s: float = 60.0
    ban_s: float = 300.0


class Bans:
    def __init__(self, flapping: Flapping = Flapping()) -> None:
        self._names: dict[tuple[str, str], Ban] = {}
        self._addresses: dict[Address, Ban] = {}
        # By version and prefix length, then by the prefix: a long list costs few look-ups.
        self._networks: dict[tuple[int, int], dict[int, Ban]] = {}
        self.flapping = flapping
        self._connects: dict[Who, deque[float]] = {}
        self._flapped: dict[Who, float] = {}  # until when
        self._lock = threading.Lock()  # clients are let in from several threads

    def replace(self, bans: Iterable[Ban]) -> None:
        """All those made by hand."""
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
        """Those made by hand, ended or not."""
        of_networks = [ban for some in self._networks.values() for ban in some.values()]
        return [*self._names.values(), *self._addresses.values(), *of_networks]

    def flapped(self, now: float) -> list[tuple[Who, float]]:
        """Bans for flapping that are in force: of whom, and until when."""
        return [(who, until) for who, until in self._flapped.copy().items() if until > now]

    def forgive(self, client_id: str, now: float) -> bool:
        """Lift bans of a client id for flapping; whether there were any."""
        name = str(_name(client_id))
        with self._lock:
            found = [w for w, until in self._flapped.items() if w[1] == name and until > now]
            for who in found:
                del self._flapped[who]
        return bool(found)

    def count(self, now: float) -> int:
        """How many there are: those of the list, and those for flapping that are in force."""
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
        self, username: str | None, client_id: str, now: float, address: Address | None = None
    ) -> Ban | None:
        """Count a client that is let in; the ban it has or earns by this, if it does.

        It is counted under the name it proved, or where it comes from if it proved none: nobody
        can have another's client banned.
        """
        who = _name(username), str(_name(client_id)), address if username is None else None
        limits = self.flapping
        if not limits.connects:
            return None
        with self._lock:
            until = self._flapped.get(who, 0.0)
            if until > now:
                return Ban("client", client_id, until, FLAPPING)
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
        return Ban("client", client_id, now + limits.ban_s, FLAPPING)

    def _forget(self, now: float) -> None:
        """Those who were quiet since; all of them when everybody flaps at once."""
        old = now - self.flapping.within_s
        self._connects = {who: t for who, t in self._connects.items() if t[-1] > old}
        if len(self._connects) >= _WATCHED_MAX:
            self._connects.clear()
        self._flapped = {who: until for who, until in self._flapped.items() if until > now}


def _name(text: str | None) -> str | None:
    """A long one as its digest: clients choose it, and we remember many."""
    if text is None or len(text) <= _NAME_CHARS_MAX:
        return text
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _prefix(address: Address, length: int) -> int:
    return int(address) >> address.max_prefixlen - length
