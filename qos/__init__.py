"""The QoS 1 and QoS 2 handshakes as pure state machines.

It imports nothing of the project. Packet ids are ints, messages are
opaque objects that come back as they were given. There is no clock, no socket and no
packet here: a method is called when something happened, and what it returns is what the
caller has to do. The two directions have separate id spaces: `Sender` numbers what we
send, `Receiver` remembers what the peer numbered.
"""

from qos.receiver import Receiver
from qos.sender import PACKET_ID_MAX, Sender, WrongAck

__all__ = ["PACKET_ID_MAX", "Receiver", "Sender", "WrongAck"]
