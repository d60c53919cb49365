"""Session State: everything the broker keeps of a client beyond a connection.

    session   identity, subscriptions, expiry and will
    outbound  the way of messages to the client: window, queue, resend list, sources
    queue     what waits, in memory and in the store
    registry  the sessions by client id

All of it but `store` is pure: no clock, socket, file or task; time comes in as `now`. It knows
the codec and the QoS machines, and nothing of the core that drives it.
"""
