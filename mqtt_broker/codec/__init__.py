"""The wire format of MQTT 3.1, 3.1.1 and 5: bytes to packets and back.

Pure functions and slots classes: no clock, no socket, no state but a decoder's own buffer. The
meaning of a packet is decided in `core`. A packet that breaks the protocol becomes a `Violation`,
which stands in the list of packets behind the good ones that came before it, so nothing that
arrived whole is lost.
"""
