"""Every call of the store fails once: nothing that was called safe is lost, nothing is twice.

For each n there is one life of the same store in which its n-th call fails. A statement then
does nothing; a commit either does nothing or is done without anybody learning of it. The fast tests
examine every third n.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from sessions.store import worker
from sessions.store.store import StoreError
from tests.sessions.store.places import (
    BYTES_MAX,
    PATIENCE_S,
    Ledger,
    Place,
    Watch,
    check_same,
    queued,
)
from tests.sessions.store.sabotage import CALLS_MAX, STEPS, sabotaged


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "RETRY_S", 0.001)


def live(place: Place, ledger: Ledger) -> Watch:
    """A short life that does everything once, after a look at what the last one left."""
    store = place.open()
    watch = Watch(store)
    ledger.submit(watch, 2)
    watch.until_committed()
    ledger.submit(watch, 1)
    watch.until_folded()
    watch.page(next(iter(ledger.history.sessions)), 0, 10, BYTES_MAX)
    ledger.submit(watch, 1)
    assert store.stop(PATIENCE_S)
    return watch


# SQLAlchemy 2.0, not 2.1, drops the cursor of a connection that has failed without closing it.
@pytest.mark.filterwarnings("ignore:Exception ignored in.*ServerCursor.__del__")
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("after_commit", [False, True], ids=["undone", "unknown"])
def test_the_nth_call_fails(place: Place, after_commit: bool, step: int) -> None:
    ledger = Ledger(11)
    live(place, ledger)
    for nth in range(1 + after_commit % step, CALLS_MAX, step):
        with sabotaged(nth, after_commit=after_commit) as sabotage:
            try:
                watch = live(place, ledger)
            except StoreError:  # it failed before there was anybody to try again
                place.close()
                continue
        assert watch.committed == sorted(set(watch.committed))
        assert watch.committed[-1] == watch.folded[-1] == len(ledger.groups)
        assert watch.states[-1] == ""
        if sabotage.calls < nth:
            break
        assert any("sabotage" in state or "lost" in state for state in watch.states), nth
        if nth // step % 10 == 0:
            check(place, ledger)
    else:
        pytest.fail("the store never stopped calling")
    check(place, ledger)


def check(place: Place, ledger: Ledger) -> None:
    store = place.open()
    check_same(store, ledger.tables(len(ledger.groups)))
    store.abandon()


@pytest.mark.parametrize("what", ["committed", "folded", "page"])
def test_what_could_not_be_told_is_told_again(place: Place, what: str) -> None:
    """Memory was short, or the mistake is ours: nothing else may come that would make up for it."""
    store = place.open()
    told: dict[str, list[Any]] = {"committed": [], "folded": [], "page": [], "state": []}
    news = threading.Condition()
    failures = {what: 2}

    def teller(name: str) -> Callable[[Any], None]:
        def tell(value: Any) -> None:
            if failures.get(name, 0):
                failures[name] -= 1
                raise MemoryError
            with news:
                told[name].append(value)
                news.notify_all()

        return tell

    store.start(teller("committed"), teller("folded"), teller("state"))
    store.submit(1, queued(1, 3), 1.0)
    store.apply_soon()
    with news:
        assert news.wait_for(lambda: told["committed"] and told["folded"], PATIENCE_S), told
    store.page(1, 0, 10, BYTES_MAX, teller("page"))
    with news:
        assert news.wait_for(lambda: len(told["page"]) > 0, PATIENCE_S)
        assert news.wait_for(lambda: not told["state"] or not told["state"][-1], PATIENCE_S)
    assert (told["committed"], told["folded"], len(told["page"][0])) == ([1], [1], 3)


def test_threads_that_end_with_the_store_are_not_dead(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Watch(place.open()).store
    found: list[list[str]] = []
    stop = store.writer.stop

    def look() -> None:
        """The others have ended by now."""
        found.append(store.dead_threads())
        stop()

    monkeypatch.setattr(store.writer, "stop", look)
    assert store.stop(PATIENCE_S)
    assert found == [[]]
