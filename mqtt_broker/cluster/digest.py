"""The Topic Filters of the other numbers, by version.

Every number has a row of versions: the epoch of its host, the last group that changed its filters,
and the first from which changes can be read alone. A digest is what this process has read of them.
`expectation` has the database compare: an acknowledgement follows a comparison, or a read, that
was sent after its PUBLISH came, so nobody is missed who was subscribed by then.

A version alone does not say what the filters are. If the database fails over, the commit that was
read may be lost, and the next host commits another group with its number: so epochs are compared.
"""

from __future__ import annotations

from typing import Final

from mqtt_broker.cluster.statements import (
    Commit,
    Expect,
    Row,
    Rows,
    Select,
    SelectNewer,
    Stale,
    Statement,
    Transaction,
)
from mqtt_broker.cluster.tables import FILTERS, VERSIONS
from mqtt_broker.topics.cache import MatchCache
from mqtt_broker.topics.trie import Trie

# Who a filter is for, of a number; both may be.
STORED: Final = 1  # sessions that are stored
FLEETING: Final = 2  # others, which end with their connections
NOBODY: Final = 0  # it was removed

COLUMNS: Final = ("number", "epoch", "filters")
NOTHING: Final = -1  # a version below all others
RESULTS_BYTES_MAX: Final = 8 << 20
RESULTS_MAX: Final = 16_384

Numbers = tuple[int, ...]


class _Number:
    __slots__ = ("epoch", "texts", "version")

    def __init__(self, epoch: str) -> None:
        self.epoch = epoch
        self.version = NOTHING
        self.texts: set[str] = set()

    def read_up_to(self, version: int) -> None:
        """Note that its filters of this version are known."""
        self.version = max(self.version, version)


class Digest:
    """The filters of all numbers but the own one, as far as they are known."""

    __slots__ = ("_numbers", "_own", "_own_version", "_results", "_trie", "is_behind")

    def __init__(self, own: int) -> None:
        self._own = own
        self._own_version: tuple[str, int] | None = None
        self._numbers: dict[int, _Number] = {}
        self._trie: Trie[int, int] = Trie()
        self._results: MatchCache[Numbers] = MatchCache(RESULTS_MAX, RESULTS_BYTES_MAX)
        self.is_behind = True  # something has changed, and is to be read

    @property
    def numbers(self) -> list[int]:
        """The other numbers, in order."""
        return sorted(self._numbers)

    @property
    def count(self) -> int:
        """The filters that are known."""
        return self._trie.count

    def epoch(self, number: int) -> str | None:
        """Return the epoch of the host of another number, as far as it is known."""
        known = self._numbers.get(number)
        return None if known is None else known.epoch

    def version(self, number: int) -> int:
        """Return the version of the filters of another number that are known."""
        return self._numbers[number].version

    def filters(self, number: int) -> frozenset[str]:
        """Return the filters of another number that are known."""
        return frozenset(self._numbers[number].texts)

    def on_hint(self, number: int, epoch: str, version: int) -> None:
        """Note what a frame says of its sender: it may have changed."""
        known = self._numbers.get(number)
        if known is None or known.epoch != epoch or known.version < version:
            self.is_behind = True

    def on_stale(self) -> None:
        """Note that an expectation has failed."""
        self.is_behind = True

    def set_own(self, epoch: str, version: int) -> None:
        """Note the own number's versions, which a committed group has changed."""
        self._own_version = (epoch, version)

    # Reading what has changed.

    def expectation(self) -> Expect:
        """Return the statement that fails with `Stale` if a number is not as it is known."""
        rows = [(number, found.epoch, found.version) for number, found in self._numbers.items()]
        if self._own_version is not None:
            rows.append((self._own, *self._own_version))
        return Expect(VERSIONS, COLUMNS, sorted(rows))

    def reads(self) -> list[Statement]:
        """Return the statements whose rows `on_rows` takes.

        The filters of all numbers are read in one snapshot. How new they are say their rows, and
        the versions that were read before; those after say whether the changes were all there.
        """
        than = {number: found.version for number, found in self._numbers.items()}
        return [Select(VERSIONS), SelectNewer(FILTERS, "group", than), Select(VERSIONS)]

    def on_rows(self, before: Rows, changed: Rows, after: Rows) -> bool:
        """Take in what was read. False: of some number all has to be read, so read again."""
        latest = {row["number"]: row for row in after}
        for number in [number for number in self._numbers if number not in latest]:
            self._forget(number)
        whole: list[Row] = []
        current: dict[int, Row] = {}
        for row in before:
            number = row["number"]
            if number == self._own:
                self._own_version = (row["epoch"], row["filters"])
            elif self.has_changes_since(number, row, latest[number]):
                current[number] = row
            else:
                whole.append(row)
        for row in changed:
            if row["number"] in current:
                self._set(row["number"], row["filter"], row["reach"])
                self._numbers[row["number"]].read_up_to(row["group"])
        for number, row in current.items():
            self._numbers[number].read_up_to(row["filters"])
        for row in whole:
            self._forget(row["number"])
            self._numbers[row["number"]] = _Number(latest[row["number"]]["epoch"])
        self.is_behind = bool(whole)
        return not whole

    def has_changes_since(self, number: int, before: Row, after: Row) -> bool:
        """Tell whether the changes that were read are all since the version that is known."""
        known = self._numbers.get(number)
        if known is None or not known.epoch == before["epoch"] == after["epoch"]:
            return False
        is_cut = after["filters_from"] > known.version
        return known.version == NOTHING or not is_cut

    def _forget(self, number: int) -> None:
        known = self._numbers.pop(number, None)
        if known is not None:
            for text in known.texts:
                self._trie.remove(text, number)
                self._results.drop(text)

    def _set(self, number: int, text: str, reach: int) -> None:
        texts = self._numbers[number].texts
        if reach == NOBODY:
            texts.discard(text)
            self._trie.remove(text, number)
        else:
            texts.add(text)
            self._trie.put(text, number, number)
        self._results.drop(text)

    # Routing.

    def route(self, topic: str) -> Numbers:
        """Return the numbers that have subscribers of a topic, in order."""
        found = self._results.results.get(topic)
        if found is None:
            found = tuple(sorted(set(self._trie.match(topic))))
            self._results.put(topic, found, 16 * len(found))
        return found


def learn(digest: Digest) -> Transaction[None]:
    """Read the filters that have changed, those of a new number or epoch whole.

    Each read is committed before it is taken in: that takes a while if they are many, and the
    server ends a transaction that is idle.
    """
    while True:
        found = yield [*digest.reads(), Commit()]
        if digest.on_rows(*found[:3]):
            return


def compare(digest: Digest) -> Transaction[None]:
    """See that no filter has changed, for acknowledgements that no group waits for."""
    try:
        yield [digest.expectation(), Commit()]
    except Stale:
        digest.on_stale()
        raise
