"""Will Messages: kept with the session, sent at the right moment or not at all.

A will is due when its connection ends without DISCONNECT 0x00, after the shorter of Will
Delay and Session Expiry [MQTT-3.1.2-8]. The client's return cancels it [MQTT-3.1.3-9],
unless its session ended meanwhile: then it is sent when the session ends.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mqtt_broker.codec import properties as prop
from mqtt_broker.core.inbound.publish import publish
from sessions.messages.message import single
from sessions.session import Session

if TYPE_CHECKING:
    from mqtt_broker.core.broker import Broker


def schedule(broker: Broker, session: Session, now: float) -> None:
    """The connection is gone and the will stands: send it now or arm its timer."""
    if session.will is None:
        return
    wait = delay(session)
    if not wait:
        send(broker, session, now)
        return
    session.delay_will(now + wait)
    watch(broker, session)


def delay(session: Session) -> int:
    """How long after its connection's end the will is due."""
    if session.will is None:
        return 0
    wait = session.will.properties.number(prop.WILL_DELAY_INTERVAL)
    return wait if session.never_expires else min(wait, session.expiry_interval)


def watch(broker: Broker, session: Session) -> None:
    session.send_will_with(
        broker.timers.at(session.will_at, lambda then: send(broker, session, then))
    )


def send(broker: Broker, session: Session, now: float) -> None:
    will = session.will
    if will is None:
        return
    session.clear_will()  # published once. [MQTT-3.1.2-10]
    if not broker.guard_of(session).may_publish(will.topic):  # the rules changed since CONNECT
        broker.budget.drop("not_authorized")
        broker.stats.refuse("will", "not_authorized")
        broker.log(f"{session.client_id}: its will to {will.topic!r} is no longer allowed")
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
    publish(broker, message, session.outbound, now)
    session.record()
