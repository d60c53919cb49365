"""The broker as a state machine: bytes and time in, bytes out.

Rules of this room: no clock, no socket, no file, no task, no await. Every entry takes
`now`. Three things may wait (a CONNECT, an acknowledgement, an outbound QoS 2 PUBLISH), and
they wait as data. The way of a PUBLISH is one call stack: `connection.receive`,
`publish.on_publish`, `sessions.outbound.deliver`.
"""
