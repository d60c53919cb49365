"""FleetMQ's public API: these names are kept, everything else may change.

    import mqtt_broker                        loads nothing else
    from mqtt_broker import Broker, Settings  loads what these two need

docs/EMBEDDING.md says how to use them, docs/reference/api.md has them all. The telemetry log has
an API of its own, `mqtt_broker.streams`, and Spark has `spark_ingest`. FleetMQ's own modules
import each other, and never these names.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mqtt_broker.lazy import attributes
from mqtt_broker.version import __version__

if TYPE_CHECKING:
    from mqtt_broker.core.interfaces.access import (
        PENDING,
        Access,
        Allow,
        Challenge,
        ConnectRequest,
        Guard,
        Later,
        OpenAccess,
        PeerCertificate,
        Refuse,
        Reply,
        Verdict,
    )
    from mqtt_broker.core.interfaces.message_log import (
        MessageLog,
        Refusal,
        StreamSubscriptions,
        TopicWriter,
    )
    from mqtt_broker.core.interfaces.payload_checks import PayloadCheck, PayloadChecks
    from mqtt_broker.core.limits.client_limits import ClientLimits
    from mqtt_broker.core.limits.settings import Settings
    from mqtt_broker.in_process import (
        Disconnected,
        InProcessError,
        Message,
        PublishRefused,
        SubscribeRefused,
        Subscription,
    )
    from mqtt_broker.server.config.config import Config, StartError
    from mqtt_broker.server.config.endpoints import Endpoint
    from mqtt_broker.server.config.tables import ConfigError
    from mqtt_broker.server.net.event_loop import TurnLoop
    from mqtt_broker.server.server import Server
    from mqtt_broker.test_support.clients import ConnectedClient, NotConnected, NotSubscribed
    from mqtt_broker.test_support.recorder import NotPublished, PublishedMessage
    from mqtt_broker.testing import Broker, ThreadedBroker
    from mqtt_broker.topics.shared import Member, Strategy, StrategyFactory

__all__ = [
    "PENDING",
    "Access",
    "Allow",
    "Broker",
    "Challenge",
    "ClientLimits",
    "Config",
    "ConfigError",
    "ConnectRequest",
    "ConnectedClient",
    "Disconnected",
    "Endpoint",
    "Guard",
    "InProcessError",
    "Later",
    "Member",
    "Message",
    "MessageLog",
    "NotConnected",
    "NotPublished",
    "NotSubscribed",
    "OpenAccess",
    "PayloadCheck",
    "PayloadChecks",
    "PeerCertificate",
    "PublishRefused",
    "PublishedMessage",
    "Refusal",
    "Refuse",
    "Reply",
    "Server",
    "Settings",
    "StartError",
    "Strategy",
    "StrategyFactory",
    "StreamSubscriptions",
    "SubscribeRefused",
    "Subscription",
    "ThreadedBroker",
    "TopicWriter",
    "TurnLoop",
    "Verdict",
    "__version__",
]

# The modules that have these names, for `__getattr__`.
_PLACES: Final = {
    "mqtt_broker.core.interfaces.access": (
        "Access Allow Challenge ConnectRequest Guard Later OpenAccess PENDING PeerCertificate "
        "Refuse Reply Verdict"
    ),
    "mqtt_broker.core.interfaces.message_log": (
        "MessageLog Refusal StreamSubscriptions TopicWriter"
    ),
    "mqtt_broker.core.interfaces.payload_checks": "PayloadCheck PayloadChecks",
    "mqtt_broker.core.limits.client_limits": "ClientLimits",
    "mqtt_broker.core.limits.settings": "Settings",
    "mqtt_broker.in_process": (
        "Disconnected InProcessError Message PublishRefused SubscribeRefused Subscription"
    ),
    "mqtt_broker.server.config.config": "Config StartError",
    "mqtt_broker.server.config.endpoints": "Endpoint",
    "mqtt_broker.server.config.tables": "ConfigError",
    "mqtt_broker.server.net.event_loop": "TurnLoop",
    "mqtt_broker.server.server": "Server",
    "mqtt_broker.test_support.clients": "ConnectedClient NotConnected NotSubscribed",
    "mqtt_broker.test_support.recorder": "NotPublished PublishedMessage",
    "mqtt_broker.testing": "Broker ThreadedBroker",
    "mqtt_broker.topics.shared": "Member Strategy StrategyFactory",
}
__getattr__ = attributes(__name__, _PLACES)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
