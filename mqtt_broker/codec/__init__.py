"""The wire format of MQTT 3.1, 3.1.1 and 5: bytes to packets and back.

Pure functions and slots classes: no clock, no socket, no state but a decoder's own buffer. `core`
decides what a packet means. A packet that violates the protocol becomes a `Violation` at the end
of the list of packets; the valid packets before it are not lost.
"""
