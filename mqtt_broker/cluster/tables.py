"""Tables of the cluster, with the columns of their keys."""

from __future__ import annotations

from typing import Final

NODES: Final = "nodes"  # a row for each number
WANTS: Final = "wants"  # a row for each number that its own process waits for
GROUPS: Final = "groups"  # the journals of all numbers, until they are folded
OWNERS: Final = "owners"  # a row for each client that is connected or has a stored session
ASKS: Final = "asks"  # a row for each client whose owner is asked to release it
VERSIONS: Final = "versions"  # a row for each number: what the others have to know last changed
FILTERS: Final = "filters"  # the Topic Filters of all numbers
CONTENTS: Final = "contents"  # a row for each number: what its broker numbered last
OUTBOX: Final = "outbox"  # messages for stored sessions of other numbers, until these have them
PLACES: Final = "places"  # how far a number has read what another sends it
RETAINED: Final = "retained"  # the retained messages, with the number that wrote each last
SWEEPS: Final = "sweeps"  # up to which of its groups a number has deleted rows of removed ones

KEYS: Final[dict[str, tuple[str, ...]]] = {
    NODES: ("number",),
    WANTS: ("number",),
    GROUPS: ("number", "group"),
    OWNERS: ("client",),
    ASKS: ("client",),
    VERSIONS: ("number",),
    FILTERS: ("number", "filter"),
    CONTENTS: ("number",),
    OUTBOX: ("sender", "receiver", "first"),
    PLACES: ("receiver", "sender"),
    RETAINED: ("topic",),
    SWEEPS: ("number",),
}
