"""The wire and nothing but the wire: bytes to packets and back, for MQTT 3.1, 3.1.1 and 5.

Rules of this room: pure functions and slots classes, no clock, no socket, no state but a
decoder's own buffer. What a packet *means* is decided in `core`. A packet that breaks the
law becomes a `Violation`, which stands in the list of packets behind the good ones that
came before it: nothing that arrived whole is lost.
"""
