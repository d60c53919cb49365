"""The header of a frame, its kinds, and the code that proves where it comes from.

    magic            2  "FQ"
    version          1
    kind             1
    cluster          8  a digest of the cluster's name
    from             4  the number that sends it
    to               4  the number it is for; 0: all
    sequence         8  counts the frames from this number and epoch to this number
    epoch of from    8  a digest
    epoch of to      8  a digest; zeros for all
    size             4  of the body
    body
    code            16  HMAC-SHA256 of all before it, the first half

Integers are big-endian. Each version of a frame begins with magic and version.
"""

from __future__ import annotations

import hashlib
import hmac
from enum import StrEnum
from struct import Struct
from typing import Final

from mqtt_broker.cluster.frames.versions import VERSION

MAGIC: Final = b"FQ"
HEADER: Final = Struct(">2sBB8sIIQ8s8sI")
CODE_BYTES: Final = 16
OVERHEAD_BYTES: Final = HEADER.size + CODE_BYTES
# As much as NATS takes unless it is configured otherwise.
FRAME_BYTES_MAX: Final = 1_048_576
BODY_BYTES_MAX: Final = FRAME_BYTES_MAX - OVERHEAD_BYTES
SECRET_BYTES_MIN: Final = 16
ALL: Final = 0  # nodes have numbers from 1
NUMBER_MAX: Final = 0xFFFF_FFFF
_TAG_BYTES: Final = 8
NO_TAG: Final = bytes(_TAG_BYTES)

# Kinds.
HINT: Final = 1
MESSAGES: Final = 2
OUTBOX: Final = 3
RELEASE: Final = 4
RELEASED: Final = 5
PING: Final = 6
PONG: Final = 7
KINDS: Final = {VERSION: frozenset((HINT, MESSAGES, OUTBOX, RELEASE, RELEASED, PING, PONG))}
# Messages at QoS 0 are delivered at most once and in order, and a hint that is late is no sign of
# life: none of them may come after a later one.
IN_ORDER: Final = frozenset((MESSAGES, HINT))
# A frame for all can be played again to a node that has just started. A hint is the same twice.
FOR_ALL: Final = frozenset((HINT,))


class Drop(StrEnum):
    """The reasons why a frame is dropped."""

    CUT = "cut"
    OVERSIZED = "oversized"
    NOT_A_FRAME = "not-a-frame"
    UNKNOWN_VERSION = "unknown-version"
    OTHER_CLUSTER = "other-cluster"
    FORGED = "forged"  # or of a cluster with the same name and another secret
    UNKNOWN_KIND = "unknown-kind"
    NOT_FOR_ALL = "not-for-all"
    OTHER_RECEIVER = "other-receiver"
    RECEIVER_EPOCH = "receiver-epoch"  # for the host that this number had, or will have
    UNKNOWN_SENDER = "unknown-sender"
    SENDER_EPOCH = "sender-epoch"  # of a host that the number has no longer, or not yet
    REPEATED = "repeated"
    LATE = "late"
    MALFORMED = "malformed"


class FrameKey:
    """The name of a cluster and the secret that its database holds."""

    __slots__ = ("_mac", "cluster")

    def __init__(self, cluster: str, secret: bytes) -> None:
        if len(secret) < SECRET_BYTES_MIN:
            raise ValueError(
                f"the cluster's secret has {len(secret)} bytes: at least {SECRET_BYTES_MIN} needed"
            )
        self.cluster = tag(cluster)
        self._mac = hmac.new(secret, digestmod=hashlib.sha256)

    def code(self, data: bytes | memoryview) -> bytes:
        """Return the authentication code of header and body."""
        mac = self._mac.copy()
        mac.update(data)
        return mac.digest()[:CODE_BYTES]

    def proves(self, frame: memoryview) -> bool:
        """Tell whether the code at the end of a frame is the right one."""
        return hmac.compare_digest(self.code(frame[:-CODE_BYTES]), frame[-CODE_BYTES:])


def tag(text: str) -> bytes:
    """Return the digest that stands for an epoch or a cluster's name in a header."""
    return hashlib.blake2b(text.encode(), digest_size=_TAG_BYTES).digest()
