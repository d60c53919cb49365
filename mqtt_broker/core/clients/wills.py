"""Will Messages: kept with the session, sent at the right moment or not at all.

A will is due when its connection ends without DISCONNECT 0x00, after the shorter of Will
Delay and Session Expiry [MQTT-3.1.2-8]. The client's return cancels it [MQTT-3.1.3-9],
unless its session ended meanwhile: then it is sent when the session ends.
"""

from __future__ import annotations

from mqtt_broker.codec.properties import properties_of
from mqtt_broker.core.clients.authorization import Authorizer
from mqtt_broker.core.routing.router import Router
from mqtt_broker.core.runtime.runtime import Runtime
from sessions.journal.rows import WillRow
from sessions.messages.backlog import Backlog
from sessions.messages.message import single
from sessions.messages.work import WorkItem
from sessions.session import Session


class Wills:
    __slots__ = (
        "_authorizer", "_backlog", "_counters", "_dead_letters", "_log", "_router",
    )  # fmt: skip

    def __init__(
        self, runtime: Runtime, router: Router, authorizer: Authorizer, backlog: Backlog
    ) -> None:
        self._counters = runtime.counters
        self._log = runtime.log
        self._dead_letters = runtime.dead_letters
        self._router = router
        self._authorizer = authorizer
        self._backlog = backlog

    def schedule(self, session: Session, now: float) -> WorkItem | None:
        """Send the will of a client whose connection ended, or note when it is due.

        Returns what is left to do, if it goes to more than one turn can serve.
        """
        if session.will is None:
            return None
        wait = delay(session)
        if not wait:
            return self.send(session, now)
        session.delay_will(now + wait)
        return None

    def send(self, session: Session, now: float) -> WorkItem | None:
        """Send a will; who calls records the session when that is done.

        Returns what is left to do, if it goes to more than one turn can serve.
        """
        will = session.will
        if will is None:
            return None
        session.clear_will()  # published once. [MQTT-3.1.2-10]
        guard = self._authorizer.guard_of(session)
        if not guard.may_publish(will.topic):  # the rules changed since CONNECT
            self._refuse(session, will, "not_authorized", "is no longer allowed")
            return None
        message = single(
            will.topic,
            will.payload,
            qos=will.qos,
            retain=will.retain,  # [MQTT-3.1.2-14], [MQTT-3.1.2-15]
            properties=properties_of(will.section),
            section=will.section,  # user properties in their order. [MQTT-3.1.3-10]
            publisher=session.client_id,
            now=now,
        )
        why = self._router.payload_problem(will.topic, will.payload)
        if why:  # the schema changed since CONNECT
            if self._dead_letters is not None:
                self._dead_letters.add("schema", message, session.client_id, why)
            self._refuse(session, will, "payload_format_invalid", f"violates its schema: {why}")
            return None
        return self._router.start(message, session.outbound, now)

    def _refuse(self, session: Session, will: WillRow, reason: str, why: str) -> None:
        self._backlog.drop(reason)
        self._counters.refuse("will", reason)
        self._log(f"{session.client_id}: its will to {will.topic!r} {why}")


def delay(session: Session) -> int:
    """Return how long after its connection's end the will is due, in seconds."""
    if session.will is None:
        return 0
    wait = session.will_delay
    return wait if session.never_expires else min(wait, session.expiry_interval)
