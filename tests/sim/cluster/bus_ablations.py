"""Rules for what crosses by the bus, taken out."""

from __future__ import annotations

import json
from typing import Any

from mqtt_broker.cluster import peers
from mqtt_broker.cluster.digest import STORED, Digest
from mqtt_broker.cluster.exchange import Batch, Exchange
from mqtt_broker.cluster.frames import reader
from mqtt_broker.cluster.frames.bodies import Hint
from mqtt_broker.cluster.frames.layout import MESSAGES
from mqtt_broker.cluster.frames.repeats import Arrivals
from mqtt_broker.cluster.inbox import Inbox
from mqtt_broker.cluster.outbox import Parcel
from mqtt_broker.cluster.peers import HINT_S, Peers
from mqtt_broker.cluster.statements import Expect
from mqtt_broker.cluster.tables import OUTBOX
from mqtt_broker.topics.names import matches
from tests.sim.cluster import messages
from tests.sim.cluster.ablation import Replace, ablation

NOBODY = 0  # numbers count from 1


def register() -> None:
    """Import this module, and the rules are registered."""


# Messages of QoS 1 and 2.


@ablation(messages.play)
def parcels_are_sent() -> list[Replace]:
    """Parcels are sent over the bus."""
    return [(Exchange, "_send_parcels", lambda self, parcels: None)]


@ablation(messages.play)
def nothing_is_left_out() -> list[Replace]:
    """A parcel is accepted when it follows the last one."""

    def on_parcel(self: Inbox, parcel: Parcel) -> None:
        accepted = self._accepted.get(parcel.sender, 0)
        self._accepted[parcel.sender] = max(accepted, parcel.first - 1)
        original(self, parcel)

    original = Inbox.on_parcel
    return [(Inbox, "on_parcel", on_parcel)]


@ablation(messages.play_asynchronous)
def parcels_are_compared() -> list[Replace]:
    """A receiver commits only what is in the outbox then."""

    def expectation(self: Inbox, sender: int, parcels: list[Parcel]) -> Expect:
        return Expect(OUTBOX, ("first",), [], {"receiver": NOBODY})

    return [(Inbox, "expectation", expectation)]


@ablation(messages.play)
def silence_is_read() -> list[Replace]:
    """What a number has sent is read from time to time, even if nothing says so."""

    def _is_due(self: Exchange, sender: int, now: float) -> bool:
        return sender in self.inbox.missing or sender not in self._polled_at

    return [(Exchange, "_is_due", _is_due)]


@ablation(messages.play)
def gaps_are_read() -> list[Replace]:
    """What is known to be missing is read at once."""

    def _is_due(self: Exchange, sender: int, now: float) -> bool:
        self.inbox.missing.clear()
        return original(self, sender, now)

    original = Exchange._is_due
    return [(Exchange, "_is_due", _is_due)]


@ablation(messages.play)
def hints_tell_of_the_outbox() -> list[Replace]:
    """A hint says how far the outbox for its receiver has come."""
    return [(Inbox, "on_hint", lambda self, sender, last: None)]


@ablation(messages.play)
def fleeting_sessions_have_parcels() -> list[Replace]:
    """Messages of QoS 1 and 2 are committed for sessions that are not stored, too."""
    stored: dict[tuple[Digest, int], set[str]] = {}
    sent: set[Batch] = set()

    def _set(self: Digest, number: int, text: str, reach: int) -> None:
        found = stored.setdefault((self, number), set())
        (found.add if reach & STORED else found.discard)(text)
        original_set(self, number, text, reach)

    def route(self: Exchange, batch: Batch) -> None:
        original_route(self, batch)
        fleeting = [one for one in batch.parcels if not _is_for_stored(self.digest, one)]
        batch.parcels = [one for one in batch.parcels if one not in fleeting]
        if batch not in sent:
            sent.add(batch)
            for parcel in fleeting:
                for message in parcel.messages:
                    self.messages.add(parcel.receiver, message)
            self.flush()

    def _is_for_stored(digest: Digest, parcel: Parcel) -> bool:
        topics = {json.loads(message)[2] for message in parcel.messages}
        texts = stored.get((digest, parcel.receiver), set())
        return any(matches(text, topic) for text in texts for topic in topics)

    original_set, original_route = Digest._set, Exchange.route
    return [(Digest, "_set", _set), (Exchange, "route", route)]


# Messages of QoS 0, and filters.


@ablation(messages.play)
def frames_come_once() -> list[Replace]:
    """A frame that comes again is dropped."""

    def add(self: Arrivals, sequence: int, *, in_order: bool) -> Any:
        original(self, sequence, in_order=in_order)

    original = Arrivals.add
    return [(Arrivals, "add", add)]


@ablation(messages.play)
def messages_come_in_order() -> list[Replace]:
    """A frame with messages of QoS 0, or a hint, is dropped when a later one has come."""
    return [(reader, "IN_ORDER", frozenset())]


@ablation(messages.play)
def hints_come_in_order() -> list[Replace]:
    """A hint is dropped when a later one has come: it is no sign of life."""
    return [(reader, "IN_ORDER", frozenset((MESSAGES,)))]


@ablation(messages.play)
def hints_tell_of_filters() -> list[Replace]:
    """A hint says that the filters of its sender have changed."""
    return [(Digest, "on_hint", lambda self, number, epoch, version: None)]


@ablation(messages.play)
def news_is_told_at_once() -> list[Replace]:
    """A hint is sent as soon as a version has changed."""

    def is_news(self: Any, hint: Hint, now: float) -> bool:
        return bool(now >= self.at + HINT_S)

    return [(peers.Told, "is_news", is_news)]


@ablation(messages.play)
def subacks_wait_for_the_others() -> list[Replace]:
    """SUBACK waits until the others know the filter."""

    def when_known(self: Peers, version: int, reply: Any) -> None:
        reply()

    return [(Peers, "when_known", when_known)]


@ablation(messages.play)
def subacks_do_not_wait_long() -> list[Replace]:
    """SUBACK waits a moment and no longer."""
    return [(peers.Waiting, "is_over", lambda self, now: False)]
