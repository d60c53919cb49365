"""The Topic Filters of the own number, as the others are to read them.

A group that changes them writes the rows and the version in its transaction. A filter that is gone
leaves a row that says so, since others read changes alone. When those are many, they are deleted,
and who has not read them yet reads all.
"""

from __future__ import annotations

from typing import Final

from mqtt_broker.cluster.digest import NOBODY
from mqtt_broker.cluster.statements import Delete, Put, PutAll, Rows, Statement
from mqtt_broker.cluster.tables import FILTERS, VERSIONS

REMOVED_MAX: Final = 64  # rows of filters that are gone, or half of those that are there
ROWS_MAX: Final = 1_000  # in one statement, which has a limit of bytes: a filter may have 65,535


class OwnFilters:
    """The filters of one number under one epoch, and what of them is not written yet."""

    __slots__ = (
        "_changed",
        "_epoch",
        "_is_open",
        "_number",
        "_reaches",
        "_removed",
        "_removed_max",
        "_since",
        "version",
    )

    def __init__(self, number: int, epoch: str, removed_max: int = REMOVED_MAX) -> None:
        self._number = number
        self._epoch = epoch
        self._removed_max = removed_max
        self._reaches: dict[str, int] = {}
        self._changed: dict[str, None] = {}
        self._removed = 0
        self._since = 0  # the group from which on changes can be read alone
        self._is_open = False  # the versions have this epoch
        self.version = 0  # the last group that changed them

    def load(self, rows: Rows) -> None:
        """Take over what an earlier host wrote; until it is set again, it is gone."""
        self._changed = dict.fromkeys(row["filter"] for row in rows)

    def set(self, text: str, reach: int) -> None:
        """Say who this filter is for from now on."""
        if self._reaches.get(text, NOBODY) != reach:
            self._changed[text] = None
            if reach == NOBODY:
                del self._reaches[text]
            else:
                self._reaches[text] = reach

    @property
    def has_changed(self) -> bool:
        """Tell whether a group has to be written."""
        return not self._is_open or bool(self._changed)

    def write(self, group: int) -> list[Statement]:
        """Return what this group writes; it may be asked again."""
        if not self.has_changed:
            return []
        rows: Rows = []
        for text in self._changed:
            reach = self._reaches.get(text, NOBODY)
            rows.append({"number": self._number, "filter": text, "reach": reach, "group": group})
        statements: list[Statement] = [
            PutAll(FILTERS, rows[at : at + ROWS_MAX]) for at in range(0, len(rows), ROWS_MAX)
        ]
        since = self._since
        if self._is_swept():
            since = group
            statements.append(Delete(FILTERS, {"number": self._number, "reach": NOBODY}))
        version = {"epoch": self._epoch, "filters": group, "filters_from": since}
        return [*statements, Put(VERSIONS, {"number": self._number, **version})]

    def on_committed(self, group: int) -> None:
        """Note that what was written last is committed."""
        if not self.has_changed:
            return
        if self._is_swept():
            self._since = group
            self._removed = 0
        else:
            self._removed = self._removed_then()
        self._changed.clear()
        self._is_open = True
        self.version = group

    def _is_swept(self) -> bool:
        """Tell whether the next group deletes the rows of filters that are gone."""
        limit = max(self._removed_max, len(self._reaches) // 2)
        return not self._is_open or self._removed_then() > limit

    def _removed_then(self) -> int:
        return self._removed + sum(text not in self._reaches for text in self._changed)
