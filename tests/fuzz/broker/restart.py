"""What a broker has to be after its process was killed, and what it may be.

Facts that were not yet surely on disk may be gone or there. Which of them are there is read
from the broker that has started, checked against what is possible, and is the truth from then.

Times: a session that was online at the crash counts from the restart, unless the broker was
away for more than a minute; then from a minute after the last sign of life.
"""

from __future__ import annotations

from typing import Any, Final

from tests.fuzz.broker import wire
from tests.fuzz.broker.facts import Fact, Message, Owed, State, Subscription
from tests.fuzz.broker.judge import Judge
from tests.fuzz.broker.model import FOREVER, NEVER
from tests.fuzz.broker.wire import Will

GRACE_S: Final = 60.0
SLACK_S: Final = 1.0


class Restart:
    """One crash, and what the broker is after it."""

    def __init__(self, model: Judge, alive_at: float) -> None:
        self.model = model
        self.now = model.now
        self.counts_from = self.now if self.now - alive_at <= GRACE_S else alive_at + GRACE_S
        self.mark = 0  # what is published at the start is numbered above it, and not on disk
        self.due: list[tuple[Will, State, bool]] = []  # published at the start; surely?

    # Before the new process.

    def forget(self) -> None:
        model = self.model
        model.is_stopping = False
        for door in list(model.arriving.values()):
            model.close(door)
        for fact in model.clients.values():
            for state in fact.possible:
                if state is None:
                    continue
                if state.door is not None:
                    state.door.is_open = False
                    state.door = None
                if not state.stored:
                    model.excuse_lookalikes(state)
                state.outstanding.clear()
                self._forget_owed(state.owed)
        fleeting = [state for state in model.states if not state.stored]
        for text, waiting in model.groups.items():
            self._forget_owed(waiting)
            if any(text in state.groups for state in fleeting):
                for owed in waiting:
                    owed.must = owed.must and owed.message.qos < 2

    def _forget_owed(self, found: list[Owed]) -> None:
        for owed in found:
            owed.again = owed.sent > 0 or owed.taken > 0
            owed.must = owed.must and owed.message.promised and owed.qos > 0
            owed.holders.clear()

    # After it.

    def adopt(self, broker: Any) -> None:
        model = self.model
        for client in list(model.clients):
            self._adopt_state(client, broker.sessions.get(client.decode()))
        for session in broker.sessions:
            known = session.client_id.encode() in model.clients
            model.check(known, "returned", f"a session {session.client_id[:20]!r} of nobody")
        self.mark = model.stamp
        for will, state, is_sure in self.due:
            message = model.new_message(
                will.topic, will.payload, will.qos, will.retain, will.props, state.client
            )
            model.route_will(message)
            if not is_sure:
                self._make_doubtful(message)
            elif will.retain:
                self._check_will(broker, message)
        self.adopt_retained(broker)
        self._adopt_groups()

    def _bounds(self, state: State) -> tuple[float, float]:
        """When the session may end, and when it has to have ended."""
        low, high = FOREVER, 0.0
        for closed_at, expiry in state.lives:
            if expiry == NEVER:
                high = FOREVER
                continue
            low = min(low, (self.counts_from if closed_at is None else closed_at) + expiry)
            high = max(high, (self.now if closed_at is None else closed_at) + expiry)
        return low, high

    def _adopt_state(self, client: bytes, session: Any) -> None:
        model = self.model
        fact = model.clients[client]
        possible = [state for state in fact.possible if state is not None and state.stored]
        if session is None:
            if None not in fact.possible:
                for state in possible:
                    low, _ = self._bounds(state)
                    model.check(
                        low <= self.now + SLACK_S, "early-end",
                        f"{client[:20]!r}: its session is gone {low - self.now:.3f} s too early",
                    )  # fmt: skip
            for state in possible:
                model.excuse_lookalikes(state)
                self._adopt_will(state, None, is_alone=fact.possible == [state])
            for one in fact.possible:
                if one is not None and not one.stored:
                    one.is_row = any(one.wills)
                    self._adopt_will(one, None, is_alone=fact.possible == [one])
            stamp = model.tick_stamp()
            for state in possible:
                state.end_stamp = stamp
            fact.put(stamp, None)  # it may have ended just now, which is not on disk
            return
        for one in fact.possible:
            if one is not None and not one.stored and one is fact.now:
                self._adopt_will(one, None, is_alone=False)
        found = [state for state in possible if state.created_at == session.created_at]
        model.check(
            bool(found), "returned",
            f"{client[:20]!r} has a session of {session.created_at} again",
        )  # fmt: skip
        state = found[-1]
        fact.become(state)
        low, high = self._bounds(state)
        model.check(
            high >= self.now - SLACK_S, "late-end", f"{client[:20]!r}: its session ended at {high}"
        )
        expires_at = session.expires_at
        right = low - SLACK_S <= expires_at
        model.check(
            right, "early-end",
            f"{client[:20]!r}: its session ends at {expires_at - self.now:.3f} s from now, "
            f"not before {low - self.now:.3f}",
        )  # fmt: skip
        model.check(
            expires_at <= high + SLACK_S,
            "late-end",
            f"{client[:20]!r} ends {expires_at - high} s late",
        )
        state.ends = expires_at
        state.expiry = session.expiry_interval
        left_at = self.now
        if expires_at < FOREVER:
            left_at = expires_at - state.expiry
        elif session.will is not None:  # it says when its connection was lost
            topic = session.will.topic.encode()
            delays = [
                wire.number(one.props, wire.WILL_DELAY)
                for one in state.wills
                if one is not None and one.topic == topic
            ]
            left_at = min(self.now, session.will_at - max(delays, default=0))
        state.lives.append((left_at, state.expiry))
        self._adopt_subs(state, session)
        self._adopt_ids(state, session)
        self._adopt_will(state, session, is_alone=True)

    def _adopt_subs(self, state: State, session: Any) -> None:
        model = self.model
        seen: dict[bytes, Any] = {
            text.encode(): (one.qos, one.no_local, one.retain_as_published, one.identifier)
            for text, one in session.subscriptions.items()
        }
        for text in dict.fromkeys((*seen, *state.subs)):
            fact = state.subs.setdefault(text, Fact(None))
            values = [value for value in fact.possible if value is not None]
            if text not in seen:
                right = None in fact.possible or state.tainted
                model.check(right, "session", f"{state.client[:20]!r} lost {text[:40]!r}")
                fact.become(None)
                continue
            same = [value for value in values if value.same(seen[text])]
            right = bool(same) or state.tainted
            model.check(
                right, "returned" if None in fact.possible else "session",
                f"{state.client[:20]!r}: {text[:40]!r} is {seen[text]}",
            )  # fmt: skip
            qos, no_local, as_published, identifier = seen[text]
            asked = wire.Asked(text, qos, no_local, as_published)
            fact.become(same[-1] if same else Subscription(asked, identifier))

    def _adopt_ids(self, state: State, session: Any) -> None:
        """Inbound QoS 2: the id and the message were recorded together, so both are there."""
        model = self.model
        seen = set(session.inbound.ids)
        for packet_id, message in list(state.open.items()):
            if packet_id in seen:
                message.promised = True
                continue
            right = not message.promised or state.tainted
            model.check(right, "session", f"{state.client[:20]!r} lost the id of {message}")
            del state.open[packet_id]
            self._unsay(message)
        for packet_id in sorted(seen - set(state.open)):
            freed = state.freed.get(packet_id)
            right = freed is not None or state.tainted
            model.check(right, "returned", f"{state.client[:20]!r} has id {packet_id} again")
            if freed is not None:
                state.open[packet_id] = freed
        state.freed.clear()

    def _unsay(self, message: Message) -> None:
        """It was not stored, nor was its id: it will be sent again as a new message."""
        for state in self.model.states:
            state.owed = [owed for owed in state.owed if not is_of(owed, message)]
        for waiting in self.model.groups.values():
            waiting[:] = [owed for owed in waiting if not is_of(owed, message)]

    # Wills.

    def _adopt_will(self, state: State, session: Any, *, is_alone: bool) -> None:
        """`is_alone`: the session was surely on disk, with the last of its wills if no other."""
        model = self.model
        wills = [will for will in state.wills if will is not None]
        is_sure = is_alone and len(state.wills) == 1 and not state.tainted
        state.will, state.will_due = None, FOREVER
        waits = session is not None and session.will is not None
        if waits:
            topic = session.will.topic.encode()
            alike = [
                will
                for will in wills
                if (will.topic, will.payload) == (topic, session.will.payload)
            ]
            state.will = alike[-1] if alike else None
            state.will_due = session.will_at
            if is_sure and state.will is not None:
                low = min(self._will_low(state, state.will, one) for one in state.lives)
                model.check(
                    low - SLACK_S <= session.will_at, "early-end",
                    f"{state.client[:20]!r}: its will is due {low - session.will_at:.3f} s early",
                )  # fmt: skip
            return
        state.wills.append(None)
        for will in wills:
            low = min((self._will_low(state, will, one) for one in state.lives), default=0.0)
            if is_sure:
                right = low <= self.now + SLACK_S
                model.check(right, "early-end", f"{state.client[:20]!r}: its will came too early")
            self.due.append((will, state, is_sure))

    def _will_low(self, state: State, will: Will, life: tuple[float | None, int]) -> float:
        closed_at, expiry = life
        delay = wire.number(will.props, wire.WILL_DELAY)
        wait = delay if expiry == NEVER else min(delay, expiry)
        return (self.counts_from if closed_at is None else closed_at) + wait

    def _check_will(self, broker: Any, message: Message) -> None:
        """Before anybody can have connected."""
        found = broker.retained.get(message.topic.decode())
        others = [will for will, _, _ in self.due if will.topic == message.topic and will.retain]
        if len(others) > 1 or message.expires_at <= self.now:
            return
        right = (found is None) if not message.payload else (
            found is not None and found.payload == message.payload
        )  # fmt: skip
        self.model.check(right, "will", f"the will of {message.publisher[:20]!r} did not come")

    def _make_doubtful(self, message: Message) -> None:
        for state in self.model.states:
            for owed in state.owed:
                if is_of(owed, message):
                    owed.must = False
        for waiting in self.model.groups.values():
            for owed in waiting:
                if is_of(owed, message):
                    owed.must = False

    # Topics.

    def adopt_retained(self, broker: Any) -> None:
        model = self.model
        seen = {one.envelope.topic.encode(): one for one in broker.retained.values()}
        for topic in dict.fromkeys((*seen, *model.retained)):
            fact = model.retained.setdefault(topic, Fact(None))
            found = seen.get(topic)
            if found is None:
                gone = [one for one in fact.possible if one is None or one.expires_at <= self.now]
                right = bool(gone)
                model.check(right, "retained", f"{topic[:40]!r}: {fact.now} is not retained")
                self._collapse(fact, None)
                continue
            same = [
                one
                for one in fact.possible
                if one is not None and (one.payload, one.qos) == (found.payload, found.envelope.qos)
            ]
            right = bool(same)
            model.check(
                right, "cleared" if None in fact.possible else "retained",
                f"{topic[:40]!r}: {found.payload[:24]!r} is retained, not {fact.now}",
            )  # fmt: skip
            came_at = found.envelope.received_at  # two may look alike
            self._collapse(fact, min(reversed(same), key=lambda one: abs(one.at - came_at)))

    def _collapse(self, fact: Fact[Message | None], value: Message | None) -> None:
        if any(one is not None and one.number > self.mark for one in fact.possible):
            fact.put(self.model.tick_stamp(), value)
        else:
            fact.become(value)

    def _adopt_groups(self) -> None:
        """A promise to a group stands while a stored member of then is still in it."""
        self.model.check_groups()
        for text, waiting in self.model.groups.items():
            for owed in waiting:
                stays = any(
                    self.model.state(one.client) is one and one.subscription(text) is not None
                    for one in owed.keepers
                )
                owed.must = owed.must and stays


def is_of(owed: Owed, message: Message) -> bool:
    """Whether it is that message, or what a bridge made of it."""
    return owed.message is message or owed.message.origin is message
