"""The QoS 1 and QoS 2 handshakes as pure state machines.

The package imports nothing of the project. Packet ids are ints, messages are opaque objects. There
is no clock, no socket and no packet: a method is called when something has happened, and returns
what the caller has to do. The two directions have separate packet ids: `Sender` assigns those of
what we send, `Receiver` remembers those of the peer.
"""

from qos.receiver import Receiver
from qos.sender import PACKET_ID_MAX, Sender, WrongAck

__all__ = ["PACKET_ID_MAX", "Receiver", "Sender", "WrongAck"]
