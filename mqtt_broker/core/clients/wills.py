"""Will Messages: kept with the session, sent at the right moment or not at all.

A will is due when its connection ends without DISCONNECT 0x00, after the shorter of Will
Delay and Session Expiry [MQTT-3.1.2-8]. The client's return cancels it [MQTT-3.1.3-9],
unless its session ended meanwhile: then it is sent when the session ends.
"""

from __future__ import annotations

from mqtt_broker.codec import properties as prop
from mqtt_broker.core.clients.authorization import Authorizer
from mqtt_broker.core.routing.router import Router
from mqtt_broker.core.runtime.runtime import Runtime
from sessions.messages.backlog import Backlog
from sessions.messages.message import single
from sessions.session import Session


class Wills:
    __slots__ = ("_authorizer", "_backlog", "_counters", "_log", "_router", "_timers")

    def __init__(
        self, runtime: Runtime, router: Router, authorizer: Authorizer, backlog: Backlog
    ) -> None:
        self._timers = runtime.timers
        self._counters = runtime.counters
        self._log = runtime.log
        self._router = router
        self._authorizer = authorizer
        self._backlog = backlog

    def schedule(self, session: Session, now: float) -> None:
        """Send the will of a client whose connection ended, now or after its delay."""
        if session.will is None:
            return
        wait = delay(session)
        if not wait:
            self.send(session, now)
            return
        session.delay_will(now + wait)
        self.watch(session)

    def watch(self, session: Session) -> None:
        """Arm the timer of a will that is due later."""
        session.send_will_with(
            self._timers.at(session.will_at, lambda then: self.send(session, then))
        )

    def send(self, session: Session, now: float) -> None:
        will = session.will
        if will is None:
            return
        session.clear_will()  # published once. [MQTT-3.1.2-10]
        guard = self._authorizer.guard_of(session)
        if not guard.may_publish(will.topic):  # the rules changed since CONNECT
            self._backlog.drop("not_authorized")
            self._counters.refuse("will", "not_authorized")
            self._log(f"{session.client_id}: its will to {will.topic!r} is no longer allowed")
            session.record()
            return
        message = single(
            will.topic,
            will.payload,
            qos=will.qos,
            retain=will.retain,  # [MQTT-3.1.2-14], [MQTT-3.1.2-15]
            properties=will.properties,
            section=will.section,  # user properties in their order. [MQTT-3.1.3-10]
            publisher=session.client_id,
            now=now,
        )
        self._router.publish(message, session.outbound, now)
        session.record()


def delay(session: Session) -> int:
    """Return how long after its connection's end the will is due, in seconds."""
    if session.will is None:
        return 0
    wait = session.will.properties.number(prop.WILL_DELAY_INTERVAL)
    return wait if session.never_expires else min(wait, session.expiry_interval)
