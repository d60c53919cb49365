"""The broker as a state machine: bytes and time in, bytes out.

Nothing in this package has a clock, a socket, a file, a task or an await: every entry takes `now`.
Three things may wait (a CONNECT, an acknowledgement, an outbound QoS 2 PUBLISH), and they wait as
data. A PUBLISH is one call stack: `dispatch.receive`, `inbound.publish.on_publish`,
`routing.router.deliver`, `sessions.outbound.deliver`.
"""
