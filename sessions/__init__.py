"""What the broker remembers of a client beyond a connection: the Session State of MQTT.

Rules of this room: `message`, `outbox`, `session` and `registry` are pure (no clock, no
socket, no file, no task; time comes in as `now`). They know the codec and the QoS machines,
and nothing of the core that drives them.
"""
