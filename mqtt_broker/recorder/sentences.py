"""The answers in words: one sentence for each publication, refusal, or missing subscription."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

from mqtt_broker.recorder import kinds, outcomes, retained_outcomes
from mqtt_broker.recorder.outcomes import Outcome
from mqtt_broker.recorder.retained_outcomes import RetainedOutcome
from mqtt_broker.recorder.search import Fact
from mqtt_broker.recorder.segments import SEPARATOR

Clock = Callable[[int], str]
_WAITS: Final = {
    kinds.AWAY: "away",
    kinds.WINDOW_FULL: "Receive Maximum or inflight_max reached",
    kinds.READS_SLOWLY: "reads slowly",
    kinds.BEHIND_OTHERS: "behind messages that wait",
}
_ENDS: Final = {
    kinds.EXPIRED: "it expired",
    kinds.REPLACED: "replaced by Clean Start, or ended by an operator",
    kinds.NOT_KEPT: "it was not to outlive its connection",
}


def clock_for(now_ms: int) -> Clock:
    """Return a function that writes times in UTC: without their date if that is today."""
    today = datetime.fromtimestamp(now_ms / 1000, UTC).date()

    def write(ms: int) -> str:
        moment = datetime.fromtimestamp(ms / 1000, UTC)
        return moment.strftime("%H:%M:%S" if moment.date() == today else "%Y-%m-%d %H:%M:%S")

    return write


def quoted(text: str) -> str:
    """Quote a name so that it stays on one line, whatever a client put in it."""
    shown = "".join(letter if letter.isprintable() else "?" for letter in text[:200])
    return f"`{shown}`" + ("..." if len(text) > 200 else "")


def sentence_of(outcome: Outcome, client_id: str, clock: Clock) -> str:
    """Tell the story of one publication at one client."""
    publication = outcome.publication
    parts = [_published(publication, clock)]
    state = outcome.state
    if state == outcomes.UNMATCHED:
        parts.append(f"no subscription of {quoted(client_id)} matched")
        return ", ".join(parts)
    parts.append(
        f"matched {_filters(outcome.filter)} of {quoted(client_id)} granted QoS {outcome.granted}"
    )
    if outcome.given_count and outcome.given_count < publication.count:
        parts.append(f"{outcome.given_count} of {publication.count} given to this member")
    if outcome.queued is not None:
        parts.append(_queued(outcome, clock))
    if outcome.sent_ms:
        dup = " with DUP" if outcome.resent_ms else ""
        when = max(outcome.sent_ms, outcome.resent_ms)
        parts.append(f"delivered {clock(when)}{dup}")
    elif outcome.resent_ms:
        if outcome.takeover is not None:
            parts.append(
                f"taken over by {outcome.takeover.topic} at {clock(outcome.takeover.at_ms)}"
            )
        parts.append(f"sent again {clock(outcome.resent_ms)} with DUP")
    parts.append(_end_of(outcome, clock))
    return ", ".join(parts)


def _filters(text: str) -> str:
    """Quote each of the filters that match."""
    return " and ".join(quoted(one) for one in text.split(SEPARATOR))


def _published(publication: Fact, clock: Clock) -> str:
    times = "" if publication.count == 1 else f"{publication.count} messages "
    when = f"at {clock(publication.at_ms)}"
    if clock(publication.until_ms) != clock(publication.at_ms):
        when = f"from {clock(publication.at_ms)} to {clock(publication.until_ms)}"
    retain = ", retained" if publication.code & kinds.RETAIN_BIT else ""
    return (
        f"{times}published to {quoted(publication.topic)} by {quoted(publication.client)} {when}, "
        f"QoS {publication.code & kinds.QOS_BITS}{retain}"
    )


def _queued(outcome: Outcome, clock: Clock) -> str:
    assert outcome.queued is not None
    why = _WAITS.get(outcome.queued.code, "")
    if outcome.state == outcomes.WAITS_FOR_MEMBER:
        why = "no member of the group was online"
    if outcome.away_since_ms:
        why = f"away since {clock(outcome.away_since_ms)}"
    some = ""
    if outcome.queued.count < outcome.publication.count:
        some = "some of them "
    return f"{some}queued ({why})"


def _end_of(outcome: Outcome, clock: Clock) -> str:
    state, publication = outcome.state, outcome.publication
    if state == outcomes.ACKNOWLEDGED:
        at = f" {clock(outcome.acknowledged_ms)}" if outcome.acknowledged_ms else ""
        return f"acknowledged{at}"
    if state == outcomes.IN_FLIGHT:
        many = publication.count > outcome.open_count
        some = f"{outcome.open_count} of {publication.count} " if many else ""
        return f"{some}never acknowledged"
    if state == outcomes.WAITING:
        return f"still in its queue{_refused(outcome, clock)}"
    if state == outcomes.EXPIRED:
        at = clock(outcome.expired_ms)
        return f"expired {at} and still in its queue{_refused(outcome, clock)}"
    if state == outcomes.WAITS_FOR_MEMBER:
        return "given to no member yet"
    if state == outcomes.DROPPED and outcome.dropped is not None:
        return f"dropped {clock(outcome.dropped.at_ms)} ({reason_of(outcome.dropped)})"
    if state == outcomes.PARTLY_DROPPED and outcome.dropped is not None:
        return some_dropped(outcome.dropped, clock)
    if state == outcomes.AWAY_QOS0:
        since = f" since {clock(outcome.away_since_ms)}" if outcome.away_since_ms else ""
        return f"not kept: the client was away{since}, and QoS 0 does not wait"
    if state == outcomes.SENT_QOS0:
        return "sent at QoS 0, which nobody acknowledges"
    if state == outcomes.LOST:
        return _lost(outcome, clock)
    if state == outcomes.OTHER_MEMBER:
        return f"given to another member of the shared subscription: {quoted(outcome.given_to)}"
    if state == outcomes.OWN:
        return "not delivered: its own message, and the subscription says No Local"
    return "what followed is not known: it is no longer recorded, or not certain"


def _refused(outcome: Outcome, clock: Clock) -> str:
    refused = outcome.refused
    if refused is None:
        return ""
    return f"; its CONNECT of {clock(refused.at_ms)} was refused: {refused.other}"


def _lost(outcome: Outcome, clock: Clock) -> str:
    """Say how the session ended, with how many messages."""
    ended = outcome.ended
    if ended is None:
        return "its session has ended since"
    left = ended.first_ms + ended.last_ms
    messages = "1 message" if left == 1 else f"{left} messages"
    return (
        f"its session ended {clock(ended.at_ms)} ({_ENDS.get(ended.code, '')}) with {messages} "
        "not acknowledged"
    )


def reason_of(dropped: Fact) -> str:
    """Return why messages were dropped, in words."""
    return kinds.DROP_REASONS[dropped.code].replace("_", " ")


def some_dropped(dropped: Fact, clock: Clock) -> str:
    """Say how many messages of a topic were dropped in a time, which is not all of them."""
    begin, end = clock(dropped.at_ms), clock(dropped.until_ms)
    when = f"at {begin}" if begin == end else f"between {begin} and {end}"
    return (
        f"{dropped.count} messages of this topic from {quoted(dropped.other)} were dropped {when} "
        f"({reason_of(dropped)})"
    )


def retained_sentence(outcome: RetainedOutcome, client_id: str, clock: Clock) -> str:
    """Tell what became of a retained message at a SUBSCRIBE."""
    message, state = outcome.message, outcome.state
    at = (
        f"at the SUBSCRIBE of {clock(outcome.at_ms)} to {quoted(outcome.subscription.topic)} of "
        f"{quoted(client_id)}"
    )
    by = ""
    if message is not None and message.publisher:
        by = f"by {quoted(message.publisher)} at {clock(message.received_ms)}"
    if not outcome.is_delivered:
        if state == retained_outcomes.DENIED and outcome.subscription.other:
            state += f" by {outcome.subscription.other}"
        published = f" (published {by})" if by else ""
        return (
            f"a retained message of {quoted(outcome.topic)}{published} existed but was not sent "
            f"{at}: {state}"
        )
    lead = f"a retained message of {quoted(outcome.topic)}"
    if by:
        lead = f"published to {quoted(outcome.topic)} {by}"
    if state == retained_outcomes.DROPPED and outcome.dropped is not None:
        return f"{lead}, to be delivered as retained {at}, dropped ({reason_of(outcome.dropped)})"
    if state == retained_outcomes.ON_ITS_WAY:
        return f"{lead}, still to be delivered as retained {at}"
    return f"{lead}, delivered as retained {at}, QoS {outcome.qos}{_retained_end(outcome, clock)}"


def _retained_end(outcome: RetainedOutcome, clock: Clock) -> str:
    state = outcome.state
    if state == retained_outcomes.SENT_QOS0:
        return ", which nobody acknowledges"
    if state == retained_outcomes.IN_FLIGHT:
        return ", never acknowledged"
    if state == retained_outcomes.WAITING:
        return ", still in its queue"
    if state == retained_outcomes.ACKNOWLEDGED:
        at = f" {clock(outcome.acknowledged_ms)}" if outcome.acknowledged_ms else ""
        return f", acknowledged{at}"
    return "; what followed is not known"


def brought_sentence(subscription: Fact, count: int, clock: Clock) -> str:
    """Say how many retained messages a SUBSCRIBE brought."""
    messages = "1 retained message was" if count == 1 else f"{count} retained messages were"
    return (
        f"{messages} delivered at the SUBSCRIBE of {clock(subscription.at_ms)} to "
        f"{quoted(subscription.topic)} of {quoted(subscription.client)}"
    )


def refusal_sentence(refusal: Fact, clock: Clock) -> str:
    """Say who was refused to publish or subscribe, and by which rule."""
    verb = "publish to" if refusal.first_ms == kinds.PUBLISH_REFUSED else "subscribe to"
    by = f" by {refusal.other}" if refusal.other else f" with reason code {refusal.code}"
    return (
        f"{quoted(refusal.client)} was denied to {verb} {quoted(refusal.topic)} at "
        f"{clock(refusal.at_ms)}{by}"
    )


def no_match_sentence(client_id: str, topic: str, nearest: str) -> str:
    """Say that a client has no subscription for a topic, and which is nearest."""
    near = f"; nearest is {quoted(nearest)}" if nearest else ""
    return f"no subscription of {quoted(client_id)} matches {quoted(topic)}{near}"


def connection_sentence(fact: Fact, clock: Clock) -> str:
    """Say that a client came, went, or was refused."""
    who, when = quoted(fact.client), clock(fact.at_ms)
    address = f" from {fact.topic}" if fact.topic else ""
    if fact.kind == kinds.CONNECTED:
        return f"{who} connected{address} at {when}"
    if fact.kind == kinds.DISCONNECTED:
        return f"{who} was disconnected at {when}: {fact.other}"
    if fact.kind == kinds.TAKEN_OVER:
        by = f"{who} at {fact.other} was taken over by {fact.topic} at {when}"
        return f"{by} (same client id), {kinds.TAKEOVERS.get(fact.code, '')}"
    if fact.kind == kinds.NOT_CONNECTED:
        return f"{who} was refused{address} at {when}: {fact.other}"
    how = kinds.ENDS.get(fact.code, "")
    return f"the session of {who} ended at {when} ({how})"
